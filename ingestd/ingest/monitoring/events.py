"""The log events of mappings. Each function logs the event of the same name.

Invariant: event names and fields are an interface that log processors depend on. `docs/events.md` documents all
of them, and a test compares it with this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import structlog

from ingestd.compaction.pacing import Pacing
from ingestd.compaction.policy import Stall
from ingestd.errors import IngestdError
from ingestd.hive.compactions import Compaction
from ingestd.hive.leases import Claim
from ingestd.hive.tables import TableName
from ingestd.ingest.commit import CommitResult, PendingTransaction, Target
from ingestd.ingest.letters.rejects import Rejects
from ingestd.kafka.hidden import Hidden
from ingestd.kafka.ranges import TopicPartition

_log: Any = structlog.get_logger("ingestd")
# The maximum number of ranges, partitions or directories that one event lists.
_MAX_NAMES = 16


def committed(mapping: str, result: CommitResult) -> None:
    """Log a committed transaction. If it has many offset ranges, `committed_ranges` lists them."""
    transaction = result.transaction
    ranges = [str(r) for r in transaction.plan.ranges]
    optional: dict[str, Any] = {}
    if transaction.skipped:
        optional["skipped"] = transaction.skipped
    if transaction.decoded != transaction.rows:
        optional["decoded"] = transaction.decoded
    if transaction.rejects.count:
        optional["rejects"] = transaction.rejects.count
    if throttled := round(transaction.throttled_seconds, 1):
        optional["throttled"] = throttled
    if len(ranges) <= _MAX_NAMES:
        optional["ranges"] = ranges
    else:
        committed_ranges(mapping, transaction.txn.id, ranges)
    _log.info(
        "committed",
        mapping=mapping,
        txn=transaction.txn.id,
        write_id=transaction.write_id,
        rows=transaction.rows,
        records=transaction.records,
        bytes=transaction.bytes,
        files=len(transaction.files),
        seconds=round(max(1, sum(transaction.watch.steps.values())) / 1000, 2),
        ms=dict(transaction.watch.steps),
        partitions=len({file.partition for file in transaction.files}),
        range_count=len(ranges),
        offsets=sum(r.length for r in transaction.plan.ranges),
        **optional,
    )


def committed_ranges(mapping: str, txn: int, ranges: list[str]) -> None:
    """Log the offset ranges of a commit that has too many of them for the event `committed`."""
    _log.debug("committed_ranges", mapping=mapping, txn=txn, ranges=ranges)


def rejects_skipped(mapping: str, transaction: PendingTransaction) -> None:
    """Log that a committed transaction has skipped rejects, with the first of them. Their records are not logged."""
    count, first = transaction.rejects.count, _described(transaction.rejects)
    txn, records = transaction.txn.id, transaction.records
    _log.warning("rejects_skipped", mapping=mapping, txn=txn, rejects=count, records=records, first=first)


def dead_letters(mapping: str, transaction: PendingTransaction) -> None:
    """Log that rejects of a committed transaction became dead letters, with the first of them."""
    count, first = transaction.rejects.count, _described(transaction.rejects)
    txn, records = transaction.txn.id, transaction.records
    _log.warning("dead_letters", mapping=mapping, txn=txn, rejects=count, records=records, first=first)


def _described(rejects: Rejects) -> list[dict[str, Any]]:
    return [
        {
            "topic": reject.partition.topic,
            "partition": reject.partition.partition,
            "offset": reject.offset,
            "column": reject.column,
            "reason": reject.reason,
        }
        for reject in rejects.first
    ]


def commit_hidden(mapping: str, transaction: PendingTransaction, target: Target, hidden: Mapping[str, str]) -> None:
    """Log that a concurrent TRUNCATE of a table hides the rows of a commit whose offsets are stored.

    `hidden` is that of the table in `CommitResult.hidden`.
    """
    _log.error(
        "commit_hidden",
        mapping=mapping,
        table=str(target.table.name),
        txn=transaction.txn.id,
        write_id=target.write_id,
        hidden_by=dict(hidden),
        ranges=[str(r) for r in transaction.plan.ranges],
        hint="if the rows are needed, rewind the mapping to these offsets; later records are then read again, too",
    )


def staging_removed(mapping: str, directories: list[str]) -> None:
    """Log that staging directories of ended transactions were removed."""
    _log.info("staging_removed", mapping=mapping, directories=directories[:_MAX_NAMES], count=len(directories))


def staging_left(mapping: str, error: IngestdError) -> None:
    """Log that staging directories of ended transactions could not be removed. The next sweep retries."""
    _log.warning("staging_left", mapping=mapping, error=str(error))


def table_created(mapping: str, table: str, statement: str) -> None:
    """Log that the mapping has created its table, or that of its dead letters, with the statement that describes it."""
    _log.info("table_created", mapping=mapping, table=table, statement=statement)


def table_altered(mapping: str, statements: Sequence[str]) -> None:
    """Log that the mapping has altered its table for its records, with the statements that describe the change."""
    _log.info("table_altered", mapping=mapping, statements=list(statements))


def owner(mapping: str, next_offsets_sum: int, aborted: list[int]) -> None:
    """Log that this daemon owns the mapping and has recovered it.

    `aborted` contains the ids of the open transactions that the recovery aborted.
    """
    _log.info("owner", mapping=mapping, next_offsets_sum=next_offsets_sum, aborted_transactions=aborted)


def changed(mapping: str, txn: int, change: str, by: str) -> None:
    """Log that the change of an operator was committed."""
    _log.info("changed", mapping=mapping, txn=txn, change=change, by=by)


def paused(mapping: str, by: str) -> None:
    """Log that the mapping is paused: it ingests no record until an operator resumes it."""
    _log.info("paused", mapping=mapping, by=by)


def odd_partitions(mapping: str, table: str, count: int, text: str) -> None:
    """Log that the table has partitions whose values are not in normal form."""
    _log.warning("odd_partitions", mapping=mapping, table=table, count=count, partitions=text)


def table_properties(mapping: str, table: str, texts: tuple[str, ...]) -> None:
    """Log that the table has ORC properties that the writers do not apply."""
    _log.warning("table_properties", mapping=mapping, table=table, warnings=list(texts))


def standby(mapping: str, claim: Claim) -> None:
    """Log that another daemon owns the mapping or has requested its lease earlier."""
    state = "held" if claim.is_held else "waiting"
    _log.info("standby", mapping=mapping, owner=claim.agent, lock=claim.lock_id, lock_state=state)


def lease_lost(mapping: str, error: Exception) -> None:
    """Log that the heartbeats of the lease ended with an error, so that the daemon gives up the mapping."""
    _log.warning("lease_lost", mapping=mapping, reason=type(error).__name__, error=str(error))


def waiting(mapping: str, error: IngestdError, seconds: float) -> None:
    """Log that a step failed and will be retried after `seconds`."""
    optional: dict[str, Any] = {}
    if (txn := _transaction(error)) is not None:
        optional["txn"] = txn
    reason, again_in = type(error).__name__, round(seconds, 1)
    _log.warning("waiting", mapping=mapping, reason=reason, error=str(error), again_in=again_in, **optional)


def left_open(mapping: str, transactions: list[int], error: IngestdError) -> None:
    """Log that the metastore was unavailable at shutdown, so that a lock or transactions remain until they time out."""
    _log.warning("left_open", mapping=mapping, transactions=transactions, error=str(error))


def throttled(mapping: str, txn: int, seconds: float) -> None:
    """Log that a client quota of Kafka delays the records, or (with 0 seconds) that it does so no longer."""
    _log.warning("throttled", mapping=mapping, txn=txn, seconds=round(seconds, 1))


def offsets_lost(mapping: str, txn: int, gap: str) -> None:
    """Log that offsets were lost and that, as `on_offset_loss` allows, the position after the gap was committed."""
    _log.error("offsets_lost", mapping=mapping, txn=txn, gap=gap)


def row_counts_repaired(mapping: str, table: TableName, partitions: Sequence[str]) -> None:
    """Log that wrong row counts of a table were replaced by counts from the table's files."""
    names, count = list(partitions[:_MAX_NAMES]), len(partitions)
    _log.info("row_counts_repaired", mapping=mapping, table=str(table), partitions=names, count=count)


def row_counts_delayed(mapping: str, table: TableName, error: IngestdError) -> None:
    """Log that row counts cannot be checked or repaired now. Meanwhile, commits continue and `count(*)` reads rows."""
    reason = type(error).__name__
    _log.warning("row_counts_delayed", mapping=mapping, table=str(table), reason=reason, error=str(error))


def mirror_failed(mapping: str, txn: int, error: IngestdError) -> None:
    """Log that the consumer group's offsets could not be committed to Kafka. The next commit updates them."""
    _log.warning("mirror_failed", mapping=mapping, txn=txn, error=str(error))


def lag_unknown(error: IngestdError) -> None:
    """Log that timestamps of uncommitted records, or hidden records, could not be read: the metrics are not exact."""
    _log.debug("lag_unknown", error=str(error))


def left_hidden(mapping: str, hidden: Mapping[TopicPartition, Hidden]) -> None:
    """Log that the mapping ends with records behind open Kafka transactions, which it could not read."""
    count = sum(behind.count for behind in hidden.values())
    from_offset = {str(partition): behind.first for partition, behind in islice(sorted(hidden.items()), _MAX_NAMES)}
    _log.warning(
        "left_hidden",
        mapping=mapping,
        offsets=count,
        partition_count=len(hidden),
        from_offset=from_offset,
        hint="these offsets are behind open transactions of producers; run again when they have ended",
    )


def engine_delayed(error: IngestdError) -> None:
    """Log that Spark has not started yet, and what it waits for."""
    _log.warning("engine_delayed", reason=type(error).__name__, error=str(error))


def engine_lost(error: IngestdError) -> None:
    """Log that the Spark driver's JVM did not start, ended or does not answer, so that all mappings end."""
    _log.error("engine_lost", reason=type(error).__name__, error=str(error))


def reloaded(added: list[str], changed: list[str], removed: list[str]) -> None:
    """Log that a new configuration was applied, with the names of the mappings that it adds, changes and removes."""
    _log.info("reloaded", added=added, changed=changed, removed=removed)


def reload_rejected(error: IngestdError) -> None:
    """Log that a new configuration was rejected. The daemon continues with the previous one."""
    _log.error("reload_rejected", error=str(error))


def request_failed(mapping: str, action: str, by: str, error: BaseException) -> None:
    """Log that a request of an operator, which was accepted, was not carried out."""
    _log.warning("request_failed", mapping=mapping, change=action, by=by, error=str(error))


def left_running(mappings: str, error: IngestdError) -> None:
    """Log that threads of these mappings are still running after an abort. The process does not wait for them."""
    _log.error("left_running", mapping=mappings, error=str(error))


def pacing(mapping: str, pace: Pacing) -> None:
    """Log that commits became less frequent, or as frequent as configured again (then `reason` is empty)."""
    _log.warning(
        "pacing",
        mapping=mapping,
        reason=pace.reason,
        interval=round(pace.interval, 1),
        deltas=pace.deltas,
        latency=round(pace.latency, 2),
    )


def compaction_requirements(mapping: str, faults: Sequence[str]) -> None:
    """Log which requirements of compaction the metastore or the table violates; none if they are met again."""
    _log.warning("compaction_requirements", mapping=mapping, warnings=list(faults))


def compaction_requested(mapping: str, compaction: Compaction, deltas: int) -> None:
    """Log that a compaction was requested."""
    _log.info(
        "compaction_requested",
        mapping=mapping,
        id=compaction.id,
        table=str(compaction.table),
        partition=compaction.partition,
        kind=compaction.kind,
        deltas=deltas,
    )


def compaction_finished(mapping: str, compaction: Compaction) -> None:
    """Log that a compaction of a table of the mapping has written its result, for any client."""
    _log.info(
        "compaction_finished",
        mapping=mapping,
        id=compaction.id,
        table=str(compaction.table),
        partition=compaction.partition,
        kind=compaction.kind,
        seconds=round(max(0.0, compaction.ended - compaction.enqueued), 1),
        initiator=compaction.initiator,
    )


def compaction_failed(mapping: str, compaction: Compaction) -> None:
    """Log that a compaction of a table of the mapping has ended without a result, for any client."""
    _log.error(
        "compaction_failed",
        mapping=mapping,
        id=compaction.id,
        table=str(compaction.table),
        partition=compaction.partition,
        kind=compaction.kind,
        state=compaction.state,
        error=compaction.error,
        initiator=compaction.initiator,
    )


def compaction_stalled(mapping: str, stall: Stall) -> None:
    """Log that compactions of the mapping's table wait for a service of Hive that makes no progress."""
    _log.error(
        "compaction_stalled",
        mapping=mapping,
        service=stall.service,
        count=stall.count,
        seconds=round(stall.seconds),
        hint=stall.hint,
    )


def compaction_delayed(mapping: str, error: Exception) -> None:
    """Log that the table cannot be surveyed or the queue cannot be read. The next cycle retries."""
    _log.warning("compaction_delayed", mapping=mapping, reason=type(error).__name__, error=str(error))


def stopped(mapping: str) -> None:
    """Log that the mapping was stopped or has caught up."""
    _log.info("stopped", mapping=mapping)


def failed(mapping: str, error: IngestdError) -> None:
    """Log that an error ended the mapping."""
    optional: dict[str, Any] = {}
    if (txn := _transaction(error)) is not None:
        optional["txn"] = txn
    _log.error("failed", mapping=mapping, reason=type(error).__name__, error=str(error), **optional)


def _transaction(error: BaseException | None) -> int | None:
    """Return the id of the transaction that failed with an error or its cause, if any."""
    while error is not None:
        if isinstance(error, IngestdError) and error.txn is not None:
            return error.txn
        error = error.__cause__
    return None


def http_listening(url: str, changes: str) -> None:
    """Log where the HTTP server listens, and how it accepts requests that change the daemon."""
    _log.info("http_listening", url=url, changes=changes)


def http_unavailable(address: str, error: str, hint: str) -> None:
    """Log that there is no HTTP server, because another process uses the default address. The mappings run."""
    _log.warning("http_unavailable", address=address, error=error, hint=hint)


def http_failed(error: str) -> None:
    """Log an error of the HTTP server. The mappings continue."""
    _log.error("http_failed", error=error)
