"""Watches the table of one mapping: counts deltas, requests compactions and reports their results.

Invariant: a commit only adds to counters in memory. All calls are made in the thread of the `Compactor`, or in that of
its survey while there is one. Their number is bounded: surveys of at most 1,000 and 200 partitions, and 20 requests per
cycle.

A survey lists directories, so it also finds the deltas of other writers and of a former owner. Between two surveys, the
deltas of this daemon's commits are counted. Before a request, the partition is surveyed again.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ingestd.acid.writer_pool import StagingFile
from ingestd.clock import Deadline
from ingestd.compaction.options import CompactionOptions
from ingestd.compaction.pacing import COMMITS, Pace
from ingestd.compaction.policy import History, Progress, Queue, Service, Stall, choose_kind
from ingestd.compaction.requirements import can_compact, is_excluded, table_faults
from ingestd.compaction.survey import PartitionFiles, survey
from ingestd.hive.client import Metastore
from ingestd.hive.compactions import Compaction, CompactionRefused, request_compaction
from ingestd.hive.partitions import partition_names
from ingestd.hive.tables import WHOLE_TABLE, Table, TableName, load_acid_table
from ingestd.publish.warehouse import Warehouse

# Per cycle: partitions of a periodic survey, partitions that are checked before a request, and requests.
_SURVEYED_PARTITIONS = 1_000
_CHECKED_PARTITIONS = 200
_REQUESTS = 20
# A partition is checked in this many cycles after its compaction has ended. Its transaction commits a moment after the
# state in the queue has changed, and only then do readers use the result.
_CHECKS_AFTER_COMPACTION = 3
# For this long, no other compaction of the partition is requested, because a survey may not have seen the result.
_SETTLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The state of a table's compaction.

    `deltas` is the largest number of deltas in a partition, `crowded` the number of partitions with at least
    `compaction.deltas` deltas, and `small_files` the number of files of less than 16 MB in the last survey. `pending`
    counts the compactions that are queued, running or not cleaned up. `problem` says why compaction does not work; it
    is empty if it works.
    """

    deltas: int = 0
    crowded: int = 0
    small_files: int = 0
    pending: int = 0
    problem: str = ""


class Report(Protocol):
    """Receives what happens to the compactions of one mapping's table.

    Called in the thread of the `Compactor`, and `requirements` in that of its survey.
    """

    def counted(self, status: CompactionStatus) -> None:
        """The table was surveyed, or the queue was read."""

    def requirements(self, faults: Sequence[str]) -> None:
        """Requirements of compaction are violated. Called at the start and when the faults change."""

    def requested(self, compaction: Compaction, deltas: int) -> None:
        """A compaction was requested, because the partition has `deltas` deltas."""

    def finished(self, compaction: Compaction) -> None:
        """A compaction of the table, requested by any client, has written its result."""

    def failed(self, compaction: Compaction) -> None:
        """A compaction of the table, requested by any client, has ended without a result."""

    def stalled(self, stall: Stall) -> None:
        """Compactions of the table make no progress. Called once until they do."""

    def delayed(self, error: Exception) -> None:
        """The table cannot be surveyed, or the queue cannot be read. Called once until both succeed."""


class TableWatch:
    """The watch of one mapping, which calls `active` and `committed` from any thread.

    `agent` names the client of requests in SHOW COMPACTIONS.
    """

    def __init__(self, table: TableName, options: CompactionOptions, pace: Pace, report: Report, agent: str) -> None:
        self._table = table
        self._options = options
        self._pace = pace
        self._report = report
        self._agent = agent
        self._is_active = threading.Event()
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._deltas: dict[str, int] = {}
        self._small_files: dict[str, int] = {}
        self._written: deque[frozenset[str]] = deque(maxlen=COMMITS)  # the partitions of each of the last commits
        self._checks: Counter[str] = Counter()  # partitions to check in the next cycles, and the number of these cycles
        # Used by the thread of the Compactor, or by that of its survey while there is one:
        self._table_id = 0
        self._place = str(table)
        self._pending = 0
        self._problem = ""
        self._survey_at = Deadline.after(0.0)
        self._next_partition = 0
        self._history = History()
        self._settling: dict[str, Deadline] = {}
        self._faults: list[str] = []
        self._metastore_faults: Sequence[str] = ()
        self._stalls: dict[Service, Stall] = {}
        self._is_delayed = False
        self._reads_queue = True

    # --- called by the mapping

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch the table during the `with` block, in which this daemon owns the mapping."""
        self._is_active.set()
        try:
            yield
        finally:
            self._is_active.clear()

    def committed(self, table: Table, files: Iterable[StagingFile]) -> None:
        """Count the deltas of a commit."""
        deltas = Counter(name for name, _ in {(table.partition_name(file.partition), file.statement) for file in files})
        with self._lock:
            for name, count in deltas.items():
                self._deltas[name] = self._deltas.get(name, 0) + count
            self._checks |= Counter(name for name in deltas if self._deltas[name] >= self._options.deltas)
            if deltas:
                self._written.append(frozenset(deltas))
            self._update_pace()

    @property
    def is_active(self) -> bool:
        """Whether this daemon owns the mapping."""
        return self._is_active.is_set()

    @property
    def place(self) -> str:
        """The location of the table; its name before the first survey has asked the metastore."""
        return self._place

    @property
    def status(self) -> CompactionStatus:
        """The current state."""
        with self._lock:
            counts, small_files = list(self._deltas.values()), sum(self._small_files.values())
        crowded = sum(count >= self._options.deltas for count in counts)
        return CompactionStatus(max(counts, default=0), crowded, small_files, self._pending, self._problem)

    # --- called by the thread of the Compactor, and `find_crowded` by that of its survey

    def find_crowded(self, warehouse: Warehouse, metastore_faults: Sequence[str]) -> dict[str, PartitionFiles]:
        """Survey the partitions that are due, and return those for which a compaction should be requested.

        Raises MetastoreUnavailable, StorageUnavailable or InvalidTable.
        """
        with self._lock:
            checked = list(self._checks)[:_CHECKED_PARTITIONS]
        if not (self._survey_at.passed or checked):
            return {}
        table = load_acid_table(warehouse.metastore, self._table)
        self._place = table.location
        if table.id != self._table_id:
            self._forget(table)
            checked = []
        is_due = self._survey_at.passed
        wanted = list(dict.fromkeys([*(self._next_names(warehouse.metastore, table) if is_due else ()), *checked]))
        surveyed = survey(warehouse, table, wanted)
        if is_due:
            self._survey_at = Deadline.after(self._options.survey)
            self._reads_queue = True
        self._remember(wanted, surveyed, checked)
        self._metastore_faults = metastore_faults
        self._note_faults([*metastore_faults, *table_faults(table.parameters, list(self._deltas))])
        if self._options.request == "never" or is_excluded(table.parameters):
            return {}
        crowded = {name: files for name, files in surveyed.items() if files.mergeable >= self._options.deltas}
        return {name: files for name, files in crowded.items() if can_compact(name)}

    def needs_queue(self, crowded: Mapping[str, PartitionFiles]) -> bool:
        """Return whether the queue must be read in this cycle."""
        return bool(crowded or self._pending or self._reads_queue)

    def act(
        self, metastore: Metastore, queue: Queue, progress: Progress, crowded: Mapping[str, PartitionFiles]
    ) -> None:
        """Report what has changed in the queue, and request compactions. Raises MetastoreUnavailable."""
        self._reads_queue = False
        for ended in self._history.ended(queue.of(self._table)):
            self._end(ended)
        self._settling = {name: limit for name, limit in self._settling.items() if not limit.passed}
        allowed = [name for name in crowded if name not in self._settling and queue.allows(self._table, name)]
        allowed.sort(key=lambda name: -crowded[name].deltas)
        for name in allowed[:_REQUESTS]:
            self._request(metastore, queue, name, crowded[name])
        self._check(allowed[_REQUESTS:], 1)
        entries = queue.of(self._table)
        stalls = {stall.service: stall for stall in progress.stalls(entries, self._options.patience)}
        for service in stalls.keys() - self._stalls.keys():
            self._report.stalled(stalls[service])
        self._stalls = stalls
        self._pending = sum(entry.is_pending or entry.state == "ready for cleaning" for entry in entries)
        self._problem = self._find_problem(queue)

    def succeeded(self) -> None:
        """Note that a cycle succeeded."""
        self._report.counted(self.status)
        self._is_delayed = False

    def delayed(self, error: Exception) -> None:
        """Note that a cycle failed. The next one repeats it."""
        if not self._is_delayed:
            self._report.delayed(error)
        self._is_delayed = True

    def _note_faults(self, faults: list[str]) -> None:
        if faults != self._faults:
            self._report.requirements(faults)
        self._faults = faults

    def _forget(self, table: Table) -> None:
        """Forget what is known about a table that another one of the same name has replaced."""
        self._table_id, self._survey_at = table.id, Deadline.after(0.0)
        with self._lock:
            self._deltas.clear()
            self._small_files.clear()
            self._checks.clear()

    def _next_names(self, metastore: Metastore, table: Table) -> list[str]:
        """Return the partitions of a periodic survey: the next 1,000, from the last name (often the newest) down."""
        if not table.partition_columns:
            return [WHOLE_TABLE]
        names = partition_names(metastore, table)[::-1]
        first = self._next_partition if self._next_partition < len(names) else 0
        self._next_partition = first + _SURVEYED_PARTITIONS
        with self._lock:
            self._drop(self._deltas.keys() - set(names))
        return names[first : first + _SURVEYED_PARTITIONS]

    def _remember(self, wanted: Iterable[str], surveyed: Mapping[str, PartitionFiles], checked: Iterable[str]) -> None:
        """Replace the counts of surveyed partitions. A commit during the survey may be missing until the next one."""
        with self._lock:
            self._checks -= Counter(checked)  # keeps positive counts only
            self._drop(set(wanted) - surveyed.keys())
            for name, files in surveyed.items():
                self._deltas[name], self._small_files[name] = files.deltas, files.small_files
            self._update_pace()

    def _drop(self, names: Iterable[str]) -> None:
        """Forget partitions that do not exist. The caller holds the lock."""
        for name in names:
            self._deltas.pop(name, None)
            self._small_files.pop(name, None)

    def _check(self, names: Iterable[str], cycles: int) -> None:
        """Survey partitions in the next `cycles` cycles."""
        with self._lock:
            self._checks |= Counter(dict.fromkeys(names, cycles))

    def _update_pace(self) -> None:
        """Report the deltas of the last commits. The caller holds the lock."""
        self._pace.counted([max((self._deltas.get(name, 0) for name in names), default=0) for names in self._written])

    def _end(self, compaction: Compaction) -> None:
        self._settling[compaction.partition] = Deadline.after(_SETTLE_SECONDS)
        self._check([compaction.partition], _CHECKS_AFTER_COMPACTION)
        report = self._report.failed if compaction.has_failed else self._report.finished
        report(compaction)

    def _request(self, metastore: Metastore, queue: Queue, name: str, files: PartitionFiles) -> None:
        kind = choose_kind(files, self._options)
        try:
            requested = request_compaction(metastore, self._table, name, kind, self._agent)
        except CompactionRefused:
            return  # another client has requested one since the queue was read
        queue.add(requested)
        self._report.requested(requested, files.deltas)

    def _find_problem(self, queue: Queue) -> str:
        """Return why compaction does not work; '' if it works, or if the table is excluded from it."""
        if self._stalls:
            return "; ".join(stall.hint for stall in self._stalls.values())
        failed = [compaction for compaction in queue.newest_of(self._table) if compaction.state == "failed"]
        if failed:
            return f"the last compaction of {failed[-1].partition or 'the table'} failed: {failed[-1].error}"
        return "; ".join(self._metastore_faults)
