"""The tables and partitions of a target database as the metastore has them, read once.

Invariant: an object is what the metastore last returned or accepted. A change that is not made by the methods here must
be followed by `forget`. Nobody else changes definitions in the target database while the lease of its loads is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestd.hive.client import Metastore
from ingestd.hive.objects import (
    PartitionObject,
    TableObject,
    alter_partitions,
    alter_table,
    find_partitions,
    find_table,
)
from ingestd.hive.tables import TableName

# A partition with the statistics of a hundred columns takes some 100 KiB.
_MOST_PARTITIONS = 2000


class TargetObjects:
    """The objects of `database`. Methods raise the errors of the metastore. Not thread-safe."""

    def __init__(self, metastore: Metastore, database: str) -> None:
        self._metastore = metastore
        self._database = database
        self._tables: dict[str, TableObject | None] = {}
        self._partitions: dict[tuple[str, str], PartitionObject] = {}

    def table(self, name: str) -> TableObject | None:
        """Return a table, None if it does not exist."""
        if name not in self._tables:
            self._tables[name] = find_table(self._metastore, TableName(self._database, name))
        return self._tables[name]

    def partitions(self, table: TableObject, names: Sequence[str]) -> Mapping[str, PartitionObject]:
        """Return the partitions in `names`, which are escaped, that exist."""
        of_table = table.name.table
        missing = [name for name in names if (of_table, name) not in self._partitions]
        if len(self._partitions) + len(missing) > _MOST_PARTITIONS:
            self._partitions.clear()
            missing = list(names)
        partitions = {name: self._partitions[of_table, name] for name in names if (of_table, name) in self._partitions}
        if missing:
            read = find_partitions(self._metastore, table.name, missing)
            partitions |= {table.partition_name(partition.values): partition for partition in read}
        self._keep(table, partitions)
        return partitions

    def alter_table(self, table: TableObject, *, cascade: bool = False) -> None:
        """Replace the definition of a table, which keeps its name; with `cascade`, also the columns of partitions."""
        name = table.name.table
        self._tables.pop(name, None)
        if cascade:
            self._partitions.clear()
        alter_table(self._metastore, table.name, table, cascade=cascade)
        self._tables[name] = table

    def alter_partitions(self, table: TableObject, changed: Sequence[PartitionObject]) -> None:
        """Replace the definitions of partitions, which keep their values and have the same write id."""
        named = {table.partition_name(partition.values): partition for partition in changed}
        for name in named:
            self._partitions.pop((table.name.table, name), None)
        alter_partitions(self._metastore, table.name, changed)
        self._keep(table, named)

    def forget(self) -> None:
        """Read everything again."""
        self._tables.clear()
        self._partitions.clear()

    def _keep(self, table: TableObject, partitions: Mapping[str, PartitionObject]) -> None:
        if len(partitions) <= _MOST_PARTITIONS:
            self._partitions |= {(table.name.table, name): partition for name, partition in partitions.items()}
