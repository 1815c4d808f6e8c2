"""Columns as pyarrow's JSON reader gives them become columns of the table's types, whole columns at a time.

Invariant: a result equals what `scalar.converter` makes of each value; anything doubtful raises `Doubtful`, and the
caller decodes fewer rows, in the end one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.json.values import NUMERIC, bytes_of
from ingestd.formats.row_batches import FIRST_SECOND, LAST_SECOND
from ingestd.schema import Column, HiveType

_TEXT_KINDS = {"string", "varchar", "char", "binary", "date", "timestamp"}
_NUMERIC = f"^(?:{NUMERIC.pattern})$"
_WHOLE = "^-?[0-9]{1,19}$"
_ZONED = "[T ][^Z+-]*[Z+-]"
_FIRST_DAY, _LAST_DAY = FIRST_SECOND // 86_400, LAST_SECOND // 86_400


class Doubtful(ValueError):
    """The column has a value that only the slow path can judge."""


def read_type(kind: HiveType, *, quoted: bool) -> pa.DataType:
    """The Arrow type that the JSON reader is asked for; `quoted` columns hold their numbers and flags as strings."""
    return pa.string() if quoted or kind.kind in _TEXT_KINDS else kind.arrow


def convert(columns: Sequence[Column], arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    """One batch of the columns' types; timestamps of the batch are all ns or, if that cannot hold them, all us.

    Raises Doubtful, or pa.ArrowInvalid.
    """
    done: dict[int, pa.Array] = {}
    stamps = {}
    for place, (column, array) in enumerate(zip(columns, arrays, strict=True)):
        if column.type.kind == "timestamp":
            stamps[place] = array
        else:
            done[place] = _column(column.type, array)
    done.update(_timestamps(stamps))
    ordered = [done[place] for place in range(len(columns))]
    schema = pa.schema([pa.field(column.name, array.type) for column, array in zip(columns, ordered, strict=True)])
    return pa.RecordBatch.from_arrays(ordered, schema=schema)


def _column(kind: HiveType, array: pa.Array) -> pa.Array:
    judge = _JUDGES.get(kind.kind)
    if judge is not None:
        return judge(kind, array)
    return array if array.type == kind.arrow else _unquoted(array, kind.arrow, _WHOLE)


def _unquoted(array: pa.Array, target: pa.DataType, pattern: str) -> pa.Array:
    """Text to number; the pattern keeps out what only Arrow takes (hexadecimal, `nan`, `inf`)."""
    _require(pc.match_substring_regex(array, pattern))
    return pc.cast(array, target)


def _require(mask: pa.Array) -> None:
    """Every non-null value of the mask is true."""
    if not pc.all(mask, min_count=0).as_py():
        raise Doubtful


def _decimal(kind: HiveType, array: pa.Array) -> pa.Array:
    if pa.types.is_string(array.type):
        array = _unquoted(array, kind.arrow, _NUMERIC)
    array.validate(full=True)  # the JSON reader takes 123456789.1 for decimal(10,2)
    return array


def _floating(kind: HiveType, array: pa.Array) -> pa.Array:
    if pa.types.is_string(array.type):
        array = _unquoted(array, kind.arrow, _NUMERIC)
    _require(pc.is_finite(array))  # an overflow, or the literal NaN that Arrow takes for a number
    return array


def _boolean(kind: HiveType, array: pa.Array) -> pa.Array:
    if not pa.types.is_string(array.type):
        return array
    lower = pc.ascii_lower(array)
    true = pc.equal(lower, "true")
    _require(pc.or_(true, pc.equal(lower, "false")))
    return true


def _sized(kind: HiveType, array: pa.Array) -> pa.Array:
    if kind.kind == "char":
        array = pc.utf8_rtrim(array, characters=" ")
    longest = pc.max(pc.utf8_length(array)).as_py()
    if longest is not None and longest > kind.length:
        raise Doubtful
    return array


def _binary(kind: HiveType, array: pa.Array) -> pa.Array:
    return pa.array([None if text is None else bytes_of(text) for text in array.to_pylist()], kind.arrow)


def _date(kind: HiveType, array: pa.Array) -> pa.Array:
    days = pc.cast(array, kind.arrow)
    _within(days.view(pa.int32()), _FIRST_DAY, _LAST_DAY)
    return days


def _within(numbers: pa.Array, first: int, last: int) -> None:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is not None and (ends["min"] < first or ends["max"] > last):
        raise Doubtful


def _timestamps(stamps: dict[int, pa.Array]) -> dict[int, pa.Array]:
    """All timestamp columns in nanoseconds; failing that all in microseconds."""
    if all(map(_in_nanoseconds, stamps.values())):
        return {place: _instants(array, "ns") for place, array in stamps.items()}
    micros = {place: _instants(array, "us") for place, array in stamps.items()}
    for array in micros.values():
        _within(array.view(pa.int64()), FIRST_SECOND * 1_000_000, LAST_SECOND * 1_000_000 + 999_999)
    return micros


def _in_nanoseconds(texts: pa.Array) -> bool:
    """Whether all years are well inside what 64 bits of nanoseconds hold; Arrow 18 wraps what is not."""
    ends = pc.min_max(texts).as_py()
    return ends["min"] is None or (ends["min"] >= "1678" and ends["max"] < "2262")


def _instants(texts: pa.Array, unit: str) -> pa.Array:
    """Wall times of texts without zone, UTC wall times of texts with one; a column may mix them."""
    naive, aware = pa.timestamp(unit), pa.timestamp(unit, "UTC")
    whole = _all_cast(texts, naive)
    if whole is None:
        whole = _all_cast(texts, aware)
    if whole is not None:
        return whole.view(naive)
    zoned = pc.match_substring_regex(texts, _ZONED)
    nothing = pa.scalar(None, pa.string())
    return pc.coalesce(
        pc.cast(pc.if_else(zoned, nothing, texts), naive),
        pc.cast(pc.if_else(zoned, texts, nothing), aware).view(naive),
    )


def _all_cast(texts: pa.Array, target: pa.DataType) -> pa.Array | None:
    try:
        return pc.cast(texts, target)
    except pa.ArrowInvalid:
        return None


_JUDGES: dict[str, Callable[[HiveType, pa.Array], pa.Array]] = {
    "decimal": _decimal,
    "float": _floating,
    "double": _floating,
    "boolean": _boolean,
    "string": lambda _, array: array,
    "varchar": _sized,
    "char": _sized,
    "binary": _binary,
    "date": _date,
}
