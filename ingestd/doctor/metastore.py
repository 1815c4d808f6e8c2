"""Checks of the metastore service: version, locks, transactions, clock and connections.

Invariant: a check sends a bounded number of calls, whatever the number of tables.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ingestd.clock import Deadline, monotonic
from ingestd.doctor.finding import Check, Verdict, fault, ok, refused, warning
from ingestd.errors import IngestdError, InvalidTable, MetastoreUnavailable
from ingestd.hive import health, replay
from ingestd.hive.client import Metastore
from ingestd.hive.health import ClockReading, Uncommitted
from ingestd.ingest.inspection.checks import grants_locks
from ingestd.replication.policies.holds import HOLD

_OLDEST_MAJOR = 4
_TIMEOUT, _REAPER = "hive.txn.timeout", "metastore.acid.housekeeper.interval"
_REPLICATED_TIMEOUT, _DAY_SECONDS = "hive.repl.txn.timeout", 86_400.0
_REPLICATED_DAYS, _REPLICATED_PART = 11.0, 0.5  # the default, and after which part of it a transaction is reported
_MANAGER = "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager"
# A daemon sends a heartbeat for its transactions every 10 s, and may be delayed by a pause of the metastore.
_TIMEOUT_FAULT_SECONDS, _TIMEOUT_WARNING_SECONDS, _TIMEOUT_LONG_SECONDS = 30.0, 120.0, 3_600.0
_SKEW_WARNING_SECONDS, _SKEW_FAULT_SECONDS = 1.0, 60.0
_OPEN_WARNING, _ABORTED_WARNING, _AGE_WARNING_SECONDS = 1_000, 1_000, 3_600.0
_CONCURRENT_CALLS, _CALL_WARNING_SECONDS, _CALL_LIMIT_SECONDS = 16, 2.0, 15.0


@dataclass(frozen=True, slots=True)
class Service:
    """The metastore: one client for all addresses, and a client for each address that answers.

    `connect` returns another client for all addresses, with a limit of connections.
    """

    metastore: Metastore
    members: Sequence[Metastore]
    connect: Callable[[int], Metastore]

    def setting(self, name: str) -> list[str]:
        """Return the distinct values of a property at the addresses that answer; [] if it is not set anywhere."""
        values = []
        for member in self.members:
            value = health.setting(member, name)
            if value is not None and value not in values:
                values.append(value)
        return values

    def durations(self, name: str) -> list[float]:
        """Return the distinct values of a property that are durations, in seconds."""
        return [length for value in self.setting(name) if (length := health.seconds(value)) is not None]

    def is_on(self, name: str) -> bool:
        """Return whether a property is `true` at one of the addresses."""
        return "true" in map(str.lower, self.setting(name))


def _version(member: Metastore) -> Iterator[Verdict]:
    began = monotonic()
    version = health.version(member)
    text = f"version {version}, answered in {(monotonic() - began) * 1000:,.0f} ms"
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < _OLDEST_MAJOR:
        yield fault(
            f"{text}: its commits cannot store offsets (keyValue)", "upgrade the metastore to Hive 4", InvalidTable
        )
    else:
        yield ok(f"{text}; commits store offsets (keyValue)")


def _locks(service: Service) -> Iterator[Verdict]:
    for name, wanted in (("hive.support.concurrency", "true"), ("hive.txn.manager", _MANAGER)):
        values = service.setting(name)
        if [value for value in values if value.lower() != wanted.lower()]:
            yield warning(
                f"{name} is {' and '.join(values)} in the metastore",
                f"set {name}={wanted} in hive-site.xml of the metastore and of every HiveServer2",
            )
    yield ok(f"a lock on an unused name was {grants_locks(service.metastore)}")


def _transaction_timeout(service: Service) -> Iterator[Verdict]:
    name = _TIMEOUT
    values = service.setting(name)
    if len(values) > 1:
        yield warning(f"{name} is {' and '.join(values)}", "set the same value in every metastore")
    lengths = service.durations(name)
    if not lengths:
        yield warning(f"{name} is {' and '.join(values) or 'not set'}", f"set {name} to a duration such as 300s")
        return
    shortest, text = min(lengths), f"{name} is {min(lengths):,.0f} s"
    if shortest < _TIMEOUT_FAULT_SECONDS:
        hint = f"set {name}=300s: a call that takes a few seconds aborts transactions and ends leases"
        yield fault(text, hint, InvalidTable)
    elif shortest < _TIMEOUT_WARNING_SECONDS:
        yield warning(text, f"set {name}=300s: a pause of the metastore or of a daemon aborts its transactions")
    elif shortest > _TIMEOUT_LONG_SECONDS:
        yield warning(text, f"set {name}=300s: locks of killed clients remain until this time has passed")
    else:
        yield ok(text)


def _clock(service: Service) -> Iterator[Verdict]:
    yield judge_clock(health.read_clock(service.metastore))


def judge_clock(reading: ClockReading) -> Verdict:
    """Return the verdict on the part of the difference that the error of the reading does not explain."""
    ahead = "ahead of" if reading.skew > 0 else "behind"
    text = (
        f"the metastore's database is {abs(reading.skew):,.2f} s {ahead} this machine (± {reading.uncertainty:,.2f} s)"
    )
    certain = abs(reading.skew) - reading.uncertainty
    fix = "synchronize the clocks of this machine and of the metastore's database with NTP"
    if certain > _SKEW_FAULT_SECONDS:
        return fault(text, fix, MetastoreUnavailable)
    return warning(text, fix) if certain > _SKEW_WARNING_SECONDS else ok(text)


def _transactions(service: Service) -> Iterator[Verdict]:
    transactions = health.uncommitted(service.metastore)
    now = health.read_clock(service.metastore).database_time
    open_now = [txn for txn in transactions if txn.is_open]
    aborted = len(transactions) - len(open_now)
    text = f"{len(open_now):,} open, {aborted:,} aborted"
    is_fine = True
    if len(open_now) > _OPEN_WARNING:
        is_fine = False
        yield warning(f"{text}; most are of {_most_frequent(open_now)}", "find out why this client does not end them")
    if aborted > _ABORTED_WARNING:
        is_fine = False
        yield warning(
            f"{text}; the first aborted one is {next(txn.id for txn in transactions if not txn.is_open)}",
            "check that the cleaner runs (compaction.cleaner); aborted transactions slow down every query",
        )
    for verdict in old_transactions(service, open_now, now):
        is_fine = False
        yield replace(verdict, evidence=f"{text}; {verdict.evidence}")
    if is_fine:
        yield ok(text)


def old_transactions(service: Service, some: Sequence[Uncommitted], now: float) -> Iterator[Verdict]:
    """Report the open transaction that the metastore should have aborted, or else the oldest if it is old.

    One that a load has replayed has no heartbeats, and is open for as long as that of the source. Who aborts it makes
    the copy incompatible with its source, so it is reported only if it will time out.
    """
    yield from _replicated([txn for txn in some if _is_replicated(txn)], service, now)
    some = [txn for txn in some if not _is_replicated(txn)]
    # Twice, because the metastore aborts a transaction some time after its time-out.
    patience = 2 * sum(max(service.durations(name), default=0.0) for name in (_TIMEOUT, _REAPER))
    silent = min((txn for txn in some if txn.beat), key=lambda txn: txn.beat, default=None)
    oldest = oldest_of(some)
    if silent is not None and patience and now - silent.beat > patience:
        yield warning(
            f"transaction {silent.id} of {silent.owner} is open, although its last heartbeat was"
            f" {now - silent.beat:,.0f} s ago ({_TIMEOUT} is {' and '.join(service.setting(_TIMEOUT))})",
            "the metastore does not abort transactions that time out: set metastore.housekeeping.threads.on=true in one"
            f" metastore and restart it; until then, run ABORT TRANSACTIONS {silent.id}",
        )
    elif oldest is not None and now - oldest.started > _AGE_WARNING_SECONDS:
        age = (now - oldest.started) / 60
        yield warning(
            f"transaction {oldest.id} of {oldest.owner} has been open for {age:,.0f} minutes",
            f"end its client, or run ABORT TRANSACTIONS {oldest.id}: no files are cleaned while it is open",
        )


def _replicated(some: Sequence[Uncommitted], service: Service, now: float) -> Iterator[Verdict]:
    oldest = min((txn for txn in some if txn.started), key=lambda txn: txn.started, default=None)
    limit = min(service.durations(_REPLICATED_TIMEOUT), default=_REPLICATED_DAYS * _DAY_SECONDS)
    if oldest is not None and now - oldest.started > limit * _REPLICATED_PART:
        source_id = oldest.owner.partition(f" at {replay.AGENT}/")[2].partition("/")[0]
        days, limit_days = (seconds / _DAY_SECONDS for seconds in (now - oldest.started, limit))
        yield warning(
            f"transaction {oldest.id} of {oldest.owner} replicates one that has been open for {days:,.1f} days; after"
            f" {limit_days:,.1f} days ({_REPLICATED_TIMEOUT}), the database must be bootstrapped again",
            f"end transaction {source_id} at the source, and let the policy run; do not abort its replica",
        )


def _is_replicated(txn: Uncommitted) -> bool:
    return f" at {replay.AGENT}/" in txn.owner


def oldest_of(some: Sequence[Uncommitted]) -> Uncommitted | None:
    """Return the transaction that has been open for the longest time, if that is known.

    The holds of replication are left out: they stay open on purpose, and end by themselves
    (`replication/policies/holds.py`).
    """
    others = (txn for txn in some if txn.started and f" at {HOLD} " not in txn.owner)
    return min(others, key=lambda txn: txn.started, default=None)


def _most_frequent(some: Sequence[Uncommitted]) -> str:
    owner, count = Counter(txn.owner for txn in some).most_common(1)[0]
    return f"{owner} ({count:,})"


def _connections(service: Service) -> Iterator[Verdict]:
    """Send many concurrent calls. If the connection pool is small or no thread is free, some wait for the others."""
    metastore = service.connect(_CONCURRENT_CALLS)
    began, limit = monotonic(), Deadline.after(_CALL_LIMIT_SECONDS)
    ends: list[float] = []
    failures: list[IngestdError] = []

    def send() -> None:
        try:
            metastore.call("get_open_txns")
            ends.append(monotonic())
        except IngestdError as error:
            failures.append(error)

    senders = [threading.Thread(target=send, name="doctor-connection", daemon=True) for _ in range(_CONCURRENT_CALLS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(limit.left)
    metastore.close()
    fix = (
        "raise datanucleus.connectionPool.maxPoolSize (10 by default) above the number of clients that commit at the"
        " same time, and check the load of the metastore and of its database"
    )
    late = _CONCURRENT_CALLS - len(ends) - len(failures)
    slowest = max(ends, default=began) - began
    text = f"{len(ends)} of {_CONCURRENT_CALLS} concurrent calls were answered, the last after {slowest:.2f} s"
    if failures:
        yield Verdict("fault", f"{text}; {refused(failures[0]).evidence}", fix, failures[0].exit_code)
    elif late:
        yield fault(text, fix, MetastoreUnavailable)
    elif slowest > _CALL_WARNING_SECONDS:
        yield warning(text, fix)
    else:
        yield ok(text)


VERSION = Check("metastore.version", _version)
CHECKS: tuple[Check[Service], ...] = (
    Check("metastore.locks", _locks),
    Check("metastore.transaction_timeout", _transaction_timeout),
    Check("metastore.clock", _clock),
    Check("metastore.transactions", _transactions),
    Check("metastore.connections", _connections),
)
