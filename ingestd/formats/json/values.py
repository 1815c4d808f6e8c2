"""One JSON value becomes one column value: the meaning of every conversion, and the reference for the fast path.

Invariant: a conversion returns the value exactly or raises `Unfit`; nothing is wrapped, cut or replaced by NULL.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from math import isinf, isnan

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.row_batches import FIRST_SECOND, LAST_SECOND
from ingestd.schema import INTEGER_BITS, HiveType

Value = bool | int | float | str | bytes | Decimal | None | list["Value"] | tuple["Value", ...]
Convert = Callable[[object], Value]


class Unfit(ValueError):
    """A value does not fit its column; the text says why, and where inside a complex value: `tags[3].name: …`."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def inside(self, step: str) -> Unfit:
        """The same of the value that holds this one; `step` is `.name`, `[3]` or `['key']`."""
        return Unfit(self.reason, step + self.path)

    def __str__(self) -> str:
        return f"{self.path.removeprefix('.')}: {self.reason}" if self.path else self.reason


class Number(str):
    """A JSON number as its text, so that neither digits nor spelling are lost."""

    __slots__ = ()


NUMERIC = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[ T]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?"
    r"(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_EXACT = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])
_EPOCH = date(1970, 1, 1).toordinal()
_SECOND = 1_000_000_000
_FLOAT_WORDS = ("NaN", "Infinity", "-Infinity")


def converter(kind: HiveType) -> Convert:
    """The conversion of one JSON value (str, Number, bool, list, dict; never None) to a column of this type.

    Timestamps come as nanoseconds since 1970 of the wall time (an int of any size), dates as days since 1970; arrays as
    a list, maps as a list of (key, value), structs as a tuple in the order of the fields. The objects of a value for a
    complex type must have their keys in the order of the last occurrence, as the last of equal keys wins.
    """
    if kind.is_complex:
        return _COMPLEX[kind.kind](kind)
    if kind.kind in INTEGER_BITS:
        return _integer(1 << (INTEGER_BITS[kind.kind] - 1), kind.kind)
    sized: dict[str, Callable[[HiveType], Convert]] = {"decimal": _decimal, "varchar": _sized, "char": _sized}
    if kind.kind in sized:
        return sized[kind.kind](kind)
    return _PLAIN[kind.kind]


def text_of(value: object) -> str:
    """A JSON value as text: strings as they are, numbers as written, the rest as compact JSON (Jackson's toString)."""
    text = value if isinstance(value, str) else _dump(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unfit("the text has half a surrogate pair, which UTF-8 cannot hold") from error
    return text


def bytes_of(text: str) -> bytes:
    """Hive's rule for binary: valid base64 is decoded, anything else is its own UTF-8 bytes (HiveJsonReader)."""
    if len(text) % 4 == 0 and _BASE64.fullmatch(text):
        return binascii.a2b_base64(text)
    return text.encode()


def _dump(value: object) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quote(key)}:{_dump(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _quote(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)


def _shown(value: object) -> str:
    text = _dump(value) if not isinstance(value, str) else repr(str(value))
    return text if len(text) <= 40 else text[:37] + "..."


def _numeric(value: object, kind: str) -> str:
    if isinstance(value, str) and (type(value) is Number or NUMERIC.fullmatch(value)):
        return value
    raise Unfit(f"{_shown(value)} is not a number, the column is {kind}")


def _integer(limit: int, kind: str) -> Convert:
    def convert(value: object) -> int:
        text = _numeric(value, kind)
        number = int(text) if _WHOLE.fullmatch(text) else _whole(text, kind)
        if -limit <= number < limit:
            return number
        raise Unfit(f"{_shown(value)} is out of range for {kind}")

    return convert


def _whole(text: str, kind: str) -> int:
    """The integer that a text with point or exponent stands for."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise Unfit(f"{_shown(text)} is out of range for {kind}") from None
    if number and number.adjusted() > 19:
        raise Unfit(f"{_shown(text)} is out of range for {kind}")
    if not number:
        return 0
    if number.adjusted() < 0 or number != number.to_integral_value(context=_WIDE):
        raise Unfit(f"{_shown(text)} is not a whole number, the column is {kind}")
    return int(number)


_WIDE = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation])


def _decimal(kind: HiveType) -> Convert:
    unit, zero = Decimal((0, (1,), -kind.scale)), Decimal((0, (0,), -kind.scale))  # Arrow has no negative zero
    limit = Decimal(10) ** (kind.precision - kind.scale)

    def convert(value: object) -> Decimal:
        text = _numeric(value, str(kind))
        try:
            number = Decimal(text).quantize(unit, context=_EXACT)
        except (Inexact, InvalidOperation):
            raise Unfit(f"{_shown(value)} does not fit {kind} exactly") from None
        if number.copy_abs() < limit:
            return number if number else zero
        raise Unfit(f"{_shown(value)} does not fit {kind} exactly")

    return convert


def _double(value: object) -> float:
    if type(value) is str and value in _FLOAT_WORDS:
        return float(value)
    number = float(_numeric(value, "double"))
    if isinf(number):
        raise Unfit(f"{_shown(value)} is out of range for double")
    return number


def _float(value: object) -> float:
    number = _double(value)
    if isnan(number) or isinf(number):
        return number
    # Arrow rounds the text once; text -> double -> float would round twice.
    single = pc.cast(pa.scalar(str(value)), pa.float32()).as_py()
    if isinf(single):
        raise Unfit(f"{_shown(value)} is out of range for float")
    return float(single)


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if type(value) is str and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise Unfit(f"{_shown(value)} is not true or false")


def _sized(kind: HiveType) -> Convert:
    def convert(value: object) -> str:
        text = text_of(value)
        if kind.kind == "char":
            text = text.rstrip(" ")
        if len(text) > kind.length:
            raise Unfit(f"text of {len(text)} characters is longer than {kind}")
        return text

    return convert


def _string(value: object) -> str:
    return str(text_of(value))


def _binary(value: object) -> bytes:
    if type(value) is not str:
        raise Unfit(f"{_shown(value)} is not a string, the column is binary")
    return bytes_of(text_of(value))


def _date(value: object) -> int:
    if type(value) is not str:
        raise Unfit(f"{_shown(value)} is not a string, a date is written as 'yyyy-MM-dd'")
    match = _DATE.fullmatch(value)
    try:
        return date(*map(int, match.groups())).toordinal() - _EPOCH if match else _refuse(value, "date")
    except ValueError:
        return _refuse(value, "date")


def _timestamp(value: object) -> int:
    if type(value) is not str:
        raise Unfit(
            f"{_shown(value)} is not a string, a timestamp is written as 'yyyy-MM-dd HH:mm:ss[.fraction][zone]'"
        )
    match = _TIMESTAMP.fullmatch(value)
    if not match:
        return _refuse(value, "timestamp")
    year, month, day, hour, minute, second, fraction, sign, east, east_minutes = match.groups(default="0")
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
    except ValueError:
        return _refuse(value, "timestamp")
    if int(east) > 23 or int(east_minutes) > 59:
        return _refuse(value, "timestamp")
    offset = (int(east) * 3600 + int(east_minutes) * 60) * (-1 if sign == "-" else 1)
    clock = moment.hour * 3600 + moment.minute * 60 + moment.second
    seconds = (moment.toordinal() - _EPOCH) * 86_400 + clock - offset
    if not FIRST_SECOND <= seconds <= LAST_SECOND:
        return _refuse(value, "timestamp")
    return seconds * _SECOND + int(fraction.ljust(9, "0"))


def _refuse(value: str, kind: str) -> int:
    raise Unfit(f"{_shown(value)} is not a {kind} of the years 0001 to 9999")


_PLAIN: dict[str, Convert] = {
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
}


def _array(kind: HiveType) -> Convert:
    convert_element = converter(kind.children[0])

    def convert(value: object) -> Value:
        if not isinstance(value, list):
            raise Unfit(f"{_shown(value)} is not an array, the type is {kind}")
        elements: list[Value] = []
        try:
            for item in value:
                elements.append(None if item is None else convert_element(item))  # noqa: PERF401  # its length is used
        except Unfit as error:
            raise error.inside(f"[{len(elements)}]") from None
        return elements

    return convert


def _map(kind: HiveType) -> Convert:
    key_of, value_of = map(converter, kind.children)

    def convert(value: object) -> Value:
        if not isinstance(value, dict):
            raise Unfit(f"{_shown(value)} is not an object, the type is {kind}")
        pairs: dict[Value, Value] = {}
        text = ""
        try:
            for text, item in value.items():
                key = key_of(text)
                pairs.pop(key, None)  # 0.0 equals -0.0, and the last one stays
                pairs[key] = None if item is None else value_of(item)
        except Unfit as error:
            raise error.inside(f"[{_shown(text)}]") from None
        return list(pairs.items())

    return convert


def _struct(kind: HiveType) -> Convert:
    places = {name: place for place, name in enumerate(kind.names)}
    converters = tuple(map(converter, kind.children))

    def convert(value: object) -> Value:
        if not isinstance(value, dict):
            raise Unfit(f"{_shown(value)} is not an object, the type is {kind}")
        items: list[object] = [None] * len(converters)
        for key, item in value.items():
            place = places.get(key.lower())
            if place is not None:
                items[place] = item
        fields: list[Value] = []
        try:
            for convert_field, item in zip(converters, items, strict=True):
                fields.append(None if item is None else convert_field(item))
        except Unfit as error:
            raise error.inside(f".{kind.names[len(fields)]}") from None
        return tuple(fields)

    return convert


_COMPLEX: dict[str, Callable[[HiveType], Convert]] = {"array": _array, "map": _map, "struct": _struct}
