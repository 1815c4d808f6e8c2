"""Hive's primitive column types and what they are in Arrow.

Invariant: one Hive type text has one `HiveType`, and every module below and above speaks of columns in these values.
Source of the type texts: Hive's `serdeConstants` and `TypeInfoUtils`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from ingestd.errors import InvalidTable

_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("ns"),
}
_SIZED = re.compile(r"(varchar|char|decimal)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")


@dataclass(frozen=True, slots=True)
class HiveType:
    """One primitive Hive type; `length` for char and varchar, `precision` and `scale` for decimal, else 0."""

    kind: str
    length: int = 0
    precision: int = 0
    scale: int = 0

    @classmethod
    def parse(cls, text: str, *, column: str = "") -> HiveType:
        """Read Hive's text of a type, such as `decimal(10,2)`.

        Raises InvalidTable for complex types, `timestamp with local time zone` and intervals.
        """
        text = text.strip().lower()
        if text in _PLAIN:
            return cls(text)
        if match := _SIZED.fullmatch(text):
            kind, first, second = match.groups()
            if kind == "decimal":
                return cls(kind, precision=int(first or 10), scale=int(second or 0))
            return cls(kind, length=int(first or (255 if kind == "char" else 65535)))
        raise InvalidTable(
            f"type {text} is not supported",
            where=f"column {column}" if column else "",
            hint="use a primitive type: boolean, tinyint … bigint, float, double, decimal, string, varchar, "
            "char, date, timestamp, binary",
        )

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of decoded columns; a timestamp may also come as timestamp[us] when ns cannot hold it."""
        if self.kind == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return _PLAIN.get(self.kind, pa.string())

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return f"{self.kind}({self.length})" if self.length else self.kind


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Hive table; `name` is lower case, as the metastore keeps it."""

    name: str
    type: HiveType
