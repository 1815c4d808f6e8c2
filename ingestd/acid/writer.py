"""Arrow batches become one ORC file of ACID insert events.

Invariant: row n of a file has rowId n, its write id as original and current transaction, and the bucket property of the
file; Hive reads every value as it was (two writers, because pyarrow cannot write all timestamps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyorc
from pyarrow import orc
from pyorc.converters import ORCConverter

from ingestd.acid.footer import seal
from ingestd.schema import Column, HiveType

Compression = Literal["zstd", "zlib", "snappy", "none"]
STRIPE_BYTES = 16 << 20
BLOCK_BYTES = 64 << 10
_SECOND = 1_000_000_000
_MICROS = 2**63 // 1000 - 1  # beyond this a timestamp[us] does not fit timestamp[ns]


@dataclass(frozen=True, slots=True)
class Finished:
    """A closed file: its rows and its bytes."""

    rows: int
    bytes: int


class AcidWriter(Protocol):
    """Writes one file; after `close` it is complete, patched and on disk. All methods raise OSError."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows: the table's columns without partition columns, in table order."""
        ...

    def close(self) -> Finished:
        """Finish the file (footer patch, fsync)."""
        ...

    def abort(self) -> None:
        """Let go of the file and remove it; never raises."""
        ...


def needs_exact(batch: pa.RecordBatch) -> bool:
    """Whether `FastWriter` would spoil a timestamp of this batch (see `exact_rows`)."""
    return exact_rows(batch) is not None


def exact_rows(batch: pa.RecordBatch) -> pa.BooleanArray | None:
    """Which rows only `ExactWriter` writes right; None if there are none.

    Those with a timestamp before 1970 that has a fraction (pyarrow writes negative nanoseconds, and Hive then fails
    every query of the column), or outside the range of timestamp[ns].
    """
    masks = [mask for array in batch.columns if (mask := _exact_values(array)) is not None]
    if not masks:
        return None
    mask = masks[0]
    for other in masks[1:]:
        mask = mask | other
    return pa.array(mask) if mask.any() else None


def _exact_values(array: pa.Array) -> Any:
    if not pa.types.is_timestamp(array.type) or array.null_count == len(array):
        return None
    numbers = array.view(pa.int64())
    limits = pc.min_max(numbers)
    micros = array.type.unit == "us"
    if limits["min"].as_py() >= 0 and (not micros or limits["max"].as_py() <= _MICROS):
        return None
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    mask = (values < 0) & (values % (1_000_000 if micros else _SECOND) != 0)
    return mask | (values > _MICROS) | (values < -_MICROS) if micros else mask


class FastWriter:
    """Columnar writer over pyarrow; char and varchar become ORC STRING, which Hive converts on reading."""

    def __init__(
        self,
        path: Path,
        columns: Sequence[Column],
        write_id: int,
        bucket: int,
        *,
        compression: Compression = "zstd",
        stripe_bytes: int = STRIPE_BYTES,
    ) -> None:
        """`bucket` is the bucket property. Creates the file; raises OSError."""
        self._path = path
        self._schema = pa.schema([pa.field(column.name, column.type.arrow) for column in columns])
        self._row_type = pa.struct(list(self._schema))
        self._write_id = write_id
        self._bucket = bucket
        self._rows = 0
        self._file = pa.OSFile(str(path), "wb")
        self._orc = orc.ORCWriter(
            self._file,
            compression="uncompressed" if compression == "none" else compression,
            compression_block_size=BLOCK_BYTES,
            stripe_size=stripe_bytes,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; a batch for which `needs_exact` holds must not come here."""
        if batch.num_rows:
            self._orc.write(pa.Table.from_batches([self._events(batch)]))
            self._rows += batch.num_rows

    def close(self) -> Finished:
        """Finish the file; an empty one too is complete."""
        if not self._rows:  # pyarrow writes no footer if it never saw a schema
            self._orc.write(pa.Table.from_batches([self._events(pa.RecordBatch.from_pylist([], schema=self._schema))]))
        self._orc.close()
        self._file.close()
        sealed = seal(self._path, self._write_id, self._bucket)
        return Finished(sealed.rows, sealed.bytes)

    def abort(self) -> None:
        """Let go of the file and remove it; never raises."""
        _discard(self._path, self._orc.close, self._file.close)

    def _events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as the `row` struct of insert events; its columns are not copied."""
        count = batch.num_rows
        arrays = [
            array if array.type == field.type else pc.cast(array, field.type)  # timestamp[us] to [ns]
            for array, field in zip(batch.columns, self._schema, strict=True)
        ]
        write_ids = pa.array(np.full(count, self._write_id, np.int64))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.zeros(count, np.int32)),
                write_ids,
                pa.array(np.full(count, self._bucket, np.int32)),
                pa.array(np.arange(self._rows, self._rows + count, dtype=np.int64)),
                write_ids,
                pa.StructArray.from_arrays(arrays, fields=list(self._schema)),
            ],
            names=["operation", "originalTransaction", "bucket", "rowId", "currentTransaction", "row"],
        )


class _Sink:
    """The file under pyorc; it fails once, because pyorc flushes again in its destructor, where nobody can catch."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._failed = False
        self.name = str(path)

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError:
            self._failed = True
            raise

    def flush(self) -> None:
        """Nothing to do: `close` flushes, and `seal` brings the file to the disk."""

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        """Close; a buffer that cannot be written raises OSError the first time."""
        try:
            self._file.close()
        except OSError:
            if not self._failed:
                self._failed = True
                raise


class _Instant(ORCConverter):
    """Timestamps as nanoseconds since 1970; the default converter goes through float and the process time zone."""

    @staticmethod
    def from_orc(seconds: int, nanos: int, _zone: object) -> int:
        return seconds * _SECOND + nanos

    @staticmethod
    def to_orc(stamp: int, _zone: object) -> tuple[int, int]:
        return divmod(stamp, _SECOND)


class _Day(ORCConverter):
    """Dates as days since 1970."""

    @staticmethod
    def from_orc(days: int) -> int:
        return days

    @staticmethod
    def to_orc(days: int) -> int:
        return days


_CONVERTERS = {pyorc.TypeKind.TIMESTAMP: _Instant, pyorc.TypeKind.DATE: _Day}
_COMPRESSION = {
    "zstd": pyorc.CompressionKind.ZSTD,
    "zlib": pyorc.CompressionKind.ZLIB,
    "snappy": pyorc.CompressionKind.SNAPPY,
    "none": pyorc.CompressionKind.NONE,
}


class ExactWriter:
    """Row by row writer over pyorc: every timestamp and date of the years 0001 to 9999; several times slower."""

    def __init__(
        self,
        path: Path,
        columns: Sequence[Column],
        write_id: int,
        bucket: int,
        *,
        compression: Compression = "zstd",
        stripe_bytes: int = STRIPE_BYTES,
    ) -> None:
        """`bucket` is the bucket property. Creates the file; raises OSError."""
        self._path = path
        self._write_id = write_id
        self._bucket = bucket
        self._rows = 0
        self._file = _Sink(path)
        try:
            self._orc = pyorc.Writer(
                self._file,  # type: ignore[arg-type]  # it asks for BinaryIO and uses what _Sink has
                _event_type(columns),
                batch_size=1024,
                stripe_size=stripe_bytes,
                compression=_COMPRESSION[compression],
                compression_block_size=BLOCK_BYTES,
                converters=_CONVERTERS,
            )
        except BaseException:
            _discard(path, self._file.close)
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows through Python values."""
        columns = [_python_values(array) for array in batch.columns]
        write_id, bucket = self._write_id, self._bucket
        rows = enumerate(zip(*columns, strict=True), self._rows)
        self._orc.writerows([(0, write_id, bucket, row_id, write_id, row) for row_id, row in rows])
        self._rows += batch.num_rows

    def close(self) -> Finished:
        """Finish the file."""
        self._orc.close()
        self._file.close()
        sealed = seal(self._path, self._write_id, self._bucket)
        return Finished(sealed.rows, sealed.bytes)

    def abort(self) -> None:
        """Let go of the file and remove it; never raises."""
        _discard(self._path, self._orc.close, self._file.close)


def _python_values(array: pa.Array) -> list[Any]:
    """Python values of a column; timestamps as nanoseconds and dates as days, in integers of any size."""
    if pa.types.is_date32(array.type):
        return array.view(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    if not pa.types.is_timestamp(array.type):
        return array.to_pylist()  # type: ignore[no-any-return]
    scale = 1000 if array.type.unit == "us" else 1
    return [None if stamp is None else stamp * scale for stamp in array.view(pa.int64()).to_pylist()]


def _event_type(columns: Sequence[Column]) -> pyorc.Struct:
    """The schema of Hive's ACID events (OrcRecordUpdater.createEventObjectInspector)."""
    return pyorc.Struct(
        operation=pyorc.Int(),
        originalTransaction=pyorc.BigInt(),
        bucket=pyorc.Int(),
        rowId=pyorc.BigInt(),
        currentTransaction=pyorc.BigInt(),
        row=pyorc.Struct(**{column.name: _ORC_TYPES[column.type.kind](column.type) for column in columns}),
    )


_ORC_TYPES: dict[str, Callable[[HiveType], Any]] = {
    "boolean": lambda _: pyorc.Boolean(),
    "tinyint": lambda _: pyorc.TinyInt(),
    "smallint": lambda _: pyorc.SmallInt(),
    "int": lambda _: pyorc.Int(),
    "bigint": lambda _: pyorc.BigInt(),
    "float": lambda _: pyorc.Float(),
    "double": lambda _: pyorc.Double(),
    "string": lambda _: pyorc.String(),
    "binary": lambda _: pyorc.Binary(),
    "date": lambda _: pyorc.Date(),
    "timestamp": lambda _: pyorc.Timestamp(),
    "decimal": lambda kind: pyorc.Decimal(kind.precision, kind.scale),
    "varchar": lambda kind: pyorc.VarChar(kind.length),
    "char": lambda kind: pyorc.Char(kind.length),
}


def _discard(path: Path, *closers: Callable[[], object]) -> None:
    """Close what is open and remove the file; what fails here no longer matters."""
    steps: list[Callable[[], object]] = [*closers, partial(path.unlink, missing_ok=True)]
    for step in steps:
        with suppress(OSError, ValueError, RuntimeError, pa.ArrowException):
            step()
