"""Finds the fields of JSON records that have no column, and the types of columns that can store them.

Invariant: a column of a type that is found stores every value of its field, by the rules of `decoder`. Text of any kind
needs a string, and so do values that have no other type in common.

| Values of a new field | Column |
|---|---|
| true, false | boolean |
| whole numbers, up to the limits of bigint | bigint |
| numbers, some with a fraction or an exponent | double |
| arrays; without elements | array of the type of the elements; array<string> |
| objects whose names are words of ASCII, up to `MAX_STRUCTS` inside each other | struct |
| anything else, and mixtures | string |
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.errors import InvalidTable
from ingestd.formats.json.tape import OPEN_ARRAY, OPEN_OBJECT, SCALAR, STRING, Ints, Mask, Tape
from ingestd.formats.unmatched import is_envelope, is_envelope_field
from ingestd.schema import INTEGER_BITS, MAX_STRUCTS, MAX_TYPE_CHARACTERS, Column, HiveType

_NAME = re.compile(r"[a-z0-9_]{1,128}")
# Objects with more different names than this have data as names. No table could follow them.
_MAX_NAMES = 1000
_MAX_STRUCT_NAMES = 100
_BIGINT_DIGITS = 19
_TEXT = HiveType("string")
_BOOLEAN, _DOUBLE, _BIGINT = HiveType("boolean"), HiveType("double"), HiveType("bigint")
# Only null, or no element at all; see `HiveType.known`.
_UNKNOWN = HiveType("void")
# The types of a field that has values of several families, which are its `children`.
_MIXED = "uniontype"
# Numbers some of which double does not store exactly. A new column of them is a double, but no column becomes one.
_NUMBERS = HiveType(_MIXED, children=(_BIGINT, _DOUBLE))
# The families of types, other than their own names. The values of one family have a type in common that stores them
# exactly and is no text.
_FAMILIES = {**dict.fromkeys(("tinyint", "smallint", "int", "double"), "number"), "struct": "object", "map": "object"}


@dataclass(frozen=True, slots=True)
class Rows:
    """The objects of some records that are rows: their tokens on a tape, in ascending order, and the depth of items."""

    tape: Tape
    tokens: Ints
    depth: int


def fields_of(rows: Sequence[Rows], columns: Collection[str] | None, own: Collection[str] = ()) -> HiveType:
    """Return a struct of the fields of all rows, whose names are in lower case.

    The type of values that are all null is `void`, and objects without fields are a struct without any. Objects with
    too many different names are a map. If `columns` is given, rows without any of these fields are ignored, and
    envelopes without any field of `own`, which are those of them that do not describe an envelope.
    """
    table = None if columns is None else (columns, own)
    return reduce(joined, (_object(part.tape, part.tokens, part.depth, table) for part in rows), HiveType("struct"))


def needed(fields: HiveType, columns: Sequence[Column], others: Collection[str]) -> tuple[Column, ...]:
    """Return the columns that store the fields, which are now stored in `columns`; fields of `others` need none.

    Their types may be incomplete; see `HiveType.known`. Raises InvalidTable for a field whose name cannot be that of a
    column, and for too many fields.
    """
    if fields.kind == "map":
        raise _too_many_names("the records")
    stored = {column.name: column.type for column in columns}
    needs = []
    for name, kind in zip(fields.names, fields.children, strict=True):
        if name not in others and kind != _UNKNOWN:
            needs.append(_column(_checked(name, ""), _needed(kind, stored.get(name), name), stored))
    return tuple(needs)


def unstored_fields(fields: HiveType, stored: HiveType, others: Collection[str]) -> tuple[str, ...]:
    """Return the fields that are not in the type `stored`, in the form `who.zip` if they are inside of a struct.

    Too many of them are `*`.
    """
    return tuple(name for name in dict.fromkeys(_unstored(fields, stored, "")) if name not in others)


def _unstored(seen: HiveType, stored: HiveType, place: str) -> Iterator[str]:
    if seen.kind == _MIXED:
        for kind in seen.children:
            yield from _unstored(kind, stored, place)
    elif seen.kind == "struct" and stored.kind == "struct":
        types = dict(zip(stored.names, stored.children, strict=True))
        for name, kind in zip(seen.names, seen.children, strict=True):
            if name in types:
                yield from _unstored(kind, types[name], f"{place}{name}.")
            else:
                yield f"{place}{name}"
    elif seen.kind == "map" and stored.kind == "struct":
        yield f"{place}*"
    elif seen.kind in ("struct", "map") and stored.kind == "map":
        for kind in seen.children:
            yield from _unstored(kind, stored.children[1], place)
    elif seen.kind == stored.kind == "array":
        yield from _unstored(seen.children[0], stored.children[0], place)


def _object(
    tape: Tape, objects: Ints, depth: int, table: tuple[Collection[str], Collection[str]] | None = None
) -> HiveType:
    """Return the struct of the fields of objects at this depth, or a map if they have too many."""
    owners, keys = tape.inside(objects, depth)
    if not len(keys):
        return HiveType("struct")
    codes, names = _names(tape, keys)
    if table is not None:
        kept = _belong(owners, codes, names, *table)[owners]
        codes, keys = codes[kept], keys[kept]
    order = np.argsort(codes, kind="stable")
    used, starts = np.unique(codes[order], return_index=True)
    if len(used) > _MAX_NAMES:
        return HiveType("map", children=(_TEXT, _type(tape, keys + np.int32(2), depth + 1)))
    parts = np.split(keys[order], starts[1:]) if len(used) else []
    types = tuple(_type(tape, part + np.int32(2), depth + 1) for part in parts)
    return HiveType("struct", children=types, names=tuple(names[code] for code in used.tolist()))


def _belong(
    owners: Ints, codes: Ints, all_names: Sequence[str], columns: Collection[str], own: Collection[str]
) -> Mask:
    """Return which objects belong to a table with these columns; see `fields_of`.

    Each member of the objects has an owner, and the name `all_names[code]`.
    """

    def have(wanted: Collection[str]) -> Mask:
        has: Mask = np.zeros(int(owners[-1]) + 1, np.bool_)
        has[owners[np.isin(codes, [code for code, name in enumerate(all_names) if name in wanted])]] = True
        return has

    belong, names = have(columns), [name for name in all_names if is_envelope_field(name)]
    if len(own) < len(columns) and names:
        members = np.array([have([name]) for name in names])
        sets, of_object = np.unique(members, axis=1, return_inverse=True)
        are_envelopes = np.array([is_envelope(list(compress(names, members))) for members in sets.T.tolist()])
        others = have([name for name in all_names if name not in names])
        belong &= have(own) | others | ~are_envelopes[of_object.reshape(-1)]
    return belong


def _names(tape: Tape, keys: Ints) -> tuple[Ints, list[str]]:
    """Return the number of the name of each key, and the names in lower case."""
    spellings = tape.texts(tape.start[keys] + np.int32(1), tape.end[keys] - np.int32(1)).dictionary_encode()
    lower = [_unescaped(text).lower() for text in spellings.dictionary.to_pylist()]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(lower))}
    return np.array([numbers[name] for name in lower], np.int32)[spellings.indices.to_numpy()], list(numbers)


def _unescaped(text: str) -> str:
    return str(json.loads(f'"{text}"')) if "\\" in text else text


def _type(tape: Tape, tokens: Ints, depth: int) -> HiveType:
    """Return the type of the values that begin with these tokens, whose items have this depth."""
    kinds = tape.kind[tokens]
    common = _scalars(tape, tokens[kinds == SCALAR])
    if (kinds == STRING).any():
        common = joined(common, _TEXT)
    arrays, objects = tokens[kinds == OPEN_ARRAY], tokens[kinds == OPEN_OBJECT]
    if len(arrays):
        _, items = tape.inside(arrays, depth)
        common = joined(common, HiveType("array", children=(_type(tape, items, depth + 1),)))
    if len(objects):
        common = joined(common, _object(tape, objects, depth))
    return common


def _scalars(tape: Tape, tokens: Ints) -> HiveType:
    """Return the type of numbers, booleans and nulls."""
    letters = tape.letters_at(tokens)
    is_boolean = np.isin(letters, list(b"tf"))
    common = _BOOLEAN if is_boolean.any() else _UNKNOWN
    numbers = tokens[~is_boolean & (letters != ord("n"))]
    if not len(numbers):
        return common
    texts = tape.texts(tape.start[numbers], tape.end[numbers])
    is_real = pc.match_substring_regex(texts, "[.eE]")
    whole = pc.utf8_ltrim(texts.filter(pc.invert(is_real)), "-")
    if len(whole):
        common = joined(common, _whole(whole))
    return joined(common, _DOUBLE) if len(whole) < len(texts) else common


def _whole(digits: pa.StringArray) -> HiveType:
    """Return the type of whole numbers, given without a sign."""
    lengths = pc.utf8_length(digits)
    is_larger = pc.and_(pc.equal(lengths, _BIGINT_DIGITS), pc.greater_equal(digits, str(1 << 63)))
    fitting = digits.filter(pc.invert(pc.or_(pc.greater(lengths, _BIGINT_DIGITS), is_larger)))
    common = _UNKNOWN if len(fitting) == len(digits) else _TEXT
    if not len(fitting):
        return common
    largest = pc.max(pc.cast(fitting, pa.int64())).as_py()
    return joined(common, next(HiveType(kind) for kind, bits in INTEGER_BITS.items() if largest < 1 << (bits - 1)))


def joined_needs(columns: Iterable[Column], present: Iterable[Column]) -> tuple[Column, ...]:
    """Return a column of each name, which stores what all columns of this name, of different records, store.

    `present` are the columns of the table.
    """
    types: dict[str, HiveType] = {}
    for column in columns:
        types[column.name] = _without_mixtures(joined(types.get(column.name, column.type), column.type))
    stored = {column.name: column.type for column in present}
    return tuple(_column(name, kind, stored) for name, kind in types.items())


def _column(name: str, kind: HiveType, stored: Mapping[str, HiveType]) -> Column:
    """Return a column that is needed: a new one is a string if the metastore could not store its type."""
    is_too_long = name not in stored and len(str(kind.known)) > MAX_TYPE_CHARACTERS
    return Column(name, _TEXT if is_too_long else kind)


def _without_mixtures(kind: HiveType) -> HiveType:
    if kind.kind == _MIXED:
        return kind if kind == _NUMBERS else _TEXT
    return replace(kind, children=tuple(map(_without_mixtures, kind.children)))


def joined(one: HiveType, other: HiveType) -> HiveType:
    """Return the type of a field that has values of both types.

    It is a mixture if they have different families, so that what is found does not depend on the order of records: a
    column of numbers becomes wider whatever texts are among them.
    """
    if other in (one, _UNKNOWN):
        return one
    if one == _UNKNOWN:
        return other
    families: dict[str, HiveType] = {}
    for kind in (part for both in (one, other) for part in (both.children if both.kind == _MIXED else (both,))):
        name = _FAMILIES.get(kind.kind, kind.kind)
        families[name] = _joined_relatives(families[name], kind) if name in families else kind
    if _BIGINT.kind in families and families.get("number", _DOUBLE) != _DOUBLE:
        del families["number"]
    parts = tuple(families[name] for name in sorted(families))
    return parts[0] if len(parts) == 1 else HiveType(_MIXED, children=parts)


def _joined_relatives(one: HiveType, other: HiveType) -> HiveType:
    """Return the type of a field that has values of both types, which have the same family."""
    if one.kind == "array":
        return HiveType("array", children=(joined(one.children[0], other.children[0]),))
    if one.kind in ("struct", "map"):
        return _joined_objects(one, other)
    if one == other:
        return one
    both = one.kind in INTEGER_BITS and other.kind in INTEGER_BITS
    return max(one, other, key=lambda kind: INTEGER_BITS[kind.kind]) if both else _DOUBLE


def _joined_objects(one: HiveType, other: HiveType) -> HiveType:
    if one.kind == other.kind == "struct":
        fields = dict(zip(one.names, one.children, strict=True))
        for name, kind in zip(other.names, other.children, strict=True):
            fields[name] = joined(fields[name], kind) if name in fields else kind
        if len(fields) <= _MAX_NAMES:
            return HiveType("struct", children=tuple(fields.values()), names=tuple(fields))
    key = next((kind.children[0] for kind in (one, other) if kind.kind == "map"), _TEXT)
    values = [
        value for kind in (one, other) for value in (kind.children if kind.kind == "struct" else kind.children[1:])
    ]
    return HiveType("map", children=(key, reduce(joined, values, _UNKNOWN)))


def _needed(seen: HiveType, stored: HiveType | None, path: str) -> HiveType:
    """Return the type that stores values of the type `seen` in records; `stored` is the type that stores them now."""
    if stored is None:
        return _new(seen, path.count("."))
    if seen.kind == _MIXED:
        return reduce(lambda kind, part: _needed(part, kind, path), seen.children, stored)
    if seen.kind in ("struct", "map") and stored.kind in ("struct", "map"):
        return (_needed_struct if stored.kind == "struct" else _needed_map)(seen, stored, path)
    if seen.kind == stored.kind == "array":
        return replace(stored, children=(_needed_item(seen.children[0], stored.children[0], f"{path}[]"),))
    if seen.kind in INTEGER_BITS and stored.kind in INTEGER_BITS:
        return max(stored, seen, key=lambda kind: INTEGER_BITS[kind.kind])
    return seen if seen == _DOUBLE and stored.kind in INTEGER_BITS and seen.holds(stored) else stored


def _needed_struct(seen: HiveType, stored: HiveType, path: str) -> HiveType:
    if seen.kind == "map":
        raise _too_many_names(path)
    types = dict(zip(stored.names, stored.children, strict=True))
    for name, kind in zip(seen.names, seen.children, strict=True):
        if kind != _UNKNOWN:
            types[_checked(name, f"{path}.")] = _needed(kind, types.get(name), f"{path}.{name}")
    return HiveType("struct", children=tuple(types.values()), names=tuple(types))


def _needed_map(seen: HiveType, stored: HiveType, path: str) -> HiveType:
    value = seen.children[1] if seen.kind == "map" else reduce(joined, seen.children, _UNKNOWN)
    return replace(stored, children=(stored.children[0], _needed_item(value, stored.children[1], f"{path}{{}}")))


def _needed_item(seen: HiveType, stored: HiveType, path: str) -> HiveType:
    return stored if seen == _UNKNOWN else _needed(seen, stored, path)


def _new(seen: HiveType, structs: int) -> HiveType:
    """Return the type of a new column or field inside of `structs` levels of structs.

    It is incomplete if values are null or empty.
    """
    if seen.kind in INTEGER_BITS:
        return _BIGINT
    if seen.kind == "array":
        return HiveType("array", children=(_new(seen.children[0], structs),))
    if seen.kind == "map" or (seen.kind == _MIXED and seen != _NUMBERS):
        return _TEXT
    if seen.kind != "struct" or structs >= MAX_STRUCTS:
        return _TEXT if seen.kind == "struct" else seen
    pairs = zip(seen.names, seen.children, strict=True)
    fields = {name: _new(kind, structs + 1) for name, kind in pairs if kind != _UNKNOWN}
    if len(fields) > _MAX_STRUCT_NAMES or not all(map(_NAME.fullmatch, fields)):
        return _TEXT
    return HiveType("struct", children=tuple(fields.values()), names=tuple(fields))


def _too_many_names(path: str) -> InvalidTable:
    return InvalidTable(
        f"the objects in {path} have more than {_MAX_NAMES:,} different names of fields",
        hint="a column for each is not possible; set schema_evolution: none, and store such objects in a map",
    )


def _checked(name: str, place: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidTable(
            f"a field without a column: {(place + name)!r} is not a name of a column",
            hint="names of new columns consist of ASCII letters, digits and _; set schema_evolution: none to ignore it",
        )
    return name
