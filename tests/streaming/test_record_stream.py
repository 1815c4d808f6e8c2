"""A stream yields the same records however it is divided into reads."""

from __future__ import annotations

import io
import random
import re

import pytest

from ingestd.streaming import StreamingException
from ingestd.streaming.record_stream import LINES, split


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        (LINES, [b"\r", b"\n", b"a", b"b"]),
        (re.compile(rb"END(?:ING)?"), [b"END", b"ENDING", b"I", b"x", b"N"]),
        (re.compile(rb";+"), [b";", b"a"]),
    ],
    ids=["lines", "words", "semicolons"],
)
def test_stream_when_read_in_chunks_of_any_size_then_the_same_records(
    pattern: re.Pattern[bytes], pieces: list[bytes]
) -> None:
    choose = random.Random(1)
    for _ in range(3000):
        text = b"".join(choose.choices(pieces, k=choose.randrange(14)))
        blocks = split(io.BytesIO(text), pattern, chunk_bytes=choose.randrange(1, 7))
        expected = pattern.split(text)
        if not expected[-1]:
            expected.pop()
        assert [record for block in blocks for record in block] == expected


def test_stream_when_it_returns_text_then_rejected() -> None:
    with pytest.raises(StreamingException, match="a stream must return bytes, not str"):
        list(split(io.StringIO("a\nb"), LINES))  # type: ignore[arg-type]
