"""Converts JSON values to primitive types as Hive's JsonSerDe does, which rejects few values and changes many.

Invariant: `value` returns what Hive stores. It raises InvalidValue where Hive fails, and for what no column can store:
dates and timestamps outside the years 0001 to 9999, and text with an unpaired surrogate.
Source: Hive 4.0.1, `HiveJsonReader.visitLeafNode`, and Jackson's JsonNode; compared with that code on the same values.

| Column | Numbers | Text | true, false | Objects, arrays |
|---|---|---|---|---|
| tinyint … int | without a fraction; whole ones wrap | parsed; 0 if invalid or out of range | 1, 0 | error |
| bigint | the same | the same | 1, 0 | error |
| double, float | the nearest value; may be infinite | parsed as by Java, 0 if invalid | 1, 0 | error |
| decimal(p,s) | a double if it has a fraction; rounded; NULL if too large | rounded; NULL if invalid | NULL | error |
| boolean | whole: whether it is not 0; other: false | whether it is `true` | itself | error |
| string | a double if it has a fraction, so 12.50 is 12.5 | itself | true, false | compact JSON |
| varchar(n), char(n) | the same, truncated | truncated | truncated | error |
| binary | NULL | base64; all else is an error | NULL | error |
| date | error | text after the day is ignored; error if invalid | error | error |
| timestamp | NULL | yyyy-M-d H:m:s[.f] or yyyy-MM-ddTHH:mm[:ss[.f]]; NULL if invalid | NULL | error |
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from ctypes import c_float
from decimal import Decimal
from math import inf, isinf, isnan

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.json.times import DateType, TimestampType, not_in_range
from ingestd.formats.json.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    Instant,
    IntegerType,
    InvalidValue,
    Number,
    PrimitiveType,
    SizedStringType,
    StringType,
    is_text,
    matching,
    shown,
    where,
)
from ingestd.formats.lazysimple.values import FieldSyntax, reader
from ingestd.schema import INTEGER_BITS, HiveType

_JAVA_BLANKS = "".join(map(chr, range(0x21)))  # the characters that String.trim removes
_MAX_DIGITS = 1000  # Jackson's StreamReadConstraints
_EXACT_DIGITS = 15  # of a decimal number that is equal to the text of its nearest double
_FIELD = FieldSyntax(b"")
_ESCAPES = {code: f"\\u{code:04X}" for code in range(32)} | {
    ord(letter): "\\" + name for letter, name in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)
}
_DIGITS = re.compile("-?[0-9]+")
_DOUBLE = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_BASE64_PARTS = re.compile(r"[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==")
_BASE64 = re.compile(rf"(?:[\x00-\x20]*(?:{_BASE64_PARTS.pattern}))*[\x00-\x20]*")
_YEAR = re.compile(r"([+-]?[0-9]+)-[0-9]{1,2}-[0-9]{1,2}[ Tt][0-9]")
_PLAIN_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?"
_PLAIN_TIMESTAMP = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?: [0-9]{2}:[0-9]{2}:[0-9]{2}|T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]{1,9})?"
)
_INEXACT = r"^-?[0-9]+[.eE]|^-0$"  # JSON numbers whose text as a double may differ


class LenientInteger(IntegerType):
    """Types tinyint, smallint, int and bigint. The first three are read as int, and wrap."""

    def value(self, value: object) -> int:
        width = 64 if self.kind.kind == "bigint" else 32
        return _wrapped(_whole(value, width, self.kind), INTEGER_BITS[self.kind.kind])


class LenientDouble(DoubleType):
    """Types double and float. A float is rounded to a double first."""

    def value(self, value: object) -> float:
        number = _double(value, self.kind)
        return c_float(number).value if self.kind.kind == "float" else number

    def decided(self, texts: pa.StringArray, unit: str) -> pa.Array:
        if self.kind.kind == "double":
            return super().decided(texts, unit)
        doubles = LenientDouble(HiveType("double")).decided(texts, unit)
        numbers = pc.cast(doubles, pa.float32(), safe=False)
        return where(pc.is_finite(numbers), numbers)

    def misread(self, numbers: pa.StringArray) -> pa.BooleanArray:
        return pc.equal(numbers, "-0")


class LenientDecimal(DecimalType):
    """Type decimal."""

    def __init__(self, kind: HiveType) -> None:
        super().__init__(kind)
        self._read = reader(kind, _FIELD)

    def value(self, value: object) -> Decimal | None:  # type: ignore[override]
        decimal: Decimal | None = self._read(_text(value, self.kind).encode("utf-8", "surrogatepass"))
        return decimal

    def misread(self, numbers: pa.StringArray) -> pa.BooleanArray:
        is_long = pc.greater(pc.binary_length(numbers), _EXACT_DIGITS + len("."))
        return pc.and_(is_long, pc.match_substring(numbers, "."))


class LenientBoolean(BooleanType):
    """Type boolean."""

    def value(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, Number):
            return _DIGITS.fullmatch(value) is not None and value.strip("-0") != ""
        return _text(value, self.kind).strip(_JAVA_BLANKS) == "true"

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        true = pc.equal(texts, "true")
        return where(pc.or_(true, pc.equal(texts, "false")), true)


class LenientString(StringType):
    """Type string: objects and arrays are compact JSON (JsonNode.toString)."""

    def value(self, value: object) -> str:
        return _encodable(_compact(value) if isinstance(value, (dict, list)) else _text(value, self.kind))

    def misread(self, numbers: pa.StringArray) -> pa.BooleanArray:
        return pc.match_substring_regex(numbers, _INEXACT)


class LenientSizedString(SizedStringType):
    """Types varchar and char."""

    stores_json = False

    def value(self, value: object) -> str:
        text = _encodable(_text(value, self.kind))[: self.kind.length]
        return text.rstrip(" ") if self.kind.kind == "char" else text

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        texts = pc.utf8_slice_codeunits(texts, 0, self.kind.length)
        return pc.utf8_rtrim(texts, characters=" ") if self.kind.kind == "char" else texts

    def misread(self, numbers: pa.StringArray) -> pa.BooleanArray:
        return pc.match_substring_regex(numbers, _INEXACT)


class LenientBinary(BinaryType):
    """Type binary: base64 (MIME without line feeds), with blanks between groups of four."""

    def value(self, value: object) -> bytes | None:  # type: ignore[override]
        text = _text(value, self.kind)
        if isinstance(value, (bool, Number)):
            return None
        if not _BASE64.fullmatch(text):
            raise InvalidValue(f"{shown(value)} is not base64, but the type is binary")
        return b"".join(map(a2b_base64, _BASE64_PARTS.findall(text)))

    def decided(self, texts: pa.StringArray, unit: str) -> pa.Array:
        return super().decided(matching(texts, _PLAIN_BASE64), unit)


class LenientDate(DateType):
    """Type date: text after the day is ignored unless it starts with a digit."""

    def __init__(self, kind: HiveType) -> None:
        super().__init__(kind)
        self._read = reader(kind, _FIELD)

    def value(self, value: object) -> int:
        if isinstance(value, Instant) and value.is_date:
            return super().value(value)
        text = _text(value, self.kind).strip(_JAVA_BLANKS)
        # The reader ignores shorter text, as LazySimpleSerDe does.
        days: int | None = self._read(text.ljust(8).encode("utf-8", "surrogatepass"))
        if days is None:
            raise not_in_range(str(value), "date")
        return days


class LenientTimestamp(TimestampType):
    """Type timestamp: a date alone, and a time with a zone, are NULL."""

    def __init__(self, kind: HiveType) -> None:
        super().__init__(kind)
        self._read = reader(kind, _FIELD)

    def value(self, value: object) -> int | None:  # type: ignore[override]
        if isinstance(value, Instant):
            return super().value(value)
        text = _text(value, self.kind)
        nanos: int | None = self._read(text.encode("utf-8", "surrogatepass"))
        year = _YEAR.match(text.strip(_JAVA_BLANKS)) if nanos is None else None
        if year and not 0 < int(year[1][:10]) < 10_000:
            raise not_in_range(text, "timestamp")
        return nanos

    def decided(self, texts: pa.StringArray, unit: str) -> pa.Array:
        return super().decided(matching(texts, _PLAIN_TIMESTAMP), unit)


LENIENT: dict[str, type[PrimitiveType]] = {
    **dict.fromkeys(INTEGER_BITS, LenientInteger),
    "decimal": LenientDecimal,
    "double": LenientDouble,
    "float": LenientDouble,
    "boolean": LenientBoolean,
    "string": LenientString,
    "varchar": LenientSizedString,
    "char": LenientSizedString,
    "binary": LenientBinary,
    "date": LenientDate,
    "timestamp": LenientTimestamp,
}


def _text(value: object, kind: HiveType) -> str:
    """Return the text of a scalar (JsonNode.asText). Raises InvalidValue for objects and arrays."""
    if isinstance(value, Number):
        return _number_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    raise InvalidValue(f"{shown(value)} is not a scalar, but the type is {kind}")


def _number_text(number: Number) -> str:
    """Return the text of a number: of its double (Double.toString) if it has a fraction or an exponent."""
    if not _DIGITS.fullmatch(number):
        return _double_text(float(number))
    return "0" if number == "-0" else str(number)


def _double_text(number: float) -> str:
    """Return the shortest decimal that rounds to the number, as Double.toString of Java 19 and later writes it."""
    sign = "-" if str(number).startswith("-") else ""
    if isinf(number):
        return f"{sign}Infinity"
    if not number:
        return f"{sign}0.0"
    shortest = Decimal(repr(abs(number))).normalize().as_tuple()
    digits = "".join(map(str, shortest.digits))
    exponent = len(digits) - 1 + int(shortest.exponent)
    if not -3 <= exponent < 7:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    digits = digits.ljust(exponent + 1, "0")
    return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :] or '0'}"


def _whole(value: object, width: int, kind: HiveType) -> int:
    """Return a value as an integer of this number of bits (JsonNode.asInt, asLong)."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Number):
        if not _DIGITS.fullmatch(value):
            return _saturated(float(value), width)
        if len(value) > _MAX_DIGITS:
            raise InvalidValue(f"{shown(value)} has more than {_MAX_DIGITS} digits")
        return _wrapped(int(value), width)
    text = _text(value, kind).strip(_JAVA_BLANKS).removeprefix("+")
    if not _DIGITS.fullmatch(text):
        return _saturated(_parsed(text), width)
    digits = text.lstrip("-0")  # Python refuses to read thousands of zeros as a number
    if len(digits) >= 20:
        return 0
    number = int(digits or "0") * (-1 if text.startswith("-") else 1)
    return number if -(1 << width - 1) <= number < 1 << width - 1 else 0


def _wrapped(number: int, width: int) -> int:
    half = 1 << width - 1
    return (number + half) % (2 * half) - half


def _saturated(number: float, width: int) -> int:
    """Return a double as an integer, as Java's cast does."""
    half = 1 << width - 1
    if isnan(number):
        return 0
    if -half <= number < half:
        return int(number)
    return -half if number < 0 else half - 1


def _double(value: object, kind: HiveType) -> float:
    """Return a value as a double (JsonNode.asDouble)."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, Number):
        return 0.0 if value == "-0" else float(value)
    return _parsed(_text(value, kind))


def _parsed(text: str) -> float:
    """Return the double that Double.parseDouble returns; 0 for invalid text."""
    text = text.strip(_JAVA_BLANKS)
    if _DOUBLE.fullmatch(text):
        return float(text.rstrip("fFdD"))
    if not (match := _HEXADECIMAL.fullmatch(text)):
        return 0.0
    try:
        return float.fromhex(match[1])
    except OverflowError:
        return -inf if text.startswith("-") else inf


def _compact(value: object) -> str:
    """Return a JSON value as text without blanks (JsonNode.toString)."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_compact(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    if value is None:
        return "null"
    text = _text(value, HiveType("string"))
    return _quoted(text) if is_text(value) or text.endswith("Infinity") else text


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue("the text has an unpaired surrogate, which UTF-8 cannot encode") from error
    return text
