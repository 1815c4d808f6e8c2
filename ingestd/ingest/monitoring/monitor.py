"""What a mapping reports about itself while it runs: state, positions, totals, and its last commits.

Invariant: a monitor only remembers. No decision of a mapping depends on it, and no method blocks: values in memory are
replaced under a lock that is held for microseconds. The values of a `snapshot` are consistent.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from ingestd.clock import monotonic, now
from ingestd.compaction.pacing import Pacing
from ingestd.compaction.watch import CompactionStatus
from ingestd.errors import IngestdError, OwnershipLost
from ingestd.ingest.monitoring.histograms import Durations, StepDurations
from ingestd.ingest.monitoring.oldest import OldestRecords
from ingestd.ingest.options import MappingOptions
from ingestd.kafka.hidden import Hidden
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.kafka.timestamps import FirstRecord

State = Literal["starting", "standby", "recovering", "running", "waiting", "paused", "failed", "stopped"]
# How long it is known after a poll that there is no lag.
_FRESH_SECONDS = 60.0
# The counters of `Totals` that change apart from a commit.
Counted = Literal[
    "aborts",
    "rejects",
    "takeovers",
    "row_count_repairs",
    "compactions_requested",
    "compactions_finished",
    "compactions_failed",
    "throttled_seconds",
    "table_changes",
]
_OWNER_STATES = ("recovering", "running", "paused")
# How many commits, and how many ranges and partitions of each, a monitor remembers.
_MAX_COMMITS = 100
MAX_NAMES = 16


@dataclass(frozen=True, slots=True)
class Problem:
    """The error that a mapping waits for or that ended it.

    `reason` is the class of the error, and `at` the Unix time when the current series of this error began. `again_in`
    is the wait in seconds before the next retry; None if there is no retry.
    """

    reason: str
    what: str
    where: str
    hint: str
    at: float
    again_in: float | None

    @classmethod
    def of(cls, error: IngestdError, again_in: float | None = None) -> Problem:
        """Return the problem that `error` describes."""
        return cls(type(error).__name__, error.what, error.where, error.hint, now(), again_in)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One committed transaction.

    `at` is the Unix time of the commit. `steps` maps each step (`steps.py`) to its milliseconds. `ranges` and
    `partitions` contain at most MAX_NAMES names, and the counts all of them. `oldest` is the Kafka timestamp, in
    seconds since 1970, of the oldest of the first records of the ranges; None if there are none. `skipped` counts the
    skipped tombstones, `rejects` the skipped rejects, and `dead_letters` the rejects that were written as dead letters.
    """

    txn: int
    write_id: int
    at: float
    rows: int
    records: int
    skipped: int
    bytes: int
    files: int
    ranges: tuple[str, ...]
    range_count: int
    offsets: int
    partitions: tuple[str, ...]
    partition_count: int
    steps: Mapping[str, int]
    oldest: float | None = None
    rejects: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters since the process started. `retries` counts the waits by the class of the error.

    `rejects` are the errors about rejects that have stopped the mapping. `rejects_skipped` and `dead_letters` are the
    rejects of committed transactions.

    `throttled_seconds` is the time that transactions have waited for records because of a client quota of Kafka.
    `compactions_requested` are those of this daemon, `compactions_finished` and `compactions_failed` those of the
    mapping's table that any client has requested.
    """

    records: int = 0
    rows: int = 0
    bytes: int = 0
    commits: int = 0
    aborts: int = 0
    rejects: int = 0
    rejects_skipped: int = 0
    dead_letters: int = 0
    takeovers: int = 0
    row_count_repairs: int = 0
    table_changes: int = 0
    throttled_seconds: float = 0.0
    compactions_requested: int = 0
    compactions_finished: int = 0
    compactions_failed: int = 0
    retries: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HiddenRecords:
    """`count` offsets of a partition, from `offset` on, that an open Kafka transaction hides (`kafka/hidden.py`).

    `since` is the Unix time when this was first seen, and `at` when it was last seen.
    """

    offset: int
    count: int
    since: float
    at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known about a mapping at one moment.

    `since` is the Unix time of the last change of `state`. `owner` names the daemon that holds or requests the lease,
    and `is_owner` says whether it is this daemon.
    `position` contains the committed next offsets, and `ends` the last stable offsets when Kafka last answered, at
    `polled_at`. A standby knows neither, so they are empty, and `polled_at` is None.
    `oldest` is the Kafka timestamp, in seconds since 1970, of the oldest record that is not committed; None if there is
    none or if it is not known yet. `hidden` contains the partitions with hidden records; None if that is not known.
    `metastore_at` is the Unix time of the last answer of the metastore.
    `open_transactions` counts the transactions that are opened and not yet committed.
    Only the owner knows `pacing` and, after the first survey of the table, `compaction`.
    """

    name: str
    table: str
    topics: tuple[str, ...]
    state: State
    since: float
    owner: str = ""
    is_owner: bool = False
    problem: Problem | None = None
    position: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)
    polled_at: float | None = None
    metastore_at: float | None = None
    oldest: float | None = None
    hidden: Mapping[TopicPartition, HiddenRecords] | None = None
    open_transactions: int = 0
    totals: Totals = field(default_factory=Totals)
    commits: tuple[CommitRecord, ...] = ()
    pacing: Pacing | None = None
    compaction: CompactionStatus | None = None

    @property
    def lag(self) -> int | None:
        """The number of offsets between the committed position and the last stable offsets; None if it is not known.

        A mapping that waits or has ended does not poll Kafka, so it would not see that lag begins.
        """
        if self.polled_at is None:
            return None
        lag = sum(max(0, end - self.position.get(partition, end)) for partition, end in self.ends.items())
        return lag if lag or now() - self.polled_at < _FRESH_SECONDS else None

    @property
    def lag_seconds(self) -> float | None:
        """The age in seconds of the oldest record that is not committed; 0 without lag, None if it is not known."""
        if self.lag == 0:
            return 0.0
        return None if self.lag is None or self.oldest is None else max(0.0, now() - self.oldest)

    @property
    def hidden_offsets(self) -> int | None:
        """The number of offsets behind open Kafka transactions, which are not part of the lag; None if unknown."""
        return None if self.hidden is None else sum(records.count for records in self.hidden.values())

    @property
    def hidden_since(self) -> float | None:
        """The Unix time since when the same transaction has hidden records; None if there is none, or if unknown."""
        return min((records.since for records in self.hidden.values()), default=None) if self.hidden else None

    @property
    def hidden_seconds(self) -> float | None:
        """How long the same transaction had hidden records when that was last seen; 0 without one, None if unknown."""
        return (
            None
            if self.hidden is None
            else max((records.at - records.since for records in self.hidden.values()), default=0.0)
        )


class Monitor:
    """Collects what one mapping reports. `kafka` contains the properties of readers. Safe for use from any thread."""

    def __init__(self, options: MappingOptions) -> None:
        self.kafka = options.reader
        self._lock = threading.Lock()
        self._now = Snapshot(options.name, str(options.table), options.topics, "starting", now())
        self._retries: Counter[str] = Counter()
        self._commits: deque[CommitRecord] = deque(maxlen=_MAX_COMMITS)
        self._durations = StepDurations()
        self._oldest = OldestRecords()
        self._progress_at = monotonic()
        self._doing: Counter[str] = Counter()

    def snapshot(self) -> Snapshot:
        """Return the current values. The newest commit is the last one of `commits`."""
        with self._lock:
            totals = replace(self._now.totals, retries=dict(self._retries))
            oldest = self._oldest.oldest(self._now.position, self._now.ends)
            seen = replace(self._now, totals=totals, commits=tuple(self._commits), oldest=oldest)
        return seen if seen.is_owner else replace(seen, pacing=None, compaction=None)

    def durations(self) -> Mapping[str, Durations]:
        """Return how long the steps of all committed transactions took."""
        with self._lock:
            return self._durations.read()

    @property
    def seconds_without_progress(self) -> float:
        """Seconds since the mapping last completed a step, polled Kafka, or began a wait that it will end itself.

        A poll is no progress while a transaction is staged or committed, because that may hang.
        """
        with self._lock:
            return monotonic() - self._progress_at

    @property
    def is_staging(self) -> bool:
        """Whether the mapping waits for a Spark job."""
        return self._doing["staging"] > 0

    @property
    def is_queued(self) -> bool:
        """Whether all that the mapping does is to wait until the Spark jobs of other mappings have ended."""
        return self._doing["queued"] > 0 and not self.is_staging and not self._doing["committing"]

    @contextmanager
    def doing(self, phase: Literal["queued", "staging", "committing"]) -> Iterator[None]:
        """Note what a transaction does while the block runs. Its end is progress."""
        with self._lock:
            self._doing[phase] += 1
        try:
            yield
        finally:
            with self._lock:
                self._doing[phase] -= 1
                self._progress_at = monotonic()

    def restarted(self, options: MappingOptions) -> None:
        """Note that the mapping starts again with other options."""
        with self._lock:
            self.kafka = options.reader
            self._now = replace(self._now, table=str(options.table), topics=options.topics)
            self._forget()
        self.entered("starting")

    def progressed(self) -> None:
        """Note that the commit loop of the mapping is not stuck."""
        with self._lock:
            self._progress_at = monotonic()

    def entered(self, state: State, *, owner: str | None = None) -> None:
        """Note the state of the mapping and, if it is known, the daemon that owns it."""
        with self._lock:
            self._progress_at = monotonic()
            since = self._now.since if state == self._now.state else now()
            problem = self._now.problem if state in ("waiting", "recovering", "failed") else None
            owner = self._now.owner if owner is None else owner
            is_owner = state in _OWNER_STATES or (state == "waiting" and self._now.is_owner)
            self._now = replace(self._now, state=state, since=since, owner=owner, is_owner=is_owner, problem=problem)
            if state == "standby":
                self._forget()

    def failed(self, error: IngestdError, again_in: float | None = None) -> None:
        """Note an error. With `again_in`, the mapping retries after so many seconds; otherwise the error ended it."""
        problem = Problem.of(error, again_in)
        with self._lock:
            known = self._now.problem
            if known is not None and known.reason == problem.reason:
                problem = replace(problem, at=known.at)
            is_owner = self._now.is_owner and not isinstance(error, OwnershipLost)
            self._now = replace(self._now, problem=problem, is_owner=is_owner)
            if again_in is not None:
                self._retries[problem.reason] += 1
        self.entered("failed" if again_in is None else "waiting")

    def polled(self, position: Offsets, ends: Offsets) -> None:
        """Note the committed position and the last stable offsets."""
        with self._lock:
            if not self._doing["staging"] and not self._doing["committing"]:
                self._progress_at = monotonic()
            self._move(position)
            self._oldest.polled(position, ends)
            self._now = replace(self._now, ends=dict(ends), polled_at=now())

    def planned(self) -> None:
        """Note that Kafka has answered the pipeline. From then on, a mapping that was recovered or resumed runs."""
        with self._lock:
            is_new = self._now.state in ("recovering", "paused")
        if is_new:
            self.entered("running")

    def learned(self, records: Iterable[FirstRecord]) -> None:
        """Note first records that were read. They determine `oldest`."""
        with self._lock:
            self._oldest.learn(records)

    def known_partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions whose ends are known, unless the mapping has been stopped."""
        with self._lock:
            return () if self._now.state == "stopped" else tuple(self._now.ends)

    def measured(self, hidden: Mapping[TopicPartition, Hidden], at: float | None = None) -> None:
        """Note the hidden offsets of partitions at the Unix time `at`, now by default. Those of others remain."""
        at = now() if at is None else at
        with self._lock:
            known = dict(self._now.hidden or {})
            for partition, records in hidden.items():
                before = known.pop(partition, None)
                if records.count and partition in self._now.ends:
                    since = before.since if before is not None and before.offset == records.first else at
                    known[partition] = HiddenRecords(records.first, records.count, since, at)
            if self._now.ends:
                self._now = replace(self._now, hidden=known)

    def unread(self) -> dict[TopicPartition, int]:
        """Return the position of the partitions with lag whose first record is not known."""
        with self._lock:
            return {} if self._now.state == "stopped" else self._oldest.unread(self._now.position, self._now.ends)

    def metastore_answered(self) -> None:
        """Note an answer of the metastore."""
        with self._lock:
            self._now = replace(self._now, metastore_at=now())

    def opened(self, open_transactions: int) -> None:
        """Note how many transactions are open."""
        with self._lock:
            self._progress_at = monotonic()
            self._now = replace(self._now, open_transactions=open_transactions)

    def committed(self, commit: CommitRecord, position: Offsets) -> None:
        """Note a commit and the position that it stored."""
        with self._lock:
            self._progress_at = monotonic()
            self._commits.append(commit)
            self._durations.add(commit.steps)
            old = self._now.totals
            totals = replace(
                old,
                records=old.records + commit.records,
                rows=old.rows + commit.rows,
                bytes=old.bytes + commit.bytes,
                commits=old.commits + 1,
                rejects_skipped=old.rejects_skipped + commit.rejects,
                dead_letters=old.dead_letters + commit.dead_letters,
            )
            self._now = replace(self._now, totals=totals)
            self._move(position)
            if self._now.state == "waiting":  # for the outcome of this commit
                self._now = replace(self._now, state="running", since=now(), problem=None)

    def paced(self, pacing: Pacing) -> None:
        """Note the pace of commits."""
        with self._lock:
            self._now = replace(self._now, pacing=pacing)

    def compacted(self, status: CompactionStatus) -> None:
        """Note the state of the table's compaction. A survey may end after this daemon has become a standby."""
        with self._lock:
            self._now = replace(self._now, compaction=None if self._now.state == "standby" else status)

    def recovered(self, position: Offsets) -> None:
        """Note the committed position that a recovery has read."""
        with self._lock:
            self._move(position)

    def _forget(self) -> None:
        """Forget what only the owner knows: another daemon moves the position now, or other options apply."""
        self._oldest = OldestRecords()
        self._now = replace(
            self._now, position={}, ends={}, polled_at=None, hidden=None, open_transactions=0, compaction=None
        )

    def _move(self, position: Offsets) -> None:
        self._oldest.moved(self._now.position, position)
        self._now = replace(self._now, position=dict(position))

    def counted(self, counter: Counted, more: float = 1) -> None:
        """Add to one of the counters of `Totals`."""
        with self._lock:
            old = self._now.totals
            self._now = replace(self._now, totals=replace(old, **{counter: getattr(old, counter) + more}))


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest legitimate waits of a mapping in seconds: in one step, and for one Spark job."""

    step_seconds: float
    job_seconds: float


def is_stuck(monitor: Monitor, limits: Limits) -> bool:
    """Return whether the mapping has made no progress for longer than its longest wait.

    A mapping that has ended is not stuck. A mapping that waits for a service that is unavailable retries, which is
    progress. A mapping that only waits for the Spark jobs of others is not stuck: one of these may be.
    """
    if monitor.is_queued or monitor.snapshot().state in ("failed", "stopped"):
        return False
    seconds = limits.step_seconds + (limits.job_seconds if monitor.is_staging else 0.0)
    return monitor.seconds_without_progress > seconds
