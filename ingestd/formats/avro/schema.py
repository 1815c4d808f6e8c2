"""Avro schemas, parsed to values that the decoder compiles.

Invariant: an `AvroType` is valid by the Avro specification. Names are resolved, and a logical type that its underlying
type does not allow is ignored, as the specification demands. The names of Kafka Connect count as logical types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, fingerprint, parse_schema, to_parsing_canonical_form

from ingestd.formats.registry import InvalidSchema

# Logical types of Debezium only: the texts of a timestamp and of a date, which may have a zone, and a record of a scale
# and an unscaled value.
TIMESTAMP_TEXT, DATE_TEXT, SCALED_DECIMAL = "text of a timestamp", "text of a date", "decimal with a scale"
# Logical types that change the meaning of a value, by the kinds that allow them. Others are ignored.
_LOGICAL = {
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    TIMESTAMP_TEXT: ("string",),
    DATE_TEXT: ("string",),
}
# The logical types of Kafka Connect and Debezium, by `connect.name`. Their converters write only this attribute.
_CONNECT = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "timestamp-millis",
    "io.debezium.time.MicroTimestamp": "timestamp-micros",
    "io.debezium.time.NanoTimestamp": "timestamp-nanos",
    "io.debezium.time.ZonedTimestamp": TIMESTAMP_TEXT,
    "io.debezium.time.IsoTimestamp": TIMESTAMP_TEXT,
    "io.debezium.time.IsoDate": DATE_TEXT,
}
_SCALED_DECIMAL = "io.debezium.data.VariableScaleDecimal"
# Names of attributes that fastavro leaves alone, for those that it must not examine.
_DEFAULT, _UNEXAMINED = "ingestd.default", "ingestd.logicalType"
NO_DEFAULT = object()
_UUID_BYTES = 16
_UNUSABLE = frozenset(" \"'`\\")  # printable characters that names must not have
_SHOWN, _LONGEST = 60, 300  # characters of a value, and of a reason, in messages
_MAX_SIZE = 2**31 - 1  # of a fixed, as in Avro's Java library


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record: its name, its aliases, its type, and the JSON of its default or NO_DEFAULT."""

    name: str
    aliases: tuple[str, ...]
    type: AvroType
    default: object = NO_DEFAULT


@dataclass(eq=False, slots=True)
class AvroType:
    """A type of an Avro schema. It can contain itself, so types are compared by identity.

    `kind` is the Avro name of the type, or `union`; `logical` is the logical type or ''. `size` is the number of bytes
    of a fixed; `precision` and `scale` belong to a decimal, `symbols` to an enum, and `fields` to a record. `children`
    contains the item type of an array, the value type of a map, or the branches of a union. `names` are the full name
    and the aliases of a type that has a name, and `default` is the default symbol of an enum, or ''.

    The last attributes are set by `resolution` only. `written` are the symbols of the writer of an enum, whose
    `symbols` are those of the reader, None for symbols that the reader does not know. `absent` are fields of the reader
    that the data does not contain, and `ignored` are the indexes of `fields` that the reader does not have. `fault`
    says why no value of the type can be read, or is ''.
    """

    kind: str
    logical: str = ""
    size: int = 0
    precision: int = 0
    scale: int = 0
    symbols: tuple[str | None, ...] = ()
    fields: tuple[AvroField, ...] = ()
    children: tuple[AvroType, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = ()
    default: str = ""
    written: tuple[str | None, ...] = ()
    absent: tuple[AvroField, ...] = ()
    ignored: frozenset[int] = frozenset()
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.logical})" if self.logical else self.kind


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a record. `fingerprint` is its CRC-64-AVRO, an unsigned integer, as in single-object encoding."""

    record: AvroType
    fingerprint: int


def read_schema(text: str, references: Sequence[str] = ()) -> Schema:
    """Parse the JSON of a schema. `references` are the schemas whose names it uses, in the order of dependency.

    Raises InvalidSchema unless each value of the schema is a record, that is, for other types and optional records.
    """
    named: dict[str, Any] = {}
    try:
        for reference in references:
            parse_schema(_examined(json.loads(reference)), named_schemas=named)
        parsed = parse_schema(_examined(json.loads(text)), named_schemas=named, expand=False)
        parser = _Parser(named)
        record = parser.type(parsed)
        parser.require_ends()
        canonical = to_parsing_canonical_form(parsed)
        # The bytes of the fingerprint are in the order of their transfer.
        code = int.from_bytes(bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO")), "little")
    except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError) as error:
        raise InvalidSchema(f"it is not an Avro schema: {_printable(str(error))}") from None
    except RecursionError:
        raise InvalidSchema("its types nest too deeply") from None
    except InvalidSchema:
        raise
    except ValueError as error:
        raise InvalidSchema(f"it is not JSON: {error}") from None
    branches = record.children if record.kind == "union" else (record,)
    if not branches or any(branch.kind != "record" for branch in branches):
        raise InvalidSchema("its values are not records")
    return Schema(record, code)


def has_scale_and_value(record: AvroType) -> bool:
    """Return whether a record has the fields of SCALED_DECIMAL, and no others."""
    return {(field.name, field.type.kind) for field in record.fields} == {("scale", "int"), ("value", "bytes")}


class _Parser:
    """Converts a schema that fastavro has parsed. fastavro has expanded all names to full names."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._types: dict[str, AvroType] = {}

    def type(self, schema: Any) -> AvroType:
        if isinstance(schema, list):
            return AvroType("union", children=tuple(map(self.type, schema)))
        if isinstance(schema, str):
            if schema in self._types:
                return self._types[schema]
            return self.type(self._named[schema]) if schema in self._named else AvroType(schema)
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self.type(kind)
        kind = "record" if kind == "error" else kind
        parsed = AvroType(kind, _logical(schema, kind), size=_size(schema))
        if parsed.logical == "decimal":
            parsed.precision, parsed.scale = schema["precision"], schema.get("scale", 0)
        if "name" in schema:
            self._types[schema["name"]] = parsed  # before its fields: they may contain the record itself
            parsed.names = (_name(schema["name"]), *map(_name, schema.get("aliases", ())))
        parsed.symbols = tuple(map(_name, schema.get("symbols", ())))
        parsed.default = schema.get("default", "") if kind == "enum" else ""
        if kind == "record":
            self._read_fields(schema, parsed)
        elif kind in ("array", "map"):
            parsed.children = (self.type(schema["items" if kind == "array" else "values"]),)
        return parsed

    def _read_fields(self, schema: Mapping[str, Any], parsed: AvroType) -> None:
        parsed.fields = tuple(map(self._field, schema["fields"]))
        if len({field.name for field in parsed.fields}) < len(parsed.fields):
            raise InvalidSchema(f"it is not an Avro schema: {parsed.names[0]} has two fields of one name")
        if has_scale_and_value(parsed) and _SCALED_DECIMAL in (schema["name"], schema.get("connect.name")):
            parsed.logical = SCALED_DECIMAL

    def _field(self, field: Mapping[str, Any]) -> AvroField:
        aliases = tuple(map(_name, field.get("aliases", ())))
        return AvroField(_name(field["name"]), aliases, self.type(field["type"]), field.get(_DEFAULT, NO_DEFAULT))

    def require_ends(self) -> None:
        """Raise InvalidSchema if a record always contains a record of its own type, so that no value of it ends."""
        ended: set[AvroType] = set()

        def follow(record: AvroType, outer: tuple[AvroType, ...]) -> None:
            if record in outer:
                raise InvalidSchema("it is not an Avro schema: a record always contains itself")
            for inner in record.fields if record not in ended else ():
                follow(inner.type, (*outer, record))
            ended.add(record)

        for kind in self._types.values():
            follow(kind, ())


def _examined(schema: Any) -> Any:
    """Return a schema without what fastavro refuses, although its records can be read.

    The defaults of a schema do not matter for the records that were written with it, and producers register invalid
    ones. A decimal with an invalid precision or scale is only its underlying type, by the specification.
    """
    if isinstance(schema, list):
        return [_examined(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    examined = {key: _examined(value) if key in ("type", "items", "values") else value for key, value in schema.items()}
    if isinstance(schema.get("fields"), list):
        examined["fields"] = [
            {
                _DEFAULT if key == "default" else key: _examined(value) if key == "type" else value
                for key, value in inner.items()
            }
            if isinstance(inner, dict)
            else inner
            for inner in schema["fields"]
        ]
    if examined.get("logicalType") == "decimal" and not _logical(examined, examined.get("type")):
        examined[_UNEXAMINED] = examined.pop("logicalType")
    return examined


def _name(name: Any) -> str:
    """Return a name of a type, a field or a symbol.

    By the specification, names consist of letters, digits and _. Producers that do not check it also use characters
    such as - and $, which do no harm. Others would be part of messages, statements and configurations.
    """
    if not isinstance(name, str):
        raise InvalidSchema(f"it is not an Avro schema: a name is {_shown(name)}")
    if not name or not name.isprintable() or not _UNUSABLE.isdisjoint(name):
        what = "a name is empty, or has spaces, quotation marks or characters that cannot be printed"
        raise InvalidSchema(f"it is not an Avro schema: {what}: {_shown(name)}")
    return name


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _printable(text: str) -> str:
    """Return a text, which may contain names of a schema, with escape sequences for what cannot be printed."""
    escaped = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    return escaped if len(escaped) <= _LONGEST else f"{escaped[:_LONGEST]}…"


def _size(schema: Mapping[str, Any]) -> int:
    """Return the size of a fixed, 0 for other types."""
    size = schema["size"] if schema["type"] == "fixed" else 0
    if type(size) is not int or not 0 <= size <= _MAX_SIZE:
        raise InvalidSchema(f"it is not an Avro schema: the size of a fixed is {_shown(size)}")
    return size


def _logical(schema: Mapping[str, Any], kind: Any) -> str:
    """Return the logical type of a schema, '' if it has none or an invalid one."""
    connect = schema.get("connect.name")
    logical = schema.get("logicalType", _CONNECT.get(connect, "") if isinstance(connect, str) else "")
    if not isinstance(logical, str) or kind not in _LOGICAL.get(logical, ()):
        return ""
    if logical == "uuid" and kind == "fixed" and schema["size"] != _UUID_BYTES:
        return ""
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or not precision:
            return ""
        if kind == "fixed" and precision > int(log10(2) * (8 * _size(schema) - 1)):
            return ""
    return logical
