"""Streams of bytes in memory, and streams as what libraries expect."""

from __future__ import annotations

import io
from typing import Any

from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import Stream

_PIECE = 1 << 20


class BytesStream:
    """See `Stream`: bytes in memory."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._file = io.BytesIO(content)

    def written(self) -> int:
        """See `Stream`; this is no file."""
        return 0

    def read(self, count: int) -> bytes:
        """See `Stream`."""
        return self._file.read(count)

    def close(self) -> None:
        """See `Stream`."""


def read_all(content: Stream) -> bytes:
    """Return the bytes of a small stream that has not been read; see `readable`."""
    return readable(content).read()


def readable(content: Stream) -> io.BufferedReader:
    """Return a stream as a file that cannot be rewound; a read returns fewer bytes only at the end.

    Reads raise the errors of the stream, and StorageUnavailable if it ends early.
    """
    return io.BufferedReader(_Readable(content), _PIECE)


class _Readable(io.RawIOBase):
    def __init__(self, content: Stream) -> None:
        super().__init__()
        self._content = content
        self._missing = content.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._content.read(len(buffer))
        if not content and self._missing:
            raise StorageUnavailable(f"the content ends {self._missing} bytes early")
        self._missing -= len(content)
        buffer[: len(content)] = content
        return len(content)
