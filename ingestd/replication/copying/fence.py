"""Keeps the Spark job of a suspended load from placing files after another process has taken the load over.

Invariant: only the load that has begun last may place files from a dump; its token is in the file `_loader`. A process
that is suspended cannot cancel its job, whose tasks run on, but each task reads the token before it places a file. The
directory of a dump is removed after it was loaded, and then none of its loads may place a file.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from ingestd.errors import OwnershipLost
from ingestd.storage.contract import NotFound, child
from ingestd.storage.storages import Storages
from ingestd.storage.stream import BytesStream

_FILE = "_loader"


@dataclass(frozen=True, slots=True)
class Fence:
    """The right of one load to place files, until another one begins. `file` is the URI of `_loader`.

    `is_repeated` says that an earlier load of the dump has begun.
    """

    file: str
    token: str
    is_repeated: bool

    @classmethod
    def begin(cls, storages: Storages, dump: str) -> Fence:
        """End the right of all earlier loads of the dump in the directory `dump`. Raises StorageUnavailable."""
        file = child(dump, _FILE)
        made = cls(file, uuid.uuid4().hex, _token(storages, file) is not None)
        storages.at(file).replace(file, BytesStream(made.token.encode()), f".{_FILE}-{made.token}")
        return made

    def check(self, storages: Storages) -> None:
        """Raise OwnershipLost if another load has begun, or the dump was loaded and removed; or StorageUnavailable."""
        if _token(storages, self.file) != self.token:
            raise OwnershipLost("another process loads this dump, or has loaded it", where=self.file)


def _token(storages: Storages, file: str) -> str | None:
    """Return the token in the file, None if it does not exist."""
    try:
        return storages.at(file).read(file).decode(errors="replace")
    except NotFound:
        return None
