"""Reads a file of HDFS: at random, or once from its beginning to its end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ingestd.storage.contract import FileChanged
from ingestd.storage.hdfs_client import HdfsClient
from ingestd.storage.hdfs_requests import HdfsRequests
from ingestd.storage.random_access import RandomAccessFile

if TYPE_CHECKING:
    from hdfs_native import FileReader

_PIECE = 1 << 20


class HdfsFile(RandomAccessFile):
    """An open file, or its first `length` bytes. Not thread-safe."""

    def __init__(self, client: HdfsClient, uri: str, reader: FileReader, length: int | None) -> None:
        super().__init__(len(reader) if length is None else min(length, len(reader)))
        self._client = client
        self._uri = uri
        self._reader = reader

    def _at(self, position: int, count: int) -> bytes:
        wanted = min(count, self._length - position, _PIECE)
        if wanted <= 0:
            return b""
        return self._client.wait(self._uri, partial(self._reader.read_range, position, wanted))


class HdfsStream:
    """See `Stream`. The NameNode never reuses a block, so the bytes of another version cannot be read."""

    def __init__(self, requests: HdfsRequests, uri: str, reader: FileReader) -> None:
        self._requests = requests
        self._uri = uri
        self._reader = reader
        self._position = 0

    @property
    def size(self) -> int:
        """See `Stream`."""
        return len(self._reader)

    def written(self) -> int:
        """See `Stream`; a request of its own."""
        return int(self._requests.status(self._uri).modification_time // 1000)

    def read(self, count: int) -> bytes:
        """See `Stream`."""
        wanted = min(count, self.size - self._position)
        if wanted <= 0:
            return b""
        content = self._requests.client.wait(self._uri, partial(self._reader.read_range, self._position, wanted))
        if not content:
            raise FileChanged("the file was truncated while it was read", where=self._uri)
        self._position += len(content)
        return content

    def close(self) -> None:
        """See `Stream`; nothing is open."""
