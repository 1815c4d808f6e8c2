"""The heartbeats of a daemon: one thread keeps the leases and open transactions of all its mappings alive.

Invariant: a daemon that runs sends a heartbeat for its own lease every 2 s. Its owner leases count as alive while the
daemon's lease does (`claims.py`). An owner lease itself needs a heartbeat only so that the metastore does not end it,
so those heartbeats are few and spread over time. Nothing delays the daemon's heartbeat, because standbys would take
over all its mappings: a second thread makes the calls that may wait for a connection. It reports a lease that has ended
within seconds.

Nothing here decides which transaction may commit. That is the lease inside the transaction (`commit.py`).
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import MetastoreUnavailable, Unavailable
from ingestd.hive import health, leases
from ingestd.hive.client import Metastore
from ingestd.hive.identity import has_ended_here, process_identity
from ingestd.hive.leases import Claim
from ingestd.ingest.ownership.claims import Claims, daemon_lease

_BEAT_SECONDS = 2.0
# Transactions and owner leases need fewer heartbeats, because hive.txn.timeout is usually several minutes: the longest
# intervals, and the least number of heartbeats per time-out.
_TRANSACTIONS_SECONDS = 10.0
_LEASES_SECONDS = 60.0
_BEATS_PER_TIMEOUT = 5
# After an outage, the heartbeats of all owner leases are due at once. They are sent for this long per heartbeat of the
# daemon.
_LEASE_BEATS_SECONDS = 1.0
# How often the daemon checks that its owner leases still exist. One request checks all of them.
_VERIFY_SECONDS = 10.0
_CLOSE_SECONDS = 2.0

# Called when a lease has ended, with the error that ended it, or None if another daemon released it.
OnLost = Callable[[Exception | None], None]


@dataclass(slots=True)
class _Kept:
    """An owner lease: what to call at each heartbeat and when it has ended, and when its own next heartbeat is due."""

    on_beat: Callable[[], None]
    on_lost: OnLost
    due: Deadline


class Liveness:
    """Keeps one daemon alive in one control database. Call `enter` before `keep`, and `close` at the end.

    A claim is dead when it has been silent for `patience_seconds`. `identity` names this daemon in locks and
    transactions; `claims` reads the claims of all daemons.
    """

    def __init__(self, metastore: Metastore, database: str, *, patience_seconds: float = 6.0) -> None:
        self.identity = f"{process_identity()}-{uuid.uuid4().hex[:6]}"
        self.patience_seconds = patience_seconds
        self.claims = Claims(metastore, database, patience_seconds)
        self._metastore = metastore
        self._database = database
        self._agent = f"ingestd/{database}/{self.identity}"
        self._lease = daemon_lease(database, self.identity)
        self._lock_id: int | None = None
        self._kept: dict[int, _Kept] = {}
        self._unreleased: set[int] = set()
        # By lock id: the last heartbeat of each lease of a daemon without claims, as the last check found it.
        self._unused: dict[int, tuple[int, int]] = {}
        self._transactions: set[int] = set()
        self._acquiring = threading.Lock()
        # When the last attempt to acquire the daemon's lease failed, and its error.
        self._failed: tuple[float, MetastoreUnavailable] | None = None
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._transactions_seconds, self._leases_seconds = _TRANSACTIONS_SECONDS, _LEASES_SECONDS
        self._verify_due = self._transactions_due = Deadline.after(0.0)
        self._checked_at = monotonic()

    def enter(self) -> None:
        """Acquire the daemon's lease and start the heartbeats. Does nothing if that was done before.

        Raises MetastoreUnavailable. Threads that wait for the same attempt share its error.
        """
        asked = monotonic()
        with self._acquiring:
            if self._failed is not None and self._failed[0] >= asked:
                raise self._failed[1]
            if self._lock_id is None:
                try:
                    self._lock_id = self._acquire()
                except MetastoreUnavailable as error:
                    self._failed = monotonic(), error
                    raise
            if not self._threads:
                self._checked_at = monotonic()
                for name, work in (("heartbeat", self._send_heartbeats), ("leases", self._check_leases)):
                    self._threads.append(threading.Thread(target=work, name=name, daemon=True))
                    self._threads[-1].start()

    def keep(self, lock_id: int, on_beat: Callable[[], None], on_lost: OnLost) -> None:
        """Keep an owner lease alive.

        The heartbeat thread calls `on_beat` when the metastore has answered a heartbeat of the daemon, and `on_lost`
        once if the lease has ended.
        """
        with self._guard:
            self._kept[lock_id] = _Kept(on_beat, on_lost, Deadline.after(self._leases_seconds * random.uniform(0.2, 1)))

    def drop(self, lock_id: int) -> None:
        """Stop keeping an owner lease alive."""
        with self._guard:
            self._kept.pop(lock_id, None)

    def release_later(self, lock_id: int) -> None:
        """Release a lease when the metastore answers again. Until then, standbys wait, as this daemon is alive."""
        with self._guard:
            self._unreleased.add(lock_id)

    def track(self, txn_id: int) -> None:
        """Start sending heartbeats for a transaction."""
        with self._guard:
            self._transactions.add(txn_id)

    def untrack(self, txn_id: int) -> None:
        """Stop sending heartbeats for a transaction that has ended."""
        with self._guard:
            self._transactions.discard(txn_id)

    def close(self) -> None:
        """Stop all heartbeats and release the daemon's lease. Waits at most two seconds for a metastore that hangs."""
        self._ended.set()
        limit = Deadline.after(_CLOSE_SECONDS)
        for thread in self._threads:
            thread.join(limit.left)

    def _acquire(self) -> int | None:
        """Acquire the daemon's lease, and release its claims of earlier calls whose answers were lost."""
        longest = health.transaction_timeout(self._metastore) / _BEATS_PER_TIMEOUT
        self._transactions_seconds, self._leases_seconds = (
            min(longest, seconds) for seconds in (_TRANSACTIONS_SECONDS, _LEASES_SECONDS)
        )
        for claim in leases.claims(self._metastore, self._lease):
            leases.release(self._metastore, claim.lock_id)
        return leases.try_acquire(self._metastore, self._lease, self._agent)

    def _send_heartbeats(self) -> None:
        self._repeat(self._beat)
        if self._lock_id is not None:
            with suppress(Unavailable):  # nothing waits for this lease, so it may time out
                leases.release(self._metastore, self._lock_id)

    def _check_leases(self) -> None:
        self._repeat(self._check)

    def _repeat(self, work: Callable[[], None]) -> None:
        while not pause(_BEAT_SECONDS, self._ended):
            try:
                work()
            except Unavailable:  # noqa: PERF203 - the loop is there to repeat the work
                continue  # the steps in progress have the same problem and report it
            except Exception as error:  # noqa: BLE001 - without heartbeats the leases are lost, whatever the error
                self._lose(self._snapshot(), error)

    def _beat(self) -> None:
        """Send the heartbeats that are due: first for the daemon, then for transactions and owner leases."""
        if self._lock_id is None or not leases.heartbeat(self._metastore, self._lock_id):
            with self._acquiring:
                self._lock_id = self._acquire()
            self._verify_due = Deadline.after(0.0)
        for lock in self._snapshot().values():
            lock.on_beat()
        if self._transactions_due.passed:
            with self._guard:
                transactions = set(self._transactions)
            # The next call in a transaction that has ended fails and reports that.
            leases.heartbeat_transactions(self._metastore, transactions)
            self._transactions_due = Deadline.after(self._transactions_seconds)
        limit = Deadline.after(_LEASE_BEATS_SECONDS)
        for lock_id, lock in sorted(self._snapshot().items(), key=lambda kept: kept[1].due.at):
            if not lock.due.passed or limit.passed or self._ended.is_set():
                break
            if not leases.heartbeat(self._metastore, lock_id):
                self._lose({lock_id: lock})
            lock.due = Deadline.after(self._leases_seconds)

    def _check(self) -> None:
        """Release the leases that could not be released before, and look for owner leases that have ended."""
        if monotonic() - self._checked_at > self.patience_seconds:
            self._verify_due = Deadline.after(0.0)  # this process was suspended: standbys may have taken over
        self._checked_at = monotonic()
        for lock_id in sorted(self._unreleased):
            leases.release(self._metastore, lock_id)
            self._unreleased.discard(lock_id)
        due = self._verify_due
        if due.passed:
            self._verify()
            if self._verify_due is due:  # otherwise the heartbeats want another check
                self._verify_due = Deadline.after(_VERIFY_SECONDS)

    def _verify(self) -> None:
        """Find out which owner leases have ended, and release the leases that killed daemons have left."""
        kept = self._snapshot()
        if kept:
            claims = self.claims.all()
            existing = {claim.lock_id for claim in claims}
            self._lose({lock_id: lock for lock_id, lock in kept.items() if lock_id not in existing})
            self._release_unused(claims)

    def _release_unused(self, claims: Sequence[Claim]) -> None:
        """Release the leases of daemons that have ended, once no claim of theirs is left.

        Otherwise, SHOW LOCKS would list them until `hive.txn.timeout`. A daemon that is alive after all acquires its
        lease again with its next heartbeat, and without claims it has lost nothing meanwhile.
        """
        users = Counter(daemon_lease(self._database, claim.agent) for claim in claims)
        unused = [
            claim
            for claim in claims
            if claim.lease == daemon_lease(self._database, claim.agent) != self._lease and users[claim.lease] == 1
        ]
        for claim in unused:
            if has_ended_here(claim.agent) or self._unused.get(claim.lock_id) == claim.beat:
                leases.release(self._metastore, claim.lock_id)
        self._unused = {claim.lock_id: claim.beat for claim in unused}

    def _snapshot(self) -> dict[int, _Kept]:
        with self._guard:
            return dict(self._kept)

    def _lose(self, lost: dict[int, _Kept], error: Exception | None = None) -> None:
        for lock_id, lock in lost.items():
            with self._guard:
                is_kept = self._kept.pop(lock_id, None) is not None
            if is_kept:
                lock.on_lost(error)
