"""Decodes JSON record values into Arrow batches.

Invariant: the result depends on each record alone, never on how records are batched. `envelope` describes numbers and
texts that are dates, timestamps and decimals because of a schema in the record.

| Column | Accepts | Rejects | Hive 4 JsonSerDe |
|---|---|---|---|
| the record | one JSON object, or a byte order mark and one | text after it, invalid UTF-8, over 200 levels | ignores \
text after it |
| its fields | at least one is a column, or there are none | fields, none of which is a column | a row of NULLs |
| a field | name (case-insensitive), the last wins; missing or null: NULL; unknown: ignored | | same |
| tinyint … bigint | whole numbers in range: 5, 5.0, 1e3, "5" | fraction, out of range, all else | wraps, truncates, 0 |
| float, double | a number, its text (nearest value), "NaN", "Infinity", "-Infinity" | overflow | text is 0 |
| decimal(p,s) | a number or its text, if exact: 12.50 fits (10,1) | too many digits | NULL |
| boolean | true, false, or these as text, ignoring case | all else | whole numbers: not 0; all else is false |
| string | text; numbers and booleans as written; all else as compact JSON | an unpaired surrogate | same |
| varchar(n), char(n) | the same, up to n characters; char drops trailing spaces | longer text | truncates |
| binary | text: base64 if valid, else its UTF-8 bytes | numbers, objects … | other text is an error |
| date | "yyyy-MM-dd", years 0001 to 9999 | all else | lenient |
| timestamp | date, or date[ T]HH[:mm[:ss[.f]]] with Z, +hh, +hhmm, +hh:mm (converted to UTC) | see below | NULL |
| array | an array; null elements are kept | all else | error |
| map | an object; keys as text of their type, the last of equal keys wins; null values are kept | all else | error |
| struct | an object, its fields as those of the record | all else | error |

A timestamp column rejects JSON numbers, more than 9 fractional digits, and digits below the microsecond if the record
has a timestamp outside the years 1678 to 2261, because all timestamps of a batch, even inside complex values, share one
unit. The elements of an array, a map or a struct follow the rules of their own type in the table above. If an element
does not fit, the record is a reject whose reason contains the path to the element, such as `tags[3].name`. A record is
also a reject if its arrays and maps have more than 16,777,216 values, and more than two per byte.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ingestd.formats.decoder import Reject, RejectError, TooManyValues
from ingestd.formats.json import inference
from ingestd.formats.json.arrow_reader import ArrowReader
from ingestd.formats.json.header import Framing, text_of, texts_of
from ingestd.formats.json.layout import PLAIN, Layout
from ingestd.formats.json.record import Precheck, RecordReader
from ingestd.formats.json.tape import Mask, Places
from ingestd.formats.json.tape_reader import TapeReader
from ingestd.formats.record_decoder import (
    Cause,
    MixedTimestamps,
    NotColumnar,
    RecordDecoder,
    RejectReasons,
    Tombstones,
)
from ingestd.formats.row_batches import Row, TimestampUnits, array_of, batch_of, has_timestamp
from ingestd.formats.values import values_allowed
from ingestd.schema import Column, HiveType

_FEW = 64  # this many records are decoded faster one by one than as columns


class JsonDecoder(RecordDecoder):
    """Decodes JSON objects into the given columns, in that order; see `RecordDecoder` for `tombstones`.

    `framing` says what precedes the JSON text (`header`). `layout` changes where the columns are in a record (`layout`,
    `envelope`), the notations of timestamps (`timestamp_formats`), the rules for all values (`lenient`), or those for
    records none of whose fields is a column (`rejects_unmatched`).
    """

    def __init__(
        self,
        columns: Sequence[Column],
        layout: Layout = PLAIN,
        *,
        framing: Framing = "none",
        tombstones: Tombstones = "stop",
    ) -> None:
        super().__init__(columns, tombstones=tombstones)
        self._layout = layout
        self._is_framed = framing != "none"
        self._is_plain = replace(layout, rejects_unmatched=False) == PLAIN
        self._arrow = ArrowReader(columns, layout.matching(columns))
        self._tape = TapeReader(columns, layout)
        self._records = RecordReader(columns, layout)
        self._precheck = Precheck(columns, layout)
        self._timestamps = TimestampUnits(columns)
        self._has_timestamps = any(has_timestamp(column.type) for column in columns)
        self._fields_so_far = HiveType("struct")

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`. Raises NotColumnar only for a single record, which may have too many values."""
        if not self._is_framed:
            return self._decode_texts(values)
        texts, others = texts_of(values)
        batch, rejects = self._decode_texts(texts)
        return batch, {**rejects, **dict.fromkeys(others)}

    def _decode_texts(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """Decode JSON texts; see `decode_batch`."""
        most = self._records.most_values(values)
        if most is not None:
            if len(values) > 1:
                raise TooManyValues(most)
            allowed = values_allowed(len(values[0]))
            if most[0] > allowed and self._tape.count(values) > allowed:
                raise NotColumnar
        try:
            if self._is_plain:
                return self._by_arrow(values)
        except MixedTimestamps:
            raise
        except NotColumnar:
            pass
        batch, undecided, rejected = self._tape.read(values, "ns")
        coarse = self._coarse(values, undecided)
        rows, rejects = self._decode_each(values, np.flatnonzero(undecided & ~coarse).tolist(), rejected)
        coarse[[index for index, row in rows.items() if self._timestamps.of(row) == "us"]] = True
        if not coarse.any():
            return self._with_rows(batch, rows, "ns"), rejects
        if np.count_nonzero(coarse) + len(rejects) < len(values):
            raise MixedTimestamps(coarse)
        batch, undecided, rejected = self._tape.read(values, "us")
        rows, rejects = self._decode_each(values, np.flatnonzero(undecided).tolist(), rejected)
        return self._with_rows(batch, rows, "us"), rejects

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        return self._records.row(text_of(value) if self._is_framed else value)

    def check(self, value: bytes) -> Reject | None:
        """See `RecordDecoder`."""
        is_quick = self._is_plain and not self._is_framed
        return None if is_quick and self._precheck.accepts(value) else super().check(value)

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """See `RecordDecoder`."""
        return frozenset(self.columns[index].name for index in self._tape.absent(self._texts(values)))

    def needed_columns(self, values: Sequence[bytes], others: Collection[str]) -> tuple[Column, ...]:
        """See `Evolving`."""
        self._fields_so_far = inference.joined(self._fields_so_far, self._fields(self._texts(values)))
        return inference.needed(self._fields_so_far, self.columns, others)

    def unstored_fields(self, values: Sequence[bytes], others: Collection[str]) -> tuple[str, ...]:
        """See `RecordDecoder`."""
        return inference.unstored_fields(
            self._fields(self._texts(values)), self._layout.stored_type(self.columns), others
        )

    def _texts(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """Return the JSON texts of records; that of a record without the header of the framing is empty."""
        return texts_of(values)[0] if self._is_framed else values

    def _fields(self, values: Sequence[bytes]) -> HiveType:
        """Return the fields of all rows, except those that are rejects because they have no member of a column."""
        members = self._layout.stored_members(self.columns)
        is_any_row = not self._layout.rejects_unmatched or "" in members
        own = self._layout.own_members(self.columns)
        return inference.fields_of(list(self._tape.rows(values)), None if is_any_row else members, own)

    def _by_arrow(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """Decode the records with Arrow, those that are undecided with the tape, and the rest of them one by one.

        Raises as `ArrowReader.read`. Also raises NotColumnar if one of them needs another unit of timestamps.
        """
        batch, undecided, rejected = self._arrow.read(values)
        unit = next((field.type.unit for field in batch.schema if pa.types.is_timestamp(field.type)), "ns")
        indexes = np.flatnonzero(undecided)
        if len(indexes) > _FEW:
            part, left, rejected[indexes] = self._tape.read([values[index] for index in indexes.tolist()], unit)
            batch = self._replaced(batch, indexes, part)
            indexes = indexes[left]
            if len(indexes) > _FEW and self._need_other_unit([values[index] for index in indexes.tolist()], unit):
                raise NotColumnar
        rows, rejects = self._decode_each(values, indexes.tolist(), rejected)
        if not {self._timestamps.of(row) for row in rows.values()} <= {"", unit}:
            raise NotColumnar
        return self._with_rows(batch, rows, unit), rejects

    def _need_other_unit(self, values: Sequence[bytes], unit: str) -> bool:
        """Return whether some records that are undecided in one unit of timestamps have rows in the other one."""
        if not self._has_timestamps:
            return False
        _, undecided, rejected = self._tape.read(values, "us" if unit == "ns" else "ns")
        return not (undecided | rejected).all()

    def _coarse(self, values: Sequence[bytes], undecided: Mask) -> Mask:
        """Return which of the records that are undecided in nanoseconds are decided in microseconds."""
        coarse: Mask = np.zeros(len(values), np.bool_)
        indexes = np.flatnonzero(undecided)
        if self._has_timestamps and len(indexes):
            _, left, _ = self._tape.read([values[index] for index in indexes.tolist()], "us")
            coarse[indexes] = ~left
        return coarse

    def _decode_each(
        self, values: Sequence[bytes], indexes: list[int], rejected: Mask
    ) -> tuple[dict[int, Row], RejectReasons]:
        """Decode the records at the given indexes one by one; return rows by index, and all rejects.

        `rejected` are other records, which are rejects.
        """
        rows: dict[int, Row] = {}
        rejects: dict[int, Cause | None] = dict.fromkeys(np.flatnonzero(rejected).tolist())
        for index in indexes:
            decoded = self._decode_one(values[index])
            if isinstance(decoded, RejectError):
                rejects[index] = decoded.column, decoded.reason
            else:
                rows[index] = decoded
        return rows, rejects

    def _decode_one(self, value: bytes) -> Row | RejectError:
        try:
            row = self._records.row(value)
            self._timestamps.of(row)
        except RejectError as error:
            return error
        return row

    def _with_rows(self, batch: pa.RecordBatch, rows: dict[int, Row], unit: str) -> pa.RecordBatch:
        """Return the batch with the rows at the given indexes replaced."""
        if not rows:
            return batch
        values = zip(*rows.values(), strict=True)
        arrays = [array_of(column.type, part, unit) for column, part in zip(self.columns, values, strict=True)]
        return self._replaced(batch, list(rows), batch_of(self.columns, arrays))

    def _replaced(self, batch: pa.RecordBatch, indexes: Sequence[int] | Places, part: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the rows of `part` in place of those at the given indexes."""
        order = np.arange(batch.num_rows)
        order[indexes] = batch.num_rows + np.arange(part.num_rows)
        pairs = zip(batch.columns, part.columns, strict=True)
        return batch_of(self.columns, [pa.concat_arrays(pair).take(pa.array(order)) for pair in pairs])
