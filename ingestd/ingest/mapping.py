"""The main loop of one mapping: become its owner, recover, and run the pipeline. After a failure, start over.

Invariant: after every retriable error, a recovery precedes the next transaction (`recovery.py`, `pipeline.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ingestd import retry
from ingestd.clock import Deadline, pause
from ingestd.compaction.pacing import Pace
from ingestd.compaction.watch import TableWatch
from ingestd.errors import IngestdError, TableChanged, TableMissing
from ingestd.hive import partitions
from ingestd.hive.tables import Table
from ingestd.ingest import events
from ingestd.ingest.clients import Clients
from ingestd.ingest.compaction_report import CompactionReport
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership import Ownership
from ingestd.ingest.pipeline import Pipeline
from ingestd.ingest.plan import Planner
from ingestd.ingest.recovery import Recovery
from ingestd.ingest.reporter import Reporter
from ingestd.ingest.services import Services
from ingestd.ingest.signals import Signals
from ingestd.ingest.staging_area import StagingArea
from ingestd.ingest.steps import Observe, ignore
from ingestd.kafka.admin import Broker, OffsetMirror
from ingestd.kafka.ranges import Offsets
from ingestd.spark.engine import JobGroup
from ingestd.spark.errors import JobFailed, JobTimeout, WorkerLost

# The mapping stops after this many stages in a row have lost a worker or timed out.
_STAGE_ATTEMPTS = 5
# How long a daemon waits after it has released the lease, so that a standby can acquire it. Standbys check the lease
# once a second.
_ASIDE_SECONDS = 3.0
# How long a table may be missing. Two RENAMEs that swap tables are not atomic: the name does not exist in between.
_SWAP_SECONDS = 10.0
_OUT_OF_MEMORY = (
    "the usual cause is the kernel's OOM killer (see dmesg): give the machine or container more memory, or lower "
    "commit.bytes, commit.rows or the cores of spark.master; on a cluster, raise spark.executor.pyspark.memory or "
    "spark.executor.memoryOverhead"
)


class MappingLoop:
    """Runs one mapping.

    With `drain`, the loop ends once it has committed all records that Kafka had after the first recovery. `observe` is
    called with the name of each step that a transaction completes (`steps.py`).
    """

    def __init__(
        self,
        clients: Clients,
        options: MappingOptions,
        signals: Signals,
        *,
        drain: bool,
        observe: Observe = ignore,
    ) -> None:
        self.options = options
        metastore, engine = clients.metastore, clients.engine
        self.reporter = reporter = Reporter(options)
        on_lost = partial(events.lease_lost, options.name)
        ownership = Ownership(metastore, options, reporter.monitor, clients.liveness, on_lost=on_lost)
        pace = Pace(options.pacing, options.commit.interval, reporter.paced)
        report = CompactionReport(options.name, reporter.monitor)
        watch = TableWatch(options.table, options.compaction, pace, report, ownership.agent)
        planner = Planner(Broker(options.kafka), options, pace)
        staging = StagingArea(metastore, options.name)
        jobs = JobGroup(options.name)
        observe = reporter.observing(observe)
        self._services = Services(
            options, metastore, engine, jobs, signals, observe, reporter, ownership, planner, staging, pace, watch
        )
        self._recovery = Recovery(self._services)
        self._mirror = OffsetMirror(options.kafka, options.consumer_group)
        self._drain = drain
        self._until: Offsets | None = None
        self._backoff = retry.Backoff()
        self._failed_stages = 0
        self._has_warned = False
        self._has_recovered = False
        # The time limit for a missing table; None while the table exists.
        self._missing_until: Deadline | None = None

    def run(self) -> None:
        """Run until stopped or caught up. Raises the first IngestdError that is not retriable."""
        stop = self._services.signals.stop
        try:
            retry.call(self._attempt, stop=stop, on_wait=self.reporter.waiting, backoff=self._backoff)
        finally:
            self._close()

    @property
    def compaction(self) -> TableWatch:
        """The watch of the table, which is active while this daemon runs the mapping."""
        return self._services.compaction

    def cancel(self) -> None:
        """Cancel the running stages, which then fail with JobFailed. Returns immediately."""
        self._services.engine.cancel(self._services.jobs)

    def _attempt(self) -> None:
        """Become the owner, recover the mapping, then run its pipeline until it ends or fails."""
        # This retry has a backoff of its own: a long outage must not delay the retry of a later failure.
        pipeline = retry.call(self._own_and_recover, stop=self._services.signals.stop, on_wait=self.reporter.waiting)
        if pipeline is None:
            return
        self._warn_about(pipeline.table)
        if self._drain and self._until is None:
            self._until = self._services.planner.ends()
        try:
            with self._tolerating_a_swap(), self._services.compaction.active():
                pipeline.run(self._until)
        except (WorkerLost, JobTimeout) as error:
            self._count_failed_stage(error)
            raise

    def _own_and_recover(self) -> Pipeline | None:
        """Become the owner, recover, and return a pipeline that starts at the committed position.

        Returns None when stopped as a standby.
        """
        ownership = self._services.ownership
        if not ownership.confirm():
            self._recovery.release()
            if not ownership.acquire(self._services.signals.stop, self.reporter.standby):
                return None
        # A daemon without an engine must leave the mapping to a standby.
        self._services.engine.check()
        self.reporter.monitor.entered("recovering", owner=ownership.agent)
        with self._tolerating_a_swap():
            checkpoint = self._recovery.run()
            pipeline = Pipeline(self._services, self._mirror, checkpoint, self._on_commit)
            if checkpoint.state is None:
                pipeline.store_start()
        self._has_recovered, self._missing_until = True, None
        self.reporter.owner(pipeline.state, checkpoint.aborted, is_takeover=ownership.is_takeover)
        ownership.is_takeover = False
        return pipeline

    def _on_commit(self) -> None:
        """Reset the backoff and the count of failed stages."""
        self._backoff.reset()
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

    def _count_failed_stage(self, error: JobFailed) -> None:
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
            self.reporter.aborted(self._services.ownership.abort_leftovers())
            self._services.ownership.release()
            pause(_ASIDE_SECONDS, self._services.signals.stop)

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

    def _close(self) -> None:
        """Abort open transactions, release the lease and close the Kafka client.

        If the metastore is unavailable, the transactions and the lease remain until they time out.
        """
        ownership = self._services.ownership
        try:
            try:
                if ownership.confirm():
                    self.reporter.aborted(ownership.abort_leftovers())
            finally:
                ownership.release()
        except IngestdError as error:
            events.left_open(self.options.name, error)
        self._recovery.close()
        self._mirror.close()
