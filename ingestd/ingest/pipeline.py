"""The pipeline: plans become transactions, two stages run ahead, and commits follow in the order of the plans.

Invariant: after one transaction has failed, no later one of the same pipeline commits; the next recovery continues at
the stored position. While a transaction commits, the stages of the next two run, so that no core is idle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone

from ingestd.errors import IngestdError, StorageUnavailable, TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.tables import Table
from ingestd.ingest import events, stage
from ingestd.ingest.commit import Work
from ingestd.ingest.plan import Plan
from ingestd.ingest.recovery import Checkpoint
from ingestd.ingest.services import Services
from ingestd.ingest.stage import StageResult, StageTask
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import StepWatch
from ingestd.ingest.target import load_target, static_values
from ingestd.kafka.admin import OffsetMirror
from ingestd.kafka.ranges import Offsets, Position, split
from ingestd.publish.staging import DAEMON, Staging
from ingestd.spark.errors import JobFailed
from ingestd.storage.local import Location

# Open transactions besides the one that commits.
_STAGES_AHEAD = 2
# Below this size a second task costs more time and files than it gains.
_OFFSETS_PER_TASK = 25_000


class Pipeline:
    """Runs the transactions of one owner, from a checkpoint to the first failure or the end.

    `on_commit` is called after each commit, in the thread that commits.
    """

    def __init__(
        self, services: Services, mirror: OffsetMirror, checkpoint: Checkpoint, on_commit: Callable[[], None]
    ) -> None:
        self._services = services
        self._options = services.options
        self._mirror = mirror
        self._table = checkpoint.table
        self._committer = checkpoint.committer
        self._state = checkpoint.state or MappingState(str(services.options.table))
        self._on_commit = on_commit
        # Set by the first transaction that fails: it ends the planning, and later transactions do not commit.
        self._failed = threading.Event()

    @property
    def table(self) -> Table:
        """The table as it was when the last transaction was planned."""
        return self._table

    @property
    def position(self) -> Position:
        """The committed position."""
        return self._state.position

    def store_start(self) -> None:
        """Commit the position where the very first run starts, before anything is read.

        Otherwise a crash before the first commit would move a `latest` start.
        """
        plan = Plan((), Position(), self._services.planner.first_position())
        self._commit(self._open(plan, self._table))

    def run(self, until: Offsets | None) -> None:
        """Run transactions until the mapping is stopped or, when `until` is given, until it is committed.

        Raises the first error of a transaction, after every other one that was open has ended.
        """
        name = self._options.name
        try:
            with ThreadPoolExecutor(2, f"stage-{name}") as stages, ThreadPoolExecutor(1, f"commit-{name}") as commits:
                try:
                    self._feed(stages, commits, until)
                finally:
                    commits.submit(self._services.metastore.close)  # the connection of the commit thread
        finally:
            self._services.staging.discard()

    # --- plan

    def _feed(self, stages: ThreadPoolExecutor, commits: ThreadPoolExecutor, until: Offsets | None) -> None:
        """Plan transactions, open each and queue its stage and its commit."""
        pending: deque[Future[None]] = deque()
        position = self._state.position
        while (plan := self._services.planner.next(position, until, self._is_over)) is not None:
            self._services.observe("planned")
            # A transaction uses the table as it is now: columns may have been added since the last one.
            self._table = load_target(self._services.metastore, self._options)
            staged = stages.submit(self._stage, self._open(plan, self._table))
            pending.append(commits.submit(self._commit_staged, staged))
            position = plan.after
            if len(pending) > _STAGES_AHEAD:
                pending.popleft().result()
        for commit in pending:
            commit.result()

    def _is_over(self) -> bool:
        """Whether planning ends. The planner asks between two looks at Kafka, so sweeps are made here too."""
        self._services.staging.sweep_if_due(self._table)
        return self._services.signals.stop.is_set() or self._failed.is_set()

    # --- open

    def _open(self, plan: Plan, table: Table) -> Work:
        """Open the transaction. Its write id is needed first: it is part of every row."""
        self._services.ownership.check()
        watch = StepWatch(self._services.observe)
        # Checks that the table's directory exists, before there is a transaction.
        location = Location.of(table.location)
        agent = self._services.ownership.agent
        txn, write_id = transactions.begin_writing(self._services.metastore, table.name, agent)
        self._services.ownership.track(txn.id)
        watch.lap("opened")
        directory = Staging(location, DAEMON, str(txn.id))
        return Work(plan, table, txn, write_id, (), directory, 0, 0, 0, watch)

    # --- stage

    def _stage(self, work: Work) -> Work:
        """Read, decode and write the ranges in one Spark job, then check that the topics are those that were planned.

        Raises RangeLost, RecordError, TooManyPartitions, TransactionAborted, JobFailed, or an Unavailable.
        """
        if not work.plan.ranges:
            return work
        self._services.staging.make(work.txn, work.staging)
        results = self._run_tasks(work)
        self._services.planner.confirm(work.plan)
        files = tuple(file for result in results for file in result.files)
        stage.check_partition_count(len({file.partition for file in files}), self._options.commit.partitions)
        records, size = sum(r.records for r in results), sum(r.bytes for r in results)
        self._services.planner.learn_size(records, size)
        work.watch.lap("staged")
        return replace(work, files=files, records=records, skipped=sum(r.skipped for r in results), bytes=size)

    def _run_tasks(self, work: Work) -> list[StageResult]:
        try:
            answers = self._services.engine.run(self._options.name, stage.run, self._tasks(work))
        except JobFailed as error:
            if self._services.signals.abort.is_set():
                raise TransactionAborted("aborted during shutdown", where=f"mapping {self._options.name}") from error
            raise
        return list(_results(work, answers))

    def _tasks(self, work: Work) -> list[StageTask]:
        total = sum(r.length for r in work.plan.ranges)
        count = max(1, min(self._services.engine.parallelism, total // _OFFSETS_PER_TASK))
        return [
            StageTask(
                ranges=tuple(share),
                topics=dict(work.plan.after.topics),
                kafka=dict(self._options.kafka),
                shape=work.table.shape,
                static_partition=static_values(work.table, self._options),
                tombstones=self._options.format.tombstones,
                write_id=work.write_id,
                bucket=bucket,
                staging=str(work.staging.path),
                max_partitions=self._options.commit.partitions,
            )
            for bucket, share in enumerate(split(work.plan.ranges, count))
        ]

    # --- commit and mirror

    def _commit_staged(self, staged: Future[Work]) -> None:
        """Commit a transaction when it is staged, unless an earlier one has failed."""
        if self._failed.is_set():
            raise TransactionAborted("an earlier transaction failed", where=f"mapping {self._options.name}")
        try:
            work = staged.result()
            work.watch.lap("queued")
            self._commit(work)
        except BaseException:
            self._failed.set()
            raise

    def _commit(self, work: Work) -> None:
        """Commit rows and position, copy the position to Kafka, and log the commit."""
        name, after = self._options.name, self._next_state(work)
        self._services.ownership.check()
        result = self._committer.commit(work, after)
        self._services.ownership.untrack(work.txn.id)
        self._services.staging.forget(work.txn)
        self._state = after
        self._on_commit()
        self._mirror_offsets(after)
        work.watch.lap("mirrored")
        events.committed(name, result)
        if result.hidden:
            events.commit_hidden(name, result)
        for gap in work.plan.gaps:
            events.offsets_lost(name, gap)

    def _next_state(self, work: Work) -> MappingState:
        return MappingState(
            table=str(self._options.table),
            position=work.plan.after,
            rows=self._state.rows + work.rows,
            txn=work.txn.id,
            write_id=work.write_id,
            owner=self._services.ownership.agent,
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _mirror_offsets(self, after: MappingState) -> None:
        """Commit the position to Kafka as well, as far as Kafka answers: it is a copy for tools that show lag."""
        try:
            self._mirror.commit(after.position.offsets)
        except IngestdError as error:
            events.mirror_failed(self._options.name, error)


def _results(work: Work, answers: Iterable[StageResult | IngestdError]) -> Iterator[StageResult]:
    """The results of the tasks. Raises the first error that a task returned."""
    for answer in answers:
        if isinstance(answer, StorageUnavailable):
            raise work.staging.explain(answer)
        if isinstance(answer, IngestdError):
            raise answer
        yield answer
