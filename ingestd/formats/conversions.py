"""Converts arrays of values to arrays of a Hive type, and lets the records fail whose values do not fit.

Invariant: a converted value is exactly the value in the record, except that numbers become the nearest float or double.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.decoder import is_utf8
from ingestd.formats.iso_dates import DATE, HOUR, MINUTE, SECOND, ZONE
from ingestd.formats.row_batches import (
    FIRST_DAY,
    FIRST_NANO,
    FIRST_SECOND,
    LAST_DAY,
    LAST_NANO,
    LAST_SECOND,
    NANOS_PER_SECOND,
)
from ingestd.formats.values import Bits, Ints, Mask, Values, spread
from ingestd.schema import INTEGER_BITS, HiveType

# Converts what was read: a numpy array of numbers, an array of text (enums), or an array of bytes.
Convert = Callable[[Any, Values], pa.Array]
_Words = npt.NDArray[np.uint8]  # integers of 16 bytes in little-endian order, one in each row

PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
TEXTS = ("string", "varchar", "char")
_MIXED = "nanoseconds can be stored only if every timestamp of the record is in the years 1678 to 2261"
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
# The places of the 32 hexadecimal digits and of the 4 hyphens of a UUID.
_HYPHENS = (8, 13, 18, 23)
_DIGITS = tuple(place for place in range(36) if place not in _HYPHENS)
_DECIMAL_BYTES = _UUID_BYTES = 16
_MAX_DECIMAL_BYTES, _MAX_DIGITS = 64, 154  # of integers that become decimals
_MAX_QUOTED = 40  # characters
_FEW = 64  # texts are examined one by one if there are fewer
_WIDEST = 76  # digits
MAX_SCALE = 76  # Arrow converts decimals of larger scales to wrong values
# A date, or a date and a time with an optional zone, as in JSON.
_TIMESTAMP = (
    f"^(?P<date>{DATE})(?:[ T](?P<hour>{HOUR})(?::(?P<minute>{MINUTE})(?::(?P<second>{SECOND})"
    f"(?:\\.(?P<fraction>[0-9]{{1,9}}))?)?)?(?:Z|(?P<sign>[+-])(?P<east>{HOUR})(?::?(?P<east_minute>{MINUTE}))?)?)?$"
)
# A date with an optional zone, which does not change the date.
_DATE = f"^(?P<date>{DATE}){ZONE}?$"


def to_text(hive: HiveType) -> Convert:
    """Return the conversion of UTF-8 bytes to a string, varchar or char."""
    return after(_decode, sized(hive))


def after(first: Convert, second: Convert) -> Convert:
    """Return the conversion by `first`, followed by `second`."""
    return lambda values, place: second(first(values, place), place)


def as_it_is(values: pa.Array, _place: Values) -> pa.Array:
    """Return the values."""
    return values


def to_integer(hive: HiveType) -> Convert:
    """Return the conversion of integers to tinyint, smallint, int or bigint."""
    bits = INTEGER_BITS[hive.kind]
    first, last = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(numbers: Ints, place: Values) -> pa.Array:
        if bits < 64:
            bad = (numbers < first) | (numbers > last)
            if bad.any():
                place.reject(bad, lambda index: f"{numbers[index]} is out of range for {hive}")
        return pa.array(numbers.astype(f"i{bits // 8}"))

    return convert


def to_float(hive: HiveType) -> Convert:
    """Return the conversion of numbers to the nearest float or double."""
    target = np.float32 if hive.kind == "float" else np.float64

    def convert(numbers: npt.NDArray[Any], place: Values) -> pa.Array:
        with np.errstate(over="ignore", invalid="ignore"):
            floats = numbers.astype(target)
        if numbers.dtype.itemsize > floats.dtype.itemsize:
            bad = np.isinf(floats) & np.isfinite(numbers)
            if bad.any():
                place.reject(bad, lambda index: f"{numbers[index]} is out of range for {hive}")
        return pa.array(floats)

    return convert


def to_boolean(numbers: npt.NDArray[np.uint8], place: Values) -> pa.Array:
    """Convert the bytes 0 and 1."""
    bad = numbers > 1
    if bad.any():
        place.malformed(bad, "a boolean is neither 0 nor 1")
    return pa.array(numbers == 1)


def to_date(days: Ints, place: Values) -> pa.Array:
    """Convert days since 1970."""
    bad = (days < FIRST_DAY) | (days > LAST_DAY)
    if bad.any():
        place.reject(bad, lambda index: f"day {days[index]} since 1970 is not a date in the years 0001 to 9999")
    return pa.array(np.where(bad, 0, days).astype(np.int32)).view(pa.date32())


def to_timestamp(per_second: int) -> Convert:
    """Return the conversion of the number of parts of a second since 1970."""
    first, last = FIRST_SECOND * per_second, (LAST_SECOND + 1) * per_second - 1
    first, last = max(first, -(2**63)), min(last, 2**63 - 1)

    def convert(times: Ints, place: Values) -> pa.Array:
        bad = (times < first) | (times > last)
        if bad.any():
            place.reject(bad, lambda index: f"{times[index]} is not a timestamp in the years 0001 to 9999")
            times = np.where(bad, 0, times)
        return _nanos(times, per_second, place) if place.records.unit == "ns" else _micros(times, per_second, place)

    return convert


def _nanos(times: Ints, per_second: int, place: Values) -> pa.Array:
    factor = 10**9 // per_second
    coarse = (times < -(-FIRST_NANO // factor)) | (times > LAST_NANO // factor)
    if coarse.any():
        place.records.coarse[place.record[coarse]] = True
        times = np.where(coarse, 0, times)
    return pa.array(times * factor).view(pa.timestamp("ns"))


def _micros(times: Ints, per_second: int, place: Values) -> pa.Array:
    if per_second <= 10**6:
        return pa.array(times * (10**6 // per_second)).view(pa.timestamp("us"))
    _require_micros(times % 1000 != 0, place)
    return pa.array(times // 1000).view(pa.timestamp("us"))


def _require_micros(fine: Mask, place: Values) -> None:
    """Examine which timestamps have digits below the microsecond, which is the unit of all timestamps."""
    if fine.any():
        beside_coarse = place.records.coarse[place.record]
        place.reject(fine & beside_coarse, lambda _index: _MIXED)
        sound = ~place.records.failed[place.record]
        place.records.has_fine |= bool((fine & sound & ~beside_coarse).any())


def to_timestamps(seconds: Ints, nanos: Ints, place: Values) -> pa.Array:
    """Convert seconds since 1970 and nanoseconds of the second."""
    bad = (seconds < FIRST_SECOND) | (seconds > LAST_SECOND) | (nanos < 0) | (nanos >= NANOS_PER_SECOND)
    if bad.any():
        place.reject(
            bad, lambda index: f"{seconds[index]} s and {nanos[index]} ns is not a timestamp in the years 0001 to 9999"
        )
        seconds, nanos = np.where(bad, 0, seconds), np.where(bad, 0, nanos)
    if place.records.unit == "us":
        _require_micros(nanos % 1000 != 0, place)
        return pa.array(seconds * 10**6 + nanos // 1000).view(pa.timestamp("us"))
    (first, first_part), (last, last_part) = divmod(FIRST_NANO, NANOS_PER_SECOND), divmod(LAST_NANO, NANOS_PER_SECOND)
    coarse = (seconds < first) | (seconds == first) & (nanos < first_part)
    coarse |= (seconds > last) | (seconds == last) & (nanos > last_part)
    if coarse.any():
        place.records.coarse[place.record[coarse]] = True
        seconds = np.where(coarse, 0, seconds)
    # The product can overflow in the first second of the range, and the sum returns into it.
    return pa.array(seconds * NANOS_PER_SECOND + nanos).view(pa.timestamp("ns"))


def text_to_timestamp(values: pa.BinaryArray, place: Values) -> pa.Array:
    """Convert the texts of dates, or of dates and times; those with a zone become times in UTC."""
    texts = _decode(values, place)
    parts = pc.extract_regex(texts, _TIMESTAMP)
    bad = parts.is_null().to_numpy(zero_copy_only=False)
    days = pc.cast(pc.cast(pc.struct_field(parts, "date"), pa.date32()), pa.int32()).fill_null(0).to_numpy()
    clock = _number(parts, "hour") * 3600 + _number(parts, "minute") * 60 + _number(parts, "second")
    offset = _number(parts, "east") * 3600 + _number(parts, "east_minute") * 60
    is_west = (
        pc.equal(pc.struct_field(parts, "sign"), "-").fill_null(pa.scalar(value=False)).to_numpy(zero_copy_only=False)
    )
    seconds = days.astype(np.int64) * 86_400 + clock - np.where(is_west, -offset, offset)
    bad |= (seconds < FIRST_SECOND) | (seconds > LAST_SECOND)
    if bad.any():
        place.reject(bad, lambda index: f"{_quoted(texts[index])} is not a timestamp in the years 0001 to 9999")
        seconds = np.where(bad, 0, seconds)
    return to_timestamps(seconds, np.where(bad, 0, _number(parts, "fraction", 9)), place)


def text_to_date(values: pa.BinaryArray, place: Values) -> pa.Array:
    """Convert the texts of dates. A zone, which may follow the day, is ignored: the date is that of the text."""
    texts = _decode(values, place)
    parts = pc.extract_regex(texts, _DATE)
    bad = parts.is_null().to_numpy(zero_copy_only=False)
    if bad.any():
        place.reject(bad, lambda index: f"{_quoted(texts[index])} is not a date in the years 0001 to 9999")
    return pc.cast(pc.struct_field(parts, "date"), pa.date32()).fill_null(pa.scalar(0, pa.date32()))


def _quoted(text: pa.Scalar) -> str:
    quoted = repr(text.as_py())
    return quoted if len(quoted) <= _MAX_QUOTED else f"{quoted[: _MAX_QUOTED - 3]}..."


def _number(parts: pa.StructArray, name: str, digits: int = 1) -> Ints:
    """Return the numbers of a group of `_TIMESTAMP`, or their first digits if there are fewer; 0 if it is absent."""
    texts = pc.utf8_rpad(pc.struct_field(parts, name), digits, "0")
    numbers: Ints = pc.cast(texts, pa.int64()).fill_null(0).to_numpy()
    return numbers


def integer_to_decimal(hive: HiveType) -> Convert:
    """Return the conversion of integers of 64 bits, with or without a sign."""

    def convert(numbers: Ints | Bits, place: Values) -> pa.Array:
        is_signed = numbers.dtype == np.int64
        words = np.stack(
            [numbers.view(np.int64), numbers >> 63 if is_signed else np.zeros(len(numbers), np.int64)], axis=1
        )
        return _rescaled(_decimals(words, 0), hive, place)

    return convert


def to_decimal(scale: int, hive: HiveType) -> Convert:
    """Return the conversion of big-endian integers, which are decimals of a scale up to MAX_SCALE."""

    def convert(values: pa.BinaryArray, place: Values) -> pa.Array:
        words, large = _words(values, place)
        if large:
            return _of_scales(words, large, np.full(len(values), scale), hive, place)
        return _rescaled(_decimals(words, scale), hive, place) if len(values) else pa.array([], hive.arrow)

    return convert


def to_decimals(scales: Ints, values: pa.BinaryArray, hive: HiveType, place: Values) -> pa.Array:
    """Convert big-endian integers, which are decimals of the given scales."""
    words, large = _words(values, place)
    return _of_scales(words, large, scales, hive, place) if len(values) else pa.array([], hive.arrow)


def _of_scales(words: _Words, large: Mapping[int, int], scales: Ints, hive: HiveType, place: Values) -> pa.Array:
    """Convert the integers that `_words` returns, which are decimals of the given scales."""
    words, scales = words.copy(), scales.copy()
    for index, number in large.items():
        # It has more digits than any column, so it fits only if the digits behind those of the column are zeros.
        behind = int(scales[index]) - hive.scale
        stored, rest = divmod(number, 10**behind) if 0 < behind <= _MAX_DIGITS else (0, number)
        if rest or abs(stored) >= 10**hive.precision:
            place.reject_at(index, f"a decimal of more than {_DECIMAL_BYTES} bytes does not fit {hive} exactly")
            stored = 0
        words[index] = np.frombuffer(stored.to_bytes(_DECIMAL_BYTES, "little", signed=True), np.uint8)
        scales[index] = hive.scale
    scales = np.where(words.any(axis=1), scales, 0)  # zero has any scale
    extreme = np.abs(scales) > MAX_SCALE
    place.reject(extreme, lambda index: f"a decimal of the scale {scales[index]} does not fit {hive} exactly")
    kept = np.where(extreme, 0, scales)
    places = [np.flatnonzero(kept == scale) for scale in np.unique(kept)]
    decimals = [_decimals(words[indexes], int(kept[indexes[0]])) for indexes in places]
    rescaled = spread([_fitting(part, hive) for part in decimals], places, len(words))
    if rescaled.null_count:
        bad = rescaled.is_null().to_numpy(zero_copy_only=False)
        place.reject(
            bad, lambda index: f"{_shown(_decimals(words[[index]], int(kept[index]))[0])} does not fit {hive} exactly"
        )
    return rescaled


def _words(values: pa.BinaryArray, place: Values) -> tuple[_Words, Mapping[int, int]]:
    """Return big-endian integers as 16 bytes in little-endian order, and those that need more bytes, by index.

    An integer without bytes is malformed, and one that needs more than 64 bytes a reject.
    """
    bounds, data = _buffers(values)
    starts, ends = bounds[:-1], bounds[1:]
    empty = ends <= starts
    if empty.any():
        place.malformed(empty & ~place.records.malformed[place.record], "a decimal has no digits")
    sign = np.where(~empty & (data[np.minimum(starts, len(data) - 1)] > 0x7F), 0xFF, 0).astype(np.uint8)
    words = np.empty((len(values), _DECIMAL_BYTES), np.uint8)
    for step in range(_DECIMAL_BYTES):
        at = ends - 1 - step
        words[:, step] = np.where(at >= starts, data[np.maximum(at, 0)], sign)
    large: dict[int, int] = {}
    for index in np.flatnonzero(ends - starts > _DECIMAL_BYTES).tolist():
        content = data[starts[index] : ends[index]]
        number = int.from_bytes(content[-_MAX_DECIMAL_BYTES:].tobytes(), "big", signed=True)
        # The bytes before must repeat the sign.
        if (content[:-_MAX_DECIMAL_BYTES] != sign[index]).any() or (number < 0) != (sign[index] > 0):
            place.reject_at(index, f"a decimal of more than {_MAX_DECIMAL_BYTES} bytes is not supported")
            words[index] = 0
        elif number.bit_length() >= 8 * _DECIMAL_BYTES:
            large[index] = number
    return words, large


def _buffers(values: pa.BinaryArray) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Return the bounds of values in a buffer, and this buffer, which has at least one byte."""
    _, bounds, data = values.buffers()
    if not len(values) or data is None or not data.size:
        return np.zeros(len(values) + 1, np.int64), np.zeros(1, np.uint8)
    ends = np.frombuffer(bounds, np.int32)[values.offset : values.offset + len(values) + 1]
    return ends.astype(np.int64), np.frombuffer(data, np.uint8)


def _decimals(words: npt.NDArray[Any], scale: int) -> pa.Array:
    """Return the decimals that integers of 16 bytes represent. Their precision is not limited to 38 digits."""
    kind = pa.decimal128(38, scale)
    buffer = pa.py_buffer(np.ascontiguousarray(words))
    return pa.Array.from_buffers(kind, len(words), [None, buffer])


def _rescaled(decimals: pa.Array, hive: HiveType, place: Values) -> pa.Array:
    """Convert decimals to the scale of the column."""
    rescaled = _fitting(decimals, hive)
    if rescaled.null_count:
        bad = rescaled.is_null().to_numpy(zero_copy_only=False)
        place.reject(bad, lambda index: f"{_shown(decimals[index])} does not fit {hive} exactly")
    return rescaled


def _fitting(decimals: pa.Array, hive: HiveType) -> pa.Array:
    """Convert decimals to the type of the column; null if one does not fit. One of a negative scale must not be 0."""
    scale = decimals.type.scale
    if scale < 0:  # Arrow does not notice each overflow when it appends zeros, so the digits are limited before
        digits = hive.precision - hive.scale + scale
        if digits < 1:
            return pa.nulls(len(decimals), hive.arrow)
        # Arrow compares no decimals of a negative scale, so they are integers meanwhile.
        integers = decimals.view(pa.decimal128(decimals.type.precision, 0))
        decimals = _each(integers, pa.decimal128(digits, 0)).view(pa.decimal128(digits, scale))
    return _each(decimals, hive.arrow)


def _each(decimals: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert decimals; null if a value does not fit."""
    # The wider type checks the number of digits as well, even if the target is decimal(38).
    wide = pc.cast(decimals, pa.decimal256(_WIDEST, decimals.type.scale))
    try:
        return pc.cast(wide, target)
    except pa.ArrowInvalid:
        return pc.cast(pc.if_else(_fits(wide, target), wide, pa.scalar(None, wide.type)), target)


def _fits(wide: pa.Array, target: pa.DataType) -> pa.Array:
    """Return which decimals have no digits behind those of the target, and no more digits than it."""
    scaled = pc.cast(wide, pa.decimal256(_WIDEST, target.scale), safe=False)
    is_exact = pc.equal(pc.cast(scaled, wide.type, safe=False), wide)
    most = Decimal(f"{'9' * target.precision}E{-target.scale}")
    first, last = (pa.scalar(limit, scaled.type) for limit in (most.copy_negate(), most))
    return pc.and_(is_exact, pc.and_(pc.greater_equal(scaled, first), pc.less_equal(scaled, last)))


def _shown(decimal: pa.Scalar) -> str:
    return str(pc.cast(decimal, pa.decimal256(_WIDEST, decimal.type.scale)).as_py())


def _decode(values: pa.BinaryArray, place: Values) -> pa.Array:
    texts = values.view(pa.string())
    bad = _invalid(texts)
    if bad is not None:
        place.reject(bad, lambda _index: "the text is not UTF-8")
        texts = pc.if_else(pa.array(bad), pa.scalar(None, pa.binary()), values).view(pa.string())
    return texts


def _invalid(texts: pa.StringArray) -> Mask | None:
    """Return which texts are not UTF-8; None if all are."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        if len(texts) <= _FEW:
            values = texts.view(pa.binary()).to_pylist()
            return np.array([value is not None and not is_utf8(value) for value in values])
        half = len(texts) // 2
        parts = (texts[:half], texts[half:])
        masks = [_invalid(part) for part in parts]
        return np.concatenate(
            [np.zeros(len(part), np.bool_) if mask is None else mask for part, mask in zip(parts, masks, strict=True)]
        )
    return None


def sized(hive: HiveType) -> Convert:
    """Return the check of the length of texts; trailing spaces of a char are removed first."""
    if hive.kind == "string":
        return as_it_is

    def convert(texts: pa.StringArray, place: Values) -> pa.Array:
        if hive.kind == "char":
            texts = pc.utf8_rtrim(texts, characters=" ")
        lengths = pc.utf8_length(texts).fill_null(0).to_numpy()
        bad = lengths > hive.length
        if bad.any():
            place.reject(bad, lambda index: f"text of {lengths[index]} characters is longer than {hive}")
        return texts

    return convert


def uuid_text(values: pa.BinaryArray, _place: Values) -> pa.BinaryArray:
    """Return the 36 characters of UUIDs of 16 bytes; failed records have none."""
    bounds, data = _buffers(values)
    fits = np.diff(bounds) == _UUID_BYTES
    data = data[bounds[0] : bounds[-1]].reshape(-1, _UUID_BYTES)
    texts = np.full((len(values), 36), ord("-"), np.uint8)
    digits = np.stack([_HEX[data >> 4], _HEX[data & 15]], axis=2).reshape(-1, 32)
    texts[np.ix_(np.flatnonzero(fits), np.array(_DIGITS))] = digits
    offsets = np.arange(len(values) + 1, dtype=np.int32) * 36
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])
