"""Hive's column types and their Arrow equivalents.

Invariant: equal Hive types have equal `HiveType` values; every module describes columns with these values.
Source of the type names: Hive's `serdeConstants` and `TypeInfoUtils`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

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
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
# The integers that these types store exactly, as a number of bits.
_EXACT_BITS = {**INTEGER_BITS, "float": 24, "double": 53}
_TEXTS = ("string", "varchar", "char")
# Other types with wider ones.
_WIDER = {"float": ("float", "double"), "char": ("char", "varchar")}
_SIZED = re.compile(r"(varchar|char|decimal)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_COMPLEX = re.compile(r"(array|map|struct)\s*<(.*)>", re.DOTALL)
_ARITY = {"array": 1, "map": 2}
_REASONS = {  # by the text before `<`
    "timestamp with local time zone": ": in ORC files, Hive loses its values and cannot read them (HIVE-30020)",
    "uniontype": ": except in Avro, a record does not say which of these types a value has",
}
# Names that Hive refuses as an "Invalid column name" (VirtualColumn.VIRTUAL_COLUMN_NAMES of Hive 4.0.1 and 4.2.0): not
# the whole enumeration, because HiveServer2 reads a column snapshot__id.
_VIRTUAL = frozenset((
    "input__file__name", "block__offset__inside__file", "row__offset__inside__block", "raw__data__size", "row__id",
    "row__is__deleted", "grouping__id", "partition__spec__id", "partition__hash", "partition__projection", "file__path",
    "row__position",
))  # fmt: skip
# Of structs inside each other, through arrays and maps as well. HiveServer2 needs twice the time for each level more to
# compile any query of the table, and compiles no other query meanwhile (TypeConverter.convertStructType).
MAX_STRUCTS = 8
# Of the text of a type, which is TYPE_NAME in the table COLUMNS_V2 of the metastore (package.jdo).
MAX_TYPE_CHARACTERS = 32_672
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
        reason = _REASONS.get(text.partition("<")[0].strip(), "")
        raise _unusable(f"type {text} is not supported{reason}", column)

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

    @property
    def known(self) -> HiveType:
        """This type with string where only null, or objects without fields, were found: `void` and `struct<>`.

        A `uniontype` is a double: whole numbers of bigint and numbers with a fraction were found.
        """
        if self.kind == "uniontype":
            return HiveType("double")
        if self.kind == "void" or (self.kind == "struct" and not self.children):
            return HiveType("string")
        return replace(self, children=tuple(child.known for child in self.children)) if self.is_complex else self

    def holds(self, other: HiveType) -> bool:
        """Return whether this type can store every value of `other`; a string can store the text of other primitives.

        A struct must have all fields of the other one, in any order. It may have more.
        """
        if self.is_complex or other.is_complex:
            return self._holds_complex(other)
        if self.kind == "string":
            return other.kind != "binary"
        if self.kind == "decimal":
            digits = self.precision - self.scale
            if other.kind == "decimal":
                return self.scale >= other.scale and digits >= other.precision - other.scale
            return digits >= _DIGITS.get(other.kind, digits + 1)
        if other.kind in INTEGER_BITS:
            return _EXACT_BITS.get(self.kind, 0) >= INTEGER_BITS[other.kind]
        return self.kind in _WIDER.get(other.kind, (other.kind,)) and self.length >= other.length

    def joined(self, *others: HiveType) -> HiveType | None:
        """Return the narrowest type that is known to hold all of these types, in any order; None if there is none.

        A struct has the fields of all. Other types are joined only if one of them holds the others, and a string only
        with other texts, because formats do not store numbers as text.
        """
        kinds = (self, *others)
        if not self.is_complex or any(kind.kind != self.kind for kind in kinds):
            if len({kind.kind in _TEXTS for kind in kinds}) > 1:
                return None
            return next((kind for kind in kinds if all(map(kind.holds, kinds))), None)
        children = _children(kinds)
        joined = [kind for first, *rest in children.values() if (kind := first.joined(*rest)) is not None]
        return self._with(dict(zip(children, joined, strict=True))) if len(joined) == len(children) else None

    def extended(self, *others: HiveType) -> HiveType:
        """Return this type with the fields of structs, also inside of it, that only `others` have, in any order.

        Raises InvalidTable if such a field has types that cannot be `joined`.
        """
        return self._evolved(others, widens=False)

    def widened(self, *others: HiveType) -> HiveType:
        """Return the extended type, in which each type is the one that holds it and those of `others` that are wider.

        If several are wider and none holds them all, those are ignored that do not hold the wider ones before them in a
        fixed order, in which exact types are before float and double. So a type that becomes wider for some of `others`
        becomes wider for all of them, in whatever order and groups they are found.
        """
        return self._evolved(others, widens=True)

    def _evolved(self, others: Iterable[HiveType], *, widens: bool, path: str = "") -> HiveType:
        if not self.is_complex:
            return _widened(self, others) if widens else self
        mine, evolved = _children((self,)), {}
        for name, (first, *rest) in _children((self, *(kind for kind in others if kind.kind == self.kind))).items():
            place = f"{path}.{name}".lstrip(".") if self.kind == "struct" else path
            kind = first._evolved(rest, widens=widens, path=place) if name in mine else first.joined(*rest)
            if kind is None:
                raise _without_common_type((first, *rest), place)
            evolved[name] = kind
        return self._with(evolved)

    def _with(self, children: Mapping[str, HiveType]) -> HiveType:
        names = tuple(children) if self.kind == "struct" else ()
        return HiveType(self.kind, children=tuple(children.values()), names=names)

    def _holds_complex(self, other: HiveType) -> bool:
        if self.kind != other.kind:
            return False
        if self.kind == "struct":
            mine = dict(zip(self.names, self.children, strict=True))
            pairs = zip(other.names, other.children, strict=True)
            return all(name in mine and mine[name].holds(child) for name, child in pairs)
        return all(mine.holds(child) for mine, child in zip(self.children, other.children, strict=True))

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


def _children(kinds: Iterable[HiveType]) -> dict[str, list[HiveType]]:
    """Return the types inside of types of one kind, by the name of the field or their number."""
    children: dict[str, list[HiveType]] = {}
    for kind in kinds:
        for name, child in zip(kind.names or "01", kind.children, strict=False):
            children.setdefault(name, []).append(child)
    return children


def _widened(kind: HiveType, others: Iterable[HiveType]) -> HiveType:
    """Return the type that holds a primitive type and others; those that do not fit are ignored (see `widened`)."""
    parts = {part for other in others for part in (other.children if other.kind == "uniontype" else (other,))}
    for part in sorted(parts, key=lambda part: (part.kind in ("float", "double"), str(part))):
        kind = kind.joined(part) or kind
    return kind


def _without_common_type(kinds: Iterable[HiveType], path: str) -> InvalidTable:
    types = ", ".join(sorted({str(kind.known) for kind in kinds}))
    return InvalidTable(
        f"the schemas of the records have no type in common for a new field: {types}",
        where=f"column {path}",
        hint="add it to the table as a column, or field of the struct; its type decides which values are rejects",
    )


def _unusable(what: str, column: str) -> InvalidTable:
    return InvalidTable(what, where=f"column {column}" if column else "", hint=_USABLE)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Hive table; `name` is in lower case, as in the metastore."""

    name: str
    type: HiveType

    @property
    def definition(self) -> str:
        """The column in a statement of HiveQL, in which it and the fields of its structs may be reserved words."""
        return f"{quoted(self.name)} {_statement_type(self.type)}"


def quoted(name: str) -> str:
    """Return a name as an identifier of HiveQL or Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _statement_type(kind: HiveType) -> str:
    if not kind.is_complex:
        return str(kind)
    children = list(map(_statement_type, kind.children))
    if kind.kind == "struct":
        children = [f"{quoted(name)}:{child}" for name, child in zip(kind.names, children, strict=True)]
    return f"{kind.kind}<{','.join(children)}>"


def is_virtual(name: str) -> bool:
    """Return whether a virtual column of Hive has this lower-case name, so that queries cannot read another one."""
    return name in _VIRTUAL


def require_visible(columns: Iterable[Column]) -> None:
    """Raise InvalidTable for a column that Hive's queries cannot read, because a virtual column has its name."""
    for column in columns:
        if is_virtual(column.name):
            raise InvalidTable(
                "a virtual column of Hive has this name, so queries could not read the values",
                where=f"column {column.name}",
                hint="give the column, or the field of the records, another name",
            )


def require_queryable(columns: Iterable[Column], present: Iterable[Column] = ()) -> None:
    """Raise InvalidTable for a type, other than those of `present`, that is too deep for queries or too long to store.

    Fields of structs that are already there are not counted, however deep they are.
    """
    stored = {column.name: column.type for column in present}
    for column in columns:
        before = stored.get(column.name)
        if column.type == before:
            continue
        deep = next(_deep_structs(column.type, before, 0, column.name), "")
        if deep:
            raise InvalidTable(
                f"more than {MAX_STRUCTS} structs would be inside each other; with each, HiveServer2 needs twice the"
                " time to compile any query of the table",
                where=f"column {deep}",
                hint="add the column with ALTER TABLE if you need it nevertheless, or set schema_evolution: none",
            )
        if (length := len(str(column.type))) > MAX_TYPE_CHARACTERS:
            raise InvalidTable(
                f"the type would have {length:,} characters, and the metastore declares {MAX_TYPE_CHARACTERS:,}",
                where=f"column {column.name}",
                hint="set schema_evolution: none, and add the columns that you need; a map or a string stores JSON"
                " objects of any size",
            )


def _deep_structs(kind: HiveType, stored: HiveType | None, levels: int, path: str) -> Iterator[str]:
    """Yield the paths of structs that are inside of `levels` others and too deep, unless they are in `stored`."""
    inside = {} if stored is None or stored.kind != kind.kind else _children((stored,))
    if kind.kind == "struct":
        levels += 1
        if levels > MAX_STRUCTS and not inside:
            yield path
    for name, [child] in _children((kind,)).items():
        [before] = inside.get(name, [None])
        yield from _deep_structs(child, before, levels, f"{path}.{name}" if kind.kind == "struct" else path)
