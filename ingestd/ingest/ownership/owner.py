"""Ownership of a mapping: one daemon holds the owner lease, and the others are standbys that watch it.

Invariant: ownership decides liveness only. Two daemons that both believe they own a mapping cannot both commit a range:
the lease inside the transaction and the offsets that are read under it prevent that (`commit.py`).

A claim is a lock on the owner lease, either held or waiting. A claim is dead if neither it nor its daemon has sent a
heartbeat for some seconds (`claims.py`), if its process ran on this machine and has ended, or if this daemon requested
it in a call whose answer was lost. Dead claims are released, because a dead request that waits would block later
requests until `hive.txn.timeout`. A standby requests no lock while it sees a live claim, so a standby that is killed
leaves no lock. A takeover acquires the lease and then aborts the transactions that the previous owner left open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ingestd.clock import pause
from ingestd.errors import IngestdError, OwnershipLost, Unavailable
from ingestd.hive import leases, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.identity import has_ended_here
from ingestd.hive.leases import Claim
from ingestd.ingest.monitoring.monitor import Monitor
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.liveness import Liveness

# How often a standby reads the claims while there is an owner.
_POLL_SECONDS = 1.0
# The same interval while there is no owner. Daemons that request the lease at the same moment see only each other's
# waiting locks.
_CONTEST_SECONDS = 0.2


class OwnerAlive(IngestdError):
    """Another daemon owns the mapping and sends heartbeats."""

    exit_code = 69


class Ownership:
    """This daemon's ownership of one mapping.

    Call `begin` and `try_acquire` first, `check` before each expensive step, and `release` at the end. `liveness` keeps
    the lease and the open transactions alive; `on_lost` is called in its thread with the error that ended the
    heartbeats. `agent` names this daemon in its locks and transactions. `is_takeover` says whether another daemon was
    the owner before.
    """

    def __init__(
        self,
        metastore: Metastore,
        options: MappingOptions,
        monitor: Monitor,
        liveness: Liveness,
        *,
        on_lost: Callable[[Exception], None],
    ) -> None:
        self._metastore = metastore
        self._lease = options.owner_lease
        self._prefix = f"ingestd/{options.control_database}/{options.name}/"
        self.agent = f"{self._prefix}{liveness.identity}"
        self.is_takeover = False
        self._reported = 0
        self._monitor = monitor
        self._liveness = liveness
        self._on_lost = on_lost
        self._lock_id: int | None = None
        self._open: set[int] = set()
        self._guard = threading.Lock()
        self._lost = threading.Event()

    def begin(self) -> None:
        """Begin to request the lease with `try_acquire`. Raises MetastoreUnavailable."""
        self._liveness.enter()
        self._forget_lock()
        self._lost.clear()
        self.is_takeover, self._reported = False, 0

    def try_acquire(self, on_wait: Callable[[Claim], None]) -> float | None:
        """Become the owner if no other daemon is. Return None if that succeeded, else the seconds until the next try.

        `on_wait` is called once for each claim that this daemon waits for. Raises MetastoreUnavailable.
        """
        alive = self._release_dead(_POLL_SECONDS if self._reported else _CONTEST_SECONDS)
        self._monitor.progressed()
        if not alive:
            return None if self._request() else _CONTEST_SECONDS
        first = alive[0]
        if first.lock_id != self._reported and self._is_reportable(first):
            self.is_takeover = True
            on_wait(first)
            self._reported = first.lock_id
        return _POLL_SECONDS if first.is_held else _CONTEST_SECONDS

    def acquire_unowned(self) -> None:
        """Become the owner, unless another daemon owns or requests the mapping and sends heartbeats.

        Waits a few seconds for the heartbeats of the claims that exist. Raises OwnerAlive or MetastoreUnavailable.
        """
        self._liveness.enter()
        seen: dict[int, tuple[object, ...]] = {}
        while True:
            alive = self._release_dead(_CONTEST_SECONDS)
            for claim in alive:
                beats = self._liveness.claims.beats(claim)
                if seen.setdefault(claim.lock_id, beats) != beats:
                    raise OwnerAlive(
                        f"a running daemon owns the mapping: {claim.agent}",
                        where=f"lease {self._lease}",
                        hint="send the request to this daemon, or stop it first",
                    )
            if not alive and self._request():
                return
            pause(_CONTEST_SECONDS)

    def _request(self) -> bool:
        lock_id = leases.try_acquire(self._metastore, self._lease, self.agent)
        if lock_id is None:
            return False
        self._lock_id = lock_id
        self._liveness.keep(lock_id, self._monitor.metastore_answered, self._lose)
        return True

    def _is_reportable(self, claim: Claim) -> bool:
        """Return whether the claim is held or has waited for more than a second.

        The claim of a daemon that requests the lease at the same moment waits only briefly.
        """
        return claim.is_held or self._liveness.claims.silence(claim) > _POLL_SECONDS

    def _release_dead(self, seconds: float) -> list[Claim]:
        """Release dead claims and return the live ones, as they were at most `seconds` ago."""
        claims = self._liveness.claims
        known = claims.of(self._lease, seconds=seconds)
        alive = []
        self._monitor.metastore_answered()
        for claim in known:
            is_silent = claims.silence(claim) > self._liveness.patience_seconds
            if is_silent or claim.agent == self.agent or has_ended_here(claim.agent):
                leases.release(self._metastore, claim.lock_id)
                self.is_takeover |= claim.agent != self.agent
            else:
                alive.append(claim)
        return alive

    @property
    def held(self) -> bool:
        """True unless the lease was not acquired, or is known to have ended."""
        return self._lock_id is not None and not self._lost.is_set()

    def confirm(self) -> bool:
        """Ask the metastore whether this daemon owns the mapping now. Raises MetastoreUnavailable.

        Without this question, a daemon that was suspended could abort the transactions of its successor.
        """
        if self.held and self._lock_id is not None and not leases.heartbeat(self._metastore, self._lock_id):
            self._lost.set()
        return self.held

    def check(self) -> None:
        """Raise OwnershipLost if the lease is known to have ended, or if its heartbeats failed."""
        if self._lost.is_set():
            raise OwnershipLost(
                "the lease is lost: another daemon took over the mapping, or the heartbeats failed",
                where=f"lease {self._lease}",
            )

    def track(self, txn_id: int) -> None:
        """Start sending heartbeats for a transaction."""
        with self._guard:
            self._open.add(txn_id)
        self._liveness.track(txn_id)

    def untrack(self, txn_id: int) -> None:
        """Stop sending heartbeats for a transaction that has ended."""
        with self._guard:
            self._open.discard(txn_id)
        self._liveness.untrack(txn_id)

    def abort_leftovers(self) -> list[int]:
        """Abort every open transaction of this mapping, whichever daemon opened it, and return their ids."""
        ids = transactions.open_transactions(self._metastore, self._prefix)
        for txn_id in ids:
            transactions.abort(self._metastore, txn_id)
        self._untrack_all()
        return ids

    def release(self) -> None:
        """Release the lease, so that a standby can take over immediately. Raises MetastoreUnavailable."""
        lock_id = self._lock_id
        self._forget_lock()
        self._untrack_all()
        if lock_id is not None:  # also after the heartbeats failed: the lock may still exist
            try:
                leases.release(self._metastore, lock_id)
            except Unavailable:
                self._liveness.release_later(lock_id)
                raise

    def _forget_lock(self) -> None:
        if self._lock_id is not None:
            self._liveness.drop(self._lock_id)
        self._lock_id = None

    def _untrack_all(self) -> None:
        with self._guard:
            ended, self._open = self._open, set()
        for txn_id in ended:
            self._liveness.untrack(txn_id)

    def _lose(self, error: Exception | None) -> None:
        self._lost.set()
        if error is not None:
            self._on_lost(error)
