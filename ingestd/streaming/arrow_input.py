"""Converts objects that export Arrow, and pandas and polars data frames, to Arrow tables.

Invariant: if the conversion would truncate a value, the data is rejected as a whole.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as of

from ingestd.streaming.errors import SerializationError

CAST = "cast the column before writing it"
# Exceptions of conversions; those of Arrow are subclasses of these.
_UNREADABLE = (ValueError, TypeError, OverflowError, NotImplementedError)


def place_of(path: str, row: int | None = None) -> str:
    """Return how errors name a column or, if `row` (from 0) is given, a value in it."""
    return f"Arrow data, column {path}" if row is None else f"Arrow data, row {row}, column {path}"


def as_table(data: object) -> pa.Table:
    """Convert the data to a table without changing any value. Raises SerializationError if that is impossible."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if isinstance(data, type):
            raise TypeError("a class was passed instead of an instance")
        if _is_frame(data, "pandas"):
            return _of_pandas(data)
        if _is_frame(data, "polars"):
            _check_polars(data)
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return pa.table(data)
    except _UNREADABLE as error:
        raise SerializationError(
            f"{type(data).__name__} cannot be converted to an Arrow table: {error}", where="Arrow data"
        ) from error
    raise SerializationError(
        f"an ArrowWriter cannot write {type(data).__name__}",
        where="Arrow data",
        hint="pass a pyarrow RecordBatch or Table, or a data frame",
    )


def _is_frame(data: object, library: str) -> bool:
    """Return whether `data` is a data frame of `library`, without importing the library."""
    module = sys.modules.get(library)
    return module is not None and isinstance(data, module.DataFrame)


def _of_pandas(frame: Any) -> pa.Table:
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except _UNREADABLE:
        _name_object(frame)
        raise
    for place, field in enumerate(table.schema):
        values = frame.iloc[:, place]
        if values.dtype != object:
            continue
        for row, value in enumerate(values.notna()):
            if value and not _is_kept(values.iloc[row], field.type):
                raise SerializationError(
                    f"not all objects of the column are of type {field.type}",
                    where=place_of(field.name, row),
                    hint=CAST,
                )
    return table


def _name_object(frame: Any) -> None:
    """Raise SerializationError for the first row that Arrow cannot convert together with the rows before it."""
    for place, name in enumerate(frame.columns):
        values = frame.iloc[:, place]
        if values.dtype != object or _is_readable(values):
            continue
        start, end = 0, len(values)  # the first `start` rows can be converted, the first `end` cannot
        while end - start > 1:
            middle = (start + end) // 2
            start, end = (middle, end) if _is_readable(values.iloc[:middle]) else (start, middle)
        value = values.iloc[end - 1]
        raise SerializationError(
            f"DataFrame cannot be converted to an Arrow table: {type(value).__name__} {str(value)[:40]!r} has no Arrow"
            " type, or its type differs from the type of the preceding rows",
            where=place_of(str(name), end - 1),
            hint=CAST,
        )


def _is_readable(values: Any) -> bool:
    try:
        pa.Array.from_pandas(values)
    except _UNREADABLE:
        return False
    return True


def _is_kept(value: Any, kind: pa.DataType) -> bool:
    """Return whether pyarrow converts a Python object without loss.

    If the first object of a column is a date, pyarrow truncates all its objects to dates. It truncates timestamps to
    microseconds.
    """
    if of.is_date(kind):
        return not isinstance(value, datetime)
    if of.is_timestamp(kind):
        return kind.unit == "ns" or not getattr(value, "nanosecond", 0)
    if of.is_struct(kind) and isinstance(value, dict):
        fields = {field.name: field.type for field in kind}
        return all(_is_kept(inner, fields[name]) for name, inner in value.items() if inner is not None)
    if hasattr(kind, "value_type") and not isinstance(value, (str, bytes)):
        return all(_is_kept(inner, kind.value_type) for inner in value if inner is not None)
    return True


def _check_polars(frame: Any) -> None:
    for name, kind in frame.schema.items():
        if kind == sys.modules["polars"].Object:  # polars exports their memory addresses as binary
            raise SerializationError("a polars Object column has no Arrow equivalent", where=place_of(name), hint=CAST)
