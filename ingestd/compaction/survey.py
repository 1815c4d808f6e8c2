"""Counts the deltas and small files of partitions by listing their directories.

Invariant: a directory counts if and only if a query that begins now would read it (`acid/visibility.py`). Aborted
deltas, and those that a compaction has replaced, do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingestd.acid.layout import Base, DeleteDelta, Delta
from ingestd.acid.visibility import VisibleDirectories, is_hidden, visible_directories
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import by_call, partition_locations
from ingestd.hive.tables import WHOLE_TABLE, Table
from ingestd.hive.write_ids import committed_transactions, read_snapshot
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.contract import child

# A file is small below this size (hive.merge.smallfiles.avgsize).
SMALL_FILE_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of one partition that readers see.

    `deltas` counts the directories with inserted rows and with delete events, and `mergeable` those of them that a
    compaction would merge now: Hive leaves out what was written after the first open transaction of the table.
    `has_base` is True if a base or original files exist. `small_files` counts the files of less than 16 MB. `compacted`
    names the visible directories that compactions wrote.
    """

    deltas: int
    mergeable: int
    small_files: int
    delta_bytes: int
    base_bytes: int
    has_base: bool
    compacted: frozenset[str]


def survey(warehouse: Warehouse, table: Table, names: Sequence[str]) -> dict[str, PartitionFiles]:
    """Return the files of the partitions in `names` that exist, or of the whole table if it is unpartitioned.

    Makes two metastore calls, and one for every 200 partitions. A partition whose directory is missing is omitted: it
    was dropped meanwhile, or its file system is not mounted, and then its next commit fails. Raises
    MetastoreUnavailable, StorageUnavailable, and InvalidTable for a location whose scheme is not supported.
    """
    metastore, storages = warehouse.metastore, warehouse.storages
    valid, has_committed = read_snapshot(metastore, table.name), committed_transactions(metastore)
    places = dict(_places(metastore, table, names))
    listed = {
        location: [entry for entry in entries if not is_hidden(entry.name)]
        for location, entries in storages.entries_of(places.values()).items()
    }
    visible = {
        location: visible_directories((entry.name for entry in entries if entry.is_directory), valid, has_committed)
        for location, entries in listed.items()
    }
    directories = (child(location, directory.name) for location, seen in visible.items() for directory in _all(seen))
    # A directory that Hive's cleaner has just removed is missing.
    sizes = {
        directory: [entry.size for entry in entries if not is_hidden(entry.name)]
        for directory, entries in storages.entries_of(directories).items()
    }

    def count(location: str) -> PartitionFiles:
        seen = visible[location]
        deltas: list[Delta | DeleteDelta] = [*seen.deltas, *seen.delete_deltas]
        if seen.base:
            base = sizes.get(child(location, seen.base.name), [])
        else:
            base = [entry.size for entry in listed[location] if not entry.is_directory]  # original files
        written = [size for delta in deltas for size in sizes.get(child(location, delta.name), ())]
        return PartitionFiles(
            deltas=len(deltas),
            mergeable=sum(valid.is_settled(delta.max_write_id) for delta in deltas),
            small_files=sum(size < SMALL_FILE_BYTES for size in [*base, *written]),
            delta_bytes=sum(written),
            base_bytes=sum(base),
            has_base=bool(seen.base or base),
            compacted=frozenset(directory.name for directory in _all(seen) if directory.visibility_txn),
        )

    return {name: count(location) for name, location in places.items() if location in visible}


def _all(seen: VisibleDirectories) -> list[Base | Delta | DeleteDelta]:
    return [*seen.deltas, *seen.delete_deltas, *([seen.base] if seen.base else [])]


def _places(metastore: Metastore, table: Table, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    if not table.partition_columns:
        yield WHOLE_TABLE, table.location
        return
    for some in by_call(names):
        yield from partition_locations(metastore, table, some)
