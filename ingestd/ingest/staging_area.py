"""Creates the staging directories of one mapping, and removes those that ended transactions left behind.

Invariant: only the transaction that uses a directory removes it. After this transaction has ended, any owner may.
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
    """Tracks the staging directories in use. Thread-safe."""

    def __init__(self, metastore: Metastore, mapping: str) -> None:
        self._metastore = metastore
        self._mapping = mapping
        # By transaction id. Each contains the location of the table when its transaction was planned.
        self._in_use: dict[int, Staging] = {}
        self._next_sweep = Deadline.after(0.0)

    def make(self, txn: Transaction, directory: Staging) -> None:
        """Create the staging directory of a transaction. Raises StorageUnavailable."""
        self._in_use[txn.id] = directory
        directory.make()

    def forget(self, txn: Transaction) -> None:
        """Stop tracking the directory of a committed transaction, which the commit has removed."""
        self._in_use.pop(txn.id, None)

    def discard(self) -> None:
        """Remove the directories of all transactions that have not committed and never will."""
        while self._in_use:
            self._in_use.popitem()[1].discard()

    def sweep_if_due(self, table: Table) -> None:
        """Sweep if the last sweep is more than five minutes old."""
        if self._next_sweep.passed:
            self.sweep(table)

    def sweep(self, table: Table) -> None:
        """Remove the staging directories of ended transactions. If this fails, the next sweep retries."""
        self._next_sweep = Deadline.after(_SWEEP_SECONDS)
        try:
            removed = staging.sweep(self._metastore, table, spare=map(str, list(self._in_use)))
        except IngestdError as error:
            events.staging_left(self._mapping, error)
        else:
            if removed:
                events.staging_removed(self._mapping, list(map(str, removed)))
