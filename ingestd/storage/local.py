"""The storage of `file:` URIs: a local or mounted file system.

Invariant: an OSError becomes StorageUnavailable with the path, so that the caller retries instead of stopping. The
directory of a table or partition is never created by ingestion: if it is missing, its file system is probably not
mounted, and a later mount would hide the files in a new directory. Only replication creates directories.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa

from ingestd.errors import InvalidTable, StorageUnavailable
from ingestd.storage.contract import (
    Capabilities,
    Entry,
    Listing,
    Permissions,
    StagedDelta,
    Storage,
    Stream,
    split,
    subdirectories,
    unless_equal,
)
from ingestd.storage.local_files import (
    DIRECTORY,
    LocalStream,
    entry_of,
    make_and_open,
    make_directories,
    opened,
    permissions_of,
    remove_checksums,
    stored,
    sync,
)
from ingestd.storage.parallel import LISTINGS_AT_ONCE, list_each, run_each
from ingestd.storage.system_errors import guarded

_REMOVE_ATTEMPTS = 10


def local_path(uri: str) -> Path:
    """Return the path of a `file:` URI, or of one without a scheme. Raises InvalidTable for every other scheme."""
    scheme, _, path = split(uri)
    if scheme != "file":
        raise InvalidTable(
            "the location is not on the local file system",
            where=uri,
            hint="use a table whose location, and that of its partitions, has the scheme file",
        )
    return Path("/" + path.lstrip("/"))


class LocalStorage:
    """See `Storage`. A path is a `file:` URI, or an absolute path without a scheme."""

    capabilities = Capabilities(rename=True, append=True, cheap_files=True, local_users=True)

    def location(self, uri: str) -> LocalLocation:
        """See `Storage`."""
        return LocalLocation.of(uri)

    def entries(self, directory: str) -> list[Entry]:
        """See `Storage`."""
        path = local_path(directory)
        entries = []
        with guarded(path), os.scandir(path) as listing:
            for entry in listing:
                with suppress(FileNotFoundError):  # removed meanwhile
                    entries.append(entry_of(entry))
        return entries

    def entries_of(self, directories: Sequence[str]) -> dict[str, list[Entry]]:
        """See `Storage`."""
        return list_each(self.entries, directories)

    def listings(self, directories: Sequence[str]) -> dict[str, Listing]:
        """See `Storage`."""
        return run_each(_listing, directories, LISTINGS_AT_ONCE)

    def exists(self, directory: str) -> bool:
        """See `Storage`."""
        return local_path(directory).is_dir()

    def read(self, file: str) -> bytes:
        """See `Storage`."""
        path = local_path(file)
        with guarded(path):
            return path.read_bytes()

    def open(self, file: str, length: int | None = None) -> pa.NativeFile:
        """See `Storage`; the file is mapped into memory."""
        path = local_path(file)
        with guarded(path):
            mapped = pa.memory_map(str(path))
            return mapped if length is None else pa.BufferReader(mapped.read_buffer(length))

    def outbox(self, directory: str, task: str) -> LocalOutbox:
        """See `Storage`."""
        path = local_path(directory) / task
        with guarded(path):
            path.mkdir()
        return LocalOutbox(path)

    def publish(self, deltas: Sequence[StagedDelta], source: Storage) -> None:
        """See `Storage`. Each delta is assembled in its `scratch` directory and appears complete, by one rename.

        If the location is on another file system, the delta is copied to its `hidden` name and renamed.
        """
        published: list[Path] = []
        try:
            for delta in deltas:
                location = delta.location
                assert isinstance(location, LocalLocation)
                if isinstance(source, LocalStorage):
                    location.receive(_assembled(delta), delta)
                else:
                    location.copy(delta, source)
                published.append(location.path / delta.name)
        except BaseException:
            for path in published:
                shutil.rmtree(path, ignore_errors=True)
            raise

    def write(self, file: str, content: bytes) -> None:
        """See `Storage`."""
        path = local_path(file)
        with guarded(path), path.open("xb") as created:
            created.write(content)

    def create(self, file: str, content: bytes) -> None:
        """See `Storage`; it is linked from a hidden name, because a rename would replace a file."""
        path = local_path(file)
        hidden = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
        with unless_equal(self, file, content), guarded(path):
            try:
                hidden.write_bytes(content)
                sync(hidden)
                os.link(hidden, path)
            finally:
                hidden.unlink(missing_ok=True)
            sync(path.parent)

    def stream(self, file: str) -> LocalStream:
        """See `Storage`."""
        return LocalStream(local_path(file))

    def make_directories(self, directory: str) -> None:
        """See `Storage`; durable."""
        path = local_path(directory)
        with guarded(path):
            make_directories(path)

    def receive(self, file: str, content: Stream, temporary: str) -> None:
        """See `Storage`."""
        path = local_path(file)
        with stored(path, content, temporary) as hidden:
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            hidden.rename(path)

    def replace(self, file: str, content: Stream, temporary: str) -> None:
        """See `Storage`."""
        path = local_path(file)
        with stored(path, content, temporary) as hidden:
            remove_checksums(path)
            hidden.replace(path)

    def leftovers(self, directory: str) -> list[str]:
        """See `Storage`."""
        return subdirectories(self, directory)

    def remove(self, directory: str) -> None:
        """See `Storage`."""
        path = local_path(directory)
        with guarded(path):
            for _ in range(_REMOVE_ATTEMPTS):
                try:
                    shutil.rmtree(path)
                except FileNotFoundError:  # if the directory exists, another process is removing files under it
                    if path.exists():
                        continue
                return
            shutil.rmtree(path)

    def remove_file(self, file: str) -> None:
        """See `Storage`."""
        path = local_path(file)
        with guarded(path):
            remove_checksums(path)
            path.unlink(missing_ok=True)

    def abort_uploads(self, directory: str, is_garbage: Callable[[str], bool]) -> list[str]:
        """See `Storage`; there are no uploads."""
        return []

    def discard(self, *directories: str) -> None:
        """See `Storage`."""
        for directory in directories:
            shutil.rmtree(local_path(directory), ignore_errors=True)

    def check_writable(self, directory: str) -> None:
        """See `Storage`. Nothing is written, so a full file system is not detected."""
        path = local_path(directory)
        with opened(path), guarded(path):
            if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def permissions(self, directory: str) -> Permissions:
        """See `Storage`. A user or group without a name on this machine is a number."""
        path = local_path(directory)
        with opened(path) as handle, guarded(path):
            return permissions_of(handle)

    def free_bytes(self, directory: str) -> int:
        """See `Storage`."""
        path = local_path(directory)
        with guarded(path):
            return shutil.disk_usage(path).free


class LocalOutbox:
    """See `Outbox`; the files are written directly to a directory of the task in the staging directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def send(self, file: Path) -> str:
        """See `Outbox`; fsyncs the file."""
        with guarded(file):
            sync(file)
        return str(file)

    def finish(self) -> None:
        """See `Outbox`. Does nothing: the names of the files become durable when `publish` renames them."""

    def abandon(self) -> None:
        """See `Outbox`."""
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Handle:
    """See `Held`: an open directory, which remains accessible if it is renamed. Requires Linux."""

    number: int

    def discard(self, *names: str) -> None:
        """See `Held`."""
        shutil.rmtree(Path(f"/proc/self/fd/{self.number}", *names), ignore_errors=True)

    def close(self) -> None:
        """See `Held`."""
        os.close(self.number)


@dataclass(frozen=True, slots=True)
class LocalLocation:
    """See `Location`; identified by device and inode.

    The methods work through an open handle of the directory, so that a concurrent mount or unmount does not redirect
    them.
    """

    uri: str
    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, uri: str) -> LocalLocation:
        """Return the location at `uri`. Raises NotFound if it is missing, and InvalidTable (`local_path`)."""
        path = local_path(uri)
        with opened(path) as handle:
            status = os.fstat(handle)
        return cls(uri, path, status.st_dev, status.st_ino)

    def check(self) -> None:
        """See `Location`."""
        with self._handle():
            return

    def hold(self) -> Handle:
        """See `Location`."""
        with self._handle() as handle, guarded(self.path):
            return Handle(os.dup(handle))

    def names(self) -> list[str]:
        """See `Location`."""
        with self._handle() as handle, guarded(self.path):
            return os.listdir(handle)

    def make_directory(self, *names: str) -> str:
        """See `Location`."""
        path = self.path
        with self._handle() as handle, ExitStack() as opened:
            level = handle
            for name in names:
                path /= name
                with guarded(path):
                    level = make_and_open(name, level)
                opened.callback(os.close, level)
        return str(path)

    def mark_directory(self, *names: str) -> None:
        """See `Location`."""
        self.make_directory(*names)

    def receive(self, source: Path, delta: StagedDelta) -> None:
        """Move the directory `source` here as a delta. It appears complete, or not at all if an error is raised.

        The move is synced to disk. If `source` is on another file system, it is copied to the delta's `hidden` name,
        and the copy is synced and renamed; `source` is then not removed.
        """
        with self._handle() as handle, guarded(self.path / delta.name):
            try:
                os.rename(source, delta.name, dst_dir_fd=handle)
                self._sync_renamed(handle, delta.name)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                delta.before_copy()
                self._copy(((file.name, file.open("rb")) for file in source.iterdir()), handle, delta.hidden)
                self._appear(handle, delta)

    def copy(self, delta: StagedDelta, source: Storage) -> None:
        """Copy a delta that is staged in another storage; see `receive`."""
        with self._handle() as handle, guarded(self.path / delta.name):
            delta.before_copy()
            self._copy(((name, source.open(file)) for name, file in delta.files.items()), handle, delta.hidden)
            for name, content in delta.contents.items():
                (self.path / delta.hidden / name).write_bytes(content)
            self._appear(handle, delta)

    def _appear(self, handle: int, delta: StagedDelta) -> None:
        os.rename(delta.hidden, delta.name, src_dir_fd=handle, dst_dir_fd=handle)
        self._sync_renamed(handle, delta.name)

    def _sync_renamed(self, handle: int, name: str) -> None:
        try:
            os.fsync(handle)
        except OSError:
            shutil.rmtree(self.path / name, ignore_errors=True)
            raise

    def _copy(self, files: Iterable[tuple[str, IO[bytes] | pa.NativeFile]], handle: int, hidden: str) -> None:
        """Copy files to the new directory `hidden` and sync them; after a failure, remove the copy if possible."""
        os.mkdir(hidden, dir_fd=handle)
        try:
            copy = os.open(hidden, DIRECTORY, dir_fd=handle)
            try:
                for name, content in files:
                    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=copy)
                    with content, os.fdopen(target, "wb") as file:
                        shutil.copyfileobj(content, file, 1 << 20)
                        file.flush()
                        os.fsync(file.fileno())
                os.fsync(copy)
            finally:
                os.close(copy)
        except BaseException:
            shutil.rmtree(self.path / hidden, ignore_errors=True)
            raise

    @contextmanager
    def _handle(self) -> Iterator[int]:
        with opened(self.path) as handle:
            status = os.fstat(handle)
            if (status.st_dev, status.st_ino) != (self.device, self.inode):
                raise StorageUnavailable(
                    "another directory has replaced the one that the transaction was planned for",
                    where=str(self.path),
                    hint="check whether a file system was mounted or unmounted here",
                )
            yield handle


def _listing(uri: str) -> Listing:
    location = LocalLocation.of(uri)
    return Listing(location, location.names())


def _assembled(delta: StagedDelta) -> Path:
    """Move the staged files of a delta into its scratch directory, on the same file system, and return its path."""
    directory = local_path(delta.scratch)
    with guarded(directory):
        directory.mkdir()
        for name, staged in delta.files.items():
            os.rename(local_path(staged), directory / name)
        for name, content in delta.contents.items():
            (directory / name).write_bytes(content)
    return directory
