"""One JSON record becomes one row, slowly: the meaning that the fast path must agree with.

Invariant: the outcome depends on this record and the columns only, never on its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from ingestd.records.scalar import Number, Unfit, Value, converter
from ingestd.schema import Column, HiveType

MAX_DEPTH = 200
_NS_FIRST, _NS_LAST = -(2**63) + 1, 2**63 - 1
_MICRO = 1000

Row = tuple[Value, ...]
Find = Callable[[Value], Iterable[int]]


class BadRecord(ValueError):
    """A record that cannot become a row; `column` is '' when the record itself is broken."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason


class SingleDecoder:
    """Decodes one record at a time into Python values (see `scalar.converter` for their units)."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._converters = tuple(converter(column.type) for column in columns)
        self._index = {column.name: place for place, column in enumerate(columns)}
        self._known: dict[str, int | None] = {}
        self._instants = Instants(columns)
        # in complex values too the last spelling of a name wins
        self._parser = _ORDERED if any(column.type.is_complex for column in columns) else _PLAIN

    def decode(self, value: bytes) -> Row:
        """The row of one record. Raises BadRecord."""
        fields = self._fields(_parse(value, self._parser), value)
        row: list[Value] = []
        try:
            for convert, field in zip(self._converters, fields, strict=True):
                row.append(None if field is None else convert(field))
        except Unfit as error:
            raise BadRecord(self._columns[len(row)].name, str(error)) from None
        self._check_units(row)
        return tuple(row)

    def _fields(self, record: dict[str, object], value: bytes) -> list[object]:
        fields: list[object] = [None] * len(self._columns)
        seen = set()
        for key, field in record.items():
            place = self._place(key)
            if place is None:
                continue
            if place in seen:  # two spellings of one name: a dict forgets which came last
                return self._last_wins(value)
            seen.add(place)
            fields[place] = field
        return fields

    def _last_wins(self, value: bytes) -> list[object]:
        fields: list[object] = [None] * len(self._columns)
        for key, field in _parse(value, _ORDERED).items():
            place = self._place(key)
            if place is not None:
                fields[place] = field
        return fields

    def _place(self, key: str) -> int | None:
        try:
            return self._known[key]
        except KeyError:
            place = self._index.get(key.lower())
            if len(self._known) < 10_000:  # keys may be data; the memory of them must not grow
                self._known[key] = place
            return place

    def _check_units(self, row: Sequence[Value]) -> None:
        """Refuse a row whose timestamps fit neither ns nor us together (they share one unit per batch)."""
        if not self._instants.need_micros(row):
            return
        place = self._instants.place_of_nanos(row)
        if place is not None:
            reason = "nanoseconds are kept only if every timestamp of the record is in the years 1678 to 2261"
            raise BadRecord(self._columns[place].name, reason)


class Instants:
    """The timestamps of a row, those inside complex values too, and the unit that they need."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._plain = [place for place, column in enumerate(columns) if column.type.kind == "timestamp"]
        nested = [(place, _finder(column.type)) for place, column in enumerate(columns) if column.type.is_complex]
        self._nested = [(place, find) for place, find in nested if find is not None]

    def need_micros(self, row: Sequence[Value]) -> bool:
        """Whether a timestamp of the row lies outside what timestamp[ns] holds."""
        for place in self._plain:
            stamp = row[place]
            if isinstance(stamp, int) and not _NS_FIRST <= stamp <= _NS_LAST:
                return True
        for place, find in self._nested:
            if any(not _NS_FIRST <= stamp <= _NS_LAST for stamp in find(row[place])):
                return True
        return False

    def place_of_nanos(self, row: Sequence[Value]) -> int | None:
        """A column of the row that has digits below the microsecond, if any."""
        for place in self._plain:
            stamp = row[place]
            if isinstance(stamp, int) and stamp % _MICRO:
                return place
        for place, find in self._nested:
            if any(stamp % _MICRO for stamp in find(row[place])):
                return place
        return None


def _finder(kind: HiveType) -> Find | None:
    """What gives the timestamps inside a value of this type; None when the type has none."""
    if kind.kind == "timestamp":
        return lambda value: (value,) if isinstance(value, int) else ()
    found = [_finder(child) for child in kind.children]
    finders = [(place, find) for place, find in enumerate(found) if find is not None]
    if not finders:
        return None

    def of_tuple(value: Value) -> Iterator[int]:
        if isinstance(value, tuple):
            for place, find in finders:
                yield from find(value[place])

    def of_list(value: Value) -> Iterator[int]:
        for item in value if isinstance(value, list) else ():
            yield from of_item(item)

    of_item = of_tuple if kind.kind == "map" else finders[0][1]  # a map is a list of pairs
    return of_tuple if kind.kind == "struct" else of_list


def nested_too_deep(value: bytes) -> bool:
    """Whether brackets outside strings go deeper than MAX_DEPTH (parsers recurse; Jackson's own limit is 1000)."""
    if value.count(b"[") + value.count(b"{") <= MAX_DEPTH:
        return False
    depth, quoted, escaped = 0, False, False
    for byte in value:
        if quoted:
            quoted = escaped or byte != 0x22
            escaped = byte == 0x5C and not escaped
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _last_positions(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object whose keys stand in the order of their last occurrence."""
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    ordered: dict[str, object] = {}
    for key, item in pairs:
        ordered.pop(key, None)
        ordered[key] = item
    return ordered


_PLAIN = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_refuse_constant)
_ORDERED = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=_refuse_constant, object_pairs_hook=_last_positions
)


def _parse(value: bytes, decoder: json.JSONDecoder) -> dict[str, object]:
    if nested_too_deep(value):
        raise BadRecord("", f"JSON is nested deeper than {MAX_DEPTH} levels")
    try:
        record = decoder.decode(value.decode())
    except UnicodeDecodeError as error:
        raise BadRecord("", f"record is not UTF-8 (byte {error.start})") from None
    except ValueError as error:
        raise BadRecord("", f"record is not JSON: {error}") from None
    except RecursionError:
        raise BadRecord("", f"JSON is nested deeper than {MAX_DEPTH} levels") from None
    if isinstance(record, dict):
        return record
    raise BadRecord("", "record is not a JSON object")
