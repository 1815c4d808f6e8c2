"""Converts JSON values to arrays, maps and structs, and finds the conversion for any type.

Invariant: the same as in `types`. An InvalidValue contains the path to the element that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable

from ingestd.formats.json.times import DateType, TimestampType
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


def primitive(kind: HiveType) -> PrimitiveType:
    """Return the converter of JSON values to a primitive type."""
    return _PRIMITIVES[kind.kind](kind)


def converter(kind: HiveType) -> Convert:
    """Return a function that converts a JSON value (str, Number, bool, list or dict; never None) to a `Value`.

    The function raises InvalidValue. For a complex type, the keys of each object must be in the order of their last
    occurrence, because the last of equal keys wins.
    """
    return _COMPLEX[kind.kind](kind) if kind.is_complex else primitive(kind).value


def _array(kind: HiveType) -> Convert:
    convert_element = converter(kind.children[0])

    def convert(value: object) -> Value:
        if not isinstance(value, list):
            raise InvalidValue(f"{shown(value)} is not an array, but the type is {kind}")
        elements: list[Value] = []
        try:
            for item in value:
                elements.append(None if item is None else convert_element(item))  # noqa: PERF401  # its length is used
        except InvalidValue as error:
            raise error.inside(f"[{len(elements)}]") from None
        return elements

    return convert


def _map(kind: HiveType) -> Convert:
    convert_key, convert_item = map(converter, kind.children)

    def convert(value: object) -> Value:
        if not isinstance(value, dict):
            raise InvalidValue(f"{shown(value)} is not an object, but the type is {kind}")
        pairs: dict[Value, Value] = {}
        text = ""
        try:
            for text, item in value.items():
                key = convert_key(text)
                pairs.pop(key, None)  # replace the key as well: 0.0 equals -0.0
                pairs[key] = None if item is None else convert_item(item)
        except InvalidValue as error:
            raise error.inside(f"[{shown(text)}]") from None
        return list(pairs.items())

    return convert


def _struct(kind: HiveType) -> Convert:
    indexes = {name: index for index, name in enumerate(kind.names)}
    converters = tuple(map(converter, kind.children))

    def convert(value: object) -> Value:
        if not isinstance(value, dict):
            raise InvalidValue(f"{shown(value)} is not an object, but the type is {kind}")
        items: list[object] = [None] * len(converters)
        for key, item in value.items():
            index = indexes.get(key.lower())
            if index is not None:
                items[index] = item
        fields: list[Value] = []
        try:
            for convert_field, item in zip(converters, items, strict=True):
                fields.append(None if item is None else convert_field(item))
        except InvalidValue as error:
            raise error.inside(f".{kind.names[len(fields)]}") from None
        return tuple(fields)

    return convert


_COMPLEX: dict[str, Callable[[HiveType], Convert]] = {"array": _array, "map": _map, "struct": _struct}
