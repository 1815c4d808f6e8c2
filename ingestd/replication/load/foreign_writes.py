"""Whether another client has written to a target table under a write id of a source transaction that has aborted.

Invariant: no load places a file under such a write id, so a directory of it belongs to another client. A metastore
forgets an aborted transaction without locks in a few seconds, so it cannot tell whose the write id was.

The directories of a table are listed once for all write ids that it had then, because a load that is repeated may have
aborted many, and a table may have many partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ingestd.acid.layout import Base, parse_directory
from ingestd.hive.objects import TableObject, all_partition_names, find_partitions
from ingestd.hive.partitions import by_call
from ingestd.hive.tables import TableName
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.copy import CopyStopped
from ingestd.storage.contract import NotFound
from ingestd.storage.parallel import LISTINGS_AT_ONCE, run_all


@dataclass(frozen=True, slots=True)
class _Listing:
    """The first and last write ids of the directories of a table, which had write ids up to `highest` before."""

    highest: int
    ranges: frozenset[tuple[int, int]]


class ForeignWrites:
    """The directories of the tables of a target, as far as they were asked for. Not thread-safe.

    `highest_write_id` returns the highest write id of a table.
    """

    def __init__(self, target: Cluster, highest_write_id: Callable[[TableName], int]) -> None:
        self._target = target
        self._highest_write_id = highest_write_id
        self._listings: dict[TableName, _Listing] = {}

    def has_directory(self, table: TableObject, write_id: int, stop: threading.Event) -> bool:
        """Return whether a location of a transactional table has a directory of `write_id`, other than of a compaction.

        Raises InvalidTable if the table does not exist, CopyStopped if `stop` is set, MetastoreUnavailable and
        StorageUnavailable.
        """
        listing = self._listings.get(table.name)
        if listing is None or listing.highest < write_id:
            highest = self._highest_write_id(table.name)
            listing = self._listings[table.name] = _Listing(highest, frozenset(self._ranges(table, stop)))
        return any(first <= write_id <= last for first, last in listing.ranges)

    def forget(self) -> None:
        """List every table again, after tables may have been dropped or renamed."""
        self._listings.clear()

    def _ranges(self, table: TableObject, stop: threading.Event) -> Iterator[tuple[int, int]]:
        for locations in self._locations(table):
            if stop.is_set():
                raise CopyStopped("the load was stopped before all directories of the target were listed")
            for ranges in run_all([partial(self._list, location) for location in locations], LISTINGS_AT_ONCE):
                yield from ranges

    def _locations(self, table: TableObject) -> Iterator[Sequence[str]]:
        """Yield the locations of a table, some at a time."""
        if not table.partition_columns:
            yield [table.location]
            return
        metastore = self._target.metastore
        for names in by_call(all_partition_names(metastore, table.name)):
            partitions = find_partitions(metastore, table.name, names, column_statistics=False)
            yield [partition.location for partition in partitions]

    def _list(self, location: str) -> list[tuple[int, int]]:
        try:
            entries = self._target.storages.at(location).entries(location)
        except NotFound:
            return []
        ranges = (_range(entry.name) for entry in entries if entry.is_directory)
        return [each for each in ranges if each is not None]


def _range(name: str) -> tuple[int, int] | None:
    """Return the first and the last write id of a directory; None if it is none of a write."""
    directory = parse_directory(name)
    if directory is None or directory.visibility_txn:
        return None
    if isinstance(directory, Base):
        return directory.write_id, directory.write_id
    return directory.min_write_id, directory.max_write_id
