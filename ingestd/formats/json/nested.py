"""Converts JSON values to arrays, maps and structs, and finds the conversion for any type.

Invariant: the same as in `types`. An InvalidValue contains the path to the element that does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ingestd.formats.json.lenient import LENIENT
from ingestd.formats.json.times import DateType, TimestampType
from ingestd.formats.json.timestamp_formats import DEFAULT_FORMATS, FormattedTimestampType
from ingestd.formats.json.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    InvalidValue,
    PrimitiveType,
    SizedStringType,
    StringType,
    shown,
)
from ingestd.formats.row_batches import Value
from ingestd.schema import INTEGER_BITS, HiveType

Convert = Callable[[object], Value]

POSITION = r"_col[0-9]+|[+-]?[0-9]+"  # names that may refer to a field by its position; see `FieldIndexes`
_match_column = re.compile("_col([0-9]+)").fullmatch
_match_index = re.compile(r"\+?[0-9]{1,9}|-0+").fullmatch

_PRIMITIVES: dict[str, type[PrimitiveType]] = {
    **dict.fromkeys(INTEGER_BITS, IntegerType),
    "decimal": DecimalType,
    "double": DoubleType,
    "float": FloatType,
    "boolean": BooleanType,
    "string": StringType,
    "varchar": SizedStringType,
    "char": SizedStringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
}


def primitive(
    kind: HiveType, timestamp_formats: Sequence[str] = DEFAULT_FORMATS, *, lenient: bool = False
) -> PrimitiveType:
    """Return the converter of JSON values to a primitive type, by the rules of `lenient` or by those of `types`."""
    if lenient:
        return LENIENT[kind.kind](kind)
    if kind.kind == "timestamp" and tuple(timestamp_formats) != DEFAULT_FORMATS:
        return FormattedTimestampType(kind, timestamp_formats)
    return _PRIMITIVES[kind.kind](kind)


def converter(kind: HiveType, timestamp_formats: Sequence[str] = DEFAULT_FORMATS, *, lenient: bool = False) -> Convert:
    """Return a function that converts a JSON value (str, Number, bool, list or dict; never None) to a `Value`.

    The function raises InvalidValue. For a complex type, the keys of each object must be in the order of their last
    occurrence, because the last of equal keys wins.
    """
    if not kind.is_complex:
        return primitive(kind, timestamp_formats, lenient=lenient).value
    children = [converter(child, timestamp_formats, lenient=lenient) for child in kind.children]
    if kind.kind == "struct":
        return _struct(kind, children, FieldIndexes(kind.names, by_position=lenient))
    return (_array if kind.kind == "array" else _map)(kind, children)


def other_kind(value: object, kind: HiveType) -> InvalidValue:
    """Return the error of a value that is not the array or the object of which a complex type consists."""
    wanted = "an array" if kind.kind == "array" else "an object"
    return InvalidValue(f"{shown(value)} is not {wanted}, but the type is {kind}")


class FieldIndexes:
    """Finds the fields of a row or a struct by the names of JSON members.

    Names match in any case. With `by_position`, `_col5` is the sixth field, and so is `5` if no field has this name, as
    in Hive's JsonSerDe.
    """

    def __init__(self, names: Sequence[str], *, by_position: bool) -> None:
        self._indexes = {name: index for index, name in enumerate(names)}
        self._by_position = by_position

    def of(self, name: str) -> int | None:
        """Return the index of a field, None if there is none. Raises InvalidValue for a position that is too large."""
        if self._by_position and (match := _match_column(name)):
            if len(match[1]) < 10 and int(match[1]) < len(self._indexes):
                return int(match[1])
            raise InvalidValue(f"there is no field at the position of {shown(name)}")
        index = self._indexes.get(name.lower())
        if index is None and self._by_position and _match_index(name) and int(name) < len(self._indexes):
            return int(name)
        return index


def _array(kind: HiveType, children: Sequence[Convert]) -> Convert:
    (convert_element,) = children

    def convert(value: object) -> Value:
        if not isinstance(value, list):
            raise other_kind(value, kind)
        elements: list[Value] = []
        try:
            for item in value:
                elements.append(None if item is None else convert_element(item))  # noqa: PERF401  # its length is used
        except InvalidValue as error:
            raise error.inside(f"[{len(elements)}]") from None
        return elements

    return convert


def _map(kind: HiveType, children: Sequence[Convert]) -> Convert:
    convert_key, convert_item = children

    def convert(value: object) -> Value:
        if not isinstance(value, dict):
            raise other_kind(value, kind)
        pairs: dict[Value, Value] = {}
        text = ""
        try:
            for text, item in value.items():
                key = convert_key(text)
                if key is None:  # lenient types only
                    raise InvalidValue("the key is not valid, and a map cannot have a key that is NULL")
                pairs.pop(key, None)  # replace the key as well: 0.0 equals -0.0
                pairs[key] = None if item is None else convert_item(item)
        except InvalidValue as error:
            raise error.inside(f"[{shown(text)}]") from None
        return list(pairs.items())

    return convert


def _struct(kind: HiveType, children: Sequence[Convert], indexes: FieldIndexes) -> Convert:
    def convert(value: object) -> Value:
        if not isinstance(value, dict):
            raise other_kind(value, kind)
        items: list[object] = [None] * len(children)
        for key, item in value.items():
            index = indexes.of(key)
            if index is not None:
                items[index] = item
        fields: list[Value] = []
        try:
            for convert_field, item in zip(children, items, strict=True):
                fields.append(None if item is None else convert_field(item))
        except InvalidValue as error:
            raise error.inside(f".{kind.names[len(fields)]}") from None
        return tuple(fields)

    return convert
