"""Daemons that replicate, one of them with a mapping: policies, status, metrics, reload, shutdown, and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
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
from tests.support.replica_rows import insert, read_rows, table_of
from tests.support.spark_events import SparkEvents
from tests.support.stack import Stack, eventually


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


def test_daemon_when_it_runs_a_mapping_and_a_policy_then_a_kill_loses_and_repeats_no_row_on_either_side(
    pair: Pair, daemons: Daemons, source_stack: Stack, tmp_path: Path
) -> None:
    source, target = pair.replica.source, pair.replica.target
    loading = daemons.start(target, policy_entry("load", "EVERY SECOND", pair.load_statement))
    source_stack.topic(2)
    mapping = {"name": source_stack.name[-40:], "topics": [source_stack.name], "table": str(pair.table)}
    daemons.sections["kafka"] = {"bootstrap.servers": source_stack.addresses.kafka}
    daemons.sections["mappings"] = [{**mapping, "commit": {"interval": "1s"}}]
    gate, dump = tmp_path / "gate", policy_entry("dump", "EVERY SECOND", pair.dump_statement)
    # The first transaction only takes the mapping over, and the second one has the first rows.
    daemons.environment = {"INGESTD_TESTING": "1", "INGESTD_FAILPOINT": f"placed@3=hold:{gate}"}
    daemon = daemons.start(source, dump)
    rows = [(number, "a") for number in range(300)]
    source_stack.produce_at_once({"id": number, "day": day} for number, day in rows[:100])
    eventually("the first rows", lambda: pair.rows() == rows[:100])
    source_stack.produce_at_once({"id": number, "day": day} for number, day in rows[100:200])
    eventually("a transaction of the mapping", Path(f"{gate}.held").exists)
    pair.insert([(1000, "other")])
    eventually("the rows of another writer", lambda: pair.rows() == [*rows[:100], (1000, "other")])
    client = Client.of(daemon)
    status = client.get("/status").json
    assert [entry["name"] for entry in status["mappings"]] == [mapping["name"]]
    assert [entry["name"] for entry in status["policies"]] == ["dump"]
    metrics = client.get("/metrics").text
    assert f'ingestd_lag_offsets{{mapping="{mapping["name"]}"}}' in metrics
    assert 'ingestd_policy_lag_events{policy="dump"}' in metrics
    daemon.kill()

    daemons.environment = {}
    daemons.sections["http"] = {"listen": "off"}  # so that `ingestd status` asks no daemon
    config = daemons.configure(source, dump)
    stored = _json_of("status", config)
    assert [entry["name"] for kind in ("mappings", "policies") for entry in stored[kind]] == [mapping["name"], "dump"]
    daemon = daemons.start(source, dump)
    source_stack.produce_at_once({"id": number, "day": day} for number, day in rows[200:])
    eventually("all rows", lambda: len(pair.rows()) > len(rows))
    assert pair.rows() == [*rows, (1000, "other")]
    assert read_rows(source.metastore, pair.table) == pair.rows()
    findings = {(found["check"], found["subject"]): found for found in _json_of("doctor", config)["findings"]}
    assert findings["mapping.lease", f"mapping {mapping['name']}"]["status"] == "ok"
    assert findings["replication.policies", "replication"]["evidence"].startswith("policy dump: ")
    for process in (daemon, loading):
        process.terminate()
        assert process.wait() == 0


def _json_of(command: str, config: Path) -> Any:
    """Return the document of a command."""
    arguments = [sys.executable, "-m", "ingestd", command, "--config", str(config), "--output", "json"]
    return json.loads(subprocess.run(arguments, capture_output=True, text=True, check=False).stdout)


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
