"""Checks of Hive's compaction: initiator, workers, cleaner, and the results of past compactions.

Invariant: these checks only read. Without compaction, deltas accumulate until queries of the tables fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingestd.doctor.finding import Check, Verdict, ok, warning
from ingestd.doctor.metastore import Service
from ingestd.hive import health
from ingestd.hive.compactions import Compaction, read_compactions
from ingestd.ingest.inspection.checks import counted

# Hive's own check intervals are 5 minutes.
_QUEUED_WARNING_SECONDS = 900.0
_UNCLEANED_WARNING_SECONDS = 3_600.0
# After this time the initiator regards a worker as dead and queues its compaction again; a day by default.
_WORKER_TIMEOUT, _RUNNING_PART = "hive.compactor.worker.timeout", 0.25
_SHOWN = 3
_FAILS = "see the log of the metastore; the cleaner tries again (hive.compactor.cleaner.retry.retention.time)"
# The list of transactions of metastore 4.2.0 begins with -1 if the oldest one is open (createValidTxnListForCleaner).
_NO_NUMBER = 'NumberFormatException: For input string: ""'
_FAILS_IF_OPEN = (
    "set metastore.txn.use.minhistorywriteid=false and restart the metastores: otherwise the cleaner of Hive 4.2.0"
    " fails while the oldest transaction that the metastore remembers is open"
)
# A refused request is neither a success nor a failure of compaction.
_FAILURES = ("failed", "did not initiate", "aborted")
_OUTCOMES = (*_FAILURES, "ready for cleaning", "succeeded")


def _initiator(service: Service) -> Iterator[Verdict]:
    missing = _switched_off(service, "metastore.compactor.initiator.on")
    if missing:
        yield warning(missing, "set metastore.compactor.initiator.on=true in one metastore and restart it")
    else:
        yield ok("metastore.compactor.initiator.on is true")


def _cleaner(service: Service) -> Iterator[Verdict]:
    missing = _switched_off(service, "metastore.compactor.cleaner.on")
    if missing:
        yield warning(missing, "set metastore.compactor.cleaner.on=true in one metastore and restart it")
    now = health.read_clock(service.metastore).database_time
    waiting = [
        compaction for compaction in read_compactions(service.metastore) if compaction.state == "ready for cleaning"
    ]
    failed = [compaction for compaction in waiting if compaction.error]
    oldest = min(waiting, key=_since, default=None)
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        yield warning(
            f"the cleaner has failed for {_target(failed[0])}{more}: {_first_line(failed[0].error)}",
            _FAILS_IF_OPEN if _NO_NUMBER in failed[0].error else _FAILS,
        )
    elif oldest is not None and now - _since(oldest) > _UNCLEANED_WARNING_SECONDS:
        yield warning(
            f"{_number(waiting)} ready for cleaning, {_target(oldest)} for {_hours(now - _since(oldest))}",
            "check metastore.transactions: an open transaction prevents the cleaner from removing files",
        )
    elif not missing:
        yield ok(f"metastore.compactor.cleaner.on is true; {_number(waiting)} ready for cleaning")


def _worker(service: Service) -> Iterator[Verdict]:
    """Examine the workers of the metastore. It does not know those of HiveServer2, but what they have done."""
    in_hiveserver2 = "hs2" in map(str.lower, service.setting("hive.metastore.runworker.in"))
    threads = max((int(n) for n in service.setting("metastore.compactor.worker.threads") if n.isdigit()), default=0)
    now = health.read_clock(service.metastore).database_time
    compactions = read_compactions(service.metastore)
    queued = [compaction for compaction in compactions if compaction.state == "initiated"]
    oldest = min(queued, key=lambda compaction: compaction.enqueued, default=None)
    if in_hiveserver2:
        text = "workers must run in HiveServer2 (hive.metastore.runworker.in=hs2); " + _last_begun(compactions, now)
        fix = "set hive.compactor.worker.threads to 1 or more in hive-site.xml of HiveServer2, and check that it runs"
    else:
        text = f"metastore.compactor.worker.threads is {threads} in the metastore"
        fix = "set metastore.compactor.worker.threads to 1 or more in one metastore and restart it"
    if not in_hiveserver2 and not threads:
        yield warning(text, fix)
    elif oldest is not None and now - oldest.enqueued > _QUEUED_WARNING_SECONDS:
        hours = _hours(now - oldest.enqueued)
        yield warning(f"{_number(queued)} queued, {_target(oldest)} for {hours}; {text}", fix)
    else:
        yield ok(f"{text}; {_number(queued)} queued")
    yield from _slow_workers(service, compactions, now)


def _last_begun(compactions: Sequence[Compaction], now: float) -> str:
    """Return when a worker last began a compaction: only this shows that one runs in HiveServer2."""
    started = max((compaction.started for compaction in compactions), default=0.0)
    return f"one last began a compaction {_hours(now - started)} ago" if started else "none is known to have run"


def _slow_workers(service: Service, compactions: Sequence[Compaction], now: float) -> Iterator[Verdict]:
    """Report the compaction that has been running for longest, if its worker has probably died."""
    running = min(
        (compaction for compaction in compactions if compaction.state == "working" and compaction.started),
        key=_since,
        default=None,
    )
    most = _RUNNING_PART * max(service.durations(_WORKER_TIMEOUT), default=86_400.0)
    if running is not None and now - running.started > most:
        yield warning(
            f"compaction {running.id} of {_target(running)} has been running for {_hours(now - running.started)}",
            "check whether its worker still runs (SHOW COMPACTIONS names it): nothing else compacts its partition"
            f" until the initiator starts it again after {_WORKER_TIMEOUT}",
        )


def _history(service: Service) -> Iterator[Verdict]:
    """Report tables and partitions whose last compaction failed, and the last successful compaction of any."""
    compactions = read_compactions(service.metastore)
    now = health.read_clock(service.metastore).database_time
    done = [compaction for compaction in compactions if compaction.has_result]
    newest = max(done, key=_since, default=None)
    text = "no successful compaction is remembered"
    if newest is not None:
        text = f"the last successful compaction, of {_target(newest)}, ended {_hours(now - _since(newest))} ago"
    last: dict[str, Compaction] = {}
    for compaction in compactions:  # the oldest are first
        if compaction.state in _OUTCOMES:
            last[_target(compaction)] = compaction
    failed = sorted(
        (compaction for compaction in last.values() if compaction.state in _FAILURES),
        key=lambda compaction: -compaction.id,
    )
    for compaction in failed[:_SHOWN]:
        more = (
            f" (and {len(failed) - _SHOWN} more)" if len(failed) > _SHOWN and compaction is failed[_SHOWN - 1] else ""
        )
        yield warning(
            f"compaction {compaction.id} of {_target(compaction)} failed:"
            f" {_first_line(compaction.error) or compaction.state}{more}",
            "see the log of the worker; after two failures Hive does not compact the table for 7 days: repair the"
            " cause, then run ALTER TABLE … COMPACT",
        )
    if not failed:
        yield ok(text)


def _switched_off(service: Service, name: str) -> str:
    """Return what prevents a background thread of the metastore from running; '' if it runs at one address."""
    if not service.is_on("metastore.housekeeping.threads.on") and service.setting("metastore.housekeeping.threads.on"):
        return "metastore.housekeeping.threads.on is false in every metastore that answers"
    return "" if service.is_on(name) else f"{name} is false in every metastore that answers"


def _target(compaction: Compaction) -> str:
    return f"{compaction.table} partition {compaction.partition}" if compaction.partition else str(compaction.table)


def _since(compaction: Compaction) -> float:
    return compaction.ended or compaction.started or compaction.enqueued


def _number(some: list[Compaction]) -> str:
    return counted(len(some), "compaction")


def _hours(seconds: float) -> str:
    minutes = max(0.0, seconds) / 60
    return f"{minutes:,.0f} min" if minutes < 120 else f"{minutes / 60:,.0f} h"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:200] if lines else ""


CHECKS: tuple[Check[Service], ...] = (
    Check("compaction.initiator", _initiator),
    Check("compaction.worker", _worker),
    Check("compaction.cleaner", _cleaner),
    Check("compaction.history", _history),
)
