"""Counts the deltas and small files of partitions by listing their directories.

Invariant: a directory counts if and only if a query that begins now would read it (`acid/visibility.py`). Aborted
deltas, and those that a compaction has replaced, do not count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingestd.acid.layout import Base, DeleteDelta, Delta
from ingestd.acid.visibility import ValidWriteIds, visible_directories
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import by_call, read_partitions
from ingestd.hive.tables import WHOLE_TABLE, Table
from ingestd.hive.write_ids import committed_transactions, read_snapshot
from ingestd.storage.local import guarded, local_path

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


def survey(metastore: Metastore, table: Table, names: Sequence[str]) -> dict[str, PartitionFiles]:
    """Return the files of the partitions in `names` that exist, or of the whole table if it is unpartitioned.

    Makes two metastore calls, and one for every 200 partitions. A partition whose directory is missing is omitted: it
    was dropped meanwhile, or its file system is not mounted, and then its next commit fails. Raises
    MetastoreUnavailable, StorageUnavailable, and InvalidTable for a location that is not a `file:` URI.
    """
    valid, has_committed = read_snapshot(metastore, table.name), committed_transactions(metastore)
    found = ((name, _read_files(location, valid, has_committed)) for name, location in _places(metastore, table, names))
    return {name: files for name, files in found if files is not None}


def _places(metastore: Metastore, table: Table, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    if not table.partition_columns:
        yield WHOLE_TABLE, local_path(table.location)
        return
    for some in by_call(names):
        for partition in read_partitions(metastore, table, some):
            yield table.partition_name(partition.values), local_path(partition.sd.location)


def _read_files(location: Path, valid: ValidWriteIds, has_committed: Callable[[int], bool]) -> PartitionFiles | None:
    """Return the visible files of one location; None if it does not exist."""
    with guarded(location):
        try:
            entries = {entry.name: entry for entry in os.scandir(location) if not _is_hidden(entry.name)}
        except FileNotFoundError:
            return None
        directories = {name for name, entry in entries.items() if entry.is_dir()}
        seen = visible_directories(directories, valid, has_committed)
        deltas: list[Delta | DeleteDelta] = [*seen.deltas, *seen.delete_deltas]
        originals = [] if seen.base else [location / name for name in entries.keys() - directories]
        base = _sizes(_files(location / seen.base.name)) if seen.base else _sizes(originals)
        sizes = [size for delta in deltas for size in _sizes(_files(location / delta.name))]
    visible: list[Base | Delta | DeleteDelta] = [*deltas, seen.base] if seen.base else [*deltas]
    return PartitionFiles(
        deltas=len(deltas),
        mergeable=sum(valid.is_settled(delta.max_write_id) for delta in deltas),
        small_files=sum(size < SMALL_FILE_BYTES for size in [*base, *sizes]),
        delta_bytes=sum(sizes),
        base_bytes=sum(base),
        has_base=bool(seen.base or originals),
        compacted=frozenset(one.name for one in visible if one.visibility_txn),
    )


def _files(directory: Path) -> list[Path]:
    """Return the data files of a directory; [] if Hive's cleaner has just removed it."""
    try:
        return [Path(entry.path) for entry in os.scandir(directory) if not _is_hidden(entry.name)]
    except FileNotFoundError:
        return []


def _sizes(files: Iterable[Path]) -> list[int]:
    return [size for size in map(_size, files) if size is not None]


def _size(file: Path) -> int | None:
    """Return the size of a file; None if Hive's cleaner has just removed it."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))
