"""The record writers: what a connection's `write` takes and how it becomes rows.

Invariant: a writer keeps nothing of a connection, so one writer may serve several connections, one after the other or
side by side.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.records.block import Decoder, Reject
from ingestd.records.delimited import DelimitedDecoder, DelimitedFormat
from ingestd.records.json import JsonDecoder
from ingestd.records.regex import RegexDecoder
from ingestd.schema import Column
from ingestd.streaming.errors import SerializationError, StreamingException
from ingestd.streaming.feed import LINES


class RecordWriter(ABC):
    """Turns records, which are bytes, into rows (org.apache.hive.streaming.RecordWriter).

    Others may implement it: `decoder` is all that is needed, `docs/streaming.md` shows one for msgpack.
    `line_delimiter_pattern` splits the streams that `write` is given; it may have no groups.
    """

    def __init__(self, *, line_delimiter_pattern: str | None = None) -> None:
        self.line_pattern = LINES if line_delimiter_pattern is None else _compiled(line_delimiter_pattern)

    @abstractmethod
    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """A decoder of blocks of records into these columns: the table's, then, if dynamic, the partition columns."""

    def checker(self, columns: Sequence[Column]) -> Callable[[bytes], Reject | None]:
        """A look at one record before it is taken, so that a bad one is refused at once; it says what is wrong."""
        decoder = self.decoder(columns)

        def check(record: bytes) -> Reject | None:
            return next(iter(decoder.decode([record]).rejects), None)

        return check


class StrictDelimitedInputWriter(RecordWriter):
    """Delimited text, read as Hive's LazySimpleSerDe reads it (table in docs/streaming.md).

    By default a bad value is NULL, a missing field is NULL and a field too many is dropped, as in Hive;
    `bad_values="reject"` and `bad_counts="reject"` refuse such records with a SerializationError instead.
    """

    def __init__(self, *, line_delimiter_pattern: str | None = None, **options: Any) -> None:
        """`options` are those of `DelimitedFormat`: field_delimiter, collection_delimiter, map_key_delimiter …"""
        super().__init__(line_delimiter_pattern=line_delimiter_pattern)
        self.format = DelimitedFormat(**options)

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """See `RecordWriter`."""
        return DelimitedDecoder(columns, self.format)

    def checker(self, columns: Sequence[Column]) -> Callable[[bytes], Reject | None]:
        """See `RecordWriter`."""
        return DelimitedDecoder(columns, self.format).check


class StrictJsonWriter(RecordWriter):
    """One JSON object per record, in the meaning of `ingestd.records.json`: nothing is wrapped, cut or set to 0."""

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """See `RecordWriter`."""
        return JsonDecoder(columns)

    def checker(self, columns: Sequence[Column]) -> Callable[[bytes], Reject | None]:
        """See `RecordWriter`."""
        return JsonDecoder(columns).check


class StrictRegexWriter(RecordWriter):
    """Text that a regular expression matches as a whole; group n is column n (RegexSerDe)."""

    def __init__(self, regex: str, *, line_delimiter_pattern: str | None = None, **options: Any) -> None:
        """`options` are those of `RegexDecoder`."""
        super().__init__(line_delimiter_pattern=line_delimiter_pattern)
        self._regex = regex
        self._options = options

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """See `RecordWriter`."""
        return RegexDecoder(columns, self._regex, **self._options)

    def checker(self, columns: Sequence[Column]) -> Callable[[bytes], Reject | None]:
        """See `RecordWriter`."""
        return RegexDecoder(columns, self._regex, **self._options).check


class ArrowWriter:
    """Arrow data as it is: a RecordBatch, a Table, or anything that exports Arrow (polars, pandas, DuckDB).

    Columns are found by name, ignoring case; a column that is missing is NULL; one that the table does not have, and a
    value that its column cannot hold, is a SerializationError, and nothing of that call is written.
    """

    def batches(self, data: object, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """The data as batches of these columns. Raises SerializationError, also for other data."""
        table = _as_table(data)
        names = {name.lower(): place for place, name in enumerate(table.schema.names)}
        unknown = set(names) - {column.name for column in columns}
        if unknown:
            raise SerializationError(f"the table has no column {', '.join(sorted(unknown))}", where="Arrow data")
        for batch in table.to_batches():
            arrays = [
                _fit(batch.column(names[column.name]), column)
                if column.name in names
                else pa.nulls(batch.num_rows, column.type.arrow)
                for column in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _compiled(pattern: str) -> re.Pattern[bytes]:
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise StreamingException(f"{pattern!r} is not a regular expression: {error}") from error
    if compiled.groups:
        raise StreamingException(f"{pattern!r} has groups", where="line_delimiter_pattern", hint="use (?:…)")
    return compiled


def _as_table(data: object) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    if hasattr(data, "__dataframe__"):
        return pa.Table.from_pandas(data, preserve_index=False)
    raise SerializationError(
        f"an ArrowWriter cannot write {type(data).__name__}",
        hint="give a pyarrow RecordBatch or Table, or a data frame",
    )


def _fit(array: pa.Array, column: Column) -> pa.Array:
    """The array in the column's type, every value as it was."""
    try:
        if pa.types.is_timestamp(array.type):
            return _wall_time(array, column)
        fitted = array if array.type == column.type.arrow else pc.cast(array, column.type.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SerializationError(f"{error}", where=f"Arrow data, column {column.name} {column.type}") from error
    if column.type.kind in ("char", "varchar"):
        longest = pc.max(pc.utf8_length(pc.utf8_rtrim(fitted, " ") if column.type.kind == "char" else fitted)).as_py()
        if (longest or 0) > column.type.length:
            raise SerializationError(
                f"text of {longest} characters is longer than {column.type}", where=f"Arrow data, column {column.name}"
            )
    return fitted


def _wall_time(array: pa.Array, column: Column) -> pa.Array:
    """Timestamps as ns or, if that cannot hold them, us; with a zone they become UTC wall times."""
    if column.type.kind != "timestamp":
        return pc.cast(array, column.type.arrow)
    if array.type.tz:
        array = pc.cast(array, pa.timestamp(array.type.unit, "UTC")).view(pa.timestamp(array.type.unit))
    if array.type.unit in ("ns", "us"):
        return array
    return pc.cast(array, pa.timestamp("us"))
