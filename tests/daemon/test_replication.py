"""Daemons that only replicate: policies of their configuration, status, metrics, reload, shutdown, and kills."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ingestd.hive.tables import TableName
from ingestd.replication.policies.policy_status import State, read_runs
from ingestd.replication.policies.runs import Run, Status
from ingestd.replication.statements.grammar import ReplDump, ReplLoad
from ingestd.storage.local import local_path
from tests.support.daemon import DaemonProcess
from tests.support.http import Client
from tests.support.replica_daemons import Daemons, policy_entry
from tests.support.replica_policies import NEVER, Pair, add_large_table
from tests.support.replica_rows import insert, table_of
from tests.support.spark_events import SparkEvents
from tests.support.stack import eventually


@pytest.fixture
def daemons(pair: Pair, tmp_path: Path) -> Iterator[Daemons]:
    with ExitStack() as ends:
        yield Daemons(pair, tmp_path, ends)


def _loads(pair: Pair) -> list[Run]:
    return read_runs(pair.schedules(pair.replica.target), "load")


def test_daemons_when_they_only_replicate_then_the_copy_follows_and_is_reported(pair: Pair, daemons: Daemons) -> None:
    source, target = pair.replica.source, pair.replica.target
    pair.insert([(1, "a")])
    dump = policy_entry("dump", "EVERY SECOND", pair.dump_statement)
    daemon = daemons.start(source, dump)
    loading = daemons.start(target, policy_entry("load", "EVERY SECOND", pair.load_statement))
    eventually("the bootstrap", lambda: pair.rows() == [(1, "a")])
    pair.insert([(2, "b")])
    eventually("the changes", lambda: pair.rows() == [(1, "a"), (2, "b")])

    client = Client.of(daemon)
    assert client.get("/readyz").status == 200
    (seen,) = eventually(
        "the status", lambda: [p for p in client.get("/status").json["policies"] if p["last_execution"]]
    )
    assert (seen["name"], seen["schedule"], seen["statement"]) == ("dump", "EVERY SECOND", str(pair.dump_statement))
    eventually("no lag", lambda: client.get("/status").json["policies"][0]["lag_events"] == 0)
    # Other tests use the same source.
    eventually("no lag", lambda: 'ingestd_policy_lag_events{policy="dump"} 0' in client.get("/metrics").text)
    assert 'ingestd_policy_executions_total{policy="dump",status="SUCCESS"}' in client.get("/metrics").text

    daemons.configure(
        source, dump, policy_entry("other", str(NEVER), ReplDump(pair.dump_statement.scope, _elsewhere(pair)))
    )
    daemon.process.send_signal(signal.SIGHUP)
    eventually("the new policy", lambda: daemon.events("policy_created")[1:])
    daemons.configure(source, dump, workers=7)
    refused = client.post("/reload")
    assert refused.status == 409
    assert "a running daemon can change only the policies of this section" in refused.json["error"]
    for process in (daemon, loading):
        process.terminate()
        assert process.wait() == 0
        assert not process.events("policy_failed")


def test_daemon_when_a_load_has_many_files_then_lists_and_copies_them_by_spark_jobs(
    pair: Pair, daemons: Daemons, tmp_path: Path
) -> None:
    target, events = pair.replica.target, SparkEvents(tmp_path / "events")
    daemons.sections["spark"] = {"master": "local[1]", "conf": events.conf}
    files = add_large_table(pair, tmp_path / "large")
    pair.dump()
    daemon = daemons.start(target, policy_entry("load", "EVERY SECOND", pair.load_statement))
    eventually("the load", lambda: [run for run in _loads(pair) if run.status is Status.SUCCESS])
    copied = table_of(target.metastore, TableName(pair.target, "large"))
    assert len(list(local_path(copied.location).glob("*/file"))) == files
    daemon.terminate()
    assert daemon.wait() == 0
    assert events.jobs("list") > 0
    assert events.jobs("copy") > 0


def _elsewhere(pair: Pair) -> dict[str, str]:
    return {"hive.repl.rootdir": f"{pair.root_uri}/other"}


def _begun_load(pair: Pair, daemons: Daemons) -> tuple[DaemonProcess, dict[str, Any]]:
    """Start a daemon whose load of twelve rows takes 20 seconds; return it with its policy when the load has begun."""
    target = pair.replica.target
    for number in range(12):
        insert(pair.replica.source, pair.table, [(number, "a")])
    pair.dump()
    slow = {**pair.load_statement.given, "ingestd.repl.bandwidth": "512B"}
    policy = policy_entry("load", str(NEVER), ReplLoad(pair.database, pair.target, slow))
    daemon = daemons.start(target, policy)
    eventually("the policy", lambda: pair.policies(target).find("load"))
    pair.policies(target).execute("load")
    eventually("the load", lambda: _loads(pair))
    return daemon, policy


def test_daemon_when_killed_during_a_load_then_another_one_continues(pair: Pair, daemons: Daemons) -> None:
    target = pair.replica.target
    first, policy = _begun_load(pair, daemons)
    first.kill()
    assert pair.status(target).state is State.RUNNING  # until the metastore ends the execution
    pair.policies(target).execute("load")
    second = daemons.start(target, policy)
    eventually("the end", lambda: [run for run in _loads(pair) if run.status is Status.SUCCESS])
    *_, killed = _loads(pair)
    assert killed.status is not Status.SUCCESS
    assert pair.rows() == [(number, "a") for number in range(12)]
    assert pair.status(target).state is State.IDLE
    second.terminate()
    assert second.wait() == 0


def test_daemon_when_stopped_during_a_load_then_ends_in_time_and_the_next_continues(
    pair: Pair, daemons: Daemons
) -> None:
    target = pair.replica.target
    first, policy = _begun_load(pair, daemons)
    first.terminate()
    assert first.wait() == 0
    assert first.events("policy_stopped")
    second = daemons.start(target, policy)
    eventually("the end", lambda: [run for run in _loads(pair) if run.status is Status.SUCCESS])
    assert pair.rows() == [(number, "a") for number in range(12)]
    second.terminate()
    assert second.wait() == 0
