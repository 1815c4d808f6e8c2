"""A lease that transactions take one after the other, for a moment each.

Invariant: at most one open transaction holds the lease. A transaction that does not get it in time
continues without it (`taken` yields False); it never waits longer than `PATIENCE_SECONDS`.
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
# The wait after another transaction has kept the lease for longer than that, until it is free again.
_TRY_SECONDS = 0.2


@dataclass(slots=True)
class _Turn:
    """Threads of this process take turns at the lease, so that they do not all poll the metastore for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    is_stuck: bool = False


# By process, too: a turn that another thread had at the moment of a fork never ends in the child.
_turns: dict[tuple[int, TableName], _Turn] = {}
_registry = threading.Lock()


class TransactionLease:
    """The lease of this name, which need not be a table. Raises TransactionAborted when a wait is stopped."""

    def __init__(self, name: TableName) -> None:
        self._name = name
        with _registry:
            self._turn = _turns.setdefault((os.getpid(), name), _Turn())

    def wait(self, stop: threading.Event) -> Wait:
        """How long to wait for the lease from now on, together with what follows it."""
        return Wait(Deadline.after(_TRY_SECONDS if self._turn.is_stuck else PATIENCE_SECONDS), stop)

    @contextmanager
    def taken(self, metastore: Metastore, txn: Transaction, wait: Wait) -> Iterator[bool]:
        """Take this process's turn, then the lease; yields whether both came in time.

        The turn ends with the block, the lease with the transaction.
        """
        has_turn = False
        while not has_turn and not wait.deadline.passed:
            if wait.stop.is_set():
                raise self._stopped()
            has_turn = self._turn.lock.acquire(timeout=min(0.5, wait.deadline.left))
        try:
            has_lease = has_turn and self._take(metastore, txn, wait)
            self._turn.is_stuck = not has_lease
            yield has_lease
        finally:
            if has_turn:
                self._turn.lock.release()

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
