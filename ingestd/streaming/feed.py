"""What `write` is given becomes Arrow batches of the table's columns, by blocks.

Invariant: every record that was accepted is in exactly one batch; one that is refused is named in a SerializationError
and nowhere else.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa

from ingestd.records.block import Decoder, Lines, Reject, size
from ingestd.streaming.errors import SerializationError
from ingestd.streaming.stats import ConnectionStats

Sink = Callable[[pa.RecordBatch], None]
Check = Callable[[bytes], "Reject | None"]
_BLOCK_RECORDS = 50_000
_BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
# Java's default [\r\n] sees an empty record inside CR LF; a line ends once.
LINES = re.compile(rb"\r\n|[\r\n]")


class RecordFeed:
    """Records as bytes: one, many, or a stream that `pattern` splits."""

    def __init__(self, decoder: Decoder, check: Check, pattern: re.Pattern[bytes], stats: ConnectionStats) -> None:
        self._decoder = decoder
        self._check = check
        self._pattern = pattern
        self._stats = stats
        self.begin()

    def begin(self) -> None:
        """A new transaction: records are counted from 0."""
        self._waiting: list[bytes] = []
        self._refused: list[int] = []  # how many waited when a single record was refused: those behind it count on
        self._bytes = 0
        self._written = 0

    def write(self, record: bytes) -> bool:
        """Take one record; True when a block is full. Raises SerializationError at once when it is bad."""
        reject = self._check(record)
        if reject is not None:
            number = self._written + len(self._waiting) + len(self._refused)
            self._refused.append(len(self._waiting))
            raise SerializationError.of([Reject(number, *_rest(reject))])
        self._waiting.append(record)
        self._bytes += len(record)
        self._stats.records_written += 1
        self._stats.records_size += len(record)
        return len(self._waiting) >= _BLOCK_RECORDS or self._bytes >= _BLOCK_BYTES

    def write_many(self, records: Sequence[bytes], sink: Sink) -> None:
        """Take many records; the good ones are kept when some are bad, and the SerializationError names those."""
        rejects = self._drain(sink)
        for start in range(0, len(records), _BLOCK_RECORDS):
            rejects += self._take(records[start : start + _BLOCK_RECORDS], sink)
        if rejects:
            raise SerializationError.of(rejects)

    def write_stream(self, stream: BinaryIO, sink: Sink) -> None:
        """Take the records of a stream until its end, as `write_many` does."""
        rejects = self._drain(sink)
        for records in split(stream, self._pattern):
            rejects += self._take(records, sink)
        if rejects:
            raise SerializationError.of(rejects)

    def drain(self, sink: Sink) -> None:
        """Decode what waits. Raises SerializationError."""
        rejects = self._drain(sink)
        if rejects:
            raise SerializationError.of(rejects)

    def _take(self, records: Sequence[bytes], sink: Sink) -> list[Reject]:
        """Decode records that nobody has looked at yet."""
        rejects = self._decode(records, sink)
        self._stats.records_written += len(records) - len(rejects)
        self._stats.records_size += size(records)
        return rejects

    def _drain(self, sink: Sink) -> list[Reject]:
        """Decode what was looked at one by one; a look may have been less strict than the decoder."""
        records, refused = self._waiting, self._refused
        self._waiting, self._refused, self._bytes = [], [], 0
        first = self._written
        rejects = self._decode(records, sink) if records else []
        self._stats.records_written -= len(rejects)
        self._written += len(refused)
        return [Reject(reject.row + bisect_right(refused, reject.row - first), *_rest(reject)) for reject in rejects]

    def _decode(self, records: Sequence[bytes], sink: Sink) -> list[Reject]:
        decoded = self._decoder.decode(records)
        for batch in decoded.batches:
            sink(batch)
        first = self._written
        self._written += len(records)
        return [Reject(first + reject.row, *_rest(reject)) for reject in decoded.rejects]


def _rest(reject: Reject) -> tuple[str, str, bytes]:
    return reject.column, reject.reason, reject.head


def split(stream: BinaryIO, pattern: re.Pattern[bytes]) -> Iterator[Sequence[bytes]]:
    """The records between matches of `pattern`; a match at the very end ends the last record and begins none.

    Where a delimiter ends may show only in what follows it (CR before LF), so the last one of a chunk is looked for
    again together with the next chunk.
    """
    rest = b""
    while chunk := stream.read(_CHUNK_BYTES):
        records, rest = _pieces(rest + chunk, pattern)
        if records:
            yield records
    last = pattern.split(rest)
    if not last[-1]:
        last.pop()
    if last:
        yield last


def _pieces(text: bytes, pattern: re.Pattern[bytes]) -> tuple[Sequence[bytes], bytes]:
    """The records that are whole for certain, and the rest of the text."""
    if pattern is LINES and b"\r" not in text:
        end = text.rfind(b"\n")
        return Lines(text[:end]) if end >= 0 else (), text[end + 1 :]
    records, start, last = [], 0, 0
    for found in pattern.finditer(text):
        records.append(text[start : found.start()])
        last, start = start, found.end()
    return records[:-1], text[last:]
