"""The log events of mappings: one function for each event, named as the event.

Invariant: event names and fields are an interface that log processors depend on. `docs/operations.md` documents all
of them, and a test compares it with this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from ingestd.errors import IngestdError
from ingestd.hive.leases import Claim
from ingestd.ingest.commit import CommitResult

_log: Any = structlog.get_logger("ingestd")
# The longest list of ranges, partitions or directories in an event that every commit or every start logs.
_MAX_NAMES = 16


def committed(mapping: str, result: CommitResult) -> None:
    """A transaction was committed. If it has many ranges, `committed_ranges` lists them."""
    transaction = result.transaction
    ranges = [str(r) for r in transaction.plan.ranges]
    optional: dict[str, Any] = {}
    if transaction.skipped:
        optional["skipped"] = transaction.skipped
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
    """The offset ranges of a commit that has more of them than `committed` lists."""
    _log.debug("committed_ranges", mapping=mapping, txn=txn, ranges=ranges)


def commit_hidden(mapping: str, result: CommitResult) -> None:
    """A concurrent TRUNCATE hides the rows of a commit; its offsets are stored."""
    transaction = result.transaction
    _log.error(
        "commit_hidden",
        mapping=mapping,
        table=str(transaction.table.name),
        txn=transaction.txn.id,
        write_id=transaction.write_id,
        hidden_by=dict(result.hidden),
        ranges=[str(r) for r in transaction.plan.ranges],
        hint="if the TRUNCATE was not meant to remove these records, ingest the offset ranges with a new mapping",
    )


def staging_removed(mapping: str, directories: list[str]) -> None:
    """Staging directories of transactions that have ended were removed."""
    _log.info("staging_removed", mapping=mapping, directories=directories[:_MAX_NAMES], count=len(directories))


def staging_left(mapping: str, error: IngestdError) -> None:
    """Staging directories of transactions that have ended could not be removed; the next sweep retries."""
    _log.warning("staging_left", mapping=mapping, error=str(error))


def owner(mapping: str, next_offsets_sum: int, aborted: list[int]) -> None:
    """This daemon owns the mapping and has recovered it; `aborted` are the transactions that it found open."""
    _log.info("owner", mapping=mapping, next_offsets_sum=next_offsets_sum, aborted_transactions=aborted)


def odd_partitions(mapping: str, table: str, count: int, text: str) -> None:
    """The table has partitions whose values are not in normal form."""
    _log.warning("odd_partitions", mapping=mapping, table=table, count=count, partitions=text)


def table_properties(mapping: str, table: str, texts: tuple[str, ...]) -> None:
    """The table has ORC properties that the writers do not apply."""
    _log.warning("table_properties", mapping=mapping, table=table, warnings=list(texts))


def standby(mapping: str, claim: Claim) -> None:
    """Another daemon owns the mapping or has requested its lease earlier."""
    state = "held" if claim.is_held else "waiting"
    _log.info("standby", mapping=mapping, owner=claim.agent, lock=claim.lock_id, lock_state=state)


def lease_lost(mapping: str, error: Exception) -> None:
    """The heartbeats of the lease ended with an error; the daemon gives up the mapping."""
    _log.warning("lease_lost", mapping=mapping, reason=type(error).__name__, error=str(error))


def waiting(mapping: str, error: IngestdError, seconds: float) -> None:
    """A step failed and is retried after `seconds`."""
    _log.warning("waiting", mapping=mapping, reason=type(error).__name__, error=str(error), again_in=round(seconds, 1))


def left_open(mapping: str, error: IngestdError) -> None:
    """Shutdown while the metastore was unreachable: a lock or a transaction stays until it times out."""
    _log.warning("left_open", mapping=mapping, error=str(error))


def offsets_lost(mapping: str, gap: str) -> None:
    """Offsets were lost, `on_offset_loss` says to continue, and the position after the gap was committed."""
    _log.error("offsets_lost", mapping=mapping, gap=gap)


def row_counts_repaired(mapping: str, partitions: Sequence[str]) -> None:
    """Row counts were wrong and were recounted from the table's files."""
    _log.info("row_counts_repaired", mapping=mapping, partitions=list(partitions[:_MAX_NAMES]), count=len(partitions))


def row_counts_delayed(mapping: str, error: IngestdError) -> None:
    """Row counts cannot be checked or repaired now. Commits continue; meanwhile `count(*)` reads the rows."""
    _log.warning("row_counts_delayed", mapping=mapping, reason=type(error).__name__, error=str(error))


def mirror_failed(mapping: str, error: IngestdError) -> None:
    """The offsets of the consumer group could not be committed to Kafka; the next commit brings them up to date."""
    _log.warning("mirror_failed", mapping=mapping, error=str(error))


def engine_lost(error: IngestdError) -> None:
    """The Spark driver's JVM ended or does not answer; all mappings end."""
    _log.error("engine_lost", error=str(error))


def left_running(mappings: str, error: IngestdError) -> None:
    """Threads of these mappings still run after an abort; the process ends without them."""
    _log.error("left_running", mapping=mappings, error=str(error))


def stopped(mapping: str) -> None:
    """The mapping was stopped, or it has caught up."""
    _log.info("stopped", mapping=mapping)


def failed(mapping: str, error: IngestdError) -> None:
    """An error ended the mapping."""
    _log.error("failed", mapping=mapping, reason=type(error).__name__, error=str(error))


class RowCountEvents:
    """Logs what happens to the row counts of a mapping (`ingestd.publish.row_counts.Report`)."""

    def __init__(self, mapping: str) -> None:
        self._mapping = mapping

    def repaired(self, names: Sequence[str]) -> None:
        """See `row_counts_repaired`."""
        row_counts_repaired(self._mapping, names)

    def delayed(self, error: IngestdError) -> None:
        """See `row_counts_delayed`."""
        row_counts_delayed(self._mapping, error)
