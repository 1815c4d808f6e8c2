"""Decodes the records of a mapping into rows: most columns from the value of a record, others from what Kafka adds.

Invariant: each record becomes rows, one reject, or a skipped tombstone. Every row has the key, the headers, the
timestamp and the place of its own record, however many rows a record has and whichever records are rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingestd.acid.constraints import Refuse, unfit_rows
from ingestd.acid.partition_expressions import KAFKA_HEADER
from ingestd.acid.routing import Shape
from ingestd.errors import ConfigError
from ingestd.formats.decoder import (
    DecodeResult,
    Evolving,
    Reject,
    decode_or_reject,
    in_parts,
    is_utf8,
    with_places,
    without_tombstones,
    without_violations,
)
from ingestd.formats.options import FormatOptions, decoder_of
from ingestd.formats.registry import Registry
from ingestd.formats.row_batches import FIRST_NANO, LAST_NANO
from ingestd.ingest.options import KafkaField
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.kafka.reader import Batch
from ingestd.kafka.record import NO_TIMESTAMP, Headers
from ingestd.schema import Column

_NANOS_PER_MILLI = 1_000_000
# The types of a column that a field can fill.
_TYPES: Mapping[KafkaField, tuple[str, ...]] = {
    "key": ("string", "binary"),
    "headers": ("map<string,string>", "array<struct<key:string,value:binary>>"),
    "partition": ("int", "bigint"),
    "offset": ("bigint",),
    "timestamp": ("timestamp", "bigint"),
    "topic": ("string",),
}
# The fields that only a message has. A batch has the others without its messages.
_OF_MESSAGES = frozenset[KafkaField]({"key", "headers", "timestamp"})

Refused = Mapping[tuple[str, ...], str]
NONE_REFUSED: Refused = {}

Faults = dict[int, str]
"""The reasons why records cannot fill a column, by the index of the record."""


@dataclass(frozen=True, slots=True)
class KafkaColumns:
    """The columns that are filled from what Kafka knows about a record, and the columns that remain for its value."""

    fields: tuple[tuple[Column, KafkaField], ...]
    value_columns: tuple[Column, ...]

    @classmethod
    def of(cls, columns: Sequence[Column], fields: Mapping[str, KafkaField]) -> KafkaColumns:
        """Divide the columns of the records; `fields` contains the field of a column by its name, in any case.

        Raises ConfigError for a name that is not that of a column, for a column that cannot store its field, and if no
        column remains for the value.
        """
        by_name = {column.name: column for column in columns}
        chosen: dict[str, tuple[Column, KafkaField]] = {}
        for name, field in fields.items():
            column, where = by_name.get(name) or by_name.get(name.lower()), f"columns.{name}"
            if column is None:
                hint = f"name one of {', '.join(by_name)}; columns that `partition` names are not among them"
                raise ConfigError("there is no such column in the records", where=where, hint=hint)
            if column.name in chosen:
                raise ConfigError("the column is named twice, in another case", where=where, hint="remove one of them")
            if str(column.type) not in _TYPES[field] and not column.name.startswith(KAFKA_HEADER):
                what = f"the column has the type {column.type}, which cannot store the {field} of a record"
                raise ConfigError(what, where=where, hint=f"the column needs the type {' or '.join(_TYPES[field])}")
            chosen[column.name] = column, field
        remaining = tuple(column for column in columns if column.name not in chosen)
        if not remaining:
            hint = "leave at least one column to the value of the record"
            raise ConfigError("all columns of the table are filled from Kafka", where="columns", hint=hint)
        return cls(tuple(chosen.values()), remaining)

    @property
    def need_messages(self) -> bool:
        """Whether the batches must have `messages`."""
        return any(field in _OF_MESSAGES for _, field in self.fields)

    def fill(self, batch: Batch, decoded: DecodeResult) -> DecodeResult:
        """Return the rows that were decoded from the values of `batch`, with these columns after the others.

        A record whose key, headers or timestamp cannot be stored becomes a reject.
        """
        if not self.fields:
            return decoded
        filled = [_FILL[field](batch, column) for column, field in self.fields]
        decoded = decoded.without(self._rejects(batch, decoded, [faults for _, faults in filled]), batch.values)
        arrays = [array for array, _ in filled]
        if decoded.records is not None or decoded.rows < len(batch.values):
            records = pa.array(decoded.records_of_rows(batch.values))
            arrays = [array.take(records) for array in arrays]
        batches, start = [], 0
        for rows in decoded.batches:
            slices = [array.slice(start, rows.num_rows) for array in arrays]
            batches.append(self._with_columns(rows, slices))
            start += rows.num_rows
        return DecodeResult(batches, decoded.rejects, decoded.skipped, decoded.records)

    def _rejects(self, batch: Batch, decoded: DecodeResult, faults: Sequence[Faults]) -> list[Reject]:
        """Return the rejects of records that have rows."""
        if not any(faults):
            return []
        has_rows = np.zeros(len(batch.values), np.bool_)
        has_rows[decoded.records_of_rows(batch.values)] = True
        rejects: dict[int, Reject] = {}
        for (column, _), reasons in zip(self.fields, faults, strict=True):
            for record, reason in reasons.items():
                if has_rows[record]:
                    rejects.setdefault(record, Reject.of(record, batch.values[record], column.name, reason))
        return list(rejects.values())

    def _with_columns(self, rows: pa.RecordBatch, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        # All timestamps of a batch have one unit. Milliseconds fit both.
        unit = next((kind for field in rows.schema for kind in _timestamp_units(field.type)), "ns")
        for (column, _), array in zip(self.fields, arrays, strict=True):
            is_timestamp = pa.types.is_timestamp(array.type)
            rows = rows.append_column(column.name, array.cast(pa.timestamp(unit)) if is_timestamp else array)
        return rows


class RowDecoder:
    """Decodes batches of records into rows that fit the table. Raises ConfigError for the columns or the format.

    `refused` are the `RefusedPartitions.reasons`.
    """

    def __init__(
        self,
        options: FormatOptions,
        columns: KafkaColumns,
        partitioning: Partitioning,
        shape: Shape,
        registry: Registry | None,
        *,
        refused: Refused = NONE_REFUSED,
    ) -> None:
        self._values = decoder_of(options, columns.value_columns, registry)
        self._columns = columns
        self._partitioning = partitioning
        self._find_violations = partial(unfit_rows, shape=shape, refuse=refuse_known(refused))
        names = {column.name for column in (*shape.columns, *shape.partition_columns)}
        self._others = names.difference(column.name for column in columns.value_columns)

    def decode_in_parts(self, batch: Batch) -> Iterator[tuple[Batch, DecodeResult]]:
        """Yield the records of a batch, in parts whose memory is limited, each with what `decode` returns."""

        def decode(part: slice) -> tuple[Batch, DecodeResult]:
            of_part = batch if part == slice(0, len(batch.values)) else batch.part(part)
            return of_part, self.decode(of_part)

        return in_parts(len(batch.values), decode)

    def decode(self, batch: Batch) -> DecodeResult:
        """Return the rows and the rejects of a batch, which needs messages if `KafkaColumns.need_messages`.

        Raises TooManyValues for several records. Reading a reject may raise FalseReject.
        """
        of_values = decode_or_reject(self._values.decode, batch.values)
        of_values = replace(of_values, rejects=with_places(of_values.rejects, batch.origin))
        decoded = self._columns.fill(batch, of_values)
        decoded = self._partitioning.fill(decoded)
        return without_violations(decoded, batch.values, self._find_violations)

    def absent_columns(self, batch: Batch) -> frozenset[str]:
        """Return the names of the columns for which no record has a field, not even one that is null."""
        return self._values.absent_columns(without_tombstones(batch.values))

    def unstored_fields(self, batch: Batch) -> tuple[str, ...]:
        """Return the names of the fields that no column of the table stores."""
        return self._values.unstored_fields(without_tombstones(batch.values), self._others)

    def needed_columns(self, batch: Batch) -> tuple[Column, ...]:
        """Return the columns that can store all fields of the records of a batch, and of those of earlier calls.

        They have been decoded, and the types may be incomplete, as those of `Evolving.needed_columns`. A field with the
        name of a column that is filled from Kafka, or that `partition` names, needs no column. Raises as
        `Evolving.needed_columns`.
        """
        if not isinstance(self._values, Evolving):
            return ()
        return self._values.needed_columns(without_tombstones(batch.values), self._others)


def refuse_known(refused: Refused) -> Refuse | None:
    """Return a function that refuses these partitions; None if there are none."""
    if not refused:
        return None
    return lambda partitions: {partition: refused[partition] for partition in partitions if partition in refused}


def _timestamp_units(kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_timestamp(kind):
        yield kind.unit
    for index in range(kind.num_fields):
        yield from _timestamp_units(kind.field(index).type)


def _keys(batch: Batch, column: Column) -> tuple[pa.Array, Faults]:
    keys = pa.array(batch.keys(), pa.binary())
    if column.type.kind == "binary":
        return keys, {}
    texts, bad = _texts(keys)
    return texts, dict.fromkeys(bad, "the key of the record is not UTF-8")


def _headers(batch: Batch, column: Column) -> tuple[pa.Array, Faults]:
    """Return the headers of all records. In a map, the last header of a name counts, as in Kafka's `lastHeader`."""
    read = batch.headers()
    if column.name.startswith(KAFKA_HEADER):
        return _header(read, column.name.removeprefix(KAFKA_HEADER))
    of_records = [of_record or () for of_record in read]
    faults = {record: "the name of a header is not UTF-8" for record, of_record in enumerate(read) if of_record is None}
    if column.type.kind == "array":
        headers = list(chain.from_iterable(of_records))
        pairs = [
            pa.array([name for name, _ in headers], pa.string()),
            pa.array([value for _, value in headers], pa.binary()),
        ]
        items = pa.StructArray.from_arrays(pairs, names=list(column.type.children[0].names))
        return pa.ListArray.from_arrays(_ends(of_records), items), faults
    last: list[dict[str, bytes | None]] = list(map(dict, of_records))
    names, ends = list(chain.from_iterable(last)), _ends(last)
    values = pa.array(list(chain.from_iterable(map(dict.values, last))), pa.binary())
    texts, bad = _texts(values)
    owners = np.searchsorted(ends, bad, side="right") - 1
    for owner, place in zip(owners.tolist(), bad, strict=True):
        faults[owner] = f"the header {names[place]!r} is not UTF-8"
    return pa.MapArray.from_arrays(ends, pa.array(names, pa.string()), texts), faults


def _header(read: Sequence[Headers | None], name: str) -> tuple[pa.Array, Faults]:
    """Return the value of one header of each record; of several headers with the name, the last counts."""
    faults = {record: "the name of a header is not UTF-8" for record, of_record in enumerate(read) if of_record is None}
    values, bad = _texts(pa.array([dict(of_record or ()).get(name) for of_record in read], pa.binary()))
    return values, faults | dict.fromkeys(bad, f"the header {name!r} is not UTF-8")


def _ends(lists: Sequence[Sized]) -> NDArray[np.int32]:
    """Return the offsets of an Arrow array that contains these lists: 0, then the end of each."""
    ends: NDArray[np.int32] = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, lists), np.int32, len(lists)), out=ends[1:])
    return ends


def _partitions(batch: Batch, column: Column) -> tuple[pa.Array, Faults]:
    return pa.array(batch.partitions, column.type.arrow), {}


def _offsets(batch: Batch, column: Column) -> tuple[pa.Array, Faults]:
    return pa.array(batch.offsets, column.type.arrow), {}


def _timestamps(batch: Batch, column: Column) -> tuple[pa.Array, Faults]:
    milliseconds = batch.timestamps()
    absent = milliseconds == NO_TIMESTAMP
    if column.type.kind == "bigint":
        return pa.array(milliseconds, pa.int64(), mask=absent), {}
    first, last = -(-FIRST_NANO // _NANOS_PER_MILLI), LAST_NANO // _NANOS_PER_MILLI
    outside = ~absent & ((milliseconds < first) | (milliseconds > last))
    faults = {
        record: f"the timestamp of the record, {milliseconds[record]} ms, is not in the years 1678 to 2261"
        for record in np.flatnonzero(outside).tolist()
    }
    return pa.array(milliseconds, pa.timestamp("ms"), mask=absent | outside), faults


def _topics(batch: Batch, _: Column) -> tuple[pa.Array, Faults]:
    return pa.repeat(pa.scalar(batch.topic, pa.string()), len(batch.values)), {}


# Each returns one element per record of the batch.
_FILL: Mapping[KafkaField, Callable[[Batch, Column], tuple[pa.Array, Faults]]] = {
    "key": _keys,
    "headers": _headers,
    "partition": _partitions,
    "offset": _offsets,
    "timestamp": _timestamps,
    "topic": _topics,
}


def _texts(values: pa.Array) -> tuple[pa.Array, list[int]]:
    """Return the texts of UTF-8 bytes, and the indexes of those that are not UTF-8, which are NULL."""
    try:
        return values.cast(pa.string()), []
    except pa.ArrowInvalid:
        known = values.to_pylist()
    bad = [index for index, value in enumerate(known) if value is not None and not is_utf8(value)]
    for index in bad:
        known[index] = None
    return pa.array(known, pa.binary()).cast(pa.string()), bad
