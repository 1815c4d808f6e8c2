"""Columns of text fields become Arrow columns: what is plainly written by Arrow, the rest field by field.

Invariant: every value equals what `lazy.reader` makes of the field; Arrow sees only spellings that both read alike.
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
    FIRST_DAY,
    LAST_DAY,
    MAX_DIGITS,
    TEXT_KINDS,
    Malformed,
    NotText,
    Read,
    Style,
    reader,
)
from ingestd.formats.row_batches import FIRST_NANO, LAST_NANO, MICRO, RowBatches, array_of, batch_of, has_timestamp
from ingestd.schema import INTEGER_BITS, Column, HiveType

SMALLEST_BLOCK = 256  # rows; smaller blocks with timestamps of both units are not split any more
PARTS = 16

Faults = dict[int, tuple[str, str]]  # row -> column and reason, of rows that become rejects


class Mixed(Exception):
    """A column's timestamps need both units, so its rows must be spread over batches."""


@dataclass(frozen=True, slots=True)
class Plain:
    """The plain spellings of a type, which Arrow reads as Hive does.

    A column made of `letters` only is given to `cast` as a whole, which raises pa.ArrowInvalid or ValueError for a
    field that is not plain; of other columns the fields that match `pattern` are.
    """

    letters: bytes
    pattern: str
    cast: Callable[[HiveType, pa.Array], pa.Array]


class Cells:
    """Turns columns of fields into batches; a field is bytes, or NULL where the record has none or the NULL text."""

    def __init__(self, columns: Sequence[Column], style: Style) -> None:
        self._columns = tuple(columns)
        self._escape = style.escape
        self._readers = [reader(column.type, style) for column in columns]
        self._timed = [place for place, column in enumerate(columns) if column.type.kind == "timestamp"]
        self._deep = any(column.type.is_complex and has_timestamp(column.type) for column in columns)

    def decode(self, arrays: Sequence[pa.Array], faults: Faults) -> list[pa.RecordBatch]:
        """Batches of the rows without fault; adds the faults found. `arrays` are binary, one for each column."""
        if self._deep:  # the unit of timestamps inside complex values is a matter of each row
            return self._one_by_one(arrays, 0, faults)
        return self._split(arrays, 0, faults)

    def _split(self, arrays: Sequence[pa.Array], start: int, faults: Faults) -> list[pa.RecordBatch]:
        """The batches of a part of the block that begins at row `start`."""
        found: Faults = {}
        rows = len(arrays[0])
        try:
            done = self._convert(arrays, found)
        except Mixed:
            if rows <= SMALLEST_BLOCK:
                return self._one_by_one(arrays, start, faults)
            size = max(SMALLEST_BLOCK, -(-rows // PARTS))
            parts = [
                self._split([array.slice(at, size) for array in arrays], start + at, faults)
                for at in range(0, rows, size)
            ]
            return [batch for part in parts for batch in part]
        for row, fault in found.items():
            faults.setdefault(start + row, fault)
        batch = _without(batch_of(self._columns, done), [row - start for row in faults])
        return [batch] if batch.num_rows else []

    def _convert(self, arrays: Sequence[pa.Array], faults: Faults) -> list[pa.Array]:
        done = []
        for column, array, read in zip(self._columns, arrays, self._readers, strict=True):
            values, reasons = self._column(column.type, array, read)
            for row, reason in reasons.items():
                faults.setdefault(row, (column.name, reason))
            done.append(values)
        if len({done[place].type for place in self._timed}) > 1:
            for place in self._timed:
                done[place] = _in_micros(done[place])
        return done

    def _column(self, kind: HiveType, array: pa.Array, read: Read) -> tuple[pa.Array, dict[int, str]]:
        if self._escape is not None and kind.kind in TEXT_KINDS and self._escape in _letters(array):
            return _patch(kind, _nothing(kind, array), array, read)
        plain = _plain(kind)
        if plain is None:
            return _patch(kind, _nothing(kind, array), array, read)
        if kind.kind not in TEXT_KINDS:
            array = _without_empty(array)
        if not plain.letters or not _letters(array).translate(None, plain.letters):
            whole = _cast(kind, array, plain)
            if whole is not None:
                return whole, {}
        good = _cast(kind, _matching(array, plain.pattern), plain) if plain.pattern else None
        return _patch(kind, good if good is not None else _nothing(kind, array), array, read)

    def _one_by_one(self, arrays: Sequence[pa.Array], start: int, faults: Faults) -> list[pa.RecordBatch]:
        batches = RowBatches(self._columns)
        for row, fields in enumerate(zip(*(array.to_pylist() for array in arrays), strict=True), start):
            if row not in faults:
                self._one(fields, row, batches, faults)
        return batches.close()

    def _one(self, fields: tuple[bytes | None, ...], row: int, batches: RowBatches, faults: Faults) -> None:
        try:
            batches.add_row(self.row(fields))
        except RejectError as error:
            faults[row] = (error.column, error.reason)

    def check(self, fields: Sequence[bytes | None]) -> None:
        """Raises RejectError if these fields cannot become a row."""
        RowBatches(self._columns).add_row(self.row(fields))

    def row(self, fields: Sequence[bytes | None]) -> list[Any]:
        """The values of one record: the reference for `decode`. Raises RejectError."""
        values: list[Any] = []
        try:
            for read, field in zip(self._readers, fields, strict=True):
                values.append(None if field is None else read(field))
        except (Malformed, NotText) as error:
            raise RejectError(self._columns[len(values)].name, str(error)) from None
        return values


def _letters(array: pa.Array) -> bytes:
    """All bytes of a binary column, one field after the other."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return b""
    ends = np.frombuffer(offsets, np.int32)
    return bytes(memoryview(data)[ends[array.offset] : ends[array.offset + len(array)]])


def _without_empty(array: pa.Array) -> pa.Array:
    """The column with NULL for empty fields."""
    lengths = pc.binary_length(array)
    if pc.min(lengths).as_py() != 0:
        return array
    return pc.if_else(pc.equal(lengths, 0), pa.scalar(None, array.type), array)


def _matching(array: pa.Array, pattern: str) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(array, pattern), array, pa.scalar(None, array.type))


def _nothing(kind: HiveType, array: pa.Array) -> pa.Array:
    return pa.nulls(len(array), kind.arrow)


def _cast(kind: HiveType, array: pa.Array, plain: Plain) -> pa.Array | None:
    """The column read by Arrow, or None if it holds anything that is not plain."""
    try:
        return plain.cast(kind, array)
    except ValueError:  # pa.ArrowInvalid is one
        return None


def _patch(kind: HiveType, good: pa.Array, array: pa.Array, read: Read) -> tuple[pa.Array, dict[int, str]]:
    """`good` with the fields that it lacks, read one by one; and why which of them must be rejects.

    Raises Mixed.
    """
    lacking = np.flatnonzero(pc.and_(good.is_null(), array.is_valid()).to_numpy(zero_copy_only=False))
    if not len(lacking):
        return good, {}
    values, reasons = [], {}
    for row, field in zip(lacking.tolist(), array.take(pa.array(lacking)).to_pylist(), strict=True):
        value, reason = _judge(read, field)
        values.append(value)
        if reason:
            reasons[row] = reason
    good, more = _alike(kind, good, values)
    places = np.arange(len(array))
    places[lacking] = len(array) + np.arange(len(lacking))
    return pa.concat_arrays([good, more]).take(pa.array(places)), reasons


def _judge(read: Read, field: bytes) -> tuple[Any, str]:
    try:
        return read(field), ""
    except (Malformed, NotText) as error:
        return None, str(error)


def _alike(kind: HiveType, good: pa.Array, values: list[Any]) -> tuple[pa.Array, pa.Array]:
    """Both as arrays of one type: nanoseconds, or microseconds if those cannot hold all timestamps."""
    if kind.kind != "timestamp":
        return good, array_of(kind, values)
    if good.type.unit == "ns":
        if all(value is None or FIRST_NANO <= value <= LAST_NANO for value in values):
            return good, array_of(kind, values)
        good = _in_micros(good)
    if any(value is not None and value % MICRO for value in values):
        raise Mixed
    return good, array_of(kind, values, "us")


def _in_micros(array: pa.Array) -> pa.Array:
    try:
        return pc.cast(array, pa.timestamp("us"))
    except pa.ArrowInvalid:
        raise Mixed from None


def _without(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """The batch without some rows; numbers outside the batch are those of other batches."""
    inside = [row for row in rows if 0 <= row < batch.num_rows]
    if not inside:
        return batch
    keep = np.ones(batch.num_rows, bool)
    keep[inside] = False
    return batch.filter(pa.array(keep))


def _plain(kind: HiveType) -> Plain | None:
    if kind.kind in INTEGER_BITS:
        digits = {"tinyint": 2, "smallint": 4, "int": 9, "bigint": 18}[kind.kind]
        return Plain(b"-0123456789", f"^-?[0-9]{{1,{digits}}}$", _number)
    if kind.kind == "decimal":
        return Plain(b"-.0123456789", _decimal_pattern(kind), _decimal)
    return _PLAIN.get(kind.kind)


def _number(kind: HiveType, array: pa.Array) -> pa.Array:
    return pc.cast(array.view(pa.string()), kind.arrow)


def _decimal(kind: HiveType, array: pa.Array) -> pa.Array:
    longest = pc.max(pc.binary_length(array)).as_py()
    # where more than 128 bits are needed Arrow keeps the lowest 128 (seen in 26)
    if longest is not None and longest + kind.scale > MAX_DIGITS:
        _require(pc.match_substring_regex(array, _decimal_pattern(kind)))
    decimals = pc.cast(array.view(pa.string()), kind.arrow)
    decimals.validate(full=True)
    return decimals


def _decimal_pattern(kind: HiveType) -> str:
    """Texts that fit the type as they are; without digits before the point only what no text is."""
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
    text = pc.cast(array, pa.string())  # refuses what is not UTF-8
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
    """Nanoseconds if they hold all, else microseconds; of at least 19 bytes, since Hive wants seconds too."""
    if (pc.min(pc.binary_length(array)).as_py() or 19) < 19:
        raise ValueError
    texts = array.view(pa.string())
    ends = pc.min_max(texts).as_py()
    # well inside what 64 bits of nanoseconds hold; Arrow 18 wraps what is not
    near = ends["min"] is None or (ends["min"] >= "1678" and ends["max"] < "2262")
    if not near and not "0001" <= ends["min"] <= ends["max"] < "9999-13":
        raise ValueError
    return pc.cast(texts, pa.timestamp("ns" if near else "us"))


_FLOATING = Plain(b"+-.0123456789Ee", r"^-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?$", _number)
_PLAIN = {
    "boolean": Plain(b"truefalsTRUEFALS", "^(?i:true|false)$", _boolean),
    "float": _FLOATING,
    "double": _FLOATING,
    "string": Plain(b"", "", _text),
    "varchar": Plain(b"", "", _text),
    "char": Plain(b"", "", _text),
    "date": Plain(b"-0123456789", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$", _date),
    "timestamp": Plain(
        b"-:. T0123456789",
        r"^(?:1[789]|2[01])[0-9]{2}-[0-9]{2}-[0-9]{2}[ T](?:[0-9]{2}:){2}[0-9]{2}(?:\.[0-9]{1,9})?$",
        _timestamp,
    ),
}
