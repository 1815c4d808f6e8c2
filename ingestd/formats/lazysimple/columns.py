"""Decodes whole columns of text fields: Arrow converts the common notations, and the rest is decoded field by field.

Invariant: every value equals the result of the column's `values.reader` for the same field. Arrow converts only
notations that it reads as Hive does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.decoder import RejectError
from ingestd.formats.lazysimple.values import (
    MAX_DIGITS,
    TEXT_KINDS,
    FieldSyntax,
    InvalidField,
    NotUtf8,
    Read,
    reader,
)
from ingestd.formats.record_decoder import NotColumnar, RejectReasons
from ingestd.formats.row_batches import (
    FIRST_DAY,
    FIRST_NANO,
    LAST_DAY,
    LAST_NANO,
    NANOS_PER_MICRO,
    Row,
    array_of,
    batch_of,
    has_timestamp,
)
from ingestd.schema import INTEGER_BITS, Column, HiveType


@dataclass(frozen=True, slots=True)
class CommonNotation:
    """The notations of a type that Arrow reads as Hive does.

    If all bytes of a column are in `characters`, `cast` converts the whole column. It raises pa.ArrowInvalid or
    ValueError if a field has a different notation. In other columns, `cast` converts only fields that match `pattern`.
    """

    characters: bytes
    pattern: str
    cast: Callable[[HiveType, pa.Array], pa.Array]


class FieldConverter:
    """Converts the fields of records to rows. A field is bytes, or None if it is missing or is the NULL text."""

    def __init__(self, columns: Sequence[Column], syntax: FieldSyntax) -> None:
        self._columns = tuple(columns)
        self._escape = syntax.escape
        self._readers = [reader(column.type, syntax) for column in columns]
        self._timestamps = [index for index, column in enumerate(columns) if column.type.kind == "timestamp"]
        self._nests_timestamps = any(column.type.is_complex and has_timestamp(column.type) for column in columns)

    def row(self, fields: Sequence[bytes | None]) -> Row:
        """Convert the fields of one record to a row; this is the reference for `batch`. Raises RejectError."""
        values: list[Any] = []
        try:
            for read, field in zip(self._readers, fields, strict=True):
                values.append(None if field is None else read(field))
        except (InvalidField, NotUtf8) as error:
            raise RejectError(self._columns[len(values)].name, str(error)) from None
        return values

    def batch(self, arrays: Sequence[pa.Array]) -> tuple[pa.RecordBatch, RejectReasons]:
        """Convert the fields of many records, one binary array per column, to a batch of rows and the rejects.

        Raises NotColumnar if the rows need different timestamp units.
        """
        if self._nests_timestamps:  # the unit then depends on each row
            raise NotColumnar
        converted: list[pa.Array] = []
        rejects: dict[int, tuple[str, str]] = {}
        for column, array, read in zip(self._columns, arrays, self._readers, strict=True):
            values, reasons = self._column(column.type, array, read)
            for row, reason in reasons.items():
                rejects.setdefault(row, (column.name, reason))
            converted.append(values)
        if len({converted[index].type for index in self._timestamps}) > 1:
            for index in self._timestamps:
                converted[index] = _in_micros(converted[index])
        return batch_of(self._columns, converted), rejects

    def _column(self, kind: HiveType, array: pa.Array, read: Read) -> tuple[pa.Array, dict[int, str]]:
        """Convert one column. Return it and, by row, the reason why a field makes its record a reject."""
        common = _common_notation(kind)
        has_escapes = self._escape is not None and kind.kind in TEXT_KINDS and self._escape in _bytes_of(array)
        if common is None or has_escapes:
            return _fill(kind, _nulls(kind, array), array, read)
        if kind.kind not in TEXT_KINDS:
            array = _empty_as_null(array)
        if not common.characters or not _bytes_of(array).translate(None, common.characters):
            whole = _cast(kind, array, common)
            if whole is not None:
                return whole, {}
        converted = _cast(kind, _matching(array, common.pattern), common) if common.pattern else None
        return _fill(kind, _nulls(kind, array) if converted is None else converted, array, read)


def _bytes_of(array: pa.Array) -> bytes:
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


def _nulls(kind: HiveType, array: pa.Array) -> pa.Array:
    return pa.nulls(len(array), kind.arrow)


def _cast(kind: HiveType, array: pa.Array, common: CommonNotation) -> pa.Array | None:
    """Return the column as Arrow converts it; None if Arrow does not read the notation of every field."""
    try:
        return common.cast(kind, array)
    except ValueError:  # pa.ArrowInvalid is one
        return None


def _fill(kind: HiveType, converted: pa.Array, array: pa.Array, read: Read) -> tuple[pa.Array, dict[int, str]]:
    """Convert the fields that are NULL in `converted` one by one.

    Returns the whole column and, by row, the reason for each reject. Raises NotColumnar if neither timestamp
    unit fits all values.
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
    converted, filled = _in_one_unit(kind, converted, values)
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
        converted = _in_micros(converted)
    if any(value is not None and value % NANOS_PER_MICRO for value in values):
        raise NotColumnar
    return converted, array_of(kind, values, "us")


def _in_micros(array: pa.Array) -> pa.Array:
    try:
        return pc.cast(array, pa.timestamp("us"))
    except pa.ArrowInvalid:
        raise NotColumnar from None


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
    "date": CommonNotation(b"-0123456789", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$", _date),
    "timestamp": CommonNotation(
        b"-:. T0123456789",
        r"^(?:1[789]|2[01])[0-9]{2}-[0-9]{2}-[0-9]{2}[ T](?:[0-9]{2}:){2}[0-9]{2}(?:\.[0-9]{1,9})?$",
        _timestamp,
    ),
}
