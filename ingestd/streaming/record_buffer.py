"""Buffers records and decodes many at once into Arrow batches of the table's columns.

Invariant: each accepted record is in exactly one batch; each rejected record is in exactly one SerializationError.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingestd.errors import RecordError
from ingestd.formats.decoder import Decoder, DecodeResult, Reject, decode_in_parts, rejected_rows, total_bytes
from ingestd.schema import Column
from ingestd.streaming.errors import SerializationError, StreamingException
from ingestd.streaming.record_stream import split
from ingestd.streaming.stats import Counters

Sink = Callable[[pa.RecordBatch], None]
Check = Callable[[bytes], "Reject | None"]
_BLOCK_RECORDS = 50_000
_BLOCK_BYTES = 8 << 20
_REJECT_BYTES = 64 << 20  # limit of the rejected records of a stream that one SerializationError keeps


class RecordBuffer:
    """Accepts single records, lists, and streams, which `pattern` splits. Passes decoded batches to a `Sink`."""

    def __init__(self, decoder: Decoder, check: Check, pattern: re.Pattern[bytes], stats: Counters) -> None:
        self._decoder = decoder
        self._check = check
        self._pattern = pattern
        self._stats = stats
        self.begin()

    def begin(self) -> None:
        """Start a transaction, in which records are numbered from 0."""
        self._waiting: list[bytes] = []
        # How many records were waiting when `add` rejected one, for each reject. Needed to number later records.
        self._rejected_at: list[int] = []
        self._bytes = 0
        self._decoded = 0

    def add(self, record: bytes) -> bool:
        """Buffer one record, and return whether the buffer is full. Raises SerializationError if it is a reject."""
        reject = self._check(record)
        if reject is not None:
            number = self._decoded + len(self._waiting) + len(self._rejected_at)
            self._rejected_at.append(len(self._waiting))
            raise SerializationError.of([replace(reject, row=number, index=0, record=record)])
        self._waiting.append(record)
        self._bytes += len(record)
        self._stats.records_written += 1
        self._stats.records_size += len(record)
        return len(self._waiting) >= _BLOCK_RECORDS or self._bytes >= _BLOCK_BYTES

    def write_list(self, records: Sequence[bytes], sink: Sink) -> None:
        """Decode a list of records. Raises SerializationError with all rejects; the other records are kept."""
        rejects = self._decode_waiting(sink)
        for start in range(0, len(records), _BLOCK_RECORDS):
            rejects += self._decode_new(records[start : start + _BLOCK_RECORDS], start, sink)
        if rejects:
            raise SerializationError.of(rejects)

    def write_stream(self, stream: BinaryIO, sink: Sink) -> None:
        """Decode the records of a stream until its end. Raises the same errors as `write_list`."""
        rejects = self._decode_waiting(sink)
        count, room = 0, _REJECT_BYTES
        for records in split(stream, self._pattern):
            for reject in self._decode_new(records, count, sink):
                room -= len(reject.record or b"")
                rejects.append(reject if room >= 0 else replace(reject, record=None))
            count += len(records)
        if rejects:
            raise SerializationError.of(rejects)

    def drain(self, sink: Sink) -> None:
        """Decode the buffered records. Raises SerializationError with all rejects."""
        rejects = self._decode_waiting(sink)
        if rejects:
            raise SerializationError.of(rejects)

    def _decode_new(self, records: Sequence[bytes], start: int, sink: Sink) -> list[Reject]:
        """Decode unchecked records. `start` is the index of the first one in the caller's list or stream."""
        first = self._decoded
        rejects = [replace(reject, index=start + reject.row - first) for reject in self._decode(records, sink)]
        self._stats.records_written += len(records) - len(rejects)
        self._stats.records_size += total_bytes(records)
        return rejects

    def _decode_waiting(self, sink: Sink) -> list[Reject]:
        """Decode the records that `add` accepted. The decoder may reject some, as it may be stricter than the check."""
        records, rejected_at = self._waiting, self._rejected_at
        self._waiting, self._rejected_at, self._bytes = [], [], 0
        first = self._decoded
        rejects = self._decode(records, sink) if records else []
        self._stats.records_written -= len(rejects)
        self._decoded += len(rejected_at)
        return [
            replace(reject, row=reject.row + bisect_right(rejected_at, reject.row - first), index=None)
            for reject in rejects
        ]

    def _decode(self, records: Sequence[bytes], sink: Sink) -> list[Reject]:
        rejects: list[Reject] = []
        for start, part, decoded in decode_in_parts(self._decoder.decode, records):
            for batch in decoded.batches:
                sink(batch)
            first = self._decoded + start
            # The rejects of a custom decoder may lack the record.
            rejects += [replace(reject, row=first + reject.row, record=part[reject.row]) for reject in decoded.rejects]
        self._decoded += len(records)
        return rejects


def as_decoded(answer: object) -> DecodeResult:
    """Return the result of a decoder. Raises StreamingException unless it is a `DecodeResult`."""
    if not isinstance(answer, DecodeResult):
        raise StreamingException(f"the decoder returned {type(answer).__name__}, not DecodeResult", where="decode")
    return answer


class StrictDecoder:
    """Checks that a decoder, which may be a custom one, loses no record and returns the table's columns."""

    def __init__(self, decoder: Decoder, columns: Sequence[Column]) -> None:
        self._decoder = decoder
        self._names = [column.name for column in columns]

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode a batch of records. Raises StreamingException when the decoder breaks its contract."""
        try:
            decoded = as_decoded(self._decoder.decode(values))
        except RecordError as error:  # the transaction would continue, without any of the records
            raise StreamingException(
                f"the decoder raised {type(error).__name__}: {error.what}",
                where="decode",
                hint="return a reject for each record that cannot become a row",
            ) from error
        if decoded.records is not None:
            _check_records(decoded, decoded.records, len(values))
        elif decoded.rows + len(decoded.rejects) + decoded.skipped != len(values):
            raise StreamingException(
                f"the decoder returned {decoded.rows} rows, {len(decoded.rejects)} rejects and"
                f" {decoded.skipped} skipped tombstones for {len(values)} records",
                where="decode",
                hint="each record must become one row or one reject",
            )
        for batch in decoded.batches:
            if batch.schema.names != self._names:
                raise StreamingException(
                    f"the decoder returned the columns {batch.schema.names}, not {self._names}", where="decode"
                )
        return decoded


def _check_records(decoded: DecodeResult, records: NDArray[np.int64], count: int) -> None:
    """Raise StreamingException unless each of `count` records has rows, is a reject or was skipped."""
    if len(records) != decoded.rows:
        what = f"the decoder returned {decoded.rows} rows, but the records of {len(records)}"
        raise StreamingException(what, where="decode", hint="DecodeResult.records has one element for each row")
    of_rows, rejects = set(records.tolist()), set(rejected_rows(decoded.rejects).tolist())
    covered = len(of_rows | rejects) + decoded.skipped
    if of_rows & rejects or covered != count or not of_rows | rejects <= set(range(count)):
        raise StreamingException(
            f"the decoder returned rows of {len(of_rows)} records, {len(rejects)} rejects and"
            f" {decoded.skipped} skipped tombstones for {count} records",
            where="decode",
            hint="each record must become rows or one reject; DecodeResult.records has the index of each row's record",
        )
