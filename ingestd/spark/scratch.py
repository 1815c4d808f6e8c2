"""The directory for temporary files of one Spark driver.

Invariant: a process holds a lock (`flock`) on its directory while it runs, and the kernel releases the lock however the
process ends. A directory without a lock is stale; the next process of the same user removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "ingestd-spark-"


class Scratch:
    """A new directory in the system's temporary directory. The constructor also removes stale directories."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        for stale in parent.glob(f"{PREFIX}*"):
            _remove_if_stale(stale)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self._lock = _lock(self.path)
            if self._lock is not None:
                return
            # Another process took the new directory for a stale one and removed it.

    def remove(self) -> None:
        """Remove the directory. The next process removes files that cannot be removed now."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _lock(directory: Path) -> int | None:
    """Lock a directory and return the descriptor that holds the lock.

    Returns None if another process holds the lock or the directory does not exist.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(directory).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_if_stale(directory: Path) -> None:
    try:
        is_ours = directory.lstat().st_uid == os.getuid()
    except OSError:
        return
    descriptor = _lock(directory) if is_ours else None
    if descriptor is not None:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)
