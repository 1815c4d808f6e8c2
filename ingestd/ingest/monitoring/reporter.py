"""Reports what one mapping does: it logs the events of the mapping and notes them in its monitor.

Invariant: the log and the monitor agree. Every transaction that a mapping opens is reported once more, as committed or
as aborted, even if the answer to its commit was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ingestd.clock import now
from ingestd.compaction.pacing import Pacing
from ingestd.compaction.policy import Stall
from ingestd.compaction.watch import CompactionStatus
from ingestd.errors import IngestdError, RecordError
from ingestd.hive.compactions import Compaction
from ingestd.hive.leases import Claim
from ingestd.hive.tables import TableName
from ingestd.ingest.commit import CommitResult, PendingTransaction
from ingestd.ingest.monitoring import events
from ingestd.ingest.monitoring.monitor import MAX_NAMES, CommitRecord, Monitor
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import Observe
from ingestd.kafka.hidden import Hidden
from ingestd.kafka.ranges import TopicPartition


class Reporter:
    """Reports on one mapping. Safe for use from any thread; implements `publish.row_count_repair.Report`."""

    def __init__(self, options: MappingOptions) -> None:
        self.monitor = Monitor(options)
        self._name = options.name
        # By transaction id: the transactions that are opened and not yet reported as committed or aborted.
        self._open: dict[int, PendingTransaction] = {}
        self._pace_reason = ""
        self._is_throttled = False

    def observing(self, observe: Observe) -> Observe:
        """Return an observer that notes the progress of a step and then calls `observe`."""

        def progress(step: str) -> None:
            self.monitor.progressed()
            observe(step)

        return progress

    # --- ownership

    def standby(self, claim: Claim) -> None:
        """Report that another daemon owns the mapping or has requested its lease earlier."""
        events.standby(self._name, claim)
        self.monitor.entered("standby", owner=claim.agent)

    def recovered(self, state: MappingState, aborted: list[int]) -> None:
        """Report the ends of the transactions that were open before a recovery, which has read the stored `state`.

        `aborted` contains those that it aborted. A transaction whose commit was not answered has committed if the
        stored state is its own.
        """
        adopted = self._open.pop(state.txn, None)
        if adopted is not None:
            self.committed(CommitResult(adopted, state))
        self.aborted({*aborted, *self._open})

    def owner(self, state: MappingState, aborted: list[int], *, is_takeover: bool) -> None:
        """Report that this daemon owns the mapping and has recovered it. `aborted` is that of `recovered`."""
        self.monitor.counted("takeovers", int(is_takeover))
        self.monitor.recovered(state.position.offsets)
        events.owner(self._name, sum(state.position.offsets.values()), aborted)

    def paused(self, state: MappingState) -> None:
        """Report that the mapping is paused. `state` says who paused it."""
        self.monitor.entered("paused")
        events.paused(self._name, state.changed_by)

    # --- transactions

    def opened(self, pending: PendingTransaction) -> None:
        """Note that a transaction was opened."""
        self._open[pending.txn.id] = pending
        self.monitor.opened(len(self._open))

    def staged(self, pending: PendingTransaction) -> None:
        """Note what an open transaction will commit."""
        self._open[pending.txn.id] = pending
        self.monitor.learned(pending.firsts)
        if pending.plan.ranges:
            self._throttled(pending.txn.id, pending.throttled_seconds)

    def _throttled(self, txn: int, seconds: float) -> None:
        """Note how long a quota delayed a transaction, and log when this begins or ends."""
        self.monitor.counted("throttled_seconds", seconds)
        if (seconds > 0) != self._is_throttled:
            self._is_throttled = seconds > 0
            events.throttled(self._name, txn, seconds)

    def committed(self, result: CommitResult) -> None:
        """Report a committed transaction, and the rows of it that a concurrent TRUNCATE hides."""
        self._open.pop(result.transaction.txn.id, None)
        self.monitor.opened(len(self._open))
        self.monitor.committed(_commit_record(result), result.state.position.offsets)
        events.committed(self._name, result)
        self._rejects(result.transaction)
        for target in result.transaction.targets:
            if hidden := result.hidden.get(target.table.name):
                events.commit_hidden(self._name, result.transaction, target, hidden)
        for gap in result.transaction.plan.gaps:
            events.offsets_lost(self._name, result.transaction.txn.id, gap)

    def _rejects(self, transaction: PendingTransaction) -> None:
        if transaction.rejects.count and transaction.on_error == "dead_letter":
            events.dead_letters(self._name, transaction)
        elif transaction.rejects.count:
            events.rejects_skipped(self._name, transaction)

    def aborted(self, txn_ids: Sequence[int] | set[int]) -> None:
        """Note that transactions of the mapping were aborted, which this daemon or a previous owner opened."""
        for txn_id in txn_ids:
            self._open.pop(txn_id, None)
        self.monitor.opened(len(self._open))
        self.monitor.counted("aborts", len(txn_ids))

    def paced(self, pacing: Pacing) -> None:
        """Note the pace of commits, and log when it begins or ceases to differ from the configured one."""
        self.monitor.paced(pacing)
        if pacing.reason != self._pace_reason:
            self._pace_reason = pacing.reason
            events.pacing(self._name, pacing)

    def altered(self, statements: Sequence[str]) -> None:
        """Report that the mapping has altered its table for its records."""
        self.monitor.counted("table_changes", len(statements))
        events.table_altered(self._name, statements)

    # --- row counts

    def repaired(self, table: TableName, names: Sequence[str]) -> None:
        """Report that wrong row counts of a table were replaced by counts from the table's files."""
        self.monitor.counted("row_count_repairs", len(names))
        events.row_counts_repaired(self._name, table, names)

    def delayed(self, table: TableName, error: IngestdError) -> None:
        """Report that row counts of a table cannot be checked or repaired now."""
        events.row_counts_delayed(self._name, table, error)

    # --- errors and the end

    def waiting(self, error: IngestdError, seconds: float) -> None:
        """Report that a step failed and will be retried after `seconds`."""
        self.monitor.failed(error, seconds)
        events.waiting(self._name, error, seconds)

    def left_open(self, error: IngestdError) -> None:
        """Report that the metastore was unavailable at shutdown, so that a lock or transactions remain."""
        events.left_open(self._name, sorted(self._open), error)

    def left_hidden(self, hidden: Mapping[TopicPartition, Hidden]) -> None:
        """Report that the mapping has caught up except for records behind open Kafka transactions, if there are any."""
        if hidden:
            events.left_hidden(self._name, hidden)

    def stopped(self) -> None:
        """Report that the mapping was stopped or has caught up."""
        self.monitor.entered("stopped")
        events.stopped(self._name)

    def failed(self, error: IngestdError) -> None:
        """Report that an error ended the mapping."""
        self.monitor.counted("rejects", int(isinstance(error, RecordError)))
        self.monitor.failed(error)
        events.failed(self._name, error)


class CompactionReport:
    """Reports the compactions of one table of a mapping; implements `compaction.watch.Report`.

    `on_status` is called with each status.
    """

    def __init__(self, mapping: str, monitor: Monitor, on_status: Callable[[CompactionStatus], None]) -> None:
        self._mapping = mapping
        self._on_status = on_status
        self._monitor = monitor

    def counted(self, status: CompactionStatus) -> None:
        """Note the state of the table."""
        self._on_status(status)

    def requirements(self, faults: Sequence[str]) -> None:
        """Report that requirements of compaction are violated."""
        events.compaction_requirements(self._mapping, faults)

    def requested(self, compaction: Compaction, deltas: int) -> None:
        """Report a request."""
        self._monitor.counted("compactions_requested")
        events.compaction_requested(self._mapping, compaction, deltas)

    def finished(self, compaction: Compaction) -> None:
        """Report a compaction that has written its result."""
        self._monitor.counted("compactions_finished")
        events.compaction_finished(self._mapping, compaction)

    def failed(self, compaction: Compaction) -> None:
        """Report a compaction without a result."""
        self._monitor.counted("compactions_failed")
        events.compaction_failed(self._mapping, compaction)

    def stalled(self, stall: Stall) -> None:
        """Report that compactions make no progress."""
        events.compaction_stalled(self._mapping, stall)

    def delayed(self, error: Exception) -> None:
        """Report that compaction cannot be watched now."""
        events.compaction_delayed(self._mapping, error)


def _commit_record(result: CommitResult) -> CommitRecord:
    transaction = result.transaction
    ranges = transaction.plan.ranges
    partitions = sorted({transaction.table.partition_name(f.partition) for f in transaction.files if f.partition})
    return CommitRecord(
        txn=transaction.txn.id,
        write_id=transaction.write_id,
        at=now(),
        rows=transaction.rows,
        records=transaction.records,
        skipped=transaction.skipped,
        bytes=transaction.bytes,
        files=len(transaction.files),
        ranges=tuple(str(r) for r in ranges[:MAX_NAMES]),
        range_count=len(ranges),
        offsets=sum(r.length for r in ranges),
        partitions=tuple(partitions[:MAX_NAMES]),
        partition_count=len(partitions),
        steps=dict(transaction.watch.steps),
        oldest=min((first.timestamp for first in transaction.firsts), default=None),
        rejects=transaction.rejects.count if transaction.on_error == "skip" else 0,
        dead_letters=transaction.rejects.count if transaction.on_error == "dead_letter" else 0,
    )
