"""The change manager of a source on HDFS keeps the files that are removed between a commit and its load."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest
from hive_metastore import ttypes

from ingestd import java
from ingestd.clock import Deadline
from ingestd.hive.client import Metastore
from ingestd.hive.objects import drop_partitions
from ingestd.hive.partitions import ensure_partitions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import Wait, WriteLock, begin_writing, commit, lock, register_partitions
from ingestd.replication import cycle
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Result, Step
from ingestd.replication.statements.grammar import ReplDump, ReplLoad
from ingestd.replication.statements.scope import Scope
from ingestd.sandbox import HDFS, METASTORE, NAMENODE, TARGET_METASTORE, Sandbox, SandboxOptions, jars
from ingestd.sandbox.options import DATANODE
from ingestd.storage.contract import child
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from tests.support.patience import LIMIT
from tests.support.replica_compaction import compact_first_write, is_cleaned
from tests.support.replica_rows import table_of
from tests.support.replica_tables import make_database, make_table
from tests.support.stack import eventually

DELTA, FILE = "delta_0000001_0000001_0000", "bucket_00000"
SOURCE, TARGET = "here", "there"


@dataclass(frozen=True)
class Hadoop:
    """Two metastores whose warehouses are on one HDFS, and the root of dumps."""

    source: Metastore
    target: Metastore
    conf: Path
    root: str

    @property
    def storages(self) -> Storages:
        return Storages(StorageOptions(hadoop_conf_dir=self.conf))

    def dump(self) -> Result:
        statement = ReplDump(Scope(SOURCE), {"hive.repl.rootdir": self.root})
        return cycle.dump(Cluster(self.source, self.storages), statement, Step(), threading.Event())

    def load(self) -> Result:
        statement = ReplLoad(SOURCE, TARGET, {"hive.repl.rootdir": self.root})
        return cycle.load(Cluster(self.target, self.storages), statement, {}, None, Step(), threading.Event())

    def checksum(self, uri: str) -> str:
        """Return the checksum of a file as Hive's writers announce it; the command prints the same digits."""
        command = [str(java.find_java() / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-cp"]
        command += [f"{self.conf}:{jars.folder()}/hdfs/*", "org.apache.hadoop.fs.FsShell", "-checksum", uri]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]

    def write(self, name: TableName, content: bytes, partition: str = "") -> None:
        """Write and announce a file in a transaction, as HiveServer2 does."""
        txn, write_id = begin_writing(self.source, name, "tests/writer")
        if partition:
            register_partitions(self.source, txn, name, write_id, [partition])
            values = [unquote(partition.partition("=")[2])]
            table = load_acid_table(self.source, name)
            made = ensure_partitions(self.source, table, {partition: values}, lambda _names: None)
            location = made[partition].location
        else:
            wait = Wait(Deadline.after(LIMIT), threading.Event())
            lock(self.source, txn, [WriteLock(name)], wait=wait)
            location, values = table_of(self.source, name).location, []
        storage = self.storages.at(location)
        storage.make_directories(child(location, DELTA))
        uri = child(location, DELTA, FILE)
        storage.write(uri, content)
        files = ttypes.InsertEventRequestData(
            replace=True, filesAdded=[uri], filesAddedChecksum=[self.checksum(uri)], subDirectoryList=[DELTA]
        )
        names = {"db": name.database, "table": name.table}
        request = ttypes.WriteNotificationLogRequest(
            txnId=txn.id, writeId=write_id, fileInfo=files, partitionVals=values or None, **names
        )
        self.source.call("add_write_notification_log", request)
        commit(self.source, txn)

    def copied(self, table: str, *partition: str) -> bytes:
        """Return the content of the copy of a file."""
        location = table_of(self.target, TableName(TARGET, table)).location
        return self.storages.at(location).read(child(location, *partition, DELTA, FILE))


@pytest.fixture(scope="module")
def hadoop(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    folder = tmp_path_factory.mktemp("hadoop")
    box = Sandbox(SandboxOptions(folder / "state", storage=HDFS, replica=True, metastore_heap_mb=256))
    try:
        box.start_service(NAMENODE, DATANODE, METASTORE, TARGET_METASTORE)
        found = box.addresses()
        assert found.hadoop_conf_dir
        assert found.target_metastore
        (folder / "dumps").mkdir()
        conf, root = Path(found.hadoop_conf_dir), f"file:{folder}/dumps"
        made = Hadoop(Metastore(found.metastore), Metastore(found.target_metastore), conf, root)
        yield made
        made.source.close()
        made.target.close()
    finally:
        box.down()


@pytest.mark.soak
def test_files_when_removed_before_the_load_then_are_copied_from_the_change_manager(hadoop: Hadoop) -> None:
    plain, early, parted = (TableName(SOURCE, name) for name in ("plain", "early", "parted"))
    make_database(hadoop.source, SOURCE)
    for name in (plain, early, parted):
        make_table(hadoop.source, name, partitioned=name == parted)
    hadoop.dump()
    hadoop.load()
    contents = {name: f"{name.table} ".encode() * 1000 for name in (plain, early, parted)}
    hadoop.write(plain, contents[plain])
    hadoop.write(early, contents[early])
    hadoop.write(parted, contents[parted], "day=b%3Ac")
    compact_first_write(hadoop.source, hadoop.storages, early)
    eventually("the cleaner", lambda: is_cleaned(hadoop.source, hadoop.storages, early))
    hadoop.dump()  # finds a file that is in the archive already
    compact_first_write(hadoop.source, hadoop.storages, plain)
    dropped = child(table_of(hadoop.source, parted).location, "day=b%3Ac")
    drop_partitions(hadoop.source, parted, ["day=b%3Ac"], delete_data=True)
    assert not hadoop.storages.at(dropped).exists(dropped)
    eventually("the cleaner", lambda: is_cleaned(hadoop.source, hadoop.storages, plain))
    report = hadoop.load()
    assert (report.lost, report.progress.counts.get("TABLES")) == ((), None)
    assert hadoop.copied("plain") == contents[plain]
    assert hadoop.copied("early") == contents[early]
    assert hadoop.copied("parted", "day=b%3Ac") == contents[parted]
