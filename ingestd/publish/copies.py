"""Notes of the copies that a transaction makes, so that a recovery can prevent that one of them appears later.

The storage renames or copies most files from the staging directory in one request, so the removal of that directory is
a fence. A copy into another storage and a copy in parts are more: their last request no longer needs the staged files.

Invariant: a note is stored before its copy begins, and removed only after the copy can no longer appear.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from ingestd.acid.layout import Delta, parse_directory
from ingestd.storage.contract import Location, NotFound, child
from ingestd.storage.parallel import run_all
from ingestd.storage.storages import Storages

_SUFFIX = ".copies"
_NOTES = re.compile(r"(.+)" + re.escape(_SUFFIX))
_HIDDEN = ".ingestd-incoming-"
_THREADS = 16


class Copy(NamedTuple):
    """A delta that is copied to the directory of its partition: the URI of this directory, and the delta's name."""

    location: str
    delta: str


def notes_of(owner: str) -> str:
    """Return the name of the directory with the notes of a transaction, next to its staging directory."""
    return owner + _SUFFIX


def owner_of_notes(name: str) -> str | None:
    """Return the owner for the name of a directory with notes; None for other names."""
    match = _NOTES.fullmatch(name)
    return match[1] if match else None


def hidden_name(owner: str, delta: str) -> str:
    """Return the name of a delta in the directory of its partition while its files are copied."""
    return f"{_HIDDEN}{owner}-{delta}"


def owner_of_copy(name: str) -> str | None:
    """Return the owner for a name of `hidden_name`; None for other names."""
    owner, separator, delta = name.removeprefix(_HIDDEN).rpartition("-delta_")
    return owner if separator and delta and name.startswith(_HIDDEN) else None


def note(storages: Storages, table: Location, root: str, owner: str, copy: Copy) -> None:
    """Store a note in the table's directory. Raises StorageUnavailable."""
    directory = table.make_directory(root, notes_of(owner))
    storages.at(directory).write(child(directory, uuid.uuid4().hex), json.dumps(copy).encode())


def read_notes(storages: Storages, directory: str) -> list[Copy]:
    """Return the copies that a transaction has noted. Raises StorageUnavailable."""
    storage = storages.at(directory)
    files = [child(directory, entry.name) for entry in storage.entries(directory)]
    notes = run_all([partial(storage.read, file) for file in files], _THREADS)
    return [copy for note in notes if (copy := _parsed(note))]


def _parsed(content: bytes) -> Copy | None:
    """Return a noted copy; None if the note is incomplete, because then the copy has not begun."""
    with suppress(ValueError):
        copy = Copy(*json.loads(content))
        if isinstance(parse_directory(copy.delta), Delta):  # a name that leads nowhere else
            return copy
    return None


def prevent(storages: Storages, owner: str, copies: Iterable[Copy]) -> None:
    """Prevent that copies of an ended transaction appear, after its staging directory has been removed.

    Raises StorageUnavailable. Published deltas are not touched.
    """
    run_all([partial(_prevent, storages, owner, copy) for copy in copies], _THREADS)


def _prevent(storages: Storages, owner: str, copy: Copy) -> None:
    storage = storages.at(copy.location)
    with suppress(NotFound):  # a bucket that has been removed
        storage.remove(child(copy.location, hidden_name(owner, copy.delta)))
        storage.abort_uploads(child(copy.location, copy.delta), lambda _file: True)
