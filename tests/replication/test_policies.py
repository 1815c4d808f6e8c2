"""Policies are stored as statements that the metastore offers at the right times."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ingestd.clock import now
from ingestd.errors import ConfigError, OwnershipLost
from ingestd.hive.client import Metastore
from ingestd.hive.schedules import ScheduledQuery, Schedules
from ingestd.replication.policies.store import ANY_USER, Policies
from ingestd.replication.statements.grammar import CreatePolicy, PolicyChange, ReplDump, ReplLoad
from ingestd.replication.statements.schedule import Cron, Every, Unit
from ingestd.replication.statements.scope import Scope
from tests.support.replica import Replica

GIVEN = {"hive.repl.rootdir": "hdfs://nn/repl"}
DUMP = ReplDump(Scope("db1", "t[0-9]+"), GIVEN)
HALF_HOUR, ODD = Every(30, Unit.MINUTE), Every(45, Unit.MINUTE)
# For tests of policies that must not become due by their schedule: the metastore can represent the first exactly.
SELDOM, SELDOM_ODD = Every(12, Unit.HOUR), Every(23, Unit.HOUR)


@pytest.fixture
def metastore(replica: Replica) -> Metastore:
    return replica.source.metastore


@pytest.fixture
def schedules(metastore: Metastore) -> Schedules:
    return Schedules(metastore, f"test-{uuid.uuid4().hex[:8]}", "tests")


@pytest.fixture
def policies(metastore: Metastore, schedules: Schedules) -> Iterator[Policies]:
    database = f"control_{uuid.uuid4().hex[:8]}"
    policies = Policies(metastore, schedules, database)
    assert policies.all() == []
    yield policies
    metastore.call("drop_database", database, True, True)


def test_policy_when_created_then_is_listed_and_due_at_its_schedule(policies: Policies, schedules: Schedules) -> None:
    began = now()
    made = policies.create(CreatePolicy("p1", HALF_HOUR, DUMP))
    assert (made.schedule, made.statement, made.user, made.is_enabled) == (HALF_HOUR, DUMP, ANY_USER, True)
    assert made.next_execution
    assert made.next_execution % 1800 == 0
    assert began < made.next_execution <= now() + 1800
    query = schedules.find("p1")
    assert query
    assert query.statement == "REPL DUMP db1.'t[0-9]+' WITH ('hive.repl.rootdir'='hdfs://nn/repl')"
    other = policies.create(CreatePolicy("p2", Cron("0 0 12 * * ?"), ReplLoad("db1", "copy", GIVEN), "joe", False))
    assert (other.user, other.is_enabled) == ("joe", False)
    assert policies.all() == [policies.get("p1"), other]


def test_policy_when_its_interval_is_odd_then_is_due_at_its_multiples(policies: Policies, schedules: Schedules) -> None:
    made = policies.create(CreatePolicy("p", ODD, DUMP))
    assert made.next_execution
    assert made.next_execution % (45 * 60) == 0
    assert made.schedule == ODD
    policies.execute("p")
    assert schedules.claim()
    began = now()
    policies.align("p")
    after = policies.get("p")
    assert after.next_execution
    assert after.next_execution % (45 * 60) == 0
    assert began < after.next_execution <= now() + 45 * 60
    # A comment that does not fit to the cron expression is of a client that has changed only the latter.
    query = schedules.find("p")
    assert query
    schedules.alter(replace(query, schedule="0 0 12 * * ? *", next_execution=None))
    assert policies.get("p").schedule == Every(1, Unit.DAY, 43200)
    assert policies.get("p").statement == DUMP


def test_policy_when_altered_then_keeps_the_rest(policies: Policies) -> None:
    policies.create(CreatePolicy("p", HALF_HOUR, DUMP, "joe"))
    made = policies.alter("p", PolicyChange(schedule=ODD))
    assert (made.schedule, made.statement, made.user, made.is_enabled) == (ODD, DUMP, "joe", True)
    made = policies.alter("p", PolicyChange(is_enabled=False))
    assert (made.schedule, made.is_enabled) == (ODD, False)
    made = policies.alter("p", PolicyChange(statement=ReplDump(Scope("db1"), GIVEN), user="ann"))
    assert made.statement == ReplDump(Scope("db1"), GIVEN)
    assert (made.schedule, made.user, made.is_enabled) == (ODD, "ann", False)
    made = policies.alter("p", PolicyChange(is_enabled=True))
    assert made.next_execution
    assert made.next_execution % (45 * 60) == 0


def test_policy_when_executed_then_is_due_once(policies: Policies, schedules: Schedules) -> None:
    policies.create(CreatePolicy("p", SELDOM, DUMP))
    policies.execute("p")
    execution = schedules.claim()
    assert execution
    assert execution.statement == str(DUMP)
    schedules.finish(execution)
    assert schedules.claim() is None


@pytest.mark.parametrize("schedule", [SELDOM, SELDOM_ODD])
def test_policy_when_altered_while_it_is_due_then_stays_due_unless_disabled(
    policies: Policies, schedules: Schedules, schedule: Every
) -> None:
    policies.create(CreatePolicy("p", schedule, DUMP))
    policies.execute("p")
    policies.alter("p", PolicyChange(schedule=Every(8, Unit.HOUR)))
    execution = schedules.claim()
    assert execution
    schedules.finish(execution)
    policies.execute("p")
    policies.alter("p", PolicyChange(is_enabled=False))
    assert schedules.claim() is None
    # Times that were missed are not made up for.
    assert not policies.alter("p", PolicyChange(is_enabled=True)).is_due
    assert schedules.claim() is None
    policies.alter("p", PolicyChange(is_enabled=False))
    with pytest.raises(ConfigError, match="the policy is disabled → enable it first"):
        policies.execute("p")


def test_policy_when_dropped_then_its_execution_ends_and_its_name_is_free(
    policies: Policies, schedules: Schedules
) -> None:
    policies.create(CreatePolicy("p", SELDOM, DUMP))
    policies.execute("p")
    execution = schedules.claim()
    assert execution
    policies.drop("p")
    with pytest.raises(OwnershipLost):
        schedules.report(execution)
    assert policies.all() == []
    assert policies.find("p") is None
    for change in (policies.execute, policies.get, policies.drop):
        with pytest.raises(ConfigError, match="policy p: the policy does not exist"):
            change("p")
    policies.create(CreatePolicy("p", SELDOM, DUMP))


def test_policy_when_it_would_do_the_work_of_another_then_is_refused(policies: Policies) -> None:
    policies.create(CreatePolicy("p", SELDOM, DUMP))
    policies.create(CreatePolicy("q", SELDOM, ReplLoad("db1", "copy", GIVEN)))
    same = CreatePolicy("r", SELDOM, ReplDump(Scope("DB1"), {"hive.repl.rootdir": "hdfs://nn/repl/"}))
    with pytest.raises(ConfigError, match="policy r: the policy p dumps db1 into hdfs://nn/repl already"):
        policies.create(same)
    with pytest.raises(ConfigError, match="policy r: the policy q loads into the database copy already"):
        policies.create(CreatePolicy("r", SELDOM, ReplLoad("db2", "copy", GIVEN)))
    policies.create(CreatePolicy("r", SELDOM, ReplDump(Scope("db2"), GIVEN)))
    with pytest.raises(ConfigError, match="the policy p dumps db1"):
        policies.alter("r", PolicyChange(statement=DUMP))
    with pytest.raises(ConfigError, match="the policy exists already"):
        policies.create(replace(same, name="p"))
    for name in ("P", "a-b", "", "x" * 101):
        with pytest.raises(ConfigError, match="policy: the name must be 1 to 100 lower-case"):
            policies.create(replace(same, name=name))


def test_policy_when_another_client_stored_it_then_is_understood_or_has_a_problem(
    policies: Policies, schedules: Schedules
) -> None:
    schedules.create(ScheduledQuery("theirs", "0 0 12 * * ? 2030", f"/* x */ {DUMP};", "joe"))
    assert policies.all() == []
    policies.record("theirs")
    (found,) = policies.all()
    assert (found.statement, found.schedule, found.problem) == (DUMP, Cron("0 0 12 * * ? 2030"), None)
    schedules.create(ScheduledQuery("select", "0 0 12 * * ? *", "SELECT 1", "joe"))
    found = policies.get("select")
    assert found.statement is None
    assert str(found.problem).startswith("policy select, line 1, column 1 of the statement: 'SELECT' where REPL or")
    with pytest.raises(ConfigError, match="policy select"):
        policies.alter("select", PolicyChange(schedule=SELDOM))


def test_policy_when_its_schedule_has_no_next_time_then_is_refused_and_the_others_stay(
    policies: Policies, schedules: Schedules
) -> None:
    """The metastore stores such a query, but fails whenever it is asked for it."""
    never = Cron("0 0 0 30 2 ?")
    with pytest.raises(ConfigError, match="has no next time"):
        policies.create(CreatePolicy("p", never, DUMP))
    assert policies.all() == []
    made = policies.create(CreatePolicy("p", Cron("0 0 12 * * ?"), DUMP))
    with pytest.raises(ConfigError, match="has no next time"):
        policies.alter("p", PolicyChange(schedule=never))
    assert policies.all() == [made]
    schedules.alter(ScheduledQuery("p", never.cron, str(DUMP), "joe"))  # as another client may do
    (found,) = policies.all()
    assert found.statement is None
    assert "its schedule has no next time" in str(found.problem)
    policies.drop("p")
    assert policies.all() == []
