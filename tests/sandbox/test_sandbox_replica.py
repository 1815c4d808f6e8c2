"""A sandbox with a source and a target of replication: its services, their event logs, and statements on each side."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial

import pytest
import yaml
from hive_metastore import ttypes

from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import describe_transactions
from ingestd.sandbox import TARGET_METASTORE
from ingestd.storage.local import local_path
from tests.support.compaction import compact
from tests.support.replica import Replica, Side
from tests.support.stack import eventually
from tests.support.tables import make_table

from .conftest import Cli

_ACID = "STORED AS ORC TBLPROPERTIES ('transactional'='true', 'no_auto_compaction'='true')"


def test_sandbox_when_started_with_replica_then_has_two_metastores_until_down(cli: Cli) -> None:
    started = cli.run("up", "--replica", "--txn-timeout-seconds", "1", "--housekeeper-seconds", "1")
    assert started.returncode == 0, started.stderr
    states = {state["name"]: state["state"] for state in json.loads(cli.run("status", "--json").stdout)}
    assert states == {
        **dict.fromkeys(("kafka", "metastore", TARGET_METASTORE), "running"),
        **dict.fromkeys(("hiveserver2", "target-hiveserver2"), "stopped"),
    }
    log = partial(cli.run, "logs", TARGET_METASTORE, "-n", "5000")
    eventually("the housekeeper", lambda: "AcidHouseKeeperService" in log().stdout)

    source, target = (yaml.safe_load(part) for part in started.stdout.split("\n\n")[-2:])
    assert source["kafka"] == target["kafka"]
    uris = [side["metastore"]["uri"] for side in (source, target)]
    assert len(set(uris)) == 2
    for uri in uris:
        with closing(Metastore(uri)) as metastore:
            _assert_housekeeping_works(metastore)

    refused = cli.run("up")
    assert refused.returncode == 69
    assert "this sandbox has a source and a target, which cannot change" in refused.stderr
    assert cli.run("down").stdout == f"stopped {TARGET_METASTORE}, metastore, kafka\n"
    assert not cli.processes()


def _assert_housekeeping_works(metastore: Metastore) -> None:
    opened = metastore.call("open_txns", ttypes.OpenTxnRequest(num_txns=1, user="test", hostname="test"))
    eventually("the transaction to time out", lambda: opened.txn_ids[0] not in _open(metastore))


def _open(metastore: Metastore) -> set[int]:
    return {txn.id for txn in describe_transactions(metastore) if txn.state == ttypes.TxnState.OPEN}


def test_up_when_replica_has_a_database_then_refused(cli: Cli) -> None:
    refused = cli.run("up", "--replica", "--metastore-db", "postgresql://u:p@127.0.0.1:9/d")
    assert refused.returncode == 69
    assert "omit --metastore-db" in refused.stderr


def test_clusters_when_a_table_is_created_on_one_then_only_its_event_log_names_it(replica: Replica) -> None:
    name = replica.name("sales")
    logs = [EventLog(side.metastore) for side in (replica.source, replica.target)]
    before = [log.current_id() for log in logs]
    source = replica.source
    source.metastore.call("create_database", ttypes.Database(name=name))
    table = make_table(source.metastore, TableName(name, "t"))
    assert local_path(table.sd.location) == source.warehouse / f"{name}.db" / "t"
    events = [
        [(event.type, event.table) for event in log.read(after, 1000) if event.database == name]
        for log, after in zip(logs, before, strict=True)
    ]
    assert events == [[("CREATE_DATABASE", ""), ("CREATE_TABLE", "t")], []]
    assert name not in replica.target.metastore.call("get_all_databases")


@pytest.mark.soak
@pytest.mark.parametrize("side", ["source", "target"])
def test_statements_when_run_on_a_side_then_work_and_each_commit_names_its_files(replica: Replica, side: str) -> None:
    on = {"source": replica.source, "target": replica.target}[side]
    table = f"{replica.name('shop')}.t"
    database = table.partition(".")[0]
    before = EventLog(on.metastore).current_id()
    on.sql(f"CREATE DATABASE {database}")
    on.sql(f"CREATE TABLE {table} (id int, note string) PARTITIONED BY (day string) {_ACID}")
    on.sql(f"INSERT INTO {table} VALUES (1, 'a', 'x'), (2, 'b', 'x'), (3, 'c', 'y')")
    on.sql(f"UPDATE {table} SET note = 'z' WHERE id = 2")
    on.sql(f"DELETE FROM {table} WHERE id = 1")
    on.sql(
        f"MERGE INTO {table} t USING (SELECT 3 id, 'm' note UNION ALL SELECT 4, 'n') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET note = s.note WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.note, 'x')"
    )
    rows = [(2, "z", "x"), (3, "m", "y"), (4, "n", "x")]
    assert on.sql(f"SELECT * FROM {table} ORDER BY id") == rows
    assert on.sql(f"SELECT count(*) FROM {table}") == [(3,)]
    assert _announced(on, database, before) >= 6

    compact(on, table, "major", "day = 'x'")
    folder = on.warehouse / f"{database}.db" / "t" / "day=x"
    assert [p for p in folder.iterdir() if p.name.startswith("base_")]
    assert on.sql(f"SELECT * FROM {table} ORDER BY id") == rows
    assert on.sql(f"SELECT count(*) FROM {table}") == [(3,)]
    on.sql(f"DROP DATABASE {database} CASCADE")
    assert not folder.exists()


def _announced(side: Side, database: str, after: int) -> int:
    """Return the number of writes that committed transactions have in the event log."""
    log = EventLog(side.metastore)
    commits = [event.message["txnid"] for event in log.read(after, 1000) if event.type == "COMMIT_TXN"]
    return sum(len(log.writes(txn, database)) for txn in commits)
