"""Notes of a cycle about tables, for the next dump: each is a file `PREFIX.TABLE` in the dump, with a reason.

Invariant: a note stays until its dump is removed, and its first reason is kept. In the names of the files, special
characters of the names of tables are percent-encoded: slashes are among those that Hive allows.

A metastore accepts names of 256 characters, and so many percent-encoded ones do not fit into the name of a file. Such a
note is `PREFIX.=HASH`, and the first line of its content is the encoded name. No encoded name contains `=`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from urllib.parse import quote, unquote

from ingestd.storage.contract import AlreadyExists, NotFound, Storage, child

# Storages permit 255 bytes. They create a file with a hidden name, which is 34 bytes longer.
_MOST_BYTES = 200
_HASHED = "="


def noted_tables(names: Iterable[str], prefix: str) -> tuple[str, ...]:
    """Return the tables, sorted, of the notes with a prefix in a dump whose files have these names in full."""
    return tuple(sorted(unquote(name.removeprefix(prefix)) for name in names if name.startswith(prefix)))


def names_in_full(storage: Storage, directory: str) -> Iterator[str]:
    """Yield the names of the files in the directory of a dump, but those of notes as `PREFIX.TABLE` in all cases.

    Raises StorageUnavailable; it is NotFound if the dump does not exist, or is being removed.
    """
    for entry in storage.entries(directory):
        if _is_hashed(entry.name):
            encoded = storage.read(child(directory, entry.name)).partition(b"\n")[0].decode(errors="replace")
            yield entry.name.partition(_HASHED)[0] + encoded
        else:
            yield entry.name


def note_of(directory: str, prefix: str, table: str) -> str:
    """Return the URI of the note about a table in the dump in `directory`."""
    encoded = quote(table, safe="")
    if len(prefix + encoded) > _MOST_BYTES:
        encoded = _HASHED + hashlib.sha256(encoded.encode()).hexdigest()
    return child(directory, prefix + encoded)


def store_note(storage: Storage, directory: str, prefix: str, table: str, reason: str) -> None:
    """Note a table in the dump in `directory`; the first reason is kept. Raises StorageUnavailable."""
    note = note_of(directory, prefix, table)
    head = f"{quote(table, safe='')}\n" if _is_hashed(note) else ""
    with suppress(AlreadyExists):
        storage.create(note, f"{head}{reason}".encode())


def read_reason(storage: Storage, note: str) -> str | None:
    """Return the reason in the note with this URI; None if it does not exist. Raises StorageUnavailable."""
    try:
        content = storage.read(note)
    except NotFound:
        return None
    return (content.partition(b"\n")[2] if _is_hashed(note) else content).decode(errors="replace")


class NotedTables:
    """The tables of the notes with a prefix in the dump in `directory`. Not thread-safe."""

    def __init__(self, storage: Storage, directory: str, prefix: str) -> None:
        self._storage = storage
        self._directory = directory
        self._prefix = prefix
        self._tables = set(noted_tables(names_in_full(storage, directory), prefix))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, sorted."""
        return tuple(sorted(self._tables))

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def add(self, table: str, reason: str) -> None:
        """Note a table, unless it is noted. Raises StorageUnavailable."""
        if table not in self._tables:
            store_note(self._storage, self._directory, self._prefix, table, reason)
            self._tables.add(table)


def _is_hashed(file: str) -> bool:
    """Return whether a file of a dump is a note with the hash of a name."""
    return file.rpartition("/")[2].partition(".")[2].startswith(_HASHED)
