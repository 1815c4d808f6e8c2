"""The Hive columns that store the records of Avro schemas exactly.

Invariant: the decoder stores every value of a schema in its column, except texts that are not UTF-8, and dates and
timestamps outside the years 0001 to 9999.

| Avro | Hive |
|---|---|
| boolean, int, long, float, double | boolean, int, bigint, float, double |
| string, enum, uuid, Debezium's ZonedTimestamp, IsoTimestamp, IsoDate and IsoTime | string |
| bytes, fixed | binary |
| decimal(p,s) | decimal(p,s), up to 38 digits |
| date; timestamp, local-timestamp | date; timestamp |
| array, map, record | array, map with string keys, struct |
| a union | the type of its branches, without null, if one of them can store the others |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ingestd.formats.avro.readers import field_of
from ingestd.formats.avro.schema import AvroField, AvroType
from ingestd.formats.columnar_decoder import joined_columns, require_size
from ingestd.formats.registry import InvalidSchema
from ingestd.schema import Column, HiveType

_KINDS = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double",
    "string": "string", "enum": "string", "bytes": "binary", "fixed": "binary",
}  # fmt: skip
_MAX_DIGITS = 38
# The Avro types, and the Hive types that store them, whose items or fields may need types of their own.
_NESTED = {("record", "struct"), ("array", "array"), ("map", "map")}


def columns_of(records: Iterable[AvroType]) -> tuple[Column, ...]:
    """Return a column for each field of these schemas of records, in their order; names are in lower case.

    The column of a field of several schemas can store the values of all. Raises InvalidSchema with the path of a field
    that no column can store.
    """
    return joined_columns(_row(record) for record in records)


def needed_columns(record: AvroType, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns that can store all fields of a schema, with the names of those in which they are stored now.

    Fields without a column have columns of their own. A field that has a column, but no column type, needs that column.
    Of a record that contains itself, as many levels are stored as the columns have, if it is stored in one of them.
    Raises InvalidSchema with the path of a field without a column that no column can store.
    """
    require_size(record, _parts)
    row = HiveType("struct", children=tuple(c.type for c in columns), names=tuple(c.name for c in columns))
    widened = _needed(record, row, "", ())
    return tuple(map(Column, widened.names, widened.children))


def unstored_fields(avro: AvroType, stored: HiveType, place: str = "") -> Iterator[str]:
    """Yield the fields of a schema that a type does not store, such as `who.zip`; `place` is `who.` there."""
    if avro.kind == "union":
        for branch in avro.children:
            yield from unstored_fields(branch, stored, place)
    elif (avro.kind, stored.kind) in _NESTED and avro.kind != "record":
        yield from unstored_fields(avro.children[0], stored.children[-1], place)
    elif (avro.kind, stored.kind) in _NESTED:
        pairs = zip(stored.names, stored.children, strict=True)
        types = {field_of(avro.fields, name): kind for name, kind in pairs}
        for index, field in enumerate(avro.fields):
            if index in types:
                yield from unstored_fields(field.type, types[index], f"{place}{field.name}.")
            else:
                yield f"{place}{field.name}"


def without_fields(record: AvroType, names: Collection[str]) -> AvroType:
    """Return a schema of records without the fields of these lower-case names."""
    if record.kind == "union":
        return replace(record, children=tuple(without_fields(branch, names) for branch in record.children))
    return replace(record, fields=tuple(field for field in record.fields if field.name.lower() not in names))


def _row(record: AvroType) -> HiveType:
    require_size(record, _parts)
    return _type(record, "", ())


def _parts(avro: AvroType) -> list[AvroType]:
    """Return the types inside of a type."""
    return [*avro.children, *(field.type for field in avro.fields)]


def _needed(avro: AvroType, stored: HiveType, path: str, outer: tuple[AvroType, ...]) -> HiveType:
    """Return the type that can store a type whose values are stored in a column or field of the type `stored`."""
    if avro.kind == "union":
        needed = stored
        for branch in avro.children:
            if branch.kind != "null":
                needed = needed.widened(_needed(branch, stored, path, outer))
        return needed
    if (avro.kind, stored.kind) not in _NESTED:
        try:
            return _type(avro, path, outer)
        except InvalidSchema:  # the author of the table has chosen a type for it
            return stored
    inside = (*outer, avro)
    if avro.kind == "array":
        return replace(stored, children=(_needed(avro.children[0], stored.children[0], f"{path}[]", inside),))
    if avro.kind == "map":
        return replace(
            stored, children=(stored.children[0], _needed(avro.children[0], stored.children[1], f"{path}{{}}", inside))
        )
    return _needed_struct(avro, stored, f"{path}." if path else "", outer)


def _needed_struct(record: AvroType, stored: HiveType, place: str, outer: tuple[AvroType, ...]) -> HiveType:
    fields, inside = record.fields, (*outer, record)
    types: dict[str, HiveType] = {}
    used: set[int] = set()
    for name, kind in zip(stored.names, stored.children, strict=True):
        index = field_of(fields, name)
        if index is not None:
            used.add(index)
            types[name] = _needed(fields[index].type, kind, f"{place}{fields[index].name}", inside)
    names = [field.name.lower() for field in fields]
    for index, field in enumerate(fields):
        if index not in used:
            if names.count(names[index]) > 1:
                raise InvalidSchema(f"{place}{field.name}: the name of another field differs only in case")
            try:
                types[names[index]] = _type(field.type, f"{place}{field.name}", inside)
            except InvalidSchema:
                if record not in outer:
                    raise  # else the author of the table has chosen how many levels are stored
    return HiveType("struct", children=tuple(types.values()), names=tuple(types))


def _type(avro: AvroType, path: str, outer: tuple[AvroType, ...]) -> HiveType:
    if avro in outer:
        raise InvalidSchema(f"{path or 'the record'}: a record that contains itself has no column type")
    inside = (*outer, avro)
    if avro.kind == "union":
        return _union(avro.children, path, inside)
    if avro.kind == "record":
        return _struct(avro.fields, path, inside)
    if avro.kind == "array":
        return HiveType("array", children=(_type(avro.children[0], f"{path}[]", inside),))
    if avro.kind == "map":
        value = _type(avro.children[0], f"{path}{{}}", inside)
        return HiveType("map", children=(HiveType("string"), value))
    return _primitive(avro, path)


def _primitive(avro: AvroType, path: str) -> HiveType:
    if avro.logical == "decimal":
        if avro.precision > _MAX_DIGITS:
            raise InvalidSchema(
                f"{path}: a decimal of {avro.precision} digits has no column type, because 38 is the limit"
            )
        return HiveType("decimal", precision=avro.precision, scale=avro.scale)
    if avro.logical == "date":
        return HiveType("date")
    if "timestamp-" in avro.logical:
        return HiveType("timestamp")
    if avro.logical == "uuid":
        return HiveType("string")
    if avro.kind not in _KINDS:
        raise InvalidSchema(f"{path}: a field that is always {avro.kind} has no column type")
    return HiveType(_KINDS[avro.kind])


def _struct(fields: Sequence[AvroField], path: str, outer: tuple[AvroType, ...]) -> HiveType:
    names = tuple(field.name.lower() for field in fields)
    if not names or len(set(names)) < len(names):
        what = "have the same name except for case" if names else "are missing"
        raise InvalidSchema(f"{path or 'the record'}: fields {what}")
    place = f"{path}." if path else ""
    return HiveType(
        "struct", children=tuple(_type(field.type, f"{place}{field.name}", outer) for field in fields), names=names
    )


def _union(branches: Sequence[AvroType], path: str, outer: tuple[AvroType, ...]) -> HiveType:
    types = [_type(branch, path, outer) for branch in branches if branch.kind != "null"]
    if not types:
        raise InvalidSchema(f"{path}: a field that is always null has no column type")
    joined = types[0].joined(*types[1:])
    if joined is None:
        raise InvalidSchema(f"{path}: a union of {', '.join(map(str, branches))} has no column type")
    return joined
