"""Decides which compactions to request, and recognizes a queue that makes no progress. Makes no call.

Invariant: for each partition at most one compaction is queued, because a request is allowed only if the newest entry of
its partition has ended. After a failure, the next request waits, because Hive would repeat the same failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ingestd.clock import monotonic, now
from ingestd.compaction.options import CompactionOptions
from ingestd.compaction.survey import PartitionFiles
from ingestd.hive.compactions import Compaction, Kind
from ingestd.hive.tables import TableName

# How long no further compaction of a partition is requested after one has failed, or after a worker has refused it, for
# example because an open transaction leaves too few deltas to compact.
_RETRY_SECONDS = 3600.0
_REFUSED_SECONDS = 600.0

# The states that a compaction enters when a worker begins or ends it; the last one also when the cleaner has run.
_WORKER_STATES = ("working", "ready for cleaning", "failed", "refused", "succeeded")

Service = Literal["worker", "cleaner"]


def choose_kind(files: PartitionFiles, options: CompactionOptions) -> Kind:
    """Return the kind of compaction that a partition needs, by the rule of Hive's Initiator."""
    return "major" if not files.has_base or files.delta_bytes > options.ratio * files.base_bytes else "minor"


@dataclass(frozen=True, slots=True)
class Stall:
    """Compactions of a table for which a service of Hive has done nothing for `seconds`; `count` is their number.

    `running` counts the compactions, of any table, that workers have begun and not ended.
    """

    service: Service
    count: int
    seconds: float
    running: int

    @property
    def hint(self) -> str:
        """What to check."""
        if self.service == "cleaner":
            return (
                "the files that compactions replaced are not removed: set hive.compactor.cleaner.on in the metastore,"
                " and look for old open transactions (SHOW TRANSACTIONS), for which Hive keeps these files"
            )
        if self.running:
            return (
                f"no compaction worker is free, because {self.running} compactions are running: raise"
                " hive.compactor.worker.threads; Hive begins those of dead workers again after"
                " hive.compactor.worker.timeout"
            )
        return (
            "no compaction worker is active: set hive.compactor.worker.threads above 0 in HiveServer2 or, with"
            " hive.metastore.runworker.in=metastore, in the metastore, and read its log"
        )


class Queue:
    """The newest entry of the compaction queue for each partition."""

    def __init__(self, entries: Iterable[Compaction]) -> None:
        self.entries = sorted(entries, key=lambda compaction: compaction.id)
        self._newest = {(entry.table, entry.partition): entry for entry in self.entries}

    def of(self, table: TableName) -> list[Compaction]:
        """Return all entries of a table, the oldest first."""
        return [entry for entry in self.entries if entry.table == table]

    def newest_of(self, table: TableName) -> list[Compaction]:
        """Return the newest entry of each partition of a table, the oldest first."""
        return sorted(
            (compaction for compaction in self._newest.values() if compaction.table == table),
            key=lambda compaction: compaction.id,
        )

    def allows(self, table: TableName, partition: str) -> bool:
        """Return whether the policy may request a compaction of a partition.

        The previous one may still be ready for cleaning: an open transaction can delay Hive's cleaner for hours.
        """
        newest = self._newest.get((table, partition))
        if newest is None or newest.has_result:
            return True
        seconds = _RETRY_SECONDS if newest.state == "failed" else _REFUSED_SECONDS
        return newest.has_failed and now() - max(newest.ended, newest.enqueued) > seconds

    def add(self, requested: Compaction) -> None:
        """Add a request that was made after the queue was read."""
        self.entries.append(requested)
        self._newest[requested.table, requested.partition] = requested


class Progress:
    """Observes the queue and recognizes stalls. Measures time on this machine only, because clocks may differ."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, str], float] = {}
        self._worked_at = monotonic()
        self._running = 0

    def observe(self, queue: Queue) -> None:
        """Note the states of all entries. Call this after each reading of the queue."""
        at = monotonic()
        if any(self._is_work(entry) for entry in queue.entries):
            self._worked_at = at
        self._running = sum(entry.state == "working" for entry in queue.entries)
        self._since = {(entry.id, entry.state): self._since.get((entry.id, entry.state), at) for entry in queue.entries}

    def _is_work(self, compaction: Compaction) -> bool:
        """Return whether a worker has begun or ended this compaction since the last reading of the queue.

        The initiator ends compactions that it cannot begin, and the cleaner those that are ready for cleaning.
        """
        is_cleaned = (compaction.id, "ready for cleaning") in self._since
        return (
            compaction.state in _WORKER_STATES
            and (compaction.id, compaction.state) not in self._since
            and not is_cleaned
        )

    def stalls(self, entries: Sequence[Compaction], patience: float) -> list[Stall]:
        """Return the stalls of these entries that last longer than `patience` seconds."""
        stalls = []
        queued = self._waits(entries, "initiated")
        if queued and min(max(queued), monotonic() - self._worked_at) > patience:
            stalls.append(Stall("worker", len(queued), max(queued), self._running))
        uncleaned = self._waits(entries, "ready for cleaning")
        if uncleaned and max(uncleaned) > patience:
            stalls.append(Stall("cleaner", len(uncleaned), max(uncleaned), self._running))
        return stalls

    def _waits(self, entries: Sequence[Compaction], state: str) -> list[float]:
        at = monotonic()
        return [at - self._since.get((entry.id, entry.state), at) for entry in entries if entry.state == state]


class History:
    """Finds the entries of one table that have ended since the queue was read for the first time."""

    def __init__(self) -> None:
        self._known: set[int] | None = None

    def ended(self, entries: Iterable[Compaction]) -> list[Compaction]:
        """Return the entries that have ended since the last call; none at the first call."""
        over = {entry.id: entry for entry in entries if entry.has_result or entry.has_failed}
        known, self._known = self._known, set(over)
        return [] if known is None else [compaction for number, compaction in over.items() if number not in known]
