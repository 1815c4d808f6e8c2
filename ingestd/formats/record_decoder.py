"""The base class of all formats: it decodes many records at once if the result is certain, and one by one otherwise.

A format implements `decode_batch`, which is fast, and `decode_record`, which defines the meaning of a record. The base
class handles tombstones, splits batches that cannot be decoded as a whole, and collects rows and rejects in order.

Invariant: the result depends on each record alone, never on its neighbours or on how records are batched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingestd.formats.decoder import (
    VALUES_OF_PART,
    DecodeResult,
    FalseReject,
    LazyRejects,
    Reject,
    RejectError,
    TooManyValues,
    drop_rows,
    rejected_rows,
    total_bytes,
    without_tombstones,
)
from ingestd.formats.row_batches import Row, RowBatches, TimestampUnits, arrow_of, batch_of
from ingestd.formats.values import width_of
from ingestd.keys import Doc
from ingestd.schema import Column

MAX_BYTES = 1 << 30  # size limit of one batch; Arrow's string offsets have 31 bits
SMALLEST_BATCH = 256  # number of records; a batch of this size is not split further but decoded one by one
PARTS = 16  # number of parts into which a batch is split; enough to need few levels of splitting
MAX_FAILURES = 4  # consecutive smallest batches that fail before splitting ends: each attempt costs about 1 ms

Tombstones = Literal["stop", "skip", "dead_letter", "null_row"]
TombstonesKey = Annotated[
    Tombstones,
    Doc("Whether a record without a value stops the mapping, is skipped, is a dead letter, or is a row of NULLs."),
]
Cause = tuple[str, str]  # the column and the reason of a reject
# By the index of each reject's record. A cause that is None is what `decode_record` raises.
RejectReasons = Mapping[int, Cause | None]


class NotColumnar(Exception):
    """Raised by `decode_batch` for records that it cannot decode as one batch. They are then decoded in parts."""


class MixedTimestamps(NotColumnar):
    """Raised by `decode_batch` if no unit fits the timestamps of all records.

    `coarse` are the records that need microseconds. They and the others are then decoded as two batches.
    """

    def __init__(self, coarse: NDArray[np.bool_]) -> None:
        super().__init__()
        self.coarse = coarse


class RecordDecoder(ABC):
    """A decoder of one format; see `Decoder` for the contract.

    A subclass implements `decode_batch` and `decode_record`, and may override `check` with a faster method. A format
    without a columnar reader raises NotColumnar in `decode_batch`.

    `tombstones` determines how a record without a value is treated: "skip" ignores it, "null_row" makes it a row in
    which all columns are NULL, and the other values make it a reject. No batch passed to `decode_batch` is larger than
    `max_bytes`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        tombstones: Tombstones = "stop",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.columns = tuple(columns)
        self._tombstones = tombstones
        self._max_bytes = max_bytes
        self._units = TimestampUnits(columns)
        self._row_width = sum(width_of(column.type) for column in columns)

    @abstractmethod
    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """Return a batch with one row per value, and the rejects; the row of a reject has undefined values.

        Rows and rejects must agree with `decode_record`. Raises NotColumnar if that is not certain, and MixedTimestamps
        if some records need timestamps in microseconds and others in nanoseconds. Raises TooManyValues, for several
        records only, if their arrays and maps have more than VALUES_OF_PART values.
        """

    @abstractmethod
    def decode_record(self, value: bytes) -> Row:
        """Decode one record into a row; this is the reference for `decode_batch`. Raises RejectError."""

    def check(self, value: bytes) -> Reject | None:
        """Return the reject that `decode` would return for this record alone; None if the record becomes a row."""
        try:
            self._units.of(self.decode_record(value))
        except RejectError as error:
            return Reject.of(0, value, error.column, error.reason)
        return None

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """Return the names of the columns for which no record has a field, not even one that is null.

        A format that cannot tell such a field from others returns none.
        """
        return frozenset()

    def unstored_fields(self, values: Sequence[bytes], others: Collection[str]) -> tuple[str, ...]:
        """Return the names of the fields of the records that no column stores; a field of `others` is none of them.

        A format without names of fields returns none.
        """
        return ()

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """See `Decoder`. Batches of 20,000 to 100,000 records are the fastest."""
        if len(values) > 1 and len(values) * self._row_width > VALUES_OF_PART:
            raise TooManyValues(np.full(len(values), self._row_width, np.int64))
        records = without_tombstones(values)
        if len(records) < len(values):
            return self._with_tombstones(values, records)
        splitter = _Splitter(self, len(records), self._max_bytes)
        splitter.decode(records, range(len(records)))
        causes = splitter.rejects

        def create(row: int) -> Reject:
            column, reason = causes[row] or self._cause(records[row])
            return Reject.of(row, records[row], column, reason)

        rows = np.sort(np.fromiter(causes, np.int64, len(causes)))
        return DecodeResult(splitter.rows.close(), LazyRejects(rows, create), 0, splitter.records)

    def _cause(self, value: bytes) -> Cause:
        """Return why a record is a reject, which it is. Raises FalseReject if it is not."""
        try:
            self._units.of(self.decode_record(value))
        except RejectError as error:
            return error.column, error.reason
        raise FalseReject.of(value)

    def _with_tombstones(self, values: Sequence[bytes | None], records: Sequence[bytes]) -> DecodeResult:
        """Decode `records`, which are the values other than None, and treat the tombstones as configured."""
        is_tombstone = np.fromiter((value is None for value in values), np.bool_, len(values))
        present, absent = np.flatnonzero(~is_tombstone), np.flatnonzero(is_tombstone)
        try:
            decoded = self.decode(records)
        except TooManyValues as many:
            counts = np.zeros(len(values), np.int64)
            counts[present] = many.counts
            raise TooManyValues(counts) from None
        refused = decoded.rejects  # and not the batches, which would be kept as long as the rejects
        before = rejected_rows(refused)

        def create(row: int) -> Reject:
            if values[row] is None:
                return Reject.of(row, None, "", "record has no value (tombstone)")
            place = np.searchsorted(before, np.searchsorted(present, row))
            return replace(refused[int(place)], row=row)

        rejects = LazyRejects(present[before], create)
        rows = present[decoded.records_of_rows(records)]
        if self._tombstones == "skip":
            return DecodeResult(decoded.batches, rejects, absent.size, rows)
        if self._tombstones == "null_row":
            if len(values) > 1 and (len(rows) + absent.size) * self._row_width > VALUES_OF_PART:
                counts = np.bincount(np.concatenate([rows, absent]), minlength=len(values))
                raise TooManyValues(counts * self._row_width)
            nulls = batch_of(self.columns, [pa.nulls(absent.size, arrow_of(c.type, "ns")) for c in self.columns])
            return DecodeResult([*decoded.batches, nulls], rejects, 0, np.concatenate([rows, absent]))
        return DecodeResult(decoded.batches, LazyRejects(np.union1d(rejects.rows, absent), create), 0, rows)


class _Splitter:
    """The state of one call of `RecordDecoder.decode`, which decodes a batch as a whole, or in parts if that fails."""

    def __init__(self, decoder: RecordDecoder, count: int, max_bytes: int) -> None:
        self.rows = RowBatches(decoder.columns)
        self.rejects: dict[int, Cause | None] = {}
        self._decoder = decoder
        self._count = count
        self._max_bytes = max_bytes
        self._failures = 0
        self._records: list[Sequence[int] | NDArray[np.int64]] = []  # of the rows
        self._is_ordered = True

    @property
    def records(self) -> NDArray[np.int64] | None:
        """The indexes of the records of all rows, None if they are in the order of the records."""
        if self._is_ordered:
            return None
        return np.concatenate([np.asarray(part, np.int64) for part in (*self._records, ())])

    def decode(self, values: Sequence[bytes], indexes: Sequence[int]) -> None:
        """Decode the values; `indexes` are those of their records."""
        if not values:
            return
        fits = total_bytes(values) + len(values) <= self._max_bytes
        smallest = SMALLEST_BATCH if fits else 1
        if fits and self._decode_batch(values, indexes):
            self._failures = 0
        elif len(values) <= smallest or self._failures >= MAX_FAILURES:
            for value, index in zip(values, indexes, strict=True):
                self._decode_record(value, index)
            self._failures += 1
        else:
            size = max(smallest, -(-len(values) // PARTS))
            for first in range(0, len(values), size):
                self.decode(values[first : first + size], indexes[first : first + size])

    def _decode_batch(self, values: Sequence[bytes], indexes: Sequence[int]) -> bool:
        """Decode the values as one batch, or as two with different units; return False if that is not possible."""
        try:
            batch, rejects = self._decoder.decode_batch(values)
        except MixedTimestamps as mixed:
            if mixed.coarse.all() or not mixed.coarse.any():
                return False
            self._is_ordered = False
            for part in (np.flatnonzero(~mixed.coarse).tolist(), np.flatnonzero(mixed.coarse).tolist()):
                self.decode([values[place] for place in part], [indexes[place] for place in part])
            return True
        except TooManyValues:
            if len(values) == self._count > 1:
                raise
            return False
        except NotColumnar:
            return False
        kept: Sequence[int] | NDArray[np.int64] = indexes
        if rejects:
            self.rejects.update((indexes[row], cause) for row, cause in rejects.items())
            batch = drop_rows(batch, rejects)
            kept = np.delete(np.asarray(indexes), list(rejects))
        if batch.num_rows:
            self.rows.add_batch(batch)
            self._records.append(kept)
        return True

    def _decode_record(self, value: bytes, index: int) -> None:
        try:
            self.rows.add_row(self._decoder.decode_record(value))
        except RejectError as error:
            self.rejects[index] = (error.column, error.reason)
        else:
            self._records.append((index,))
