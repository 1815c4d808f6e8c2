"""The base class of all formats: it decodes many records at once if the result is certain, and one by one otherwise.

A format implements `decode_batch`, which is fast, and `decode_record`, which defines the meaning of a record. The base
class handles tombstones, splits batches that cannot be decoded as a whole, and collects rows and rejects in order.

Invariant: the result depends on each record alone, never on its neighbours or on how records are batched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from ingestd.formats.decoder import DecodeResult, Reject, RejectError, drop_rows, total_bytes, without_tombstones
from ingestd.formats.row_batches import Row, RowBatches, TimestampUnits
from ingestd.schema import Column

MAX_BYTES = 1 << 30  # size limit of one batch; Arrow's string offsets have 31 bits
SMALLEST_BATCH = 256  # number of records; a batch of this size is not split further but decoded one by one
PARTS = 16  # number of parts into which a batch is split; enough to need few levels of splitting
MAX_FAILURES = 4  # consecutive smallest batches that fail before splitting ends: each attempt costs about 1 ms

RejectReasons = Mapping[int, tuple[str, str]]  # column and reason of each reject, by the index of its record


class NotColumnar(Exception):
    """Raised by `decode_batch` for records that it cannot decode as one batch. They are then decoded in parts."""


class RecordDecoder(ABC):
    """A decoder of one format; see `Decoder` for the contract.

    A subclass implements `decode_batch` and `decode_record`, and may override `check` with a faster method. A format
    without a columnar reader raises NotColumnar in `decode_batch`.

    `tombstones` determines how a record without a value is treated: "stop" makes it a reject, "skip" ignores it. No
    batch passed to `decode_batch` is larger than `max_bytes`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        tombstones: Literal["stop", "skip"] = "stop",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.columns = tuple(columns)
        self._skip_tombstones = tombstones == "skip"
        self._max_bytes = max_bytes
        self._units = TimestampUnits(columns)

    @abstractmethod
    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """Return a batch with one row per value, and the rejects; the row of a reject has undefined values.

        Rows and rejects must agree with `decode_record`. Raises NotColumnar if that is not certain.
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

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """See `Decoder`. Batches of 20,000 to 100,000 records are the fastest."""
        records = without_tombstones(values)
        indexes: Sequence[int] = range(len(values))
        rejects: list[Reject] = []
        if len(records) < len(values):
            indexes = [index for index, value in enumerate(values) if value is not None]
            if not self._skip_tombstones:
                rejects = [
                    Reject.of(index, None, "", "record has no value (tombstone)")
                    for index, value in enumerate(values)
                    if value is None
                ]
        splitter = _Splitter(self, self._max_bytes)
        splitter.decode(records, 0)
        rejects += [
            Reject.of(indexes[index], records[index], column, reason)
            for index, (column, reason) in splitter.rejects.items()
        ]
        skipped = len(values) - len(records) if self._skip_tombstones else 0
        return DecodeResult(splitter.rows.close(), sorted(rejects, key=lambda reject: reject.row), skipped)


class _Splitter:
    """The state of one call of `RecordDecoder.decode`, which decodes a batch as a whole, or in parts if that fails."""

    def __init__(self, decoder: RecordDecoder, max_bytes: int) -> None:
        self.rows = RowBatches(decoder.columns)
        self.rejects: dict[int, tuple[str, str]] = {}
        self._decoder = decoder
        self._max_bytes = max_bytes
        self._failures = 0

    def decode(self, values: Sequence[bytes], start: int) -> None:
        """Decode the values; `start` is the index of the first one."""
        if not values:
            return
        fits = total_bytes(values) + len(values) <= self._max_bytes
        smallest = SMALLEST_BATCH if fits else 1
        if fits and self._decode_batch(values, start):
            self._failures = 0
        elif len(values) <= smallest or self._failures >= MAX_FAILURES:
            for index, value in enumerate(values, start):
                self._decode_record(value, index)
            self._failures += 1
        else:
            size = max(smallest, -(-len(values) // PARTS))
            for first in range(0, len(values), size):
                self.decode(values[first : first + size], start + first)

    def _decode_batch(self, values: Sequence[bytes], start: int) -> bool:
        """Decode the values as one batch; return False if that is not possible."""
        try:
            batch, rejects = self._decoder.decode_batch(values)
        except NotColumnar:
            return False
        if rejects:
            self.rejects.update((start + row, cause) for row, cause in rejects.items())
            batch = drop_rows(batch, rejects)
        if batch.num_rows:
            self.rows.add_batch(batch)
        return True

    def _decode_record(self, value: bytes, index: int) -> None:
        try:
            self.rows.add_row(self._decoder.decode_record(value))
        except RejectError as error:
            self.rejects[index] = (error.column, error.reason)
