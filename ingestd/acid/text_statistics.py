"""Bounds the minima and maxima of texts in the statistics of an ORC file, as Java's writer does.

liborc, which pyarrow and pyorc use, stores the least and the greatest text of each index entry, stripe and file whole:
long texts are stored several times, and the metadata of a large file can exceed what readers accept. liborc also
compares texts only up to their first NUL, so that a text which contains one can be outside of the statistics.

Invariant: a lower bound is not greater, and an upper bound not less, than each text that it describes, in the order of
UTF-8 and in that of UTF-16, which Hive uses. They replace a minimum or maximum that is longer than 1,024 bytes or
contains NUL, and are not longer. Everything else of the file, except for offsets, stays as it is.
Source: ColumnStatisticsImpl.StringStatisticsImpl of ORC's Java writer, which has the same limit since ORC 1.6.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from ingestd.acid.orc_proto import (
    bytes_field,
    decode_chunks,
    encode_chunks,
    encode_tail,
    fields,
    map_field,
    number,
    raw_fields,
    read_metadata,
    read_tail,
    with_numbers,
)
from ingestd.acid.sink import OrcSink

MAX_BOUND_BYTES = 1024
# liborc keeps the statistics of all stripes in memory until the file is closed, and cannot write more than 2 GiB.
_MAX_KEPT_BYTES = 32 << 20
_HEADER_BYTES = 3
_COPY_BYTES = 1 << 20
# Field numbers of orc_proto: Footer, Metadata, StripeInformation, StripeFooter, Stream, RowIndex, ColumnStatistics.
_CONTENT_LENGTH, _STRIPES, _FILE_STATISTICS = 2, 3, 7
_STRIPE_STATISTICS, _COLUMNS = 1, 1
_OFFSET, _INDEX_LENGTH, _DATA_LENGTH, _FOOTER_LENGTH = 1, 2, 3, 4
_STREAMS = 1
_STREAM_KIND, _STREAM_LENGTH = 1, 3
_ROW_INDEX = 6
_ENTRIES, _ENTRY_STATISTICS = 1, 2
_TEXTS = 4
_MINIMUM, _LOWER_BOUND, _UPPER_BOUND = 1, 4, 5
# The characters after these come before them in UTF-16, or do not exist.
_NOT_FOLLOWED = frozenset("\uffff\U0010ffff")


class TextWatch:
    """Watches the texts that are written to a file, for what liborc makes of them."""

    def __init__(self, sink: OrcSink) -> None:
        self.needs_bounds = False
        """Whether a text is long or contains NUL, so that the statistics must be bounded."""
        self._sink = sink
        self._end = sink.written
        self._kept_bytes = 0
        self._longest = 0  # bytes of the longest texts of the open stripe, one of each column

    @property
    def is_full(self) -> bool:
        """Whether the file should be closed, because liborc keeps statistics of many long texts in memory."""
        return self._kept_bytes + 2 * self._longest >= _MAX_KEPT_BYTES

    def add(self, batch: pa.RecordBatch) -> None:
        """Watch a batch before it is written."""
        if self._sink.written != self._end:  # liborc writes only complete stripes
            self._end = self._sink.written
            self._kept_bytes += 2 * self._longest
            self._longest = 0
        longest = 0
        for array in batch.columns:
            length, has_nul = _examined(array)
            longest += length if length > MAX_BOUND_BYTES else 0
            self.needs_bounds |= has_nul or length > MAX_BOUND_BYTES
        self._longest = max(self._longest, longest)


def _examined(array: pa.Array) -> tuple[int, bool]:
    """Return the length of the longest text in an array, at any depth, and whether a text contains NUL."""
    kind = array.type
    if pa.types.is_nested(kind):
        if pa.types.is_struct(kind):
            parts = [array.field(place) for place in range(kind.num_fields)]
        else:
            parts = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        examined = [_examined(part) for part in parts]
        return max((length for length, _ in examined), default=0), any(has_nul for _, has_nul in examined)
    is_large = pa.types.is_large_string(kind)
    if not (is_large or pa.types.is_string(kind)) or not len(array):
        return 0, False
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int64 if is_large else np.int32)[array.offset : array.offset + len(array) + 1]
    if ends[0] == ends[-1]:
        return 0, False
    is_long = ends[-1] - ends[0] > MAX_BOUND_BYTES
    longest = int(np.diff(ends).max()) if is_long else 0
    return longest, not np.frombuffer(content, np.uint8)[ends[0] : ends[-1]].min()


@dataclass(frozen=True, slots=True)
class Bounded:
    """The stripes of a growing file whose statistics are bounded: the messages that describe them.

    `moved` is by how many bytes the offsets of liborc, which does not know that the file was changed, exceed the actual
    ones.
    """

    stripes: tuple[bytes, ...] = ()
    statistics: tuple[bytes, ...] = ()
    moved: int = 0


def bound_statistics(path: Path, start: int = 0, before: Bounded | None = None) -> Bounded:
    """Bound the statistics of a complete ORC file in place. The file is not synced to disk.

    The bytes before `start` stay as they are. If an earlier call has bounded stripes in them, `before` is its result.
    The indexes of one stripe and the metadata are in memory. Raises OSError, and ValueError as `seal`.
    """
    before = before or Bounded()
    with path.open("r+b") as file:
        post_script, footer, footer_start = read_tail(file)
        known = len(before.stripes)
        described = _messages(read_metadata(file, post_script, footer_start), _STRIPE_STATISTICS)
        new = (map_field(stripe, _COLUMNS, _bound_column) for stripe in islice(described, known, None))
        statistics = (*before.statistics, *new)
        out = _Rest(file, max(start, _HEADER_BYTES))
        stripes = list(before.stripes)
        for stripe in islice(_messages(footer, _STRIPES), known, None):
            offset = number(dict(fields(stripe)), _OFFSET) - before.moved
            stripes.append(stripe if offset < start else _copy_stripe(out, stripe, offset, post_script))
        footer = _without(map_field(footer, _FILE_STATISTICS, _bound_column), _STRIPES)
        footer += b"".join(bytes_field(_STRIPES, stripe) for stripe in stripes)
        footer = with_numbers(footer, {_CONTENT_LENGTH: out.size - _HEADER_BYTES})
        metadata = b"".join(bytes_field(_STRIPE_STATISTICS, statistic) for statistic in statistics)
        out.write(encode_tail(footer, post_script, metadata))
        return Bounded(tuple(stripes), statistics, before.moved + out.finish())


def _copy_stripe(out: _Rest, stripe: bytes, offset: int, post_script: bytes) -> bytes:
    """Append a stripe with bounded statistics, and return the message that describes it.

    `offset` is where it begins in the file. The streams are stored in the order in which its footer lists them.
    """
    values = dict(fields(stripe))
    index, length = number(values, _INDEX_LENGTH), number(values, _FOOTER_LENGTH)
    footer_start = offset + index + number(values, _DATA_LENGTH)
    footer = decode_chunks(out.look(footer_start, length), post_script)
    start, streams = out.size, []
    for stream in _messages(footer, _STREAMS):
        kind = dict(fields(stream))
        size = number(kind, _STREAM_LENGTH)
        if number(kind, _STREAM_KIND) != _ROW_INDEX:
            out.copy(size)
            streams.append(stream)
            continue
        stored = out.read(size)
        entries = decode_chunks(stored, post_script)
        bounded = map_field(entries, _ENTRIES, _bound_entry)
        if bounded != entries:
            stored = encode_chunks(bounded, post_script)
        out.write(stored)
        streams.append(with_numbers(stream, {_STREAM_LENGTH: len(stored)}))
        index += len(stored) - size
    out.read(length)
    listed = b"".join(bytes_field(_STREAMS, stream) for stream in streams)
    encoded = encode_chunks(listed + _without(footer, _STREAMS), post_script)
    out.write(encoded)
    return with_numbers(stripe, {_OFFSET: start, _INDEX_LENGTH: index, _FOOTER_LENGTH: len(encoded)})


class _Rest:
    """The rest of a file, which is read and replaced in one pass.

    Bytes whose place has not been read yet wait in memory.
    """

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self._read_to = self._written_to = start
        self._waiting = b""

    @property
    def size(self) -> int:
        """The number of bytes of the file so far."""
        return self._written_to + len(self._waiting)

    def look(self, start: int, size: int) -> bytes:
        """Return bytes that have not been read yet, which still have to be read."""
        self._file.seek(start)
        return self._file.read(size)

    def read(self, size: int) -> bytes:
        """Read the next bytes."""
        content = self.look(self._read_to, size)
        if len(content) < size:
            raise ValueError(f"{self._file.name} is not a complete ORC file")
        self._read_to += size
        return content

    def write(self, content: bytes) -> None:
        """Append bytes."""
        waiting = self._waiting + content if self._waiting else content
        room = self._read_to - self._written_to
        self._store(memoryview(waiting)[:room])
        self._waiting = waiting[room:]

    def copy(self, size: int) -> None:
        """Read and append the next bytes."""
        for start in range(0, size, _COPY_BYTES):
            self.write(self.read(min(_COPY_BYTES, size - start)))

    def finish(self) -> int:
        """End the file after what was written, and return the number of bytes by which it is shorter than before."""
        before = self._file.seek(0, os.SEEK_END)
        self._store(memoryview(self._waiting))
        self._file.truncate(self._written_to)
        return before - self._written_to

    def _store(self, content: memoryview) -> None:
        self._file.seek(self._written_to)
        self._written_to += self._file.write(content)


def _bound_entry(entry: bytes) -> bytes:
    return map_field(entry, _ENTRY_STATISTICS, _bound_column)


def _bound_column(statistics: bytes) -> bytes:
    return map_field(statistics, _TEXTS, _bound_texts)


def _bound_texts(texts: bytes) -> bytes:
    """Replace minimum and maximum by bounds if necessary."""
    parts = []
    for (key, value), (_, raw) in zip(fields(texts), raw_fields(texts), strict=True):
        if isinstance(value, int) or (len(value) <= MAX_BOUND_BYTES and b"\0" not in value):
            parts.append(raw)
        elif key == _MINIMUM:
            parts.append(bytes_field(_LOWER_BOUND, lower_bound(value)))
        else:
            bound = upper_bound(value)
            parts.append(raw if bound is None else bytes_field(_UPPER_BOUND, bound))
    return b"".join(parts)


def lower_bound(text: bytes) -> bytes:
    """Return the longest prefix of a text without NUL of at most 1,024 bytes that ends between two characters."""
    prefix = text.partition(b"\0")[0]
    if len(prefix) <= MAX_BOUND_BYTES:
        return prefix
    end = MAX_BOUND_BYTES
    while end and prefix[end] & 0xC0 == 0x80:  # the rest of a character
        end -= 1
    return prefix[:end]


def upper_bound(text: bytes) -> bytes | None:
    """Return a text of at most 1,024 bytes that is greater than all texts with the lower bound of a text as prefix.

    Returns None if there is none, because the bound consists of the last characters only or is not UTF-8.
    """
    prefix = lower_bound(text)
    if len(prefix) < MAX_BOUND_BYTES and text[len(prefix) : len(prefix) + 1] == b"\0":
        return prefix + b"\1"  # texts with this prefix are equal to it, or continue with NUL
    try:
        characters = prefix.decode()
    except UnicodeDecodeError:
        return None
    while characters:
        last, characters = characters[-1], characters[:-1]
        if last not in _NOT_FOLLOWED:
            following = "\ue000" if last == "\ud7ff" else chr(ord(last) + 1)
            bound = (characters + following).encode()
            if len(bound) <= MAX_BOUND_BYTES:
                return bound
    return None


def _messages(message: bytes, key: int) -> Iterator[bytes]:
    """Iterate over the values of the fields `key`, which contain messages."""
    return (value for field_key, value in fields(message) if field_key == key and isinstance(value, bytes))


def _without(message: bytes, key: int) -> bytes:
    """Return a message without its fields `key`."""
    return b"".join(raw for field_key, raw in raw_fields(message) if field_key != key)
