"""Converts JSON values to primitive types.

Each type has a class, which defines its rule and contains faster paths that return the same result.

Numbers, booleans, strings and bytes are here; dates and timestamps are in `times`; arrays, maps and structs are in
`nested`.

Invariant: a value is converted exactly, or InvalidValue is raised; nothing is wrapped, truncated or replaced by NULL.
"""

from __future__ import annotations

import binascii
import json
import re
from abc import ABC, abstractmethod
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from math import isfinite, isinf, isnan
from typing import TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.record_decoder import NotColumnar
from ingestd.formats.row_batches import Value
from ingestd.schema import INTEGER_BITS, HiveType

NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_INTEGER = "[0-9]{1,19}"
# What `decided` methods convert. A bigint of 19 digits that begins with 9 may be out of range.
PLAIN_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_PLAIN_INTEGER = r"-?(?:[0-9]{1,18}|[0-8][0-9]{18})(?:\.0*)?"
_BOOLEANS = {"true": True, "false": False}  # case-insensitive
_NOT_FINITE = {"NaN", "Infinity", "-Infinity"}
_FLOAT_MAX = 3e38  # a little less than the largest float
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_match_number = re.compile(NUMBER).fullmatch
_match_integer = re.compile(f"[+-]?{_INTEGER}").fullmatch
EXACT = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])
_WIDE = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation])


class InvalidValue(ValueError):
    """A value does not fit its column. The text is the reason, preceded by the path inside a complex value."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def inside(self, step: str) -> InvalidValue:
        """Return the error with `step` (`.name`, `[3]` or `['key']`) prepended to its path."""
        return InvalidValue(self.reason, step + self.path)

    def __str__(self) -> str:
        return f"{self.path.removeprefix('.')}: {self.reason}" if self.path else self.reason


class Number(str):
    """The text of a JSON number, exactly as it was written."""

    __slots__ = ()


class Instant(Number):
    """A number that a schema describes as a date or a point in time: `nanos` since 1970, for a date until midnight."""

    nanos: int
    is_date: bool

    @classmethod
    def of(cls, number: Number, nanos_per_unit: int, *, is_date: bool) -> Instant:
        """Return the point in time that a whole number of units describes."""
        instant = cls(number)
        instant.nanos, instant.is_date = int(number) * nanos_per_unit, is_date
        return instant


class ZonedDate(str):
    """The text of a date and a zone that a schema describes as a date. The zone does not change the date."""

    __slots__ = ()


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a JSON value is a string, of a date or not."""
    return type(value) is str or type(value) is ZonedDate


class PrimitiveType(ABC):
    """Converts JSON values to one primitive type.

    `value` defines the conversion. `column`, `decided` and `is_plain` are faster and cover only the common notations.
    Their results agree with `value`.
    """

    read_as_text = False  # whether pyarrow's JSON reader always reads the column as strings
    only_text = False  # whether only JSON strings are accepted, no numbers and booleans
    stores_json = False  # whether objects and arrays are accepted

    def __init__(self, kind: HiveType) -> None:
        self.kind = kind

    @abstractmethod
    def value(self, value: object) -> Value:
        """Convert a JSON value (str, Number, bool, list or dict; never None) for a row. Raises InvalidValue."""

    def column(self, array: pa.Array) -> pa.Array:
        """Convert a column that pyarrow's JSON reader has read, as this type or as strings, to the type's Arrow type.

        Raises NotColumnar or pa.ArrowInvalid if the result is not certain; `value` then converts each value.
        """
        return array

    @abstractmethod
    def decided(self, texts: pa.StringArray, unit: str) -> pa.Array:
        """Convert the texts of JSON values. A text becomes null if it is not in a common notation, or does not fit.

        The result has the type's Arrow type, with timestamps in the given unit, ns or us.
        """

    def refused(self, texts: pa.StringArray) -> pa.BooleanArray:
        """Return which of the texts of JSON values `value` certainly rejects. Others may be rejected, too."""
        return pa.repeat(pa.scalar(value=False), len(texts))

    def refused_floats(self, numbers: pa.FloatingPointArray) -> pa.BooleanArray:
        """Return which numbers `value` certainly rejects, of which these are the nearest double-precision numbers."""
        return pa.repeat(pa.scalar(value=False), len(numbers))

    def misread(self, numbers: pa.StringArray) -> pa.BooleanArray:
        """Return which texts `decided` may convert wrongly if they are JSON numbers and not strings."""
        return pa.repeat(pa.scalar(value=False), len(numbers))

    def is_plain(self, _value: object) -> bool:
        """Return whether `value` certainly accepts a JSON value whose numbers were parsed as int and float."""
        return False


class IntegerType(PrimitiveType):
    """Types tinyint, smallint, int and bigint: accept a whole number in range, or its text."""

    def __init__(self, kind: HiveType) -> None:
        super().__init__(kind)
        self._limit = 1 << (INTEGER_BITS[kind.kind] - 1)

    def value(self, value: object) -> int:
        text = _number_text(value, self.kind)
        number = int(text) if _match_integer(text) else self._whole(text)
        if -self._limit <= number < self._limit:
            return number
        raise self._out_of_range(value)

    def column(self, array: pa.Array) -> pa.Array:
        return _parse_numbers(array, self.kind.arrow, f"^-?{_INTEGER}$")  # Arrow's cast rejects a plus sign

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        digits = matching(texts, _PLAIN_INTEGER)
        if pc.any(pc.match_substring(digits, "."), min_count=0).as_py():
            digits = pc.replace_substring_regex(digits, r"\.0*$", "")
        numbers = pc.cast(digits, pa.int64())
        fits = pc.and_(pc.greater_equal(numbers, -self._limit), pc.less_equal(numbers, self._limit - 1))
        return pc.cast(where(fits, numbers), self.kind.arrow)

    def refused(self, texts: pa.StringArray) -> pa.BooleanArray:
        limit = str(self._limit)
        digits = pc.utf8_ltrim(matching(texts, rf"-?[1-9][0-9]{{{len(limit) - 1}}}"), characters="-")
        too_large = pc.greater(digits, limit).fill_null(fill_value=False)
        unfit = rf"[+-]?(?:[0-9]*\.[0-9]*[1-9][0-9]*|[1-9][0-9]{{{len(limit)},}}(?:\.[0-9]*)?)"
        return pc.or_(unlike(texts, NUMBER), pc.or_(too_large, like(texts, unfit)))

    def refused_floats(self, numbers: pa.FloatingPointArray) -> pa.BooleanArray:
        is_whole = pc.equal(numbers, pc.floor(numbers))
        fits = pc.less_equal(pc.abs(numbers), float(self._limit))
        return pc.invert(pc.and_(is_whole, fits)).fill_null(fill_value=False)

    def is_plain(self, value: object) -> bool:
        return type(value) is int and -self._limit <= value < self._limit

    def _whole(self, text: str) -> int:
        """Parse a whole number that is written with a decimal point or an exponent."""
        try:
            number = Decimal(text)
        except InvalidOperation:
            raise self._out_of_range(text) from None
        if not number:
            return 0
        if number.adjusted() > 19:
            raise self._out_of_range(text)
        if number.adjusted() < 0 or number != number.to_integral_value(context=_WIDE):
            raise InvalidValue(f"{shown(text)} is not a whole number, but the type is {self.kind}")
        return int(number)

    def _out_of_range(self, value: object) -> InvalidValue:
        return InvalidValue(f"{shown(value)} is out of range for {self.kind}")


class DecimalType(PrimitiveType):
    """Type decimal: accepts a number, or its text, that fits the precision and the scale exactly."""

    def __init__(self, kind: HiveType) -> None:
        super().__init__(kind)
        self._unit = Decimal((0, (1,), -kind.scale))
        self._zero = Decimal((0, (0,), -kind.scale))  # Arrow has no negative zero
        self._limit = Decimal(10) ** (kind.precision - kind.scale)

    def value(self, value: object) -> Decimal:
        try:
            number = Decimal(_number_text(value, self.kind)).quantize(self._unit, context=EXACT)
        except (Inexact, InvalidOperation):
            raise self._not_exact(value) from None
        if number.copy_abs() < self._limit:
            return number or self._zero
        raise self._not_exact(value)

    def column(self, array: pa.Array) -> pa.Array:
        array = _parse_numbers(array, self.kind.arrow, f"^(?:{NUMBER})$")
        array.validate(full=True)  # the JSON reader accepts 123456789.1 for decimal(10,2)
        return array

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        whole, scale = self.kind.precision - self.kind.scale, self.kind.scale
        digits = f"-?[0-9]{{1,{whole}}}" if whole else "-?0"
        fraction = f"(?:\\.[0-9]{{1,{scale}}})?" if scale else ""
        return pc.cast(matching(texts, digits + fraction), self.kind.arrow)

    def refused(self, texts: pa.StringArray) -> pa.BooleanArray:
        whole, scale = self.kind.precision - self.kind.scale, self.kind.scale
        too_large = rf"[+-]?0*[1-9][0-9]{{{whole},}}(?:\.[0-9]*)?"
        too_fine = rf"[+-]?[0-9]*\.[0-9]{{{scale}}}[0-9]*[1-9][0-9]*"
        return pc.or_(unlike(texts, NUMBER), like(texts, f"{too_large}|{too_fine}"))

    def refused_floats(self, numbers: pa.FloatingPointArray) -> pa.BooleanArray:
        scaled = pc.abs(pc.multiply(numbers, 10.0**self.kind.scale))
        # The errors of these bounds are a hundred times smaller than their distances.
        too_large = pc.greater(scaled, 10.0**self.kind.precision * (1 + 1e-9))
        too_fine = pc.greater(pc.abs(pc.subtract(scaled, pc.round(scaled))), 1e-2)
        too_fine = pc.and_(too_fine, pc.less(scaled, 1e12))
        return pc.or_(too_large, too_fine).fill_null(fill_value=False)

    def _not_exact(self, value: object) -> InvalidValue:
        return InvalidValue(f"{shown(value)} does not fit {self.kind} exactly")


class DoubleType(PrimitiveType):
    """Type double: accepts "NaN", "Infinity", "-Infinity", and a number or its text, rounded to the nearest value."""

    max_plain = float("inf")

    def value(self, value: object) -> float:
        if type(value) is str and value in _NOT_FINITE:
            return float(value)
        number = float(_number_text(value, self.kind))
        if isinf(number):
            raise self._out_of_range(value)
        return number

    def column(self, array: pa.Array) -> pa.Array:
        array = _parse_numbers(array, self.kind.arrow, f"^(?:{NUMBER})$")
        require(pc.is_finite(array))  # excludes overflows and the literal NaN, which the JSON reader accepts
        return array

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        numbers = pc.cast(matching(texts, PLAIN_NUMBER), self.kind.arrow)
        return where(pc.is_finite(numbers), numbers)

    def refused(self, texts: pa.StringArray) -> pa.BooleanArray:
        return unlike(texts, "|".join((NUMBER, *_NOT_FINITE)))

    def is_plain(self, value: object) -> bool:
        if type(value) is not float and type(value) is not int:
            return False
        try:
            number = abs(float(value))
        except OverflowError:
            return False
        return isfinite(number) and number <= self.max_plain

    def _out_of_range(self, value: object) -> InvalidValue:
        return InvalidValue(f"{shown(value)} is out of range for {self.kind}")


class FloatType(DoubleType):
    """Type float: accepts the same values as double, rounded to the nearest float."""

    max_plain = _FLOAT_MAX

    def value(self, value: object) -> float:
        number = super().value(value)
        if isnan(number) or isinf(number):
            return number
        # Arrow rounds the text once; text -> double -> float would round twice.
        single = pc.cast(pa.scalar(str(value)), pa.float32()).as_py()
        if isinf(single):
            raise self._out_of_range(value)
        return float(single)


class BooleanType(PrimitiveType):
    """Type boolean: accepts true, false, and these words as text in any case."""

    def value(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if type(value) is str and (boolean := _BOOLEANS.get(value.lower())) is not None:
            return boolean
        raise InvalidValue(f"{shown(value)} is neither true nor false")

    def column(self, array: pa.Array) -> pa.Array:
        if not pa.types.is_string(array.type):
            return array
        lower = pc.ascii_lower(array)
        true = pc.equal(lower, "true")
        require(pc.or_(true, pc.equal(lower, "false")))
        return true

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        lower = pc.ascii_lower(texts)
        true = pc.equal(lower, "true")
        return where(pc.or_(true, pc.equal(lower, "false")), true)

    def refused(self, texts: pa.StringArray) -> pa.BooleanArray:
        return unlike(texts, "(?i:true|false)")

    def is_plain(self, value: object) -> bool:
        return type(value) is bool


class StringType(PrimitiveType):
    """Type string: stores text unchanged, numbers as they are written, and anything else as compact JSON."""

    read_as_text = True
    stores_json = True

    def value(self, value: object) -> str:
        return str(text_of(value))

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        return texts

    def is_plain(self, value: object) -> bool:
        return type(value) is str and value.isascii()


class SizedStringType(StringType):
    """Types varchar and char: accept the same values as string, with at most `length` characters.

    Trailing spaces of a char are removed first.
    """

    def value(self, value: object) -> str:
        text = text_of(value)
        if self.kind.kind == "char":
            text = text.rstrip(" ")
        if len(text) > self.kind.length:
            raise InvalidValue(f"text of {len(text)} characters is longer than {self.kind}")
        return text

    def column(self, array: pa.Array) -> pa.Array:
        if self.kind.kind == "char":
            array = pc.utf8_rtrim(array, characters=" ")
        longest = pc.max(pc.utf8_length(array)).as_py()
        if longest is not None and longest > self.kind.length:
            raise NotColumnar
        return array

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        if self.kind.kind == "char":
            texts = pc.utf8_rtrim(texts, characters=" ")
        return where(pc.less_equal(pc.utf8_length(texts), self.kind.length), texts)

    def refused(self, texts: pa.StringArray) -> pa.BooleanArray:
        if self.kind.kind == "char":
            texts = pc.utf8_rtrim(texts, characters=" ")
        return pc.greater(pc.utf8_length(texts), self.kind.length).fill_null(fill_value=False)

    def is_plain(self, value: object) -> bool:
        return type(value) is str and len(value) <= self.kind.length and value.isascii()


class BinaryType(PrimitiveType):
    """Type binary: decodes text that is valid base64, and stores other text as UTF-8 bytes (HiveJsonReader)."""

    read_as_text = True
    only_text = True

    def value(self, value: object) -> bytes:
        if not is_text(value):
            raise InvalidValue(f"{shown(value)} is not a string, but the type is binary")
        return _bytes_of(text_of(value))

    def column(self, array: pa.Array) -> pa.Array:
        return pa.array([None if text is None else _bytes_of(text) for text in array.to_pylist()], self.kind.arrow)

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        return self.column(texts)


def text_of(value: object) -> str:
    """Return a JSON value as text: strings and numbers as written, others as compact JSON (Jackson's toString).

    Raises InvalidValue for an unpaired surrogate.
    """
    text = value if isinstance(value, str) else _dump(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue("the text has an unpaired surrogate, which UTF-8 cannot encode") from error
    return text


def shown(value: object) -> str:
    """Return the text that represents a value in reject reasons, at most 40 characters long."""
    text = _dump(value) if not isinstance(value, str) else repr(str(value))
    return text if len(text) <= 40 else text[:37] + "..."


def matching(texts: pa.StringArray, pattern: str) -> pa.StringArray:
    """Return the texts with null in place of those that do not match the whole pattern."""
    return where(_matches(texts, pattern), texts)


def like(texts: pa.StringArray, pattern: str) -> pa.BooleanArray:
    """Return which texts match the whole pattern."""
    return _matches(texts, pattern).fill_null(fill_value=False)


def unlike(texts: pa.StringArray, pattern: str) -> pa.BooleanArray:
    """Return which texts do not match the whole pattern; null does."""
    return pc.invert(_matches(texts, pattern)).fill_null(fill_value=False)


def _matches(texts: pa.StringArray, pattern: str) -> pa.BooleanArray:
    """Return which texts match the whole pattern; null for null."""
    return pc.match_substring_regex(texts, f"^(?:{pattern})$")


def where(condition: pa.BooleanArray, array: pa.Array) -> pa.Array:
    """Return the array with null where the condition is not true."""
    if condition.null_count == array.null_count and pc.all(condition, min_count=0).as_py():
        return array
    return pc.if_else(condition, array, pa.scalar(None, array.type))


def require(mask: pa.Array) -> None:
    """Raise NotColumnar unless every non-null value of the mask is true."""
    if not pc.all(mask, min_count=0).as_py():
        raise NotColumnar


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


def _number_text(value: object, kind: HiveType) -> str:
    if isinstance(value, str) and (type(value) is Number or _match_number(value)):
        return value
    raise InvalidValue(f"{shown(value)} is not a number, but the type is {kind}")


def _parse_numbers(array: pa.Array, target: pa.DataType, pattern: str) -> pa.Array:
    """Convert a column that may have been read as text to numbers.

    The pattern excludes notations that Arrow's cast accepts but JSON does not: hexadecimal, `nan`, `inf`.
    """
    if not pa.types.is_string(array.type):
        return array
    require(pc.match_substring_regex(array, pattern))
    return pc.cast(array, target)


def _bytes_of(text: str) -> bytes:
    if len(text) % 4 == 0 and _BASE64.fullmatch(text):
        return binascii.a2b_base64(text)
    return text.encode()
