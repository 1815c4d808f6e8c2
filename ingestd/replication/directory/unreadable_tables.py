"""The tables that are not copied, because their files cannot be read where they are (`storages.is_of_location`).

Each is noted as `_unreadable.TABLE` in the dump (`noted_tables.py`). A load that cannot copy the files notes the table.
A dump that cannot list them has a record in its manifest, and the note is made when the dump is announced, because
another attempt of the dump may be able to list them. The next cycle tries again.

Invariant: a table is noted in each dump until its files can be read. A warning is logged when that begins. If several
tables are new, in storages that are supported, and no other one is read, it is an error of the storages, and not noted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from ingestd.errors import IngestdError, InvalidTable
from ingestd.replication.directory.noted_tables import NotedTables, note_of, noted_tables
from ingestd.storage.contract import Storage

_log = logging.getLogger(__name__)
_PREFIX = "_unreadable."


def unreadable_tables(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tables, sorted, of a dump that has files with these names."""
    return noted_tables(names, _PREFIX)


def note_of_unreadable(directory: str, table: str) -> str:
    """Return the URI of the note about a table in the dump in `directory`; it contains the error."""
    return note_of(directory, _PREFIX, table)


class UnreadableTables:
    """The unreadable tables that a dump or a load finds. Not thread-safe.

    `note` is called with each table and the reason. `known` contains the tables of which the log tells already.
    `renamed` returns a table and those from and to whose names it is renamed by the dump, because a note is for the
    name after it.
    """

    def __init__(
        self,
        note: Callable[[str, str], None],
        known: Collection[str],
        renamed: Callable[[str], Iterable[str]] = lambda table: [table],
    ) -> None:
        self._note = note
        self._known = set(known)
        self._renamed = renamed

    @classmethod
    def of_load(
        cls,
        storage: Storage,
        directory: str,
        known: Collection[str],
        renamed: Callable[[str], Iterable[str]] = lambda table: [table],
    ) -> UnreadableTables:
        """Return those of a load of the dump in `directory`; `known` contains the tables of the dump before."""
        noted = NotedTables(storage, directory, _PREFIX)
        return cls(noted.add, {*known, *noted.names}, renamed)

    def add(self, refused: Mapping[str, IngestdError], *, others_are_read: bool) -> None:
        """Note the tables `refused` with their errors; `others_are_read` says that files of other tables can be read.

        Raises StorageUnavailable. It is one of the errors if they concern the storage.
        """
        new = [error for table, error in sorted(refused.items()) if table not in self._known]
        if len(new) > 1 and not others_are_read and not any(isinstance(error, InvalidTable) for error in new):
            raise new[0]
        for table, error in sorted(refused.items()):
            names = set(self._renamed(table))
            if self._known.isdisjoint(names):
                _log.warning("the table %s is not copied, and each cycle tries again: %s", table, error)
            self._known |= names
            for name in sorted(names):
                self._note(name, str(error))
