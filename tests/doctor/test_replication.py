"""The doctor examines the event log of a source, the time-outs of a target, and the states of policies."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from ingestd.hive.client import Metastore
from ingestd.hive.schedules import Schedules
from ingestd.hive.tables import TableName
from ingestd.replication import cycle
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Step
from ingestd.replication.directory.protocol import Dump, DumpDirectory
from ingestd.replication.policies.store import Policies
from ingestd.replication.statements.grammar import CreatePolicy, ReplDump, ReplLoad
from ingestd.replication.statements.scope import Scope
from ingestd.sandbox import Addresses
from ingestd.sandbox.release import with_events
from ingestd.storage.storages import Storages
from tests.doctor.conftest import Examine
from tests.support.metastore import Home, metastore
from tests.support.replica import Side
from tests.support.replica_policies import NEVER, Pair
from tests.support.replica_tables import make_database, make_table
from tests.support.stack import eventually

TIME_TO_LIVE = "metastore.event.db.listener.timetolive"


def _config(folder: Path, uri: str, namespace: str) -> Path:
    document = {
        "metastore": {"uri": uri},
        "control": {"database": namespace},
        "replication": {"namespace": namespace},
    }
    config = folder / "doctor.yaml"
    config.write_text(yaml.safe_dump(document))
    return config


def test_doctor_when_policies_work_or_have_stopped_then_says_so(pair: Pair, examine: Examine, tmp_path: Path) -> None:
    source: Side = pair.replica.source
    config = _config(tmp_path, source.uri, pair.namespace)
    empty = examine(config)
    assert empty.one("replication.policies")["evidence"] == "there is no policy yet"
    assert "needs no event log" in empty.one("replication.event_log")["evidence"]

    pair.create()
    pair.dump(Step("dump"))
    pair.load(Step("load"))
    healthy = examine(config)
    assert not {check for check in healthy.bad if check.startswith("replication")}
    assert "events are kept for 168 h" in healthy.one("replication.event_log")["evidence"]
    assert healthy.one("replication.policies")["evidence"].startswith("policy dump: idle; ")

    directory = next(path for path in pair.root.glob("*/*") if path.is_dir())
    (directory / "_non_recoverable").write_text("EventsExpired: the log lacks events")
    stopped = examine(config)
    found = stopped.one("replication.policies")
    assert (found["status"], found["exit_code"]) == ("fault", 65)
    assert found["evidence"] == "policy dump: needs bootstrap: EventsExpired: the log lacks events"
    assert "ingestd policy resume --bootstrap" in found["fix"]

    target = examine(_config(tmp_path, pair.replica.target.uri, pair.namespace))
    assert target.one("replication.transaction_timeout")["evidence"] == "hive.repl.txn.timeout is 950,400 s"


def test_doctor_when_the_metastore_of_a_source_logs_no_events_then_fault(
    pair: Pair, addresses: Addresses, examine: Examine, tmp_path: Path
) -> None:
    config = _config(tmp_path, addresses.metastore, pair.namespace)
    with closing(Metastore(addresses.metastore)) as metastore:
        policies = Policies(metastore, Schedules(metastore, pair.namespace, "tests"), pair.namespace)
        policies.create(CreatePolicy("dump", NEVER, pair.dump_statement))
        found = examine(config).one("replication.event_log")
        policies.drop("dump")
        metastore.call("drop_database", pair.namespace, True, True)
    assert found["status"] == "fault"
    assert "the metastore logs no events, which dump would dump" in found["evidence"]
    assert "DbNotificationListener" in found["fix"]


def test_doctor_when_a_target_is_behind_for_half_of_the_time_of_events_then_warns(
    processes: None, examine: Examine, tmp_path: Path
) -> None:
    root = f"file:{tmp_path}/dumps"
    (tmp_path / "dumps").mkdir()
    with (
        metastore(Home(tmp_path / "home", release=with_events()), "source", {f"hive.{TIME_TO_LIVE}": "4s"}) as server,
        closing(Metastore(server.uri)) as client,
    ):
        config = _config(tmp_path, server.uri, "policies")
        make_database(client, "here")
        statement = ReplDump(Scope("here"), {"hive.repl.rootdir": root})
        Policies(client, Schedules(client, "policies", "tests"), "policies").create(
            CreatePolicy("dump", NEVER, statement)
        )
        cycle.dump(Cluster(client, Storages()), statement, Step("dump"), threading.Event())
        directory = DumpDirectory(Storages(), root, "here")
        dumped = directory.begin_load()
        assert isinstance(dumped, Dump)
        directory.finish_load(dumped)
        make_table(client, TableName("here", "t"))

        def warned() -> dict[str, Any] | None:
            found = examine(config).one("replication.policies")
            return found if found["status"] == "warning" else None

        warning = eventually("a lag of two seconds", warned)
    assert warning["evidence"].startswith("policy dump: idle; ")
    assert warning["evidence"].endswith(" s behind, and the metastore removes events after 4 s")
    assert TIME_TO_LIVE in warning["fix"]


def test_doctor_when_replicated_transactions_time_out_before_others_then_warns(
    processes: None, examine: Examine, tmp_path: Path
) -> None:
    properties = {"hive.repl.txn.timeout": "200s", "hive.txn.timeout": "300s"}
    with metastore(Home(tmp_path / "home"), "target", properties) as server:
        config = _config(tmp_path, server.uri, "policies")
        name = "replication.transaction_timeout"
        assert "has no replicated transactions" in examine(config).one(name)["evidence"]
        with closing(Metastore(server.uri)) as client:
            policies = Policies(client, Schedules(client, "policies", "tests"), "policies")
            statement = ReplLoad("here", "there", {"hive.repl.rootdir": f"file:{tmp_path}"})
            policies.create(CreatePolicy("load", NEVER, statement))
        found = examine(config).one(name)
    assert found["status"] == "warning"
    assert found["evidence"].startswith("hive.repl.txn.timeout is 200 s, less than hive.txn.timeout (300 s): ")
    assert "by default 11d" in found["fix"]
