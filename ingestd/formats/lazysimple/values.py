"""Decodes one field of a text record as Hive's LazySimpleSerDe does; this is the reference for `columns`.

Invariant: a value depends only on the bytes of its field. A field that is NULL by rule (the NULL text, an empty number)
is distinguished from an invalid field, which Hive stores as NULL.
Source: Hive 4.0.1, `org.apache.hadoop.hive.serde2.lazy`; the results were compared with that code on the same bytes.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from functools import cache
from math import copysign, inf, isinf, isnan
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.errors import ConfigError
from ingestd.formats.row_batches import EPOCH, NANOS_PER_SECOND
from ingestd.schema import INTEGER_BITS, HiveType

BadValues = Literal["null", "reject"]
Read = Callable[[bytes], Any]

MAX_DIGITS = 38  # HiveDecimal.MAX_PRECISION and MAX_SCALE
TEXT_KINDS = frozenset({"string", "varchar", "char"})

_JAVA_BLANKS = bytes(range(0x21))  # the characters that String.trim removes
_SHORTEST_DATE = 8  # LazyUtils.isDateMaybe
# No pattern may match the same digits in two ways, because that takes quadratic time for a long field.
_INTEGER = re.compile(rb"([+-]?)(?=\.?[0-9])0*([1-9][0-9]*)?(?:\.[0-9]*)?")
_FLOATING = re.compile(rb"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_DECIMAL = re.compile(
    rb"[ \t\v\f]*([+-]?)(?=\.?[0-9])0*([1-9][0-9]*)?(?:\.([0-9]*))?"
    rb"(?:[eE]([+-]?)(?=[0-9 \t\v\f])0*([1-9][0-9]*)?)?[ \t\v\f]*"  # Hive accepts "1e ", but not "1e"
)
_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")
_DATE = re.compile(rb"([0-9]{1,4})-([0-9]{1,2})-([0-9]{1,2})(?![0-9])")
_TIMESTAMP = re.compile(
    rb"([0-9]{1,10})-([0-9]{1,2})-([0-9]{1,2}) ([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.([0-9]{1,9}))?"
)
_ISO_TIMESTAMP = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{0,9}))?)?"
)
_LINE_ENDS = {b"n": b"\n", b"r": b"\r"}
_WIDE = Context(prec=400, Emin=MIN_EMIN, Emax=MAX_EMAX, rounding=ROUND_HALF_UP)


class InvalidField(ValueError):
    """A field is not a valid value of its column's type. Hive stores NULL for it."""


class NotUtf8(ValueError):
    """A field of a text column is not UTF-8. Its record is a reject even if invalid fields become NULL."""


@dataclass(frozen=True, slots=True)
class FieldSyntax:
    """The syntax of fields. `separators` has one byte per nesting level; the first one separates the columns.

    `null` is the NULL text, or None. `escape` is a byte that makes the next byte data. `bad_values` determines whether
    an invalid field becomes NULL, as in Hive, or makes its record a reject.
    """

    separators: bytes
    null: bytes | None = None
    escape: int | None = None
    bad_values: BadValues = "null"


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ConfigError unless `value`, the value of option `name`, is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{name} cannot be {value!r}", hint=f"use {' or '.join(choices)}")


def reader(kind: HiveType, syntax: FieldSyntax, level: int = 1) -> Read:
    """Return a function that converts the bytes of a field to a `row_batches.Value`.

    The caller must handle the NULL text itself. The function raises NotUtf8 for text that is not UTF-8. It raises
    InvalidField for other invalid fields if `syntax.bad_values` is "reject". `level` is the number of separators that
    the enclosing values use. Raises ConfigError if the type has more levels than there are separators.
    """
    if kind.is_complex:
        return _complex(kind, syntax, level)
    read = _primitive(kind, syntax)
    return read if syntax.bad_values == "reject" else _lenient(read)


def split(data: bytes, separator: int, escape: int | None) -> list[bytes]:
    """Return the parts between separators. An escape byte makes the next byte data, and is kept (LazyStruct.parse)."""
    if escape is None or escape not in data:
        return data.split(bytes((separator,)))
    wanted = bytes((separator,))
    parts, start = [], 0
    for match in _separator_or_escape(separator, escape).finditer(data):
        if match[0] == wanted:
            parts.append(data[start : match.start()])
            start = match.end()
    return [*parts, data[start:]]


@cache
def _separator_or_escape(separator: int, escape: int) -> re.Pattern[bytes]:
    return re.compile(re.escape(bytes((escape,))) + b".|" + re.escape(bytes((separator,))), re.DOTALL)


@cache
def _escape_sequence(escape: int) -> re.Pattern[bytes]:
    return re.compile(re.escape(bytes((escape,))) + rb"(.)", re.DOTALL)


def _lenient(read: Read) -> Read:
    """Return a reader that does the same, except that it returns None for invalid fields."""

    def convert(data: bytes) -> Any:
        try:
            return read(data)
        except InvalidField:
            return None

    return convert


def _primitive(kind: HiveType, syntax: FieldSyntax) -> Read:
    if kind.kind in INTEGER_BITS:
        return _integer(kind)
    if kind.kind in TEXT_KINDS:
        return _text(kind, syntax.escape)
    return _decimal(kind) if kind.kind == "decimal" else _READERS[kind.kind]


def _shown(data: bytes) -> str:
    """Return the text that represents a field in reject reasons, at most 40 characters long."""
    text = repr(data.decode(errors="backslashreplace"))
    return text if len(text) <= 40 else text[:37] + "..."


def _integer(kind: HiveType) -> Read:
    """Return a reader of integers (LazyByte … LazyLong): a fraction is truncated, but must consist of digits."""
    limit = 1 << (INTEGER_BITS[kind.kind] - 1)

    def convert(data: bytes) -> int | None:
        if not data:
            return None
        match = _INTEGER.fullmatch(data)
        if not match:
            raise InvalidField(f"{_shown(data)} is not a number, but the type is {kind}")
        number = int((match[2] or b"0")[:20])  # 20 digits are always out of range
        number = -number if match[1] == b"-" else number
        if -limit <= number < limit:
            return number
        raise InvalidField(f"{_shown(data)} is out of range for {kind}")

    return convert


def _double(data: bytes) -> float | None:
    """Read a double (LazyDouble): Double.parseDouble without hexadecimal. A number out of range becomes infinite."""
    if not data:
        return None
    text = data.strip(_JAVA_BLANKS)
    if not _FLOATING.fullmatch(text) or _looks_null(data):
        raise InvalidField(f"{_shown(data)} is not a number")
    return float(text.rstrip(b"fFdD"))


def _looks_null(data: bytes) -> bool:
    """Return whether Hive regards the field as `NULL`: four bytes that start with N (LazyUtils.isNumberMaybe)."""
    return len(data) == 4 and data[:1] in b"Nn"


def _float(data: bytes) -> float | None:
    """Read a float (LazyFloat). Float.parseFloat rounds the text once; text -> double -> float would round twice."""
    number = _double(data)
    if number is None or isnan(number) or isinf(number):
        return number
    text = data.strip(_JAVA_BLANKS).rstrip(b"fFdD").lstrip(b"+").decode()
    try:
        return float(pc.cast(pa.scalar(text), pa.float32()).as_py())
    except pa.ArrowInvalid:  # older releases of Arrow raise it for numbers out of range
        return copysign(inf, number)


def _decimal(kind: HiveType) -> Read:
    """Return a reader of decimals (FastHiveDecimalImpl). It rounds half up, first to 38 digits, then to the scale."""
    limit = Decimal(10) ** (kind.precision - kind.scale)
    zero = Decimal((0, (0,), -kind.scale))  # Arrow has no negative zero

    def convert(data: bytes) -> Decimal | None:
        if not data:
            return None
        number = _round(_digits(data), kind.scale)
        if number.copy_abs() < limit:
            return number if number else zero
        raise InvalidField(f"{_shown(data)} does not fit {kind}")

    return convert


def _digits(data: bytes) -> Decimal:
    """Parse a number and round it to at most 38 digits before the decimal point and 38 after it."""
    match = _DECIMAL.fullmatch(data)
    if not match:
        raise InvalidField(f"{_shown(data)} is not a decimal number")
    sign, whole, fraction, exponent_sign, exponent = ((part or b"").decode() for part in match.groups())
    if len(whole) > MAX_DIGITS or len(exponent) > 2:
        raise InvalidField(f"{_shown(data)} has more than {MAX_DIGITS} digits")
    number = _round(Decimal(f"{sign}{whole or '0'}.{fraction}"), MAX_DIGITS - len(whole))
    if exponent:
        number = _round(number.scaleb(int(exponent_sign + exponent), _WIDE), MAX_DIGITS)
    if number and number.adjusted() >= MAX_DIGITS:
        raise InvalidField(f"{_shown(data)} has more than {MAX_DIGITS} digits")
    return number


def _round(number: Decimal, scale: int) -> Decimal:
    return number.quantize(Decimal((0, (1,), -scale)), context=_WIDE)


def _boolean(data: bytes) -> bool | None:
    """Read a boolean: true or false in any case (LazyBoolean, without its extended literals)."""
    if not data:
        return None
    lower = data.lower()
    if lower in (b"true", b"false"):
        return lower == b"true"
    raise InvalidField(f"{_shown(data)} is neither true nor false")


def _text(kind: HiveType, escape: int | None) -> Read:
    """Return a reader of text (LazyString, LazyHiveVarchar, LazyHiveChar).

    varchar and char are truncated to `length` code points; char also loses its trailing spaces.
    """

    def convert(data: bytes) -> str:
        if escape is not None and escape in data:
            data = _unescaped(data, escape)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise NotUtf8(f"text is not UTF-8 (byte {error.start} of the field)") from None
        if kind.kind == "string":
            return text
        text = text[: kind.length]
        return text.rstrip(" ") if kind.kind == "char" else text

    return convert


def _unescaped(data: bytes, escape: int) -> bytes:
    r"""Remove escapes: `\n` and `\r` are line ends, other bytes are data (LazyUtils.copyAndEscapeStringDataToText)."""
    return _escape_sequence(escape).sub(lambda match: _LINE_ENDS.get(match[1], match[1]), data)


def _binary(data: bytes) -> bytes:
    """Read bytes (LazyBinary): base64, with or without padding, is decoded; anything else is returned unchanged."""
    if _BASE64.fullmatch(data):
        return binascii.a2b_base64(data + b"=" * (-len(data) % 4))
    return data


def _date(data: bytes) -> int | None:
    """Read a date (LazyDate). Text after the day is ignored unless it starts with a digit."""
    if not data:
        return None
    match = _DATE.match(data.strip(_JAVA_BLANKS)) if len(data) >= _SHORTEST_DATE else None
    return _days(match.groups() if match else (), data, "date")


def _days(parts: tuple[bytes, ...], data: bytes, kind: str) -> int:
    try:
        return date(*map(int, parts)).toordinal() - EPOCH
    except (OverflowError, TypeError, ValueError):
        raise InvalidField(f"{_shown(data)} is not a {kind} in the years 0001 to 9999") from None


def _timestamp(data: bytes) -> int | None:
    """Read a timestamp (LazyTimestamp) in Hive's own form or as ISO_LOCAL_DATE_TIME. A date alone is invalid."""
    if not data:
        return None
    text = data.strip(_JAVA_BLANKS)
    match = _TIMESTAMP.fullmatch(text) or _ISO_TIMESTAMP.fullmatch(text)
    year, month, day, *clock, fraction = match.groups() if match else (b"",) * 7
    days = _days((year, month, day), data, "timestamp")
    hour, minute, second = (int(part or b"0") for part in clock)
    if hour > 23 or minute > 59 or second > 59:
        raise InvalidField(f"{_shown(data)} is not a timestamp")
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    return seconds * NANOS_PER_SECOND + int((fraction or b"").ljust(9, b"0"))


def _complex(kind: HiveType, syntax: FieldSyntax, level: int) -> Read:
    used = 2 if kind.kind == "map" else 1
    if level + used > len(syntax.separators):
        raise ConfigError(
            f"type {kind} is nested too deeply for delimited text, which has only {len(syntax.separators)} separators",
            hint="use a JSON writer for this table",
        )
    children = [_nullable(reader(child, syntax, level + used), syntax.null) for child in kind.children]
    return {"array": _array, "map": _map, "struct": _struct}[kind.kind](children, syntax, level)


def _nullable(read: Read, null: bytes | None) -> Read:
    return lambda data: None if data == null else read(data)


def _array(children: list[Read], syntax: FieldSyntax, level: int) -> Read:
    """Return a reader of arrays (LazyArray). An empty field is an empty array."""
    (element,), separator, escape = children, syntax.separators[level], syntax.escape
    return lambda data: [element(part) for part in split(data, separator, escape)] if data else []


def _struct(children: list[Read], syntax: FieldSyntax, level: int) -> Read:
    """Return a reader of structs (LazyStruct). Missing fields are NULL, and surplus fields are dropped."""
    separator, escape = syntax.separators[level], syntax.escape

    def convert(data: bytes) -> tuple[Any, ...]:
        parts = split(data, separator, escape)[: len(children)]
        values = [child(part) for child, part in zip(children, parts, strict=False)]
        return (*values, *[None] * (len(children) - len(values)))

    return convert


def _map(children: list[Read], syntax: FieldSyntax, level: int) -> Read:
    """Return a reader of maps (LazyMap).

    The first of equal keys wins, NULL keys are dropped, and a key without a separator has the value NULL.
    """
    (read_key, read_value), escape = children, syntax.escape
    between, inside = syntax.separators[level], syntax.separators[level + 1]

    def convert(data: bytes) -> list[tuple[Any, Any]]:
        entries: dict[Any, Any] = {}
        for entry in split(data, between, escape) if data else []:
            parts = split(entry, inside, escape)
            key = read_key(parts[0])
            if key is not None and key not in entries:
                entries[key] = read_value(entry[len(parts[0]) + 1 :]) if len(parts) > 1 else None
        return list(entries.items())

    return convert


_READERS: dict[str, Read] = {
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
}
