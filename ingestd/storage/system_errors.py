"""Translates the errors of the operating system into those of storages."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import AlreadyExists, NoSpace, NotFound, PermissionDenied

_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on the file system"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "grant this process write permission"),
    errno.EROFS: "mount the file system writable; under systemd, ReadWritePaths= must contain the directory",
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.ESTALE), "check that the file system is mounted on this machine"
    ),
    **dict.fromkeys((errno.ENOTEMPTY, errno.EEXIST), "the directory exists already; check which process created it"),
}
_KINDS: dict[int, type[StorageUnavailable]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), NoSpace),
    **dict.fromkeys((errno.EACCES, errno.EPERM), PermissionDenied),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ESTALE), NotFound),
    **dict.fromkeys((errno.ENOTEMPTY, errno.EEXIST), AlreadyExists),
}
_OTHER_HINT = "check the file system and the kernel log"


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Translate an OSError about `path` into StorageUnavailable, such as NoSpace for a full disk."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        kind = _KINDS.get(number, StorageUnavailable)
        raise kind(error.strerror or str(error), where=str(path), hint=_HINTS.get(number, _OTHER_HINT)) from error
