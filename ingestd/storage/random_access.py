"""A read-only file for random access to a file of a storage, for libraries that expect a file object."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import Any


class RandomAccessFile(io.RawIOBase):
    """An open file of `length` bytes; subclasses read the bytes. Not thread-safe."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self._position = 0

    @abstractmethod
    def _at(self, position: int, count: int) -> bytes:
        """Return at most `count` bytes from a position on, at least one unless the file ends there."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position; see `io.IOBase`."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer and return the number of bytes; see `io.RawIOBase`."""
        content = self._at(self._position, len(buffer))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
