"""Who works on a mapping: one daemon holds the owner lease, the others stand by and watch it.

Invariant: this decides liveness only. Two daemons that both believe they own a mapping cannot commit the same range:
the lease inside the transaction and the offsets read under it see to that (`commit.py`).
A claim, held or waiting, counts as dead when its heartbeats ceased for `patience_seconds`, at once when it was made by
a process of this machine that is gone, or by ourselves in a call whose answer was lost. Dead claims are released: one
that waits would block every later request for `hive.txn.timeout`. As long as a live claim is seen no lock is requested,
so a standby that is killed leaves none. Taking over means: take the lease, then abort what the owner left open.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingestd.clock import Deadline, pause
from ingestd.errors import IngestdError, OwnershipLost, Unavailable
from ingestd.hive import leases, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.leases import Claim
from ingestd.ingest.options import MappingOptions

_LOOK_SECONDS = 1.0
# Two that ask at once see each other's waiting lock, and no holder.
_CONTEST_SECONDS = 0.2
_BEAT_SECONDS = 2.0
# Heartbeats of transactions are rarer: hive.txn.timeout is minutes.
_TXN_BEATS_EVERY = 5


@dataclass(frozen=True, slots=True)
class _Seen:
    """A claim as it was when it changed last, and when its silence counts as death."""

    claim: Claim
    silence: Deadline


class Ownership:
    """This daemon's claim to one mapping; `acquire`, then `check` before each step that costs, then `release`.

    `on_lost` is told, by the heartbeat thread, of an error that ended the heartbeats.
    """

    def __init__(
        self,
        metastore: Metastore,
        options: MappingOptions,
        *,
        on_lost: Callable[[Exception], None],
        patience_seconds: float = 6.0,
    ) -> None:
        self._metastore = metastore
        self._lease = options.owner_lease
        self._prefix = f"ingestd/{options.control_database}/{options.name}/"
        self.agent = f"{self._prefix}{_identity()}-{uuid.uuid4().hex[:6]}"
        self._on_lost = on_lost
        self._patience = patience_seconds
        self._lock_id: int | None = None
        self._open: set[int] = set()
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._lost = threading.Event()

    def acquire(self, stop: threading.Event, on_wait: Callable[[Claim], None]) -> bool:
        """Wait until the mapping is ours; False when `stop` came first. `on_wait` is called once for each owner."""
        self._lost.clear()
        seen: dict[int, _Seen] = {}
        told = 0
        while not stop.is_set():
            alive = self._release_dead(seen)
            if not alive:
                lock_id = leases.try_acquire(self._metastore, self._lease, self.agent)
                if lock_id is not None:
                    self._begin(lock_id)
                    return True
            elif alive[0].lock_id != told and self._is_worth_telling(seen[alive[0].lock_id]):
                on_wait(alive[0])
                told = alive[0].lock_id
            pause(_LOOK_SECONDS if alive and alive[0].is_held else _CONTEST_SECONDS, stop)
        return False

    def _is_worth_telling(self, seen: _Seen) -> bool:
        """Whether the claim is held, or has waited for long: a rival that asks at the same moment waits shortly."""
        return seen.claim.is_held or seen.silence.left < self._patience - _LOOK_SECONDS

    def _release_dead(self, seen: dict[int, _Seen]) -> list[Claim]:
        """Release claims of the dead; returns the others. `seen` keeps since when each claim has been unchanged."""
        found = leases.claims(self._metastore, self._lease)
        for gone in set(seen) - {claim.lock_id for claim in found}:
            del seen[gone]
        alive = []
        for claim in found:
            known = seen.get(claim.lock_id)
            if known is None or known.claim != claim:
                known = seen[claim.lock_id] = _Seen(claim, Deadline.after(self._patience))
            if known.silence.passed or claim.agent == self.agent or _died_here(claim.agent):
                leases.release(self._metastore, claim.lock_id)
            else:
                alive.append(claim)
        return alive

    @property
    def held(self) -> bool:
        """True while the lease is ours, as far as the last heartbeat knows."""
        return self._lock_id is not None and not self._lost.is_set()

    def check(self) -> None:
        """Raise OwnershipLost once a heartbeat has found the lease gone."""
        if self._lost.is_set():
            raise OwnershipLost(
                "the lease is lost: another daemon took the mapping over, or heartbeats ended",
                where=f"lease {self._lease}",
            )

    def track(self, txn_id: int) -> None:
        """Keep a transaction alive from now on."""
        with self._guard:
            self._open.add(txn_id)

    def untrack(self, txn_id: int) -> None:
        """Leave a transaction that has ended alone."""
        with self._guard:
            self._open.discard(txn_id)

    def abort_leftovers(self) -> list[int]:
        """Abort every open transaction of this mapping, whoever opened it; returns their ids."""
        ids = transactions.open_transactions(self._metastore, self._prefix)
        for txn_id in ids:
            transactions.abort(self._metastore, txn_id)
        with self._guard:
            self._open.clear()
        return ids

    def release(self) -> None:
        """Give the mapping up, so that a standby need not wait."""
        self._ended.set()
        if self._lock_id is not None:  # released as well when heartbeats ended: it may be ours still
            leases.release(self._metastore, self._lock_id)
        self._lock_id = None

    def _begin(self, lock_id: int) -> None:
        self._lock_id = lock_id
        self._ended = threading.Event()
        beat = threading.Thread(target=self._beat, args=(lock_id, self._ended), name="heartbeat", daemon=True)
        beat.start()

    def _beat(self, lock_id: int, ended: threading.Event) -> None:
        """Heartbeat the lease and, less often, the open transactions, over this thread's own connection."""
        turn = 0
        while not pause(_BEAT_SECONDS, ended):
            turn += 1
            try:
                if not leases.heartbeat(self._metastore, lock_id):
                    self._lost.set()
                    break
                if turn % _TXN_BEATS_EVERY == 0:
                    self._beat_transactions()
            except Unavailable:
                # The step in progress meets the same trouble and reports it; beats go on when the metastore is back.
                continue
            except IngestdError as error:
                self._lose(error)
                break
            except Exception as error:  # noqa: BLE001 - without heartbeats the lease is lost, whatever ended them
                self._lose(error)
                break
        self._metastore.close()

    def _lose(self, error: Exception) -> None:
        self._lost.set()
        self._on_lost(error)

    def _beat_transactions(self) -> None:
        with self._guard:
            open_now = list(self._open)
        for txn_id in open_now:
            # One that has ended makes its own next call fail, which is where it is handled.
            leases.heartbeat_transaction(self._metastore, txn_id)


def _identity() -> str:
    """`machine:pid:start`: a process of one boot of one machine (or container), told apart from a later one."""
    return f"{_machine()}:{os.getpid()}:{_started(os.getpid())}"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        # Without /proc nothing can be said about other processes: only silence tells that an owner died.
        return uuid.uuid4().hex[:8]


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _died_here(agent: str) -> bool:
    """True when `agent` was a process of this machine that runs no more."""
    identity = agent.rpartition("/")[2].rpartition("-")[0]
    machine, pid, started = [*identity.split(":"), "", "", ""][:3]
    return machine == _machine() and pid.isdigit() and _started(int(pid)) != started
