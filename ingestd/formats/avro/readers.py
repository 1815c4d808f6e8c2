"""Reads Avro values into Arrow arrays of Hive types; a reader is compiled for each pair of an Avro and a Hive type.

Invariant: the cost of a reader is that of its numpy and Arrow calls. No value becomes a Python object, except to tell
why it is a reject.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ingestd.formats.avro.conversions import conversion
from ingestd.formats.avro.cursor import Cursor
from ingestd.formats.avro.defaults import encoded
from ingestd.formats.avro.schema import NO_DEFAULT, SCALED_DECIMAL, AvroField, AvroType
from ingestd.formats.avro.skip import ItemFinder, Skip, skip_of
from ingestd.formats.conversions import TEXTS, Convert, to_decimals, to_text
from ingestd.formats.row_batches import arrow_of
from ingestd.formats.values import Ints, last_of_equal, offsets_of, spread
from ingestd.schema import HiveType

_SCALE, _UNSCALED = HiveType("int"), HiveType("binary")
# How numpy reads a value, and the number of its bytes.
_WORDS = {"float": ("<f4", 4), "double": ("<f8", 8), "boolean": ("u1", 1)}


class Reader(ABC):
    """Reads values of one Avro type into arrays of one Hive type."""

    @abstractmethod
    def read(self, cursor: Cursor) -> pa.Array:
        """Read the values and move the cursor behind them. A value that does not fit lets its record fail."""


class _Unfit(Reader):
    """Rejects all values; `skip` moves behind them, None if the records do not contain them."""

    def __init__(self, skip: Skip | None, hive: HiveType, reason: str) -> None:
        self._skip = skip
        self._hive = hive
        self._reason = reason

    def read(self, cursor: Cursor) -> pa.Array:
        cursor.reject(np.ones(len(cursor), np.bool_), lambda _index: self._reason)
        if self._skip is not None:
            self._skip.skip(cursor)
        return pa.nulls(len(cursor), arrow_of(self._hive, cursor.records.unit))


class _Nulls(Reader):
    """Reads values of the Avro type null."""

    def __init__(self, hive: HiveType) -> None:
        self._hive = hive

    def read(self, cursor: Cursor) -> pa.Array:
        return pa.nulls(len(cursor), arrow_of(self._hive, cursor.records.unit))


class _Numbers(Reader):
    """Reads float, double and boolean."""

    def __init__(self, avro: AvroType, convert: Convert) -> None:
        self._word, self._size = _WORDS[avro.kind]
        self._convert = convert

    def read(self, cursor: Cursor) -> pa.Array:
        words = cursor.records.words(self._word, cursor.at)
        cursor.advance(self._size)
        return self._convert(words, cursor)


class _Integers(Reader):
    """Reads int and long, with or without a logical type."""

    def __init__(self, convert: Convert) -> None:
        self._convert = convert

    def read(self, cursor: Cursor) -> pa.Array:
        return self._convert(cursor.varints(), cursor)


class _Enums(Reader):
    """Reads enums as text."""

    def __init__(self, avro: AvroType, convert: Convert) -> None:
        self._symbols = pa.array(avro.symbols, pa.string())
        self._written = avro.written
        self._convert = convert

    def read(self, cursor: Cursor) -> pa.Array:
        symbols = cursor.varints()
        unknown = (symbols < 0) | (symbols >= len(self._symbols))
        if unknown.any():
            cursor.malformed(unknown, "an enum has no such symbol")
        texts = self._symbols.take(pa.array(symbols, mask=unknown))
        if self._symbols.null_count:
            bad = texts.is_null().to_numpy(zero_copy_only=False)
            cursor.reject(bad, lambda index: f"the reader schema has no symbol {self._written[symbols[index]]}")
        return self._convert(texts, cursor)


class _Bytes(Reader):
    """Reads bytes, strings and fixed. `size` is that of a fixed, otherwise None."""

    def __init__(self, size: int | None, convert: Convert) -> None:
        self._size = size
        self._convert = convert

    def read(self, cursor: Cursor) -> pa.Array:
        return self._convert(cursor.slices(cursor.lengths() if self._size is None else self._size), cursor)


class _Union(Reader):
    def __init__(self, branches: Sequence[Reader], hive: HiveType) -> None:
        self._branches = branches
        self._hive = hive

    def read(self, cursor: Cursor) -> pa.Array:
        arrays, places = [], []
        for branch, indexes in zip(self._branches, cursor.branches(len(self._branches)), strict=True):
            if not len(indexes) or isinstance(branch, _Nulls):
                continue
            if len(indexes) == len(cursor):
                return branch.read(cursor)
            part = cursor.only(indexes)
            arrays.append(branch.read(part))
            places.append(indexes)
            cursor.at[indexes] = part.at
        if not arrays:
            return pa.nulls(len(cursor), arrow_of(self._hive, cursor.records.unit))
        return spread(arrays, places, len(cursor))


class _Default(Reader):
    """Reads the default of a field that the records do not contain."""

    def __init__(self, field: AvroField, hive: HiveType) -> None:
        self._data = encoded(field.type, field.default, field.name)
        self._reader = reader(field.type, hive)

    def read(self, cursor: Cursor) -> pa.Array:
        constants = cursor.constants(self._data)
        values = self._reader.read(constants)
        cursor.records.has_fine |= constants.records.has_fine
        return values


class _Struct(Reader):
    """Reads records. `_steps` are the fields in the data of a record, `_absent` others that have a default."""

    def __init__(self, avro: AvroType, hive: HiveType) -> None:
        candidates = [
            replace(field, name="", aliases=()) if place in avro.ignored else field
            for place, field in enumerate(avro.fields)
        ]
        candidates += avro.absent
        places = [field_of(candidates, name) for name in hive.names]
        self._hive = hive
        self._absent = [
            (index, _absent(candidates[place], hive.children[index]))
            for index, place in enumerate(places)
            if place is not None and place >= len(avro.fields)
        ]
        self._missing = [index for index, place in enumerate(places) if place is None]
        self._steps: list[tuple[str, Skip | list[tuple[int, Reader]]]] = []
        for place, field in enumerate(avro.fields):
            columns = [index for index, other in enumerate(places) if other == place]
            readers = [(index, reader(field.type, hive.children[index])) for index in columns]
            self._steps.append((field.name, readers or skip_of(field.type)))

    def read(self, cursor: Cursor) -> pa.Array:
        arrow = arrow_of(self._hive, cursor.records.unit)
        return pa.StructArray.from_arrays(self.fields(cursor), fields=list(arrow))

    def fields(self, cursor: Cursor) -> list[pa.Array]:
        """Return the array of each field of the struct."""
        arrays: dict[int, pa.Array] = {}
        for name, step in self._steps:
            field = cursor.field(name)
            if isinstance(step, Skip):
                step.skip(field)
            else:
                for index, field_reader in step:
                    field = cursor.field(self._hive.names[index])
                    arrays[index] = field_reader.read(field)
            cursor.at = field.at
        for index, absent in self._absent:
            arrays[index] = absent.read(cursor.field(self._hive.names[index]))
        for index in self._missing:
            arrays[index] = pa.nulls(len(cursor), arrow_of(self._hive.children[index], cursor.records.unit))
        return [arrays[index] for index in range(len(arrays))]


class _ScaledDecimals(Reader):
    """Reads records of the scale and the unscaled value of a decimal."""

    def __init__(self, avro: AvroType, hive: HiveType) -> None:
        self._fields = [
            (field.name, field.type.kind, reader(field.type, _SCALE if field.type.kind == "int" else _UNSCALED))
            for field in avro.fields
        ]
        self._hive = hive

    def read(self, cursor: Cursor) -> pa.Array:
        parts: dict[str, pa.Array] = {}
        for name, kind, part in self._fields:
            field = cursor.field(name)
            parts[kind] = part.read(field)
            cursor.at = field.at
        scales = parts["int"].fill_null(0).to_numpy().astype(np.int64)
        return to_decimals(scales, parts["bytes"], self._hive, cursor)


class _Array(Reader):
    def __init__(self, avro: AvroType, hive: HiveType) -> None:
        self._items = ItemFinder(skip_of(avro.children[0]), is_map=False)
        self._reader = reader(avro.children[0], hive.children[0])
        self._hive = hive

    def read(self, cursor: Cursor) -> pa.Array:
        starts, owners = _items(self._items, cursor, self._hive.children[0])
        items = self._reader.read(cursor.items(starts, owners))
        arrow = arrow_of(self._hive, cursor.records.unit)
        return pa.ListArray.from_arrays(offsets_of(owners, len(cursor)), items, type=arrow)


class _Map(Reader):
    def __init__(self, avro: AvroType, hive: HiveType) -> None:
        key, value = hive.children
        self._items = ItemFinder(skip_of(avro.children[0]), is_map=True)
        self._key = _Bytes(None, to_text(key))
        self._value = reader(avro.children[0], value)
        self._hive = hive

    def read(self, cursor: Cursor) -> pa.Array:
        starts, owners = _items(self._items, cursor, self._hive.children[1])
        entries = cursor.items(starts, owners)
        keys = self._key.read(entries)
        values = self._value.read(entries)
        # The keys of failed records can be null.
        keys = keys.fill_null("")
        keep = last_of_equal(owners, keys)
        if keep is not None:
            keys, values, owners = keys.take(keep), values.take(keep), owners[keep]
        arrow = arrow_of(self._hive, cursor.records.unit)
        return pa.MapArray.from_arrays(offsets_of(owners, len(cursor)), keys, values, type=arrow)


def _items(finder: ItemFinder, cursor: Cursor, item: HiveType) -> tuple[Ints, Ints]:
    """Move the cursor behind its arrays; return the position of each item that is read and the index of its array."""
    starts, owners = finder.find(cursor)
    read = cursor.items_within_limits(owners, item)
    return (starts, owners) if read is None else (starts[read], owners[read])


def reader(avro: AvroType, hive: HiveType) -> Reader:
    """Return the reader of a pair of types; for types that do not fit, one that rejects all values."""
    if avro.fault:
        return _Unfit(skip_of(avro), hive, avro.fault)
    if avro.kind == "null":
        return _Nulls(hive)
    if avro.kind == "union":
        return _Union([reader(branch, hive) for branch in avro.children], hive)
    fitting = (_complex if hive.is_complex else _primitive)(avro, hive)
    return fitting or _Unfit(skip_of(avro), hive, f"a value of the Avro type {avro} cannot be stored in {hive}")


def _complex(avro: AvroType, hive: HiveType) -> Reader | None:
    if (avro.kind, hive.kind) == ("record", "struct"):
        return _Struct(avro, hive)
    if (avro.kind, hive.kind) == ("array", "array"):
        return _Array(avro, hive)
    if (avro.kind, hive.kind) == ("map", "map") and hive.children[0].kind in TEXTS:
        return _Map(avro, hive)
    return None


def _primitive(avro: AvroType, hive: HiveType) -> Reader | None:
    if avro.logical == SCALED_DECIMAL:
        return _ScaledDecimals(avro, hive) if hive.kind == "decimal" else None
    convert = conversion(avro, hive)
    if convert is None:
        return None
    if avro.kind in ("int", "long"):
        return _Integers(convert)
    if avro.kind in _WORDS:
        return _Numbers(avro, convert)
    if avro.kind == "enum":
        return _Enums(avro, convert)
    return _Bytes(avro.size if avro.kind == "fixed" else None, convert)


def _absent(field: AvroField, hive: HiveType) -> Reader:
    """Return the reader of a field of the reader schema that the records do not contain."""
    if field.default is not NO_DEFAULT:
        return _Default(field, hive)
    return _Unfit(None, hive, "the record does not have the field, and the reader schema has no default for it")


def field_of(fields: Sequence[AvroField], name: str) -> int | None:
    """Return the index of the field with a lower-case name, ignoring case: its own name, else one of its aliases."""
    for index, field in enumerate(fields):
        if field.name == name:
            return index
    for index, field in enumerate(fields):
        if field.name.lower() == name:
            return index
    for index, field in enumerate(fields):
        if name in map(str.lower, field.aliases):
            return index
    return None
