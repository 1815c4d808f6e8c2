"""How many rows a reader sees in one directory, from ORC footers as far as they can tell.

Invariant: the same number as `SELECT count(*)` computed from the rows with this snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc

from ingestd.acid.layout import (
    SIDE_FILE,
    Content,
    DeleteDelta,
    Delta,
    ValidWriteIds,
    parse_directory,
    visible_directories,
)
from ingestd.errors import InvalidTable, StorageUnavailable

_ORIGINAL = re.compile(r"[0-9]+_[0-9]+(?:_copy_[0-9]+)?")  # AcidUtils.ORIGINAL_PATTERN
_BUCKET = re.compile(r"bucket_[0-9]+(?:_[0-9]+)?")


def visible_rows(location: Path, valid: ValidWriteIds, txn_is_valid: Callable[[int], bool]) -> int:
    """Rows of one unpartitioned table or one partition: base + deltas + original files - delete events.

    Raises InvalidTable for a file that is no ORC file; StorageUnavailable when the directory cannot be read.
    """
    try:
        return _visible_rows(location, valid, txn_is_valid)
    except OSError as error:
        raise StorageUnavailable(f"cannot read the table's files: {error}", where=str(location)) from error


def read_content(location: Path) -> Content:
    """What lies in one location, by names only. Raises StorageUnavailable when it cannot be listed."""
    try:
        names = [entry.name for entry in location.iterdir()]
    except OSError as error:
        raise StorageUnavailable(f"cannot list the table's files: {error}", where=str(location)) from error
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
    """Visible events of a delta; only one whose range is partly hidden must be read."""
    width = delta.max_write_id - delta.min_write_id + 1
    compacted = delta.visibility_txn > 0 and valid.is_settled(delta.max_write_id)  # compaction dropped aborted rows
    if compacted or valid.valid_in(delta.min_write_id, delta.max_write_id) == width:
        return _stored_rows(directory)
    return sum(_valid_events(file, valid) for file in _data_files(directory))


def _stored_rows(directory: Path) -> int:
    return sum(_footer_rows(file) for file in _data_files(directory))


def _data_files(directory: Path) -> Iterator[Path]:
    """Bucket files, and original files that LOAD DATA put there."""
    for file in directory.iterdir():
        if _BUCKET.fullmatch(file.name) or _ORIGINAL.fullmatch(file.name):
            yield file


def _footer_rows(file: Path) -> int:
    source = _open(file)
    return int(source.nrows) if source else 0


def _valid_events(file: Path, valid: ValidWriteIds) -> int:
    """Count rows whose own write id is visible; reads one column, stripe by stripe."""
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
    """The file as readers see it: one that still grows ends where its side file says (AcidUtils.getLogicalLength)."""
    side = file.with_name(file.name + SIDE_FILE)
    length = int.from_bytes(side.read_bytes()[-8:], "big") if side.exists() else file.stat().st_size
    if not length:
        return None
    try:
        return orc.ORCFile(pa.memory_map(str(file)).read_buffer(length))
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise InvalidTable(f"not a readable ORC file: {error}", where=str(file)) from error


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(("_", "."))
