"""DecodeResult rows become Arrow batches in which all timestamps have one unit.

Invariant: rows keep their order over the batches, and a new batch begins only where a row needs the other unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import pyarrow as pa

from ingestd.formats.decoder import RejectError
from ingestd.schema import Column, HiveType

_EPOCH = date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH  # the years 0001 to 9999
FIRST_SECOND, LAST_SECOND = FIRST_DAY * 86_400, (LAST_DAY + 1) * 86_400 - 1
FIRST_NANO, LAST_NANO = -(2**63) + 1, 2**63 - 1
MICRO = 1000


class RowUnits:
    """The timestamps of a row, those inside complex values too, and the unit that they need."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        timed = [place for place, column in enumerate(columns) if has_timestamp(column.type)]
        self._plain = [place for place in timed if not columns[place].type.is_complex]
        self._deep = [place for place in timed if columns[place].type.is_complex]

    def of(self, row: Sequence[Any]) -> str:
        """The one unit that holds the row's timestamps, '' when either does. Raises RejectError when none does."""
        far, fine = False, None
        for place, stamp in self._stamps(row):
            far = far or not FIRST_NANO <= stamp <= LAST_NANO
            fine = place if fine is None and stamp % MICRO else fine
        if not far:
            return "" if fine is None else "ns"
        if fine is None:
            return "us"
        reason = "nanoseconds are kept only if every timestamp of the record is in the years 1678 to 2261"
        raise RejectError(self._columns[fine].name, reason)

    def _stamps(self, row: Sequence[Any]) -> Iterator[tuple[int, int]]:
        for place in self._plain:
            if row[place] is not None:
                yield place, row[place]
        for place in self._deep:
            for stamp in instants(row[place], self._columns[place].type):
                yield place, stamp


class RowBatches:
    """Collects rows of `scalar.Value` (a list for an array, of pairs for a map, a tuple for a struct)."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._units = RowUnits(columns)
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[Sequence[Any]] = []
        self._unit = ""

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append a batch that is ready."""
        self._flush()
        self._batches.append(batch)

    def add_row(self, row: Sequence[Any]) -> None:
        """Append one row. Raises RejectError if its timestamps fit neither ns nor us together."""
        unit = self._units.of(row)
        if unit and self._unit and unit != self._unit:
            self._flush()
        self._unit = unit or self._unit
        self._rows.append(row)

    def close(self) -> list[pa.RecordBatch]:
        """All batches."""
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
    """One batch of the columns; a field's type is its array's, which tells the unit of timestamps."""
    fields = [pa.field(column.name, array.type) for column, array in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def array_of(kind: HiveType, values: Sequence[Any], unit: str = "ns") -> pa.Array:
    """An Arrow array of the values; their timestamps are nanoseconds and become `unit`, ns or us."""
    if unit == "us" and has_timestamp(kind):
        values = [_micros(value, kind) for value in values]
    return pa.array(values, arrow_of(kind, unit))


def arrow_of(kind: HiveType, unit: str) -> pa.DataType:
    """The Arrow type of a column whose timestamps have the unit."""
    if kind.kind == "timestamp":
        return pa.timestamp(unit)
    if not kind.is_complex:
        return kind.arrow
    children = [arrow_of(child, unit) for child in kind.children]
    if kind.kind == "struct":
        return pa.struct([pa.field(name, child) for name, child in zip(kind.names, children, strict=True)])
    return pa.map_(*children) if kind.kind == "map" else pa.list_(*children)


def has_timestamp(kind: HiveType) -> bool:
    """Whether values of the type hold timestamps."""
    return kind.kind == "timestamp" or any(map(has_timestamp, kind.children))


def instants(value: Any, kind: HiveType) -> Iterator[int]:
    """All timestamps in a value."""
    if value is None:
        return
    if kind.kind == "timestamp":
        yield value
        return
    for part, child in _parts(value, kind):
        yield from instants(part, child)


def _parts(value: Any, kind: HiveType) -> Iterator[tuple[Any, HiveType]]:
    if kind.kind == "array":
        yield from ((item, kind.children[0]) for item in value)
    elif kind.kind == "map":
        for entry in value:
            yield from zip(entry, kind.children, strict=True)
    elif kind.kind == "struct":
        yield from zip(value, kind.children, strict=True)


def _micros(value: Any, kind: HiveType) -> Any:
    if value is None or not has_timestamp(kind):
        return value
    if kind.kind == "timestamp":
        return value // MICRO
    if kind.kind == "array":
        return [_micros(item, kind.children[0]) for item in value]
    if kind.kind == "struct":
        return tuple(_micros(part, child) for part, child in zip(value, kind.children, strict=True))
    key, item = kind.children
    return [(_micros(left, key), _micros(right, item)) for left, right in value]
