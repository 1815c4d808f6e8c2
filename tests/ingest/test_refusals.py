"""A service that answers no stops a mapping after a few retries; the error has its words, the object and a hint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.hive.client import Metastore
from ingestd.hive.security import Security
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import open_transactions
from ingestd.sandbox.state import Layout
from ingestd.storage.local import local_path
from ingestd.streaming import HiveStreamingConnection, SerializationError, StrictJsonWriter
from tests.support.files import files_below
from tests.support.metastore import Home, Process, metastore
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
                for one in privileges:
                    client.call("grant_privileges", _grant(user, one))
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
    assert len(daemon.events("waiting")) == 2
    assert open_transactions(stack.metastore, f"ingestd/{database}/") == []
    assert stack.ids() == []


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

        skipped = stack.drain(_config(stack, strict, on_error="skip"))
        assert sum(one.get("rejects", 0) for one in skipped.events("committed")) == 2
        assert visible_ids(client, name) == [0, 2, 4]
        assert open_transactions(client, "ingestd/ingestd/") == []
        table = local_path(load_acid_table(client, name).location)
        assert files_below(table / ".ingestd-staging") == []

        with HiveStreamingConnection(
            metastore_uri=strict.uri, database="default", table=stack.name, record_writer=StrictJsonWriter()
        ) as connection:
            connection.begin_transaction()
            records = [json.dumps({"id": n, "note": "n", "day": day}).encode() for n, day in enumerate(days, 10)]
            with pytest.raises(SerializationError, match="whitelist") as caught:
                connection.write(records)
            assert [(one.index, one.column) for one in caught.value.rejects] == [(1, "day"), (3, "day")]
            connection.commit_transaction()
        assert visible_ids(client, name) == [0, 2, 4, 10, 12, 14]
