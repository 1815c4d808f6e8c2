"""What `write` is given becomes Arrow batches of the table's columns, by blocks.

Invariant: every record that was accepted is in exactly one batch; one that is refused is named in a SerializationError
and nowhere else.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import pyarrow as pa

from ingestd.formats.decoder import Decoder, DecodeResult, Lines, Reject, total_bytes
from ingestd.schema import Column
from ingestd.streaming.errors import SerializationError, StreamingException
from ingestd.streaming.stats import Counters

Sink = Callable[[pa.RecordBatch], None]
Check = Callable[[bytes], "Reject | None"]
BYTES = (bytes, bytearray, memoryview)  # what a record may be
_BLOCK_RECORDS = 50_000
_BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_REJECT_BYTES = 64 << 20  # of bad records of a stream that a SerializationError keeps
# Java's default [\r\n] sees an empty record inside CR LF; a line ends once.
LINES = re.compile(rb"\r\n|[\r\n]")


class RecordFeed:
    """Records as bytes: one, many, or a stream that `pattern` splits."""

    def __init__(self, decoder: Decoder, check: Check, pattern: re.Pattern[bytes], stats: Counters) -> None:
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
            raise SerializationError.of([replace(reject, row=number, index=0, record=record)])
        self._waiting.append(record)
        self._bytes += len(record)
        self._stats.records_written += 1
        self._stats.records_size += len(record)
        return len(self._waiting) >= _BLOCK_RECORDS or self._bytes >= _BLOCK_BYTES

    def write_many(self, records: Sequence[bytes], sink: Sink) -> None:
        """Take many records; the good ones are kept when some are bad, and the SerializationError names those."""
        rejects = self._drain(sink)
        for start in range(0, len(records), _BLOCK_RECORDS):
            rejects += self._take(records[start : start + _BLOCK_RECORDS], start, sink)
        if rejects:
            raise SerializationError.of(rejects)

    def write_stream(self, stream: BinaryIO, sink: Sink) -> None:
        """Take the records of a stream until its end, as `write_many` does."""
        rejects = self._drain(sink)
        taken, room = 0, _REJECT_BYTES
        for records in split(stream, self._pattern):
            for reject in self._take(records, taken, sink):
                room -= len(reject.record or b"")
                rejects.append(reject if room >= 0 else replace(reject, record=None))
            taken += len(records)
        if rejects:
            raise SerializationError.of(rejects)

    def drain(self, sink: Sink) -> None:
        """Decode what waits. Raises SerializationError."""
        rejects = self._drain(sink)
        if rejects:
            raise SerializationError.of(rejects)

    def _take(self, records: Sequence[bytes], start: int, sink: Sink) -> list[Reject]:
        """Decode records that nobody has looked at yet; `start` is the index of the first in the call's list."""
        first = self._written
        rejects = [replace(reject, index=start + reject.row - first) for reject in self._decode(records, sink)]
        self._stats.records_written += len(records) - len(rejects)
        self._stats.records_size += total_bytes(records)
        return rejects

    def _drain(self, sink: Sink) -> list[Reject]:
        """Decode what was looked at one by one; a look may have been less strict than the decoder."""
        records, refused = self._waiting, self._refused
        self._waiting, self._refused, self._bytes = [], [], 0
        first = self._written
        rejects = self._decode(records, sink) if records else []
        self._stats.records_written -= len(rejects)
        self._written += len(refused)
        return [
            replace(reject, row=reject.row + bisect_right(refused, reject.row - first), index=None)
            for reject in rejects
        ]

    def _decode(self, records: Sequence[bytes], sink: Sink) -> list[Reject]:
        decoded = self._decoder.decode(records)
        for batch in decoded.batches:
            sink(batch)
        first = self._written
        self._written += len(records)
        # A decoder of a user's own may have left the record out.
        return [replace(reject, row=first + reject.row, record=records[reject.row]) for reject in decoded.rejects]


def as_decoded(answer: object) -> DecodeResult:
    """What a decoder returned. Raises StreamingException when it is something else."""
    if not isinstance(answer, DecodeResult):
        raise StreamingException(f"the decoder returned {type(answer).__name__}, not DecodeResult", where="decode")
    return answer


class StrictDecoder:
    """A decoder that is held to its contract, because it may be a user's own: no record is lost, the columns are right.

    `decode` raises StreamingException when it is not.
    """

    def __init__(self, decoder: Decoder, columns: Sequence[Column]) -> None:
        self._decoder = decoder
        self._names = [column.name for column in columns]

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode a block."""
        decoded = as_decoded(self._decoder.decode(values))
        if decoded.rows + len(decoded.rejects) + decoded.skipped != len(values):
            raise StreamingException(
                f"the decoder made {decoded.rows} rows, {len(decoded.rejects)} rejects and {decoded.skipped} skipped"
                f" tombstones of {len(values)} records",
                where="decode",
                hint="each record must be one row or one reject",
            )
        for batch in decoded.batches:
            if batch.schema.names != self._names:
                raise StreamingException(
                    f"the decoder made the columns {batch.schema.names}, not {self._names}", where="decode"
                )
        return decoded


def split(stream: BinaryIO, pattern: re.Pattern[bytes]) -> Iterator[Sequence[bytes]]:
    """The records between matches of `pattern`; a match at the very end ends the last record and begins none."""
    return _lines(stream) if pattern is LINES else _pieces(stream, pattern)


def _lines(stream: BinaryIO) -> Iterator[Sequence[bytes]]:
    begun: list[bytes] = []  # the record whose end has not come
    held = b""  # a CR: LF may follow
    while chunk := _read(stream):
        text = held + chunk
        held = text[-1:] if text.endswith(b"\r") else b""
        if b"\r" in text:
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = text.rfind(b"\n")
        if end >= 0:
            yield Lines(b"".join([*begun, text[:end]]))
            begun.clear()
        begun.append(text[end + 1 :])
    last = b"".join(begun)
    if last or held:
        yield [last]


def _pieces(stream: BinaryIO, pattern: re.Pattern[bytes]) -> Iterator[Sequence[bytes]]:
    """Where a delimiter ends may show only in what follows, so the last one is looked for again in the next chunk."""
    rest = b""
    while chunk := _read(stream):
        text = rest + chunk
        records, start, last = [], 0, 0
        for found in pattern.finditer(text):
            records.append(text[start : found.start()])
            last, start = start, found.end()
        if records[:-1]:
            yield records[:-1]
        rest = text[last:]
    records = pattern.split(rest)
    if not records[-1]:
        records.pop()
    if records:
        yield records


def _read(stream: BinaryIO) -> bytes:
    try:
        chunk = stream.read(_CHUNK_BYTES)
    except TypeError as error:
        raise StreamingException(f"a stream has read(size), {error}", where="write") from error
    if not isinstance(chunk, bytes):
        raise StreamingException(f"a stream gives bytes, not {type(chunk).__name__}", where="write")
    return chunk


def records_of(data: Iterable[Any]) -> list[bytes]:
    """What `write` was given as many records. Raises StreamingException for anything that is not bytes."""
    if isinstance(data, (str, Mapping)) or not isinstance(data, Iterable):
        raise StreamingException(f"a record is bytes, not {type(data).__name__}", where="write")
    records = data if isinstance(data, list) else list(data)
    kinds = set(map(type, records))
    if kinds <= {bytes}:
        return records
    return [_bytes_of(record, place) for place, record in enumerate(records)]


def _bytes_of(record: object, place: int) -> bytes:
    if not isinstance(record, BYTES):
        raise StreamingException(f"a record is bytes, not {type(record).__name__}", where=f"write, item {place}")
    return bytes_of(record, f"write, item {place}")


def bytes_of(record: bytes | bytearray | memoryview, where: str) -> bytes:
    """A record as bytes of its own. Raises StreamingException for memory that was released."""
    try:
        return bytes(record)
    except ValueError as error:
        raise StreamingException(f"a record cannot be read: {error}", where=where) from error
