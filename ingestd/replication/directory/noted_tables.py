"""Notes of a load about tables, for the next dump: each is a file `PREFIX.TABLE` in the dump, with a reason.

Invariant: a note stays until its dump is removed, and its first reason is kept. In the names of the files, special
characters of the names of tables are percent-encoded: slashes are among those that Hive allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import quote, unquote

from ingestd.storage.contract import AlreadyExists, Storage, child


def noted_tables(names: Iterable[str], prefix: str) -> tuple[str, ...]:
    """Return the tables, sorted, of the notes with a prefix in a dump that has files with these names."""
    return tuple(sorted(unquote(name.removeprefix(prefix)) for name in names if name.startswith(prefix)))


def note_of(directory: str, prefix: str, table: str) -> str:
    """Return the URI of the note about a table in the dump in `directory`."""
    return child(directory, prefix + quote(table, safe=""))


class NotedTables:
    """The tables of the notes with a prefix in the dump in `directory`. Not thread-safe."""

    def __init__(self, storage: Storage, directory: str, prefix: str) -> None:
        self._storage = storage
        self._directory = directory
        self._prefix = prefix
        self._tables = set(noted_tables((entry.name for entry in storage.entries(directory)), prefix))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, sorted."""
        return tuple(sorted(self._tables))

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def add(self, table: str, reason: str) -> None:
        """Note a table, unless it is noted. Raises StorageUnavailable."""
        if table not in self._tables:
            with suppress(AlreadyExists):
                self._storage.create(note_of(self._directory, self._prefix, table), reason.encode())
            self._tables.add(table)
