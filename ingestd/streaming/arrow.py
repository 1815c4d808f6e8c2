"""Converts Arrow data to a table's columns: tables, record batches, data frames and other objects that export Arrow.

Invariant: either all values of a call are stored unchanged, or the whole call is rejected. No value is wrapped,
truncated, rounded or set to NULL, except that a float column stores the nearest float, as in `formats.json`.

| Column | Accepts | Rejects, besides all other types |
|---|---|---|
| the data | columns by name, ignoring case; a missing column is NULL | unknown names, names that differ only by case |
| any | the null type; dictionary, run-end encoded, view and large types, as their plain type | other extension types |
| tinyint … bigint | integers, signed or unsigned; integral floats and decimals | out of range, fraction, NaN |
| float, double | floats; decimals (nearest value); integers up to 2^24, 2^53 | overflow |
| decimal(p,s) | decimals of any precision and integers, if exact: 12.50 fits (10,1) | too many digits; floats |
| boolean | booleans | |
| string | text; binary that is valid UTF-8 | other bytes |
| varchar(n), char(n) | the same, up to n characters; char drops trailing spaces | longer text |
| binary | binary, including fixed size; text: its UTF-8 bytes, not decoded as base64 | |
| date | dates; timestamps at midnight | a time of day; years outside 0001 to 9999 |
| timestamp | timestamps of any unit; with a zone: the time in UTC; dates: midnight | years outside 0001 to 9999 |
| array | lists, including fixed size | |
| map | maps; lists of structs of `key` and `value` | a NULL key, a duplicate key in one map |
| struct | structs; their fields follow the rules for columns | as for columns |

The elements of an array, map or struct follow the rules of their own type. Text is not converted to numbers, nor
integers to text, boolean or timestamp. A time of day or a duration fits no column; cast such columns before writing.
The accepted extension types are those of Arrow for JSON (text), UUID (binary) and boolean (`bool8`).

All timestamps of a batch share one unit: ns, or us if ns cannot represent them all. If neither can, each column keeps
its own unit. The index of a pandas frame is not written (call `reset_index()` to make it a column). NaN in pandas means
NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as of

from ingestd.formats.row_batches import FIRST_SECOND, LAST_SECOND, arrow_of, batch_of, has_timestamp
from ingestd.schema import INTEGER_BITS, Column, HiveType
from ingestd.streaming.arrow_input import CAST, as_table, place_of
from ingestd.streaming.errors import SerializationError

_ROWS = 1 << 18  # rows per batch; with 8 KiB of text per row, offsets still fit in 31 bits
_OFFSET = 2**31 - 1
_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowCapacityError)


class ArrowWriter:
    """Writes Arrow data: a RecordBatch, a Table, or any object that exports Arrow (polars, pandas, DuckDB).

    Columns are matched by name, ignoring case; a missing column is NULL. An unknown column, or a value that does not
    fit its column, raises SerializationError and nothing of that call is written. docs/streaming.md lists the accepted
    types.
    """

    def batches(self, data: object, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """Yield the data as batches of these columns. Raises SerializationError if it does not fit or is not Arrow."""
        table = as_table(data)
        places = _places(table.schema.names, [column.name for column in columns], "the table", "column", "Arrow data")
        units = _units_to_try(table.schema, columns, places)
        first = 0
        for batch in table.to_batches(max_chunksize=_ROWS):
            yield _own(_fitted(batch, columns, places, units, first))
            first += batch.num_rows


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch, because the caller may reuse its memory (numpy, pandas) before the rows are in their file."""
    return pa.RecordBatch.from_arrays([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)


def _places(names: Sequence[str], known: Sequence[str], whose: str, noun: str, where: str) -> dict[str, int]:
    """Return the index of each name, by lower-case name. Raises SerializationError for unknown and duplicate names."""
    places = {name.lower(): place for place, name in enumerate(names)}
    unknown = sorted(set(places) - set(known))
    if unknown:
        raise SerializationError(f"{whose} has no {noun} {', '.join(unknown)}", where=where)
    if len(places) < len(names):
        twice = [name for place, name in enumerate(names) if places[name.lower()] != place]
        raise SerializationError(f"{noun} {', '.join(twice)} is duplicated (names are case-insensitive)", where=where)
    return places


def _units_to_try(schema: pa.Schema, columns: Sequence[Column], places: dict[str, int]) -> tuple[str, ...]:
    """Return the units to try for all timestamps, the preferred one first. '' means that each column keeps its own."""
    timed = [column.name for column in columns if column.name in places and has_timestamp(column.type)]
    units = {unit for name in timed for unit in _units(schema.field(places[name]).type)}
    return tuple(units) if len(units) == 1 else ("ns", "us", "") if units else ("ns",)


def _units(kind: pa.DataType) -> Iterator[str]:
    if of.is_timestamp(kind):
        yield "ns" if kind.unit == "ns" else "us"
    elif of.is_date(kind):
        yield "us"
    elif of.is_map(kind):
        yield from (*_units(kind.key_type), *_units(kind.item_type))
    elif of.is_struct(kind):
        yield from (unit for field in kind for unit in _units(field.type))
    elif hasattr(kind, "value_type"):
        yield from _units(kind.value_type)


def _fitted(
    batch: pa.RecordBatch, columns: Sequence[Column], places: dict[str, int], units: Sequence[str], first: int
) -> pa.RecordBatch:
    """Convert a batch to the columns' types and to the first of the units that can represent all its timestamps.

    `first` is the number of its first row, for errors.
    """
    unit, *others = units
    fit = _fit if others else partial(_fit_or_name_row, first=first)
    try:
        arrays = [
            fit(batch.column(places[column.name]), _Wanted(column.type, unit, column.name))
            if column.name in places
            else _Wanted(column.type, unit).nulls(batch.num_rows)
            for column in columns
        ]
    except SerializationError:
        if others:
            return _fitted(batch, columns, places, others, first)
        raise
    return batch_of(columns, arrays)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The target of a conversion: a type, a unit of timestamps ('' keeps that of the source), and a path for errors."""

    kind: HiveType
    unit: str
    path: str = ""

    def inside(self, place: int, step: str) -> _Wanted:
        """Return the target for a child of a complex type."""
        return _Wanted(self.kind.children[place], self.unit, self.path + step)

    @property
    def where(self) -> str:
        """The column and its type, as errors name them."""
        return place_of(f"{self.path} {self.kind}")

    def nulls(self, count: int) -> pa.Array:
        """Return an array of `count` NULLs."""
        return pa.nulls(count, arrow_of(self.kind, self.unit or "us"))

    def refuse(self, source: pa.DataType, reason: object) -> SerializationError:
        """Return the error for a value of type `source` that does not fit."""
        return SerializationError(f"a value of type {source} does not fit: {reason}", where=self.where)


def _fit_or_name_row(array: pa.Array, wanted: _Wanted, first: int) -> pa.Array:
    """Convert as `_fit` does. An error also names the first row that does not fit, unless the type itself is wrong."""
    try:
        return _fit(array, wanted)
    except SerializationError:
        row = _first_misfit(array, wanted)
        if row is None:
            raise
        try:
            return _fit(array.slice(row, 1), wanted)
        except SerializationError as error:
            where = error.where.replace("Arrow data", f"Arrow data, row {first + row}", 1)
            raise SerializationError(error.what, where=where, hint=error.hint) from error


def _first_misfit(array: pa.Array, wanted: _Wanted) -> int | None:
    """Find the first row that does not fit, by binary search. None if the type itself does not fit or all rows do."""
    if not _fits(array.slice(0, 0), wanted):
        return None
    start, end = 0, len(array)
    while end - start > 1:
        middle = (start + end) // 2
        if _fits(array.slice(start, middle - start), wanted):
            start = middle
        else:
            end = middle
    return None if _fits(array.slice(start, 1), wanted) else start


def _fits(array: pa.Array, wanted: _Wanted) -> bool:
    try:
        _fit(array, wanted)
    except SerializationError:
        return False
    return True


def _fit(array: pa.Array, wanted: _Wanted) -> pa.Array:
    """Convert an array to the target type without changing any value. Raises SerializationError."""
    if array.type == wanted.kind.arrow and _holds_anything(wanted.kind):
        return array
    source = array.type
    try:
        array = _decoded(array)
        if of.is_null(array.type):
            return wanted.nulls(len(array))
        convert = _CONVERSIONS[wanted.kind.kind].get(_family(array.type))
        if convert is None:
            raise SerializationError(f"{source} cannot be converted to {wanted.kind}", where=wanted.where, hint=CAST)
        return convert(array, wanted)
    except _UNFIT as error:
        raise wanted.refuse(source, error) from error


def _holds_anything(kind: HiveType) -> bool:
    """Return whether every value of the Arrow type is valid for the Hive type, so that none needs a check."""
    return kind.kind not in _CHECKED_KINDS and all(map(_holds_anything, kind.children))


_CHECKED_KINDS = ("varchar", "char", "date", "timestamp", "map")


def _decoded(array: pa.Array) -> pa.Array:
    """Return the array without Arrow encodings (dictionary, run-end, view, extension)."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _STORED[kind.extension_name](array) if kind.extension_name in _STORED else array
    if of.is_dictionary(kind):
        return _decoded(array.dictionary).take(array.indices)
    if of.is_run_end_encoded(kind):
        return _decoded(pc.run_end_decode(array))
    plain = _PLAINER.get(kind)
    return array if plain is None else pc.cast(array, plain)


_STORED: dict[str, Callable[[Any], pa.Array]] = {
    "arrow.json": lambda array: _decoded(array.storage),
    "arrow.uuid": lambda array: array.storage,
    "arrow.bool8": lambda array: pc.cast(array.storage, pa.bool_()),
}
# Types that few of Arrow's functions support, and the types to cast them to.
_PLAINER = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float32()}


def _family(kind: pa.DataType) -> str:
    return next((name for name, tests in _FAMILIES.items() if any(is_one(kind) for is_one in tests)), "")


_FAMILIES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "boolean": (of.is_boolean,),
    "integer": (of.is_integer,),
    "float": (of.is_floating,),
    "decimal": (of.is_decimal,),
    "text": (of.is_string, of.is_large_string),
    "binary": (of.is_binary, of.is_large_binary, of.is_fixed_size_binary),
    "date": (of.is_date,),
    "timestamp": (of.is_timestamp,),
    "list": (of.is_list, of.is_large_list, of.is_fixed_size_list, of.is_list_view, of.is_large_list_view),
    "map": (of.is_map,),
    "struct": (of.is_struct,),
}


def _cast(array: pa.Array, wanted: _Wanted) -> pa.Array:
    return pc.cast(array, wanted.kind.arrow)


def _nearest(array: pa.Array, wanted: _Wanted) -> pa.Array:
    # Arrow converts the text of a decimal to the nearest float, but not the decimal itself.
    near = _cast(pc.cast(array, pa.string()) if of.is_decimal(array.type) else array, wanted)
    if pc.any(pc.and_(pc.is_inf(near), pc.is_finite(array))).as_py():
        raise wanted.refuse(array.type, f"out of range for {wanted.kind}")
    return near


def _whole_decimal(array: pa.Array, wanted: _Wanted) -> pa.Array:
    """Convert integers through a wide decimal, which Arrow checks by value. A direct cast would check by type."""
    return _cast(pc.cast(array, pa.decimal256(20, 0)), wanted)


def _sized(array: pa.Array, wanted: _Wanted) -> pa.Array:
    text = _cast(array, wanted)
    if wanted.kind.kind == "char":
        text = pc.utf8_rtrim(text, " ")
    longest = pc.max(pc.utf8_length(text)).as_py() or 0
    if longest > wanted.kind.length:
        raise wanted.refuse(array.type, f"text of {longest} characters is longer than {wanted.kind}")
    return text


def _date(array: pa.Array, wanted: _Wanted) -> pa.Array:
    days = pc.cast(array, pa.date32())
    _check_years(days.view(pa.int32()), 86_400, 1, array.type, wanted)
    return days


def _midnight(array: pa.Array, wanted: _Wanted) -> pa.Array:
    stamps = _without_zone(array)
    days = pc.cast(stamps, pa.date32())
    if not pc.all(pc.equal(pc.cast(days, stamps.type), stamps), min_count=0).as_py():
        raise wanted.refuse(array.type, "it has a time of day")
    return _date(days, wanted)


def _timestamp(array: pa.Array, wanted: _Wanted) -> pa.Array:
    unit = wanted.unit or ("ns" if of.is_timestamp(array.type) and array.type.unit == "ns" else "us")
    stamps = pc.cast(_without_zone(array), pa.timestamp(unit))
    if unit == "us":
        _check_years(stamps.view(pa.int64()), 1, 1_000_000, array.type, wanted)
    return stamps


def _without_zone(array: pa.Array) -> pa.Array:
    """Return timestamps that have a zone as their time in UTC, without the zone."""
    return array.view(pa.timestamp(array.type.unit)) if getattr(array.type, "tz", None) else array


def _check_years(numbers: pa.Array, seconds: int, parts: int, source: pa.DataType, wanted: _Wanted) -> None:
    """Raise SerializationError for days or fractions of a second outside the years 0001 to 9999."""
    ends = pc.min_max(numbers).as_py()
    first, last = FIRST_SECOND // seconds * parts, (LAST_SECOND // seconds + 1) * parts - 1
    if ends["min"] is not None and (ends["min"] < first or ends["max"] > last):
        raise wanted.refuse(source, "its year is outside 0001 to 9999")


def _array(array: pa.Array, wanted: _Wanted) -> pa.Array:
    # A NULL list may have elements in memory, which `flatten` drops. It also sets the fields of a NULL struct to NULL.
    items = _fit(array.flatten(), wanted.inside(0, "[]"))
    return pa.ListArray.from_arrays(_offsets(array, wanted)[0], items)


def _offsets(array: pa.Array, wanted: _Wanted) -> tuple[pa.Array, Any]:
    """Return the offsets of the lists into their flattened elements (NULL for a NULL list), and their lengths."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.concatenate(([0], np.cumsum(lengths)))
    if ends[-1] > _OFFSET:
        raise wanted.refuse(array.type, f"one batch has more than {_OFFSET} elements; write fewer rows per batch")
    mask = np.append(array.is_null().to_numpy(zero_copy_only=False), False) if array.null_count else None
    return pa.array(ends.astype(np.int32), mask=mask), lengths


def _map(array: pa.Array, wanted: _Wanted) -> pa.Array:
    kind = array.type
    if of.is_map(kind):
        pair = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
        array = array.view(pa.list_(pa.struct(pair)))
    pairs = array.flatten()
    if not of.is_struct(pairs.type) or [field.name.lower() for field in pairs.type] != ["key", "value"]:
        raise SerializationError(f"{kind} cannot be converted to {wanted.kind}", where=wanted.where, hint=CAST)
    keys, values = pairs.flatten()
    keys = _fit(keys, wanted.inside(0, "[].key"))
    if keys.null_count:
        raise wanted.refuse(kind, "a map has a NULL key")
    offsets, lengths = _offsets(array, wanted)
    if _has_duplicates(keys, lengths):
        raise wanted.refuse(kind, "a map has a duplicate key")
    return pa.MapArray.from_arrays(offsets, keys, _fit(values, wanted.inside(1, "[].value")))


def _has_duplicates(keys: pa.Array, lengths: Any) -> bool:
    if of.is_floating(keys.type):
        keys = pc.add(keys, 0.0)  # 0.0 and -0.0 are the same key
    encoded = pc.dictionary_encode(keys)
    codes = encoded.indices.to_numpy() + np.repeat(np.arange(len(lengths)), lengths) * len(encoded.dictionary)
    return len(np.unique(codes)) < len(codes)


def _struct(array: pa.Array, wanted: _Wanted) -> pa.Array:
    kind, names = wanted.kind, [field.name for field in array.type]
    places = _places(names, kind.names, f"{array.type} does not fit: the type", "field", wanted.where)
    parts = array.flatten()
    children = [
        _fit(parts[places[name]], wanted.inside(place, f".{name}"))
        if name in places
        else wanted.inside(place, f".{name}").nulls(len(array))
        for place, name in enumerate(kind.names)
    ]
    fields = [pa.field(name, child.type) for name, child in zip(kind.names, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null() if array.null_count else None)


_CONVERSIONS: dict[str, dict[str, Callable[[pa.Array, _Wanted], pa.Array]]] = {
    **{kind: {"integer": _cast, "float": _cast, "decimal": _cast} for kind in INTEGER_BITS},
    **{kind: {"float": _nearest, "integer": _cast, "decimal": _nearest} for kind in ("float", "double")},
    "decimal": {"decimal": _cast, "integer": _whole_decimal},
    "boolean": {"boolean": _cast},
    "string": {"text": _cast, "binary": _cast},
    **{kind: {"text": _sized, "binary": _sized} for kind in ("varchar", "char")},
    "binary": {"binary": _cast, "text": _cast},
    "date": {"date": _date, "timestamp": _midnight},
    "timestamp": {"timestamp": _timestamp, "date": _timestamp},
    "array": {"list": _array},
    "map": {"map": _map, "list": _map},
    "struct": {"struct": _struct},
}
