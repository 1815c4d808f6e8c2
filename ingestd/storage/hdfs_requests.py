"""Sends the requests about files and directories of one HDFS.

Invariant: files are created only in directories that exist, and never replace one. So after a directory has been
removed, no process that continues late can create a file in it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING

import pyarrow as pa
from hdfs_native import WriteOptions

from ingestd.errors import IngestdError, InvalidTable, StorageUnavailable
from ingestd.storage.contract import (
    AlreadyExists,
    Entry,
    NoSpace,
    NotFound,
    PermissionDenied,
    Permissions,
    Stream,
    split,
)
from ingestd.storage.hdfs_client import HdfsClient, is_of_datanode, number_property
from ingestd.storage.options import StorageOptions

if TYPE_CHECKING:
    from hdfs_native import FileReader, FileStatus
    from hdfs_native._internal import RawFileWriter

REFUSED = (AlreadyExists, NoSpace, NotFound, PermissionDenied)
"""Errors of a NameNode that has refused a request, so it has no effect."""
_PIECE = 1 << 20
# How many sets of DataNodes are tried. The NameNode chooses at random among those that it does not know to be dead, by
# default for ten minutes after they were, and the library cannot exclude any. An attempt takes about 20 ms.
_ATTEMPTS = 20
# A file of at most so many bytes has a block of its size. The default is 128 MiB. The NameNode charges the quota for a
# whole block while the file is written, and wants space for a whole one per block that no DataNode has reported yet.
_SMALL_FILE = 64 << 20
_BLOCK_UNIT = 1 << 20  # the smallest block that a NameNode accepts by default
# A NameNode has a larger limit, or the directory is erasure-coded in larger cells.
_TOO_SMALL = "Specified block size"
_UMASK = "fs.permissions.umask-mode"
_REPLICATION = "dfs.replication"


class HdfsRequests:
    """Sends requests to the cluster `root`; paths are URIs. Raises ConfigError.

    Methods raise StorageUnavailable, and LoginFailed if the cluster rejects the credentials.
    """

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        self.client = HdfsClient(root, options)
        properties = self.client.properties
        umask = number_property(properties, _UMASK, 8, "an octal number such as 022")
        umask = 0o022 if umask is None else umask
        self._directory_mode = 0o777 & ~umask
        self._file_mode = 0o666 & ~umask
        self._replication = number_property(properties, _REPLICATION, 10, "a number")

    def path(self, uri: str) -> str:
        """Return the path of a URI. Raises InvalidTable if it is in another cluster."""
        parts = split(uri)
        if parts.root != self._root:
            raise InvalidTable(f"the file is not in {self._root}", where=uri, hint="use locations of one cluster")
        return parts.path

    def status(self, uri: str) -> FileStatus:
        """Return the status of a file or directory. Raises NotFound."""
        path = self.path(uri)
        return self.client.run(uri, lambda client: client.get_file_info(path))

    def permissions(self, directory: str) -> Permissions:
        """Return who may use a directory. Raises NotFound."""
        path, status, has_acl = self.path(directory), self.status(directory), False
        with suppress(StorageUnavailable):  # a NameNode without access control lists refuses the request
            has_acl = bool(self.client.run(directory, lambda client: client.get_acl_status(path)).entries)
        return Permissions(status.owner, status.group, status.permission & 0o7777, has_acl)

    def entries(self, directory: str) -> list[Entry]:
        """List a directory. Raises NotFound, also for a file."""
        path = self.path(directory)
        statuses = self.client.run(directory, lambda client: list(client.list_status(path)))
        if len(statuses) == 1 and statuses[0].path.rstrip("/") == path.rstrip("/"):
            raise NotFound("this is a file and not a directory", where=directory)
        return list(map(_entry, statuses))

    def make_directory(self, uri: str, *, with_parents: bool = False) -> None:
        """Create a directory, unless it exists."""
        path, mode = self.path(uri), self._directory_mode
        self.client.run(uri, lambda client: client.mkdirs(path, mode, create_parent=with_parents))

    def remove(self, uri: str) -> None:
        """Remove a file or a directory tree, if it exists."""
        path = self.path(uri)
        self.client.run(uri, lambda client: client.delete(path, recursive=True))

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename a file or directory that no other process renames.

        If the answer is lost, the NameNode is asked whether it has executed the request. The library does not repeat
        it, so an error that the NameNode returns is never about the effect of the same request.
        """
        paths = self.path(source), self.path(target)
        try:
            self.client.run(target, lambda client: client.rename(*paths, overwrite=overwrite))
        except REFUSED:
            raise
        except StorageUnavailable:
            if not self._is_renamed(source, target):
                raise

    def _is_renamed(self, source: str, target: str) -> bool:
        """Return whether only `target` exists; False if the NameNode does not say."""
        with suppress(IngestdError):
            return not self._is_present(source) and self._is_present(target)
        return False

    def _is_present(self, uri: str) -> bool:
        try:
            self.status(uri)
        except NotFound:
            return False
        return True

    def create(self, content: IO[bytes] | pa.NativeFile, size: int, uri: str) -> None:
        """Create a file of `size` bytes in an existing directory. After an error, an incomplete file may exist.

        If a DataNode fails, the file is removed and created again, with its blocks on other DataNodes.
        """
        start = content.tell()
        for left in reversed(range(_ATTEMPTS)):
            writer = self.writer(uri, size)
            try:
                self.fill(writer, content, uri)
                return
            except StorageUnavailable as error:
                if not left or not is_of_datanode(error):
                    raise
            self.remove(uri)
            content.seek(start)

    def writer(self, uri: str, size: int) -> RawFileWriter:
        """Create an empty file in an existing directory, and return it for writing `size` bytes."""
        if size > _SMALL_FILE:
            return self._create(uri)
        try:
            return self._create(uri, max(1, -(-size // _BLOCK_UNIT)) * _BLOCK_UNIT)
        except StorageUnavailable as error:
            if _TOO_SMALL not in str(error):
                raise
        return self._create(uri)

    def _create(self, uri: str, block_size: int | None = None) -> RawFileWriter:
        """Create an empty file; its blocks have the default size of the NameNode if `block_size` is None."""
        path = self.path(uri)
        options = WriteOptions(block_size, self._replication, self._file_mode, overwrite=False, create_parent=False)
        # Without `inner`, the destructor of the writer would complete the file, in any thread and without a time limit.
        return self.client.run(uri, lambda client: client.inner.create(path, options))

    def fill(self, writer: RawFileWriter, content: IO[bytes] | pa.NativeFile | Stream, uri: str) -> None:
        """Write a file and close it."""
        while piece := content.read(_PIECE):
            self.client.wait(uri, partial(writer.write, piece))
        self.client.wait(uri, writer.close)

    def reader(self, uri: str) -> FileReader:
        """Open a file. Raises NotFound."""
        path = self.path(uri)
        return self.client.run(uri, lambda client: client.read(path))


def _entry(status: FileStatus) -> Entry:
    name, moment = status.path.rpartition("/")[2], status.modification_time
    if status.isdir:
        return Entry(name, is_directory=True, size=0)
    return Entry(name, is_directory=False, size=status.length, version=str(moment), written=moment // 1000)
