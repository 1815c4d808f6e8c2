"""Hive's column types and their Arrow equivalents.

Invariant: equal Hive types have equal `HiveType` values; every module describes columns with these values.
Source of the type names: Hive's `serdeConstants` and `TypeInfoUtils`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from ingestd.errors import InvalidTable

_PRIMITIVES = {
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
INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SIZED = re.compile(r"(varchar|char|decimal)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_COMPLEX = re.compile(r"(array|map|struct)\s*<(.*)>", re.DOTALL)
_ARITY = {"array": 1, "map": 2}
_USABLE = (
    "use boolean, tinyint, smallint, int, bigint, float, double, decimal, string, varchar, char, date, timestamp, "
    "binary, or array, map and struct of these"
)


@dataclass(frozen=True, slots=True)
class HiveType:
    """A Hive type.

    `length` is set for char and varchar, `precision` and `scale` are set for decimal; otherwise they are 0. `children`
    contains the element type of an array, the key and value types of a map, or the field types of a struct. `names`
    contains the lower-case field names of a struct. Both are empty for primitive types.
    """

    kind: str
    length: int = 0
    precision: int = 0
    scale: int = 0
    children: tuple[HiveType, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, *, column: str = "") -> HiveType:
        """Parse a Hive type, such as `decimal(10,2)` or `map<string,array<struct<a:int,b:date>>>`.

        Raises InvalidTable for uniontype, `timestamp with local time zone`, intervals, map keys that are not primitive,
        and structs whose field names differ only in case.
        """
        text = text.strip().lower()
        if text in _PRIMITIVES:
            return cls(text)
        if match := _SIZED.fullmatch(text):
            kind, first, second = match.groups()
            if kind == "decimal":
                return cls(kind, precision=int(first or 10), scale=int(second or 0))
            return cls(kind, length=int(first or (255 if kind == "char" else 65535)))
        if match := _COMPLEX.fullmatch(text):
            return cls._complex(match[1], _parts(match[2]), text, column)
        raise _unusable(f"type {text} is not supported", column)

    @classmethod
    def _complex(cls, kind: str, parts: list[str], text: str, column: str) -> HiveType:
        names: tuple[str, ...] = ()
        if kind == "struct":
            fields = [part.partition(":") for part in parts]
            names, parts = tuple(name.strip() for name, _, _ in fields), [rest for _, _, rest in fields]
            if not all(names) or len(set(names)) < len(names):
                raise _unusable(f"type {text} has fields without a name or with the same name", column)
        if not all(map(str.strip, parts)) or len(parts) != _ARITY.get(kind, len(parts)):
            raise _unusable(f"type {text} is not supported", column)
        children = tuple(cls.parse(part, column=column) for part in parts)
        if kind == "map" and children[0].is_complex:
            raise _unusable(f"type {text} has map keys that are not primitive", column)
        return cls(kind, children=children, names=names)

    @property
    def is_complex(self) -> bool:
        """Whether the type is an array, a map or a struct."""
        return bool(self.children)

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of decoded columns.

        A timestamp, even inside a complex type, is decoded as timestamp[us] if timestamp[ns] cannot represent it.
        """
        if self.kind == "decimal":
            return pa.decimal128(self.precision, self.scale)
        if not self.is_complex:
            return _PRIMITIVES.get(self.kind, pa.string())
        children = [child.arrow for child in self.children]
        if self.kind == "struct":
            return pa.struct([pa.field(name, child) for name, child in zip(self.names, children, strict=True)])
        return pa.map_(*children) if self.kind == "map" else pa.list_(*children)

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if not self.is_complex:
            return f"{self.kind}({self.length})" if self.length else self.kind
        children = list(map(str, self.children))
        if self.kind == "struct":
            children = [f"{name}:{child}" for name, child in zip(self.names, children, strict=True)]
        return f"{self.kind}<{','.join(children)}>"


def _parts(text: str) -> list[str]:
    """Split a list of types at the commas that are outside all brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _unusable(what: str, column: str) -> InvalidTable:
    return InvalidTable(what, where=f"column {column}" if column else "", hint=_USABLE)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Hive table; `name` is in lower case, as in the metastore."""

    name: str
    type: HiveType
