"""The pipeline of one mapping: it plans, opens, stages and commits transactions.

Invariant: transactions commit in the order of their plans. After one has failed, no later transaction of the same
pipeline commits, and the next recovery continues at the committed position. While a large transaction commits, the
stages of the next two run, so that no core is idle. While a small one commits, only the next one is staged, because
records wait less in Kafka, where they join a later plan, than behind the commits of several small transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ingestd.acid.routing import Shape
from ingestd.errors import IngestdError, OffsetsLost, StorageUnavailable, TransactionAborted
from ingestd.formats.options import join_of
from ingestd.hive.tables import Table
from ingestd.hive.transactions import Transaction
from ingestd.ingest.commit import PendingTransaction
from ingestd.ingest.ledger import Ledger
from ingestd.ingest.letters.rejects import Rejects, check_limit
from ingestd.ingest.letters.table import LetterTable
from ingestd.ingest.letters.writer import LetterTargets
from ingestd.ingest.plan import Plan, Planner
from ingestd.ingest.services import Services
from ingestd.ingest.stage.jobs import StageJobs
from ingestd.ingest.stage.task import RecordRules, StagedTable, StageResult, StageTask, check_partition_count
from ingestd.ingest.table.columns import columns_of, require_fit
from ingestd.ingest.table.evolution import merged
from ingestd.ingest.table.target import check_query, decoding_of, load_letters, partitioning_of
from ingestd.ingest.workers import Worker
from ingestd.kafka.ranges import Offsets, split
from ingestd.spark.errors import JobFailed

# How many transactions may be open in addition to the one that commits, after a large and after a small transaction.
_STAGES_AHEAD = 2
_SMALL_STAGES_AHEAD = 1
# The minimum number of offsets per task. Smaller tasks would cost more time and files than they save.
_OFFSETS_PER_TASK = 25_000
# The bytes that a task may read, in multiples of `commit.bytes`: the sizes of records vary, and repeating a stage costs
# more than a transaction that is a little larger than planned.
_MAX_SIZE = 2


class Pipeline:
    """Plans and stages transactions, and commits them through a ledger, until one of them fails or the run ends."""

    def __init__(self, services: Services, ledger: Ledger, planner: Planner, jobs: StageJobs, worker: Worker) -> None:
        self._services = services
        self._monitor = services.reporter.monitor
        self._worker = worker
        self._options = services.options
        self._ledger = ledger
        self._planner = planner
        self._jobs = jobs
        self._table, self._letters = ledger.table, ledger.letters
        # The types of the columns, by name, that the next transaction must be able to write.
        self._columns = ledger.state.columns
        # The shape of the table for which the query was last checked.
        self._checked_shape: Shape | None = None
        # Set by the first transaction that fails. It ends the planning and prevents the commit of later transactions.
        self._has_failed = False

    async def run(self, until: Offsets | None, is_over: Callable[[], bool]) -> bool:
        """Run transactions until `is_over` returns True or, if `until` is given, these offsets are committed.

        Returns whether the offsets are committed. On return, no transaction is open. Raises the error of the first
        transaction that failed, after all other transactions have ended.
        """
        await self._worker.call(self._check_dead_letter_topic)
        if self._options.where or self._options.transform:
            await self._worker.stage(self._monitor.doing("queued"), self._check_query, self._table)
        try:
            await self._feed(until, lambda: self._has_failed or is_over())
        finally:
            await self._worker.call(self._services.staging.discard)
        return until is not None and not is_over()

    def _check_dead_letter_topic(self) -> None:
        """Raise InvalidTopic if the topic of dead letters does not exist, before a record needs it."""
        if self._options.dead_letter is not None and self._options.dead_letter.topic:
            self._services.broker.topics([self._options.dead_letter.topic])

    def _check_query(self, table: Table) -> None:
        """Raise ConfigError for an invalid `where` or `transform`, and if the table cannot store the result.

        Does nothing if that is known for this shape of the table. Any client may change it at any time.
        """
        if table.shape != self._checked_shape:
            check_query(table, self._options, self._jobs.examine)
            self._checked_shape = table.shape

    # --- plan

    async def _feed(self, until: Offsets | None, is_over: Callable[[], bool]) -> None:
        """Plan and open transactions, and queue the stage and the commit of each."""
        queued: list[asyncio.Task[None]] = []
        lost: OffsetsLost | None = None
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
        except OffsetsLost as raised:
            lost = raised
        finally:
            errors = await asyncio.gather(*queued, return_exceptions=True)
        # If a queued transaction has failed, its end is not the committed position: the next attempt decides again.
        for error in [*errors, lost]:
            if isinstance(error, BaseException):
                raise error

    def _open(self, plan: Plan) -> PendingTransaction:
        """Open a transaction with the current definitions of its tables, to which columns may have been added.

        Raises InvalidTable if columns were removed, or if the type of one is no longer as wide.
        """
        self._services.observe("planned")
        self._table = self._ledger.read_table()
        require_fit(self._columns, self._table, self._options.name)
        self._columns = columns_of(self._table)
        self._letters = load_letters(self._services.metastore, self._options)
        return self._ledger.open(plan, self._table, self._letters)

    def _on_poll(self, ends: Offsets) -> None:
        """Report the ends of the partitions, and sweep staging directories if a sweep is due.

        Raises OwnershipLost. Without records to commit, nothing else notices that another daemon took over.
        """
        self._services.ownership.check()
        self._monitor.polled(self._ledger.state.position.offsets, ends)
        self._monitor.planned()
        self._services.staging.sweep_if_due(table for table in (self._table, self._letters) if table is not None)

    # --- stage

    def _stage(self, pending: PendingTransaction) -> PendingTransaction:
        """Stage the ranges of a transaction in one Spark job, and return the transaction with the output of the stage.

        Afterwards, checks that no topic was recreated in the meantime. Raises RangeLost, RecordError,
        TooManyPartitions, TransactionTooLarge, TransactionAborted, JobFailed, an Unavailable error, or ConfigError if
        the query no longer fits the table.
        """
        self._check_needed()
        if not pending.plan.ranges:
            return pending
        self._check_query(pending.table)
        with self._monitor.doing("staging"):
            self._services.staging.make(pending.txn, [target.staging for target in pending.targets])
            results = self._run_tasks(pending)
            self._planner.confirm(pending.plan)
        files = tuple(file for result in results for file in result.files)
        letters = tuple(file for result in results for file in result.letters)
        check_partition_count(len({file.partition for file in files}), self._options.commit.partitions)
        records, size = sum(r.records for r in results), sum(r.bytes for r in results)
        self._planner.learn_size(records, size)
        pending.watch.lap("staged")
        rejects = sum((r.rejects for r in results), Rejects())
        check_limit(rejects, self._options.max_rejects, read=records, planned=records)
        skipped, firsts = sum(r.skipped for r in results), tuple(first for r in results for first in r.firsts)
        throttled = max(r.throttled_seconds for r in results)
        return replace(
            pending,
            target=replace(pending.target, files=files),
            letters=pending.letters and replace(pending.letters, files=letters),
            records=records,
            decoded=sum(r.decoded for r in results),
            skipped=skipped,
            bytes=size,
            firsts=firsts,
            throttled_seconds=throttled,
            rejects=rejects,
            on_error=self._options.on_error,
        )

    def _run_tasks(self, pending: PendingTransaction) -> list[StageResult]:
        try:
            answers = self._jobs.run(self._tasks(pending))
        except JobFailed as error:
            if self._services.signals.abort.is_set():
                raise self._aborted("aborted during shutdown") from error
            raise
        errors = [answer for answer in answers if isinstance(answer, IngestdError)]
        if (needed := merged(errors, f"table {pending.table.name}", join_of(self._options.format))) is not None:
            raise needed
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
        count = max(1, min(self._jobs.parallelism, total // _OFFSETS_PER_TASK))
        shares = list(split(pending.plan.ranges, count))
        options, table = self._options, pending.table
        rules = RecordRules.of(options, decoding_of(table, options, self._services.refused.reasons))
        staged = StagedTable(
            table.shape,
            partitioning_of(table, options),
            pending.write_id,
            pending.target.staging.uri,
            options.commit.partitions,
        )
        return [
            StageTask(
                mapping=options.name,
                number=number,
                tasks=len(shares),
                ranges=tuple(share),
                offsets=total,
                topics=dict(pending.plan.after.topics),
                rules=rules,
                table=staged,
                letters=self._letter_targets(pending),
                max_bytes=_MAX_SIZE * options.commit.bytes,
            )
            for number, share in enumerate(shares)
        ]

    def _letter_targets(self, pending: PendingTransaction) -> LetterTargets:
        topic = self._options.dead_letter.topic if self._options.dead_letter else ""
        if (target := pending.letters) is None:
            return LetterTargets(topic)
        return LetterTargets(topic, LetterTable(target.table.shape, target.write_id, target.staging.uri))

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


def _results(pending: PendingTransaction, answers: Sequence[StageResult | IngestdError]) -> Iterator[StageResult]:
    """Yield the results of the tasks. Raises the first error that a task returned."""
    for answer in answers:
        if isinstance(answer, StorageUnavailable):
            raise _explained(pending, answer)
        if isinstance(answer, IngestdError):
            raise answer
        yield answer


def _explained(pending: PendingTransaction, error: StorageUnavailable) -> IngestdError:
    """Return what to raise when staged files are inaccessible; see `Staging.explain`."""
    explained = (target.staging.explain(error) for target in pending.targets)
    return next((explanation for explanation in explained if explanation is not error), error)
