"""Resolves the schema with which records were written against the schema with which they are to be read.

Invariant: the resolved type describes the same bytes as the writer's type, so that it can be read and skipped like any
other. Only names, symbols and logical types are those of the reader.

| Writer | Reader |
|---|---|
| a field | the field of its name, or one that has the name as an alias; a field without one is ignored |
| no field | the default of the reader's field; without one, the values of the record cannot be read |
| an enum | the symbols of the reader; the default of the reader's enum takes the place of others |
| int, long, float | the same or a later one of int, long, float, double |
| string, bytes | string or bytes |
| a union | each branch on its own |
| any type | the first branch of a union with its type and name, else with its type, else to which it can be promoted |
| a logical type | its own, or that of the reader if it has none |

Source: the chapter "Schema Resolution" of the Avro specification. Contrary to Java's library, a logical type of the
writer is not replaced, so that a time in milliseconds is not read as one in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingestd.formats.avro.schema import AvroField, AvroType, has_scale_and_value

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NAMED = ("record", "enum", "fixed")
_Known = dict[tuple[int, int], AvroType]


def resolve(writer: AvroType, reader: AvroType) -> AvroType:
    """Return the type of the writer's data whose names, symbols and defaults are those of the reader."""
    return _resolve(writer, reader, {})


def _resolve(writer: AvroType, reader: AvroType, known: _Known) -> AvroType:
    key = id(writer), id(reader)
    if key not in known:
        # A record can contain itself, so its type is known before its fields are.
        resolved = known[key] = replace(writer)
        if writer.kind == "union":
            resolved.children = tuple(_resolve(branch, reader, known) for branch in writer.children)
        elif reader.kind == "union":
            branch = _branch_for(writer, reader.children)
            if branch is None:
                resolved.fault = f"{_shown(writer)} is not in the union of the reader schema"
            else:
                _adapt(resolved, writer, branch, known)
        else:
            _adapt(resolved, writer, reader, known)
    return known[key]


def _adapt(resolved: AvroType, writer: AvroType, reader: AvroType, known: _Known) -> None:
    """Set what the reader determines in `resolved`, a copy of the writer's type, which is not a union."""
    if not _fits(writer, reader):
        resolved.fault = f"{_shown(writer)} cannot be read as {_shown(reader)}, the type of the reader schema"
    elif writer.kind == "record":
        _adapt_fields(resolved, writer, reader, known)
        if not writer.logical and has_scale_and_value(resolved):
            resolved.logical = reader.logical
    elif writer.kind == "enum":
        default = reader.default or None
        resolved.written = writer.symbols
        resolved.symbols = tuple(symbol if symbol in reader.symbols else default for symbol in writer.symbols)
    elif writer.kind in ("array", "map"):
        resolved.children = (_resolve(writer.children[0], reader.children[0], known),)
    elif not writer.logical and reader.kind in (writer.kind, "long"):
        resolved.logical, resolved.precision, resolved.scale = reader.logical, reader.precision, reader.scale


def _adapt_fields(resolved: AvroType, writer: AvroType, reader: AvroType, known: _Known) -> None:
    places = _places(reader.fields, [field.name for field in writer.fields])
    fields, ignored = [], set()
    for place, field in enumerate(writer.fields):
        if place in places:
            wanted = reader.fields[places.index(place)]
            fields.append(AvroField(wanted.name, wanted.aliases, _resolve(field.type, wanted.type, known)))
        else:
            fields.append(field)
            ignored.add(place)
    resolved.fields, resolved.ignored = tuple(fields), frozenset(ignored)
    resolved.absent = tuple(field for field, place in zip(reader.fields, places, strict=True) if place is None)


def _places(fields: Sequence[AvroField], names: Sequence[str]) -> list[int | None]:
    """Return the index of the writer's field that each of the reader's fields reads: that of its name, else an alias.

    `names` are those of the writer's fields. Each of them is read by one field.
    """
    places = [names.index(field.name) if field.name in names else None for field in fields]
    for index, field in enumerate(fields):
        if places[index] is None:
            aliased = (names.index(alias) for alias in field.aliases if alias in names)
            places[index] = next((place for place in aliased if place not in places), None)
    return places


def _branch_for(writer: AvroType, branches: Sequence[AvroType]) -> AvroType | None:
    """Return the branch of the reader's union that reads a type of the writer; None if there is none."""
    same = [branch for branch in branches if branch.kind == writer.kind and _fits(writer, branch)]
    named = [branch for branch in same if _base(writer.names[:1]) & _base(branch.names)]
    promoted = [branch for branch in branches if _fits(writer, branch)]
    return next(iter((*named, *same, *promoted)), None)


def _fits(writer: AvroType, reader: AvroType) -> bool:
    """Return whether a type of the writer, which is not a union, can be read as another type."""
    if writer.kind != reader.kind:
        return reader.kind in _PROMOTIONS.get(writer.kind, ())
    return writer.kind != "fixed" or writer.size == reader.size


def _base(names: Sequence[str]) -> set[str]:
    """Return names without their namespaces."""
    return {name.rpartition(".")[2] for name in names}


def _shown(kind: AvroType) -> str:
    return f"{kind} {kind.names[0]}" if kind.names else str(kind)
