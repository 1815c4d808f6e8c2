"""A service that answers no stops a mapping after a few retries; the error has its words, the object and a hint."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.clock import Deadline
from ingestd.config.document import load
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.objects import drop_partitions
from ingestd.hive.parameters import WriterView, change_parameters, read_parameters
from ingestd.hive.partitions import ensure_partitions
from ingestd.hive.security import Security
from ingestd.hive.statistics import distrust_counts
from ingestd.hive.tables import Table, TableName, as_acid_table, load_acid_table
from ingestd.hive.transactions import Wait, open_transactions
from ingestd.hive.write_ids import read_snapshot
from ingestd.ingest.letters.reader import Selection
from ingestd.ingest.offline.replay import replay
from ingestd.publish.warehouse import Warehouse
from ingestd.sandbox.state import Layout
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from ingestd.streaming import HiveStreamingConnection, SerializationError, StrictJsonWriter
from tests.support.daemon import shared_engine
from tests.support.files import files_below
from tests.support.metastore import Home, Process, metastore
from tests.support.patience import LIMIT
from tests.support.stack import Stack
from tests.support.tables import make_table, visible_ids

_SOON = {"retries": 2, "period": "300ms"}
_LISTENER = "org.apache.hadoop.hive.ql.security.authorization.AuthorizationPreEventListener"
_PROVIDER = "org.apache.hadoop.hive.ql.security.authorization.DefaultHiveMetastoreAuthorizationProvider"
# The metastore checks who may alter a table, and accepts only ASCII in the names of partitions.
_STRICT = {
    "metastore.pre.event.listeners": _LISTENER,
    "hive.security.metastore.authorization.manager": _PROVIDER,
    "metastore.partition.name.whitelist.pattern": r"[\x20-\x7E]*",
}


@pytest.fixture(scope="module")
def strict(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Yield a metastore in which `owner` may do everything, and `writer` may write tables, but not alter them."""
    home = Home(tmp_path_factory.mktemp("strict") / "home")
    with metastore(home, "strict", _STRICT) as server:
        with closing(_client(server, "owner")) as client:
            for user, privileges in (("owner", ["All"]), ("writer", ["Select", "Create", "Update"])):
                for privilege in privileges:
                    client.call("grant_privileges", _grant(user, privilege))
        yield server


def _grant(user: str, privilege: str) -> Any:
    everything = ttypes.HiveObjectRef(objectType=ttypes.HiveObjectType.GLOBAL, partValues=[])
    kind = ttypes.PrincipalType.USER
    info = ttypes.PrivilegeGrantInfo(privilege, 0, "owner", kind, grantOption=False)
    return ttypes.PrivilegeBag([ttypes.HiveObjectPrivilege(everything, user, kind, info, "SQL")])


def _client(server: Process, user: str) -> Metastore:
    return Metastore(server.uri, security=Security(unsecured_user=user))


def _config(stack: Stack, server: Process, **mapping: Any) -> Path:
    """Write the configuration of a mapping of `server`, which sees the user of the environment."""
    return stack.config({"refusals": _SOON} | mapping, metastore={"uri": server.uri})


def test_control_database_when_the_metastore_cannot_create_it_then_the_error_names_its_key(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int")
    stack.produce([{"id": 1}])
    database = f"{stack.name[-30:]}_control"
    # The metastore runs as a user who may write everywhere, so a file is in the way of the directory.
    place = Layout(Path(stack.addresses.state_dir)).data / "external" / f"{database}.db"
    place.write_bytes(b"")
    try:
        daemon = stack.drain(stack.config({"refusals": _SOON}, control={"database": database}), expect=65)
    finally:
        place.unlink()
    [failed] = daemon.events("failed")
    assert failed["reason"] == "MetastoreDeclined"
    assert "Failed to create external path" in failed["error"]
    assert f"control.database {database}" in failed["error"]
    assert "set control.database to one in which this user may" in failed["error"]
    assert [event["reason"] for event in daemon.events("waiting")].count("MetastoreDeclined") >= 2
    assert open_transactions(stack.metastore, f"ingestd/{database}/") == []
    assert stack.ids() == []


def test_storage_when_it_denies_a_permission_then_the_mapping_stops_and_leaves_nothing_behind(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int")
    stack.produce([{"id": 1}])
    table = local_path(load_acid_table(stack.metastore, TableName("default", stack.name)).location)
    place = table / ".ingestd-staging"
    place.mkdir()
    # No permission hinders root, but an immutable directory does.
    denied = subprocess.run(["chattr", "+i", str(place)], capture_output=True, text=True, check=False)
    if denied.returncode:
        pytest.skip(f"an immutable directory is not possible: {denied.stderr.strip()}")
    config = stack.config({"refusals": _SOON})
    try:
        daemon = stack.drain(config, expect=77)
    finally:
        subprocess.run(["chattr", "-i", str(place)], check=True)
    [failed] = daemon.events("failed")
    assert failed["reason"] == "PermissionDenied"
    assert ".ingestd-staging" in failed["error"]
    assert [event["reason"] for event in daemon.events("waiting")].count("PermissionDenied") >= 2
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name[-40:]}/") == []
    assert files_below(table) == []
    stack.drain(config)
    assert stack.ids() == [1]


def test_rows_when_the_user_may_not_alter_their_table_then_they_are_committed_without_counts(
    stack: Stack, strict: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "writer")
    stack.topic(1)
    stack.produce({"id": n, "note": "n", "day": "a"} for n in range(4))
    names = [TableName("default", f"{stack.name}_{kind}") for kind in ("whole", "parts")]
    mappings = [
        {"name": name.table[-40:], "table": str(name), "refusals": _SOON, "commit": {"rows": 2, "interval": "100ms"}}
        for name in names
    ]
    with closing(_client(strict, "owner")) as client:
        tables = [as_acid_table(make_table(client, name, partitioned=name is names[1]), frozenset()) for name in names]
        ensure_partitions(client, tables[1], {"day=a": ["a"]}, lambda _names: None)
        for table in tables:
            _claim_rows(client, table, 7)
        daemon = stack.drain(stack.config(*mappings, metastore={"uri": strict.uri}))
        assert {event["mapping"] for event in daemon.events("committed") if event["rows"]} == {
            m["name"] for m in mappings
        }
        for name, table in zip(names, tables, strict=True):
            assert visible_ids(client, name) == [0, 1, 2, 3]
            [found] = read_parameters(client, table, ["day=a"])
            assert "BASIC_STATS" not in found.values.get("COLUMN_STATS_ACCURATE", "")
        # The check of the whole table may also report that a commit holds the counting lease.
        denied = [event for event in daemon.events("row_counts_delayed") if event["reason"] == "MetastoreDenied"]
        assert {event["mapping"] for event in denied} == {mapping["name"] for mapping in mappings}
        assert all("No privilege 'Alter' found" in event["error"] for event in denied)
        assert all("grant the user writer" in event["error"] for event in denied)


def test_counts_when_distrusted_then_hive_reads_the_rows(stack: Stack) -> None:
    for kind, by, rows in (("whole", "", "(1), (2)"), ("parts", "day string", "(1, 'a'), (2, 'a')")):
        name = TableName("default", f"{stack.name}_{kind}")
        stack.table("id int", by, name=str(name))
        stack.sql(f"INSERT INTO {name} VALUES {rows}")
        table = load_acid_table(stack.metastore, name)
        _claim_rows(stack.metastore, table, 7)
        assert stack.count(name=str(name)) == 7  # Hive trusts the number
        _distrust(stack.metastore, table)
        assert stack.count(name=str(name)) == 2


@pytest.mark.parametrize(
    ("by", "rows", "last_read"),
    [
        ("", "(1), (2)", "get_table_req"),
        ("day string", "(1, 'a'), (2, 'a')", "get_partitions_statistics_req"),
    ],
    ids=["whole", "parts"],
)
def test_counts_when_two_writers_distrust_them_at_once_then_hive_reads_the_rows(
    stack: Stack, by: str, rows: str, last_read: str
) -> None:
    stack.table("id int", by)
    stack.sql(f"INSERT INTO {stack.name} VALUES {rows}")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    _claim_rows(stack.metastore, table, 7)
    calls: list[str] = []

    def let_the_other_finish(method: str, _seconds: float, _outcome: str) -> None:
        """Let the other writer distrust the number when this one has read that Hive trusts it."""
        calls.append(method)
        if method == last_read and calls.count(last_read) == 1:
            _distrust(stack.metastore, table)

    with closing(Metastore(stack.addresses.metastore, on_call=let_the_other_finish)) as slower:
        _distrust(slower, table)
    assert any("column_statistics" in call for call in calls)  # it has not read what the other one stored
    [stored] = read_parameters(stack.metastore, table, ["day=a"])
    assert "COLUMN_STATS_ACCURATE" not in stored.values
    assert stack.count() == 2


def test_counts_when_a_partition_is_dropped_meanwhile_then_those_of_the_others_are_distrusted(stack: Stack) -> None:
    stack.table("id int", "day string")
    stack.sql(f"INSERT INTO {stack.name} VALUES (1, 'a'), (2, 'b')")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    names = ["day=a", "day=b"]
    before = [parameters.values for parameters in read_parameters(stack.metastore, table, names)]
    assert ["BASIC_STATS" in values.get("COLUMN_STATS_ACCURATE", "") for values in before] == [True, True]
    txn, write_id = transactions.begin_writing(stack.metastore, table.name, "tests")

    def drop_one(method: str, _seconds: float, _outcome: str) -> None:
        """Drop a partition when its statistics have been read."""
        if method == "get_partitions_statistics_req":
            drop_partitions(stack.metastore, table.name, ["day=a"], delete_data=True)

    with closing(Metastore(stack.addresses.metastore, on_call=drop_one)) as client:
        distrust_counts(client, table, names, write_id)
    transactions.commit(stack.metastore, txn)
    [stored] = read_parameters(stack.metastore, table, names)
    assert stored.name == "day=b"
    assert "COLUMN_STATS_ACCURATE" not in stored.values


def _distrust(client: Metastore, table: Table) -> None:
    txn, write_id = transactions.begin_writing(client, table.name, "tests")
    distrust_counts(client, table, ["day=a"], write_id)
    transactions.commit(client, txn)


def _claim_rows(client: Metastore, table: Table, rows: int) -> None:
    """Store a number of rows that Hive trusts."""
    txn, write_id = transactions.begin_writing(client, table.name, "tests")
    view = WriterView(write_id, read_snapshot(client, table.name))
    claimed = {"numRows": str(rows), "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
    wait = Wait(Deadline.after(LIMIT), threading.Event())
    change_parameters(
        client, table, ["day=a"], lambda found: [{**parameters.values, **claimed} for parameters in found], view, wait
    )
    transactions.commit(client, txn)


def test_partition_when_the_metastore_refuses_its_value_then_its_records_are_rejects(
    stack: Stack, strict: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "owner")
    stack.topic(1)
    days = ["a", "Zürich", "b", "Genève", "c"]
    stack.produce({"id": n, "note": "n", "day": day} for n, day in enumerate(days))
    name = TableName("default", stack.name)
    with closing(_client(strict, "owner")) as client:
        make_table(client, name, partitioned=True)
        stopped = stack.drain(_config(stack, strict), expect=65)
        [failed] = stopped.events("failed")
        assert failed["reason"] == "RecordError"
        assert f"{stack.name}[0] offset 1, column day" in failed["error"]
        assert "Partition value 'Zürich' contains a character not matched by whitelist pattern" in failed["error"]
        assert visible_ids(client, name) == []

        computed = {
            "columns": {"id": "int", "day": "string"},
            "select": "SELECT id, upper(day) AS day FROM records",
        }
        stopped = stack.drain(_config(stack, strict, name=f"{stack.name[-30:]}_sql", transform=computed), expect=65)
        [failed] = stopped.events("failed")
        assert f"{stack.name}[0] offset 1, transform.select, column day" in failed["error"]
        assert "Partition value 'ZÜRICH' contains a character" in failed["error"]
        assert visible_ids(client, name) == []

        skipped = stack.drain(_config(stack, strict, on_error="skip"))
        assert sum(event.get("rejects", 0) for event in skipped.events("committed")) == 2
        assert visible_ids(client, name) == [0, 2, 4]
        assert open_transactions(client, "ingestd/ingestd/") == []
        table = local_path(load_acid_table(client, name).location)
        assert files_below(table / ".ingestd-staging") == []

        letters = {"on_error": "dead_letter", "dead_letter": {"table": f"default.{stack.name}_dead"}}
        config = _config(stack, strict, name=f"{stack.name[-30:]}_dead", start="earliest", **letters)
        stack.drain(config)
        assert visible_ids(client, name) == [0, 0, 2, 2, 4, 4]
        [options] = load([config]).mappings
        remaining = replay(Warehouse(client, Storages(load([config]).storage)), options, Selection(), shared_engine)
        assert (remaining.replayed, sum(group.count for group in remaining.remaining)) == (0, 2)
        assert visible_ids(client, name) == [0, 0, 2, 2, 4, 4]

        with HiveStreamingConnection(
            metastore_uri=strict.uri, database="default", table=stack.name, record_writer=StrictJsonWriter()
        ) as connection:
            connection.begin_transaction()
            records = [json.dumps({"id": n, "note": "n", "day": day}).encode() for n, day in enumerate(days, 10)]
            with pytest.raises(SerializationError, match="whitelist") as caught:
                connection.write(records)
            assert [(reject.index, reject.column) for reject in caught.value.rejects] == [(1, "day"), (3, "day")]
            connection.commit_transaction()
        assert visible_ids(client, name) == [0, 0, 2, 2, 4, 4, 10, 12, 14]
