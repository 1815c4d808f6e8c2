"""The pipeline of one mapping: it plans, opens, stages and commits transactions.

Invariant: transactions commit in the order of their plans. After one has failed, no later transaction of the same
pipeline commits, and the next recovery continues at the committed position. While a transaction commits, the stages of
the next two run, so that no core is idle.
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
from ingestd.ingest.commit import PendingTransaction
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

# How many transactions may be open in addition to the one that commits.
_STAGES_AHEAD = 2
# The minimum number of offsets per task. Smaller tasks would cost more time and files than they save.
_OFFSETS_PER_TASK = 25_000


class Pipeline:
    """Runs transactions from a checkpoint until one of them fails or the mapping ends.

    `on_commit` is called after each commit, in the commit thread.
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
        # Set by the first transaction that fails. It ends the planning and prevents the commit of later transactions.
        self._failed = threading.Event()

    @property
    def table(self) -> Table:
        """The definition of the table when the last transaction was planned."""
        return self._table

    @property
    def state(self) -> MappingState:
        """The state that the last commit stored."""
        return self._state

    def store_start(self) -> None:
        """Commit the start position of the mapping's very first run, before any record is read.

        Otherwise, with `start: latest`, a crash before the first commit would skip records.
        """
        plan = Plan((), Position(), self._services.planner.first_position())
        self._commit(self._open(plan, self._table))

    def run(self, until: Offsets | None) -> None:
        """Run transactions until the mapping is stopped or, if `until` is given, until these offsets are committed.

        Raises the error of the first transaction that failed, after all other transactions have ended.
        """
        name = self._options.name
        try:
            with ThreadPoolExecutor(2, f"stage-{name}") as stages, ThreadPoolExecutor(1, f"commit-{name}") as commits:
                self._feed(stages, commits, until)
        finally:
            self._services.staging.discard()

    # --- plan

    def _feed(self, stages: ThreadPoolExecutor, commits: ThreadPoolExecutor, until: Offsets | None) -> None:
        """Plan and open transactions, and queue the stage and the commit of each."""
        queued: deque[Future[None]] = deque()
        position = self._state.position
        while (plan := self._services.planner.next(position, until, self._is_over, self._on_poll)) is not None:
            self._services.observe("planned")
            # Each transaction uses the current definition of the table: columns may have been added.
            self._table = load_target(self._services.metastore, self._options)
            staged = stages.submit(self._stage, self._open(plan, self._table))
            queued.append(commits.submit(self._commit_staged, staged))
            position = plan.after
            if len(queued) > _STAGES_AHEAD:
                queued.popleft().result()
        for commit in queued:
            commit.result()

    def _is_over(self) -> bool:
        """Return whether planning must end."""
        return self._services.signals.stop.is_set() or self._failed.is_set()

    def _on_poll(self, ends: Offsets) -> None:
        """Report the ends of the partitions, and sweep staging directories if a sweep is due."""
        self._services.reporter.monitor.polled(self._state.position.offsets, ends)
        self._services.staging.sweep_if_due(self._table)

    # --- open

    def _open(self, plan: Plan, table: Table) -> PendingTransaction:
        """Open a transaction and allocate its write id, which the stage writes into every row."""
        self._services.ownership.check()
        watch = StepWatch(self._services.observe)
        # Checks that the table's directory exists, before the transaction is opened.
        location = Location.of(table.location)
        agent = self._services.ownership.agent
        txn, write_id = transactions.begin_writing(self._services.metastore, table.name, agent)
        self._services.ownership.track(txn.id)
        directory = Staging(location, DAEMON, str(txn.id))
        pending = PendingTransaction(plan, table, txn, write_id, (), directory, 0, 0, 0, (), watch)
        self._services.reporter.opened(pending)
        watch.lap("opened")
        return pending

    # --- stage

    def _stage(self, pending: PendingTransaction) -> PendingTransaction:
        """Stage the ranges of a transaction in one Spark job, and return the transaction with the output of the stage.

        Afterwards, checks that no topic was recreated in the meantime. Raises RangeLost, RecordError,
        TooManyPartitions, TransactionAborted, JobFailed, or an Unavailable error.
        """
        if not pending.plan.ranges:
            return pending
        self._services.staging.make(pending.txn, pending.staging)
        results = self._run_tasks(pending)
        self._services.planner.confirm(pending.plan)
        files = tuple(file for result in results for file in result.files)
        stage.check_partition_count(len({file.partition for file in files}), self._options.commit.partitions)
        records, size = sum(r.records for r in results), sum(r.bytes for r in results)
        self._services.planner.learn_size(records, size)
        pending.watch.lap("staged")
        skipped, firsts = sum(r.skipped for r in results), tuple(first for r in results for first in r.firsts)
        return replace(pending, files=files, records=records, skipped=skipped, bytes=size, firsts=firsts)

    def _run_tasks(self, pending: PendingTransaction) -> list[StageResult]:
        try:
            with self._services.reporter.monitor.staging():
                answers = self._services.engine.run(self._services.jobs, stage.run, self._tasks(pending))
        except JobFailed as error:
            if self._services.signals.abort.is_set():
                raise TransactionAborted("aborted during shutdown", where=f"mapping {self._options.name}") from error
            raise
        return list(_results(pending, answers))

    def _tasks(self, pending: PendingTransaction) -> list[StageTask]:
        total = sum(r.length for r in pending.plan.ranges)
        count = max(1, min(self._services.engine.parallelism, total // _OFFSETS_PER_TASK))
        return [
            StageTask(
                ranges=tuple(share),
                topics=dict(pending.plan.after.topics),
                kafka=dict(self._options.kafka),
                shape=pending.table.shape,
                static_partition=static_values(pending.table, self._options),
                tombstones=self._options.format.tombstones,
                write_id=pending.write_id,
                bucket=bucket,
                staging=str(pending.staging.path),
                max_partitions=self._options.commit.partitions,
            )
            for bucket, share in enumerate(split(pending.plan.ranges, count))
        ]

    # --- commit and mirror

    def _commit_staged(self, staged: Future[PendingTransaction]) -> None:
        """Commit a transaction once it is staged, unless an earlier transaction has failed."""
        if self._failed.is_set():
            raise TransactionAborted("an earlier transaction failed", where=f"mapping {self._options.name}")
        try:
            pending = staged.result()
            pending.watch.lap("queued")
            self._commit(pending)
        except BaseException:
            self._failed.set()
            raise

    def _commit(self, pending: PendingTransaction) -> None:
        """Commit the rows and the position, mirror the offsets to Kafka, and report the commit."""
        after = self._next_state(pending)
        self._services.reporter.staged(pending)
        self._services.ownership.check()
        result = self._committer.commit(pending, after)
        self._services.ownership.untrack(pending.txn.id)
        self._services.staging.forget(pending.txn)
        self._state = after
        self._on_commit()
        self._services.compaction.committed(pending.table, pending.files)
        self._services.pace.committed(sum(pending.watch.steps[step] for step in ("opened", "committed")) / 1000)
        self._mirror_offsets(after)
        pending.watch.lap("mirrored")
        self._services.reporter.committed(result)

    def _next_state(self, pending: PendingTransaction) -> MappingState:
        return MappingState(
            table=str(self._options.table),
            position=pending.plan.after,
            rows=self._state.rows + pending.rows,
            txn=pending.txn.id,
            write_id=pending.write_id,
            owner=self._services.ownership.agent,
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _mirror_offsets(self, after: MappingState) -> None:
        """Commit the offsets to the consumer group, for lag tools only. A failure is logged and ignored."""
        try:
            self._mirror.commit(after.position.offsets)
        except IngestdError as error:
            events.mirror_failed(self._options.name, error)


def _results(pending: PendingTransaction, answers: Iterable[StageResult | IngestdError]) -> Iterator[StageResult]:
    """Yield the results of the tasks. Raises the first error that a task returned."""
    for answer in answers:
        if isinstance(answer, StorageUnavailable):
            raise pending.staging.explain(answer)
        if isinstance(answer, IngestdError):
            raise answer
        yield answer
