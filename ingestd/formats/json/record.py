"""Decodes one JSON record into one row, which defines the meaning of every record, and pre-checks records quickly.

Invariant: the result depends only on the record and the columns. `Precheck` accepts no record that `RecordReader`
rejects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NoReturn

from ingestd.formats.decoder import RejectError
from ingestd.formats.json.nested import converter, primitive
from ingestd.formats.json.types import InvalidValue, Number
from ingestd.formats.row_batches import Row, Value
from ingestd.schema import Column

MAX_DEPTH = 200
_MAX_KNOWN_NAMES = 10_000


class RecordReader:
    """Decodes one record at a time, value by value."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._converters = tuple(converter(column.type) for column in columns)
        self._indexes = {column.name: index for index, column in enumerate(columns)}
        self._known_names: dict[str, int | None] = {}
        # In complex values, too, the last of several spellings of a name wins.
        self._parser = _ORDERED if any(column.type.is_complex for column in columns) else _UNORDERED

    def row(self, value: bytes) -> Row:
        """Decode one record into a row. Raises RejectError."""
        fields = self._fields(_parse(value, self._parser), value)
        row: list[Value] = []
        try:
            for convert, field in zip(self._converters, fields, strict=True):
                row.append(None if field is None else convert(field))
        except InvalidValue as error:
            raise RejectError(self._columns[len(row)].name, str(error)) from None
        return row

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
        return fields

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

    def __init__(self, columns: Sequence[Column]) -> None:
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
        for name, field in record.items():
            if name in is_plain:
                if field is not None and not is_plain[name](field):
                    return False
            elif name.lower() in is_plain:
                return False
        return True


def nested_too_deep(value: bytes) -> bool:
    """Return whether brackets outside strings nest deeper than MAX_DEPTH.

    The limit exists because JSON parsers recurse; that of Jackson, which Hive uses, is 1000.
    """
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
