"""A lease that one process holds for a long task, and another takes over if the process ends or stops.

Invariant: two processes never act under the same lease. The holder acts only for a time after its last heartbeat
(`check`), and another process takes the lease over only when it has seen no heartbeat for longer, or knows that the
holder has ended. So the holder checks before each call that changes something (`Metastore.guarded`). A single call that
takes longer than the difference is not covered.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from types import TracebackType

from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import IngestdError, MetastoreUnavailable, OwnershipLost
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.hive.identity import has_ended_here, process_identity
from ingestd.hive.tables import TableName

_PATIENCE_SECONDS = 20.0
# In parts of the patience: the time between heartbeats, for how long one permits its holder to act, and how often a
# process that wants the lease looks for heartbeats.
_BEAT, _ACTS, _POLL = 0.1, 0.4, 0.025
_CLOSE_SECONDS = 5.0


class HeldLease:
    """The lease `name`, held until `close`. `task` says in errors what may be done by one process at a time.

    If the lease is lost, an error that leaves the `with` block and is not retriable is replaced by OwnershipLost: its
    cause may be what the next holder has done. The constructor raises OwnershipLost if another process holds the lease
    and runs, and MetastoreUnavailable. It waits for `patience_seconds` to find out whether a process that it cannot see
    has stopped.
    """

    def __init__(
        self, metastore: Metastore, name: TableName, task: str, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._metastore = metastore
        self._name = name
        self._task = task
        self._patience = patience_seconds
        self._agent = f"ingestd/{process_identity()}-{uuid.uuid4().hex[:6]}"
        self._lock_id = self._acquire()
        self._beat_at = monotonic()
        self._has_ended = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="ingestd-lease-heartbeat", daemon=True)
        self._thread.start()

    def __enter__(self) -> HeldLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and not (isinstance(error, IngestdError) and error.is_retriable):
                self.check()
        finally:
            self.close()

    def check(self) -> None:
        """Raise OwnershipLost unless this process still holds the lease. Calls no service."""
        if self._has_ended or monotonic() - self._beat_at > _ACTS * self._patience:
            raise self._lost("its heartbeats were interrupted")

    def close(self) -> None:
        """Release the lease. If this fails, it ends when its heartbeats have stopped for long enough."""
        self._closed.set()
        self._thread.join(timeout=_CLOSE_SECONDS)
        with suppress(IngestdError):
            leases.release(self._metastore, self._lock_id)

    def _acquire(self) -> int:
        """Acquire the lease; wait while the holder may have ended, and release its lock when it has."""
        seen: dict[int, tuple[int, int]] = {}
        silent = Deadline.after(self._patience)
        while True:
            lock_id = leases.try_acquire(self._metastore, self._name, self._agent)
            if lock_id is not None:
                return lock_id
            for claim in leases.claims(self._metastore, self._name):
                if has_ended_here(claim.agent) or (silent.passed and seen.get(claim.lock_id) == claim.beat):
                    leases.release(self._metastore, claim.lock_id)
                elif seen.setdefault(claim.lock_id, claim.beat) != claim.beat:
                    raise self._lost(f"{claim.agent} on {claim.host} does it")
            pause(_POLL * self._patience)

    def _lost(self, why: str) -> OwnershipLost:
        return OwnershipLost(
            f"only one process at a time may {self._task}, and {why}",
            where=f"lease {self._name}",
            hint="wait until the other process has ended",
        )

    def _beat(self) -> None:
        while not pause(_BEAT * self._patience, self._closed) and not self._has_ended:
            sent = monotonic()
            with suppress(MetastoreUnavailable):
                if leases.heartbeat(self._metastore, self._lock_id):
                    self._beat_at = sent
                else:
                    self._has_ended = True
