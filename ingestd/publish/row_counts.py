"""The row counts of one table as one writer keeps them: right at each commit, and looked at again until all is quiet.

Invariant: a partition that this writer committed to is looked at some seconds after its last commit and some minutes
after it, so that a number which ANALYZE reverted is recounted even if nobody writes there any more.

After each compaction Hive runs ANALYZE, which writes back parameters that it read up to some seconds before; a commit
in between loses its count. Usually the next commit to the partition finds that out. The looks of this module find it
where no commit follows, and recounts happen here only, in a thread that lives as long as something is due: a commit
never waits for them. A look costs one metastore call for 200 partitions and one listing of each directory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import IngestdError, InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import partition_names
from ingestd.hive.tables import Table, TableName, load_acid_table
from ingestd.hive.transactions import Transaction
from ingestd.publish import row_count_parameters
from ingestd.publish.counted_ids import Known, WriteIdRange
from ingestd.publish.counting import Counter
from ingestd.publish.row_count_parameters import WHOLE_TABLE, Increment
from ingestd.retry import Backoff

# Seconds after the last commit to a partition, or after a compaction of it, at which it is looked at.
LOOKS = (3.0, 15.0, 60.0, 300.0, 1800.0)
# What is due within this time is looked at together.
_TOGETHER_SECONDS = 1.0
# Partitions that are remembered; of more, those that have been quiet for longest are not looked at any more.
_MAX_WATCHED = 20_000
# A pause of the survey and of long repairs.
_BETWEEN_SECONDS = 0.2
_MAX_BATCHES = 32


class Report(Protocol):
    """Callbacks for what happens to row counts; called from another thread."""

    def repaired(self, names: Sequence[str]) -> None:
        """These partitions were recounted (WHOLE_TABLE for an unpartitioned table)."""

    def delayed(self, error: IngestdError) -> None:
        """Row counts cannot be looked at or repaired now; told once until it works again."""


@dataclass(slots=True)
class _Watched:
    """One partition: which look is next and when, and what the last one saw."""

    due: float
    looks: int = 0
    committed: int = 0
    compactions: frozenset[str] | None = None


@dataclass(slots=True)
class _State:
    """What the threads share, under `RowCounts._changed`."""

    table_id: int = 0
    watched: dict[str, _Watched] = field(default_factory=dict)
    batches: dict[WriteIdRange, None] = field(default_factory=dict)
    survey_due: float | None = None
    thread: threading.Thread | None = None
    closing: bool = False


class RowCounts:
    """Keeps the row counts of `table` for `writer`, a name that no other writer of the table has at the same time.

    `looks` are seconds after the last commit. Its methods may be called from any thread.
    """

    def __init__(
        self, metastore: Metastore, table: TableName, writer: str, report: Report, looks: Sequence[float] = LOOKS
    ) -> None:
        self._metastore = metastore
        self._table = table
        self._writer = writer
        self._counter = Counter(metastore, writer, self._known)
        self._report = report
        self._looks = looks
        self._state = _State()
        self._changed = threading.Condition()
        self._halt = threading.Event()
        self._backoff = Backoff(first_seconds=1.0)
        self._is_delayed = False

    @contextmanager
    def counted_up(
        self,
        table: Table,
        txn: Transaction,
        write_id: int,
        added: Mapping[str, Increment],
        stop: threading.Event,
        batch: WriteIdRange | None = None,
    ) -> Iterator[None]:
        """Count up what a transaction adds, for a block that commits it.

        `batch` is the range of write ids of its transaction batch, when that shares its files. The wait for other
        writers is 5 s at most; then the numbers are left in doubt and recounted later. Raises TransactionAborted when
        `stop` is set, MetastoreUnavailable: then the caller must abort.
        """
        self._begin(table, batch)
        doubtful: Iterable[str] = ()
        try:
            with self._counter.counted_up(table, txn, write_id, added, stop) as doubtful:
                yield
        except BaseException:
            # It may have been counted without being committed.
            self._watch(added, 0, added)
            raise
        self._watch(added, write_id, doubtful)

    def survey(self, seconds: float) -> None:
        """Look at all partitions that carry our counts once, beginning in so many seconds."""
        with self._changed:
            self._state.survey_due = monotonic() + seconds
            self._wake()

    def close(self, deadline: Deadline, stop: threading.Event) -> None:
        """Look at once at what is due soon, then end; waits no longer than `deadline`, nor once `stop` is set."""
        with self._changed:
            self._state.closing = True
            self._changed.notify_all()
            thread = self._state.thread
        while thread and thread.is_alive() and not deadline.passed and not stop.is_set():
            thread.join(min(0.1, deadline.left))
        self._halt.set()

    def _known(self, name: str) -> Known:
        with self._changed:
            watched = self._state.watched.get(name)
            return Known(watched.committed if watched else 0, frozenset(self._state.batches))

    def _begin(self, table: Table, batch: WriteIdRange | None) -> None:
        """Remember the batch; a table that was dropped and created again numbers its write ids itself."""
        with self._changed:
            state = self._state
            if state.table_id not in (0, table.id):
                state.watched.clear()
                state.batches.clear()
            state.table_id = table.id
            if batch is not None:
                state.batches[batch] = None
            while len(state.batches) > _MAX_BATCHES:
                del state.batches[next(iter(state.batches))]

    def _watch(self, committed: Iterable[str], write_id: int, doubtful: Iterable[str]) -> None:
        """Begin the looks at what was committed; what is doubtful is due now."""
        now = monotonic()
        with self._changed:
            watched = self._state.watched
            for name in committed:
                before = watched.pop(name, None)  # the newest are last
                last = write_id or (before.committed if before else 0)
                compactions = before.compactions if before else None
                watched[name] = _Watched(now + self._looks[0], 0, last, compactions)
            for name in doubtful:
                watched.setdefault(name, _Watched(now)).due = now
            while len(watched) > _MAX_WATCHED:
                del watched[next(iter(watched))]
            self._wake()

    def _wake(self) -> None:
        """Have the thread see what is due; the caller holds `_changed`."""
        if self._state.thread is None and not self._state.closing:
            self._state.thread = threading.Thread(target=self._run, name=f"row-counts-{self._writer}", daemon=True)
            self._state.thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        """Look at what is due until nothing is left; its own connection ends with it."""
        try:
            while (due := self._next_due()) is not None and self._turn(due):
                pass
        finally:
            self._metastore.close()
            with self._changed:
                if self._state.thread is threading.current_thread():
                    self._state.thread = None

    def _turn(self, due: Mapping[str, _Watched]) -> bool:
        """Do what is due; False when it failed and this ends."""
        try:
            self._look_at(due)
            self._survey_if_due()
        except InvalidTable:  # the table is gone, or is no ACID table any more
            with self._changed:
                self._state.watched.clear()
                self._state.survey_due = None
        except IngestdError as error:
            return self._wait_for_better(error)
        else:
            self._is_delayed = False
            self._backoff.reset()
        return True

    def _next_due(self) -> dict[str, _Watched] | None:
        """Wait for the next look; what is due by name, or None when nothing is left to do."""
        with self._changed:
            state = self._state
            while not self._halt.is_set():
                if state.closing:
                    due = {name: one for name, one in state.watched.items() if not one.looks}
                    if due or state.survey_due is not None:
                        return due
                    break
                times = [one.due for one in state.watched.values()]
                if state.survey_due is not None:
                    times.append(state.survey_due)
                if not times:
                    break
                seconds = min(times) - monotonic()
                if seconds <= 0:
                    until = monotonic() + _TOGETHER_SECONDS
                    return {name: one for name, one in state.watched.items() if one.due <= until}
                self._changed.wait(seconds)
            state.thread = None  # from here on a new one is started
            return None

    def _look_at(self, due: Mapping[str, _Watched]) -> None:
        """Look at partitions that are due, and repair what is wrong."""
        if not due:
            return
        table = load_acid_table(self._metastore, self._table)
        found = self._counter.look(table, list(due))
        self._repair(table, [name for name, one in found.items() if not one.is_right])
        with self._changed:
            for name, watched in due.items():
                if self._state.watched.get(name) is not watched:
                    continue  # committed to meanwhile
                if name in found:
                    self._plan_next(name, watched, found[name].compactions)
                else:
                    del self._state.watched[name]

    def _plan_next(self, name: str, watched: _Watched, compactions: frozenset[str]) -> None:
        """The next look; after a compaction that the last one did not see they begin again. Holds `_changed`."""
        is_new = watched.compactions is not None and not compactions <= watched.compactions
        watched.compactions = compactions
        watched.looks = 0 if is_new else watched.looks + 1
        if watched.looks < len(self._looks):
            before = self._looks[watched.looks - 1] if watched.looks else 0.0
            watched.due = monotonic() + self._looks[watched.looks] - before
        else:
            del self._state.watched[name]

    def _repair(self, table: Table, names: Sequence[str]) -> None:
        """Recount in portions, between which commits have their turn."""
        while names and not self._halt.is_set():
            done = self._counter.repair(table, names, self._halt)
            if done.corrected:
                self._report.repaired(done.corrected)
            for error in done.failed.values():
                self._report.delayed(error)
            names = done.left
            pause(_BETWEEN_SECONDS if names else 0.0, self._halt)

    def _survey_if_due(self) -> None:
        """Look at every partition that carries our counts: those of others are none of our business."""
        with self._changed:
            due = self._state.survey_due
            if due is None or not (self._state.closing or due <= monotonic()):
                return
        table = load_acid_table(self._metastore, self._table)
        names: Sequence[str] = (WHOLE_TABLE,)
        if table.partition_columns:
            names = partition_names(self._metastore, table)
        for start in range(0, len(names), row_count_parameters.CHUNK):
            if pause(_BETWEEN_SECONDS if start else 0.0, self._halt):
                return
            found = self._counter.look(table, names[start : start + row_count_parameters.CHUNK])
            self._repair(table, [n for n, one in found.items() if one.counters.is_ours and not one.is_right])
        with self._changed:
            self._state.survey_due = None

    def _wait_for_better(self, error: IngestdError) -> bool:
        """After a failure: tell it once and try again later; False when this ends instead."""
        if not self._is_delayed:
            self._report.delayed(error)
        self._is_delayed = True
        with self._changed:
            if self._state.closing or self._halt.is_set():
                return False
            self._changed.wait_for(lambda: self._state.closing, self._backoff.seconds())
            return True
