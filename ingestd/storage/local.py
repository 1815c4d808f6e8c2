"""A warehouse on a local or mounted file system (`file:` URIs).

Invariant: an error of the system becomes StorageUnavailable with the path, so that the caller waits instead of ending.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingestd.errors import InvalidTable, StorageUnavailable


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
        raise StorageUnavailable(
            error.strerror or str(error), where=str(error.filename or path), hint="is the disk full or read-only?"
        ) from error


def make_directory(path: Path) -> None:
    """Make a directory and its parents; one that exists is fine."""
    with guarded(path):
        path.mkdir(parents=True, exist_ok=True)


def move(source: Path, target: Path) -> None:
    """Move a file or directory; `target` must not exist and its parent is made.

    Across file systems it is copied beside the target under a hidden name first, so that it still appears at once.
    """
    with guarded(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.stat().st_dev != target.parent.stat().st_dev:
            hidden = target.parent / f".{target.name}.incoming"
            shutil.move(source, hidden)
            source = hidden
        os.rename(source, target)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file."""
    with guarded(path):
        path.write_bytes(content)


def remove_tree(path: Path) -> None:
    """Remove a directory with all it holds; one that is gone is fine."""
    with guarded(path):
        shutil.rmtree(path, ignore_errors=not path.exists())


def discard_tree(path: Path) -> None:
    """Remove a directory that nobody needs any more, as far as the system lets us; never raises."""
    shutil.rmtree(path, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Make renames into `path` survive a power cut."""
    with guarded(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
