"""A lease that transactions hold one after another, for a short time each.

Invariant: at most one open transaction holds the lease. A transaction that does not acquire it in time continues
without it (`taken` yields False). No transaction waits longer than `PATIENCE_SECONDS`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ingestd.clock import Deadline
from ingestd.errors import TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import LockTimeout, Transaction, Wait

PATIENCE_SECONDS = 5.0
# Used instead of PATIENCE_SECONDS after a wait has timed out, until the lease is free again.
_SHORT_PATIENCE_SECONDS = 0.2


@dataclass(slots=True)
class _ProcessLock:
    """Serializes the threads of this process, so that only one at a time polls the metastore for the lease."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    has_timed_out: bool = False


# Keyed by process id as well: a lock that another thread held during a fork is never released in the child.
_process_locks: dict[tuple[int, TableName], _ProcessLock] = {}
_registry = threading.Lock()


class TransactionLease:
    """The lease with the given name, which need not be that of a table.

    `taken` raises TransactionAborted if its wait is stopped.
    """

    def __init__(self, name: TableName) -> None:
        self._name = name
        with _registry:
            self._process = _process_locks.setdefault((os.getpid(), name), _ProcessLock())

    def wait(self, stop: threading.Event) -> Wait:
        """Return the time limit, from now, for acquiring the lease and the locks that follow it."""
        return Wait(Deadline.after(_SHORT_PATIENCE_SECONDS if self._process.has_timed_out else PATIENCE_SECONDS), stop)

    @contextmanager
    def taken(self, metastore: Metastore, txn: Transaction, wait: Wait) -> Iterator[bool]:
        """Acquire the lock of this process, then the lease; yield whether both were acquired in time.

        The lock is released at the end of the block, the lease at the end of the transaction.
        """
        is_locked = False
        while not is_locked and not wait.deadline.passed:
            if wait.stop.is_set():
                raise self._stopped()
            is_locked = self._process.lock.acquire(timeout=min(0.5, wait.deadline.left))
        try:
            has_lease = is_locked and self._take(metastore, txn, wait)
            self._process.has_timed_out = not has_lease
            yield has_lease
        finally:
            if is_locked:
                self._process.lock.release()

    def _take(self, metastore: Metastore, txn: Transaction, wait: Wait) -> bool:
        try:
            transactions.take_lease(metastore, txn, self._name, wait)
        except LockTimeout:
            if wait.stop.is_set():
                raise self._stopped() from None
            return False
        return True

    def _stopped(self) -> TransactionAborted:
        return TransactionAborted("stopped while another transaction held the lease", where=f"lease {self._name}")


def counting_lease(table: TableName) -> TransactionLease:
    """Return the lease whose holder may change numRows of the table and its partitions."""
    return TransactionLease(TableName(table.database, f"{table.table}#ingestd.counting"))
