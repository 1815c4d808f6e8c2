"""Prepared data folders in the user's cache. A new sandbox copies one instead of running the Java tool that makes it.

Invariant: a template has its name only when it is complete, and never changes then. Its name holds that of the jar
folder, so another version of Kafka or Hive has templates of its own. Starts at the same time do not disturb each other.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)


def find(jars: Path, name: str) -> Path | None:
    """The template `name` that was made with the jars in `jars`; None when there is none yet."""
    folder = _folder(jars, name)
    return folder if folder.is_dir() else None


def keep(jars: Path, name: str, source: Path) -> None:
    """Make a template of `source`, which no process may be writing; lock files are left out."""
    target = _folder(jars, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        shutil.copytree(
            source, fresh, ignore=shutil.ignore_patterns("*.lck"), copy_function=_copy_synced, dirs_exist_ok=True
        )
        fresh.rename(target)
    except OSError as error:
        if error.errno not in _EXISTS:  # another start made it meanwhile
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
