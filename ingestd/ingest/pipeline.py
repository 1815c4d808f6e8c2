"""The pipeline of one mapping: it plans, opens, stages and commits transactions.

Invariant: transactions commit in the order of their plans. After one has failed, no later transaction of the same
pipeline commits, and the next recovery continues at the committed position. While a large transaction commits, the
stages of the next two run, so that no core is idle. While a small one commits, only the next one is staged, because
records wait less in Kafka, where they join a later plan, than behind the commits of several small transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ingestd.errors import IngestdError, StorageUnavailable, TransactionAborted
from ingestd.hive.transactions import Transaction
from ingestd.ingest import stage
from ingestd.ingest.commit import PendingTransaction
from ingestd.ingest.ledger import Ledger
from ingestd.ingest.plan import Plan, Planner
from ingestd.ingest.services import Services
from ingestd.ingest.stage import StageResult, StageTask
from ingestd.ingest.target import load_target, static_values
from ingestd.ingest.workers import Worker
from ingestd.kafka.ranges import Offsets, split
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import JobFailed

# How many transactions may be open in addition to the one that commits, after a large and after a small transaction.
_STAGES_AHEAD = 2
_SMALL_STAGES_AHEAD = 1
# The minimum number of offsets per task. Smaller tasks would cost more time and files than they save.
_OFFSETS_PER_TASK = 25_000


class Pipeline:
    """Plans and stages transactions, and commits them through a ledger, until one of them fails or the run ends."""

    def __init__(
        self, services: Services, ledger: Ledger, planner: Planner, engine: Engine, jobs: JobGroup, worker: Worker
    ) -> None:
        self._services = services
        self._monitor = services.reporter.monitor
        self._worker = worker
        self._options = services.options
        self._ledger = ledger
        self._planner = planner
        self._engine = engine
        self._jobs = jobs
        self._table = ledger.table
        # Set by the first transaction that fails. It ends the planning and prevents the commit of later transactions.
        self._has_failed = False

    async def run(self, until: Offsets | None, is_over: Callable[[], bool]) -> bool:
        """Run transactions until `is_over` returns True or, if `until` is given, these offsets are committed.

        Returns whether the offsets are committed. On return, no transaction is open. Raises the error of the first
        transaction that failed, after all other transactions have ended.
        """
        try:
            await self._feed(until, lambda: self._has_failed or is_over())
        finally:
            await self._worker.call(self._services.staging.discard)
        return until is not None and not is_over()

    # --- plan

    async def _feed(self, until: Offsets | None, is_over: Callable[[], bool]) -> None:
        """Plan and open transactions, and queue the stage and the commit of each."""
        queued: list[asyncio.Task[None]] = []
        position = self._ledger.state.position
        try:
            while (plan := await self._planner.next(position, until, is_over, self._on_poll)) is not None:
                pending = await self._worker.call(self._open, plan)
                queue = self._monitor.doing("queued")
                staged = asyncio.create_task(self._worker.stage(queue, self._stage, pending))
                previous = queued[-1] if queued else None
                queued.append(asyncio.create_task(self._commit_staged(pending.txn, staged, previous)))
                position = plan.after
                is_small = sum(r.length for r in plan.ranges) < _OFFSETS_PER_TASK
                while len(queued) > (_SMALL_STAGES_AHEAD if is_small else _STAGES_AHEAD):
                    await queued[0]
                    del queued[0]
        finally:
            errors = await asyncio.gather(*queued, return_exceptions=True)
        for error in errors:
            if isinstance(error, BaseException):
                raise error

    def _open(self, plan: Plan) -> PendingTransaction:
        """Open a transaction with the current definition of the table, to which columns may have been added."""
        self._services.observe("planned")
        self._table = load_target(self._services.metastore, self._options)
        return self._ledger.open(plan, self._table)

    def _on_poll(self, ends: Offsets) -> None:
        """Report the ends of the partitions, and sweep staging directories if a sweep is due.

        Raises OwnershipLost. Without records to commit, nothing else notices that another daemon took over.
        """
        self._services.ownership.check()
        self._monitor.polled(self._ledger.state.position.offsets, ends)
        self._monitor.planned()
        self._services.staging.sweep_if_due(self._table)

    # --- stage

    def _stage(self, pending: PendingTransaction) -> PendingTransaction:
        """Stage the ranges of a transaction in one Spark job, and return the transaction with the output of the stage.

        Afterwards, checks that no topic was recreated in the meantime. Raises RangeLost, RecordError,
        TooManyPartitions, TransactionAborted, JobFailed, or an Unavailable error.
        """
        self._check_needed()
        if not pending.plan.ranges:
            return pending
        with self._monitor.doing("staging"):
            self._services.staging.make(pending.txn, pending.staging)
            results = self._run_tasks(pending)
            self._planner.confirm(pending.plan)
        files = tuple(file for result in results for file in result.files)
        stage.check_partition_count(len({file.partition for file in files}), self._options.commit.partitions)
        records, size = sum(r.records for r in results), sum(r.bytes for r in results)
        self._planner.learn_size(records, size)
        pending.watch.lap("staged")
        skipped, firsts = sum(r.skipped for r in results), tuple(first for r in results for first in r.firsts)
        return replace(pending, files=files, records=records, skipped=skipped, bytes=size, firsts=firsts)

    def _run_tasks(self, pending: PendingTransaction) -> list[StageResult]:
        try:
            answers = self._engine.run(self._jobs, stage.run, self._tasks(pending))
        except JobFailed as error:
            if self._services.signals.abort.is_set():
                raise self._aborted("aborted during shutdown") from error
            raise
        return list(_results(pending, answers))

    def _check_needed(self) -> None:
        """Raise TransactionAborted if the transaction cannot commit, which may be known before its turn to stage."""
        if self._has_failed:
            raise self._aborted("an earlier transaction failed")
        if self._services.signals.abort.is_set():
            raise self._aborted("aborted during shutdown")

    def _aborted(self, why: str) -> TransactionAborted:
        return TransactionAborted(why, where=f"mapping {self._options.name}")

    def _tasks(self, pending: PendingTransaction) -> list[StageTask]:
        total = sum(r.length for r in pending.plan.ranges)
        count = max(1, min(self._engine.parallelism, total // _OFFSETS_PER_TASK))
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

    # --- commit

    async def _commit_staged(
        self, txn: Transaction, staged: asyncio.Task[PendingTransaction], previous: asyncio.Task[None] | None
    ) -> None:
        """Commit the transaction `txn` once it is staged and the previous one has committed."""
        try:
            await asyncio.wait([staged, *([previous] if previous else [])])
            pending = await staged
            await self._worker.commit(self._commit, pending)
        except BaseException as error:
            self._has_failed = True
            self._worker.wake()
            if isinstance(error, IngestdError):
                error.txn = txn.id
            raise

    def _commit(self, pending: PendingTransaction) -> None:
        """Commit a staged transaction, unless an earlier one has failed."""
        self._check_needed()
        with self._monitor.doing("committing"):
            pending.watch.lap("queued")
            self._ledger.commit(pending)


def _results(pending: PendingTransaction, answers: Iterable[StageResult | IngestdError]) -> Iterator[StageResult]:
    """Yield the results of the tasks. Raises the first error that a task returned."""
    for answer in answers:
        if isinstance(answer, StorageUnavailable):
            raise pending.staging.explain(answer)
        if isinstance(answer, IngestdError):
            raise answer
        yield answer
