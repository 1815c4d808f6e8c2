"""One function per happening of a mapping: the only place where its log lines are worded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from ingestd.errors import IngestdError
from ingestd.hive.leases import Claim
from ingestd.ingest.commit import Committed

_log: Any = structlog.get_logger("ingestd")
# Names of ranges, partitions or directories in a line that is written for every commit or at every start.
_FEW = 16


def committed(mapping: str, done: Committed) -> None:
    """The canonical line of a commit. More ranges than a few are named at level debug only."""
    work = done.work
    seconds = max(1, sum(work.watch.steps.values())) / 1000
    extra: dict[str, Any] = {"skipped": work.skipped} if work.skipped else {}
    ranges = [str(r) for r in work.plan.ranges]
    if len(ranges) <= _FEW:
        extra["ranges"] = ranges
    else:
        _log.debug("committed_ranges", mapping=mapping, txn=work.txn.id, ranges=ranges)
    _log.info(
        "committed",
        mapping=mapping,
        txn=work.txn.id,
        write_id=work.txn.write_id,
        rows=work.rows,
        records=work.records,
        bytes=work.bytes,
        files=len(work.files),
        seconds=round(seconds, 2),
        ms=dict(work.watch.steps),
        partitions=len({file.partition for file in work.files}),
        range_count=len(work.plan.ranges),
        offsets=sum(r.span for r in work.plan.ranges),
        **extra,
    )


def commit_hidden(mapping: str, done: Committed) -> None:
    """A TRUNCATE that ran beside the commit hides the rows of it; its offsets are stored."""
    work = done.work
    _log.error(
        "commit_hidden",
        mapping=mapping,
        table=str(work.table.name),
        txn=work.txn.id,
        write_id=work.txn.write_id,
        hidden_by=dict(done.hidden),
        ranges=[str(r) for r in work.plan.ranges],
        hint="if the TRUNCATE was not meant to remove these records, read the offset ranges again with a new mapping",
    )


def staging_removed(mapping: str, directories: list[str]) -> None:
    """Staging directories of ended transactions are gone."""
    _log.info("staging_removed", mapping=mapping, directories=directories[:_FEW], count=len(directories))


def staging_left(mapping: str, error: IngestdError) -> None:
    """Staging directories of ended transactions could not be removed; the next sweep tries again."""
    _log.warning("staging_left", mapping=mapping, error=str(error))


def started(mapping: str, offsets: int, aborted: list[int]) -> None:
    """The mapping is ours and begins at a position; `aborted` are transactions that a predecessor left open."""
    _log.info("owner", mapping=mapping, next_offsets_sum=offsets, aborted_transactions=aborted)


def odd_partitions(mapping: str, table: str, count: int, text: str) -> None:
    """The table has partitions whose values are not in normal form; told once, when the mapping starts."""
    _log.warning("odd_partitions", mapping=mapping, table=table, count=count, partitions=text)


def properties_not_followed(mapping: str, table: str, texts: tuple[str, ...]) -> None:
    """The table has ORC properties that writers do not follow; told once, when the mapping starts."""
    _log.warning("table_properties", mapping=mapping, table=table, warnings=list(texts))


def standing_by(mapping: str, claim: Claim) -> None:
    """Another daemon owns the mapping, or asked for it before us."""
    state = "held" if claim.is_held else "waiting"
    _log.info("standing by", mapping=mapping, owner=claim.agent, lock=claim.lock_id, lock_state=state)


def heartbeats_ended(mapping: str, error: Exception) -> None:
    """The lease is no longer kept alive: the mapping is given up."""
    _log.warning("heartbeats ended", mapping=mapping, reason=type(error).__name__, error=str(error))


def trying_again(mapping: str, error: IngestdError, seconds: float) -> None:
    """A step failed in a way that passes."""
    _log.warning("waiting", mapping=mapping, reason=type(error).__name__, error=str(error), again_in=round(seconds, 1))


def left_open(mapping: str, error: IngestdError) -> None:
    """The end came while the metastore was away: a lock or a transaction stays until the next owner or a time-out."""
    _log.warning("left open", mapping=mapping, error=str(error))


def gap(mapping: str, text: str) -> None:
    """Offsets were lost, policy says to continue, and the position behind the gap is committed."""
    _log.error("offsets lost", mapping=mapping, gap=text)


class CountsReport:
    """What a mapping logs about row counts (`hive.row_counts.Report`)."""

    def __init__(self, mapping: str) -> None:
        self._mapping = mapping

    def repaired(self, names: Sequence[str]) -> None:
        """Counts were wrong, because others wrote statistics beside us or a transaction aborted, and were recounted."""
        _log.info("row counts mended", mapping=self._mapping, partitions=list(names[:_FEW]), count=len(names))

    def delayed(self, error: IngestdError) -> None:
        """Counts cannot be looked at or recounted now: commits go on, and `count(*)` reads the rows meanwhile."""
        kind = type(error).__name__
        _log.warning("row_counts_delayed", mapping=self._mapping, reason=kind, error=str(error))


def mirror_failed(mapping: str, error: IngestdError) -> None:
    """The group offsets in Kafka lag behind; the next commit sets them right."""
    _log.warning("mirror failed", mapping=mapping, error=str(error))


def engine_lost(error: IngestdError) -> None:
    """The Spark driver is gone: all mappings end."""
    _log.error("engine lost", error=str(error))


def left_running(mappings: str, error: IngestdError) -> None:
    """Threads of these mappings hang after an abort; the process ends without them."""
    _log.error("left running", mapping=mappings, error=str(error))


def stopped(mapping: str, error: IngestdError | None) -> None:
    """The mapping ended, by error or because it was asked to."""
    if error is None:
        _log.info("stopped", mapping=mapping)
    else:
        _log.error("stopped by an error", mapping=mapping, reason=type(error).__name__, error=str(error))
