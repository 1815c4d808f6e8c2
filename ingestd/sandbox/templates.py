"""Prepared data folders in the user's cache. A new sandbox copies one instead of running a Java tool.

Invariant: a template gets its final name when it is complete, and never changes after that. The name contains that of
the jar folder, so each version of Kafka or Hive has its own templates. Concurrent starts do not disturb each other.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)


def find(jars: Path, name: str) -> Path | None:
    """Return the template `name` that was created with the jars in `jars`, or None when there is none yet."""
    folder = _folder(jars, name)
    return folder if folder.is_dir() else None


def keep(jars: Path, name: str, source: Path) -> None:
    """Copy `source` as the template `name`, without lock files. No process may be writing to `source`."""
    target = _folder(jars, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        shutil.copytree(
            source, fresh, ignore=shutil.ignore_patterns("*.lck"), copy_function=_copy_synced, dirs_exist_ok=True
        )
        fresh.rename(target)
    except OSError as error:
        if error.errno not in _EXISTS:  # another start has created it in the meantime
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _folder(jars: Path, name: str) -> Path:
    return jars.with_name("templates") / f"{name}-{jars.name}"


def _copy_synced(source: str, target: str) -> None:
    """Copy a file and sync it to disk: a template under its final name must be complete even after a power failure."""
    shutil.copyfile(source, target)
    with open(target, "rb+") as file:
        os.fsync(file.fileno())
