"""Splits a binary stream into records.

Invariant: the records are those that `pattern.split` would find in the whole stream, however it is divided into reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from ingestd.formats.decoder import Lines
from ingestd.streaming.errors import StreamingException

# Java's default [\r\n] finds an empty record between CR and LF; here CR LF is one line end.
LINES = re.compile(rb"\r\n|[\r\n]")
_CHUNK_BYTES = 1 << 20


def split(
    stream: BinaryIO, pattern: re.Pattern[bytes], *, chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[Sequence[bytes]]:
    """Return an iterator over the records between matches of `pattern`, with one batch per read of `chunk_bytes`.

    A match at the very end of the stream ends the last record and does not start another. Raises StreamingException for
    a stream whose `read` does not accept a size or does not return bytes.
    """
    return _lines(stream, chunk_bytes) if pattern is LINES else _matches(stream, pattern, chunk_bytes)


def _lines(stream: BinaryIO, chunk_bytes: int) -> Iterator[Sequence[bytes]]:
    incomplete: list[bytes] = []  # parts of a record whose end has not been read
    held = b""  # a CR at the end of a chunk, which an LF may follow
    while chunk := _read(stream, chunk_bytes):
        text = held + chunk
        held = text[-1:] if text.endswith(b"\r") else b""
        if b"\r" in text:
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = text.rfind(b"\n")
        if end >= 0:
            yield Lines(b"".join([*incomplete, text[:end]]))
            incomplete.clear()
        incomplete.append(text[end + 1 :])
    last = b"".join(incomplete)
    if last or held:
        yield [last]


def _matches(stream: BinaryIO, pattern: re.Pattern[bytes], chunk_bytes: int) -> Iterator[Sequence[bytes]]:
    """Split a stream by `pattern`. The next chunk may extend the last match, which is therefore searched for again."""
    rest = b""
    while chunk := _read(stream, chunk_bytes):
        text = rest + chunk
        records, start, last = [], 0, 0
        for match in pattern.finditer(text):
            records.append(text[start : match.start()])
            last, start = start, match.end()
        if records[:-1]:
            yield records[:-1]
        rest = text[last:]
    records = pattern.split(rest)
    if not records[-1]:
        records.pop()
    if records:
        yield records


def _read(stream: BinaryIO, size: int) -> bytes:
    try:
        chunk = stream.read(size)
    except TypeError as error:
        raise StreamingException(f"a stream must have a method read(size): {error}", where="write") from error
    if not isinstance(chunk, bytes):
        raise StreamingException(f"a stream must return bytes, not {type(chunk).__name__}", where="write")
    return chunk
