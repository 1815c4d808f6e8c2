"""Reads the visible rows of the files of a location as Arrow batches, or counts them.

Invariant: the rows are those that a query with the snapshot reads, in any order. A delete event removes the row that it
names, and only events and rows of valid write ids count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ingestd.acid.visibility import BucketFile, ValidWriteIds, bucket_files, original_files, visible_directories
from ingestd.errors import InvalidTable
from ingestd.storage.contract import Storage, child

_BUCKET = re.compile(r"(?:bucket_)?([0-9]+)")
_ROW_ID = ["originalTransaction", "bucket", "rowId"]
_BATCH_ROWS = 64 << 10


class FileFormat(Enum):
    """A format whose rows can be read, by the class of the table's input format."""

    ORC = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"
    PARQUET = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file with rows: its URI, and how many bytes of it readers may read.

    `deletes` are the files with delete events for its rows, which have the same bucket.
    """

    uri: str
    length: int
    deletes: tuple[tuple[str, int], ...] = ()


def row_files(
    storage: Storage, location: str, valid: ValidWriteIds, txn_is_valid: Callable[[int], bool]
) -> list[RowFile]:
    """Return the files of a full ACID table or partition that a reader opens. Raises StorageUnavailable.

    `txn_is_valid` is as for `visible_directories`.
    """
    entries = storage.entries(location)
    seen = visible_directories((entry.name for entry in entries if entry.is_directory), valid, txn_is_valid)
    files = [] if seen.base else list(original_files(storage, location, entries))
    for name in (*([seen.base.name] if seen.base else []), *(delta.name for delta in seen.deltas)):
        files += _listed(storage, location, name)
    deletes: dict[int, list[tuple[str, int]]] = {}
    for delta in seen.delete_deltas:
        for file in _listed(storage, location, delta.name):
            deletes.setdefault(_bucket(file.name), []).append((file.uri, file.length))
    return [RowFile(file.uri, file.length, tuple(deletes.get(_bucket(file.name), ()))) for file in files]


def _listed(storage: Storage, location: str, name: str) -> list[BucketFile]:
    directory = child(location, name)
    return list(bucket_files(storage, directory, storage.entries(directory)))


def _bucket(name: str) -> int:
    match = _BUCKET.match(name)
    return int(match[1]) if match else -1


def read_rows(
    storage: Storage, file: RowFile, file_format: FileFormat, valid: ValidWriteIds | None
) -> Iterator[pa.RecordBatch]:
    """Yield the visible rows of a file, without the ACID columns. A stripe and the delete events are in memory.

    `valid` is None for a table that is not a full ACID table. Raises InvalidTable if the file has another format, or if
    there are delete events for rows without ACID columns, and StorageUnavailable.
    """
    if file_format is FileFormat.PARQUET:
        yield from _read_parquet(storage, file)
        return
    source = BucketFile.of(storage, file.uri, file.length).open()
    if source is None:
        return
    has_ids = valid is not None and source.schema.names[: len(_ROW_ID) + 1] == ["operation", *_ROW_ID]
    if file.deletes and not has_ids:
        raise InvalidTable(
            "its rows have no ids, to which delete events could refer",
            where=file.uri,
            hint="run a major compaction of the table",
        )
    deleted = _deleted(storage, file.deletes, valid) if valid else None
    for stripe in range(source.nstripes):
        batch = source.read_stripe(stripe)
        yield _visible(batch, valid, deleted) if valid and has_ids else batch


def count_rows(storage: Storage, file: RowFile, file_format: FileFormat) -> int:
    """Return the number of rows that the footer of a file states. Raises the same errors as `read_rows`."""
    if file_format is FileFormat.ORC:
        source = BucketFile.of(storage, file.uri, file.length).open()
        return source.nrows if source else 0
    with _parquet(storage, file) as opened:
        return opened.metadata.num_rows if opened else 0


def _read_parquet(storage: Storage, file: RowFile) -> Iterator[pa.RecordBatch]:
    with _parquet(storage, file) as opened:
        if opened is not None:
            yield from opened.iter_batches(_BATCH_ROWS)


@contextmanager
def _parquet(storage: Storage, file: RowFile) -> Iterator[parquet.ParquetFile | None]:
    """Open a Parquet file; None if it is empty."""
    if not file.length:
        yield None
        return
    try:
        with storage.open(file.uri) as opened:
            yield parquet.ParquetFile(opened)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidTable(f"the file is not a readable Parquet file: {error}", where=file.uri) from error


def _visible(batch: pa.RecordBatch, valid: ValidWriteIds, deleted: pa.Table | None) -> pa.RecordBatch:
    """Return the user's columns of the rows whose write ids are valid, and which are not deleted."""
    mask = _is_valid(batch.column("currentTransaction"), valid)
    if deleted is not None:
        mask &= _is_kept(batch.select(_ROW_ID), deleted)
    rows = batch.column("row")
    return pa.RecordBatch.from_struct_array(rows if mask.all() else rows.filter(pa.array(mask)))


def _is_valid(write_ids: pa.Array, valid: ValidWriteIds) -> npt.NDArray[np.bool_]:
    known = [write_id for write_id in pc.unique(write_ids).to_pylist() if valid.is_valid(write_id)]
    return np.array(pc.is_in(write_ids, pa.array(known, write_ids.type)))


def _is_kept(keys: pa.RecordBatch, deleted: pa.Table) -> npt.NDArray[np.bool_]:
    numbered = pa.Table.from_batches([keys]).append_column("at", pa.array(np.arange(len(keys))))
    kept = numbered.join(deleted, _ROW_ID, join_type="left anti", use_threads=False).column("at").to_numpy()
    mask = np.zeros(len(keys), np.bool_)
    mask[kept] = True
    return mask


def _deleted(storage: Storage, files: Sequence[tuple[str, int]], valid: ValidWriteIds) -> pa.Table | None:
    """Return the ids of the rows that visible delete events name; None if there are no events."""
    batches = []
    for uri, length in files:
        source = BucketFile.of(storage, uri, length).open()
        if source is None:
            continue
        for stripe in range(source.nstripes):
            batch = source.read_stripe(stripe, columns=[*_ROW_ID, "currentTransaction"])
            mask = _is_valid(batch.column("currentTransaction"), valid)
            batches.append(batch.select(_ROW_ID).filter(pa.array(mask)))
    return pa.Table.from_batches(batches) if batches else None
