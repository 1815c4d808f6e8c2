"""Decodes one JSON record into one row, which defines the meaning of every record, and pre-checks records quickly.

Invariant: the result depends only on the record and the columns. `Precheck` accepts no record that `RecordReader`
rejects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np

from ingestd.formats.decoder import VALUES_OF_PART, RejectError, join_lines, total_bytes
from ingestd.formats.json.envelope import AFTER, BEFORE, envelope_in, event_of, has_logical_types
from ingestd.formats.json.header import may_be_framed
from ingestd.formats.json.layout import PLAIN, Layout, find
from ingestd.formats.json.nested import FieldIndexes, converter, primitive
from ingestd.formats.json.types import InvalidValue, Number
from ingestd.formats.row_batches import Row, Value
from ingestd.formats.unmatched import is_envelope, no_column
from ingestd.formats.values import MAX_VALUES, TOO_MANY_VALUES, Ints, values_allowed, width_of
from ingestd.schema import Column, HiveType

MAX_DEPTH = 200
_MAX_KNOWN_NAMES = 10_000
_BEFORE_ITEMS = b"[{,"  # an item of an array or a map follows one of these letters
_MEMBERS = (b":{", b": {", b":null", b": null")  # objects and nulls behind a name, which are no items of arrays
# A reason that also fits a record with two headers.
_FRAMED = "the JSON text begins with the header of a schema registry; format.framing: confluent skips one header"
MARK = b"\xef\xbb\xbf"  # the byte order mark, which may precede a record


class RecordReader:
    """Decodes one record at a time, value by value."""

    def __init__(self, columns: Sequence[Column], layout: Layout = PLAIN) -> None:
        self._columns = tuple(columns)
        self._layout = layout
        self._places = {row: layout.tree(columns, row) for row in (AFTER, BEFORE)}
        formats, lenient = layout.timestamp_formats, layout.lenient
        self._converters = tuple(converter(column.type, formats, lenient=lenient) for column in columns)
        matching = layout.matching(columns)
        self._rejects_unmatched = bool(matching)
        # Some columns have the names of fields that describe an envelope.
        self._rejects_envelopes = layout.envelope != "debezium" and 0 < len(matching) < len(columns)
        self._indexes = {column.name: index for index, column in enumerate(columns)}
        self._lenient_indexes = FieldIndexes([column.name for column in columns], by_position=True)
        self._known_names: dict[str, int | None] = {}
        # The most values of an item of an array or a map, and whether one of a map has several.
        self._widest = max((_widest(column.type) for column in columns), default=0)
        self._has_wide_maps = any(_widest(column.type, ("map",)) > 1 for column in columns)
        # In complex values, too, the last of several spellings of a name wins.
        is_nested = not layout.is_flat or any(column.type.is_complex for column in columns)
        self._parser = _ORDERED if is_nested else _UNORDERED

    def row(self, value: bytes) -> Row:
        """Decode one record into a row. Raises RejectError."""
        fields = self._lenient(value) if self._layout.lenient else self._strict(value)
        excess = self._excess(fields, value) if self._may_exceed(value) else None
        if excess is not None:
            raise excess
        row: list[Value] = []
        try:
            for convert, field in zip(self._converters, fields, strict=True):
                row.append(None if field is None else convert(field))
        except InvalidValue as error:
            raise RejectError(self._columns[len(row)].name, str(error)) from None
        return row

    def most_values(self, values: Sequence[bytes]) -> Ints | None:
        """Return for each record a number that its arrays and maps do not have more values than.

        A few bytes can be an item, and so a struct of many columns. Returns None if all numbers together are not more
        than VALUES_OF_PART, which costs little for most records.
        """
        if self._widest <= 1 or total_bytes(values) * self._widest <= VALUES_OF_PART:
            return None
        text = join_lines(values)
        if any(most <= VALUES_OF_PART for most in self._limits(text)):  # each takes longer than the one before
            return None
        return np.fromiter((min(self._limits(value)) for value in values), np.int64, len(values))

    def _limits(self, text: bytes) -> Iterator[int]:
        """Yield numbers that arrays and maps in the text of records do not have more values than.

        Each item is behind a bracket or a comma. One of several values is an object or null, and outside of maps, it is
        not behind a name.
        """
        items = _items(text)
        yield items * self._widest
        structs = text.count(b"{") + text.count(b"null")
        yield structs * self._widest + items
        if not self._has_wide_maps:
            members = sum(map(text.count, _MEMBERS))
            yield (structs - members) * self._widest + items

    def _may_exceed(self, value: bytes) -> bool:
        if self._widest * len(value) <= MAX_VALUES:
            return False
        return _items(value) * self._widest > values_allowed(len(value))

    def _excess(self, fields: Sequence[object], value: bytes) -> RejectError | None:
        count = 0
        for column, field in zip(self._columns, fields, strict=True):
            count += _values_in(column.type, field)
            if count > values_allowed(len(value)):
                return RejectError(column.name, TOO_MANY_VALUES)
        return None

    def _strict(self, value: bytes) -> list[object]:
        """Return the JSON value of each column, None if there is none."""
        record = _parse(value, self._parser)
        return self._fields(record, value) if self._layout.is_flat else self._by_place(record, value)

    def _lenient(self, value: bytes) -> list[object]:
        """Return the same of a record that Jackson reads: text after the record is ignored, and `null` is a row.

        Of equal keys, the first one determines the order, in which the last one of a column wins.
        """
        record = _parse_any(value, _first_value)
        fields: list[object] = [None] * len(self._columns)
        if record is None and self._layout.is_flat:
            return fields
        if not isinstance(record, dict):
            raise RejectError("", "record is not a JSON object")
        if not self._layout.is_flat:
            return self._by_place(record, value)
        is_matched = False
        try:
            for name, field in record.items():
                index = self._lenient_indexes.of(name)
                if index is not None:
                    is_matched = True
                    fields[index] = field
        except InvalidValue as error:
            raise RejectError("", str(error)) from None
        if not is_matched or self._loses_row(record):
            self._reject_unmatched(record, record)
        return fields

    def _by_place(self, record: dict[str, object], value: bytes) -> list[object]:
        """Return the JSON value of each column by its place, None if there is none."""
        fields: list[object] = [None] * len(self._columns)
        envelope, operations = self._layout.envelope, self._layout.operations
        event, row = event_of(record, envelope, operations, with_types=has_logical_types(value))
        if self._rejects_unmatched:
            unmatched = self._layout.unmatched_fields(self._places[row], event, row)
            if unmatched or self._loses_row(event):
                self._reject_unmatched(event, unmatched or event)
        for index, field in find(self._places[row], event):
            fields[index] = field
        return fields

    def _fields(self, record: dict[str, object], value: bytes) -> list[object]:
        """Return the JSON value of each column, None if the record has no field for the column."""
        fields: list[object] = [None] * len(self._columns)
        seen = set()
        for name, field in record.items():
            index = self._index(name)
            if index is None:
                continue
            if index in seen:  # two spellings of one name; a dict does not tell which came last
                return self._last_fields(value)
            seen.add(index)
            fields[index] = field
        if not seen or self._loses_row(record):
            self._reject_unmatched(record, record)
        return fields

    def _loses_row(self, record: Mapping[str, object]) -> bool:
        """Return whether the columns store only what describes the envelope of a record."""
        return self._rejects_envelopes and is_envelope(record)

    def _reject_unmatched(self, record: Mapping[str, object], fields: Collection[str]) -> None:
        """Raise RejectError for a record or row with these fields, none of which is a column, if that is a reject."""
        if not self._rejects_unmatched or not fields:
            return
        unwrapped = self._layout.envelope
        envelope = "" if unwrapped == "debezium" else envelope_in(record)
        if envelope:
            what = "row in the record" if self._loses_row(record) else "record"
            raise RejectError("", f"no field of the {what} is a column: {envelope}")
        what = "record" if unwrapped == "none" else f"row in the {unwrapped} envelope"
        raise RejectError("", no_column(fields, [column.name for column in self._columns], what))

    def _last_fields(self, value: bytes) -> list[object]:
        fields: list[object] = [None] * len(self._columns)
        for name, field in _parse(value, _ORDERED).items():
            index = self._index(name)
            if index is not None:
                fields[index] = field
        return fields

    def _index(self, name: str) -> int | None:
        """Return the index of the column to which a field name refers, ignoring case; None if there is none."""
        try:
            return self._known_names[name]
        except KeyError:
            index = self._indexes.get(name.lower())
            if len(self._known_names) < _MAX_KNOWN_NAMES:  # bounded: field names may be data
                self._known_names[name] = index
            return index


class Precheck:
    """A quick check that accepts most valid records. A record that it does not accept may still be valid.

    It halves the time of `JsonDecoder.check` for valid records, and so the time of writing records one by one.
    It accepts no record of a table with complex columns: a check of their values would be as slow as decoding them.
    """

    def __init__(self, columns: Sequence[Column], layout: Layout = PLAIN) -> None:
        self._matching = {columns[index].name for index in layout.matching(columns)}
        self._has_complex = any(column.type.is_complex for column in columns)
        self._is_plain = {
            column.name: primitive(column.type).is_plain for column in columns if not column.type.is_complex
        }

    def accepts(self, value: bytes) -> bool:
        """Return whether the record is certainly valid."""
        may_nest = len(value) > 2 * MAX_DEPTH and value.count(b"[") + value.count(b"{") > MAX_DEPTH
        if self._has_complex or may_nest:
            return False
        try:
            record = _PLAIN_NUMBERS.decode(value.decode())
        except (ValueError, RecursionError):
            return False
        if type(record) is not dict:
            return False
        is_plain = self._is_plain
        is_matched = not record or not self._matching
        for name, field in record.items():
            if name in is_plain:
                if field is not None and not is_plain[name](field):
                    return False
                is_matched = is_matched or name in self._matching
            elif name.lower() in is_plain:
                return False
        return is_matched


def _items(text: bytes) -> int:
    """Return a number that arrays and maps in a text do not have more items than."""
    return sum(map(text.count, _BEFORE_ITEMS))


def _widest(kind: HiveType, containers: Collection[str] = ("array", "map")) -> int:
    """Return the most values of an item of an array or a map in a type; 0 if it contains none of the `containers`."""
    own = width_of(kind.children[-1]) if kind.kind in containers else 0
    return max([own, *(_widest(child, containers) for child in kind.children)])


def _values_in(kind: HiveType, value: object) -> int:
    """Return the number of values in the arrays and maps of a JSON value that is stored in a type."""
    if kind.kind == "struct" and isinstance(value, dict):
        types = {name: child for name, child in zip(kind.names, kind.children, strict=True) if child.is_complex}
        return sum(_values_in(types[name.lower()], field) for name, field in value.items() if name.lower() in types)
    if kind.kind == "array" and isinstance(value, list):
        items: Collection[object] = value
    elif kind.kind == "map" and isinstance(value, dict):
        items = value.values()
    else:
        return 0
    item = kind.children[-1]
    inside = sum(_values_in(item, field) for field in items) if item.is_complex else 0
    return len(items) * width_of(item) + inside


def nested_too_deep(value: bytes) -> bool:
    """Return whether brackets outside strings nest deeper than MAX_DEPTH.

    The limit exists because JSON parsers recurse; that of Jackson, which Hive uses, is 1000.
    """
    if value.count(b"[") + value.count(b"{") <= MAX_DEPTH:
        return False
    letters = np.frombuffer(value.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    in_string = np.bitwise_xor.accumulate((letters == ord('"')).view(np.uint8)).view(np.bool_)
    brackets = letters[~in_string]
    is_open = (brackets == ord("[")) | (brackets == ord("{"))
    is_close = (brackets == ord("]")) | (brackets == ord("}"))
    depth = np.cumsum(is_open.astype(np.int8) - is_close.astype(np.int8), dtype=np.int32)
    return bool(depth.max(initial=0) > MAX_DEPTH)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _by_last_occurrence(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object whose keys are in the order of their last occurrence."""
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    ordered: dict[str, object] = {}
    for key, item in pairs:
        ordered.pop(key, None)
        ordered[key] = item
    return ordered


_PLAIN_NUMBERS = json.JSONDecoder(parse_constant=_reject_constant)
_UNORDERED = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_reject_constant)
_ORDERED = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=_reject_constant, object_pairs_hook=_by_last_occurrence
)


def parse_object(value: bytes) -> dict[str, object]:
    """Return a record that is one JSON object; its numbers are of the type Number. Raises RejectError."""
    return _parse(value, _UNORDERED)


def array_fault(value: bytes) -> RejectError:
    """Return why a record is not one JSON array."""
    try:
        _parse_any(value, _UNORDERED.decode)
    except RejectError as error:
        return error
    return RejectError("", "record is not a JSON array")


def _parse(value: bytes, decoder: json.JSONDecoder) -> dict[str, object]:
    record = _parse_any(value, decoder.decode)
    if isinstance(record, dict):
        return record
    raise RejectError("", "record is not a JSON object")


def _first_value(text: str) -> object:
    value, _ = _UNORDERED.raw_decode(text.lstrip(" \t\r\n"))
    return value


def _parse_any(value: bytes, parse: Callable[[str], object]) -> object:
    value = value.removeprefix(MARK)
    if nested_too_deep(value):
        raise RejectError("", f"JSON is nested deeper than {MAX_DEPTH} levels")
    try:
        return parse(value.decode())
    except ValueError as error:  # including UnicodeDecodeError
        if may_be_framed(value):
            raise RejectError("", _FRAMED) from None
        if isinstance(error, UnicodeDecodeError):
            raise RejectError("", f"record is not UTF-8 (byte {error.start})") from None
        raise RejectError("", f"record is not JSON: {error}") from None
    except RecursionError:
        raise RejectError("", f"JSON is nested deeper than {MAX_DEPTH} levels") from None
