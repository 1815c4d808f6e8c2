"""Creates the staging directories of transactions, and removes those that ended transactions left behind.

Invariant: a staging directory is named after its transaction, and is removed only by that transaction or after it has
ended. The metastore never reuses a transaction id, so the directory of an ended transaction is garbage, regardless of
which process created it. Files that were moved out of it were either committed or are garbage, too. Therefore a
process that is frozen while it removes a directory does no harm when it resumes.

Removing the directory is also a fence: a former owner that was frozen and resumes has nothing left to publish.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ingestd.errors import IngestdError, StorageUnavailable, TransactionAborted
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table
from ingestd.hive.write_ids import ended_transactions, read_snapshot
from ingestd.storage import local
from ingestd.storage.local import Handle, Location

DAEMON = ".ingestd-staging"
STREAMING = ".ingestd-streaming"
_COPY = ".ingestd-incoming-"
_OWN = re.compile(r"[0-9]+")  # the id of a transaction
_JOINED = re.compile(r"w([0-9]+)-[0-9]+")  # the write id of another program's transaction, and a statement
_COPIES = re.compile(re.escape(_COPY) + r"([0-9]+|w[0-9]+-[0-9]+)-delta_.*")


@dataclass(slots=True)
class Staging:
    """The staging directory of one transaction, `<table>/<root>/<owner>`.

    `location` is the table's directory when the transaction was planned; `owner` is the transaction's id, or
    `w<write id>-<statement>` for a transaction of another program. The table's directory is kept open from `make` to
    `discard`, because it may be renamed while the table is not locked. Methods raise StorageUnavailable.
    """

    location: Location
    root: str
    owner: str
    _table: Handle | None = field(default=None, init=False, repr=False)

    @property
    def path(self) -> Path:
        """The path of the staging directory."""
        return self.location.path / self.root / self.owner

    def make(self) -> Path:
        """Create the staging directory in the table's directory, which must exist, and return its path."""
        self._table = self.location.hold()
        return self.location.make_directory(self.root, self.owner)

    def discard(self) -> None:
        """Remove the directory of a transaction that has ended or will not commit; never raises.

        `sweep` later removes whatever could not be removed.
        """
        local.discard_tree(self.path)
        if self._table is not None:
            local.discard_tree(self._table.path / self.root / self.owner)
            self._table.close()
            self._table = None

    def copy_name(self, delta: str) -> str:
        """Return the hidden name of a delta while it is copied from another file system into its partition."""
        return f"{_COPY}{self.owner}-{delta}"

    def explain(self, error: StorageUnavailable) -> IngestdError:
        """Return what to raise when the staged files are inaccessible: TransactionAborted if removed, else `error`.

        Raises StorageUnavailable if the table's directory is missing.
        """
        self.location.check()
        if self.path.is_dir():
            return error
        return TransactionAborted(
            "the staged files were removed: the transaction ended while this process was delayed, and the next owner"
            " cleaned up",
            where=str(self.path),
            hint="no data is lost: this process or the next owner repeats the transaction",
        )


def sweep(metastore: Metastore, table: Table, *, spare: Iterable[str] = ()) -> list[Path]:
    """Remove the staging directories of ended transactions of all mappings and streaming clients of the table.

    `spare` contains the owners whose directories are in use; the metastore is queried only if there are others. Returns
    the removed directories. Raises MetastoreUnavailable, and StorageUnavailable after it has tried to remove each
    directory.
    """
    found = [one for one in _directories(table) if one.name not in set(spare)]
    ended = ended_owners(metastore, table, {one.name for one in found})
    failure: StorageUnavailable | None = None
    removed = []
    for directory in found:
        if directory.name not in ended:
            continue
        try:
            local.remove_tree(directory)
            removed.append(directory)
        except StorageUnavailable as error:
            failure = failure or error
    if failure:
        raise failure
    return removed


def remove_copies(metastore: Metastore, table: Table, location: Path, names: Iterable[str]) -> None:
    """Remove incomplete copies of deltas of ended transactions from a partition's directory, which contains `names`.

    A copy that cannot be removed stays hidden from readers, and the next transaction tries to remove it again.
    """
    owners = {name: match[1] for name in names if (match := _COPIES.fullmatch(name))}
    ended = ended_owners(metastore, table, set(owners.values()))
    for name, owner in owners.items():
        if owner in ended:
            local.discard_tree(location / name)


def ended_owners(metastore: Metastore, table: Table, owners: set[str]) -> set[str]:
    """Return the owners whose transaction has committed or aborted; without owners, the metastore is not queried."""
    ids = {int(owner) for owner in owners if _OWN.fullmatch(owner)}
    ended = {str(one) for one in ended_transactions(metastore, ids)} if ids else set()
    joined = {owner: int(match[1]) for owner in owners if (match := _JOINED.fullmatch(owner))}
    if joined:
        snapshot = read_snapshot(metastore, table.name)
        ended |= {owner for owner, write_id in joined.items() if snapshot.has_ended(write_id)}
    return ended


def _directories(table: Table) -> list[Path]:
    """Return all staging directories, including those of earlier versions, which have a level for the mapping."""
    location = local.local_path(table.location)
    found = []
    with local.guarded(location):
        for root in (location / DAEMON, location / STREAMING):
            for one in _below(root):
                found += [one] if _is_owner(one.name) else [two for two in _below(one) if _is_owner(two.name)]
    return found


def _below(directory: Path) -> list[Path]:
    try:
        return [one for one in directory.iterdir() if one.is_dir()]
    except FileNotFoundError:
        return []


def _is_owner(name: str) -> bool:
    return bool(_OWN.fullmatch(name) or _JOINED.fullmatch(name))
