"""Policies are changed once, and their executions run, although the metastore loses answers about scheduled queries."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import pytest

from ingestd.clock import now
from ingestd.errors import MetastoreUnavailable, OwnershipLost
from ingestd.hive.client import Metastore
from ingestd.hive.schedules import Schedules
from ingestd.replication.policies.execution import Resources, Running
from ingestd.replication.policies.holds import Holds
from ingestd.replication.policies.runs import Status
from ingestd.replication.policies.store import Policies
from ingestd.replication.statements.grammar import CreatePolicy, PolicyChange, ReplDump
from ingestd.replication.statements.schedule import Every, Unit
from ingestd.replication.statements.scope import Scope
from ingestd.sandbox import Sandbox, SandboxOptions
from tests.support.proxy import Proxy, proxy
from tests.support.replica import Replica, Side
from tests.support.replica_policies import NEVER, Pair
from tests.support.stack import eventually

_CHANGE, _CLAIM, _REPORT = "scheduled_query_maintenance", "scheduled_query_poll", "scheduled_query_progress"
_READ = "get_scheduled_query"
_DUMP = ReplDump(Scope("db1"), {"hive.repl.rootdir": "hdfs://nn/repl"})
# The metastore cannot compute its times, so the worker does after each claim.
_ODD = Every(23, Unit.HOUR)


@dataclass(frozen=True)
class _Attacked:
    """The policies of a new namespace, behind a proxy that loses answers."""

    between: Proxy
    schedules: Schedules
    policies: Policies


@pytest.fixture
def attacked(replica: Replica) -> Iterator[_Attacked]:
    name = f"lost_{uuid.uuid4().hex[:8]}"
    with proxy(replica.source.uri) as between, closing(Metastore(between.uri)) as metastore:
        schedules = Schedules(metastore, name, "tests")
        yield _Attacked(between, schedules, Policies(metastore, schedules, name))
        metastore.call("drop_database", name, True, True)


def _is_odd(policies: Policies) -> bool:
    policy = policies.get("p")
    return (policy.schedule, policy.statement, policy.is_due) == (_ODD, _DUMP, False)


_CHANGES: dict[str, tuple[Callable[[Policies], object], Callable[[Policies], bool]]] = {
    "create": (lambda policies: policies.create(CreatePolicy("p", _ODD, _DUMP)), _is_odd),
    "alter": (lambda policies: policies.alter("p", PolicyChange(schedule=_ODD)), _is_odd),
    "disable": (
        lambda policies: policies.alter("p", PolicyChange(is_enabled=False)),
        lambda policies: not policies.get("p").is_enabled,
    ),
    "execute": (lambda policies: policies.execute("p"), lambda policies: policies.get("p").is_due),
    "drop": (lambda policies: policies.drop("p"), lambda policies: policies.find("p") is None),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_policy_when_each_answer_to_its_change_is_lost_then_is_changed(attacked: _Attacked, change: str) -> None:
    make, is_made = _CHANGES[change]
    if change != "create":
        attacked.policies.create(CreatePolicy("p", NEVER, _DUMP))
    before = attacked.between.calls[_CHANGE]
    attacked.between.lose_answer(_CHANGE, 10)
    make(attacked.policies)
    assert is_made(attacked.policies)
    assert attacked.between.calls[_CHANGE] - before == (2 if change in {"create", "alter"} else 1)  # and its next time


@pytest.mark.parametrize("change", _CHANGES)
def test_policy_when_the_request_for_its_change_is_lost_then_is_not_changed(attacked: _Attacked, change: str) -> None:
    make, is_made = _CHANGES[change]
    if change != "create":
        attacked.policies.create(CreatePolicy("p", NEVER, _DUMP))
    before = attacked.policies.find("p")
    attacked.between.lose_call(_CHANGE)
    with pytest.raises(MetastoreUnavailable):
        make(attacked.policies)
    assert attacked.policies.find("p") == before
    make(attacked.policies)
    assert is_made(attacked.policies)


@pytest.mark.parametrize("error", [None, "an error"], ids=["success", "failure"])
def test_execution_when_answers_to_its_reports_are_lost_then_ends_with_its_result(
    attacked: _Attacked, error: str | None
) -> None:
    attacked.policies.create(CreatePolicy("p", NEVER, _DUMP))
    attacked.policies.execute("p")
    execution = attacked.schedules.claim()
    assert execution is not None
    attacked.between.lose_answer(_REPORT)
    attacked.schedules.report(execution)
    attacked.between.lose_answer(_REPORT)
    attacked.schedules.finish(execution, error)
    with pytest.raises(OwnershipLost):
        attacked.schedules.finish(execution, "another error" if error is None else None)


def test_policy_when_a_worker_loses_answers_of_its_execution_then_runs_once(pair: Pair) -> None:
    source = pair.replica.source
    pair.create(_ODD)
    with _through_proxy(pair) as (between, side):
        between.lose_answer(_CHANGE)
        between.lose_answer(_REPORT, 2)
        pair.policies(source).execute("dump")
        with pair.worker(side):
            assert pair.ended(source).status is Status.SUCCESS
        assert between.calls[_REPORT] > 2
    assert len(pair.status(source).runs) == 1
    assert not pair.policies(source).get("dump").is_due


def test_execution_when_its_policy_cannot_be_read_at_first_then_runs(pair: Pair) -> None:
    pair.create()
    pair.policies(pair.replica.source).execute("dump")
    with _through_proxy(pair) as (between, side), closing(Holds(side.metastore)) as holds:
        schedules = pair.schedules(side)
        execution = schedules.claim()
        assert execution is not None
        resources = Resources(pair.cluster(side), schedules, pair.policies(side), None, 60.0, holds)
        between.lose_call(_READ, 4)
        assert Running(resources, execution, schedules.timeout_seconds()).run().status is Status.SUCCESS
    (run,) = pair.status(pair.replica.source).runs
    assert (run.status, run.database) == (Status.SUCCESS, pair.database)


@pytest.mark.parametrize("is_first", [False, True])
def test_policy_when_the_answer_to_its_claim_is_lost_then_is_due_again(pair: Pair, *, is_first: bool) -> None:
    with _lost_claim(pair, is_first=is_first) as due:
        policies = pair.policies(pair.replica.source)
        eventually("the policy", lambda: (policies.get("dump").next_execution or due) in range(due + 1, int(now()) + 1))


@pytest.mark.soak
def test_policy_when_the_answer_to_its_claim_is_lost_then_runs_when_that_execution_has_timed_out(pair: Pair) -> None:
    with _lost_claim(pair, is_first=False):
        assert pair.ended(pair.replica.source).status is Status.SUCCESS
    assert len(pair.status(pair.replica.source).runs) == 1


@contextmanager
def _lost_claim(pair: Pair, *, is_first: bool) -> Iterator[int]:
    """Lose the answer to the claim of a policy, the first one of a worker or a later one; yield when it was due."""
    source, due = pair.replica.source, int(now()) - 5
    pair.create()
    query = pair.schedules(source).find("dump")
    assert query is not None
    pair.schedules(source).alter(replace(query, next_execution=due))
    with _through_proxy(pair) as (between, side):
        if is_first:
            between.lose_answer(_CLAIM)
        else:
            between.hold(_CLAIM)
        with pair.worker(side) as worker:
            if not is_first:
                eventually("the status", lambda: worker.statuses and between.calls[_CLAIM])
                between.lose_answer(_CLAIM)
                between.forward(_CLAIM)
            yield due


@contextmanager
def _through_proxy(pair: Pair) -> Iterator[tuple[Proxy, Side]]:
    """Yield a proxy for the metastore of the source, and the source as it is reached over it."""
    with proxy(pair.replica.source.uri) as between:
        sandbox = Sandbox(SandboxOptions(pair.root))
        with closing(Side("source", between.uri, pair.replica.source.location, sandbox)) as side:
            yield between, side
