"""A copy follows its source if both, and the dumps between them, are in HDFS or in S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.hive.tables import TableName
from ingestd.replication.cluster import Cluster
from ingestd.sandbox import HDFS, METASTORE, TARGET_METASTORE, Sandbox, SandboxOptions
from ingestd.sandbox.options import S3
from ingestd.storage.contract import child
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from tests.support.compaction import compact
from tests.support.hdfs import hdfs
from tests.support.replica import Replica, Side
from tests.support.replica_policies import Pair
from tests.support.replica_rows import table_of

ACID = "STORED AS ORC TBLPROPERTIES ('transactional'='true', 'no_auto_compaction'='true')"


@dataclass(frozen=True)
class _Remote(Pair):
    """A pair without files on this machine. The target, and the root of dumps, are below the URI `place`."""

    options: StorageOptions = field(default_factory=StorageOptions)
    place: str = ""

    def cluster(self, side: Side) -> Cluster:
        return Cluster(side.metastore, Storages(self.options))

    @property
    def root_uri(self) -> str:
        return child(self.place, "dumps")

    @property
    def external_base(self) -> str:
        return child(self.place, "external")


@pytest.fixture(scope="module", params=[pytest.param(HDFS, marks=pytest.mark.soak), S3])
def remote(
    processes: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Remote]:
    """Yield an empty pair of two HDFS clusters, or of one S3 server."""
    folder = tmp_path_factory.mktemp("remote")
    box = Sandbox(SandboxOptions(folder / "state", storage=request.param, replica=True, metastore_heap_mb=256))
    with ExitStack() as ends:
        ends.callback(box.down)
        services = box.options.storage_services(request.param)
        box.start_service(*services, METASTORE, TARGET_METASTORE)
        replica = Replica(box)
        ends.callback(replica.source.close)
        ends.callback(replica.target.close)
        other = ends.enter_context(hdfs(folder / "other")).root if request.param == HDFS else "s3a://warehouse"
        conf = box.addresses().hadoop_conf_dir
        assert conf
        options = StorageOptions(hadoop_conf_dir=Path(conf))
        names = replica.name("here"), replica.name("there"), replica.name("policies")
        made = _Remote(replica, folder, *names, options=options, place=child(other, "copies"))
        for directory in (made.root_uri, made.external_base):
            Storages(options).at(directory).make_directories(directory)
        replica.source.metastore.call("create_database", ttypes.Database(name=made.database))
        place = {"locationUri": child(made.place, "unmanaged"), "managedLocationUri": child(made.place, "managed")}
        replica.target.metastore.call("create_database", ttypes.Database(name=made.target, **place))
        yield made


def test_copy_when_both_sides_and_the_dumps_are_in_a_storage_then_follows_its_source(remote: _Remote) -> None:
    source, target, database = remote.replica.source, remote.replica.target, remote.database
    for statement in (
        f"CREATE TABLE {database}.plain (id INT, day STRING) {ACID}",
        f"CREATE TABLE {database}.parted (id INT) PARTITIONED BY (day STRING) {ACID}",
        f"CREATE EXTERNAL TABLE {database}.outside (id INT) STORED AS ORC",
        *(f"INSERT INTO {database}.{table} VALUES (1, 'a'), (2, 'b')" for table in ("plain", "parted")),
        f"INSERT INTO {database}.outside VALUES (1)",
    ):
        source.sql(statement)
    _follow(remote, "BOOTSTRAP")
    for statement in (
        f"INSERT INTO {database}.plain VALUES (3, 'c')",
        f"UPDATE {database}.plain SET day = 'x' WHERE id = 1",
        f"INSERT OVERWRITE TABLE {database}.parted PARTITION (day = 'a') SELECT id FROM {database}.plain",
        f"INSERT INTO {database}.parted VALUES (4, 'd')",
        f"INSERT INTO {database}.outside VALUES (2)",
    ):
        source.sql(statement)
    _follow(remote, "INCREMENTAL")
    remote.assert_equal()
    for side, name in ((source, database), (target, remote.target)):
        compact(side, f"{name}.plain", "major")
    source.sql(f"DELETE FROM {database}.plain WHERE id = 2")
    _follow(remote, "INCREMENTAL")
    remote.assert_equal()
    assert sorted(target.sql(f"SELECT * FROM {remote.target}.plain")) == [(1, "x"), (3, "c")]
    copies = [table_of(target.metastore, TableName(remote.target, name)) for name in ("plain", "parted", "outside")]
    assert all(copy.location.startswith(f"{remote.place}/") for copy in copies)


def _follow(remote: _Remote, phase: str) -> None:
    """Dump and load."""
    dumped = remote.dump()
    loaded = remote.load()
    assert (dumped.progress.phase, loaded.lost, loaded.missing) == (phase, (), ())
