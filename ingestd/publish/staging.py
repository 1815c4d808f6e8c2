"""Creates the staging directories of transactions, and removes those that ended transactions left behind.

Invariant: a staging directory is named after its transaction, and is removed only by that transaction or after it has
ended. The metastore never reuses a transaction id, so the directory of an ended transaction is garbage, regardless of
which process created it. Files that were moved out of it were either committed or are garbage, too. Therefore a
process that is frozen while it removes a directory does no harm when it resumes.

Removing the directory is also a fence: a former owner that was frozen and resumes has nothing left to publish. What it
copies to other storages is noted next to the directory, and is fenced after it (`copies.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ingestd.errors import IngestdError, StorageUnavailable, TransactionAborted
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table
from ingestd.hive.write_ids import ended_transactions, read_snapshot
from ingestd.publish.copies import (
    Copy,
    hidden_name,
    note,
    notes_of,
    owner_of_copy,
    owner_of_notes,
    prevent,
    read_notes,
)
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.contract import Held, HeldUri, Location, NotFound, StagedDelta, Storage, child
from ingestd.storage.storages import Storages

DAEMON = ".ingestd-staging"
STREAMING = ".ingestd-streaming"
_OWN = re.compile(r"[0-9]+")  # the id of a transaction
_JOINED = re.compile(r"w([0-9]+)-[0-9]+")  # the write id of another program's transaction, and a statement


@dataclass(slots=True)
class Staging:
    """The staging directory of one transaction, `<table>/<root>/<owner>`.

    `location` is the table's directory when the transaction was planned; `owner` is the transaction's id, or
    `w<write id>-<statement>` for a transaction of another program. The table's directory is kept open from `make` to
    `discard`, because it may be renamed while the table is not locked. Methods raise StorageUnavailable.
    """

    storages: Storages = field(repr=False)
    location: Location
    root: str
    owner: str
    _table: Held | None = field(default=None, init=False, repr=False)
    _copies: list[Copy] = field(default_factory=list, init=False, repr=False)

    @property
    def uri(self) -> str:
        """The URI of the staging directory."""
        return child(self.location.uri, self.root, self.owner)

    @property
    def storage(self) -> Storage:
        """The storage of the staging directory."""
        return self.storages.at(self.location.uri)

    def make(self) -> str:
        """Create the staging directory in the table's directory, which must exist, and return its URI."""
        self._table = self.location.hold()
        return self.location.make_directory(self.root, self.owner)

    def publish(self, deltas: Iterable[StagedDelta]) -> None:
        """Publish deltas that are staged in this directory. Raises StorageUnavailable; see `Storage.publish`."""
        self.location.check()
        self.storages.publish(deltas, self.uri)

    def scratch(self, number: int) -> str:
        """Return the URI of a directory in which the delta of this number can be assembled."""
        return child(self.uri, f"delta-{number}")

    def discard(self) -> None:
        """Remove the directory of a transaction that has ended or will not commit; never raises.

        `sweep` later removes whatever could not be removed.
        """
        table = self._table or HeldUri(self.location.uri, self.storage)
        table.discard(self.root, self.owner)
        if self._copies:
            with suppress(IngestdError):
                prevent(self.storages, self.owner, self._copies)
                table.discard(self.root, notes_of(self.owner))
                self._copies.clear()
        table.close()
        self._table = None

    def note_copy(self, location: str, delta: str) -> None:
        """Note that a delta is copied to the directory of its partition. Raises StorageUnavailable."""
        copy = Copy(location, delta)
        note(self.storages, self.location, self.root, self.owner, copy)
        self._copies.append(copy)

    def copy_name(self, delta: str) -> str:
        """Return the hidden name of a delta while it is copied into its partition."""
        return hidden_name(self.owner, delta)

    def explain(self, error: StorageUnavailable) -> IngestdError:
        """Return what to raise when the staged files are inaccessible: TransactionAborted if removed, else `error`.

        Raises StorageUnavailable if the table's directory is missing.
        """
        self.location.check()
        if not isinstance(error, NotFound) or self.storage.exists(self.uri):
            return error
        return TransactionAborted(
            "the staged files were removed: the transaction ended while this process was delayed, and the next owner"
            " cleaned up",
            where=self.uri,
            hint="no data is lost: this process or the next owner repeats the transaction",
        )


def sweep(
    warehouse: Warehouse, table: Table, *, roots: Iterable[str] = (DAEMON, STREAMING), spare: Iterable[str] = ()
) -> list[str]:
    """Remove the staging directories of ended transactions of all mappings and streaming clients of the table.

    `roots` limits them to those of daemons or of streaming clients. `spare` contains the owners whose directories are
    in use; the metastore is queried only if there are others. Returns the URIs of the directories that it has removed.
    Raises MetastoreUnavailable, and StorageUnavailable after it has tried to remove each directory.
    """
    storages, spared = warehouse.storages, set(spare)
    leftovers = [leftover for leftover in _leftovers(storages, table.location, roots) if leftover.owner not in spared]
    ended = ended_owners(warehouse.metastore, table, {leftover.owner for leftover in leftovers})
    failures: dict[str, StorageUnavailable] = {}
    removed = []
    # Staged files first: until they are removed, a copy can begin.
    for leftover in sorted(leftovers, key=lambda leftover: leftover.has_notes):
        if leftover.owner not in ended or leftover.owner in failures:
            continue
        try:
            if leftover.has_notes:
                prevent(storages, leftover.owner, read_notes(storages, leftover.uri))
            storages.at(leftover.uri).remove(leftover.uri)
            removed.append(leftover.uri)
        except StorageUnavailable as error:
            failures[leftover.owner] = error
    for failure in failures.values():
        raise failure
    return removed


def remove_copies(warehouse: Warehouse, table: Table, location: str, names: Iterable[str]) -> None:
    """Remove incomplete copies of deltas of ended transactions from a partition's directory, which contains `names`.

    A copy that cannot be removed stays hidden from readers, and the next transaction tries to remove it again.
    """
    owners = {name: owner for name in names if (owner := owner_of_copy(name))}
    ended = ended_owners(warehouse.metastore, table, set(owners.values()))
    for name, owner in owners.items():
        if owner in ended:
            warehouse.storages.at(location).discard(child(location, name))


def ended_owners(metastore: Metastore, table: Table, owners: set[str]) -> set[str]:
    """Return the owners whose transaction has committed or aborted; without owners, the metastore is not queried."""
    ids = {int(owner) for owner in owners if _OWN.fullmatch(owner)}
    ended = {str(txn) for txn in ended_transactions(metastore, ids)} if ids else set()
    joined = {owner: int(match[1]) for owner in owners if (match := _JOINED.fullmatch(owner))}
    if joined:
        snapshot = read_snapshot(metastore, table.name)
        ended |= {owner for owner, write_id in joined.items() if snapshot.has_ended(write_id)}
    return ended


class _Leftover(NamedTuple):
    """A staging directory, or a directory with notes of copies."""

    uri: str
    owner: str
    has_notes: bool = False


def _leftovers(storages: Storages, location: str, roots: Iterable[str]) -> Iterator[_Leftover]:
    """Yield the directories of all transactions below these roots.

    Those of earlier versions have a level for the mapping.
    """
    storage = storages.at(location)
    for root in (child(location, name) for name in roots):
        for leftover in storage.leftovers(root):
            owner = owner_of_notes(leftover)
            if owner is not None:
                yield _Leftover(child(root, leftover), owner, has_notes=True)
            elif _is_owner(leftover):
                yield _Leftover(child(root, leftover), leftover)
            else:
                inner = filter(_is_owner, storage.leftovers(child(root, leftover)))
                yield from (_Leftover(child(root, leftover, two), two) for two in inner)


def _is_owner(name: str) -> bool:
    return bool(_OWN.fullmatch(name) or _JOINED.fullmatch(name))
