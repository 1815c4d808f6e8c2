"""One mapping's life: own it, recover, then plan, open, stage and commit until told to stop.

Invariant: whatever fails, the way on is the same: `_recover` aborts what is open and reads the stored position, so
nothing that is kept in memory ever decides what was committed. The next stages run while the last one commits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from ingestd import retry
from ingestd.clock import Deadline, pause
from ingestd.errors import (
    IngestdError,
    InvalidTable,
    StorageUnavailable,
    TableChanged,
    TableMissing,
    TransactionAborted,
)
from ingestd.hive import partitions, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.control import ensure_control_table, read_state
from ingestd.hive.tables import Table
from ingestd.ingest import events, stage
from ingestd.ingest.commit import Committer, Work
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership import Ownership
from ingestd.ingest.plan import Plan, Planner
from ingestd.ingest.signals import Signals
from ingestd.ingest.stage import Staged, StageTask
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import Observe, StepWatch, ignore
from ingestd.ingest.target import load_target, static_values
from ingestd.kafka.admin import Broker, OffsetMirror
from ingestd.kafka.ranges import Offsets, Position, split
from ingestd.publish import staging
from ingestd.publish.row_counts import RowCounts
from ingestd.publish.staging import Staging
from ingestd.spark.engine import Engine
from ingestd.spark.errors import JobFailed, JobTimeout, WorkerLost
from ingestd.storage.local import Location

# Transactions between open and commit, besides the one that commits.
_STAGES_AHEAD = 2
_OFFSETS_PER_TASK = 25_000  # below this a second task costs more time and files than it gains
# A daemon that was frozen may stage something after its successor has cleaned up.
_SWEEP_SECONDS = 300.0
# Stages in a row that may fail because a worker was lost or the stage took too long.
_STAGE_TRIES = 5
# After giving the lease up by itself: standbys look once a second.
_ASIDE_SECONDS = 3.0
# How long a table that was there may be missing.
_SWAP_SECONDS = 10.0
_OUT_OF_MEMORY = (
    "most often the kernel killed it for lack of memory (dmesg says so): give the machine or container more memory, or "
    "lower commit.bytes, commit.rows or the cores of spark.master; on a cluster raise spark.executor.pyspark.memory or "
    "spark.executor.memoryOverhead"
)
# The survey of a new owner waits for so long: its first commit comes before.
_SURVEY_SECONDS = 3.0
# At the end row counts that were not looked at yet get so long.
_COUNTS_SECONDS = 10.0


class MappingLoop:
    """Runs one mapping; `run` returns when it was stopped or has caught up, or raises what stopped it."""

    def __init__(
        self,
        metastore: Metastore,
        engine: Engine,
        options: MappingOptions,
        signals: Signals,
        *,
        drain: bool,
        observe: Observe = ignore,
    ) -> None:
        self.options = options
        self._metastore = metastore
        self._engine = engine
        self._signals = signals
        self._drain = drain
        self._observe = observe
        self._broker = Broker(options.kafka)
        self._planner = Planner(self._broker, options)
        self._ownership = Ownership(metastore, options, on_lost=partial(events.lease_lost, options.name))
        self._mirror = OffsetMirror(options.kafka, options.consumer_group)
        self._backoff = retry.Backoff()
        self._until: Offsets | None = None
        self._state = MappingState(str(options.table))
        self._wake = threading.Event()
        # What the transactions that are not committed have staged, by their ids: wherever the table was then.
        self._staged: dict[int, Staging] = {}
        self._next_sweep = Deadline.after(0.0)
        self._warned = False
        self._failed_stages = 0
        self._was_there = False
        # Until when the table may be missing, once it is.
        self._missing: Deadline | None = None
        self._counts: RowCounts | None = None

    def run(self) -> None:
        """Work until stopped. Raises the IngestdError that ends this mapping; others are waited out."""
        try:
            retry.call(self._attempt, stop=self._signals.stop, on_wait=self._tell_wait, backoff=self._backoff)
        finally:
            self._give_up()

    def cancel(self) -> None:
        """Make a running stage fail now."""
        self._engine.cancel(self.options.name)

    def _attempt(self) -> None:
        """Get ready, then pump until something ends it."""
        # With a backoff of its own: how long an outage lasted must not delay what fails after it.
        ready = retry.call(self._get_ready, stop=self._signals.stop, on_wait=self._tell_wait)
        if ready is None:
            return
        self._warn_of_table(ready[0])
        if self._drain and self._until is None:
            self._until = self._planner.ends()
        try:
            with self._table_may_be_back():
                self._pump(*ready)
        except (WorkerLost, JobTimeout) as error:
            self._bear(error)
            raise
        finally:
            self._drop_staged()

    def _get_ready(self) -> tuple[Table, Committer] | None:
        """Own the mapping and recover; None when told to stop before it was ours."""
        if not self._ownership.held:
            self._leave_counts(0.0)
            on_wait = partial(events.standby, self.options.name)
            if not self._ownership.acquire(self._signals.stop, on_wait):
                return None
        # Without an engine the mapping is better left to another daemon.
        self._engine.check()
        with self._table_may_be_back():
            return self._recover()

    @contextmanager
    def _table_may_be_back(self) -> Iterator[None]:
        """Retry for some seconds when a table that was there is missing: two RENAMEs that swap tables take a moment."""
        try:
            yield
        except TableMissing as error:
            self._missing = self._missing or Deadline.after(_SWAP_SECONDS if self._was_there else 0.0)
            if self._missing.passed:
                raise
            raise TableChanged(error.what, where=error.where, hint=error.hint) from error

    def _bear(self, error: JobFailed) -> None:
        """Count a stage that failed for want of a worker or of time; raises JobFailed when it is one too many.

        After a time-out another daemon gets the chance to take the mapping over: here something may hang.
        """
        self._failed_stages += 1
        if self._failed_stages >= _STAGE_TRIES:
            raise JobFailed(
                f"{error.what}, {self._failed_stages} times in a row",
                where=error.where,
                hint=error.hint or _OUT_OF_MEMORY,
            ) from error
        if isinstance(error, JobTimeout):
            self._ownership.abort_leftovers()
            self._ownership.release()
            pause(_ASIDE_SECONDS, self._signals.stop)

    def _recover(self) -> tuple[Table, Committer]:
        """Abort what is open, take its traces back, and read where the last commit ended."""
        options = self.options
        aborted = self._ownership.abort_leftovers()
        table = load_target(self._metastore, options)
        self._sweep(table)
        control = ensure_control_table(self._metastore, options.control)
        counts = self._keep_counts(table)
        committer = Committer(self._metastore, options, control, counts, self._signals.abort, self._tell_wait)
        state = MappingState.parse(read_state(self._metastore, control))
        if state is None:
            self._begin_history(table, committer)
        elif state.table != str(options.table):
            raise InvalidTable(
                f"the mapping wrote to {state.table} before, not to {options.table}",
                where=f"mapping {options.name}",
                hint="give a mapping to another table a new name",
            )
        else:
            self._state = state
        self._was_there, self._missing = True, None
        events.owner(options.name, sum(self._state.position.offsets.values()), aborted)
        return table, committer

    def _warn_of_table(self, table: Table) -> None:
        """Once in the life of the process: properties not followed, and partitions not named as Hive would."""
        if self._warned:
            return
        if table.warnings:
            events.table_properties(self.options.name, str(table.name), table.warnings)
        odd = partitions.odd_partitions(self._metastore, table)
        if odd:
            events.odd_partitions(self.options.name, str(table.name), len(odd), partitions.describe_odd(odd))
        self._warned = True

    def _keep_counts(self, table: Table) -> RowCounts:
        """The row counts of this owner; whoever becomes owner looks at all of them once."""
        if self._counts is None:
            writer = f"{self.options.control_database}.{self.options.name}"
            self._counts = RowCounts(self._metastore, table.name, writer, events.RowCountEvents(self.options.name))
            self._counts.survey(_SURVEY_SECONDS)
        return self._counts

    def _leave_counts(self, seconds: float) -> None:
        """Look for the last time at what was committed lately; then the counts are the next owner's."""
        if self._counts is not None:
            self._counts.close(Deadline.after(seconds), self._signals.abort)
        self._counts = None

    def _begin_history(self, table: Table, committer: Committer) -> None:
        """Store where the first run begins before anything is read: a crash must not move a `latest` start."""
        self._state = MappingState(str(self.options.table))
        plan = Plan((), Position(), self._planner.first_position())
        self._commit(committer, self._open(plan, table))

    def _pump(self, table: Table, committer: Committer) -> None:
        """Plan and open; stages run ahead, two at a time so that no core waits, and commits follow in order."""
        pending: deque[Future[None]] = deque()
        position = self._state.position
        self._wake.clear()
        name = self.options.name
        with ThreadPoolExecutor(2, f"stage-{name}") as stages, ThreadPoolExecutor(1, f"commit-{name}") as commits:
            try:
                while (plan := self._planner.next(position, self._until, partial(self._turn, table))) is not None:
                    self._observe("planned")
                    # Columns that a user added take part from the next transaction on.
                    table = load_target(self._metastore, self.options)
                    staged = stages.submit(self._stage, self._open(plan, table))
                    pending.append(commits.submit(self._commit_staged, committer, staged))
                    position = plan.after
                    if len(pending) > _STAGES_AHEAD:
                        pending.popleft().result()
                for done in pending:
                    done.result()
            finally:
                commits.submit(self._metastore.close)  # the connection of the thread that ends now

    def _commit_staged(self, committer: Committer, staged: Future[Work]) -> None:
        """Commit what a stage made, in the order of the plans; after a failure nothing that follows is tried."""
        if self._wake.is_set():
            raise TransactionAborted("an earlier transaction failed", where=f"mapping {self.options.name}")
        try:
            work = staged.result()
            work.watch.lap("queued")
            self._commit(committer, work)
        except BaseException:
            self._wake.set()
            raise

    def _tell_wait(self, error: IngestdError, seconds: float) -> None:
        events.waiting(self.options.name, error, seconds)

    def _is_over(self) -> bool:
        return self._signals.stop.is_set() or self._wake.is_set()

    def _turn(self, table: Table) -> bool:
        """Between two looks at the broker: sweep when it is time; True when there is nothing more to plan."""
        if self._next_sweep.passed:
            self._sweep(table)
        return self._is_over()

    def _sweep(self, table: Table) -> None:
        """Remove what ended transactions have staged in the table; what cannot be removed stays until the next time."""
        self._next_sweep = Deadline.after(_SWEEP_SECONDS)
        try:
            removed = staging.sweep(self._metastore, table, spare=map(str, list(self._staged)))
        except IngestdError as error:
            events.staging_left(self.options.name, error)
        else:
            if removed:
                events.staging_removed(self.options.name, list(map(str, removed)))

    def _drop_staged(self) -> None:
        """Remove what transactions have staged that will not commit any more."""
        while self._staged:
            self._staged.popitem()[1].discard()

    def _open(self, plan: Plan, table: Table) -> Work:
        """Open the transaction: its write id goes into every row."""
        self._ownership.check()
        watch = StepWatch(self._observe)
        # Before anything is begun: a table whose directory is missing cannot be written.
        location = Location.of(table.location)
        txn, write_id = transactions.begin_writing(self._metastore, table.name, self._ownership.agent)
        self._ownership.track(txn.id)
        watch.lap("opened")
        staged = Staging(location, staging.DAEMON, str(txn.id))
        return Work(plan, table, txn, write_id, (), staged, 0, 0, 0, watch)

    def _stage(self, work: Work) -> Work:
        """Read, decode and write the ranges as one Spark job, then see that they came from the planned topics."""
        if not work.plan.ranges:
            return work
        self._staged[work.txn.id] = work.staging
        work.staging.make()
        try:
            answers = self._engine.run(self.options.name, stage.run, self._tasks(work))
        except JobFailed as error:
            if self._signals.abort.is_set():
                raise TransactionAborted("stopped by a signal", where=f"mapping {self.options.name}") from error
            raise
        for answer in answers:
            if isinstance(answer, StorageUnavailable):
                raise work.staging.explain(answer)
            if isinstance(answer, IngestdError):
                raise answer
        self._planner.confirm(work.plan)
        parts = [a for a in answers if isinstance(a, Staged)]
        stage.refuse_too_many(len({f.partition for p in parts for f in p.files}), self.options.commit.partitions)
        records, size = sum(p.records for p in parts), sum(p.bytes for p in parts)
        self._planner.observe(records, size)
        work.watch.lap("staged")
        files = tuple(f for p in parts for f in p.files)
        return replace(work, files=files, records=records, skipped=sum(p.skipped for p in parts), bytes=size)

    def _tasks(self, work: Work) -> list[StageTask]:
        total = sum(r.span for r in work.plan.ranges)
        count = max(1, min(self._engine.parallelism, total // _OFFSETS_PER_TASK))
        return [
            StageTask(
                ranges=tuple(share),
                topics=dict(work.plan.after.topics),
                kafka=dict(self.options.kafka),
                shape=work.table.shape,
                static_partition=static_values(work.table, self.options),
                tombstones=self.options.format.tombstones,
                write_id=work.write_id,
                bucket=bucket,
                staging=str(work.staging.path),
                most_partitions=self.options.commit.partitions,
            )
            for bucket, share in enumerate(split(work.plan.ranges, count))
        ]

    def _next_state(self, work: Work) -> MappingState:
        return MappingState(
            table=str(self.options.table),
            position=work.plan.after,
            rows=self._state.rows + work.rows,
            txn=work.txn.id,
            write_id=work.write_id,
            owner=self._ownership.agent,
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _commit(self, committer: Committer, work: Work) -> None:
        """Commit, then mirror and tell."""
        after = self._next_state(work)
        self._ownership.check()
        done = committer.commit(work, after)
        self._ownership.untrack(work.txn.id)
        self._staged.pop(work.txn.id, None)
        self._state = after
        self._backoff.reset()
        self._failed_stages = 0
        self._mirror_offsets(after)
        work.watch.lap("mirrored")
        events.committed(self.options.name, done)
        if done.hidden:
            events.commit_hidden(self.options.name, done)
        for gap in work.plan.gaps:
            events.offsets_lost(self.options.name, gap)

    def _mirror_offsets(self, after: MappingState) -> None:
        """Best effort: Hive knows the truth, and the next commit sets the group right."""
        try:
            self._mirror.commit(after.position.offsets)
        except IngestdError as error:
            events.mirror_failed(self.options.name, error)

    def _give_up(self) -> None:
        """Leave nothing open: abort, release, leave the group. A metastore that is away is left to time-outs."""
        try:
            if self._ownership.held:
                self._ownership.abort_leftovers()
            self._ownership.release()
        except IngestdError as error:
            events.left_open(self.options.name, error)
        self._leave_counts(_COUNTS_SECONDS)
        self._mirror.close()
        self._metastore.close()
