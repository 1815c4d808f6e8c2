"""Keeps the open transactions of a batch alive from a background thread.

Invariant: a transaction that the metastore has aborted is reported at the next call on the connection, and no heartbeat
is sent after the batch has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from weakref import WeakMethod

from ingestd.clock import pause
from ingestd.errors import Unavailable
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.streaming.errors import TransactionError

_RETRY_SECONDS = 2.0
_STOP_SECONDS = 5.0


class Heartbeat:
    """Sends a heartbeat for each transaction every `interval_seconds`, then calls the method `after_beat`.

    The thread also ends when the object of `after_beat` is garbage collected: a caller that is interrupted while it
    creates the batch has no reference to the thread and cannot stop it.
    """

    def __init__(
        self, metastore: Metastore, txn_ids: Iterable[int], interval_seconds: float, after_beat: Callable[[], None]
    ) -> None:
        self._metastore = metastore
        self._guard = threading.Lock()
        self._alive = set(txn_ids)
        self._lost: dict[int, str] = {}
        self._interval = interval_seconds
        self._after_beat = WeakMethod(after_beat)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingestd-streaming-heartbeat", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def check(self, txn_id: int) -> None:
        """Raise TransactionError when the metastore has aborted this transaction. Makes no network call."""
        why = self._lost.get(txn_id)
        if why:
            raise TransactionError(
                why, where=f"transaction {txn_id}", hint="begin a new transaction and write its records again"
            )

    def remove(self, txn_id: int) -> None:
        """Stop sending heartbeats for a transaction, and wait for one that is in flight."""
        with self._guard:
            self._alive.discard(txn_id)

    def stop(self) -> None:
        """Stop all heartbeats and wait up to five seconds for the thread to end."""
        self._stopped.set()
        if self.is_running and self._thread is not threading.current_thread():
            self._thread.join(timeout=_STOP_SECONDS)

    def _run(self) -> None:
        wait = self._interval
        while not pause(wait, self._stopped):
            if self._after_beat() is None:
                break
            wait = self._interval if self._beat() else min(self._interval, _RETRY_SECONDS)
            if after_beat := self._after_beat():
                after_beat()
                del after_beat  # a strong reference here would keep its object alive

    def _beat(self) -> bool:
        """Send one heartbeat per transaction. Returns False if no metastore answered.

        A heartbeat for a range of ids could include transactions of other clients, because the ids of a batch need not
        be adjacent.
        """
        for txn_id in sorted(self._alive):
            with self._guard:  # released between heartbeats, because a commit waits for it
                if txn_id in self._alive and not self._beat_one(txn_id):
                    return False
        return True

    def _beat_one(self, txn_id: int) -> bool:
        try:
            alive = leases.heartbeat_transaction(self._metastore, txn_id)
        except Unavailable:
            return False  # the next call on the connection fails with the same error
        except Exception as error:  # noqa: BLE001 - without heartbeats the transaction is lost, whatever the cause
            alive, why = False, getattr(error, "what", None) or f"a heartbeat failed: {error!r}"
        else:
            why = "the metastore aborted the transaction, because it timed out or an administrator aborted it"
        if not alive:
            self._alive.discard(txn_id)
            self._lost[txn_id] = why
        return True
