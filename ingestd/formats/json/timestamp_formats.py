"""The notations in which JSON values contain timestamps, if the configuration names them.

Invariant: the first format whose notation a value has decides; it converts the value exactly or rejects it.

| Format | Values |
|---|---|
| `iso` | what a timestamp column accepts by default: a date, or date[ T]HH[:mm[:ss[.f]]] with or without a zone |
| `epoch_s`, `epoch_ms`, `epoch_us` | a number, or its text, of seconds, ms or µs since 1970 in UTC, with a fraction |
| a pattern | text, or a number as it is written, such as `dd/MM/yyyy HH:mm:ss.SSS` |

A pattern consists of letters of Java's DateTimeFormatter: yyyy, MM, dd, HH, mm, ss, S (once per digit), and for the
zone X, XX, XXX or Z. Letters between single quotes, and all other characters, stand for themselves.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal, Inexact, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.json.times import (
    TIMESTAMP,
    TIMESTAMP_LIMITS,
    instant_nanos,
    not_in_range,
    timestamp_column,
    timestamp_nanos,
)
from ingestd.formats.json.types import EXACT, NUMBER, Instant, InvalidValue, PrimitiveType, matching, shown, where
from ingestd.formats.row_batches import (
    FIRST_SECOND,
    LAST_SECOND,
    NANOS_PER_SECOND,
)
from ingestd.schema import HiveType

DEFAULT_FORMATS = ("iso",)
_DIGITS = {"epoch_s": 9, "epoch_ms": 6, "epoch_us": 3}  # decimal places of a nanosecond
_EPOCH_TEXT = "-?[0-9]{1,%d}%s"  # what `_Epoch.column` converts
_PART = re.compile(r"'((?:[^']|'')*)'|(([A-Za-z])\3*)|[^A-Za-z']")
_TWO = "[0-9]{2}"
_FIELDS = {
    "yyyy": "[0-9]{4}",
    **dict.fromkeys(("MM", "dd", "HH", "mm", "ss"), _TWO),
    **{"S" * digits: f"[0-9]{{{digits}}}" for digits in range(1, 10)},
    "X": f"Z|[+-]{_TWO}(?:{_TWO})?",
    "XX": f"Z|[+-]{_TWO}{_TWO}",
    "XXX": f"Z|[+-]{_TWO}:{_TWO}",
    "Z": f"[+-]{_TWO}{_TWO}",
}
_NEEDS = {"y": "", "M": "y", "d": "M", "H": "d", "m": "H", "s": "m", "S": "s", "X": "H"}
_BEFORE = {"y": "", "M": "-", "d": "-", "H": " ", "m": ":", "s": ":", "S": ".", "X": ""}  # in ISO notation


class TimestampFormat(ABC):
    """One notation of timestamps. `syntax` is the pattern, in the language of RE2, of the texts that it decides."""

    syntax: str

    @abstractmethod
    def nanos(self, text: str) -> int:
        """Convert a text that has the notation to nanoseconds since 1970. Raises InvalidValue."""

    @abstractmethod
    def column(self, texts: pa.StringArray, unit: str) -> pa.Array:
        """Convert texts that have the notation, or are null; see `PrimitiveType.decided`."""


class FormattedTimestampType(PrimitiveType):
    """Type timestamp: accepts the values that have one of the given notations."""

    read_as_text = True

    def __init__(self, kind: HiveType, formats: Sequence[str]) -> None:
        """`formats` are names or patterns; see `parse_format`."""
        super().__init__(kind)
        self._names = ", ".join(formats)
        self._formats = [(re.compile(form.syntax).fullmatch, form) for form in map(parse_format, formats)]

    def value(self, value: object) -> int:
        if isinstance(value, Instant):  # the schema in the record is more precise than the configuration
            return instant_nanos(value)
        if isinstance(value, str):
            for matches, form in self._formats:
                if matches(value):
                    return form.nanos(value)
        raise InvalidValue(f"{shown(value)} has none of the timestamp formats {self._names}")

    def decided(self, texts: pa.StringArray, unit: str) -> pa.Array:
        stamps = pa.nulls(len(texts), pa.timestamp(unit))
        for _, form in self._formats:
            if texts.null_count == len(texts):
                break
            own = matching(texts, form.syntax)
            stamps = pc.coalesce(stamps, form.column(own, unit))
            texts = where(pc.and_(texts.is_valid(), own.is_null()), texts)
        return stamps


def parse_format(text: str) -> TimestampFormat:
    """Return the format with this name or pattern. Raises ValueError."""
    if text == "iso":
        return _Iso()
    return _Epoch(text) if text in _DIGITS else _Pattern(text)


class _Iso(TimestampFormat):
    syntax = TIMESTAMP

    def nanos(self, text: str) -> int:
        return timestamp_nanos(text)

    def column(self, texts: pa.StringArray, unit: str) -> pa.Array:
        return timestamp_column(texts, unit)


class _Pattern(TimestampFormat):
    """Rewrites texts to the notation `iso`: they have the same parts, in another order and with other separators."""

    def __init__(self, pattern: str) -> None:
        self.syntax, groups = _syntax_of(pattern)
        self._match = re.compile(self.syntax)
        minute = ":00" if "H" in groups and "m" not in groups else ""
        before = _BEFORE | {"X": minute}
        self._iso = "".join(f"{before[letter]}\\{groups[letter]}" for letter in _BEFORE if letter in groups)
        if "X" not in groups:
            self._iso += minute

    def nanos(self, text: str) -> int:
        try:
            return timestamp_nanos(self._match.sub(self._iso, text))
        except InvalidValue:
            raise not_in_range(text, "timestamp") from None

    def column(self, texts: pa.StringArray, unit: str) -> pa.Array:
        return timestamp_column(pc.replace_substring_regex(texts, f"^(?:{self.syntax})$", self._iso), unit)


class _Epoch(TimestampFormat):
    """Seconds, milliseconds or microseconds since 1970."""

    syntax = NUMBER

    def __init__(self, name: str) -> None:
        self._name = name
        self._digits = _DIGITS[name]

    def nanos(self, text: str) -> int:
        try:
            nanos = int(Decimal(text).scaleb(self._digits, EXACT).quantize(Decimal(1), context=EXACT))
        except (Inexact, InvalidOperation):
            raise self._unfit(text) from None
        if FIRST_SECOND <= nanos // NANOS_PER_SECOND <= LAST_SECOND:
            return nanos
        raise self._unfit(text)

    def column(self, texts: pa.StringArray, unit: str) -> pa.Array:
        scale = self._digits - (0 if unit == "ns" else 3)
        fraction = f"(?:\\.[0-9]{{1,{scale}}})?" if scale else ""
        kind = pa.decimal128(38, scale)
        numbers = pc.cast(matching(texts, _EPOCH_TEXT % (38 - 9 - scale, fraction)), kind)
        first, last = (Decimal(limit).scaleb(-scale) for limit in TIMESTAMP_LIMITS[unit])
        fits = pc.and_(pc.greater_equal(numbers, pa.scalar(first, kind)), pc.less_equal(numbers, pa.scalar(last, kind)))
        numbers = where(fits, numbers)
        # A decimal is stored as its number of units, here of `unit`, in 128 bits, of which those that fit need 64.
        units = np.frombuffer(numbers.buffers()[1], "<i8")[2 * numbers.offset :][: 2 * len(numbers) : 2]
        return pa.array(units, mask=~numbers.is_valid().to_numpy(zero_copy_only=False)).view(pa.timestamp(unit))

    def _unfit(self, text: str) -> InvalidValue:
        return InvalidValue(f"{shown(text)} is not a timestamp ({self._name}) in the years 0001 to 9999")


def _syntax_of(pattern: str) -> tuple[str, dict[str, int]]:
    """Return the regular expression of a pattern, and the group of each letter. Raises ValueError."""
    syntax, groups, place = "", dict[str, int](), 0
    while place < len(pattern):
        match = _PART.match(pattern, place)
        letters = match[2] if match else ""
        letter = "X" if letters == "Z" else letters[:1] if letters else ""
        if not match or (letters and (letters not in _FIELDS or letter in groups)):
            raise _wrong_pattern()
        if letters:
            groups[letter] = len(groups) + 1
            syntax += f"({_FIELDS[letters]})"
        else:
            literal = match[0] if match[1] is None else match[1].replace("''", "'") or "'"
            syntax += re.escape(literal)
        place = match.end()
    if not {"y", "M", "d"} <= set(groups) or any(need and need not in groups for need in map(_NEEDS.get, groups)):
        raise _wrong_pattern()
    return syntax, groups


def _wrong_pattern() -> ValueError:
    return ValueError(
        "must be iso, epoch_s, epoch_ms, epoch_us or a pattern of yyyy, MM, dd, HH, mm, ss, S to SSSSSSSSS,"
        " X, XX, XXX and Z, such as dd/MM/yyyy HH:mm:ss"
    )
