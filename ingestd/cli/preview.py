"""`ingestd preview`: shows the rows and rejects that a mapping would make of records of its topics.

Invariant: nothing is changed in Hive or Kafka.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import click
from rich.console import Console

from ingestd.cli.presentation import Column, Output, console, number, print_json, table, with_output
from ingestd.cli.run import with_config
from ingestd.cli.source import Source
from ingestd.daemon import log
from ingestd.ingest.inspection.checks import counted
from ingestd.ingest.inspection.preview import AtOffset, AtTime, InvalidStart, Preview, PreviewRow, parse_start

_ORIGIN = (Column("topic"), number("partition"), number("offset"))
_REJECTS = (*_ORIGIN, Column("column"), Column("reason"))
# Longer texts are shortened in tables.
_CELL_CHARACTERS = 60


@click.command()
@click.argument("mapping")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Maximum number of records."
)
@click.option(
    "--at",
    "at",
    metavar="TIMESTAMP|OFFSET",
    help="The first records at or after a time, such as 2026-11-01T00:00Z, or from an offset of one partition, as"
    " TOPIC:PARTITION:OFFSET. OFFSET is enough if there is only one partition.  [default: the last records]",
)
@with_config
@with_output
def preview(
    mapping: str, limit: int, at: str | None, files: tuple[Path, ...], directory: Path | None, output: Output
) -> None:
    """Show the rows that MAPPING would make of records of its topics.

    Decodes the records as the daemon would, and shows each row with its partition and bucket, each reject with its
    reason, and an estimate of the file sizes. If the mapping will create or alter tables, shows the statements.
    Needs no daemon. Starts Spark on this machine only for `where` and `transform`. It changes nothing in
    Hive and Kafka, and commits no offsets.
    """
    start = None if at is None else _start(at)
    log.configure("auto", "error")
    result = Source(files, directory).preview(mapping, limit, start)
    if output == "json":
        print_json(result.document(mapping))
    else:
        _show(result, console())


def _start(text: str) -> AtTime | AtOffset:
    try:
        return parse_start(text)
    except InvalidStart as error:
        raise click.UsageError(f"--at: {error.what}") from None


def _show(result: Preview, to: Console) -> None:
    target = result.table
    places = [
        *([Column("table partition")] if target.partition_columns else []),
        *([number("bucket")] if target.bucketing else []),
    ]
    columns = (*_ORIGIN, *places, *(Column(column.name) for column in target.columns))
    if result.statements:
        to.print("The mapping will first run, through the metastore:", "")
        for statement in result.statements:
            to.print(f"{statement};", "", sep="\n", markup=False, highlight=False, soft_wrap=True)
    if result.rows:
        to.print(table(columns, [_cells(result, row) for row in result.rows]), "")
    if result.rejects:
        to.print(
            table(_REJECTS, [(*astuple(reject.origin), reject.column, reject.reason) for reject in result.rejects]), ""
        )
    if result.unfilled:
        names = ", ".join(result.unfilled)
        to.print(f"NULL in all rows, because no record has a field for them: {names}", "", markup=False, soft_wrap=True)
    if result.unstored:
        names = ", ".join(result.unstored)
        to.print(f"Fields that are not stored, because they have no column: {names}", "", markup=False, soft_wrap=True)
    skipped = f", {counted(result.skipped, 'skipped tombstone')}" if result.skipped else ""
    shown = f"{counted(len(result.rows), 'row')}, {counted(len(result.rejects), 'reject')}{skipped}"
    to.print(f"{counted(result.records, 'record')}: {shown}")
    estimate = result.estimate
    if estimate is not None:
        number_of = len(result.partitions)
        each = f" to {counted(number_of, 'partition')}, {_size(estimate.bytes / number_of)} each"
        to.print(
            f"Estimate from {counted(len(result.rows), 'row')}: a transaction of {counted(estimate.records, 'record')}"
            f" writes {_size(estimate.bytes)} of ORC{each if target.partition_columns else ''}, divided among the Spark"
            " tasks"
        )


def _cells(result: Preview, row: PreviewRow) -> tuple[object, ...]:
    places = [
        *([row.partition] if result.table.partition_columns else []),
        *([row.bucket] if result.table.bucketing else []),
    ]
    return (*astuple(row.origin), *places, *map(_cell, row.values))


def _cell(value: str | None) -> str:
    """Return a value on one line. NULL and the empty string differ."""
    if value is None:
        return "NULL"
    text = value[:_CELL_CHARACTERS] + ("…" if len(value) > _CELL_CHARACTERS else "")
    return (
        "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
        )
        or "''"
    )


def _size(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"
