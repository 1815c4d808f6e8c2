"""The tables that a cycle could not continue: each is noted as `_lost.TABLE` in the dump (`noted_tables.py`).

Invariant: a table that is lost stays lost until the next dump, which contains all of it. Until then the target has the
table as it was, so a load that is repeated must leave it alone as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from ingestd.errors import IngestdError
from ingestd.hive.answers import MetastoreRefusal, UnknownCall
from ingestd.replication.directory.noted_tables import NotedTables, noted_tables, store_note
from ingestd.replication.directory.unreadable_tables import UnreadableTables
from ingestd.storage.contract import Storage

_log = logging.getLogger(__name__)
_PREFIX = "_lost."


def lost_tables(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tables, sorted, of a dump that has files with these names."""
    return noted_tables(names, _PREFIX)


def note_lost(storage: Storage, directory: str, table: str, reason: str) -> None:
    """Note a table in the dump in `directory`. Raises StorageUnavailable."""
    store_note(storage, directory, _PREFIX, table, reason)


class LostTables:
    """The lost tables of the dump in `directory`. Not thread-safe.

    `renamed` returns a table and those that cannot continue without it, because a rename is still to be replayed.
    `unreadable` notes those whose files cannot be read.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        unreadable: UnreadableTables,
        renamed: Callable[[str], Iterable[str]] = lambda table: [table],
    ) -> None:
        self._noted = NotedTables(storage, directory, _PREFIX)
        self._unreadable = unreadable
        self._renamed = renamed

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, sorted."""
        return self._noted.names

    def __contains__(self, table: object) -> bool:
        return table in self._noted

    def add(self, table: str, reason: str) -> None:
        """Give up a table, and those that need it; the first reason is kept. Raises StorageUnavailable."""
        for name in sorted(self._renamed(table)):
            if name not in self._noted:
                _log.warning("the table %s cannot be loaded, so the next dump will contain all of it: %s", name, reason)
                self._noted.add(name, reason)

    def add_unreadable(self, refused: Mapping[str, IngestdError], *, others_are_read: bool) -> None:
        """Give up tables whose files cannot be read, and those that need them; see `UnreadableTables.add`."""
        self._unreadable.add(refused, others_are_read=others_are_read)
        for table, error in refused.items():
            for name in sorted(self._renamed(table)):
                self._noted.add(name, str(error))

    @contextmanager
    def if_refused(self, table: str, what: str) -> Iterator[None]:
        """Give up a table if the metastore refuses a call of the `with` block; `what` is what the calls do."""
        try:
            yield
        except UnknownCall:
            raise
        except MetastoreRefusal as refusal:
            self.add(table, f"the metastore refused {what}: {refusal}")
