"""Converts metastore objects to and from the JSON that event messages contain (Thrift's TJSONProtocol).

Invariant: an object that is encoded decodes to an equal object. Fields that the bindings do not know are dropped. The
conversion follows the `thrift_spec` of the generated classes: Thrift's own protocol class reads a text character by
character, and needs seconds for an event with a thousand partitions.
"""

from __future__ import annotations

import base64
import json
from typing import Any, TypeVar

T = TypeVar("T")

# Thrift's type ids (TType) and the tags that TJSONProtocol writes for them.
_BOOL, _DOUBLE, _STRING, _STRUCT, _MAP, _SET, _LIST = 2, 4, 11, 12, 13, 14, 15
_TAGS = {
    _BOOL: "tf",
    3: "i8",
    _DOUBLE: "dbl",
    6: "i16",
    8: "i32",
    10: "i64",
    _STRING: "str",
    _STRUCT: "rec",
    _MAP: "map",
    _SET: "set",
    _LIST: "lst",
}
_NUMBERS = {3, 6, 8, 10}
_BINARY = "BINARY"


def encode(thing: object) -> str:
    """Return the JSON text of a Thrift struct. Fields that are None are absent."""
    return json.dumps(_encode_struct(thing), separators=(",", ":"))


def decode(text: str, kind: type[T]) -> T:
    """Return the struct of class `kind` in a JSON text. Raises ValueError if the text is not such a struct."""
    try:
        return _decode_struct(json.loads(text), kind)
    except (TypeError, KeyError, IndexError, AttributeError, StopIteration) as error:
        raise ValueError(f"not a {kind.__name__} in Thrift's JSON: {text[:200]}") from error


def _encode_struct(thing: Any) -> dict[str, Any]:
    encoded = {}
    for field in filter(None, type(thing).thrift_spec):
        number, kind, name, details, _ = field
        value = getattr(thing, name)
        if value is not None:
            encoded[str(number)] = {_TAGS[kind]: _encode_value(kind, details, value)}
    return encoded


def _encode_value(kind: int, details: Any, value: Any) -> Any:
    if kind == _STRUCT:
        return _encode_struct(value)
    if kind in {_LIST, _SET}:
        element, inner, _ = details
        return [_TAGS[element], len(value), *(_encode_value(element, inner, item) for item in value)]
    if kind == _MAP:
        key, key_details, element, inner, _ = details
        pairs = {str(_encode_value(key, key_details, k)): _encode_value(element, inner, v) for k, v in value.items()}
        return [_TAGS[key], _TAGS[element], len(value), pairs]
    if kind == _BOOL:
        return int(value)
    if details == _BINARY:
        return base64.b64encode(value).decode().rstrip("=")  # Thrift writes no padding
    return value


def _decode_struct(fields: dict[str, Any], kind: type[T]) -> T:
    made = kind()
    known: tuple[Any, ...] = kind.thrift_spec  # type: ignore[attr-defined]  # of every generated class
    for number, tagged in fields.items():
        field = known[int(number)] if int(number) < len(known) else None
        if field is None:
            continue
        _, field_kind, name, details, _ = field
        tag, value = next(iter(tagged.items()))
        if tag == _TAGS[field_kind]:
            setattr(made, name, _decode_value(field_kind, details, value))
    return made


def _decode_value(kind: int, details: Any, value: Any) -> Any:
    if kind == _STRUCT:
        return _decode_struct(value, details[0])
    if kind in {_LIST, _SET}:
        element, inner, _ = details
        decoded = [_decode_value(element, inner, item) for item in value[2:]]
        return set(decoded) if kind == _SET else decoded
    if kind == _MAP:
        key, key_details, element, inner, _ = details
        return {_decode_key(key, key_details, k): _decode_value(element, inner, v) for k, v in value[3].items()}
    return _decode_scalar(kind, details, value)


def _decode_scalar(kind: int, details: Any, value: Any) -> Any:
    if kind == _BOOL:
        return bool(value)
    if kind == _DOUBLE:
        return float(value)  # NaN and Infinity are strings
    if details == _BINARY:
        return base64.b64decode(value + "=" * (-len(value) % 4))
    return value


def _decode_key(kind: int, details: Any, key: str) -> Any:
    """Decode the key of a map, which is always a string."""
    return int(key) if kind in _NUMBERS else _decode_scalar(kind, details, key)
