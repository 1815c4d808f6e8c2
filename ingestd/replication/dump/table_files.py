"""Lists the files of a table or partition that its copy needs.

Invariant: a reader of the copy, whose metastore has the write ids of the snapshot, reads the same rows as a reader of
the source with that snapshot. A file belongs to the copy if that reader opens its directory, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ingestd.acid.layout import Base, DeleteDelta, Delta, base_name, parse_directory, without_visibility
from ingestd.acid.visibility import ValidWriteIds, is_hidden, visible_directories
from ingestd.storage.contract import Entry, Storage, child


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a table or partition.

    `directory` is the path of its directory in the copy, relative to the location; '' for the location itself. `batch`
    contains the write ids whose rows it may contain, if a transaction batch wrote it; otherwise it is empty. `version`
    and `written` are those of `Entry`.
    """

    directory: str
    name: str
    uri: str
    length: int
    batch: range = range(0)
    version: str = ""
    written: int = 0


def visible_files(
    storage: Storage, location: str, ids: ValidWriteIds, is_committed: Callable[[int], bool]
) -> Iterator[ListedFile]:
    """Yield the files that a reader of a transactional table opens in a location.

    `is_committed` tells whether the snapshot contains the transaction of a compaction. Raises StorageUnavailable.
    """
    entries = [entry for entry in storage.entries(location) if not is_hidden(entry.name)]
    seen = visible_directories((entry.name for entry in entries if entry.is_directory), ids, is_committed)
    chosen: list[Base | Delta | DeleteDelta] = [*seen.deltas, *seen.delete_deltas]
    if seen.base is not None:
        chosen.append(seen.base)
    for directory in chosen:
        batch = _batch(directory)
        for file in _tree(storage, child(location, directory.name), copied_name(directory, ids)):
            yield replace(file, batch=batch) if batch else file
    if seen.base is None:
        originals = [entry for entry in entries if not (entry.is_directory and parse_directory(entry.name))]
        yield from _listed(storage, location, "", originals)


def _batch(directory: Base | Delta | DeleteDelta) -> range:
    """Return the write ids of the directory of a transaction batch. A compaction removes the rows of aborted ones."""
    if isinstance(directory, Base) or directory.visibility_txn or directory.min_write_id == directory.max_write_id:
        return range(0)
    return range(directory.min_write_id, directory.max_write_id + 1)


def all_files(storage: Storage, location: str) -> Iterator[ListedFile]:
    """Yield the files of a table without transactions in a location. Raises StorageUnavailable."""
    return _tree(storage, location, "")


def copied_name(directory: Base | Delta | DeleteDelta, ids: ValidWriteIds) -> str:
    """Return the name of a visible directory in the copy.

    The transaction of a compaction does not exist on the target, so it is removed. A base without it
    is read like one of INSERT OVERWRITE, only if its own write id is valid (AcidUtils.isValidBase). A compaction names
    its base after the last write id that had ended, which may have been aborted, so the last valid one replaces it.
    """
    if not directory.visibility_txn:
        return directory.name
    if isinstance(directory, Base) and directory.write_id > 0 and not ids.is_valid(directory.write_id):
        last = next((write_id for write_id in range(directory.write_id, 0, -1) if ids.is_valid(write_id)), 0)
        return base_name(last)
    return without_visibility(directory.name)


def _tree(storage: Storage, uri: str, path: str) -> Iterator[ListedFile]:
    """Yield the files below a directory, for example those of the parts of a UNION ALL in an insert-only table."""
    return _listed(storage, uri, path, [entry for entry in storage.entries(uri) if not is_hidden(entry.name)])


def _listed(storage: Storage, uri: str, path: str, entries: list[Entry]) -> Iterator[ListedFile]:
    for entry in entries:
        if entry.is_directory:
            yield from _tree(storage, child(uri, entry.name), f"{path}/{entry.name}".lstrip("/"))
        else:
            place = child(uri, entry.name)
            yield ListedFile(path, entry.name, place, entry.size, version=entry.version, written=entry.written)
