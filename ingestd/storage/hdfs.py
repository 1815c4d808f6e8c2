"""The storage of `hdfs:` and `viewfs:` URIs: a cluster of HDFS.

Invariant: staged files are created only in directories that exist, and never replace one. So after the staging
directory of a dead transaction has been removed, none of its tasks can stage or publish a file any more.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from ingestd.errors import IngestdError, StorageUnavailable
from ingestd.storage.contract import (
    Capabilities,
    Entry,
    HeldUri,
    Listing,
    NoAnswer,
    NotFound,
    Permissions,
    StagedDelta,
    Storage,
    Stream,
    child,
    subdirectories,
    unless_equal,
)
from ingestd.storage.hdfs_file import HdfsFile, HdfsStream
from ingestd.storage.hdfs_requests import REFUSED, HdfsRequests
from ingestd.storage.options import StorageOptions
from ingestd.storage.parallel import LISTINGS_AT_ONCE, discard_each, list_each, run_all, run_each
from ingestd.storage.spool import SpoolOutbox
from ingestd.storage.system_errors import guarded

_READ_AHEAD = 1 << 20
# A file is closed only when a DataNode has reported its last block, which takes up to half a second.
_UPLOAD_THREADS = 8
_REQUEST_THREADS = 16
_CHECK = ".ingestd-check"
_REMOVALS = 3


class HdfsStorage:
    """See `Storage`. `root` names a nameservice or a NameNode, such as `hdfs://namenode:8020`. Raises ConfigError.

    Methods also raise LoginFailed if the cluster rejects the credentials.
    """

    capabilities = Capabilities(rename=True, append=False, cheap_files=False, local_users=False)

    def __init__(self, root: str, options: StorageOptions) -> None:
        self.root = root
        self._requests = HdfsRequests(root, options)

    def location(self, uri: str) -> HdfsLocation:
        """See `Storage`."""
        location = HdfsLocation(uri, self)
        location.check()
        return location

    # --- read

    def entries(self, directory: str) -> list[Entry]:
        """See `Storage`."""
        return self._requests.entries(directory)

    def entries_of(self, directories: Sequence[str]) -> dict[str, list[Entry]]:
        """See `Storage`."""
        return list_each(self.entries, directories)

    def listings(self, directories: Sequence[str]) -> dict[str, Listing]:
        """See `Storage`."""
        return run_each(self._listing, directories, LISTINGS_AT_ONCE)

    def _listing(self, uri: str) -> Listing:
        # Without `location`, whose request for the status of the directory is not needed to list it.
        return Listing(HdfsLocation(uri, self), [entry.name for entry in self.entries(uri)])

    def exists(self, directory: str) -> bool:
        """See `Storage`."""
        try:
            return self._requests.status(directory).isdir
        except NotFound:
            return False

    def read(self, file: str) -> bytes:
        """See `Storage`."""
        with HdfsFile(self._requests.client, file, self._requests.reader(file), None) as opened:
            return opened.read()

    def open(self, file: str, length: int | None = None) -> pa.NativeFile:
        """See `Storage`; small reads are served from a buffer."""
        opened = HdfsFile(self._requests.client, file, self._requests.reader(file), length)
        return pa.PythonFile(io.BufferedReader(opened, _READ_AHEAD), mode="r")

    # --- stage and publish

    def outbox(self, directory: str, task: str) -> SpoolOutbox:
        """See `Storage`. Files are uploaded in parallel, because closing one takes half a second."""
        target = child(directory, task)
        self.make_directory(target)
        return SpoolOutbox(target, self._upload, self.discard, threads=_UPLOAD_THREADS)

    def publish(self, deltas: Sequence[StagedDelta], source: Storage) -> None:
        """See `Storage`. A delta appears complete, by one rename.

        It is assembled in its `scratch` directory, or in its `hidden` one if it is staged in another storage, or in
        another mount of viewfs.
        """
        published: list[str] = []

        def publish(delta: StagedDelta) -> None:
            if self._can_rename(source, delta):
                self._move(delta)
            else:
                self._copy(source, delta)
            published.append(child(delta.location.uri, delta.name))

        try:
            run_all([partial(publish, delta) for delta in deltas], _REQUEST_THREADS)
        except BaseException:
            self.discard(*published)
            raise

    def write(self, file: str, content: bytes) -> None:
        """See `Storage`."""
        self._requests.create(io.BytesIO(content), len(content), file)

    def create(self, file: str, content: bytes) -> None:
        """See `Storage`; it is renamed from a hidden name."""
        directory, _, name = file.rpartition("/")
        hidden = child(directory, f".{name}-{uuid.uuid4().hex}")
        try:
            with unless_equal(self, file, content):
                self.write(hidden, content)
                self._requests.rename(hidden, file)
        finally:
            self.discard(hidden)

    # --- replicate

    def stream(self, file: str) -> HdfsStream:
        """See `Storage`."""
        return HdfsStream(self._requests, file, self._requests.reader(file))

    def make_directories(self, directory: str) -> None:
        """See `Storage`."""
        self._requests.make_directory(directory, with_parents=True)

    def receive(self, file: str, content: Stream, temporary: str) -> None:
        """See `Storage`."""
        self._store(file, content, temporary, partial(self._requests.rename, overwrite=False))

    def replace(self, file: str, content: Stream, temporary: str) -> None:
        """See `Storage`."""
        self._store(file, content, temporary, partial(self._requests.rename, overwrite=True))

    def _store(self, file: str, content: Stream, temporary: str, rename: Callable[[str, str], None]) -> None:
        directory = file.rpartition("/")[0]
        hidden = child(directory, temporary)
        try:
            try:
                writer = self._requests.writer(hidden, content.size)
            except NotFound:
                self.make_directories(directory)
                writer = self._requests.writer(hidden, content.size)
            self._requests.fill(writer, content, hidden)
            if (length := self._requests.status(hidden).length) != content.size:
                raise StorageUnavailable(f"the file has {length} bytes instead of {content.size}", where=hidden)
            rename(hidden, file)
        except BaseException:
            self.discard(hidden)
            raise

    def make_directory(self, uri: str) -> None:
        """Create a directory in an existing one, unless it exists."""
        self._requests.make_directory(uri)

    def _can_rename(self, source: Storage, delta: StagedDelta) -> bool:
        if not isinstance(source, HdfsStorage) or source.root != self.root:
            return False
        staged, target = self._requests.path(delta.scratch), self._requests.path(delta.location.uri)
        return self._requests.client.mount(staged) == self._requests.client.mount(target)

    def _move(self, delta: StagedDelta) -> None:
        self.make_directory(delta.scratch)
        rename = self._requests.rename
        calls = [partial(rename, staged, child(delta.scratch, name)) for name, staged in delta.files.items()]
        calls += [partial(self.write, child(delta.scratch, name), content) for name, content in delta.contents.items()]
        for call in calls:
            call()
        self._appear(delta.scratch, delta)

    def _copy(self, source: Storage, delta: StagedDelta) -> None:
        delta.before_copy()
        hidden = child(delta.location.uri, delta.hidden)
        self.make_directory(hidden)  # before the files are opened: then it is not created after a fence
        try:
            for name, staged in delta.files.items():
                with source.open(staged) as content:
                    self._requests.create(content, content.size(), child(hidden, name))
            for name, small in delta.contents.items():
                self.write(child(hidden, name), small)
        except BaseException:
            self.discard(hidden)
            raise
        self._appear(hidden, delta)

    def _appear(self, source: str, delta: StagedDelta) -> None:
        """Rename a complete directory to the name of the delta. After an error, neither of the two is left."""
        target = child(delta.location.uri, delta.name)
        try:
            self._requests.rename(source, target)
        except REFUSED:
            self.discard(source)
            raise
        except BaseException:
            self.discard(source)  # first, so that a rename that is still in progress fails
            self.discard(target)
            raise

    def _upload(self, file: Path, uri: str) -> None:
        with guarded(file), file.open("rb") as content:
            self._requests.create(content, file.stat().st_size, uri)

    # --- remove

    def leftovers(self, directory: str) -> list[str]:
        """See `Storage`."""
        return subdirectories(self, directory)

    def remove(self, directory: str) -> None:
        """See `Storage`. Files that another process is writing there disappear as well."""
        self._requests.remove(directory)

    def remove_file(self, file: str) -> None:
        """See `Storage`."""
        self.remove(file)

    def abort_uploads(self, directory: str, is_garbage: Callable[[str], bool]) -> list[str]:
        """See `Storage`; there are no uploads."""
        return []

    def discard(self, *directories: str) -> None:
        """See `Storage`. A request that is lost is repeated: it may use a connection that is just being closed."""

        def remove(directory: str) -> None:
            for _ in range(_REMOVALS - 1):
                try:
                    return self.remove(directory)
                except NoAnswer:  # noqa: PERF203 - the loop is there to repeat the request
                    raise
                except IngestdError:
                    pass
            return self.remove(directory)

        discard_each(remove, directories, _REQUEST_THREADS)

    # --- examine

    def check_writable(self, directory: str) -> None:
        """See `Storage`. Creates and removes a hidden directory: only the NameNode knows all rules of access."""
        probe = child(directory, f"{_CHECK}-{uuid.uuid4().hex}")
        self.make_directory(probe)
        self.remove(probe)

    def permissions(self, directory: str) -> Permissions:
        """See `Storage`."""
        return self._requests.permissions(directory)

    def free_bytes(self, directory: str) -> None:
        """See `Storage`; the library has no request for it."""

    def check_directory(self, uri: str) -> None:
        """Raise NotFound unless `uri` is a directory."""
        if not self._requests.status(uri).isdir:
            raise NotFound("this is a file and not a directory", where=uri)


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """See `Location`. A cluster cannot be unmounted, so only the existence of the directory is checked."""

    uri: str
    _storage: HdfsStorage = field(repr=False)

    def check(self) -> None:
        """See `Location`."""
        self._storage.check_directory(self.uri)

    def names(self) -> list[str]:
        """See `Location`."""
        return [entry.name for entry in self._storage.entries(self.uri)]

    def make_directory(self, *names: str) -> str:
        """See `Location`."""
        uri = self.uri
        for name in names:
            uri = child(uri, name)
            self._storage.make_directory(uri)
        return uri

    def mark_directory(self, *names: str) -> None:
        """See `Location`."""
        self.make_directory(*names)

    def hold(self) -> HeldUri:
        """See `Location`."""
        self.check()
        return HeldUri(self.uri, self._storage)
