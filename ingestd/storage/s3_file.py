"""The keys of objects, and their content: in blocks, as a file for random access, or once from beginning to end.

Invariant: the first request for a block reads the end of the object, where an ORC file has its footer, and tells its
size. A stream that ends early raises an error.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ingestd.storage.contract import split
from ingestd.storage.random_access import RandomAccessFile
from ingestd.storage.s3_client import errors

_BLOCK = 1 << 20
_MAX_BLOCKS = 8


def key_of(uri: str) -> str:
    """Return the key of a file or directory. Hadoop ignores empty names in paths."""
    return re.sub("/{2,}", "/", split(uri).path).strip("/")


def prefix_of(directory: str) -> str:
    """Return the prefix of the keys of the files below a directory."""
    key = key_of(directory)
    return f"{key}/" if key else ""


class Part(NamedTuple):
    """A part of an object, and the size of the object; None if the answer contains all of it."""

    content: bytes
    object_size: int | None


class ObjectFile(RandomAccessFile):
    """An open object of which `length` bytes are read; None: all.

    `get(range)` requests a range, such as `bytes=0-9`. Methods raise its errors. Not thread-safe.
    """

    def __init__(self, get: Callable[[str], Part], length: int | None) -> None:
        self._get = get
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._tail, size = self._read_tail(length)
        super().__init__(size)

    def _at(self, position: int, count: int) -> bytes:
        """See `RandomAccessFile`; returns no byte after the end of the position's block."""
        tail = self._length - len(self._tail)
        if position >= tail:
            return self._tail[position - tail :][:count]
        number = position // _BLOCK
        if number not in self._blocks:
            first = number * _BLOCK
            self._blocks[number] = self._get(f"bytes={first}-{min(first + _BLOCK, tail) - 1}").content
            if len(self._blocks) > _MAX_BLOCKS:
                self._blocks.popitem(last=False)
        return self._blocks[number][position - number * _BLOCK :][:count]

    def _read_tail(self, length: int | None) -> tuple[bytes, int]:
        """Return the last bytes, and the number of all bytes that are read."""
        if length == 0:
            return b"", 0
        first = 0 if length is None else max(0, length - _BLOCK)
        content, size = self._get(f"bytes=-{_BLOCK}" if length is None else f"bytes={first}-{length - 1}")
        if length is None:
            return content, len(content) if size is None else size
        return content, first + len(content)


class Body(Protocol):
    """The content of an answer, as botocore provides it."""

    def read(self, count: int) -> bytes:
        """Return the next bytes; at the end, raise an error of botocore if bytes are missing."""
        ...

    def close(self) -> None:
        """Close the connection, if bytes have not been read."""
        ...


class ObjectStream:
    """See `Stream`: the content of one answer."""

    def __init__(self, body: Body, size: int, uri: str, written: int) -> None:
        self._body = body
        self._uri = uri
        self._written = written
        self.size = size

    def written(self) -> int:
        """See `Stream`."""
        return self._written

    def read(self, count: int) -> bytes:
        """See `Stream`."""
        with errors(self._uri):
            return self._body.read(count)

    def close(self) -> None:
        """See `Stream`."""
        self._body.close()
