"""Converts rows to Arrow batches, and defines the range and the units of dates and timestamps.

Invariant: all timestamps of a batch have one unit, including those inside complex values. Rows keep their order across
batches, and a new batch begins only at a row that needs the other unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ingestd.formats.decoder import RejectError
from ingestd.schema import Column, HiveType

# A timestamp is its wall time in nanoseconds since 1970, an int of any size. A date is the number of days since 1970.
# An array is a list, a map is a list of (key, value) pairs, and a struct is a tuple in the order of its fields.
Value = bool | int | float | str | bytes | Decimal | None | list["Value"] | tuple["Value", ...]
Row = Sequence[Any]  # one Value per column

EPOCH = date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = date.min.toordinal() - EPOCH, date.max.toordinal() - EPOCH  # years 0001 to 9999
FIRST_SECOND, LAST_SECOND = FIRST_DAY * 86_400, (LAST_DAY + 1) * 86_400 - 1
FIRST_NANO, LAST_NANO = -(2**63) + 1, 2**63 - 1  # the range of timestamp[ns], years 1677 to 2262
NANOS_PER_SECOND = 1_000_000_000
NANOS_PER_DAY = 86_400 * NANOS_PER_SECOND
NANOS_PER_MICRO = 1000


class TimestampUnits:
    """Determines the unit that the timestamps of a row need."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        timed = [index for index, column in enumerate(columns) if has_timestamp(column.type)]
        self._primitive = [index for index in timed if not columns[index].type.is_complex]
        self._complex = [index for index in timed if columns[index].type.is_complex]

    def of(self, row: Row) -> str:
        """Return the unit that fits all timestamps of the row, ns or us; '' if both fit. Raises RejectError if none."""
        out_of_range, fine = False, None
        for index, nanos in self._timestamps(row):
            out_of_range = out_of_range or not FIRST_NANO <= nanos <= LAST_NANO
            fine = index if (fine is None or index < fine) and nanos % NANOS_PER_MICRO else fine
        if not out_of_range:
            return "" if fine is None else "ns"
        if fine is None:
            return "us"
        reason = "nanoseconds can be stored only if every timestamp of the record is in the years 1678 to 2261"
        raise RejectError(self._columns[fine].name, reason)

    def _timestamps(self, row: Row) -> Iterator[tuple[int, int]]:
        """Yield each timestamp of the row, preceded by the index of its column."""
        for index in self._primitive:
            if row[index] is not None:
                yield index, row[index]
        for index in self._complex:
            for nanos in _timestamps_in(row[index], self._columns[index].type):
                yield index, nanos


class RowBatches:
    """Collects rows and complete batches in the order in which they are added."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._units = TimestampUnits(columns)
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[Row] = []
        self._unit = ""

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        self._flush()
        self._batches.append(batch)

    def add_row(self, row: Row) -> None:
        """Append a row. Raises RejectError if neither ns nor us fits all its timestamps."""
        unit = self._units.of(row)
        if unit and self._unit and unit != self._unit:
            self._flush()
        self._unit = unit or self._unit
        self._rows.append(row)

    def close(self) -> list[pa.RecordBatch]:
        """Convert the remaining rows and return all batches."""
        self._flush()
        return self._batches

    def _flush(self) -> None:
        if self._rows:
            unit = self._unit or "ns"
            columns = zip(self._columns, zip(*self._rows, strict=True), strict=True)
            arrays = [array_of(column.type, values, unit) for column, values in columns]
            self._batches.append(batch_of(self._columns, arrays))
        self._rows, self._unit = [], ""


def batch_of(columns: Sequence[Column], arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    """Return a batch of the columns. Each field has the type of its array, including the unit of timestamps."""
    fields = [pa.field(column.name, array.type) for column, array in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def array_of(kind: HiveType, values: Sequence[Any], unit: str = "ns") -> pa.Array:
    """Convert `Value`s to an Arrow array whose timestamps have the given unit, ns or us."""
    if unit == "us" and has_timestamp(kind):
        values = [_in_micros(value, kind) for value in values]
    return pa.array(values, arrow_of(kind, unit))


def arrow_of(kind: HiveType, unit: str) -> pa.DataType:
    """Return the Arrow type of a column whose timestamps have the given unit, ns or us."""
    if kind.kind == "timestamp":
        return pa.timestamp(unit)
    if not kind.is_complex:
        return kind.arrow
    children = [arrow_of(child, unit) for child in kind.children]
    if kind.kind == "struct":
        return pa.struct([pa.field(name, child) for name, child in zip(kind.names, children, strict=True)])
    return pa.map_(*children) if kind.kind == "map" else pa.list_(*children)


def has_timestamp(kind: HiveType) -> bool:
    """Return whether values of the type contain timestamps."""
    return kind.kind == "timestamp" or any(map(has_timestamp, kind.children))


def _timestamps_in(value: Any, kind: HiveType) -> Iterator[int]:
    if value is None:
        return
    if kind.kind == "timestamp":
        yield value
        return
    for part, child in _parts(value, kind):
        yield from _timestamps_in(part, child)


def _parts(value: Any, kind: HiveType) -> Iterator[tuple[Any, HiveType]]:
    if kind.kind == "array":
        yield from ((item, kind.children[0]) for item in value)
    elif kind.kind == "map":
        for entry in value:
            yield from zip(entry, kind.children, strict=True)
    elif kind.kind == "struct":
        yield from zip(value, kind.children, strict=True)


def _in_micros(value: Any, kind: HiveType) -> Any:
    if value is None or not has_timestamp(kind):
        return value
    if kind.kind == "timestamp":
        return value // NANOS_PER_MICRO
    if kind.kind == "array":
        return [_in_micros(item, kind.children[0]) for item in value]
    if kind.kind == "struct":
        return tuple(_in_micros(part, child) for part, child in zip(value, kind.children, strict=True))
    key, item = kind.children
    return [(_in_micros(left, key), _in_micros(right, item)) for left, right in value]
