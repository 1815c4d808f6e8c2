"""Computes the Hive bucket of each row of a batch, column-wise.

Invariant: a row gets the bucket that Hive's own writers and readers compute for it (ObjectInspectorUtils), with
the quirks of Hive's hash functions. Hashes are uint32, which wraps as Java's int does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.errors import InvalidTable
from ingestd.schema import Column

_Hashes = npt.NDArray[np.uint32]
_Numbers = npt.NDArray[Any]

_MASK = 0xFFFFFFFF
_SEED = 104729  # Murmur3.DEFAULT_SEED
_SCALAR_ROWS = 32  # for fewer rows, plain Python is faster than numpy
_BILLION = 1_000_000_000
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": _BILLION}  # per second
_FIRST_GREGORIAN_DAY = -141_427  # 1582-10-15; before it the calendar of java.sql is Julian


def bucket_of_rows(
    batch: pa.RecordBatch, bucket_columns: Sequence[Column], buckets: int, *, version: int
) -> npt.NDArray[np.int64]:
    """Return the bucket number of each row, 0 to `buckets` - 1 (ObjectInspectorUtils.getBucketNumber).

    `bucket_columns` are listed in CLUSTERED BY order and looked up in the batch by name. Their arrays have the type
    `HiveType.arrow`; a string array may also be a large_string. `version` is the table's `bucketing_version`: 2 selects
    the murmur hash, any other value selects the Java hash (AbstractRecordWriter.getBucket). The Java hash of a
    timestamp depends on the default time zone of Hive's JVM, which is unknown here; UTC is assumed.

    Raises InvalidTable for binary columns (Hive hashes their whole buffer, including stale bytes), for complex types,
    and if `buckets` is not positive.
    """
    if buckets < 1:
        raise InvalidTable(
            f"the table has {buckets} buckets, but needs at least 1",
            hint="recreate the table with CLUSTERED BY … INTO n BUCKETS",
        )
    combined: _Hashes = np.zeros(batch.num_rows, np.uint32)
    for column in bucket_columns:
        combined = np.uint32(31) * combined + _column_hashes(column, batch.column(column.name), version)
    numbers: npt.NDArray[np.int64] = (combined & np.uint32(0x7FFFFFFF)).astype(np.int64) % buckets
    return numbers


def _column_hashes(column: Column, array: pa.Array, version: int) -> _Hashes:
    """Return the hash of each value; the hash of NULL is 0."""
    hash_of = (_MURMUR if version == 2 else _JAVA).get(column.type.kind)
    if hash_of is None:
        raise InvalidTable(
            f"a column of type {column.type} cannot be a bucket column",
            where=f"column {column.name}",
            hint="recreate the table with CLUSTERED BY columns of another type, such as bigint or string",
        )
    if len(array) == 0:
        return np.zeros(0, np.uint32)
    hashes = hash_of(array)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


# --- numbers, dates and booleans


def _numbers(array: pa.Array) -> _Numbers:
    """Return the values as a numpy array.

    A boolean becomes 0 or 1, a date becomes its epoch day, and a NULL becomes an arbitrary value.
    """
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    elif pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    values: _Numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    return values


def _bits(floats: _Numbers) -> _Numbers:
    """Return the bits of each number as Float.floatToIntBits and Double.doubleToLongBits do.

    All NaNs have the same bits; 0.0 and -0.0 have different bits.
    """
    one_nan = np.where(np.isnan(floats), floats.dtype.type(np.nan), floats)
    return one_nan.view(np.int32 if floats.dtype == np.float32 else np.int64)


def _folded(longs: npt.NDArray[np.int64]) -> _Hashes:
    """Return Long.hashCode of each value: `(int) ((v >>> 32) ^ v)`."""
    return ((longs >> 32) ^ longs).astype(np.uint32)


def _java_numbers(array: pa.Array) -> _Hashes:
    values = _numbers(array)
    if values.dtype.kind == "f":
        values = _bits(values)
    return _folded(values) if values.dtype == np.int64 else values.astype(np.int32).view(np.uint32)


def _murmur_numbers(array: pa.Array) -> _Hashes:
    values = _numbers(array)
    if values.dtype.kind == "f":
        values = _bits(values).astype(values.dtype)  # Hive hashes the bits after a cast back to float or double
    return _murmur(_Rows.of_numbers(values))


# --- decimals and timestamps: each distinct value is hashed once, as a Python value


def _distinct(array: pa.Array) -> tuple[list[Any], npt.NDArray[np.int32]]:
    """Return the distinct values (0 for NULL) and, for each row, the index of its value among them."""
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    return [value or 0 for value in encoded.dictionary.to_pylist()], encoded.indices.to_numpy()


def _murmur_distinct(array: pa.Array, encode: Callable[[Any], bytes]) -> _Hashes:
    values, indices = _distinct(array)
    return _murmur(_Rows.of_texts(pa.array(map(encode, values), pa.large_binary())))[indices]


def _java_decimals(array: pa.Array) -> _Hashes:
    values, indices = _distinct(array)
    return np.array([_decimal_hash(value) for value in values], np.uint32)[indices]


def _murmur_decimals(array: pa.Array) -> _Hashes:
    return _murmur_distinct(array, _decimal_bytes)


def _trimmed(value: Decimal | int) -> tuple[int, int]:
    """Return the unscaled value and the scale, without trailing zeros of the fraction, as HiveDecimal does."""
    whole, _, fraction = f"{value:f}".partition(".")
    fraction = fraction.rstrip("0")
    return int(whole + fraction), len(fraction)


def _decimal_hash(value: Decimal | int) -> int:
    """Return BigDecimal.hashCode: 31 * BigInteger.hashCode + scale, modulo 2³²."""
    unscaled, scale = _trimmed(value)
    hashed = 0
    for shift in (96, 64, 32, 0):  # 38 digits fit into four words
        hashed = 31 * hashed + (abs(unscaled) >> shift & _MASK)
    return (31 * (hashed if unscaled > 0 else -hashed) + scale) & _MASK


def _decimal_bytes(value: Decimal | int) -> bytes:
    """Return the unscaled value as the shortest two's complement bytes (HiveDecimalWritable.getInternalStorage)."""
    unscaled, _ = _trimmed(value)
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def _java_timestamps(array: pa.Array) -> _Hashes:
    """Return TimestampWritable.hashCode of the java.sql.Timestamp that Hive parses from each value's text in UTC."""
    ticks = _TICKS[array.type.unit]
    seconds, rest = np.divmod(_numbers(array.cast(pa.int64())), ticks)
    seconds += _julian_shift(seconds // 86_400) * 86_400
    return _folded((seconds << 30) | (rest * (_BILLION // ticks)))


def _julian_shift(days: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many days later the same calendar date is in java.sql, which is Julian before 1582-10-15."""
    march_years = (days.astype("datetime64[D]").astype("datetime64[M]") - 2).astype("datetime64[Y]").astype(np.int64)
    centuries = (march_years + 1970) // 100
    return np.where(days < _FIRST_GREGORIAN_DAY, centuries - centuries // 4 - 2, 0)


def _murmur_timestamps(array: pa.Array) -> _Hashes:
    nanoseconds = _BILLION // _TICKS[array.type.unit]
    return _murmur_distinct(array.cast(pa.int64()), lambda ticks: _timestamp_bytes(ticks * nanoseconds))


def _timestamp_bytes(nanoseconds: int) -> bytes:
    """Encode nanoseconds since the epoch as TimestampWritableV2.convertTimestampToBytes does."""
    seconds, nanos = divmod(nanoseconds, _BILLION)
    if nanos == 0 and 0 <= seconds < 1 << 31:
        return seconds.to_bytes(4, "big")
    head = (seconds & 0x7FFFFFFF | 0x80000000).to_bytes(4, "big")
    mirrored = int(f"{nanos:09}"[::-1])
    if 0 <= seconds < 1 << 31:
        return head + _vlong(mirrored)
    return head + _vlong(-mirrored - 1) + _vlong(seconds >> 31)


def _vlong(value: int) -> bytes:
    """Encode an integer as WritableUtils.writeVLong does.

    The result is one byte, or a byte for the sign and the size, followed by the magnitude.
    """
    if -112 <= value <= 127:
        return value.to_bytes(1, "big", signed=True)
    magnitude = value if value >= 0 else ~value
    size = (magnitude.bit_length() + 7) // 8
    return ((-112 if value >= 0 else -120) - size).to_bytes(1, "big", signed=True) + magnitude.to_bytes(size, "big")


# --- bytes: each step hashes the next byte or word of all rows


class _Rows(NamedTuple):
    """The bytes of all rows: row n consists of `lengths[n]` bytes of `data` from offset `starts[n]`."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of_numbers(cls, values: _Numbers) -> _Rows:
        """Encode numbers big-endian, as java.nio.ByteBuffer does."""
        width = values.dtype.itemsize
        data = values.astype(values.dtype.newbyteorder(">")).view(np.uint8)
        return cls(data, np.arange(len(values)) * width, np.full(len(values), width))

    @classmethod
    def of_texts(cls, array: pa.Array) -> _Rows:
        """Return the UTF-8 bytes of a string array, or the values of a binary array."""
        array = array.cast(pa.large_binary())
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        used = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data else np.empty(0, np.uint8)
        return cls(used, ends[:-1] - ends[0], np.diff(ends))


def _stripped(array: pa.Array) -> pa.Array:
    """Return char values without their padding (HiveChar.getStrippedValue)."""
    return pc.ascii_rtrim(array, characters=" ")


def _java_texts(array: pa.Array, start: int) -> _Hashes:
    """Hash the signed bytes of each text with `31 * hash + byte`; the initial hash is `start`."""
    rows = _Rows.of_texts(array)
    signed = rows.data.view(np.int8).astype(np.int32).view(np.uint32)
    return _fold(_java_step, start, signed, rows.starts, rows.lengths, 1)


def _murmur(rows: _Rows) -> _Hashes:
    """Return Murmur3.hash32: MurmurHash3 x86 32, except that the last one to three bytes are sign-extended."""
    words = np.ndarray(max(len(rows.data) - 3, 0), "<u4", rows.data, strides=(1,))  # a word at every byte offset
    hashes = _fold(_murmur_step, _SEED, words, rows.starts, rows.lengths // 4, 4)
    hashes = hashes ^ _scrambled(_tail(rows)) ^ rows.lengths.astype(np.uint32)
    hashes = (hashes ^ hashes >> 16) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> 13) * np.uint32(0xC2B2AE35)
    final: _Hashes = hashes ^ hashes >> 16
    return final


def _tail(rows: _Rows) -> _Hashes:
    """Return the bytes after the last whole word as one integer, or 0 if there are none; `_scrambled(0)` is 0."""
    signed = rows.data.view(np.int8)
    tail: _Hashes = np.zeros(len(rows.starts), np.uint32)
    for index in range(3):
        longer = np.flatnonzero(rows.lengths % 4 > index)
        at = rows.starts[longer] + rows.lengths[longer] // 4 * 4 + index
        tail[longer] ^= signed[at].astype(np.int32).view(np.uint32) << 8 * index
    return tail


def _rotated(word: Any, by: int) -> Any:
    return (word << by | word >> 32 - by) & _MASK


def _scrambled(word: Any) -> Any:
    return _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _murmur_step(hashed: Any, word: Any) -> Any:
    return _rotated(hashed ^ _scrambled(word), 13) * 5 + 0xE6546B64 & _MASK


def _java_step(hashed: Any, byte: Any) -> Any:
    return hashed * 31 + byte & _MASK


def _fold(
    step: Callable[[Any, Any], Any],
    start: int,
    units: _Hashes,
    firsts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    stride: int,
) -> _Hashes:
    """Fold `counts` units of each row into its hash; the units begin at `firsts` and are `stride` apart.

    Rows are sorted by length, so that the rows with units left form a slice, which shrinks with each step. The last
    rows, which may be much longer than all others, are hashed one by one, so `step` must accept ints and arrays.
    """
    order = np.argsort(counts.astype(np.uint16) if counts.max() < 1 << 16 else counts, kind="stable")
    firsts, counts = firsts[order], counts[order]
    sorted_hashes: _Hashes = np.full(len(order), start, np.uint32)
    done = steps = 0
    while len(order) - (done := int(np.searchsorted(counts, steps, side="right"))) >= _SCALAR_ROWS:
        sorted_hashes[done:] = step(sorted_hashes[done:], units[firsts[done:] + steps * stride])
        steps += 1
    for row in range(done, len(order)):
        rest = units[firsts[row] + steps * stride : firsts[row] + counts[row] * stride : stride]
        sorted_hashes[row] = reduce(step, rest.tolist(), int(sorted_hashes[row]))
    hashes = np.empty_like(sorted_hashes)
    hashes[order] = sorted_hashes
    return hashes


_JAVA: dict[str, Callable[[pa.Array], _Hashes]] = {
    **dict.fromkeys(("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date"), _java_numbers),
    "string": lambda array: _java_texts(array, 0),
    "varchar": lambda array: _java_texts(array, 1),  # as Text.hashCode
    "char": lambda array: _java_texts(_stripped(array), 1),
    "decimal": _java_decimals,
    "timestamp": _java_timestamps,
}
"""The hash functions of ObjectInspectorUtils.hashCode, by type."""

_MURMUR: dict[str, Callable[[pa.Array], _Hashes]] = {
    **dict.fromkeys(("boolean", "tinyint"), _java_numbers),
    **dict.fromkeys(("smallint", "int", "bigint", "float", "double", "date"), _murmur_numbers),
    **dict.fromkeys(("string", "varchar"), lambda array: _murmur(_Rows.of_texts(array))),
    "char": lambda array: _murmur(_Rows.of_texts(_stripped(array))),
    "decimal": _murmur_decimals,
    "timestamp": _murmur_timestamps,
}
"""The hash functions of ObjectInspectorUtils.hashCodeMurmur, by type."""
