"""What the ORC writers of transactional tables have in common, and which of them each row needs.

Invariant: row n of a file of a full ACID table is an insert event with row id n within its write id, that write id as
original and current transaction, and the bucket property of the file. Hive reads every value unchanged: rows that
pyarrow's ORC writer would corrupt go to pyorc.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.complex import Mask, either, rows_with
from ingestd.acid.encoding import STANDARD, Encoding
from ingestd.acid.footer import FileSize, seal, seal_plain
from ingestd.acid.layout import FileLayout
from ingestd.acid.sink import OrcSink
from ingestd.acid.text_statistics import TextWatch, bound_statistics
from ingestd.schema import Column

WriterName = Literal["pyarrow", "pyorc"]
WRITERS: tuple[WriterName, ...] = get_args(WriterName)
_SECOND = 1_000_000_000
_MAX_MICROS = 2**63 // 1000 - 1  # a timestamp[us] beyond this does not fit timestamp[ns]


class AcidWriter(ABC):
    """Writes one file of one write id. After `close` the file is complete and sealed, but not synced to disk.

    `write` and `close` raise OSError. A subclass writes the rows with one ORC library.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[Column],
        write_id: int,
        bucket: int,
        *,
        encoding: Encoding = STANDARD,
    ) -> None:
        """Create the file. Raises OSError.

        `bucket` is the bucket property. The plain rows of an insert-only table contain neither it nor the write id.
        """
        self._path = path
        self._write_id = write_id
        self._bucket = bucket
        self._rows = 0
        self._layout = encoding.layout
        self._file = OrcSink(path)
        self._texts = TextWatch(self._file)
        try:
            self._begin(columns, encoding)
        except BaseException:
            _remove(path, self._file.close)
            raise

    @property
    def is_full(self) -> bool:
        """Whether the file should be closed, and rows that follow be written to another."""
        return self._texts.is_full

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch, which contains the table's columns without partition columns, in table order."""
        if batch.num_rows:
            self._texts.add(batch)
            self._append(batch)
            self._rows += batch.num_rows
            self._file.check()

    def close(self) -> FileSize:
        """Write and seal the footer and return the size of the file. A file without rows is complete as well."""
        self._end()
        self._file.close()
        self._file.check()
        if self._texts.needs_bounds:
            bound_statistics(self._path)
        if self._layout is FileLayout.PLAIN:
            return seal_plain(self._path)
        return seal(self._path, [(self._write_id, self._rows)], self._bucket)

    def abort(self) -> None:
        """Close and remove the file; never raises."""
        _remove(self._path, self._end, self._file.close)

    @abstractmethod
    def _begin(self, columns: Sequence[Column], encoding: Encoding) -> None:
        """Let the library write to `self._file`."""

    @abstractmethod
    def _append(self, batch: pa.RecordBatch) -> None:
        """Pass rows to the library; `self._rows` is the number of those before them."""

    @abstractmethod
    def _end(self) -> None:
        """Let the library write its footer and close its writer."""


def rows_for_pyorc(batch: pa.RecordBatch) -> pa.BooleanArray | None:
    """Return a mask of the rows that only `PyOrcWriter` writes correctly, or None if there are none.

    These are the rows with a timestamp, at any depth, before 1970 that has a fraction of a second (pyarrow writes
    negative nanoseconds, and Hive then fails every query of the column), or outside the range of timestamp[ns].
    """
    mask = either([rows_with(array, _values_for_pyorc) for array in batch.columns])
    return None if mask is None else pa.array(mask)


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


def _values_for_pyorc(array: pa.Array) -> Mask | None:
    if not pa.types.is_timestamp(array.type) or array.null_count == len(array):
        return None
    numbers = array.view(pa.int64())
    limits = pc.min_max(numbers)
    micros = array.type.unit == "us"
    if limits["min"].as_py() >= 0 and (not micros or limits["max"].as_py() <= _MAX_MICROS):
        return None
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    mask: Mask = (values < 0) & (values % (1_000_000 if micros else _SECOND) != 0)
    if micros:
        mask |= (values > _MAX_MICROS) | (values < -_MAX_MICROS)
    return mask if mask.any() else None


def _remove(path: Path, *closers: Callable[[], object]) -> None:
    """Call the closers, then remove the file; errors are ignored, because the file's rows are discarded anyway."""
    steps: list[Callable[[], object]] = [*closers, partial(path.unlink, missing_ok=True)]
    for step in steps:
        with suppress(OSError, ValueError, RuntimeError, pa.ArrowException):
            step()
