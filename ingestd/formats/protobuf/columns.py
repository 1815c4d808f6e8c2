"""The Hive columns that store the messages of Protobuf types exactly.

Invariant: the decoder stores every value of a type in its column, except texts that are not UTF-8, timestamps outside
the years 0001 to 9999, dates without a year, a month or a day, and keys of maps beyond the limits of bigint.

| Protobuf | Hive |
|---|---|
| bool, float, double | boolean, float, double |
| int32, sint32, sfixed32 | int |
| int64, sint64, sfixed64, uint32, fixed32 | bigint |
| uint64, fixed64 | decimal(20,0); bigint for keys of maps |
| string, enum | string |
| bytes | binary |
| Timestamp of google.protobuf | timestamp |
| Date of google.type | date |
| Duration, FieldMask, Struct, Value and ListValue of google.protobuf | string, as JSON text |
| a wrapper, such as google.protobuf.Int64Value | the type of its value |
| repeated, map, any other message | array, map, struct |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ingestd.formats.columnar_decoder import require_size
from ingestd.formats.protobuf.readers import field_of, is_wrapper
from ingestd.formats.protobuf.schema import ProtoField, ProtoType
from ingestd.formats.protobuf.well_known import DATE, TEXT_MESSAGES, TIMESTAMP
from ingestd.formats.registry import InvalidSchema
from ingestd.schema import Column, HiveType

_BIGINT, _UNSIGNED = HiveType("bigint"), HiveType("decimal", precision=20)
_KINDS = {
    "bool": HiveType("boolean"),
    "float": HiveType("float"),
    "double": HiveType("double"),
    "string": HiveType("string"),
    "enum": HiveType("string"),
    "bytes": HiveType("binary"),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), HiveType("int")),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), _BIGINT),
    **dict.fromkeys(("uint64", "fixed64"), _UNSIGNED),
}
_WELL_KNOWN = {
    TIMESTAMP: HiveType("timestamp"),
    DATE: HiveType("date"),
    **{name: HiveType("string") for name in TEXT_MESSAGES if name != TIMESTAMP},
}


def row_of(kind: ProtoType) -> HiveType:
    """Return the struct of the columns that can store all fields of a type, with names in lower case.

    Raises InvalidSchema with the path of a field that no column can store.
    """
    require_size(kind, _parts)
    return _message(kind, None, "", ())


def _parts(message: ProtoType) -> list[ProtoType]:
    """Return the types of the fields of a message that are messages."""
    return [field.message for field in message.fields if field.message]


def needed_columns(kind: ProtoType, columns: Sequence[Column], others: Collection[str]) -> tuple[Column, ...]:
    """Return the columns that can store all fields of a type, with the names of those in which they are stored now.

    Fields with the lower-case names `others` need none. A field that has a column, but no column type, needs that
    column. Of a message that contains itself, as many levels are stored as the columns have, if it is stored in one of
    them. Raises InvalidSchema with the path of a field without a column that no column can store.
    """
    require_size(kind, _parts)
    row = HiveType("struct", children=tuple(c.type for c in columns), names=tuple(c.name for c in columns))
    fields = tuple(field for field in kind.fields if field.name.lower() not in others)
    widened = _message(replace(kind, fields=fields), row, "", ())
    return tuple(map(Column, widened.names, widened.children))


def unstored_fields(message: ProtoType, stored: HiveType, place: str = "") -> Iterator[str]:
    """Yield the fields of a type that a struct does not store, such as `who.zip`; `place` is `who.` there."""
    types: dict[str, HiveType] = {}
    for name, kind in zip(stored.names, stored.children, strict=True):
        stored_field = field_of(message.fields, name)
        if stored_field is not None:
            types[stored_field.name] = kind
    for field in message.fields:
        if field.name not in types:
            yield f"{place}{field.name}"
            continue
        kind, inner = types[field.name], field.message
        if inner is not None and inner.is_map_entry and kind.kind == "map":
            kind, inner = kind.children[1], inner.fields[1].message
        elif kind.kind == "array":
            kind = kind.children[0]
        if inner is not None and kind.kind == "struct":
            yield from unstored_fields(inner, kind, f"{place}{field.name}.")


def _field(field: ProtoField, stored: HiveType | None, path: str, outer: tuple[str, ...]) -> HiveType:
    """Return the type that can store a field, which is now stored in a column or field of the type `stored`, or none.

    `outer` are the names of the messages around it.
    """
    kind = "map" if field.message and field.message.is_map_entry else "array" if field.is_repeated else ""
    if not kind:
        return _value(field, stored, path, outer)
    if stored is not None and stored.kind != kind:
        return stored
    if kind == "array":
        return HiveType(kind, children=(_value(field, stored and stored.children[0], f"{path}[]", outer),))
    assert field.message is not None
    key, value = field.message.fields
    of_key = _BIGINT if _KINDS[key.kind] == _UNSIGNED else _KINDS[key.kind]
    of_value = _value(value, stored and stored.children[1], f"{path}{{}}", outer)
    return HiveType(kind, children=(of_key, of_value))


def _value(field: ProtoField, stored: HiveType | None, path: str, outer: tuple[str, ...]) -> HiveType:
    message = field.message
    if message is None:
        return _KINDS[field.kind]
    if stored is None or stored.kind != "struct":
        if message.name in _WELL_KNOWN:
            return _WELL_KNOWN[message.name]
        if is_wrapper(message):
            return _KINDS[message.fields[0].kind]
        if stored is not None:
            return stored
    return _message(message, stored, path, outer)


def _message(message: ProtoType, stored: HiveType | None, path: str, outer: tuple[str, ...]) -> HiveType:
    """Return the struct that can store messages."""
    is_inside_itself = message.name in outer
    if is_inside_itself and stored is None:
        raise InvalidSchema(f"{path}: a message that contains itself has no column type")
    if stored is None and not message.fields:
        at = f"{path}: " if path else ""
        raise InvalidSchema(f"{at}the message {message.name} has no fields, and therefore no column type")
    types: dict[str, HiveType] = {}
    used: set[str] = set()
    inside, place = (*outer, message.name), f"{path}." if path else ""
    for name, kind in zip(stored.names, stored.children, strict=True) if stored else ():
        field = field_of(message.fields, name)
        if field is not None:
            used.add(field.name)
            types[name] = _field(field, kind, f"{place}{field.name}", inside)
    for field in message.fields:
        if field.name not in used:
            if field.name.lower() in types:
                raise InvalidSchema(f"{place}{field.name}: the name of another field differs only in case")
            try:
                types[field.name.lower()] = _field(field, None, f"{place}{field.name}", inside)
            except InvalidSchema:
                if not is_inside_itself:
                    raise  # else the author of the table has chosen how many levels are stored
    return HiveType("struct", children=tuple(types.values()), names=tuple(types))
