"""The doctor names the error of a cleaner that has failed, and the cure of a known one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import yaml

from ingestd.hive.compactions import read_compactions
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import begin
from ingestd.sandbox import Sandbox, SandboxOptions
from ingestd.sandbox.release import with_events
from ingestd.storage.storages import Storages
from tests.doctor.conftest import Examine
from tests.support.metastore import Home, metastore
from tests.support.replica import Side
from tests.support.replica_compaction import compact_first_write
from tests.support.replica_rows import insert
from tests.support.replica_tables import make_table
from tests.support.stack import eventually


def test_cleaner_when_it_fails_because_the_oldest_transaction_is_open_then_names_the_setting(
    examine: Examine, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home", release=with_events())
    with metastore(home, "metastore", {}) as server:
        box = Sandbox(SandboxOptions(tmp_path))
        with closing(Side("source", server.uri, (tmp_path / "warehouse").as_uri(), box)) as side:
            begin(side.metastore, "tests")
            name = TableName("default", "t")
            make_table(side.metastore, name)
            insert(side, name, [(1, "a")])
            compact_first_write(side.metastore, Storages(), name)
            eventually("the error", lambda: [entry for entry in read_compactions(side.metastore) if entry.error])
        config = tmp_path / "doctor.yaml"
        namespace = {"control": {"database": "control"}, "replication": {"namespace": "control"}}
        config.write_text(yaml.safe_dump({"metastore": {"uri": server.uri}, **namespace}))
        found = examine(config).one("compaction.cleaner")
    assert found["status"] == "warning"
    assert "the cleaner has failed for default.t: java.lang.NumberFormatException" in found["evidence"]
    assert "metastore.txn.use.minhistorywriteid=false" in found["fix"]
