"""Checks of replication: the event log of a source, the time-outs of a target, and the states of the policies.

Invariant: a check changes nothing; in particular, it claims no execution and no directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingestd.doctor.finding import Check, Verdict, fault, ok, warning
from ingestd.errors import BootstrapRequired, ConfigError, ReplicationError
from ingestd.hive import health
from ingestd.hive.durations import hive_seconds
from ingestd.hive.events import EventLog
from ingestd.hive.schedules import Schedules
from ingestd.replication.cluster import Cluster
from ingestd.replication.policies.policy_status import PolicyStatus, State, read_statuses
from ingestd.replication.policies.store import Policies
from ingestd.replication.statements.grammar import ReplDump, ReplLoad

_LISTENER = "DbNotificationListener"
_LISTENERS_KEY = "metastore.transactional.event.listeners"
_REPLICATED_KEY, _REPLICATED_DAYS = "hive.repl.txn.timeout", 11
_TTL_KEY, _TTL = "metastore.event.db.listener.timetolive", "86400s"
# A source is reported if the target lags behind by this part of the time after which events are removed.
_EXPIRING = 0.5


@dataclass(frozen=True, slots=True)
class Replication:
    """The policies of a metastore."""

    cluster: Cluster
    schedules: Schedules
    policies: Policies


def _event_log(examined: Replication) -> Iterator[Verdict]:
    """A source needs an event log. A metastore that is only a target does not."""
    dumps = [policy.name for policy in examined.policies.all() if isinstance(policy.statement, ReplDump)]
    if not dumps:
        yield ok("no policy dumps a database of this metastore, so it needs no event log")
        return
    metastore = examined.cluster.metastore
    listeners = str(metastore.call("get_config_value", _LISTENERS_KEY, ""))
    current = EventLog(metastore).current_id()
    if _LISTENER not in listeners:
        fix = f"set {_LISTENERS_KEY} to org.apache.hive.hcatalog.listener.{_LISTENER} and restart the metastore"
        yield fault(f"the metastore logs no events, which {', '.join(dumps)} would dump", fix, ReplicationError)
        return
    ttl = hive_seconds(metastore.call("get_config_value", _TTL_KEY, _TTL))
    yield ok(f"event log: last event {current}, events are kept for {ttl / 3600:.0f} h")


def _transaction_timeout(examined: Replication) -> Iterator[Verdict]:
    """The time-out of replicated transactions must not be shorter than that of others.

    The housekeeper of the metastore selects replicated transactions by their own time-out, ends them only after that of
    the others, and repeats both until nothing is left (PerformTimeoutsFunction, AbortTxnsFunction).
    """
    loads = [policy.name for policy in examined.policies.all() if isinstance(policy.statement, ReplLoad)]
    metastore = examined.cluster.metastore
    replicated = health.seconds(health.setting(metastore, _REPLICATED_KEY) or "")
    others = health.transaction_timeout(metastore)
    if not loads:
        yield ok("no policy loads into a database of this metastore, so it has no replicated transactions")
    elif replicated is None:
        yield ok(f"{_REPLICATED_KEY} is not set")
    elif replicated < others:
        yield warning(
            f"{_REPLICATED_KEY} is {replicated:,.0f} s, less than {health.TRANSACTION_TIMEOUT} ({others:,.0f} s): when"
            f" a transaction that {', '.join(loads)} has replicated is open for longer, the metastore tries to end it"
            " again and again, and meanwhile ends no transaction of a client that has died",
            f"set {_REPLICATED_KEY} to more than the longest transaction of the source takes, by default"
            f" {_REPLICATED_DAYS}d, and restart the metastore",
        )
    else:
        yield ok(f"{_REPLICATED_KEY} is {replicated:,.0f} s")


def _policies(examined: Replication) -> Iterator[Verdict]:
    metastore = examined.cluster.metastore
    ttl = hive_seconds(metastore.call("get_config_value", _TTL_KEY, _TTL))
    statuses = list(read_statuses(examined.cluster, examined.policies, examined.schedules))
    for status in statuses:
        yield _judged(status, ttl)
    if not statuses:
        yield ok("there is no policy yet")


def _judged(status: PolicyStatus, ttl: float) -> Verdict:
    name, state = status.policy.name, status.state
    evidence = f"policy {name}: {state.value.replace('_', ' ')}"
    if status.problem:
        evidence += f": {status.problem}"
    if state is State.INVALID:
        return fault(evidence, f"alter or drop it: `ingestd policy alter {name} --run 'REPL …'`", ConfigError)
    if state is State.NEEDS_BOOTSTRAP:
        fix = "remove the cause, then run `ingestd policy resume --bootstrap` for the policy that dumps the source"
        return fault(evidence, fix, BootstrapRequired)
    if state is State.NEEDS_RESUME:
        return fault(evidence, f"remove the cause, then run `ingestd policy resume {name}`", ReplicationError)
    lag = status.lag
    if lag is not None:
        evidence += f"; {lag.events:,} events, {lag.seconds:.0f} s behind"
    if lag is not None and isinstance(status.policy.statement, ReplDump) and lag.seconds > ttl * _EXPIRING:
        fix = f"find out why the target does not load, or keep events longer ({_TTL_KEY})"
        return warning(f"{evidence}, and the metastore removes events after {ttl:.0f} s", fix)
    if state is State.FAILED or status.problem:
        fix = f"see `ingestd policy executions {name}`; the next execution tries again"
        if status.problem and status.problem == status.left_out:
            fix = "create the missing directories, or drop their tables; the copy of an empty directory becomes empty"
        return warning(evidence, fix)
    return ok(evidence)


CHECKS = (
    Check("replication.event_log", _event_log),
    Check("replication.transaction_timeout", _transaction_timeout),
    Check("replication.policies", _policies),
)
