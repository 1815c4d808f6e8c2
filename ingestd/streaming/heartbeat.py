"""Keeps the open transactions of a batch alive from a thread of its own.

Invariant: a transaction that the metastore has given up is reported at the next call on the connection, and none is
beaten after the batch has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from weakref import WeakMethod

from ingestd.clock import pause
from ingestd.errors import Unavailable
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.streaming.configuration import seconds_of
from ingestd.streaming.errors import TransactionError

_TIMEOUT = "hive.txn.timeout"
_DEFAULT_SECONDS = 300.0
_AGAIN_SECONDS = 2.0


def transaction_timeout(metastore: Metastore) -> float:
    """Seconds after which the metastore gives up a transaction without heartbeat (`hive.txn.timeout`)."""
    text = str(metastore.call("get_config_value", _TIMEOUT, f"{_DEFAULT_SECONDS:.0f}s"))
    return seconds_of(text) or _DEFAULT_SECONDS


class Heartbeat:
    """Beats every `interval_seconds`; the method `on_turn` is called after each beat, from this thread.

    It ends with the object of `on_turn`: who was interrupted while it was made has nothing to stop it by.
    """

    def __init__(
        self, metastore: Metastore, txn_ids: Iterable[int], interval_seconds: float, on_turn: Callable[[], None]
    ) -> None:
        self._metastore = metastore
        self._guard = threading.Lock()
        self._alive = set(txn_ids)
        self._lost: dict[int, str] = {}
        self._interval = interval_seconds
        self._on_turn = WeakMethod(on_turn)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingestd-streaming-heartbeat", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive()

    def check(self, txn_id: int) -> None:
        """Raise TransactionError when the metastore has given up this transaction; waits for no beat."""
        why = self._lost.get(txn_id)
        if why:
            raise TransactionError(
                why, where=f"transaction {txn_id}", hint="begin a new transaction and write its records again"
            )

    def forget(self, txn_id: int) -> None:
        """Leave a transaction that has ended alone; returns when no beat of it is on its way."""
        with self._guard:
            self._alive.discard(txn_id)

    def stop(self) -> None:
        """No beat any more."""
        self._ended.set()
        if self.is_running and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        wait = self._interval
        while not pause(wait, self._ended):
            if self._on_turn() is None:
                break
            wait = self._interval if self._beat() else min(self._interval, _AGAIN_SECONDS)
            if on_turn := self._on_turn():
                on_turn()
                del on_turn
        self._metastore.close()

    def _beat(self) -> bool:
        """One beat for each: ids of a batch need not be neighbours, so a range could hit others' transactions.

        False when no metastore answered.
        """
        for txn_id in sorted(self._alive):
            with self._guard:  # for one beat only: a commit waits for it
                if txn_id in self._alive and not self._beat_one(txn_id):
                    return False
        return True

    def _beat_one(self, txn_id: int) -> bool:
        try:
            alive = leases.heartbeat_transaction(self._metastore, txn_id)
        except Unavailable:
            return False  # the next call meets the same trouble and reports it
        except Exception as error:  # noqa: BLE001 - without heartbeats the transaction is lost, whatever ended them
            alive, why = False, getattr(error, "what", None) or f"a heartbeat failed: {error!r}"
        else:
            why = "the metastore has aborted the transaction: time-out, or an administrator"
        if not alive:
            self._alive.discard(txn_id)
            self._lost[txn_id] = why
        return True
