"""Files and directories of the local file system: reads one version of a file, and creates durable ones.

Invariant: an OSError becomes StorageUnavailable with the path, so that the caller retries instead of stopping.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import Entry, FileChanged, NotFound, Permissions, Stream
from ingestd.storage.system_errors import guarded

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
"""The flags to open a directory."""
_NOT_MOUNTED = "check that the file system is mounted on this machine; only the metastore creates these directories"
_PIECE = 1 << 20
# The extended attribute that contains an access control list.
_ACL = "system.posix_acl_access"


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open the directory of a table or partition and yield its file descriptor."""
    try:
        handle = _open(path)
    except FileNotFoundError as error:
        raise NotFound("the directory does not exist", where=str(path), hint=_NOT_MOUNTED) from error
    except OSError as error:
        with guarded(path):
            raise error
    try:
        yield handle
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        return os.open(path, DIRECTORY)
    except FileNotFoundError:
        # NFS caches missing names; listing the parent refreshes the cache.
        os.listdir(path.parent)
        return os.open(path, DIRECTORY)


def make_and_open(name: str, parent: int) -> int:
    """Open the directory `name` in `parent`, and create it if it is missing; return its file descriptor."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, DIRECTORY, dir_fd=parent)


def sync(path: Path) -> None:
    """Fsync a file or directory. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def entry_of(listed: os.DirEntry[str]) -> Entry:
    """Return the entry of a file or directory. Raises FileNotFoundError if a file has been removed."""
    if listed.is_dir():
        return Entry(listed.name, is_directory=True, size=0)
    status = listed.stat()
    # A file that replaces another one may have an older time, but another inode.
    version = f"{status.st_mtime_ns}-{status.st_ino}"
    written = int(status.st_mtime)
    return Entry(listed.name, is_directory=False, size=status.st_size, version=version, written=written)


def permissions_of(handle: int) -> Permissions:
    """Return who may use an open directory. Raises OSError."""
    status = os.fstat(handle)
    owner, group = str(status.st_uid), str(status.st_gid)
    with suppress(KeyError):
        owner = pwd.getpwuid(status.st_uid).pw_name
    with suppress(KeyError):
        group = grp.getgrgid(status.st_gid).gr_name
    return Permissions(owner, group, stat.S_IMODE(status.st_mode), has_acl=_ACL in _attributes(handle))


def _attributes(handle: int) -> list[str]:
    """Return the names of extended attributes; [] on a file system without them."""
    try:
        return os.listxattr(handle)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return []


class LocalStream:
    """See `Stream`. The file is not mapped into memory: the process would be killed if it were truncated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with guarded(path):
            self._file = path.open("rb", buffering=0)
            self._first = os.fstat(self._file.fileno())

    @property
    def size(self) -> int:
        """See `Stream`."""
        return self._first.st_size

    def written(self) -> int:
        """See `Stream`."""
        return int(self._first.st_mtime)

    def read(self, count: int) -> bytes:
        """See `Stream`."""
        with guarded(self._path):
            content = self._file.read(count)
            if not content:
                self._check()
        return content

    def close(self) -> None:
        """See `Stream`."""
        self._file.close()

    def _check(self) -> None:
        """Raise FileChanged if the file was written meanwhile; its inode was not, if another file has replaced it."""
        last = os.fstat(self._file.fileno())
        is_complete = self._file.tell() == self.size
        if not is_complete or (last.st_size, last.st_mtime_ns) != (self.size, self._first.st_mtime_ns):
            raise FileChanged("the file was written while it was read", where=str(self._path))


@contextmanager
def stored(path: Path, content: Stream, temporary: str) -> Iterator[Path]:
    """Store content in the file `temporary` next to `path` and yield it, to be renamed; then sync the directory."""
    hidden = path.with_name(temporary)
    with guarded(path):
        make_directories(path.parent)
        try:
            with hidden.open("xb", buffering=0) as file:
                while piece := content.read(_PIECE):
                    while piece:
                        piece = piece[file.write(piece) :]
                os.fsync(file.fileno())
                if file.tell() != content.size:
                    raise StorageUnavailable("the file is incomplete", where=str(hidden))
            yield hidden
        except BaseException:
            with suppress(OSError):
                hidden.unlink()
            raise
        sync(path.parent)


def remove_checksums(path: Path) -> None:
    """Remove the file of checksums that Hadoop keeps beside a file it has written (ChecksumFileSystem).

    Hadoop refuses to read a file whose checksums do not fit, and reads one that has none. Raises OSError.
    """
    try:
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # a file with such a name does not exist
            raise


def make_directories(path: Path) -> None:
    """Create a directory and those above it, unless they exist, and sync their names to disk. Raises OSError."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)
