"""One JSON record becomes one row, slowly: the meaning that the fast path must agree with.

Invariant: the outcome depends on this record and the columns only, never on its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NoReturn

from ingestd.formats.decoder import RejectError
from ingestd.formats.json.values import Number, Unfit, Value, converter
from ingestd.formats.row_batches import RowUnits
from ingestd.schema import Column

MAX_DEPTH = 200

Row = tuple[Value, ...]


class SingleDecoder:
    """Decodes one record at a time into Python values (see `scalar.converter` for their units)."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._converters = tuple(converter(column.type) for column in columns)
        self._index = {column.name: place for place, column in enumerate(columns)}
        self._known: dict[str, int | None] = {}
        self._units = RowUnits(columns)
        # in complex values too the last spelling of a name wins
        self._parser = _ORDERED if any(column.type.is_complex for column in columns) else _PLAIN

    def decode(self, value: bytes) -> Row:
        """The row of one record. Raises RejectError."""
        fields = self._fields(_parse(value, self._parser), value)
        row: list[Value] = []
        try:
            for convert, field in zip(self._converters, fields, strict=True):
                row.append(None if field is None else convert(field))
        except Unfit as error:
            raise RejectError(self._columns[len(row)].name, str(error)) from None
        self._units.of(row)
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
        raise RejectError("", f"JSON is nested deeper than {MAX_DEPTH} levels")
    try:
        record = decoder.decode(value.decode())
    except UnicodeDecodeError as error:
        raise RejectError("", f"record is not UTF-8 (byte {error.start})") from None
    except ValueError as error:
        raise RejectError("", f"record is not JSON: {error}") from None
    except RecursionError:
        raise RejectError("", f"JSON is nested deeper than {MAX_DEPTH} levels") from None
    if isinstance(record, dict):
        return record
    raise RejectError("", "record is not a JSON object")
