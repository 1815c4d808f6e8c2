"""A warehouse on a local or mounted file system (`file:` URIs).

Invariant: an error of the system becomes StorageUnavailable with the path, so that the caller waits instead of ending.
The directory of a table or partition is never created here: where it is missing, a file system is not mounted, and
files that were written into a new directory would be hidden as soon as it is.
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
_NOT_MOUNTED = "is the file system mounted on this machine? the metastore creates these directories, ingestd never does"
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on the file system"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give this process the right to write here"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ESTALE), "is the file system mounted on this machine?"),
    **dict.fromkeys((errno.ENOTEMPTY, errno.EEXIST), "another directory of this name is there already"),
}
_REMOVALS = 10
_OTHERWISE = "look at the file system and at the kernel's log"


def local_path(uri: str) -> Path:
    """The path of a `file:` URI. Raises InvalidTable for every other scheme.

    Hadoop writes paths into URIs as they are: the `%3A` of an escaped partition name is part of the directory's name.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon:
        return Path(uri)
    if scheme != "file":
        raise InvalidTable(
            f"storage {scheme}: is not supported yet", where=uri, hint="use a warehouse on a file: location"
        )
    return Path("/" + rest.lstrip("/"))


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Translate the system's errors about `path`."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        raise StorageUnavailable(what, where=str(path), hint=_HINTS.get(error.errno or 0, _OTHERWISE)) from error


@dataclass(frozen=True, slots=True)
class Handle:
    """A directory that is kept open, so that it is found wherever it is renamed to; `path` needs Linux."""

    number: int

    @property
    def path(self) -> Path:
        """A path that leads to it."""
        return Path(f"/proc/self/fd/{self.number}")

    def close(self) -> None:
        """Let go of it."""
        os.close(self.number)


@dataclass(frozen=True, slots=True)
class Location:
    """The directory of a table or partition, known by device and inode: it must exist, and stay the same directory.

    All methods raise StorageUnavailable. They work through a handle of the directory, so nothing is created elsewhere
    when a file system is mounted or unmounted meanwhile.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, uri: str) -> Location:
        """The directory as it is now. Raises StorageUnavailable when it is missing, InvalidTable as `local_path`."""
        path = local_path(uri)
        with _opened(path) as handle:
            found = os.fstat(handle)
        return cls(path, found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raise StorageUnavailable unless it is still there and still the same."""
        with self._handle():
            return

    def hold(self) -> Handle:
        """Keep it open until the handle is closed."""
        with self._handle() as handle, guarded(self.path):
            return Handle(os.dup(handle))

    def names(self) -> list[str]:
        """The names in the directory."""
        with self._handle() as handle, guarded(self.path):
            return os.listdir(handle)

    def make_directory(self, *names: str) -> Path:
        """Create a directory below this one, one level for each name; levels that exist are used."""
        path = self.path
        with self._handle() as handle, ExitStack() as opened:
            level = handle
            for name in names:
                path /= name
                with guarded(path):
                    level = _made(name, level)
                opened.callback(os.close, level)
        return path

    def receive(self, source: Path, name: str, hidden: str) -> None:
        """Move the directory `source` here as `name`: it appears whole, or not at all when this raises.

        The move survives a power failure.

        From another file system it is copied to the name `hidden` and synced first; `source` then stays.
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
        """Copy the files of a directory and sync them; on failure nothing is left behind, if storage permits."""
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
                    "another directory has taken the place of the one that the transaction was planned for",
                    where=str(self.path),
                    hint="was a file system mounted or unmounted here?",
                )
            yield handle


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A handle of the directory of a table or partition."""
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
        # NFS remembers names that were missing; to list the parent makes it ask the server.
        os.listdir(path.parent)
        return os.open(path, _DIRECTORY)


def _made(name: str, parent: int) -> int:
    """A handle of the directory `name` in `parent`, created if it is missing."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def make_leaf(path: Path) -> None:
    """Create a directory in one that exists."""
    with guarded(path):
        path.mkdir()


def move(source: Path, target: Path) -> None:
    """Rename within one file system; the parent of `target` must exist."""
    with guarded(target):
        os.rename(source, target)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file."""
    with guarded(path):
        path.write_bytes(content)


def remove_tree(path: Path) -> None:
    """Remove a directory with all it holds; one that is gone, or that others are removing too, is fine."""
    with guarded(path):
        for _ in range(_REMOVALS):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                if path.exists():  # another process removes what is below it
                    continue
            return


def discard_tree(path: Path) -> None:
    """Remove a directory that is no longer needed, as far as the system permits; never raises."""
    shutil.rmtree(path, ignore_errors=True)
