"""Scheduled queries are claimed by one client at a time, and an execution without reports is lost."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ingestd.clock import now
from ingestd.errors import ConfigError, OwnershipLost
from ingestd.hive.client import Metastore
from ingestd.hive.durations import hive_seconds
from ingestd.hive.schedules import Execution, MetricRow, ScheduledQuery, Schedules
from tests.support.replica import Replica
from tests.support.stack import eventually

STATEMENT = "REPL DUMP db1 WITH ('hive.repl.rootdir'='file:/x')"
NEVER = "0 0 0 1 1 ? 2037"


@pytest.fixture
def metastore(replica: Replica) -> Metastore:
    return replica.source.metastore


@pytest.fixture
def schedules(metastore: Metastore) -> Schedules:
    return Schedules(metastore, f"test-{uuid.uuid4().hex[:8]}", "tests/1")


def _query(name: str, schedule: str = NEVER) -> ScheduledQuery:
    return ScheduledQuery(name, schedule, STATEMENT, "me")


def _due(schedules: Schedules, *names: str, schedule: str = NEVER) -> list[ScheduledQuery]:
    """Create queries that are due, in this order."""
    queries = [_query(name, schedule) for name in names]
    for number, query in enumerate(queries):
        schedules.create(query)
        schedules.alter(replace(query, next_execution=number + 1))
    return queries


def _claimed(schedules: Schedules) -> Execution:
    found = schedules.claim()
    assert found
    return found


def test_query_when_created_then_metastore_computes_the_next_time(schedules: Schedules) -> None:
    began = now()
    schedules.create(replace(_query("p", "0 0 12 * * ? *"), next_execution=1))
    found = schedules.find("p")
    assert found
    assert found == replace(_query("p", "0 0 12 * * ? *"), next_execution=found.next_execution)
    assert found.next_execution
    assert began < found.next_execution <= now() + 86400
    assert schedules.find("P") is None
    assert schedules.claim() is None


def test_query_when_altered_and_dropped_then_metastore_has_the_change(schedules: Schedules) -> None:
    schedules.create(_query("p"))
    schedules.alter(replace(_query("p"), statement="REPL STATUS db1", is_enabled=False, next_execution=7))
    found = schedules.find("p")
    assert found
    assert (found.statement, found.is_enabled, found.next_execution) == ("REPL STATUS db1", False, 7)
    assert schedules.claim() is None
    schedules.drop("p")
    assert schedules.find("p") is None


def test_query_when_it_cannot_be_stored_then_error_names_the_policy(schedules: Schedules) -> None:
    schedules.create(_query("p"))
    with pytest.raises(ConfigError, match="policy p: the policy exists already"):
        schedules.create(_query("p"))
    with pytest.raises(ConfigError, match="policy q: the metastore refuses the policy: Invalid QUARTZ schedule"):
        schedules.create(_query("q", "every day"))
    with pytest.raises(ConfigError, match="policy q: the policy does not exist"):
        schedules.alter(_query("q"))
    with pytest.raises(ConfigError, match="policy q: the policy does not exist"):
        schedules.drop("q")
    with pytest.raises(ConfigError, match="the statement has 4001 characters; at most 4000"):
        schedules.create(replace(_query("q"), statement="x" * 4001))


def test_claim_when_several_clients_call_then_each_query_has_one_execution(
    metastore: Metastore, schedules: Schedules
) -> None:
    names = [f"p{number}" for number in range(4)]
    _due(schedules, *names)
    others = [Schedules(metastore, schedules.namespace, f"tests/{number}") for number in range(8)]

    def take(executor: Schedules) -> Sequence[str]:
        found = []
        while claimed := executor.claim():
            found.append(claimed.name)
        return found

    with ThreadPoolExecutor(len(others)) as pool:
        found = [name for taken in pool.map(take, others) for name in taken]
    found += take(schedules)  # claims at the same moment may all return None
    assert sorted(found) == names


def test_execution_when_active_then_the_query_waits_for_its_end(schedules: Schedules) -> None:
    (query,) = _due(schedules, "p")
    first = _claimed(schedules)
    assert (first.name, first.statement, first.user) == ("p", STATEMENT, "me")
    schedules.alter(replace(query, next_execution=1))
    assert schedules.claim() is None
    schedules.report(first, "half of it")
    schedules.finish(first)
    second = _claimed(schedules)
    assert second.id > first.id
    schedules.finish(second, "x" * 3000)
    assert schedules.claim() is None
    schedules.finish(first)  # the same end, as after a lost answer
    with pytest.raises(OwnershipLost, match=f"policy p, execution {first.id}: the execution has ended"):
        schedules.finish(first, "again")


def test_execution_when_its_executor_does_not_report_then_another_one_takes_over(schedules: Schedules) -> None:
    assert schedules.timeout_seconds() == 20
    _due(schedules, "reporting", "silent")
    reporting, silent = _claimed(schedules), _claimed(schedules)
    schedules.alter(replace(_query("silent"), next_execution=1))

    def claimed() -> Execution | None:
        schedules.report(reporting)
        return schedules.claim()

    other = eventually("the silent execution to time out", claimed)
    assert (other.name, other.id > silent.id) == ("silent", True)
    with pytest.raises(OwnershipLost, match="timed out"):
        schedules.report(silent)
    schedules.finish(reporting)
    schedules.finish(other)


def test_executions_when_time_has_been_missed_then_run_once(schedules: Schedules) -> None:
    began = now()
    _due(schedules, "p", schedule="0 0 12 * * ? *")
    schedules.finish(_claimed(schedules))
    found = schedules.find("p")
    assert found
    assert found.next_execution
    assert began < found.next_execution <= now() + 86400
    assert schedules.claim() is None


def test_execution_when_its_query_is_dropped_then_has_ended(schedules: Schedules) -> None:
    _due(schedules, "p")
    execution = _claimed(schedules)
    schedules.drop("p")
    assert schedules.find("p") is None
    with pytest.raises(OwnershipLost, match="its policy was dropped"):
        schedules.report(execution)


def test_metrics_when_stored_again_then_replace_those_of_the_execution(schedules: Schedules) -> None:
    policy = f"p{uuid.uuid4().hex[:8]}"
    _due(schedules, policy, f"{policy}x")
    first, other = _claimed(schedules), _claimed(schedules)
    schedules.store(MetricRow(first.id, policy, '{"dbName":"db1"}', '{"status":"IN_PROGRESS"}'))
    schedules.store(MetricRow(other.id, other.name, "{}", "{}"))
    final = MetricRow(first.id, policy, '{"dbName":"db1"}', '{"status":"SUCCESS"}')
    schedules.store(final)
    assert list(schedules.metrics(policy)) == [final]
    assert not schedules.metrics("unknown")


@pytest.mark.parametrize(
    ("text", "seconds"), [("120s", 120), ("1h", 3600), (" 30 min ", 1800), ("7D", 604800), ("500ms", 0.5), ("9", 9)]
)
def test_duration_of_hive_when_valid_then_is_seconds(text: str, seconds: float) -> None:
    assert hive_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "1 fortnight", "-1s", "1.5h"])
def test_duration_of_hive_when_not_valid_then_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        hive_seconds(text)
