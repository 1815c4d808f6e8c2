"""`ingestd offsets`: shows and changes the committed position of a mapping."""

from __future__ import annotations

from pathlib import Path

import click

from ingestd.cli.presentation import Column, Output, console, number, print_json, table, with_output
from ingestd.cli.run import with_config
from ingestd.cli.source import Source
from ingestd.ingest.stored import StoredMapping, read_mapping

_COLUMNS = (Column("topic"), *map(number, ("partition", "earliest", "committed", "end", "lag")))


@click.group()
def offsets() -> None:
    """Show or change the committed position of a mapping."""


@offsets.command()
@click.argument("mapping")
@with_config
@with_output
def show(mapping: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Show the committed position of MAPPING and the offsets that Kafka has.

    The position is read from Hive, which is the source of truth. The consumer group in Kafka is only a copy.
    """
    source = Source(files, directory)
    found = _read(source, mapping)
    if output == "json":
        print_json(_document(found))
        return
    rows = ((p.partition.topic, p.partition.partition, p.earliest, p.committed, p.end, p.lag) for p in found.offsets)
    console().print(table(_COLUMNS, rows))


def _read(source: Source, mapping: str) -> StoredMapping:
    options = source.mapping(mapping)
    metastore = source.document.metastore.connect()
    try:
        return read_mapping(metastore, options)
    finally:
        metastore.close()


def _document(found: StoredMapping) -> dict[str, object]:
    state = found.state
    return {
        "mapping": found.options.name,
        "table": str(found.options.table),
        "stored": state and {"txn": state.txn, "write_id": state.write_id, "owner": state.owner, "at": state.at},
        "offsets": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "earliest": one.earliest,
                "committed": one.committed,
                "end": one.end,
                "lag": one.lag,
            }
            for one in found.offsets
        ],
    }
