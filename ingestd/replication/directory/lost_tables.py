"""The tables that a load could not continue: each is a file `_lost.TABLE` in the dump, with the reason.

Invariant: a table that is lost stays lost until the next dump, which contains all of it. Until then the target has the
table as it was, so a load that is repeated must leave it alone as well. In the names of the files, special characters
of the names of tables are percent-encoded: slashes are among those that Hive allows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote, unquote

from ingestd.hive.answers import MetastoreRefusal, UnknownCall
from ingestd.storage.contract import AlreadyExists, Storage, child

_log = logging.getLogger(__name__)
_PREFIX = "_lost."


def lost_tables(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tables, sorted, of a dump that has files with these names."""
    return tuple(sorted(unquote(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX)))


class LostTables:
    """The lost tables of the dump in `directory`. Not thread-safe.

    `renamed` returns a table and those that cannot continue without it, because a rename is still to be replayed.
    """

    def __init__(
        self, storage: Storage, directory: str, renamed: Callable[[str], Iterable[str]] = lambda table: [table]
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._renamed = renamed
        self._tables = set(lost_tables(entry.name for entry in storage.entries(directory)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, sorted."""
        return tuple(sorted(self._tables))

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def add(self, table: str, reason: str) -> None:
        """Give up a table, and those that need it; the first reason is kept. Raises StorageUnavailable."""
        for name in sorted(self._renamed(table)):
            if name not in self._tables:
                _log.warning("the table %s cannot be loaded, so the next dump will contain all of it: %s", name, reason)
                with suppress(AlreadyExists):
                    self._storage.create(child(self._directory, _PREFIX + quote(name, safe="")), reason.encode())
                self._tables.add(name)

    @contextmanager
    def if_refused(self, table: str, what: str) -> Iterator[None]:
        """Give up a table if the metastore refuses a call of the `with` block; `what` is what the calls do."""
        try:
            yield
        except UnknownCall:
            raise
        except MetastoreRefusal as refusal:
            self.add(table, f"the metastore refused {what}: {refusal}")
