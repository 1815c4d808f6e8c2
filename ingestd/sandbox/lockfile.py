"""The lock file, which lists every file to fetch with its size and SHA-256.

Invariant: a file counts as present only when its content matches the lock file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Locked:
    """One entry of the lock file. `path` is "group/name". A group is a class path or the set of schema scripts."""

    sha256: str
    size: int
    path: str

    @property
    def group(self) -> str:
        """The group of the file, which is the folder that contains it."""
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        """The name of the file. In one lock file, files with the same name have the same content."""
        return self.path.partition("/")[2]

    def is_at(self, file: Path) -> bool:
        """Return True when `file` exists and has the size and the SHA-256 of this entry."""
        try:
            if file.stat().st_size != self.size:
                return False
            with file.open("rb") as source:
                digest = hashlib.sha256()
                while piece := source.read(_PIECE_BYTES):
                    digest.update(piece)
        except OSError:
            return False
        return digest.hexdigest() == self.sha256


def data_file(name: str) -> Path:
    """Return the path of a data file of this package."""
    return Path(str(resources.files("ingestd.sandbox") / "data" / name))


@dataclass(frozen=True, slots=True)
class Listing:
    """What to fetch: the lock file, and the Ivy file with the Maven coordinates."""

    lock: Path
    ivy: Path


SANDBOX = Listing(data_file("jars.lock"), data_file("ivy.xml"))


@cache
def lock(listing: Listing = SANDBOX) -> tuple[Locked, ...]:
    """Return all entries of the lock file."""
    lines = listing.lock.read_text().splitlines()
    return tuple(Locked(sha256, int(size), path) for sha256, size, path in (line.split() for line in lines))


@cache
def lock_name(listing: Listing = SANDBOX) -> str:
    """Return a short hash of the lock file, so that versions of ingestd with different lock files share no folder."""
    return hashlib.sha256(listing.lock.read_bytes()).hexdigest()[:12]


def broken(groups: Iterable[str], folder: Path, listing: Listing = SANDBOX) -> list[Locked]:
    """Return the entries of `groups` whose file in `folder` is missing or has other content.

    Reads all files, which takes about 1 s.
    """
    wanted = frozenset(groups)
    return [item for item in lock(listing) if item.group in wanted and not item.is_at(folder / item.path)]
