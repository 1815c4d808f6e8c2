"""Computes the value of a partition column from another column of the row, as in `date_format(ts, 'yyyy-MM-dd')`.

Invariant: the value is the one that Hive's function of the same name returns and its INSERT casts to the type of the
partition column, and NULL if the column is NULL. An expression for which this is not certain is refused. `header`,
which Hive does not have, returns the value of a column that contains a header of the record in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.errors import InvalidTable
from ingestd.schema import INTEGER_BITS, Column, HiveType

KAFKA_TIMESTAMP = "kafka.timestamp"
KAFKA_HEADER = "kafka.header."

_CALL = re.compile(r"\s*([a-z_]\w*)\(\s*(\w+|kafka\.timestamp)\s*(?:,(.*))?\)\s*", re.IGNORECASE | re.ASCII | re.DOTALL)
_LOOKS_LIKE_A_CALL = re.compile(r"\s*[a-z_]\w*\(.*\)\s*", re.IGNORECASE | re.ASCII | re.DOTALL)
_HEADER = re.compile(r"""\s*header\(\s*(['"])(.+)\1\s*\)\s*""", re.IGNORECASE | re.DOTALL)
_SUBSTR = re.compile(r"\s*([1-9][0-9]{0,8})\s*(?:,\s*([1-9][0-9]{0,8})\s*)?")
# In java.time patterns, which Hive uses, other letters and these characters have meanings of their own.
_TOKEN = re.compile(r"yyyy|MM|dd|HH|mm|ss|[A-Za-z]+|['\"\[\]{}#]|[^A-Za-z'\"\[\]{}#]+")
_UNUSABLE = re.compile(r"[A-Za-z'\"\[\]{}#]")
_FIELDS = {"yyyy": pc.year, "MM": pc.month, "dd": pc.day, "HH": pc.hour, "mm": pc.minute, "ss": pc.second}
_UNITS = {"ss": "second", "mm": "minute", "HH": "hour"}  # from the smallest
_NUMBERS = {"year": pc.year, "month": pc.month, "day": pc.day, "hour": pc.hour, "minute": pc.minute}
_LARGEST = {"year": 9999, "month": 12, "day": 31, "hour": 23, "minute": 59}
_UNLIMITED = 1 << 64
_TEXTS = ("string", "varchar")
FUNCTIONS = ("year", "month", "day", "hour", "minute", "to_date", "date_format", "substr", "lower", "upper", "header")


@dataclass(frozen=True, slots=True)
class PartitionExpression:
    """A function of the column `column`.

    The column is KAFKA_TIMESTAMP for the timestamp of the record in Kafka, and KAFKA_HEADER with a name for a header.

    `tokens` are the parts of the pattern of date_format. `start`, from 1, and `length` (None: the rest) belong to
    substr; both count code points.
    """

    function: str
    column: str
    tokens: tuple[str, ...] = ()
    start: int = 1
    length: int | None = None

    @classmethod
    def parse(cls, text: str) -> PartitionExpression | None:
        """Parse an expression; return None if the text is a value, because it does not have the form `name(...)`.

        Raises ValueError, with text for the user, for an unknown function and for wrong arguments.
        """
        if not _LOOKS_LIKE_A_CALL.fullmatch(text):
            return None
        function = text.partition("(")[0].strip().lower()
        if function not in FUNCTIONS:
            raise ValueError(f"must be a value or a call of {', '.join(FUNCTIONS)}")
        if function == "header":
            name = _HEADER.fullmatch(text)
            if name is None:
                raise ValueError("header must have the name of a header in quotes, as in header('region')")
            return cls(function, KAFKA_HEADER + name[2])
        match = _CALL.fullmatch(text)
        if match is None:
            raise ValueError(f"the first argument of {function} must be a column")
        column, rest = match[2].lower(), match[3]
        if function == "date_format":
            return cls(function, column, tokens=_tokens((rest or "").strip()))
        if function == "substr":
            place = _SUBSTR.fullmatch(rest or "")
            if place is None:
                raise ValueError("substr must have a start of at least 1, and may have a length, as in substr(c, 1, 2)")
            return cls(function, column, start=int(place[1]), length=int(place[2]) if place[2] else None)
        if rest is not None:
            raise ValueError(f"{function} must have one argument, a column")
        return cls(function, column)

    def check(self, target: Column, columns: Mapping[str, HiveType]) -> None:
        """Raise InvalidTable if the value cannot be stored in the partition column `target` of a table.

        `columns` contains the types of the columns that the expression may use, by name.
        """
        kind = columns.get(self.column)
        if kind is None:
            raise InvalidTable(
                f"{self.function} uses {self.column}, which is not a column of the table or is a partition column",
                where=f"partition column {target.name}",
                hint=f"use one of {', '.join(columns)}",
            )
        accepted = self._accepted
        if kind.kind not in accepted:
            raise InvalidTable(
                f"{self.function} cannot be applied to the column {self.column} of type {kind}",
                where=f"partition column {target.name}",
                hint=f"use a column of type {' or '.join(accepted)}",
            )
        if not self._fits(target.type, kind):
            raise InvalidTable(
                f"the value of {self.function} may not fit the type {target.type}",
                where=f"partition column {target.name}",
                hint="recreate the table with a partition column of type string, or use another expression",
            )

    def evaluate(self, target: HiveType, array: pa.Array) -> pa.Array:
        """Return the value for each value of the column, in the Arrow type of the partition column's type `target`."""
        if self.function in _NUMBERS:
            return pc.cast(_NUMBERS[self.function](array), target.arrow)
        if self.function == "to_date":
            return pc.cast(pc.cast(array, pa.date32()), target.arrow)
        if self.function == "header":
            return array
        if self.function == "date_format":
            return pc.cast(_of_distinct(self._formatted, self._truncated(array)), target.arrow)
        return _of_distinct(self._text, array)

    @property
    def _accepted(self) -> tuple[str, ...]:
        if self.function in ("substr", "lower", "upper", "header"):
            return _TEXTS
        return ("timestamp",) if self._uses_time else ("timestamp", "date")

    @property
    def _uses_time(self) -> bool:
        return self.function in ("hour", "minute") or any(token in _UNITS for token in self.tokens)

    def _fits(self, target: HiveType, source: HiveType) -> bool:
        """Whether the partition column can store every value. Hive truncates other values, or stores NULL instead."""
        if target.kind == "string":
            return True
        if target.kind in INTEGER_BITS:
            return bool(self._largest < 1 << INTEGER_BITS[target.kind] - 1)
        if target.kind == "varchar":
            return self._most_characters(source) <= target.length
        return self.function == "to_date" and target.kind == "date"

    @property
    def _largest(self) -> int:
        """The largest value if all values are numbers."""
        if self.function == "date_format" and all(token in _FIELDS for token in self.tokens):
            return int("9" * len("".join(self.tokens)))
        return _LARGEST.get(self.function, _UNLIMITED)

    def _most_characters(self, source: HiveType) -> int:
        """Return the length of the longest value for a column of type `source`."""
        if self.function == "date_format":
            return len("".join(self.tokens))
        if self.function == "substr" and self.length is not None:
            return self.length
        if self.function == "to_date":
            return len("yyyy-MM-dd")
        if self.function in _LARGEST:
            return len(str(_LARGEST[self.function]))
        return source.length if self.function == "substr" and source.length else _UNLIMITED  # upper("ß") is "SS"

    def _truncated(self, array: pa.Array) -> pa.Array:
        """Return dates, or timestamps in microseconds without the part that the pattern does not show.

        The hour or the minute in which the range of nanoseconds begins does not begin inside of it.
        """
        for token, unit in _UNITS.items():
            if token in self.tokens:
                return pc.floor_temporal(_in_microseconds(array), unit=unit)
        return pc.cast(array, pa.date32())

    def _formatted(self, array: pa.Array) -> pa.Array:
        pieces = []
        for token in self.tokens:
            if token in _FIELDS:
                text = pc.cast(_FIELDS[token](array), pa.string())
                pieces.append(pc.utf8_lpad(text, width=len(token), padding="0"))
            else:
                pieces.append(pa.scalar(token))
        return pc.binary_join_element_wise(*pieces, "")

    def _text(self, array: pa.Array) -> pa.Array:
        if self.function == "substr":
            first = self.start - 1
            return pc.utf8_slice_codeunits(array, first, None if self.length is None else first + self.length)
        # Arrow maps characters one by one. Java, as Python, maps "ß" to "SS" and considers where a sigma is.
        change = str.lower if self.function == "lower" else str.upper
        return pa.array([None if value is None else change(value) for value in array.to_pylist()], array.type)


def _tokens(text: str) -> tuple[str, ...]:
    """Return the parts of a quoted pattern. Raises ValueError for characters without a meaning here."""
    if len(text) < 3 or text[0] not in "'\"" or text[0] != text[-1]:
        raise ValueError("date_format must have a pattern in quotes, as in date_format(ts, 'yyyy-MM-dd')")
    tokens = tuple(_TOKEN.findall(text[1:-1]))
    for token in tokens:
        if token not in _FIELDS and _UNUSABLE.search(token):
            raise ValueError(f"date_format does not support {token} in a pattern; use yyyy, MM, dd, HH, mm and ss")
    if not any(token in _FIELDS for token in tokens):
        raise ValueError("the pattern of date_format must contain yyyy, MM, dd, HH, mm or ss")
    return tokens


def _in_microseconds(array: pa.Array) -> pa.Array:
    """Return timestamps rounded down to microseconds, also those before 1970."""
    if array.type.unit != "ns":
        return array
    numbers = array.view(pa.int64())
    quotients = pc.divide(numbers, 1000)  # rounded toward 0
    is_above = pc.greater(pc.multiply(quotients, 1000), numbers)
    return pc.subtract(quotients, pc.cast(is_above, pa.int64())).view(pa.timestamp("us"))


def _of_distinct(function: Callable[[pa.Array], pa.Array], array: pa.Array) -> pa.Array:
    """Apply a function of each value to the distinct values only, which are few in a partition column."""
    encoded = pc.dictionary_encode(array)
    return function(encoded.dictionary).take(encoded.indices)
