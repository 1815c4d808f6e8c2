"""Decodes Avro records into Arrow batches, column by column.

Invariant: the result depends on each record alone, never on how records are batched.

| Column | Accepts the Avro types | Rejects |
|---|---|---|
| the record | a record, or a union of records | data after it, over 200 levels of recursion |
| its fields | at least one is a column, or there are none | with `unmatched="reject"`, all other records |
| a column | the field of its name or alias, ignoring case; no such field, or null: NULL | |
| tinyint … bigint | int and long, with any logical type | out of range |
| float, double | int, long, float, double: the nearest value | overflow |
| decimal(p,s) | decimal, int, long, Debezium's VariableScaleDecimal, if exact | too many digits |
| boolean | boolean | |
| string | string, enum, uuid, bytes | invalid UTF-8 |
| varchar(n), char(n) | the same, up to n characters; char drops trailing spaces | longer text |
| binary | bytes, fixed, string | |
| date | date, years 0001 to 9999 | other years |
| | Debezium's IsoDate: the text of a date, whose zone is ignored | other text |
| timestamp | timestamp and local-timestamp in millis, micros or nanos (UTC) | see below, other years |
| | Debezium's ZonedTimestamp, IsoTimestamp: text of a date, or of a date and a time; in UTC if it has a zone | other |
| array | array | |
| map | map, if the keys of the column are string, varchar or char; the last of equal keys wins | |
| struct | record; its fields as those of the whole record | |

A union is read by the type of each value. A value of any other type is a reject. Items and fields follow the rules of
their own type; the reason of a reject contains the path to the value, such as `tags[3].name`.

A timestamp is a reject if it has digits below the microsecond, and the record has a timestamp outside the years 1678 to
2261, because all timestamps of a batch, even inside complex values, share one unit. An array whose items have no
content, such as nulls, is a reject.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from ingestd.formats.avro.columns import needed_columns, unstored_fields, without_fields
from ingestd.formats.avro.cursor import Cursor
from ingestd.formats.avro.framing import Framing, groups
from ingestd.formats.avro.readers import field_of, reader
from ingestd.formats.avro.resolution import resolve
from ingestd.formats.avro.schema import AvroType
from ingestd.formats.columnar_decoder import ColumnarDecoder, ReadRows, needed_of
from ingestd.formats.record_decoder import Tombstones
from ingestd.formats.unmatched import Unmatched, is_unmatched, no_column_of_schema
from ingestd.formats.values import Ints, Records
from ingestd.schema import Column


class Schemas(Protocol):
    """The schemas with which records were written."""

    def find(self, identifier: int) -> AvroType:
        """Return the schema with this id. Raises InvalidSchema if there is none or if it is not one of records."""
        ...


class AvroDecoder(ColumnarDecoder[int]):
    """Decodes Avro records into the given columns, in that order; see `RecordDecoder` for `tombstones`."""

    def __init__(
        self,
        columns: Sequence[Column],
        schemas: Schemas,
        framing: Framing,
        *,
        target: AvroType | None = None,
        unmatched: Unmatched = "null",
        tombstones: Tombstones = "stop",
    ) -> None:
        """`target` is the reader schema, as which all records are read; None for the schemas of the records.

        With `unmatched="reject"`, the records of a schema, or of a record type in a union, none of whose fields is a
        column are rejects.
        """
        super().__init__(columns, tombstones=tombstones)
        self._target = target
        self._schemas = schemas
        self._rejects_unmatched = unmatched == "reject"
        self._framing: Framing = framing
        self._records: dict[int, AvroType] = {}

    def needed_columns(self, values: Sequence[bytes], others: Collection[str]) -> tuple[Column, ...]:
        """See `Evolving`. Records without a field of a column, which are rejects, need no columns."""
        return needed_of(
            self._records.values(), lambda record: needed_columns(without_fields(record, others), self.columns)
        )

    def groups(self, records: Records) -> Iterator[tuple[int, Ints, Ints]]:
        """See `ColumnarDecoder`."""
        return groups(records, self._framing)

    def find_reader(self, identifier: int) -> ReadRows:
        """See `ColumnarDecoder`."""
        written = self._schemas.find(identifier)
        row_reader = reader(self._resolved(written), self.row)
        stored = self._stored(written)
        if stored is not None:
            self._records[identifier] = stored

        def read(records: Records, indexes: Ints, starts: Ints) -> pa.StructArray:
            cursor = Cursor.of_records(records, starts, indexes)
            array = row_reader.read(cursor)
            _require_end(cursor)
            return array

        return read

    def absent_in(self, identifier: int) -> frozenset[str]:
        """See `ColumnarDecoder`. Defaults of the reader schema are no fields of the records."""
        record = self._resolved(self._schemas.find(identifier))
        return frozenset.intersection(*map(self._absent_in_record, _branches(record)))

    def unstored_in(self, identifier: int) -> tuple[str, ...]:
        """See `ColumnarDecoder`. A field of the reader schema that the records lack is one as well."""
        record = self._target or self._schemas.find(identifier)
        return tuple(unstored_fields(record, self.row))

    def _resolved(self, written: AvroType) -> AvroType:
        """Return the type as which records with a schema are read, with a fault if they are rejects."""
        record = resolve(written, self._target) if self._target else written
        return self._matched(record) if self._rejects_unmatched else record

    def _matched(self, record: AvroType) -> AvroType:
        """Return the type of records with a fault if they have fields, none of which is a column."""
        if record.kind == "union":
            return replace(record, children=tuple(map(self._matched, record.children)))
        if record.fault or not self._is_unmatched(record):
            return record
        fields, columns = ([name.name for name in names] for names in (record.fields, self.columns))
        return replace(record, fault=no_column_of_schema(fields, columns))

    def _stored(self, written: AvroType) -> AvroType | None:
        """Return the type whose fields have columns: that of the records with a schema, without those of `_matched`."""
        record = resolve(written, self._target) if self._target else written
        kept = [branch for branch in _branches(record) if not (self._rejects_unmatched and self._is_unmatched(branch))]
        if not kept:
            return None
        if self._target or len(kept) == len(_branches(record)):
            return self._target or written
        return replace(written, children=tuple(kept))

    def _is_unmatched(self, record: AvroType) -> bool:
        names = [field.name for field in record.fields]
        return is_unmatched(names, self.row.names, self._absent_in_record(record))

    def _absent_in_record(self, record: AvroType) -> frozenset[str]:
        """Return the names of the columns without a field in the data of records; defaults do not count."""
        fields = [field for place, field in enumerate(record.fields) if place not in record.ignored]
        return frozenset(column.name for column in self.columns if field_of(fields, column.name) is None)


def _branches(record: AvroType) -> tuple[AvroType, ...]:
    """Return the types of records in a union, or the only type."""
    return record.children if record.kind == "union" else (record,)


def _require_end(cursor: Cursor) -> None:
    left = cursor.remaining
    if left.any():
        cursor.malformed(left > 0, "there is data after the record")
