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

from ingestd.acid.layout import DeleteDelta, Delta, ValidWriteIds, visible_directories
from ingestd.errors import InvalidTable, StorageUnavailable

_ORIGINAL = re.compile(r"[0-9]+_[0-9]+(?:_copy_[0-9]+)?")  # AcidUtils.ORIGINAL_PATTERN
_BUCKET = re.compile(r"bucket_[0-9]+(?:_[0-9]+)?")
_SIDE_FILE = "_flush_length"


def visible_rows(location: Path, valid: ValidWriteIds, txn_is_valid: Callable[[int], bool]) -> int:
    """Rows of one unpartitioned table or one partition: base + deltas + original files - delete events.

    Raises InvalidTable for a streaming file that is still being written (it has a `_flush_length` side file) or is no
    ORC file; StorageUnavailable when the directory cannot be read.
    """
    try:
        return _visible_rows(location, valid, txn_is_valid)
    except OSError as error:
        raise StorageUnavailable(f"cannot read the table's files: {error}", where=str(location)) from error


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
        if file.name.endswith(_SIDE_FILE) and not _is_hidden(file):
            raise InvalidTable(
                "a streaming writer still has a file of this delta open",
                where=str(file),
                hint="let Hive Streaming finish or compact the table, then count again",
            )
        if _BUCKET.fullmatch(file.name) or _ORIGINAL.fullmatch(file.name):
            yield file


def _footer_rows(file: Path) -> int:
    return int(_open(file).nrows) if file.stat().st_size else 0


def _valid_events(file: Path, valid: ValidWriteIds) -> int:
    """Count rows whose own write id is visible; reads one column, stripe by stripe."""
    if not file.stat().st_size:
        return 0
    source = _open(file)
    rows = 0
    for stripe in range(source.nstripes):
        ids = source.read_stripe(stripe, columns=["currentTransaction"]).column(0)
        for entry in pc.value_counts(ids):
            rows += entry["counts"].as_py() if valid.is_valid(entry["values"].as_py()) else 0
    return rows


def _open(file: Path) -> orc.ORCFile:
    try:
        return orc.ORCFile(str(file))
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise InvalidTable(f"not a readable ORC file: {error}", where=str(file)) from error


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(("_", "."))
