"""Arrow data becomes batches of a table's columns: tables, record batches, data frames, whatever exports Arrow.

Invariant: every value is as it was, or the call is refused as a whole; nothing is wrapped, cut, rounded or set to NULL,
but that a float takes the nearest value, as in `formats.json`.

| Column | Takes | Refuses, besides all other types |
|---|---|---|
| the data | its columns by name in any case; a missing one: NULL | unknown names, two that differ by case |
| any | null; dictionary, run-end encoded, view and large types: what they stand for | other extension types |
| tinyint … bigint | integers, signed or not; floats and decimals if whole | out of range, fraction, NaN |
| float, double | floats, decimals (nearest value); integers to 2^24, 2^53 | overflow |
| decimal(p,s) | decimals of any size and integers, if exact: 12.50 fits (10,1) | digits too many; floats |
| boolean | booleans | |
| string | text; binary that is UTF-8 | other bytes |
| varchar(n), char(n) | the same, to n characters; char drops trailing blanks | longer text |
| binary | binary, of fixed size too; text: its UTF-8 bytes, base64 or not | |
| date | dates; timestamps at midnight | a time of day; years not 0001 to 9999 |
| timestamp | timestamps of every unit; with a zone: the UTC wall time; dates: midnight | years not 0001 to 9999 |
| array | lists, of fixed size too | |
| map | maps; lists of structs of `key` and `value` | a key that is NULL, or twice in a map |
| struct | structs: its fields as the columns of the data | as there |

What is inside an array, a map or a struct follows the line of its own type. So text is no number; an integer is not
text, boolean or timestamp; a time of day or a duration has no column: cast such columns first, in a way you know.
Extension types taken are those that Arrow defines for JSON (text), UUID (binary) and boolean (`bool8`).

All timestamps of a batch are ns or, if that cannot hold them, us; only where neither holds all, each keeps its own.
The index of a pandas frame is no column (`reset_index()` makes it one), and pandas has NaN for NULL.
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

_ROWS = 1 << 18  # in a batch: text of 8 KiB a row still has offsets of 31 bits, when it comes in larger ones
_OFFSET = 2**31 - 1
_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowCapacityError)


class ArrowWriter:
    """Arrow data as it is: a RecordBatch, a Table, or anything that exports Arrow (polars, pandas, DuckDB).

    Columns are found by name, ignoring case; a column that is missing is NULL; one that the table does not have, and a
    value that its column cannot hold, is a SerializationError, and nothing of that call is written. Which types go into
    which columns is a table in `ingestd/streaming/arrow.py`.
    """

    def batches(self, data: object, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """The data as batches of these columns. Raises SerializationError, also for other data."""
        table = as_table(data)
        places = _places(table.schema.names, [column.name for column in columns], "the table", "column", "Arrow data")
        units = _units_to_try(table.schema, columns, places)
        first = 0
        for batch in table.to_batches(max_chunksize=_ROWS):
            yield _own(_fitted(batch, columns, places, units, first))
            first += batch.num_rows


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy: the caller may fill the same memory again (numpy, pandas) before the rows are in their file."""
    return pa.RecordBatch.from_arrays([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)


def _places(names: Sequence[str], known: Sequence[str], whose: str, noun: str, where: str) -> dict[str, int]:
    """The place of each name, in lower case. Raises SerializationError for names unknown and given twice."""
    places = {name.lower(): place for place, name in enumerate(names)}
    unknown = sorted(set(places) - set(known))
    if unknown:
        raise SerializationError(f"{whose} has no {noun} {', '.join(unknown)}", where=where)
    if len(places) < len(names):
        twice = [name for place, name in enumerate(names) if places[name.lower()] != place]
        raise SerializationError(f"{noun} {', '.join(twice)} is there twice, if case does not count", where=where)
    return places


def _units_to_try(schema: pa.Schema, columns: Sequence[Column], places: dict[str, int]) -> tuple[str, ...]:
    """The units that may hold all timestamps, the better first; '' means that each keeps its own."""
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
    """The batch in the columns' types, in the first unit that holds its timestamps; `first`: its place in the data."""
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
    """The type that an array is to have, the unit of timestamps in it ('': their own), and where it is."""

    kind: HiveType
    unit: str
    path: str = ""

    def inside(self, place: int, step: str) -> _Wanted:
        """The same for a part of a complex value."""
        return _Wanted(self.kind.children[place], self.unit, self.path + step)

    @property
    def where(self) -> str:
        """The column and its type, as errors name them."""
        return place_of(f"{self.path} {self.kind}")

    def nulls(self, count: int) -> pa.Array:
        """So many NULLs."""
        return pa.nulls(count, arrow_of(self.kind, self.unit or "us"))

    def refuse(self, source: pa.DataType, reason: object) -> SerializationError:
        """The error that says why a value of type `source` does not fit."""
        return SerializationError(f"a value of {source} does not fit: {reason}", where=self.where)


def _fit_or_name_row(array: pa.Array, wanted: _Wanted, first: int) -> pa.Array:
    """As `_fit`; its error names the first row that does not fit, unless it is the type that does not."""
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
    """The first row that does not fit by itself, found by halves; None when no row or each would fail."""
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
    """The array in the type that is wanted, every value as it was."""
    if array.type == wanted.kind.arrow and _holds_anything(wanted.kind):
        return array
    source = array.type
    try:
        array = _decoded(array)
        if of.is_null(array.type):
            return wanted.nulls(len(array))
        convert = _CONVERSIONS[wanted.kind.kind].get(_family(array.type))
        if convert is None:
            raise SerializationError(f"{source} cannot become {wanted.kind}", where=wanted.where, hint=CAST)
        return convert(array, wanted)
    except _UNFIT as error:
        raise wanted.refuse(source, error) from error


def _holds_anything(kind: HiveType) -> bool:
    """Whether every value of the Arrow type is one of the Hive type, so that none needs a look."""
    return kind.kind not in _LOOKED_AT and all(map(_holds_anything, kind.children))


_LOOKED_AT = ("varchar", "char", "date", "timestamp", "map")


def _decoded(array: pa.Array) -> pa.Array:
    """What the array stands for, without an encoding of Arrow that is not a type of values."""
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
# Few functions of Arrow take these.
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
    # Arrow rounds a decimal's text right, but not the decimal itself
    near = _cast(pc.cast(array, pa.string()) if of.is_decimal(array.type) else array, wanted)
    if pc.any(pc.and_(pc.is_inf(near), pc.is_finite(array))).as_py():
        raise wanted.refuse(array.type, f"out of range for {wanted.kind}")
    return near


def _whole_decimal(array: pa.Array, wanted: _Wanted) -> pa.Array:
    """Arrow asks for room for every integer of the type; a decimal is judged by its values."""
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
    """The wall time in UTC of what has a zone."""
    return array.view(pa.timestamp(array.type.unit)) if getattr(array.type, "tz", None) else array


def _check_years(numbers: pa.Array, seconds: int, parts: int, source: pa.DataType, wanted: _Wanted) -> None:
    """Raise SerializationError for days or parts of a second that are not in the years 0001 to 9999."""
    ends = pc.min_max(numbers).as_py()
    first, last = FIRST_SECOND // seconds * parts, (LAST_SECOND // seconds + 1) * parts - 1
    if ends["min"] is not None and (ends["min"] < first or ends["max"] > last):
        raise wanted.refuse(source, "its year is not one of 0001 to 9999")


def _array(array: pa.Array, wanted: _Wanted) -> pa.Array:
    # what hides behind a NULL is no value: `flatten`, here and below, leaves it out or makes it NULL
    items = _fit(array.flatten(), wanted.inside(0, "[]"))
    return pa.ListArray.from_arrays(_offsets(array, wanted)[0], items)


def _offsets(array: pa.Array, wanted: _Wanted) -> tuple[pa.Array, Any]:
    """Offsets of the lists into what `flatten` makes of them, NULL where a list is; and the lengths."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.concatenate(([0], np.cumsum(lengths)))
    if ends[-1] > _OFFSET:
        raise wanted.refuse(array.type, "too many elements at once")
    mask = np.append(array.is_null().to_numpy(zero_copy_only=False), False) if array.null_count else None
    return pa.array(ends.astype(np.int32), mask=mask), lengths


def _map(array: pa.Array, wanted: _Wanted) -> pa.Array:
    kind = array.type
    if of.is_map(kind):
        pair = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
        array = array.view(pa.list_(pa.struct(pair)))
    pairs = array.flatten()
    if not of.is_struct(pairs.type) or [field.name.lower() for field in pairs.type] != ["key", "value"]:
        raise SerializationError(f"{kind} cannot become {wanted.kind}", where=wanted.where, hint=CAST)
    keys, values = pairs.flatten()
    keys = _fit(keys, wanted.inside(0, "[].key"))
    if keys.null_count:
        raise wanted.refuse(kind, "a key is NULL")
    offsets, lengths = _offsets(array, wanted)
    if _has_twins(keys, lengths):
        raise wanted.refuse(kind, "a map has a key twice")
    return pa.MapArray.from_arrays(offsets, keys, _fit(values, wanted.inside(1, "[].value")))


def _has_twins(keys: pa.Array, lengths: Any) -> bool:
    if of.is_floating(keys.type):
        keys = pc.add(keys, 0.0)  # the two zeros are one key
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
