"""The main loop of one mapping: become its owner, recover, then run the pipeline and carry out requests.

Invariant: after every retriable error, the loop starts over, and a recovery precedes the next transaction. Requests are
carried out only while no transaction is open (`recovery.py`, `pipeline.py`, `requests.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from ingestd import retry
from ingestd.clock import Deadline
from ingestd.compaction.watch import TableWatch
from ingestd.errors import TableChanged, TableMissing
from ingestd.hive import partitions
from ingestd.hive.alteration import change_columns
from ingestd.hive.control import state_removed
from ingestd.hive.leases import Claim
from ingestd.hive.partitions import PartitionsRefused
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import Wait
from ingestd.ingest.commit import LOCK_SECONDS
from ingestd.ingest.control import RequestFailed
from ingestd.ingest.ledger import Ledger
from ingestd.ingest.monitoring import events
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.pipeline import Pipeline
from ingestd.ingest.plan import Planner, first_position
from ingestd.ingest.recovery import Recovery
from ingestd.ingest.requests import Requests
from ingestd.ingest.services import Clients, Handles, Services
from ingestd.ingest.stage.jobs import StageJobs
from ingestd.ingest.stage.task import TransactionTooLarge
from ingestd.ingest.table.evolution import ColumnsNeeded, plan_columns
from ingestd.ingest.table.target import partitioning_of
from ingestd.ingest.workers import Worker
from ingestd.kafka.hidden import Hidden, find_hidden
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.kafka.watch import View
from ingestd.schema import Column
from ingestd.spark.errors import JobFailed, JobTimeout, WorkerLost

T = TypeVar("T")

# The mapping stops after this many stages in a row have lost a worker or timed out.
_STAGE_ATTEMPTS = 5
# How long a daemon waits after it has released the lease, so that a standby can acquire it. Standbys check the lease
# once a second, and a busy metastore takes its time for each of the calls.
_ASIDE_SECONDS = 10.0
# How long a table may be missing. Two RENAMEs that swap tables are not atomic: the name does not exist in between.
_SWAP_SECONDS = 10.0
# How often a paused mapping polls Kafka.
_PAUSED_SECONDS = 0.5
_OUT_OF_MEMORY = (
    "the usual cause is the kernel's OOM killer (see dmesg): give the machine or container more memory, or lower "
    "commit.bytes, commit.rows or the cores of spark.master; on a cluster, raise spark.executor.pyspark.memory or "
    "spark.executor.memoryOverhead"
)


class MappingLoop:
    """Runs one mapping. After `run`, call `close` or `hand_over`.

    With `drain`, the loop ends once it has committed all records that Kafka had after the first recovery, or if the
    mapping is paused.
    """

    def __init__(
        self, clients: Clients, options: MappingOptions, handles: Handles, worker: Worker, *, drain: bool
    ) -> None:
        self.options = options
        self._jobs = StageJobs(clients.engine, options, clients.warehouse.storages)
        self._reporter = handles.reporter
        self._stop = handles.signals.stop
        self._worker = worker
        self._services = Services.of(clients.warehouse, clients.kafka, options, handles)
        self._planner = Planner(options, self._services.pace, clients.kafka.watch(options.kafka), self._worker)
        self._requests = Requests(handles.control, self._services.broker)
        self._recovery = Recovery(self._services)
        self._drain = drain
        self._until: Offsets | None = None
        self._left: Mapping[TopicPartition, Hidden] = {}
        self._backoff = retry.Backoff()
        self._patience = retry.Patience(options.refusals.retries, options.refusals.period)
        self._failed_stages = 0
        self._has_warned = False
        self._has_recovered = False
        # The time limit for a missing table; None while the table exists.
        self._missing_until: Deadline | None = None

    async def run(self) -> None:
        """Run until stopped or caught up. Raises the first IngestdError that is not retriable."""
        try:
            await self._retried(self._attempt, self._backoff)
        finally:
            self._requests.put_back()

    async def close(self) -> None:
        """Abort open transactions, release the lease, and check the row counts one last time."""
        await self._worker.commit(self._close)

    async def hand_over(self) -> None:
        """Leave the lease, and transactions that are still open, to another main loop, which begins with a recovery."""
        await self._worker.call(self._leave)

    @property
    def compaction(self) -> Collection[TableWatch]:
        """The watches of the tables, which are active while this daemon runs the mapping."""
        return self._services.compaction.values()

    def cancel(self) -> None:
        """Cancel the running stages, which then fail with JobCancelled. Returns immediately."""
        self._jobs.cancel()

    async def _retried(self, function: Callable[[], Awaitable[T]], backoff: retry.Backoff | None = None) -> T:
        """Call `function` until it succeeds, and wait after each retriable error.

        All refusals count until the next commit, whichever function they interrupt.
        """

        async def sleep(seconds: float) -> None:
            await self._worker.wait(seconds, self._stop.is_set)

        return await retry.call(
            function,
            stop=self._stop,
            sleep=sleep,
            on_wait=self._reporter.waiting,
            backoff=backoff,
            patience=self._patience,
        )

    async def _attempt(self) -> None:
        """Become the owner, recover the mapping, then work until the mapping ends or fails."""
        # This retry has a backoff of its own: a long outage must not delay the retry of a later failure.
        ledger = await self._retried(self._own_and_recover)
        if ledger is None:
            return
        await self._worker.call(self._warn_about, ledger.table)
        try:
            with self._tolerating_a_swap(), self._watching_tables(), self._planner.watching():
                if self._drain and self._until is None:
                    self._until = await self._worker.call(self._find_goal)
                await self._work(ledger)
        except TransactionTooLarge as error:
            self._planner.learn_size(error.records, error.bytes)
            raise
        except (WorkerLost, JobTimeout) as error:
            await self._count_failed_stage(error)
            raise

    @contextmanager
    def _watching_tables(self) -> Iterator[None]:
        with ExitStack() as active:
            for watch in self.compaction:
                active.enter_context(watch.active())
            yield

    async def _own_and_recover(self) -> Ledger | None:
        """Become the owner, recover, and return a ledger that starts at the committed position.

        Returns None when stopped as a standby.
        """
        if not await self._worker.call(self._services.ownership.confirm):
            await self._worker.call(self._recovery.release)
            if not await self._acquire():
                return None
            self._requests.accept()
        return await self._worker.commit(self._recover)

    async def _acquire(self) -> bool:
        """Wait until this daemon owns the mapping. Return False if the mapping is stopped first."""
        ownership = self._services.ownership
        await self._worker.call(ownership.begin)
        while not self._stop.is_set():
            seconds = await self._worker.call(ownership.try_acquire, self._on_standby)
            if seconds is None:
                return True
            await self._worker.wait(seconds, self._stop.is_set)
        return False

    def _find_goal(self) -> Offsets:
        """Return the last stable offsets, where a drain ends, and note the records behind open Kafka transactions."""
        goal = self._planner.ends()
        hidden_records = find_hidden(self._services.broker, goal)
        self._left = {partition: hidden for partition, hidden in hidden_records.items() if hidden.count}
        return goal

    def _recover(self) -> Ledger:
        """Recover the mapping, which this daemon owns."""
        ownership = self._services.ownership
        # A daemon without an engine must leave the mapping to a standby.
        self._jobs.check()
        self._reporter.monitor.entered("recovering", owner=ownership.agent)
        with self._tolerating_a_swap():
            checkpoint = self._recovery.run()
            ledger = Ledger(self._services, checkpoint, self._on_commit)
            # Before the transactions of this recovery, which replace the stored state.
            self._reporter.recovered(ledger.state, checkpoint.aborted)
            if checkpoint.state is None:
                if self._has_recovered:  # a mapping that runs must not start from the beginning
                    raise state_removed(self.options.control)
                ledger.store_start(first_position(self._services.broker, self.options))
            ledger.store_letters()
        self._has_recovered, self._missing_until = True, None
        self._reporter.owner(ledger.state, checkpoint.aborted, is_takeover=ownership.is_takeover)
        ownership.is_takeover = False
        return ledger

    def _on_standby(self, claim: Claim) -> None:
        """Report the owner, and refuse requests: only the owner can carry them out."""
        self._reporter.standby(claim)
        self._requests.refuse(
            RequestFailed(
                f"another daemon owns the mapping: {claim.agent}",
                where=f"mapping {self.options.name}",
                hint="check that the request was not carried out before, then send it to that daemon",
            )
        )

    async def _work(self, ledger: Ledger) -> None:
        """Run transactions, and carry out requests between them, until the mapping is stopped or has caught up.

        Requests that wait when the mapping is stopped are carried out, because their clients may have left. Only a
        flush is not.
        """
        while True:
            await self._worker.commit(self._requests.carry_out, ledger, self._ends)
            if self._stop.is_set():
                return
            if ledger.state.paused:
                self._reporter.paused(ledger.state)
                if self._drain:
                    return
                await self._stay_paused(ledger)
                continue
            goal = self._requests.goal
            pipeline = Pipeline(self._services, ledger, self._planner, self._jobs, self._worker)
            try:
                is_done = await pipeline.run(goal or self._until, self._is_interrupted)
            except ColumnsNeeded as error:
                await self._worker.commit(self._alter_table, error, ledger.state.columns)
                raise
            except PartitionsRefused as error:
                partitioning = partitioning_of(ledger.table, self.options)
                learned = self._services.refused.learn(error, partitioning)
                if learned is error:
                    raise
                raise learned from error
            if is_done and goal is None:
                self._reporter.left_hidden(self._left)
                return
            if is_done:
                self._requests.reached()

    def _alter_table(self, needed: ColumnsNeeded, written: Mapping[str, str]) -> None:
        """Give the table the columns that the records need, unless another daemon has done so meanwhile.

        Raises InvalidTable if the table has lost columns that the mapping has written, or would stay as it is for these
        records (`plan_columns`).
        """
        options, services = self.options, self._services

        def plan(table: Table) -> Sequence[Column]:
            return plan_columns(options, table, needed, written)

        lease = TableName(options.control_database, f"alter_{options.table.database}_{options.table.table}")
        wait = Wait(Deadline.after(LOCK_SECONDS), services.signals.abort)
        agent = services.ownership.agent
        statements = change_columns(services.metastore, options.table, plan, lease=lease, agent=agent, wait=wait)
        if statements:
            self._reporter.altered(statements)

    def _ends(self) -> Mapping[TopicPartition, int]:
        """Return the last stable offsets, without a request to Kafka if the mapping is stopped."""
        return self._planner.latest.ends if self._stop.is_set() else self._planner.ends()

    async def _stay_paused(self, ledger: Ledger) -> None:
        """Keep the lease and observe the ends of the partitions, until a request arrives or the mapping is stopped.

        An outage of Kafka is no problem meanwhile. The time of the last poll shows it.
        """
        known = View()
        while not self._is_interrupted():
            self._services.ownership.check()
            self._reporter.monitor.progressed()
            if self._planner.latest.at > known.at:
                known = self._planner.latest
                self._reporter.monitor.polled(ledger.state.position.offsets, known.ends)
            await self._worker.wait(_PAUSED_SECONDS, self._is_interrupted)

    def _is_interrupted(self) -> bool:
        return self._stop.is_set() or self._requests.are_waiting

    def _on_commit(self) -> None:
        """Reset the backoff, the patience and the count of failed stages."""
        self._backoff.reset()
        self._patience.reset()
        self._failed_stages = 0

    @contextmanager
    def _tolerating_a_swap(self) -> Iterator[None]:
        """Turn TableMissing into a retriable error for a few seconds, if the table existed before."""
        try:
            yield
        except TableMissing as error:
            self._missing_until = self._missing_until or Deadline.after(_SWAP_SECONDS if self._has_recovered else 0.0)
            if self._missing_until.passed:
                raise
            raise TableChanged(error.what, where=error.where, hint=error.hint) from error

    async def _count_failed_stage(self, error: JobFailed) -> None:
        """Count a stage that lost a worker or timed out. Raises JobFailed after too many of them in a row.

        After a timeout, release the lease for a few seconds so that a standby can take over. The cause may be a problem
        of this machine.
        """
        self._failed_stages += 1
        if self._failed_stages >= _STAGE_ATTEMPTS:
            raise JobFailed(
                f"{error.what}, {self._failed_stages} times in a row",
                where=error.where,
                hint=error.hint or _OUT_OF_MEMORY,
            ) from error
        if isinstance(error, JobTimeout):
            await self._worker.call(self._step_aside)
            await self._worker.wait(_ASIDE_SECONDS, self._stop.is_set)

    def _step_aside(self) -> None:
        self._reporter.aborted(self._services.ownership.abort_leftovers())
        self._services.ownership.release()

    def _warn_about(self, table: Table) -> None:
        """Log warnings about the table, once per process."""
        if self._has_warned:
            return
        if table.warnings:
            events.table_properties(self.options.name, str(table.name), table.warnings)
        odd = partitions.odd_partitions(self._services.metastore, table)
        if odd:
            events.odd_partitions(self.options.name, str(table.name), len(odd), partitions.describe_odd(odd))
        self._has_warned = True

    def _leave(self) -> None:
        self._jobs.release()
        self._recovery.release()

    def _close(self) -> None:
        self._jobs.release()
        self._services.close()
        self._recovery.close()
