"""`ingestd compaction`: shows the deltas and compactions of the tables of mappings, and requests compactions."""

from __future__ import annotations

import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from ingestd.cli.client import user
from ingestd.cli.presentation import Column, Output, console, number, print_json, table, with_output
from ingestd.cli.run import with_config
from ingestd.cli.source import Source
from ingestd.compaction.policy import Queue
from ingestd.compaction.request import Answer, PartitionState, compactable, examine, find_partition, submit, wait
from ingestd.compaction.requirements import metastore_faults, table_faults
from ingestd.errors import IngestdError
from ingestd.hive.compactions import Compaction, Kind, read_compactions
from ingestd.hive.tables import load_acid_table
from ingestd.ingest.options import MappingOptions
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.storages import Storages

_COLUMNS = (
    *(Column("mapping"), Column("partition"), number("deltas"), number("small files"), number("delta bytes")),
    *(number("base bytes"), Column("queued"), Column("last compaction"), Column("last failure")),
)
# Without --all, a table shows this many partitions of a mapping: those with the most deltas.
_SHOWN = 20
_KINDS = click.Choice(["major", "minor"])
# The time limit of --wait without --timeout.
_WAIT_SECONDS = 3600.0


@click.group()
def compaction() -> None:
    """Show and request compactions of the tables of mappings."""


@compaction.command()
@click.argument("mappings", nargs=-1)
@with_config
@click.option("--all", "everything", is_flag=True, help="Show all partitions, not only those with the most deltas.")
@with_output
def status(
    mappings: tuple[str, ...], files: tuple[Path, ...], directory: Path | None, everything: bool, output: Output
) -> None:
    """Show the deltas and compactions of each partition.

    MAPPINGS are the mappings whose tables are shown, by default all. Lists the directories of the tables and reads the
    queue from the metastore; no daemon is needed. Small files have less than 16 MB.
    """
    source = Source(files, directory)
    chosen = [source.mapping(name) for name in mappings] or list(source.document.mappings)
    warehouse = _warehouse(source)
    metastore = warehouse.metastore
    try:
        queue, faults = Queue(read_compactions(metastore)), metastore_faults(metastore)
        examined = [_examined(warehouse, options, queue) for options in chosen]
    finally:
        metastore.close()
    code = next((error.exit_code for _, error, _ in examined if error), 0)
    if output == "json":
        entries = [_entry(o, states, error) for o, (states, error, _) in zip(chosen, examined, strict=True)]
        print_json({"exit_code": code, "metastore_problems": faults, "mappings": entries})
    else:
        _print(chosen, examined, faults, sys.maxsize if everything else _SHOWN)
    sys.exit(code)


@compaction.command()
@click.argument("mapping")
@with_config
@click.option("--major", "kind", flag_value="major", type=_KINDS, help="Rewrite base and deltas to a new base.")
@click.option(
    "--minor",
    "kind",
    flag_value="minor",
    type=_KINDS,
    help="Merge the deltas only. Default: by the rule of the policy.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    help="COLUMN=VALUE/...; repeatable. Default: all that have something to compact.",
)
@click.option("--wait", "waits", is_flag=True, help="Wait until readers use the results. Ctrl-C ends the wait.")
@click.option("--timeout", type=click.FloatRange(min=0.1), help="Time limit of --wait in seconds.  [default: 3600]")
@with_output
def request(  # noqa: PLR0913, PLR0917 - one parameter for each option
    mapping: str,
    files: tuple[Path, ...],
    directory: Path | None,
    kind: Kind | None,
    partitions: tuple[str, ...],
    waits: bool,
    timeout: float | None,
    output: Output,
) -> None:
    """Ask Hive to compact partitions of the table of MAPPING.

    The exit code is 0 if all requests were accepted and, with --wait, succeeded.
    """
    if timeout is not None and not waits:
        raise click.UsageError("--timeout requires --wait")
    source = Source(files, directory)
    options = source.mapping(mapping)
    warehouse = _warehouse(source)
    metastore = warehouse.metastore
    try:
        target = load_acid_table(metastore, options.table)
        names = [find_partition(metastore, target, text) for text in partitions] or list(compactable(warehouse, target))
        by = f"ingestd/{options.control_database}/{options.name}/{user()}"
        answers = submit(warehouse, target, names, kind, options.compaction, by)
        if waits:
            answers = wait(warehouse, target, answers, timeout or _WAIT_SECONDS, threading.Event())
    finally:
        metastore.close()
    code = next((answer.error.exit_code for answer in answers if answer.error), 0)
    if output == "json":
        document = {"mapping": mapping, "table": str(options.table), "exit_code": code}
        print_json(document | {"compactions": [_answer(answer) for answer in answers]})
    else:
        rows = [(answer.partition, *_summary(answer)) for answer in answers]
        console().print(table([Column("partition"), number("id"), Column("kind"), Column("result")], rows))
        if not answers:
            click.echo("no partition has deltas that Hive could merge now")
    sys.exit(code)


_Found = tuple[list[PartitionState], IngestdError | None, list[str]]


def _warehouse(source: Source) -> Warehouse:
    return Warehouse(source.document.metastore.connect(), Storages(source.document.storage))


def _examined(warehouse: Warehouse, options: MappingOptions, queue: Queue) -> _Found:
    """Return the partitions of a mapping's table, or the error that prevents it, and what prevents their compaction."""
    try:
        target = load_acid_table(warehouse.metastore, options.table)
        states = examine(warehouse, target, queue)
    except IngestdError as error:
        return [], error, []
    return states, None, table_faults(target.parameters, [state.name for state in states])


def _print(chosen: list[MappingOptions], examined: list[_Found], faults: list[str], most: int) -> None:
    shown = [
        (options.name, *_row(state))
        for options, (states, _, _) in zip(chosen, examined, strict=True)
        for state in states[:most]
    ]
    console().print(table(_COLUMNS, shown))
    for options, (states, error, problems) in zip(chosen, examined, strict=True):
        for text in ([str(error)] if error else []) + problems:
            click.echo(f"{options.name}: {text}", err=True)
        if len(states) > most:
            click.echo(f"{options.name}: {len(states) - most:,} more partitions; --all shows them", err=True)
    for text in faults:
        click.echo(f"metastore: {text}", err=True)


def _row(state: PartitionState) -> list[object]:
    files, newest, failed = state.files, state.newest, state.failed
    return [
        state.name or "(whole table)",
        files.deltas,
        files.small_files,
        files.delta_bytes,
        files.base_bytes,
        f"{newest.kind}, {newest.state}" if newest and newest.is_pending else None,
        state.succeeded and f"{state.succeeded.kind}, {_time(state.succeeded)}",
        failed and f"{failed.kind}, {failed.state}, {_time(failed)}: {failed.error}",
    ]


def _time(entry: Compaction) -> str:
    return datetime.fromtimestamp(entry.ended or entry.enqueued).astimezone().isoformat(" ", "seconds")


def _entry(options: MappingOptions, states: list[PartitionState], error: IngestdError | None) -> dict[str, Any]:
    return {
        "mapping": options.name,
        "table": str(options.table),
        "error": error and str(error),
        "partitions": [
            {
                "partition": state.name,
                "deltas": state.files.deltas,
                "small_files": state.files.small_files,
                "delta_bytes": state.files.delta_bytes,
                "base_bytes": state.files.base_bytes,
                "queued": _compaction(state.newest) if state.newest and state.newest.is_pending else None,
                "last_success": _compaction(state.succeeded),
                "last_failure": _compaction(state.failed),
            }
            for state in states
        ],
    }


def _compaction(entry: Compaction | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    return {
        "id": entry.id,
        "kind": entry.kind,
        "state": entry.state,
        "error": entry.error,
        "initiator": entry.initiator,
        "requested_unix": entry.enqueued or None,
        "ended_unix": entry.ended or None,
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "partition": answer.partition,
        "accepted": answer.compaction is not None,
        "compaction": _compaction(answer.compaction),
        "error": answer.error and str(answer.error),
    }


def _summary(answer: Answer) -> list[object]:
    known = answer.compaction
    return [known and known.id, known and known.kind, str(answer.error) if answer.error else known and known.state]
