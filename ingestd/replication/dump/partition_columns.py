"""Reads the columns of partitions after those of their table were changed, because no event has them.

With CASCADE, an alteration of a table changes the columns of all its partitions. Its event has neither these nor
whether it was cascaded (HiveAlterHandler, seen with 4.2.0). A partition has columns of its own, by which Hive reads its
files if their format does not describe them.

Invariant: after the last event of a dump, a partition of the target has the columns that it had on the source when the
dump was made. If the source changes them again meanwhile, the target has the later ones earlier.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ingestd.errors import InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.objects import ColumnField, all_partition_names, find_partitions, find_table
from ingestd.hive.tables import TableName
from ingestd.replication.directory.event_records import PartitionColumnsRecord


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """An event that changes the columns of a partitioned table.

    `table` is its name at the event, `last` at the end of the dump, and `identity` is TableObject.identity.
    """

    event: int
    table: str
    last: str
    identity: str


@dataclass(frozen=True, slots=True)
class PartitionColumns:
    """The columns of the partitions of tables that were changed, in the order of the events.

    `missing` contains the last names of tables that were not found, because they were dropped or renamed after the
    dump.
    """

    records: list[PartitionColumnsRecord] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, metastore: Metastore, database: str, changes: Iterable[ColumnChange]) -> PartitionColumns:
        """Read the partitions of each table once. Raises MetastoreUnavailable."""
        made = cls()
        known: dict[tuple[str, str], list[tuple[str, tuple[str, ...]]] | None] = {}
        for change in changes:
            key = change.last, change.identity
            if key not in known:
                known[key] = _grouped(metastore, TableName(database, change.last), change.identity)
            groups = known[key]
            if groups is None:
                made.missing.add(change.last)
            else:
                made.records.extend(PartitionColumnsRecord(change.event, *group) for group in groups)
        return made


def _grouped(metastore: Metastore, name: TableName, identity: str) -> list[tuple[str, tuple[str, ...]]] | None:
    """Return each list of columns, as text, with the names of its partitions; None if the table does not exist."""
    table = find_table(metastore, name)
    if table is None or (identity and table.identity != identity):
        return None
    groups: dict[str, list[str]] = defaultdict(list)
    try:
        for partition in find_partitions(metastore, name, all_partition_names(metastore, name)):
            groups[_text(partition.columns)].append(table.partition_name(partition.values))
    except InvalidTable:
        return None
    return [(columns, tuple(names)) for columns, names in groups.items()]


def _text(columns: Sequence[ColumnField]) -> str:
    return json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
