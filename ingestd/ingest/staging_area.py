"""The staging directories of one mapping: those of its open transactions, and the removal of those left behind.

Invariant: a directory is removed by its own transaction or after its transaction has ended, never while it may commit.
"""

from __future__ import annotations

from ingestd.clock import Deadline
from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table
from ingestd.hive.transactions import Transaction
from ingestd.ingest import events
from ingestd.publish import staging
from ingestd.publish.staging import Staging

# Sweeps are periodic because a daemon that was suspended may stage files after its successor has cleaned up.
_SWEEP_SECONDS = 300.0


class StagingArea:
    """Keeps track of the staging directories in use. Safe for use from several threads."""

    def __init__(self, metastore: Metastore, mapping: str) -> None:
        self._metastore = metastore
        self._mapping = mapping
        # By transaction id. Each knows where the table's directory was when its transaction was planned.
        self._in_use: dict[int, Staging] = {}
        self._next_sweep = Deadline.after(0.0)

    def make(self, txn: Transaction, directory: Staging) -> None:
        """Create the staging directory of a transaction. Raises StorageUnavailable."""
        self._in_use[txn.id] = directory
        directory.make()

    def forget(self, txn: Transaction) -> None:
        """Forget the directory of a transaction that has committed; the commit has removed it."""
        self._in_use.pop(txn.id, None)

    def discard(self) -> None:
        """Remove the directories of all transactions that have not committed. Afterwards they cannot commit."""
        while self._in_use:
            self._in_use.popitem()[1].discard()

    def sweep_if_due(self, table: Table) -> None:
        """Sweep if the last sweep was more than a few minutes ago."""
        if self._next_sweep.passed:
            self.sweep(table)

    def sweep(self, table: Table) -> None:
        """Remove what ended transactions left in the table's directory. What cannot be removed stays until the next."""
        self._next_sweep = Deadline.after(_SWEEP_SECONDS)
        try:
            removed = staging.sweep(self._metastore, table, spare=map(str, list(self._in_use)))
        except IngestdError as error:
            events.staging_left(self._mapping, error)
        else:
            if removed:
                events.staging_removed(self._mapping, list(map(str, removed)))
