"""Encodes the defaults of fields, which a schema contains as JSON, to Avro data.

Invariant: the data is a valid value of the type. A default that is not one is an InvalidSchema.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ingestd.formats.avro.schema import NO_DEFAULT, AvroType
from ingestd.formats.registry import InvalidSchema

_BITS = {"int": 32, "long": 64}
_WORDS = {"float": "<f", "double": "<d"}
# As Java writes numbers that JSON does not have.
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class _Unfit(ValueError):
    """A default is not a value of its type."""


def encoded(kind: AvroType, default: object, path: str) -> bytes:
    """Return the default of the field at `path` as Avro data. Raises InvalidSchema."""
    try:
        return _value(kind, default)
    except (_Unfit, struct.error, OverflowError):
        raise InvalidSchema(f"the default of {path} is not a value of the type {kind}") from None
    except RecursionError:
        raise InvalidSchema(f"the default of {path} nests too deeply") from None


def check_defaults(kind: AvroType) -> None:
    """Raise InvalidSchema unless all fields inside a type have a default that is valid, or none."""
    types, index = [kind], 0
    while index < len(types):
        inner = [*types[index].children]
        for field in types[index].fields:
            inner.append(field.type)
            if field.default is not NO_DEFAULT:
                encoded(field.type, field.default, field.name)
        types += [branch for branch in dict.fromkeys(inner) if branch not in types]
        index += 1


def _value(kind: AvroType, value: object) -> bytes:
    if kind.kind == "union":
        return _branch(kind, value)
    if kind.kind in _SCALARS:
        return _SCALARS[kind.kind](kind, value)
    if kind.kind == "array" and isinstance(value, list):
        return _blocks([_value(kind.children[0], item) for item in value])
    if kind.kind == "map" and isinstance(value, dict):
        return _blocks([_string(kind, key) + _value(kind.children[0], item) for key, item in value.items()])
    if kind.kind == "record" and isinstance(value, dict):
        return _record(kind, value)
    raise _Unfit


def _branch(kind: AvroType, value: object) -> bytes:
    """Encode a value of a union: of its first branch, or, since Avro 1.12, of the first one that has the value."""
    for index, branch in enumerate(kind.children):
        try:
            return _integer(index) + _value(branch, value)
        except (_Unfit, struct.error, OverflowError):  # noqa: PERF203
            continue
    raise _Unfit


def _record(kind: AvroType, value: Mapping[str, object]) -> bytes:
    content = b""
    for field in kind.fields:
        default = value.get(field.name, field.default)
        if default is NO_DEFAULT:
            raise _Unfit
        content += _value(field.type, default)
    return content


def _null(_kind: AvroType, value: object) -> bytes:
    if value is not None:
        raise _Unfit
    return b""


def _boolean(_kind: AvroType, value: object) -> bytes:
    if not isinstance(value, bool):
        raise _Unfit
    return bytes([value])


def _whole(kind: AvroType, value: object) -> bytes:
    limit = 1 << (_BITS[kind.kind] - 1)
    if type(value) is not int or not -limit <= value < limit:
        raise _Unfit
    return _integer(value)


def _number(kind: AvroType, value: object) -> bytes:
    if value in _NOT_FINITE:
        value = float(str(value))
    if type(value) is not int and type(value) is not float:
        raise _Unfit
    return struct.pack(_WORDS[kind.kind], value)


def _string(_kind: AvroType, value: object) -> bytes:
    if not isinstance(value, str):
        raise _Unfit
    try:
        text = value.encode()
    except UnicodeEncodeError:
        raise _Unfit from None
    return _integer(len(text)) + text


def _bytes(_kind: AvroType, value: object) -> bytes:
    content = _latin(value)
    return _integer(len(content)) + content


def _fixed(kind: AvroType, value: object) -> bytes:
    content = _latin(value)
    if len(content) != kind.size:
        raise _Unfit
    return content


def _enum(kind: AvroType, value: object) -> bytes:
    if not isinstance(value, str) or value not in kind.symbols:
        raise _Unfit
    return _integer(kind.symbols.index(value))


def _latin(value: object) -> bytes:
    """Return bytes whose values are the code points of a text."""
    if not isinstance(value, str):
        raise _Unfit
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise _Unfit from None


def _blocks(items: list[bytes]) -> bytes:
    return b"".join([_integer(len(items)), *items, _integer(0)]) if items else _integer(0)


def _integer(number: int) -> bytes:
    """Return a variable-length zigzag integer of 64 bits."""
    bits = (number << 1) ^ (number >> 63)
    content = bytearray()
    while bits > 0x7F:
        content.append(bits & 0x7F | 0x80)
        bits >>= 7
    content.append(bits)
    return bytes(content)


_SCALARS = {
    "null": _null,
    "boolean": _boolean,
    "int": _whole,
    "long": _whole,
    "float": _number,
    "double": _number,
    "string": _string,
    "bytes": _bytes,
    "fixed": _fixed,
    "enum": _enum,
}
