"""A folder for the temporary files of one Spark driver, which outlives no process for long.

Invariant: the folder is locked (`flock`) as long as its process lives, and the kernel releases the lock however the
process ends; an unlocked folder has no owner and is removed by the next process of the same user that opens one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "ingestd-spark-"


class Scratch:
    """An empty folder under the system's temporary directory; folders without an owner are removed on the way."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        for left in parent.glob(f"{PREFIX}*"):
            _remove_without_owner(left)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self._lock = _lock(self.path)
            if self._lock is not None:
                return
            # Another process took the new folder for one without an owner, before it was locked.

    def remove(self) -> None:
        """Remove the folder with all it holds. What cannot be removed now is left to the next process."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _lock(folder: Path) -> int | None:
    """A descriptor that locks the folder; None when another process holds it or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(folder).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_without_owner(folder: Path) -> None:
    try:
        is_ours = folder.lstat().st_uid == os.getuid()
    except OSError:
        return
    descriptor = _lock(folder) if is_ours else None
    if descriptor is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
