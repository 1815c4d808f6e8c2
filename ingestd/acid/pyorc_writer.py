"""Writes Arrow batches to an ORC file with pyorc, row by row, for values that pyarrow corrupts.

Invariant: timestamps and dates are passed to ORC as integers, never as floats and never through a time zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyorc
from pyorc.converters import ORCConverter

from ingestd.acid.encoding import DICTIONARY_THRESHOLD, Encoding
from ingestd.acid.layout import FileLayout
from ingestd.acid.sink import OrcSink
from ingestd.acid.writer import AcidWriter
from ingestd.schema import Column, HiveType

_SECOND = 1_000_000_000
_CHUNK_ROWS = 4096


class _Instant(ORCConverter):
    """Converts timestamps to and from nanoseconds since 1970; pyorc's converter uses floats and the time zone."""

    @staticmethod
    def from_orc(seconds: int, nanos: int, _zone: object) -> int:
        return seconds * _SECOND + nanos

    @staticmethod
    def to_orc(stamp: int, _zone: object) -> tuple[int, int]:
        return divmod(stamp, _SECOND)


class _Day(ORCConverter):
    """Converts dates to and from days since 1970."""

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
    "lz4": pyorc.CompressionKind.LZ4,
    "none": pyorc.CompressionKind.NONE,
}
_STRATEGY = {"speed": pyorc.CompressionStrategy.SPEED, "compression": pyorc.CompressionStrategy.COMPRESSION}


class PyOrcWriter(AcidWriter):
    """Writes a file row by row. It supports all types, and timestamps and dates of the years 0001 to 9999.

    It is several times slower than `PyArrowWriter`.
    """

    def _begin(self, columns: Sequence[Column], encoding: Encoding) -> None:
        self._orc = orc_writer(self._file, columns, encoding)

    def _append(self, batch: pa.RecordBatch) -> None:
        if self._layout is FileLayout.PLAIN:
            for rows in _chunks(batch):
                self._orc.writerows(rows)
        else:
            write_rows(self._orc, batch, self._write_id, self._bucket, self._rows)

    def _end(self) -> None:
        self._orc.close()


def orc_writer(
    sink: OrcSink,
    columns: Sequence[Column],
    encoding: Encoding,
    *,
    batch_size: int = 1024,
) -> pyorc.Writer:
    """Create a pyorc writer that writes rows to `sink` in the layout of `encoding`. Raises OSError."""
    return pyorc.Writer(
        sink,  # type: ignore[arg-type]  # declared as BinaryIO; OrcSink has the methods that pyorc calls
        _event_type(columns) if encoding.layout is FileLayout.EVENTS else _row_type(columns),
        batch_size=batch_size,
        stripe_size=encoding.stripe_bytes,
        row_index_stride=encoding.index_stride,
        dict_key_size_threshold=DICTIONARY_THRESHOLD if encoding.dictionaries else 0.0,
        compression=_COMPRESSION[encoding.compression],
        compression_block_size=encoding.block_bytes,
        compression_strategy=_STRATEGY[encoding.strategy],
        bloom_filter_columns=encoding.bloom_ids(columns) or None,
        bloom_filter_fpp=encoding.bloom_fpp,
        converters=_CONVERTERS,
    )


def write_rows(writer: pyorc.Writer, batch: pa.RecordBatch, write_id: int, bucket: int, first_row: int) -> None:
    """Append rows as insert events.

    `bucket` is the bucket property, `first_row` the row id of the first row. Raises OSError.
    """
    for rows in _chunks(batch):
        numbered = enumerate(rows, first_row)
        writer.writerows([(0, write_id, bucket, row_id, write_id, row) for row_id, row in numbered])
        first_row += len(rows)


def _chunks(batch: pa.RecordBatch) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows in chunks, because Python values need many times the memory of Arrow columns."""
    for start in range(0, batch.num_rows, _CHUNK_ROWS):
        columns = [_python_values(array) for array in batch.slice(start, _CHUNK_ROWS).columns]
        yield list(zip(*columns, strict=True))


def _python_values(array: pa.Array) -> list[Any]:
    """Convert a column to the Python values that pyorc accepts.

    Timestamps become nanoseconds and dates become days, both as ints. Arrays become lists, maps become dicts, and
    structs become tuples.
    """
    if pa.types.is_nested(array.type):
        return _structs(array) if pa.types.is_struct(array.type) else _containers(array)
    if pa.types.is_date32(array.type):
        return array.view(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    if not pa.types.is_timestamp(array.type):
        return array.to_pylist()  # type: ignore[no-any-return]
    scale = 1000 if array.type.unit == "us" else 1
    return [None if stamp is None else stamp * scale for stamp in array.view(pa.int64()).to_pylist()]


def _structs(array: pa.StructArray) -> list[tuple[Any, ...] | None]:
    rows = zip(*map(_python_values, array.flatten()), strict=True)
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _containers(array: pa.ListArray | pa.MapArray) -> list[list[Any] | dict[Any, Any] | None]:
    """Convert an array of lists or maps; the items of a map are structs of key and value.

    The items of a sliced array are not sliced, so they are selected by its offsets.
    """
    if not len(array):
        return []
    offsets = array.offsets.to_pylist()
    first = offsets[0]
    items = _python_values(array.values.slice(first, offsets[-1] - first))
    make: Callable[[list[Any]], list[Any] | dict[Any, Any]] = dict if pa.types.is_map(array.type) else list
    ends = zip(offsets[:-1], offsets[1:], array.is_valid().to_pylist(), strict=True)
    return [make(items[start - first : end - first]) if valid else None for start, end, valid in ends]


def _event_type(columns: Sequence[Column]) -> pyorc.Struct:
    """Return the schema of Hive's ACID events (OrcRecordUpdater.createEventObjectInspector)."""
    return pyorc.Struct(
        operation=pyorc.Int(),
        originalTransaction=pyorc.BigInt(),
        bucket=pyorc.Int(),
        rowId=pyorc.BigInt(),
        currentTransaction=pyorc.BigInt(),
        row=_row_type(columns),
    )


def _row_type(columns: Sequence[Column]) -> pyorc.Struct:
    return pyorc.Struct(**{column.name: _orc_type(column.type) for column in columns})


def _orc_type(kind: HiveType) -> Any:
    return _ORC_TYPES[kind.kind](kind)


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
    "array": lambda kind: pyorc.Array(_orc_type(kind.children[0])),
    "map": lambda kind: pyorc.Map(key=_orc_type(kind.children[0]), value=_orc_type(kind.children[1])),
    "struct": lambda kind: pyorc.Struct(**dict(zip(kind.names, map(_orc_type, kind.children), strict=True))),
}
