"""`ingestd repl`: runs one step of a replication by hand, and compares a copy with its source."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from ingestd.cli.presentation import Column, Output, console, number, print_json, table, with_output
from ingestd.cli.replication import Access, opened
from ingestd.cli.run import with_config
from ingestd.daemon.start import install_signals
from ingestd.errors import ConfigError, IngestdError
from ingestd.hive.objects import find_database
from ingestd.replication import cycle
from ingestd.replication.cycle import Progress, Result, Step
from ingestd.replication.directory.protocol import DumpDirectory
from ingestd.replication.marks import INCOMPATIBLE, ORIGIN, PENDING, last_event
from ingestd.replication.policies.policy_status import describe_unreadable
from ingestd.replication.policies.runs import Status
from ingestd.replication.statements.grammar import ReplDump, ReplLoad, ReplStatus, parse
from ingestd.replication.statements.scope import Scope
from ingestd.replication.verify.checksum_jobs import ColumnChecks
from ingestd.replication.verify.content import Verdict
from ingestd.replication.verify.tables import TableReport, verify
from ingestd.spark.engine import Engine
from ingestd.spark.session import Session

S = TypeVar("S", ReplDump, ReplLoad)
_DIFFERENT, _NOT_COMPARABLE = 65, 75
_COLUMNS = (
    *(Column("table"), Column("result"), number("behind"), number("locations"), number("files"), number("rows")),
    Column("findings"),
)
_text = click.argument("text", metavar="POLICY|STATEMENT")


@click.group()
def repl() -> None:
    """Run one dump or load of a replication by hand, show the last event of a copy, or compare it with its source."""


@repl.command()
@_text
@click.option("--bootstrap", is_flag=True, help="Dump the whole database, whatever was dumped before.")
@with_config
@with_output
def dump(text: str, bootstrap: bool, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Dump what the target does not have: the whole database at first, later the changes.

    STATEMENT is REPL DUMP …; instead of it, the name of a policy is accepted. The configuration is that of the source.
    """
    with opened(files, directory) as access, _stopping() as stop:
        name, statement = _resolved(access, text, ReplDump)
        if bootstrap:
            cycle.resume(access.cluster, statement, bootstrap=True)
        result = _with_bars(name, output, lambda step: cycle.dump(access.cluster, statement, step, stop))
    _report("dump", result, output)


@repl.command()
@_text
@click.option("--spark", is_flag=True, help="Copy large sets of files by Spark jobs, as the daemon does.")
@with_config
@with_output
def load(text: str, spark: bool, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Load the latest dump into the target database, unless it is loaded already.

    STATEMENT is REPL LOAD …; instead of it, the name of a policy is accepted. The configuration is that of the target.
    """
    with opened(files, directory) as access, _stopping() as stop:
        name, statement = _resolved(access, text, ReplLoad)
        others = access.policies.loads(name)
        with _engine(access, stop) if spark else _no_engine() as engine:
            result = _with_bars(
                name, output, lambda step: cycle.load(access.cluster, statement, others, engine, step, stop)
            )
    _report("load", result, output)


@repl.command()
@click.argument("text", metavar="DATABASE|STATEMENT")
@with_config
@with_output
def status(text: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Show the last event of the source that a target database contains.

    STATEMENT is REPL STATUS …. The configuration is that of the target.
    """
    name = text.lower()
    if " " in text:
        parsed = parse(text)
        if not isinstance(parsed, ReplStatus):
            raise click.UsageError("write a statement REPL STATUS, or the name of a database")
        name = parsed.database
    with opened(files, directory) as access:
        database = find_database(access.cluster.metastore, name)
        if database is None:
            raise ConfigError("the database does not exist", where=f"database {name}")
        marks = database.parameters
        unreadable = _unreadable(access, marks)
    last = last_event(marks)
    is_consistent = last is not None and marks.get(PENDING) != "true" and marks.get(INCOMPATIBLE) != "true"
    if output == "json":
        document = {"database": name, "last_event": last, "consistent": is_consistent, "unreadable": list(unreadable)}
        print_json(document)
        return
    text = "no last event: it is not a complete copy" if last is None else f"last event {last}"
    note = "" if is_consistent or last is None else ", consistent after the next load of changes"
    click.echo(f"database {name}: {text}{note}")
    if unreadable:
        click.echo(describe_unreadable(unreadable))


def _unreadable(access: Access, marks: Mapping[str, str]) -> dict[str, str]:
    """Return the tables that are not copied into a database with the properties `marks`; the first with a reason."""
    origin = marks.get(ORIGIN)
    if origin is None:
        return {}
    try:
        directory = DumpDirectory.at(access.cluster.storages, origin)
        return directory.unreadable(directory.dumps())
    except IngestdError as error:  # the source may be lost
        click.echo(f"the directory of dumps cannot be read: {error}", err=True)
        return {}


@repl.command("verify")
@_text
@click.option(
    "--source-config",
    "sources",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    required=True,
    help="Configuration file of the source. Repeatable.",
)
@click.option("--columns", is_flag=True, help="Also compare checksums of the values of each column. Reads all files.")
@click.option("--spark", is_flag=True, help="Read large sets of files by Spark jobs.")
@with_config
@with_output
def verify_copy(  # noqa: PLR0913, PLR0917 - one parameter for each option
    text: str,
    sources: tuple[Path, ...],
    columns: bool,
    spark: bool,
    files: tuple[Path, ...],
    directory: Path | None,
    output: Output,
) -> None:
    """Compare a copy with its source: definitions, write ids, files and numbers of rows of each table.

    STATEMENT is REPL LOAD …; instead of it, the name of a policy that loads is accepted. Both sides are compared in the
    state that the target has. The exit code is 65 if a table differs, and 75 if none does but one cannot be compared.
    """
    reports: list[TableReport] = []
    with opened(files, directory) as target, opened(sources, None) as source, _stopping() as stop:
        _, statement = _resolved(target, text, ReplLoad)
        scope = _scope(target, statement)
        with _engine(target, stop) if spark and columns else _no_engine() as engine:
            checks = ColumnChecks(engine) if columns else None
            for report in verify(source.cluster, target.cluster, scope, statement.target, checks):
                reports.append(report)
                if output == "table" and report.verdict is not Verdict.EQUAL:
                    click.echo(f"{report.table}: {report.verdict.value}: {'; '.join(report.findings)}", err=True)
    if output == "json":
        print_json([_entry(report) for report in reports])
    else:
        rows = (
            (r.table, r.verdict.value, r.behind, r.locations, r.files, r.target_rows, "; ".join(r.findings))
            for r in reports
        )
        console().print(table(_COLUMNS, rows))
    verdicts = {report.verdict for report in reports}
    sys.exit(_DIFFERENT if Verdict.DIFFERENT in verdicts else _NOT_COMPARABLE if verdicts - {Verdict.EQUAL} else 0)


def _entry(report: TableReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "verdict": report.verdict.value,
        "findings": list(report.findings),
        "behind": report.behind,
        "locations": report.locations,
        "files": report.files,
        "rows": report.rows,
        "target_rows": report.target_rows,
        "write_ids": report.write_ids or None,
        "target_write_ids": report.target_write_ids or None,
    }


def _resolved(access: Access, text: str, kind: type[S]) -> tuple[str, S]:
    """Return the name of a policy, '' for a statement, and the statement. Raises ConfigError if the policy runs."""
    name, statement = ("", parse(text)) if " " in text.strip() else (text, access.statement(text))
    if not isinstance(statement, kind):
        raise click.UsageError(f"{text} is not {'REPL DUMP' if kind is ReplDump else 'REPL LOAD'}")
    if name:
        last = access.status(name).last
        if last is not None and last.status is Status.IN_PROGRESS and access.status(name).state.value == "running":
            hint = "wait for its end, or disable the policy first"
            raise ConfigError(f"a daemon runs its execution {last.execution}", where=f"policy {name}", hint=hint)
    return name, statement


def _scope(target: Access, statement: ReplLoad) -> Scope:
    """Return the scope of the last loaded dump; the whole database if there is none."""
    directory = DumpDirectory(target.cluster.storages, statement.settings.root, statement.source)
    loaded = [dump for dump in directory.dumps() if dump.is_loaded]
    return loaded[-1].state.scope if loaded else Scope(statement.source)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, so that a step ends between two files or events."""
    yield install_signals().stop


@contextmanager
def _no_engine() -> Iterator[None]:
    yield None


@contextmanager
def _engine(access: Access, stop: threading.Event) -> Iterator[Engine]:
    with_engine = Engine(Session(access.spark.master, access.spark.properties, stop))
    try:
        yield with_engine
    finally:
        with_engine.stop()


def _with_bars(name: str, output: Output, run: Callable[[Step], Result]) -> Result:
    """Run a step and show its progress on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Bars(*columns, console=Console(stderr=True), disable=output == "json", transient=True)
    known: dict[str, Any] = {}

    def show(progress: Progress) -> None:
        for title, (done, total) in progress.counts.items():
            if title not in known:
                known[title] = bars.add_task(title.lower(), total=total)
            bars.update(known[title], completed=done, total=total)

    with bars:
        return run(Step(name, on_progress=show))


def _report(step: str, result: Result, output: Output) -> None:
    counts = result.progress.counts
    if output == "json":
        document = {
            "step": step,
            "skipped": result.skipped or None,
            "phase": result.progress.phase or None,
            "directory": result.progress.directory or None,
            "last_event": result.last_event or None,
            "counts": {name.lower(): done for name, (done, _) in counts.items()},
            "lost": list(result.lost),
            "missing": list(result.missing),
            "unreadable": list(result.unreadable),
        }
        print_json(document)
    elif result.skipped:
        click.echo(f"{step}: skipped: {result.skipped}")
    else:
        did = ", ".join(f"{done:,} {name.lower()}" for name, (done, _) in counts.items())
        click.echo(f"{step}: {result.progress.phase.lower()} complete up to event {result.last_event}: {did or '-'}")
        click.echo(f"directory: {result.progress.directory}")
        for name in result.lost:
            click.echo(f"table {name}: files of the source have vanished; the next dump contains all of it", err=True)
        for name in result.unreadable:
            click.echo(f"table {name}: it is not copied, because its files cannot be read", err=True)
        for directory in result.missing:
            click.echo(f"{directory} does not exist; the copy of this external table keeps its files", err=True)
