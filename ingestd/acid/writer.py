"""Defines the contract of an ORC writer of ACID insert events, and selects the writer that each row needs.

Invariant: row n of a file has row id n within its write id, that write id as original and current transaction, and the
bucket property of the file. Hive reads every value unchanged: rows that pyarrow's ORC writer would corrupt go to pyorc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.footer import FileSize

WriterName = Literal["pyarrow", "pyorc"]
_SECOND = 1_000_000_000
_MAX_MICROS = 2**63 // 1000 - 1  # a timestamp[us] beyond this does not fit timestamp[ns]


class AcidWriter(Protocol):
    """Writes one file of one write id. After `close` the file is complete, sealed and on disk.

    `write` and `close` raise OSError.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch, which contains the table's columns without partition columns, in table order."""
        ...

    def close(self) -> FileSize:
        """Write and seal the footer, fsync the file and return its size."""
        ...

    def abort(self) -> None:
        """Close and remove the file; never raises."""
        ...


def rows_for_pyorc(batch: pa.RecordBatch) -> pa.BooleanArray | None:
    """Return a mask of the rows that only `PyOrcWriter` writes correctly, or None if there are none.

    These are the rows with a timestamp before 1970 that has a fraction of a second (pyarrow writes negative
    nanoseconds, and Hive then fails every query of the column), or with a timestamp outside the range of timestamp[ns].
    If any column is complex, these are all rows: below a null struct, pyarrow writes the children of an inner struct to
    the wrong rows, and every column is inside the struct `row`.
    """
    if any(pa.types.is_nested(array.type) for array in batch.columns):
        return pa.repeat(pa.scalar(value=True), batch.num_rows)
    masks = [mask for array in batch.columns if (mask := _values_for_pyorc(array)) is not None]
    if not masks:
        return None
    mask = masks[0]
    for other in masks[1:]:
        mask = mask | other
    return pa.array(mask) if mask.any() else None


def split_by_writer(batch: pa.RecordBatch) -> Iterator[tuple[WriterName, pa.RecordBatch]]:
    """Split a batch by the writer that its rows need; each part keeps the order of its rows and is not empty."""
    mask = rows_for_pyorc(batch)
    if mask is None:
        yield "pyarrow", batch
        return
    others = batch.filter(pc.invert(mask))
    if others.num_rows:
        yield "pyarrow", others
    yield "pyorc", batch.filter(mask)


def _values_for_pyorc(array: pa.Array) -> Any:
    if not pa.types.is_timestamp(array.type) or array.null_count == len(array):
        return None
    numbers = array.view(pa.int64())
    limits = pc.min_max(numbers)
    micros = array.type.unit == "us"
    if limits["min"].as_py() >= 0 and (not micros or limits["max"].as_py() <= _MAX_MICROS):
        return None
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    mask = (values < 0) & (values % (1_000_000 if micros else _SECOND) != 0)
    return mask | (values > _MAX_MICROS) | (values < -_MAX_MICROS) if micros else mask


def remove_file(path: Path, *closers: Callable[[], object]) -> None:
    """Call the closers, then remove the file; errors are ignored, because the file's rows are discarded anyway."""
    steps: list[Callable[[], object]] = [*closers, partial(path.unlink, missing_ok=True)]
    for step in steps:
        with suppress(OSError, ValueError, RuntimeError, pa.ArrowException):
            step()
