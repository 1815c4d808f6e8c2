"""Types of configuration keys, for options that a user sets in YAML.

An options dataclass defines each key once: its name, its type, its default and, as metadata of the type, what it means
and how its value is read and checked. `ingestd.config` interprets the metadata; all other code sees ordinary types.

A class attribute `instead_of` contains names that users take for keys of the dataclass, and what to use instead.

Invariant: functions in `Reads` and `Check` return a usable value or raise ValueError with a message that starts with
"must" and never contains the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

T = TypeVar("T")
F = TypeVar("F", int, float)

# The regular expression of a port to which a client can connect.
PORT = "(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"

# Metadata of a dataclass field that is derived and cannot be set in YAML.
NOT_A_KEY = MappingProxyType({"key": False})
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?"
_SIZE = r"(\d{1,999}(?:\.\d{1,999})?)\s*([A-Za-z]*)"
_DECIMAL = r"\d{1,15}(?:\.\d{1,15})?"
_WHOLE = r"\s*[+-]?\d{1,19}\s*"
# The time limit of a socket must be less than 2^31 ms, which are almost 597 h.
_LONGEST_HOURS = 576
_LARGEST = 2**63 - 1
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True)
class Doc:
    """Says what a key means, for editors (`ingestd config schema`). Every key has one."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """Converts the YAML value of a key with `read`; the annotated type is the type of the result.

    `schema` is the JSON Schema of the YAML values. It may accept more values than `read`, but not fewer.
    """

    read: Callable[[object], object]
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Checks a value of the annotated type; `check` returns the value, possibly in normal form.

    `schema` contains the keywords of JSON Schema that express the check.
    """

    check: Callable[[Any], object]
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Shorthand:
    """A value in place of a section that means the same as `{}`: all keys have their defaults."""

    value: bool


class UnshownValueError(ValueError):
    """The value is wrong, and may contain a secret, so the error of the configuration must not repeat it."""


def seconds(value: object) -> float:
    """Parse a duration such as `500ms`, `30s`, `5m` or `1h`; a number without a unit is seconds. Raises ValueError."""
    match = re.fullmatch(_DURATION, str(value).strip())
    if not match:
        raise ValueError("must be a duration such as 500ms, 30s or 5m")
    duration = float(match[1]) * _SECONDS[match[2] or "s"]
    return _positive(_at_most(_LONGEST_HOURS * 3600, duration, f"{_LONGEST_HOURS}h"))


def size(value: object) -> int:
    """Parse a size such as `64KiB` or `1GB` into bytes; a number without a unit is bytes. Raises ValueError."""
    match = re.fullmatch(_SIZE, str(value).strip())
    if not match or match[2].upper() not in _BYTES:
        raise ValueError("must be a size such as 64KiB, 256MiB or 1GB")
    total = int(Decimal(match[1]) * _BYTES[match[2].upper()])
    return _positive(_at_most(_LARGEST, total, "2^63-1 bytes"))


def count(value: object) -> int:
    """Parse a whole number greater than 0. Raises ValueError.

    Text is accepted, because the values of environment variables are text.
    """
    if isinstance(value, str) and re.fullmatch(_WHOLE, value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1:
        raise ValueError("must be a whole number")
    return _positive(int(_at_most(_LARGEST, value, "2^63-1")))


def number(value: object) -> float:
    """Parse a decimal number greater than 0, such as `0.1`. Raises ValueError."""
    if isinstance(value, bool) or not re.fullmatch(_DECIMAL, str(value).strip()):
        raise ValueError("must be a number such as 0.1")
    return _positive(float(str(value)))


def scalar(value: object) -> str | int | float | bool:
    """Return text, a number or a boolean unchanged. Raises ValueError for other values."""
    if not isinstance(value, (str, int, float)):
        raise ValueError("must be text, a number, true or false")
    return value


def matching(pattern: str, sentence: str) -> Check:
    """Return a check that accepts a text if `pattern` (ASCII only) matches all of it.

    For any other text the check raises ValueError(sentence).
    """
    compiled = re.compile(pattern, re.ASCII | re.DOTALL)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(sentence)
        return text

    return Check(check, {"pattern": f"^(?:{pattern})$"})


def _number_schema(pattern: str) -> dict[str, object]:
    """Return the JSON Schema of a number greater than 0, or of a text that matches `pattern`."""
    return {"type": ["number", "string"], "exclusiveMinimum": 0, "pattern": f"^\\s*(?:{pattern})\\s*$"}


def _at_most(limit: float, value: F, text: str) -> F:
    if value > limit:
        raise ValueError(f"must be at most {text}")
    return value


def _positive(value: T) -> T:
    if not value > 0:  # type: ignore[operator]
        raise ValueError("must be greater than 0")
    return value


def _not_empty(values: Sequence[object]) -> Sequence[object]:
    if not values:
        raise ValueError("must have at least one entry")
    return values


Seconds = Annotated[float, Reads(seconds, _number_schema(_DURATION))]
Bytes = Annotated[int, Reads(size, _number_schema(_SIZE))]
Count = Annotated[int, Reads(count, _number_schema(_WHOLE))]
Number = Annotated[float, Reads(number, _number_schema(_DECIMAL))]
# The value of a property that is passed on to librdkafka or Spark.
Setting = Annotated[str | int | float | bool, Reads(scalar, {"type": ["string", "number", "boolean"]})]
NOT_EMPTY = Check(_not_empty, {"minItems": 1})
