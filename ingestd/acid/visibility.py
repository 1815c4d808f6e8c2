"""Determines which directories and how many rows of a location a reader with a given snapshot sees.

Invariant: the directories are those that Hive's AcidUtils.getAcidState chooses, and the number of rows is the result of
a `SELECT count(*)` that reads them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc

from ingestd.acid.layout import SIDE_FILE_SUFFIX, Base, Content, DeleteDelta, Delta, parse_directory
from ingestd.errors import InvalidTable
from ingestd.storage.contract import Entry, Storage, child

_ORIGINAL = re.compile(r"[0-9]+_[0-9]+(?:_copy_[0-9]+)?")  # AcidUtils.ORIGINAL_PATTERN
_WRITE_ID = "currentTransaction"
_BUCKET = re.compile(r"bucket_[0-9]+(?:_[0-9]+)?")


@dataclass(frozen=True, slots=True)
class ValidWriteIds:
    """A reader's snapshot of one table (ValidReaderWriteIdList).

    It contains the write ids up to the high watermark, except those that are open or aborted.
    """

    table: str
    high_watermark: int
    open: frozenset[int] = field(default_factory=frozenset)
    aborted: frozenset[int] = field(default_factory=frozenset)
    _hidden: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hidden", tuple(sorted(self.open | self.aborted)))

    def is_valid(self, write_id: int) -> bool:
        """Return whether rows of this write id are visible (isWriteIdValid)."""
        return write_id <= self.high_watermark and write_id not in self.open and write_id not in self.aborted

    def valid_in(self, first: int, last: int) -> int:
        """Return how many write ids from `first` to `last` are valid (compare isWriteIdRangeValid)."""
        end = min(last, self.high_watermark)
        if end < first:
            return 0
        return end - first + 1 - (bisect_right(self._hidden, end) - bisect_left(self._hidden, first))

    def has_ended(self, write_id: int) -> bool:
        """Return whether the transaction of this write id has committed or aborted."""
        return write_id <= self.high_watermark and write_id not in self.open

    def is_settled(self, write_id: int) -> bool:
        """Return whether the transactions of all write ids up to this one have ended (isValidBase)."""
        return write_id <= self.high_watermark and all(write_id < waiting for waiting in self.open)


@dataclass(frozen=True, slots=True)
class VisibleDirectories:
    """The directories that a reader opens. Original files in the location are visible only if `base` is None."""

    base: Base | None
    deltas: tuple[Delta, ...]
    delete_deltas: tuple[DeleteDelta, ...]


def visible_directories(
    names: Iterable[str], valid: ValidWriteIds, txn_is_valid: Callable[[int], bool]
) -> VisibleDirectories:
    """Choose the base and the deltas as AcidUtils.getAcidState does.

    `txn_is_valid` returns whether the transaction of a compaction (suffix `_v`) has committed. If it has not, the
    directory is ignored.
    """
    parsed = [directory for name in names if (directory := parse_directory(name)) is not None]
    usable = [
        directory for directory in parsed if directory.visibility_txn == 0 or txn_is_valid(directory.visibility_txn)
    ]
    bases = [directory for directory in usable if isinstance(directory, Base) and _base_is_valid(directory, valid)]
    base = max(bases, key=lambda valid_base: valid_base.write_id, default=None)
    working = [
        directory
        for directory in usable
        if not isinstance(directory, Base) and valid.valid_in(directory.min_write_id, directory.max_write_id) > 0
    ]
    chosen = _best_deltas(working, base, valid)
    return VisibleDirectories(
        base,
        tuple(delta for delta in chosen if isinstance(delta, Delta)),
        tuple(delta for delta in chosen if isinstance(delta, DeleteDelta)),
    )


def _base_is_valid(base: Base, valid: ValidWriteIds) -> bool:
    """Return whether a reader may use a base (AcidUtils.isValidBase).

    For a compacted base, the transactions of all write ids up to its own must have ended. For a base written by INSERT
    OVERWRITE, only its own write id must be valid.
    """
    if base.write_id == -(2**63):  # the first compaction of a table that was converted to ACID
        return True
    return valid.is_settled(base.write_id) if base.visibility_txn else valid.is_valid(base.write_id)


def _best_deltas(
    working: list[Delta | DeleteDelta], base: Base | None, valid: ValidWriteIds
) -> list[Delta | DeleteDelta]:
    """Return the deltas except those whose rows another delta also contains (AcidUtils.findBestWorkingDeltas)."""
    current = base.write_id if base else -(2**63)
    statement = -1
    previous: Delta | DeleteDelta | None = None
    chosen: list[Delta | DeleteDelta] = []
    for delta in sorted(
        working,
        key=lambda candidate: (candidate.min_write_id, -candidate.max_write_id, candidate.statement, candidate.name),
    ):
        if delta.max_write_id > current:
            if valid.valid_in(current + 1, delta.max_write_id) == 0:
                continue
            current, statement = delta.max_write_id, delta.statement
        elif not (delta.max_write_id == current and statement >= 0) and not _same_range(delta, previous):
            continue
        chosen.append(delta)
        previous = delta
    return chosen


def _same_range(delta: Delta | DeleteDelta, previous: Delta | DeleteDelta | None) -> bool:
    """Return whether two deltas are `delta_x_y` and `delete_delta_x_y` of one statement, which are both kept."""
    return previous is not None and (delta.min_write_id, delta.max_write_id, delta.statement) == (
        previous.min_write_id,
        previous.max_write_id,
        previous.statement,
    )


def visible_rows(storage: Storage, location: str, valid: ValidWriteIds, txn_is_valid: Callable[[int], bool]) -> int:
    """Count the visible rows of an unpartitioned table or a partition.

    The number is base + deltas + original files - delete events. It is read from ORC footers where these are
    sufficient. Raises InvalidTable for a file that is not an ORC file, and StorageUnavailable if the directory cannot
    be read.
    """
    entries = [entry for entry in storage.entries(location) if not is_hidden(entry.name)]
    seen = visible_directories((entry.name for entry in entries if entry.is_directory), valid, txn_is_valid)
    if seen.base:
        rows = _stored_rows(storage, child(location, seen.base.name))
    else:
        rows = sum(_footer_rows(file) for file in original_files(storage, location, entries))
    rows += sum(_event_rows(storage, location, delta, valid) for delta in seen.deltas)
    return rows - sum(_event_rows(storage, location, delta, valid) for delta in seen.delete_deltas)


def read_content(storage: Storage, location: str) -> Content:
    """List the ACID directories of one location. Raises StorageUnavailable if it cannot be listed."""
    return content_of(storage.location(location).names())


def content_of(names: Sequence[str]) -> Content:
    """Return the ACID directories among the names of a location."""
    directories = tuple(directory for name in names if (directory := parse_directory(name)) is not None)
    return Content(directories, any(_ORIGINAL.fullmatch(name) for name in names))


@dataclass(frozen=True, slots=True)
class BucketFile:
    """A file with rows. `length` is the number of bytes that readers may read (AcidUtils.getLogicalLength)."""

    storage: Storage
    directory: str
    name: str
    length: int

    @classmethod
    def of(cls, storage: Storage, uri: str, length: int) -> BucketFile:
        """Return the file at `uri`."""
        directory, _, name = uri.rpartition("/")
        return cls(storage, directory, name, length)

    @property
    def uri(self) -> str:
        """The URI of the file."""
        return child(self.directory, self.name)

    def open(self) -> orc.ORCFile | None:
        """Open the file up to its length; None if it is empty."""
        if not self.length:
            return None
        try:
            return orc.ORCFile(self.storage.open(self.uri, self.length))
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidTable(
                f"the file is not a readable ORC file: {error}", where=self.uri, hint="restore the file from a backup"
            ) from error


def bucket_files(storage: Storage, directory: str, entries: Iterable[Entry]) -> Iterator[BucketFile]:
    """Yield the bucket files of a directory, and the original files that LOAD DATA moved there."""
    sizes = {entry.name: entry.size for entry in entries if not entry.is_directory}
    for name, size in sizes.items():
        if _BUCKET.fullmatch(name) or _ORIGINAL.fullmatch(name):
            side = name + SIDE_FILE_SUFFIX
            content = storage.read(child(directory, side)) if side in sizes else b""
            yield BucketFile(storage, directory, name, int.from_bytes(content[-8:], "big") if side in sizes else size)


def original_files(storage: Storage, location: str, entries: Iterable[Entry]) -> Iterator[BucketFile]:
    """Yield the original files among the entries of a location."""
    yield from (file for file in bucket_files(storage, location, entries) if _ORIGINAL.fullmatch(file.name))


def _event_rows(storage: Storage, location: str, delta: Delta | DeleteDelta, valid: ValidWriteIds) -> int:
    """Count the visible events of a delta; its rows are read only if some of its write ids are not visible."""
    directory = child(location, delta.name)
    width = delta.max_write_id - delta.min_write_id + 1
    compacted = delta.visibility_txn > 0 and valid.is_settled(delta.max_write_id)  # compaction removes aborted rows
    if compacted or valid.valid_in(delta.min_write_id, delta.max_write_id) == width:
        return _stored_rows(storage, directory)
    return sum(_valid_events(file, valid) for file in bucket_files(storage, directory, storage.entries(directory)))


def _stored_rows(storage: Storage, directory: str) -> int:
    """Count the rows of a directory and, as INSERT … UNION ALL writes to insert-only tables, of those below it."""
    entries = [entry for entry in storage.entries(directory) if not is_hidden(entry.name)]
    rows = sum(_footer_rows(file) for file in bucket_files(storage, directory, entries))
    return rows + sum(_stored_rows(storage, child(directory, entry.name)) for entry in entries if entry.is_directory)


def _footer_rows(file: BucketFile) -> int:
    source = file.open()
    return int(source.nrows) if source else 0


def _valid_events(file: BucketFile, valid: ValidWriteIds) -> int:
    """Count the events whose write id is visible. Only one column is read, one stripe at a time."""
    source = file.open()
    if source is None:
        return 0
    if _WRITE_ID not in source.schema.names:  # plain rows of a compacted delta, which never has rows of aborted ids
        return int(source.nrows)
    rows = 0
    for stripe in range(source.nstripes):
        ids = source.read_stripe(stripe, columns=[_WRITE_ID]).column(0)
        for entry in pc.value_counts(ids):
            rows += entry["counts"].as_py() if valid.is_valid(entry["values"].as_py()) else 0
    return rows


def is_hidden(name: str) -> bool:
    """Return whether Hive ignores a file or directory of this name (HIDDEN_FILES_PATH_FILTER)."""
    return name.startswith(("_", "."))
