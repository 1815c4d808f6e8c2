"""Counts the deltas and small files of partitions by listing their directories.

Invariant: a directory counts if and only if a query that begins now would read it (`acid/visibility.py`). Aborted
deltas, and those that a compaction has replaced, do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ingestd.acid.layout import Base, DeleteDelta, Delta
from ingestd.acid.visibility import ValidWriteIds, is_hidden, visible_directories
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import by_call, read_partitions
from ingestd.hive.tables import WHOLE_TABLE, Table
from ingestd.hive.write_ids import committed_transactions, read_snapshot
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.contract import NotFound, Storage, child

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
    metastore = warehouse.metastore
    valid, has_committed = read_snapshot(metastore, table.name), committed_transactions(metastore)
    found = {}
    for name, location in _places(metastore, table, names):
        with suppress(NotFound):
            found[name] = _read_files(warehouse.storages.at(location), location, valid, has_committed)
    return found


def _places(metastore: Metastore, table: Table, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    if not table.partition_columns:
        yield WHOLE_TABLE, table.location
        return
    for some in by_call(names):
        for partition in read_partitions(metastore, table, some):
            yield table.partition_name(partition.values), partition.sd.location


def _read_files(
    storage: Storage, location: str, valid: ValidWriteIds, has_committed: Callable[[int], bool]
) -> PartitionFiles:
    """Return the visible files of one location. Raises NotFound if it does not exist."""
    entries = [entry for entry in storage.entries(location) if not is_hidden(entry.name)]
    seen = visible_directories((entry.name for entry in entries if entry.is_directory), valid, has_committed)
    deltas: list[Delta | DeleteDelta] = [*seen.deltas, *seen.delete_deltas]
    if seen.base:
        base = _sizes(storage, child(location, seen.base.name))
    else:
        base = [entry.size for entry in entries if not entry.is_directory]  # original files
    sizes = [size for delta in deltas for size in _sizes(storage, child(location, delta.name))]
    visible: list[Base | Delta | DeleteDelta] = [*deltas, seen.base] if seen.base else [*deltas]
    return PartitionFiles(
        deltas=len(deltas),
        mergeable=sum(valid.is_settled(delta.max_write_id) for delta in deltas),
        small_files=sum(size < SMALL_FILE_BYTES for size in [*base, *sizes]),
        delta_bytes=sum(sizes),
        base_bytes=sum(base),
        has_base=bool(seen.base or base),
        compacted=frozenset(directory.name for directory in visible if directory.visibility_txn),
    )


def _sizes(storage: Storage, directory: str) -> list[int]:
    """Return the sizes of the data files of a directory; [] if Hive's cleaner has just removed it."""
    try:
        return [entry.size for entry in storage.entries(directory) if not is_hidden(entry.name)]
    except NotFound:
        return []
