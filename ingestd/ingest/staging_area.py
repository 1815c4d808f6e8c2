"""Creates the staging directories of one mapping, and removes those that ended transactions left behind.

Invariant: only the transaction that uses a directory removes it. After this transaction has ended, any owner may, and a
new owner must (`fence`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ingestd.clock import Deadline
from ingestd.errors import IngestdError
from ingestd.hive.tables import Table
from ingestd.hive.transactions import Transaction
from ingestd.ingest.monitoring import events
from ingestd.publish import staging
from ingestd.publish.staging import DAEMON, Staging
from ingestd.publish.warehouse import Warehouse

# Sweeps are periodic because a daemon that was suspended may stage files after its successor has cleaned up.
_SWEEP_SECONDS = 300.0


class StagingArea:
    """Tracks the staging directories in use. Thread-safe."""

    def __init__(self, warehouse: Warehouse, mapping: str) -> None:
        self._warehouse = warehouse
        self._mapping = mapping
        # By transaction id, one for each table, with the location of the table when the transaction was planned.
        self._in_use: dict[int, tuple[Staging, ...]] = {}
        self._next_sweep = Deadline.after(0.0)

    def make(self, txn: Transaction, directories: Iterable[Staging]) -> None:
        """Create the staging directories of a transaction, one for each table. Raises StorageUnavailable."""
        self._in_use[txn.id] = tuple(directories)
        for directory in self._in_use[txn.id]:
            directory.make()

    def forget(self, txn: Transaction) -> None:
        """Stop tracking the directories of a committed transaction, which the commit has removed."""
        self._in_use.pop(txn.id, None)

    def discard(self) -> None:
        """Remove the directories of all transactions that have not committed and never will."""
        while self._in_use:
            for directory in self._in_use.popitem()[1]:
                directory.discard()

    def fence(self, tables: Iterable[Table]) -> None:
        """Prevent that a former owner publishes files of an ended transaction: remove the directories of all daemons.

        Raises an Unavailable error. The caller must then not write: HMS forgets an aborted transaction some time after
        its cleaner has found no files of it. Files that a former owner, which was suspended, publishes after that would
        be visible, although the new owner has written the same records.
        """
        for table in tables:
            self._report(staging.sweep(self._warehouse, table, roots=(DAEMON,), spare=self._spared()))

    def sweep_if_due(self, tables: Iterable[Table]) -> None:
        """Remove the directories of daemons and streaming clients, if the last time is more than five minutes ago.

        A failure is only logged. The next attempt follows after five minutes.
        """
        if not self._next_sweep.passed:
            return
        self._next_sweep = Deadline.after(_SWEEP_SECONDS)
        try:
            for table in tables:
                self._report(staging.sweep(self._warehouse, table, spare=self._spared()))
        except IngestdError as error:
            events.staging_left(self._mapping, error)

    def _spared(self) -> list[str]:
        return [str(txn_id) for txn_id in list(self._in_use)]

    def _report(self, removed: list[str]) -> None:
        if removed:
            events.staging_removed(self._mapping, removed)
