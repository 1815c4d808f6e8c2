"""Determines which directories and how many rows of a location a reader with a given snapshot sees.

Invariant: the directories are those that Hive's AcidUtils.getAcidState chooses, and the number of rows is the result of
a `SELECT count(*)` that reads them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc

from ingestd.acid.layout import SIDE_FILE_SUFFIX, Base, Content, DeleteDelta, Delta, parse_directory
from ingestd.errors import InvalidTable, StorageUnavailable

_ORIGINAL = re.compile(r"[0-9]+_[0-9]+(?:_copy_[0-9]+)?")  # AcidUtils.ORIGINAL_PATTERN
_BUCKET = re.compile(r"bucket_[0-9]+(?:_[0-9]+)?")
_HINT = "check that the file system is mounted and that this process has read permission"


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
    parsed = [one for name in names if (one := parse_directory(name)) is not None]
    usable = [one for one in parsed if one.visibility_txn == 0 or txn_is_valid(one.visibility_txn)]
    bases = [one for one in usable if isinstance(one, Base) and _base_is_valid(one, valid)]
    base = max(bases, key=lambda one: one.write_id, default=None)
    working = [
        one for one in usable if not isinstance(one, Base) and valid.valid_in(one.min_write_id, one.max_write_id) > 0
    ]
    chosen = _best_deltas(working, base, valid)
    return VisibleDirectories(
        base,
        tuple(one for one in chosen if isinstance(one, Delta)),
        tuple(one for one in chosen if isinstance(one, DeleteDelta)),
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
    for delta in sorted(working, key=lambda one: (one.min_write_id, -one.max_write_id, one.statement, one.name)):
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


def visible_rows(location: Path, valid: ValidWriteIds, txn_is_valid: Callable[[int], bool]) -> int:
    """Count the visible rows of an unpartitioned table or a partition.

    The number is base + deltas + original files - delete events. It is read from ORC footers where these are
    sufficient. Raises InvalidTable for a file that is not an ORC file, and StorageUnavailable if the directory cannot
    be read.
    """
    try:
        return _visible_rows(location, valid, txn_is_valid)
    except OSError as error:
        raise StorageUnavailable(f"cannot read the table's files: {error}", where=str(location), hint=_HINT) from error


def read_content(location: Path) -> Content:
    """List the ACID directories of one location. Raises StorageUnavailable if it cannot be listed."""
    try:
        names = [entry.name for entry in location.iterdir()]
    except OSError as error:
        raise StorageUnavailable(
            f"cannot list the table's files: {error.strerror or error}", where=str(location), hint=_HINT
        ) from error
    directories = tuple(one for name in names if (one := parse_directory(name)) is not None)
    return Content(directories, any(_ORIGINAL.fullmatch(name) for name in names))


def _visible_rows(location: Path, valid: ValidWriteIds, txn_is_valid: Callable[[int], bool]) -> int:
    entries = {entry.name: entry for entry in location.iterdir() if not _is_hidden(entry)}
    names = [name for name, entry in entries.items() if entry.is_dir()]
    seen = visible_directories(names, valid, txn_is_valid)
    if seen.base:
        rows = _stored_rows(entries[seen.base.name])
    else:
        rows = sum(_footer_rows(entry) for name, entry in entries.items() if _ORIGINAL.fullmatch(name))
    rows += sum(_event_rows(entries[delta.name], delta, valid) for delta in seen.deltas)
    return rows - sum(_event_rows(entries[delta.name], delta, valid) for delta in seen.delete_deltas)


def _event_rows(directory: Path, delta: Delta | DeleteDelta, valid: ValidWriteIds) -> int:
    """Count the visible events of a delta; its rows are read only if some of its write ids are not visible."""
    width = delta.max_write_id - delta.min_write_id + 1
    compacted = delta.visibility_txn > 0 and valid.is_settled(delta.max_write_id)  # compaction removes aborted rows
    if compacted or valid.valid_in(delta.min_write_id, delta.max_write_id) == width:
        return _stored_rows(directory)
    return sum(_valid_events(file, valid) for file in _data_files(directory))


def _stored_rows(directory: Path) -> int:
    return sum(_footer_rows(file) for file in _data_files(directory))


def _data_files(directory: Path) -> Iterator[Path]:
    """Yield the bucket files of a directory, and the original files that LOAD DATA moved there."""
    for file in directory.iterdir():
        if _BUCKET.fullmatch(file.name) or _ORIGINAL.fullmatch(file.name):
            yield file


def _footer_rows(file: Path) -> int:
    source = _open(file)
    return int(source.nrows) if source else 0


def _valid_events(file: Path, valid: ValidWriteIds) -> int:
    """Count the events whose write id is visible. Only one column is read, one stripe at a time."""
    source = _open(file)
    if source is None:
        return 0
    rows = 0
    for stripe in range(source.nstripes):
        ids = source.read_stripe(stripe, columns=["currentTransaction"]).column(0)
        for entry in pc.value_counts(ids):
            rows += entry["counts"].as_py() if valid.is_valid(entry["values"].as_py()) else 0
    return rows


def _open(file: Path) -> orc.ORCFile | None:
    """Open a file up to the length in its side file, if any (AcidUtils.getLogicalLength); None if it is empty."""
    side = file.with_name(file.name + SIDE_FILE_SUFFIX)
    length = int.from_bytes(side.read_bytes()[-8:], "big") if side.exists() else file.stat().st_size
    if not length:
        return None
    try:
        return orc.ORCFile(pa.memory_map(str(file)).read_buffer(length))
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise InvalidTable(
            f"the file is not a readable ORC file: {error}", where=str(file), hint="restore the file from a backup"
        ) from error


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(("_", "."))
