"""`ingestd policy`: creates, shows, changes and runs replication policies, without a daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ingestd.cli.presentation import Column, Output, console, number, print_json, table, with_output
from ingestd.cli.replication import POLICY_COLUMNS, Access, counted, moment, opened, outcome, policy_row
from ingestd.cli.run import with_config
from ingestd.daemon.http.policies import policy_entry, run_entry
from ingestd.errors import IngestdError
from ingestd.replication.cycle import forget
from ingestd.replication.cycle import resume as resume_cycle
from ingestd.replication.directory.protocol import Side
from ingestd.replication.policies.policy_status import PolicyStatus, read_runs, read_statuses
from ingestd.replication.policies.store import ANY_USER
from ingestd.replication.statements.grammar import (
    AlterPolicy,
    CreatePolicy,
    DropPolicy,
    ExecutePolicy,
    PolicyChange,
    ReplDump,
    ReplLoad,
    parse,
    parse_schedule,
)

S = TypeVar("S")
_ALTERATIONS: tuple[type[AlterPolicy | ExecutePolicy], ...] = (AlterPolicy, ExecutePolicy)
_RUN_COLUMNS = (
    *(number("execution"), Column("result"), Column("phase"), Column("began"), number("seconds"), Column("did")),
    *(number("last event"), Column("error")),
)


@click.group()
def policy() -> None:
    """Replicate databases by policies: dumps of a source and loads into a target, run by the daemon.

    The policies are scheduled queries in the metastore of the configuration, in a namespace that HiveServer2 does not
    execute. A daemon whose configuration has the section `replication` runs them.
    """


_schedule = click.option("--schedule", help="When it runs: EVERY 30 MINUTES, or CRON '0 0 12 * * ?'.")
_run = click.option("--run", "statement", help="What it runs: REPL DUMP … or REPL LOAD ….")
_user = click.option("--user", help="Only workers of this user run it.  [default: all workers]")


@policy.command()
@click.argument("text", metavar="NAME|STATEMENT")
@_schedule
@_run
@_user
@click.option("--disabled", is_flag=True, help="Do not run it until it is enabled.")
@with_config
@with_output
def create(  # noqa: PLR0913, PLR0917 - one parameter for each option
    text: str,
    schedule: str | None,
    statement: str | None,
    user: str | None,
    disabled: bool,
    files: tuple[Path, ...],
    directory: Path | None,
    output: Output,
) -> None:
    """Create a policy from options, or from a statement CREATE SCHEDULED QUERY.

    For example: ingestd policy create "CREATE SCHEDULED QUERY repl1 EVERY 30 MINUTES AS REPL DUMP db1 WITH
    ('hive.repl.rootdir'='hdfs://nameservice/repl')"
    """
    options = (schedule, statement, user, disabled or None)
    if schedule and statement:
        run = _repl(statement)
        wanted = CreatePolicy(text, parse_schedule(schedule), run, user, is_enabled=not disabled)
    else:
        wanted = _statement(text, CreatePolicy, "CREATE SCHEDULED QUERY", options)
    with opened(files, directory) as access:
        access.policies.create(wanted)
        _print_one(access.status(wanted.name), output)


@policy.command()
@click.argument("text", metavar="NAME|STATEMENT")
@_schedule
@_run
@_user
@with_config
@with_output
def alter(  # noqa: PLR0913, PLR0917 - one parameter for each option
    text: str,
    schedule: str | None,
    statement: str | None,
    user: str | None,
    files: tuple[Path, ...],
    directory: Path | None,
    output: Output,
) -> None:
    """Change a policy by options, or by a statement ALTER SCHEDULED QUERY. The rest stays as it is."""
    options = (schedule, statement, user)
    wanted: AlterPolicy | ExecutePolicy
    if any(options):
        run = _repl(statement) if statement else None
        wanted = AlterPolicy(text, PolicyChange(parse_schedule(schedule) if schedule else None, user, None, run))
    else:
        wanted = _statement(text, _ALTERATIONS, "ALTER SCHEDULED QUERY", options)
    with opened(files, directory) as access:
        if isinstance(wanted, ExecutePolicy):
            access.policies.execute(wanted.name)
        else:
            access.policies.alter(wanted.name, wanted.change)
        _print_one(access.status(wanted.name), output)


@policy.command("list")
@with_config
@with_output
def list_policies(files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """List the policies of the metastore, with their states and how far the targets are behind."""
    with opened(files, directory) as access:
        entries = [policy_entry(status) for status in read_statuses(access.cluster, access.policies, access.schedules)]
    if output == "json":
        print_json(entries)
    else:
        console().print(table(POLICY_COLUMNS, map(policy_row, entries)))


def _with_name(command: Any) -> Any:
    for option in reversed([click.argument("name"), with_config, with_output]):
        command = option(command)
    return command


def _with_text(command: Any) -> Any:
    for option in reversed([click.argument("text", metavar="NAME|STATEMENT"), with_config, with_output]):
        command = option(command)
    return command


@policy.command()
@_with_name
def show(name: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Show the policy NAME: its statement, schedule, state, last execution and last error."""
    with opened(files, directory) as access:
        _print_one(access.status(name), output)


@policy.command()
@_with_text
def enable(text: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Let the policy NAME run at its schedule. Times that were missed are not made up for.

    Instead of NAME, a statement ALTER SCHEDULED QUERY … ENABLE is accepted.
    """
    change = PolicyChange(is_enabled=True)
    name = _name_to_change(text, change, "ENABLE")
    _change(name, files, directory, output, lambda access: access.policies.alter(name, change))


@policy.command()
@_with_text
def disable(text: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Do not run the policy NAME until it is enabled. An execution that runs is finished.

    Instead of NAME, a statement ALTER SCHEDULED QUERY … DISABLE is accepted.
    """
    change = PolicyChange(is_enabled=False)
    name = _name_to_change(text, change, "DISABLE")
    _change(name, files, directory, output, lambda access: access.policies.alter(name, change))


@policy.command()
@_with_text
def execute(text: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Let a daemon run the policy NAME now, or when its current execution has ended.

    Instead of NAME, a statement ALTER SCHEDULED QUERY … EXECUTE is accepted.
    """
    name = _statement(text, ExecutePolicy, "ALTER SCHEDULED QUERY", ()).name if " " in text else text
    _change(name, files, directory, output, lambda access: access.policies.execute(name))


@policy.command()
@_with_text
def drop(text: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Drop the policy NAME. The dumps and the target database remain.

    An execution that runs is stopped. The directory of dumps is released, and the transactions of the source that are
    open on the target are aborted, so a policy that loads into the database later may have to begin with a bootstrap.
    Instead of NAME, a statement DROP SCHEDULED QUERY is accepted.
    """
    name = _statement(text, DropPolicy, "DROP SCHEDULED QUERY", ()).name if " " in text else text
    with opened(files, directory) as access:
        statement = access.policies.get(name).statement
        access.policies.drop(name)
        if statement is not None:
            _forget(access, name, statement)
    if output == "json":
        print_json({"policy": name, "dropped": True})
    else:
        click.echo(f"policy {name}: dropped")


def _forget(access: Access, name: str, statement: ReplDump | ReplLoad) -> None:
    """Release what a dropped policy holds. Raises IngestdError, which says that the policy itself is dropped."""
    try:
        forget(access.cluster, name, statement)
    except IngestdError as error:
        error.what = f"the policy {name} is dropped, but its directory of dumps is not released: {error.what}"
        file = (Side.SOURCE if isinstance(statement, ReplDump) else Side.TARGET).value
        error.hint = f"remove the file {file} there before another policy uses the directory"
        raise


@policy.command()
@_with_name
def executions(name: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """List the executions of the policy NAME in the last seven days, the latest first."""
    with opened(files, directory) as access:
        runs = access.status(name).runs
    if output == "json":
        print_json([run_entry(run) for run in runs])
        return
    rows = (
        (
            run.execution,
            outcome(run),
            run.phase.lower(),
            moment(run.began),
            round((run.ended or run.updated) - run.began),
            counted(run),
            run.last_event or None,
            run.error,
        )
        for run in runs
    )
    console().print(table(_RUN_COLUMNS, rows))


@policy.command()
@_with_name
def metrics(name: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Show the rows of sys.replication_metrics of the policy NAME, the latest first."""
    with opened(files, directory) as access:
        access.policies.get(name)
        rows = [run.row() for run in read_runs(access.schedules, name)]
    if output == "json":
        keys = ("scheduled_execution_id", "policy_name", "dump_execution_id", "metadata", "progress")
        values = ((row.execution, row.policy, row.dump_execution, row.metadata, row.progress) for row in rows)
        print_json([dict(zip(keys, row, strict=True)) for row in values])
        return
    columns = (number("execution"), number("dump execution"), Column("metadata"), Column("progress"))
    console().print(table(columns, ((row.execution, row.dump_execution, row.metadata, row.progress) for row in rows)))


@policy.command()
@click.argument("name")
@click.option("--bootstrap", is_flag=True, help="Let the next dump copy the whole database, in place of its changes.")
@with_config
@with_output
def resume(name: str, bootstrap: bool, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Let the policy NAME and that of the other side continue after an error that stopped both.

    Remove the cause of the error first. With --bootstrap, NAME must be the policy that dumps the source.
    """
    with opened(files, directory) as access:
        reasons = resume_cycle(access.cluster, access.statement(name), bootstrap=bootstrap)
    if output == "json":
        print_json({"policy": name, "reasons": reasons, "bootstrap": bootstrap})
        return
    for reason in reasons:
        click.echo(f"policy {name}: had stopped: {reason}")
    next_dump = "the next dump copies the whole database" if bootstrap else "continues at its next time"
    click.echo(f"policy {name}: {next_dump}" if reasons or bootstrap else f"policy {name}: was not stopped")


def _change(
    name: str, files: tuple[Path, ...], directory: Path | None, output: Output, change: Callable[[Access], object]
) -> None:
    with opened(files, directory) as access:
        change(access)
        _print_one(access.status(name), output)


def _name_to_change(text: str, change: PolicyChange, word: str) -> str:
    """Return the name in `text`, which may be a statement that makes only this change; `word` is its last one."""
    if " " not in text:
        return text
    statement = _statement(text, AlterPolicy, "ALTER SCHEDULED QUERY", ())
    if statement.change != change:
        raise click.UsageError(f"write a statement ALTER SCHEDULED QUERY … {word} for this command")
    return statement.name


def _statement(text: str, kind: type[S] | tuple[type[S], ...], expected: str, options: tuple[object, ...]) -> S:
    """Return the statement in `text`, which must be of one kind. `options` may then not be given."""
    if " " not in text.strip():
        raise click.UsageError(f"write a statement {expected} …, or the name with --schedule and --run")
    if any(options):
        raise click.UsageError(f"the statement {expected} cannot be combined with options")
    parsed = parse(text)
    if not isinstance(parsed, kind):
        raise click.UsageError(f"write a statement {expected} for this command")
    return parsed


def _repl(text: str) -> ReplDump | ReplLoad:
    parsed = parse(text)
    if not isinstance(parsed, (ReplDump, ReplLoad)):
        raise click.UsageError("--run must be a statement REPL DUMP or REPL LOAD")
    return parsed


def _print_one(status: PolicyStatus, output: Output) -> None:
    if output == "json":
        print_json(policy_entry(status))
        return
    described, last, lag = status.policy, status.last, status.lag
    lines = {
        "policy": described.name,
        "statement": described.statement,
        "schedule": described.schedule,
        "user": "" if described.user == ANY_USER else described.user,
        "state": status.state.value,
        "next execution": moment(described.next_execution) if described.is_enabled else None,
        "last execution": last and f"{last.execution}, {outcome(last)}, {moment(last.began)}",
        "it did": last and counted(last),
        "lag": lag and f"{lag.events:,} events, {lag.seconds:.0f} s",
        "problem": status.problem,
    }
    for title, value in lines.items():
        if value not in (None, ""):
            click.echo(f"{title + ':':<16}{value}")
