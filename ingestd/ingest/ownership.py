"""Ownership of a mapping: one daemon holds the owner lease, and the others are standbys that watch it.

Invariant: ownership decides liveness only. Two daemons that both believe they own a mapping cannot both commit a range:
the lease inside the transaction and the offsets that are read under it prevent that (`commit.py`).

A claim is a lock on the owner lease, either held or waiting. A claim is dead if it has had no heartbeat for
`patience_seconds`, if its process ran on this machine and has ended, or if this object requested it in a call whose
answer was lost. Dead claims are released, because a dead request that waits would block later requests until
`hive.txn.timeout`. A standby requests no lock while it sees a live claim, so a standby that is killed leaves no lock.
A takeover acquires the lease and then aborts the transactions that the previous owner left open.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingestd.clock import Deadline, pause
from ingestd.errors import OwnershipLost, Unavailable
from ingestd.hive import leases, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.leases import Claim
from ingestd.ingest.monitor import Monitor
from ingestd.ingest.options import MappingOptions

# How often a standby reads the claims while there is an owner.
_POLL_SECONDS = 1.0
# The same interval while there is no owner. Daemons that request the lease at the same moment see only each other's
# waiting locks.
_CONTEST_SECONDS = 0.2
_HEARTBEAT_SECONDS = 2.0
# Transactions need fewer heartbeats than the lease, because hive.txn.timeout is several minutes.
_LEASE_HEARTBEATS_PER_TXN_HEARTBEAT = 5


@dataclass(frozen=True, slots=True)
class _Observation:
    """The latest state of a claim, and the time when it counts as dead unless a heartbeat changes it."""

    claim: Claim
    expires: Deadline


class Ownership:
    """This daemon's ownership of one mapping.

    Call `acquire` first, `check` before each expensive step, and `release` at the end. `on_lost` is called in the
    heartbeat thread with the error that ended the heartbeats. `agent` names this daemon in its locks and transactions.
    After `acquire`, `is_takeover` says whether another daemon was the owner until then.
    """

    def __init__(
        self,
        metastore: Metastore,
        options: MappingOptions,
        monitor: Monitor,
        *,
        on_lost: Callable[[Exception], None],
        patience_seconds: float = 6.0,
    ) -> None:
        self._metastore = metastore
        self._lease = options.owner_lease
        self._prefix = f"ingestd/{options.control_database}/{options.name}/"
        self.agent = f"{self._prefix}{_identity()}-{uuid.uuid4().hex[:6]}"
        self.is_takeover = False
        self._monitor = monitor
        self._on_lost = on_lost
        self._patience = patience_seconds
        self._lock_id: int | None = None
        self._open: set[int] = set()
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._lost = threading.Event()

    def acquire(self, stop: threading.Event, on_wait: Callable[[Claim], None]) -> bool:
        """Wait until this daemon owns the mapping. Return False if `stop` is set first.

        `on_wait` is called once for each claim that this daemon waits for. Raises MetastoreUnavailable.
        """
        self._lost.clear()
        self.is_takeover = False
        seen: dict[int, _Observation] = {}
        reported = 0
        while not stop.is_set():
            alive = self._release_dead(seen)
            self._monitor.progressed()
            if not alive:
                lock_id = leases.try_acquire(self._metastore, self._lease, self.agent)
                if lock_id is not None:
                    self._start_heartbeats(lock_id)
                    return True
            elif alive[0].lock_id != reported and self._is_reportable(seen[alive[0].lock_id]):
                self.is_takeover = True
                on_wait(alive[0])
                reported = alive[0].lock_id
            pause(_POLL_SECONDS if alive and alive[0].is_held else _CONTEST_SECONDS, stop)
        return False

    def _is_reportable(self, seen: _Observation) -> bool:
        """Return whether the claim is held or has waited for more than a second.

        The claim of a daemon that requests the lease at the same moment waits only briefly.
        """
        return seen.claim.is_held or seen.expires.left < self._patience - _POLL_SECONDS

    def _release_dead(self, seen: dict[int, _Observation]) -> list[Claim]:
        """Release dead claims and return the live ones. Updates `seen`, the observed claims by lock id."""
        found = leases.claims(self._metastore, self._lease)
        self._monitor.heard_metastore()
        for gone in set(seen) - {claim.lock_id for claim in found}:
            del seen[gone]
        alive = []
        for claim in found:
            known = seen.get(claim.lock_id)
            if known is None or known.claim != claim:
                known = seen[claim.lock_id] = _Observation(claim, Deadline.after(self._patience))
            if known.expires.passed or claim.agent == self.agent or _has_ended_here(claim.agent):
                leases.release(self._metastore, claim.lock_id)
                self.is_takeover |= claim.agent != self.agent
            else:
                alive.append(claim)
        return alive

    @property
    def held(self) -> bool:
        """True if this daemon owned the lease at the last heartbeat."""
        return self._lock_id is not None and not self._lost.is_set()

    def check(self) -> None:
        """Raise OwnershipLost if the last heartbeat failed or found that the lease was lost."""
        if self._lost.is_set():
            raise OwnershipLost(
                "the lease is lost: another daemon took over the mapping, or the heartbeats failed",
                where=f"lease {self._lease}",
            )

    def track(self, txn_id: int) -> None:
        """Start sending heartbeats for a transaction."""
        with self._guard:
            self._open.add(txn_id)

    def untrack(self, txn_id: int) -> None:
        """Stop sending heartbeats for a transaction that has ended."""
        with self._guard:
            self._open.discard(txn_id)

    def abort_leftovers(self) -> list[int]:
        """Abort every open transaction of this mapping, whichever daemon opened it, and return their ids."""
        ids = transactions.open_transactions(self._metastore, self._prefix)
        for txn_id in ids:
            transactions.abort(self._metastore, txn_id)
        with self._guard:
            self._open.clear()
        return ids

    def release(self) -> None:
        """Release the lease, so that a standby can take over at once. Raises MetastoreUnavailable."""
        self._ended.set()
        if self._lock_id is not None:  # also after the heartbeats failed: the lock may still exist
            leases.release(self._metastore, self._lock_id)
        self._lock_id = None

    def _start_heartbeats(self, lock_id: int) -> None:
        self._lock_id = lock_id
        self._ended = threading.Event()
        arguments = (lock_id, self._ended)
        threading.Thread(target=self._send_heartbeats, args=arguments, name="heartbeat", daemon=True).start()

    def _send_heartbeats(self, lock_id: int, ended: threading.Event) -> None:
        """Send heartbeats for the lease and, less often, for open transactions."""
        count = 0
        while not pause(_HEARTBEAT_SECONDS, ended):
            count += 1
            try:
                if not leases.heartbeat(self._metastore, lock_id):
                    self._lost.set()
                    break
                self._monitor.heard_metastore()
                if count % _LEASE_HEARTBEATS_PER_TXN_HEARTBEAT == 0:
                    self._send_transaction_heartbeats()
            except Unavailable:
                continue  # the step in progress has the same problem and reports it
            except Exception as error:  # noqa: BLE001 - without heartbeats the lease is lost, whatever the error
                self._lost.set()
                self._on_lost(error)
                break

    def _send_transaction_heartbeats(self) -> None:
        with self._guard:
            open_now = list(self._open)
        for txn_id in open_now:
            # If the transaction has ended, its next call fails and reports that.
            leases.heartbeat_transaction(self._metastore, txn_id)


def _identity() -> str:
    """Return `machine:pid:start_time`, which identifies this process across machines, containers and reboots."""
    return f"{_machine()}:{os.getpid()}:{_start_time(os.getpid())}"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        # Without /proc, nothing is known about other processes. A claim is then dead only when its heartbeats stop.
        return uuid.uuid4().hex[:8]


def _start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _has_ended_here(agent: str) -> bool:
    """Return whether `agent` names a process of this machine that no longer runs."""
    identity = agent.rpartition("/")[2].rpartition("-")[0]
    machine, pid, started = [*identity.split(":"), "", "", ""][:3]
    return machine == _machine() and pid.isdigit() and _start_time(int(pid)) != started
