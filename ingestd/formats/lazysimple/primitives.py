"""Decodes whole columns of primitive fields: Arrow converts the common notations, and the rest field by field.

Invariant: every value equals the result of the column's `values.reader` for the same field. Arrow converts only
notations that it reads as Hive does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.iso_dates import DATE, HOUR, MINUTE, NEAR_DATE, SECOND
from ingestd.formats.lazysimple.values import (
    MAX_DIGITS,
    TEXT_KINDS,
    InvalidField,
    NotUtf8,
    Read,
)
from ingestd.formats.record_decoder import MixedTimestamps, NotColumnar
from ingestd.formats.row_batches import (
    FIRST_DAY,
    FIRST_NANO,
    LAST_DAY,
    LAST_NANO,
    NANOS_PER_MICRO,
    array_of,
)
from ingestd.schema import INTEGER_BITS, HiveType

Reasons = dict[int, str]
"""The reasons why fields make their records rejects, by the index of the field in its column."""


@dataclass(frozen=True, slots=True)
class CommonNotation:
    """The notations of a type that Arrow reads as Hive does.

    If all bytes of a column are in `characters`, `cast` converts the whole column. It raises pa.ArrowInvalid or
    ValueError if a field has a different notation. In other columns, `cast` converts only fields that match `pattern`.
    """

    characters: bytes
    pattern: str
    cast: Callable[[HiveType, pa.Array], pa.Array]


def primitive_column(kind: HiveType, array: pa.Array, read: Read, escape: int | None) -> tuple[pa.Array, Reasons]:
    """Convert a binary column to a primitive type, and return the reasons of rejects.

    A field that is null is NULL; `read` is the reader of the type. Raises NotColumnar if neither timestamp unit fits
    all values.
    """
    common = _common_notation(kind)
    if common is None:
        return each(kind, array, read)
    if escape is not None and kind.kind in TEXT_KINDS and escape in bytes_of(array):
        plain = pc.if_else(pc.match_substring(array, bytes((escape,))), pa.scalar(None, array.type), array)
        converted = _cast(kind, plain, common)
        return _fill(kind, nulls(kind, array) if converted is None else converted, array, read)
    if kind.kind not in TEXT_KINDS:
        array = _empty_as_null(array)
    if not common.characters or not bytes_of(array).translate(None, common.characters):
        whole = _cast(kind, array, common)
        if whole is not None:
            return whole, {}
    converted = _cast(kind, _matching(array, common.pattern), common) if common.pattern else None
    return _fill(kind, nulls(kind, array) if converted is None else converted, array, read)


def each(kind: HiveType, array: pa.Array, read: Read) -> tuple[pa.Array, Reasons]:
    """Convert a binary column field by field; see `primitive_column`."""
    return _fill(kind, nulls(kind, array), array, read)


def nulls(kind: HiveType, array: pa.Array) -> pa.Array:
    """Return a column of NULLs of the length of `array`."""
    return pa.nulls(len(array), kind.arrow)


def bytes_of(array: pa.Array) -> bytes:
    """Return the bytes of all fields of a binary column."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return b""
    ends = np.frombuffer(offsets, np.int32)
    return bytes(memoryview(data)[ends[array.offset] : ends[array.offset + len(array)]])


def _empty_as_null(array: pa.Array) -> pa.Array:
    """Return the column with empty fields replaced by NULL."""
    lengths = pc.binary_length(array)
    if pc.min(lengths).as_py() != 0:
        return array
    return pc.if_else(pc.equal(lengths, 0), pa.scalar(None, array.type), array)


def _matching(array: pa.Array, pattern: str) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(array, pattern), array, pa.scalar(None, array.type))


def _cast(kind: HiveType, array: pa.Array, common: CommonNotation) -> pa.Array | None:
    """Return the column as Arrow converts it; None if Arrow does not read the notation of every field."""
    try:
        return common.cast(kind, array)
    except ValueError:  # pa.ArrowInvalid is one
        return None


def _fill(kind: HiveType, converted: pa.Array, array: pa.Array, read: Read) -> tuple[pa.Array, Reasons]:
    """Convert the fields that are NULL in `converted` one by one.

    Returns the whole column and, by row, the reason for each reject. Raises MixedTimestamps if neither timestamp unit
    fits all values.
    """
    missing = np.flatnonzero(pc.and_(converted.is_null(), array.is_valid()).to_numpy(zero_copy_only=False))
    if not len(missing):
        return converted, {}
    values, reasons = [], {}
    for row, field in zip(missing.tolist(), array.take(pa.array(missing)).to_pylist(), strict=True):
        value, reason = _read(read, field)
        values.append(value)
        if reason:
            reasons[row] = reason
    try:
        converted, filled = _in_one_unit(kind, converted, values)
    except NotColumnar:
        far = far_rows(converted)
        far[missing] |= [value is not None and not FIRST_NANO <= value <= LAST_NANO for value in values]
        raise MixedTimestamps(far) from None
    indexes = np.arange(len(array))
    indexes[missing] = len(array) + np.arange(len(missing))
    return pa.concat_arrays([converted, filled]).take(pa.array(indexes)), reasons


def _read(read: Read, field: bytes) -> tuple[Any, str]:
    try:
        return read(field), ""
    except (InvalidField, NotUtf8) as error:
        return None, str(error)


def _in_one_unit(kind: HiveType, converted: pa.Array, values: list[Any]) -> tuple[pa.Array, pa.Array]:
    """Return both as arrays of one type, with timestamps in nanoseconds if all of them fit, else in microseconds.

    Raises NotColumnar if neither unit fits all timestamps.
    """
    if kind.kind != "timestamp":
        return converted, array_of(kind, values)
    if converted.type.unit == "ns":
        if all(value is None or FIRST_NANO <= value <= LAST_NANO for value in values):
            return converted, array_of(kind, values)
        converted = in_micros(converted)
    if any(value is not None and value % NANOS_PER_MICRO for value in values):
        raise NotColumnar
    return converted, array_of(kind, values, "us")


def in_micros(array: pa.Array) -> pa.Array:
    """Convert timestamps to microseconds. Raises NotColumnar for digits below."""
    try:
        return pc.cast(array, pa.timestamp("us"))
    except pa.ArrowInvalid:
        raise NotColumnar from None


def far_rows(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which timestamps are outside the range of nanoseconds."""
    if array.type.unit == "ns":
        return np.zeros(len(array), np.bool_)
    micros = array.view(pa.int64()).fill_null(0).to_numpy()
    far: npt.NDArray[np.bool_] = (micros < -(-FIRST_NANO // NANOS_PER_MICRO)) | (micros > LAST_NANO // NANOS_PER_MICRO)
    return far


def _common_notation(kind: HiveType) -> CommonNotation | None:
    """Return the common notations of a type; None for binary and complex types, which Arrow does not convert."""
    if kind.kind in INTEGER_BITS:
        digits = {"tinyint": 2, "smallint": 4, "int": 9, "bigint": 18}[kind.kind]
        return CommonNotation(b"-0123456789", f"^-?[0-9]{{1,{digits}}}$", _number)
    if kind.kind == "decimal":
        return CommonNotation(b"-.0123456789", _decimal_pattern(kind), _decimal)
    return _COMMON_NOTATIONS.get(kind.kind)


def _number(kind: HiveType, array: pa.Array) -> pa.Array:
    return pc.cast(array.view(pa.string()), kind.arrow)


def _decimal(kind: HiveType, array: pa.Array) -> pa.Array:
    longest = pc.max(pc.binary_length(array)).as_py()
    # Arrow keeps the lowest 128 bits of larger numbers and raises no error (seen in Arrow 26).
    if longest is not None and longest + kind.scale > MAX_DIGITS:
        _require(pc.match_substring_regex(array, _decimal_pattern(kind)))
    decimals = pc.cast(array.view(pa.string()), kind.arrow)
    decimals.validate(full=True)
    return decimals


def _decimal_pattern(kind: HiveType) -> str:
    """Return a pattern for numbers that fit without rounding. It matches nothing if precision and scale are equal."""
    whole = kind.precision - kind.scale
    return f"^-?[0-9]{{1,{whole}}}(?:\\.[0-9]{{0,{kind.scale}}})?$" if whole else "[^\\s\\S]"


def _require(mask: pa.Array) -> None:
    if not pc.all(mask, min_count=0).as_py():
        raise ValueError


def _boolean(_: HiveType, array: pa.Array) -> pa.Array:
    lower = pc.ascii_lower(array.view(pa.string()))
    true = pc.equal(lower, "true")
    _require(pc.or_(true, pc.equal(lower, "false")))
    return true


def _text(kind: HiveType, array: pa.Array) -> pa.Array:
    text = pc.cast(array, pa.string())  # raises pa.ArrowInvalid for invalid UTF-8
    if kind.kind == "string":
        return text
    longest = pc.max(pc.utf8_length(text)).as_py()
    if longest is not None and longest > kind.length:
        text = pc.utf8_slice_codeunits(text, 0, kind.length)
    return pc.utf8_rtrim(text, characters=" ") if kind.kind == "char" else text


def _date(kind: HiveType, array: pa.Array) -> pa.Array:
    days = pc.cast(array.view(pa.string()), kind.arrow)
    ends = pc.min_max(days.view(pa.int32())).as_py()
    if ends["min"] is not None and not FIRST_DAY <= ends["min"] <= ends["max"] <= LAST_DAY:
        raise ValueError
    return days


def _timestamp(_: HiveType, array: pa.Array) -> pa.Array:
    """Convert to nanoseconds if all values fit, else to microseconds. Hive requires seconds, so at least 19 bytes."""
    if (pc.min(pc.binary_length(array)).as_py() or 19) < 19:
        raise ValueError
    texts = array.view(pa.string())
    ends = pc.min_max(texts).as_py()
    # Well inside the range of timestamp[ns]; Arrow 18 wraps values outside it.
    near = ends["min"] is None or (ends["min"] >= "1678" and ends["max"] < "2262")
    if not near and not "0001" <= ends["min"] <= ends["max"] < "9999-13":
        raise ValueError
    return pc.cast(texts, pa.timestamp("ns" if near else "us"))


_FLOATING = CommonNotation(b"+-.0123456789Ee", r"^-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?$", _number)
_COMMON_NOTATIONS = {
    "boolean": CommonNotation(b"truefalsTRUEFALS", "^(?i:true|false)$", _boolean),
    "float": _FLOATING,
    "double": _FLOATING,
    "string": CommonNotation(b"", "", _text),
    "varchar": CommonNotation(b"", "", _text),
    "char": CommonNotation(b"", "", _text),
    "date": CommonNotation(b"-0123456789", f"^{DATE}$", _date),
    "timestamp": CommonNotation(
        b"-:. T0123456789",
        rf"^{NEAR_DATE}[ T]{HOUR}:{MINUTE}:{SECOND}(?:\.[0-9]{{1,9}})?$",
        _timestamp,
    ),
}
