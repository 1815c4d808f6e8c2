"""The tables that are not copied, because their files cannot be read where they are (`storages.is_of_location`).

Each is noted as `_unreadable.TABLE` in the dump (`noted_tables.py`). A load that cannot copy the files notes the table.
A dump that cannot list them has a record in its manifest, and the note is made when the dump is announced, because
another attempt of the dump may be able to list them. The next cycle tries again.

Invariant: a table is noted in each dump until its files can be read. A warning is logged when that begins. If access to
further tables is denied, no other one is read, and no witness can be listed (WitnessRecord), it is an error of the
storage, and not noted. A single table is noted also if there are no witnesses but itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from ingestd.errors import IngestdError
from ingestd.replication.directory.manifest import Manifest, WitnessRecord
from ingestd.replication.directory.noted_tables import NotedTables, note_of, noted_tables, store_note
from ingestd.storage.contract import NotFound, PermissionDenied, Storage
from ingestd.storage.storages import Storages, is_of_location

_log = logging.getLogger(__name__)
_PREFIX = "_unreadable."


def unreadable_tables(names: Iterable[str]) -> tuple[str, ...]:
    """Return the tables, sorted, of a dump that has files with these names."""
    return noted_tables(names, _PREFIX)


def note_of_unreadable(directory: str, table: str) -> str:
    """Return the URI of the note about a table in the dump in `directory`; it contains the error."""
    return note_of(directory, _PREFIX, table)


def note_unreadable(storage: Storage, directory: str, table: str, reason: str) -> None:
    """Note a table in the dump in `directory`. Raises StorageUnavailable."""
    store_note(storage, directory, _PREFIX, table, reason)


class UnreadableTables:
    """The unreadable tables that a dump or a load finds. Not thread-safe.

    `witnesses` returns those of the dump. `note` is called with each table and the reason. `known` contains the tables
    of which the log tells already. `renamed` returns a table and those from and to whose names it is renamed by the
    dump, because a note is for the name after it.
    """

    def __init__(
        self,
        storages: Storages,
        witnesses: Callable[[], Iterable[WitnessRecord]],
        note: Callable[[str, str], None],
        known: Collection[str],
        renamed: Callable[[str], Iterable[str]] = lambda table: [table],
    ) -> None:
        self._storages = storages
        self._witnesses = witnesses
        self._note = note
        self._known = set(known)
        self._renamed = renamed

    @classmethod
    def of_load(
        cls,
        storages: Storages,
        directory: str,
        manifest: Manifest,
        known: Collection[str],
        renamed: Callable[[str], Iterable[str]] = lambda table: [table],
    ) -> UnreadableTables:
        """Return those of a load of the dump in `directory`; `known` contains the tables of the dump before."""
        noted = NotedTables(storages.at(directory), directory, _PREFIX)
        return cls(storages, lambda: manifest.read(WitnessRecord), noted.add, {*known, *noted.names}, renamed)

    def add(self, refused: Mapping[str, IngestdError], *, others_are_read: bool) -> None:
        """Note the tables `refused` with their errors; `others_are_read` says that files of other tables can be read.

        Raises StorageUnavailable. It is one of the errors if they concern the storage. A storage that is not supported
        or not configured concerns only the tables in it.
        """
        new = (error for table, error in sorted(refused.items()) if table not in self._known)
        denied = [error for error in new if isinstance(error, PermissionDenied)]
        if denied and not others_are_read:
            witnesses = [record.location for record in self._witnesses() if record.table not in refused]
            if (witnesses or len(denied) > 1) and not any(map(self._is_listed, witnesses)):
                raise denied[0]
        for table, error in sorted(refused.items()):
            names = set(self._renamed(table))
            if self._known.isdisjoint(names):
                _log.warning("the table %s is not copied, and each cycle tries again: %s", table, error)
            self._known |= names
            for name in sorted(names):
                self._note(name, str(error))

    def _is_listed(self, directory: str) -> bool:
        """Return whether a directory exists and can be listed. Raises StorageUnavailable."""
        try:
            self._storages.at(directory).entries(directory)
        except NotFound:
            return False
        except IngestdError as error:
            if not is_of_location(error):
                raise
            return False
        return True
