"""Accesses a warehouse on a local or mounted file system (`file:` URIs).

Invariant: an OSError becomes StorageUnavailable with the path, so that the caller retries instead of stopping. The
directory of a table or partition is never created here: if it is missing, its file system is probably not mounted, and
a later mount would hide the files in a new directory.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ingestd.errors import InvalidTable, StorageUnavailable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NOT_MOUNTED = "check that the file system is mounted on this machine; only the metastore creates these directories"
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on the file system"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "grant this process write permission"),
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.ESTALE), "check that the file system is mounted on this machine"
    ),
    **dict.fromkeys((errno.ENOTEMPTY, errno.EEXIST), "the directory exists already; check which process created it"),
}
_REMOVE_ATTEMPTS = 10
_OTHER_HINT = "check the file system and the kernel log"


def local_path(uri: str) -> Path:
    """Return the path of a `file:` URI. Raises InvalidTable for every other scheme.

    Hadoop does not percent-encode paths in URIs: the `%3A` of an escaped partition name is part of the directory name.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon:
        return Path(uri)
    if scheme != "file":
        raise InvalidTable(
            f"locations with the scheme {scheme} are not supported",
            where=uri,
            hint="use a table with a file: location",
        )
    return Path("/" + rest.lstrip("/"))


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Translate an OSError about `path` into StorageUnavailable."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        raise StorageUnavailable(what, where=str(path), hint=_HINTS.get(error.errno or 0, _OTHER_HINT)) from error


@dataclass(frozen=True, slots=True)
class Handle:
    """An open directory, which remains accessible if it is renamed; `path` requires Linux."""

    number: int

    @property
    def path(self) -> Path:
        """A path to the directory, valid until `close`."""
        return Path(f"/proc/self/fd/{self.number}")

    def close(self) -> None:
        """Close the directory."""
        os.close(self.number)


@dataclass(frozen=True, slots=True)
class Location:
    """The existing directory of a table or partition, identified by device and inode.

    All methods raise StorageUnavailable, for example if another directory has replaced this one. They work through an
    open handle of the directory, so that a concurrent mount or unmount does not redirect them.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, uri: str) -> Location:
        """Return the location at `uri`. Raises StorageUnavailable if it is missing, and InvalidTable (`local_path`)."""
        path = local_path(uri)
        with _opened(path) as handle:
            found = os.fstat(handle)
        return cls(path, found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raise StorageUnavailable if the directory is missing or has been replaced."""
        with self._handle():
            return

    def hold(self) -> Handle:
        """Open the directory and return a handle, which the caller must close."""
        with self._handle() as handle, guarded(self.path):
            return Handle(os.dup(handle))

    def names(self) -> list[str]:
        """Return the names of the files and directories in the directory."""
        with self._handle() as handle, guarded(self.path):
            return os.listdir(handle)

    def make_directory(self, *names: str) -> Path:
        """Create nested directories below this one, one per name, unless they exist; return the path of the last."""
        path = self.path
        with self._handle() as handle, ExitStack() as opened:
            level = handle
            for name in names:
                path /= name
                with guarded(path):
                    level = _make_and_open(name, level)
                opened.callback(os.close, level)
        return path

    def receive(self, source: Path, name: str, hidden: str) -> None:
        """Move the directory `source` here as `name`. It appears complete, or not at all if an error is raised.

        The move is synced to disk. If `source` is on another file system, it is copied to the name `hidden`, and the
        copy is synced and renamed; `source` is then not removed.
        """
        with self._handle() as handle, guarded(self.path / name):
            try:
                os.rename(source, name, dst_dir_fd=handle)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy(source, handle, hidden)
                os.rename(hidden, name, src_dir_fd=handle, dst_dir_fd=handle)
            try:
                os.fsync(handle)
            except OSError:
                discard_tree(self.path / name)
                raise

    def _copy(self, source: Path, handle: int, hidden: str) -> None:
        """Copy the files of a directory and sync them; after a failure, remove the copy if possible."""
        os.mkdir(hidden, dir_fd=handle)
        try:
            copy = os.open(hidden, _DIRECTORY, dir_fd=handle)
            try:
                for name in os.listdir(source):
                    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=copy)
                    with (source / name).open("rb") as content, os.fdopen(target, "wb") as file:
                        shutil.copyfileobj(content, file, 1 << 20)
                        file.flush()
                        os.fsync(file.fileno())
                os.fsync(copy)
            finally:
                os.close(copy)
        except OSError:
            discard_tree(self.path / hidden)
            raise

    @contextmanager
    def _handle(self) -> Iterator[int]:
        with _opened(self.path) as handle:
            found = os.fstat(handle)
            if (found.st_dev, found.st_ino) != (self.device, self.inode):
                raise StorageUnavailable(
                    "another directory has replaced the one that the transaction was planned for",
                    where=str(self.path),
                    hint="check whether a file system was mounted or unmounted here",
                )
            yield handle


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the directory of a table or partition and yield its file descriptor."""
    try:
        handle = _open(path)
    except FileNotFoundError as error:
        raise StorageUnavailable("the directory does not exist", where=str(path), hint=_NOT_MOUNTED) from error
    except OSError as error:
        with guarded(path):
            raise error
    try:
        yield handle
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        return os.open(path, _DIRECTORY)
    except FileNotFoundError:
        # NFS caches missing names; listing the parent refreshes the cache.
        os.listdir(path.parent)
        return os.open(path, _DIRECTORY)


def _make_and_open(name: str, parent: int) -> int:
    """Open the directory `name` in `parent`, and create it if it is missing; return its file descriptor."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def make_leaf(path: Path) -> None:
    """Create a directory; its parent must exist."""
    with guarded(path):
        path.mkdir()


def move(source: Path, target: Path) -> None:
    """Rename a file within one file system; the parent of `target` must exist."""
    with guarded(target):
        os.rename(source, target)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to a file, which need not exist."""
    with guarded(path):
        path.write_bytes(content)


def check_writable(path: Path) -> None:
    """Raise StorageUnavailable if the directory is missing, or this process may not create files in it.

    Nothing is written, so a full file system is not detected.
    """
    with _opened(path), guarded(path):
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def free_bytes(path: Path) -> int:
    """Return the space in bytes that this process can use on the file system of a directory."""
    with guarded(path):
        return shutil.disk_usage(path).free


def remove_tree(path: Path) -> None:
    """Remove a directory tree, if it exists. Other processes may remove it at the same time."""
    with guarded(path):
        for _ in range(_REMOVE_ATTEMPTS):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                if path.exists():  # another process is removing files under it
                    continue
            return


def discard_tree(path: Path) -> None:
    """Remove a directory tree as far as possible; never raises."""
    shutil.rmtree(path, ignore_errors=True)
