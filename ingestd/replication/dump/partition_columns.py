"""Reads the columns of partitions after those of their table were changed, because no event has them.

With CASCADE, an alteration of a table gives all its partitions the columns of the table. Its event does not tell
whether it was cascaded (HiveAlterHandler, seen with 4.2.0). A partition has columns of its own, by which Hive reads its
files if their format does not describe them.

Only the last change of a table in a dump has records, and only of partitions that may have got their columns by one of
the changes: one that has other columns has got them by other events. So a table that is not cascaded, such as one whose
columns ingestd adds, costs a listing of its partitions for each dump, and records of those that are new.

Invariant: after the last event of a dump, a partition of the target has the columns that it had on the source when the
dump was made. If the source changes them again meanwhile, the target has the later ones earlier.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ingestd.errors import InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.objects import ColumnField, all_partition_names, find_partitions, find_table
from ingestd.hive.tables import TableName
from ingestd.replication.directory.event_records import PartitionColumnsRecord
from ingestd.replication.dump.moves import Moves

_Groups = Mapping[tuple[ColumnField, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """An event that changes the columns of a partitioned table to `columns`; `table` is its name at the event."""

    event: int
    table: str
    columns: tuple[ColumnField, ...]


@dataclass(frozen=True, slots=True)
class PartitionColumns:
    """The columns of the partitions of tables that were changed, in the order of the events.

    `missing` contains the names at their events of tables that were dropped after the dump.
    """

    records: list[PartitionColumnsRecord] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, metastore: Metastore, moves: Moves, changes: Iterable[ColumnChange], end: int) -> PartitionColumns:
        """Read the partitions of each table once, under the name that it has now; `end` is the last event of the dump.

        Raises MetastoreUnavailable.
        """
        by_table: dict[str, list[ColumnChange]] = defaultdict(list)
        moves.read()
        for change in changes:
            if last_name := moves.name_after(change.event, change.table, until=end):
                by_table[last_name].append(change)
        tables = moves.look_up(
            by_table,
            lambda table: moves.name_after(end, table),
            lambda places: _read_all(metastore, moves.database, places),
        )
        columns = cls()
        for table, of_table in by_table.items():
            if table in tables:
                columns.records.extend(_records(of_table, tables[table]))
            else:
                columns.missing.add(of_table[-1].table)
        columns.records.sort(key=lambda record: record.event)
        return columns


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns of a table now, and the escaped names of its partitions by their columns."""

    columns: tuple[ColumnField, ...]
    groups: _Groups


def _read_all(metastore: Metastore, database: str, places: Mapping[str, str]) -> Mapping[str, _Table]:
    """Return the tables that exist, each of which has another name now."""
    tables = ((table, _read(metastore, TableName(database, now))) for table, now in places.items())
    return {name: table for name, table in tables if table is not None}


def _read(metastore: Metastore, name: TableName) -> _Table | None:
    table = find_table(metastore, name)
    if table is None:
        return None
    groups: dict[tuple[ColumnField, ...], list[str]] = defaultdict(list)
    try:
        names = all_partition_names(metastore, name)
        for partition in find_partitions(metastore, name, names, column_statistics=False):
            groups[partition.columns].append(table.partition_name(partition.values))
    except InvalidTable:
        return None
    return _Table(table.columns, {columns: tuple(names) for columns, names in groups.items()})


def _records(changes: Sequence[ColumnChange], table: _Table) -> list[PartitionColumnsRecord]:
    """Return the records of the last change of a table; one without partitions if all have its columns."""
    last = changes[-1]
    if list(table.groups) == [last.columns]:
        return [PartitionColumnsRecord(last.event, _text(last.columns), ())]
    changed = {change.columns for change in changes}
    is_changed_later = table.columns != last.columns
    return [
        PartitionColumnsRecord(last.event, _text(columns), names)
        for columns, names in table.groups.items()
        if is_changed_later or columns in changed
    ]


def _text(columns: Sequence[ColumnField]) -> str:
    return json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
