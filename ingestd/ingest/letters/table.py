"""The table of dead letters: its columns, its creation, the rows of letters, and the marks of those that were replayed.

Invariant: a table that ingestd writes dead letters to has exactly the columns of `COLUMNS`, in this order. No name of a
column is a reserved word of Hive. Timestamps are in UTC. Rows of letters are never changed: a letter was replayed if
there is another row with its id, the mark, whose `error_stage` is `REPLAYED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import pyarrow as pa

from ingestd.acid.routing import Shape
from ingestd.errors import InvalidTable, TableMissing
from ingestd.hive.answers import MetastoreDeclined, MetastoreRefusal
from ingestd.hive.client import Metastore
from ingestd.hive.creation import NewTable, create_table
from ingestd.hive.tables import Table, TableName, load_acid_table, require_full_acid
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.record import Record
from ingestd.schema import Column, HiveType

COLUMNS = tuple(
    Column(name, HiveType.parse(kind))
    for name, kind in {
        "id": "string",
        "mapping": "string",
        "record_topic": "string",
        "record_partition": "int",
        "record_offset": "bigint",
        "record_timestamp": "timestamp",
        "record_key": "binary",
        "record_value": "binary",
        "record_headers": "array<struct<key:string,value:binary>>",
        "error_stage": "string",
        "error_column": "string",
        "error_reason": "string",
        "error_time": "timestamp",
    }.items()
)
REPLAYED = "REPLAYED"
# The stage, of Kafka Connect, of letters without a record, because the client of Kafka cannot read it.
UNREAD = "KAFKA_CONSUME"
_ORIGIN = ("id", "mapping", "record_topic", "record_partition", "record_offset")
_SCHEMA = pa.schema([pa.field(column.name, column.type.arrow) for column in COLUMNS])
# The years 1678 to 2261, which timestamps in nanoseconds can store. Producers that confuse units set others.
_FIRST_MS, _END_MS = -9_214_560_000_000, 9_214_646_400_000
_NANOS = 1_000_000


@dataclass(frozen=True, slots=True)
class Replay:
    """When a letter was replayed, and the transaction that did it, as text."""

    transaction: str
    time: datetime | None


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter: the record and its origin, and why it cannot become a row.

    `id` is that of the original record. `column` is '' if the record itself is malformed. `time` is None only if
    another program has written the letter, and `replay` unless it was replayed.
    """

    id: str
    mapping: str
    partition: TopicPartition
    offset: int
    record: Record
    stage: str
    column: str
    reason: str
    time: datetime | None
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class LetterTable:
    """What a task needs to write letters: the table's shape, the write id, and the URI of the staging directory."""

    shape: Shape
    write_id: int
    staging: str


def letter_rows(letters: Sequence[Letter]) -> pa.RecordBatch:
    """Return the rows of letters. A timestamp outside the years 1678 to 2261 is NULL."""
    rows = [
        {
            "id": letter.id,
            "mapping": letter.mapping,
            "record_topic": letter.partition.topic,
            "record_partition": letter.partition.partition,
            "record_offset": letter.offset,
            "record_timestamp": _nanoseconds(letter.record.timestamp_ms),
            "record_key": letter.record.key,
            "record_value": letter.record.value,
            "record_headers": [{"key": key, "value": value} for key, value in letter.record.headers],
            "error_stage": letter.stage,
            "error_column": letter.column,
            "error_reason": letter.reason,
            "error_time": letter.time and _nanoseconds(int(letter.time.timestamp() * 1000)),
        }
        for letter in letters
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def letters_of(rows: pa.RecordBatch) -> Iterator[Letter]:
    """Yield the letters in rows of the table."""
    times = {
        name: rows.column(name).cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
        for name in ("record_timestamp", "error_time")
    }
    others = rows.select([name for name in rows.schema.names if name not in times]).to_pylist()
    for row, record_ms, error_ms in zip(others, *times.values(), strict=True):
        headers = tuple((header["key"], header["value"]) for header in row["record_headers"] or ())
        yield Letter(
            row["id"],
            row["mapping"],
            TopicPartition(row["record_topic"], row["record_partition"]),
            row["record_offset"],
            Record(row["record_key"], row["record_value"], headers, record_ms),
            row["error_stage"],
            row["error_column"],
            row["error_reason"],
            None if error_ms is None else datetime.fromtimestamp(error_ms / 1000, timezone.utc),
        )


def marks_of(letters: pa.RecordBatch, replay: Replay) -> pa.RecordBatch:
    """Return the marks of letters, which have the origin of their letters and no record."""
    assert replay.time is not None
    others = {
        "error_stage": REPLAYED,
        "error_column": "",
        "error_reason": replay.transaction,
        "error_time": int(replay.time.timestamp() * 1000) * _NANOS,
    }
    count = letters.num_rows
    arrays = [
        letters.column(field.name).cast(field.type)
        if field.name in _ORIGIN
        else pa.repeat(pa.scalar(others.get(field.name), field.type), count)
        for field in _SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def definition(name: TableName) -> str:
    """Return the statement that creates the table."""
    return NewTable(name, COLUMNS).statement


def load_letter_table(metastore: Metastore, name: TableName) -> Table:
    """Read and check the table. Raises TableMissing, InvalidTable if it has other columns, or MetastoreUnavailable."""
    try:
        table = load_acid_table(metastore, name)
    except TableMissing as error:
        raise TableMissing(error.what, where=f"dead_letter.table {name}", hint=definition(name)) from error
    require_full_acid(table)
    if table.columns != COLUMNS or table.partition_columns or table.bucketing or table.not_null:
        raise InvalidTable(
            f"the table is not one of dead letters: {_difference(table)}",
            where=f"dead_letter.table {name}",
            hint=f"choose another name, or rename the table; ingestd creates it as {definition(name)}",
        )
    return table


def create_letter_table(metastore: Metastore, name: TableName, lease: TableName) -> bool:
    """Create the table in its database unless it exists, and return whether this call created it.

    `lease` is as for `create_table`. Raises InvalidTable or MetastoreDeclined with the statement that creates the table
    if the metastore refuses to, OwnershipLost, or MetastoreUnavailable.
    """
    try:
        return create_table(metastore, NewTable(name, COLUMNS), lease)
    except (InvalidTable, MetastoreRefusal, MetastoreDeclined) as error:
        kind = type(error) if isinstance(error, MetastoreDeclined) else InvalidTable
        raise kind(
            f"the table does not exist, and cannot be created: {error.what}",
            where=f"dead_letter.table {name}",
            hint=definition(name),
        ) from error


def _difference(table: Table) -> str:
    """Return the first difference between a table and that of dead letters."""
    for expected, present in zip(COLUMNS, table.columns, strict=False):
        if expected != present:
            return f"it has the column {present.name} {present.type} instead of {expected.name} {expected.type}"
    if len(table.columns) != len(COLUMNS):
        return f"it has {len(table.columns)} columns instead of {len(COLUMNS)}"
    if table.not_null:
        return f"its columns {', '.join(sorted(table.not_null))} are NOT NULL"
    return "it is partitioned" if table.partition_columns else "it is bucketed"


def _nanoseconds(milliseconds: int | None) -> int | None:
    if milliseconds is None or not _FIRST_MS <= milliseconds < _END_MS:
        return None
    return milliseconds * _NANOS
