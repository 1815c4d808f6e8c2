"""HiveServer2 shows policies, their executions and their metrics in the views of Hive, and can alter and drop them."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from ingestd.replication.policies.policy_status import read_runs
from ingestd.replication.policies.runs import Run, Status
from ingestd.replication.policies.store import Policies
from ingestd.replication.statements.grammar import CreatePolicy, parse
from tests.support.replica import Replica
from tests.support.replica_policies import Pair, new_pair
from tests.support.stack import eventually
from tests.support.sys_views import create_views, rows


@dataclass(frozen=True)
class Shown:
    """A policy of a pair that dumps its database every day, and what HiveServer2 shows of it."""

    pair: Pair
    name: str

    @property
    def policies(self) -> Policies:
        return self.pair.policies(self.pair.replica.source)

    def execute(self, executions: int) -> Run:
        """Execute the policy, and return the execution when so many have ended."""
        schedules = self.pair.schedules(self.pair.replica.source)
        self.policies.execute(self.name)

        def ended() -> list[Run]:
            found = [run for run in read_runs(schedules, self.name) if run.ended]
            return found if len(found) == executions else []

        run: Run = eventually("the execution", ended)[0]
        return run

    def rows(self, view: str, column: str) -> list[dict[str, Any]]:
        """Return the rows of the policy in a view, as the source document selects them, by execution."""
        found = rows(self.pair.replica.source, f"SELECT * FROM {view} WHERE {column} = '{self.name}'")
        return sorted(found, key=lambda row: row.get("scheduled_execution_id", 0))


@pytest.fixture
def shown(replica: Replica, tmp_path: Path) -> Shown:
    create_views(replica.source)
    pair = new_pair(replica, tmp_path)
    made = Shown(pair, f"repl_{uuid.uuid4().hex[:8]}")
    text = (
        f"CREATE SCHEDULED QUERY {made.name} EVERY DAY AT '11:35:30' EXECUTED AS '{getuser()}' AS {pair.dump_statement}"
    )
    wanted = parse(text)
    assert isinstance(wanted, CreatePolicy)
    made.policies.create(wanted)
    return made


def test_views_when_a_policy_has_run_then_show_it_with_its_executions_and_metrics(shown: Shown) -> None:
    pair, source = shown.pair, shown.pair.replica.source
    with pair.worker(source):
        done, skipped = shown.execute(1), shown.execute(2)
    assert (done.status, skipped.status) == (Status.SUCCESS, Status.SKIPPED)

    (query,) = shown.rows("information_schema.scheduled_queries", "schedule_name")
    policy = shown.policies.get(shown.name)
    assert query.pop("scheduled_query_id") > 0
    assert query.pop("next_execution") == _local(policy.next_execution)
    assert query == {
        "schedule_name": shown.name,
        "enabled": True,
        "cluster_namespace": pair.namespace,
        "user": getuser(),
        "schedule": "30 35 11 * * ? *",
        "query": str(pair.dump_statement),
        "active_execution_id": None,
    }

    pattern = "SELECT schedule_name FROM information_schema.scheduled_queries WHERE schedule_name LIKE 'repl_%'"
    assert shown.name in {row["schedule_name"] for row in rows(source, pattern)}

    executions = shown.rows("information_schema.scheduled_executions", "schedule_name")
    assert [row["scheduled_execution_id"] for row in executions] == [done.execution, skipped.execution]
    for row in executions:
        assert (row["state"], row["error_message"]) == ("FINISHED", None)
        assert row["executor_query_id"].rpartition("-")[2].isdigit()
        assert row["start_time"] <= row["end_time"]

    metrics = shown.rows("sys.replication_metrics", "policy_name")
    assert [row["scheduled_execution_id"] for row in metrics] == [done.execution, skipped.execution]
    assert [json.loads(row["progress"])["status"] for row in metrics] == ["SUCCESS", "SKIPPED"]
    assert json.loads(metrics[0]["metadata"])["dbName"] == pair.database
    stored = done.row()
    assert (metrics[0]["metadata"], metrics[0]["progress"]) == (stored.metadata, stored.progress)


def _local(moment: int | None) -> str:
    assert moment
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def test_policy_when_changed_by_statements_of_hiveserver2_then_follows(shown: Shown) -> None:
    source = shown.pair.replica.source
    source.sql(f"SET hive.scheduled.queries.namespace={shown.pair.namespace}")
    try:
        source.sql(f"ALTER SCHEDULED QUERY {shown.name} DISABLE")
        assert not shown.policies.get(shown.name).is_enabled
        source.sql(f"ALTER SCHEDULED QUERY {shown.name} ENABLE")
        source.sql(f"ALTER SCHEDULED QUERY {shown.name} EXECUTE")
        assert shown.policies.get(shown.name).is_due
        source.sql(f"DROP SCHEDULED QUERY {shown.name}")
        assert shown.policies.find(shown.name) is None
    finally:
        source.sql("RESET hive.scheduled.queries.namespace")
