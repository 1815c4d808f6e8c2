"""HDFS that fails: each error has a clear message within the time limit, and the same storage works afterwards."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ingestd.errors import ConfigError, StorageUnavailable
from ingestd.sandbox import DATANODE, NAMENODE
from ingestd.storage.contract import NoSpace, PermissionDenied, StagedDelta, child
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.options import HdfsOptions, StorageOptions
from ingestd.storage.storages import Storages
from tests.support.hdfs import Cluster, hdfs, stage
from tests.support.patience import LIMIT
from tests.support.stack import eventually
from tests.support.threads import limited_threads

TIMEOUT = 5.0
LATE = f"not answered within {TIMEOUT:.0f} s"


@pytest.fixture(scope="module")
def own(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield an HDFS whose services the tests stop."""
    with hdfs(tmp_path_factory.mktemp("hdfs-faults") / "state") as running:
        yield running


@pytest.fixture
def table(own: Cluster, request: pytest.FixtureRequest) -> str:
    uri = child(own.root, request.node.name[:60])
    own.storage().make_directory(uri)
    return uri


def _works(storage: HdfsStorage, table: str, name: str) -> bool:
    """Stage and publish a file; False if the storage is unavailable."""
    try:
        location = storage.location(table)
        staging = location.make_directory(".staging", name)
        (staged,) = stage(storage, staging, "task", b"content")
        delta = StagedDelta(location, name, {"bucket_00000": staged}, {}, child(staging, "d"), f".{name}")
        storage.publish([delta], storage)
    except StorageUnavailable:
        return False
    return storage.read(child(table, name, "bucket_00000")) == b"content"


def test_namenode_when_killed_then_requests_fail_fast_and_succeed_after_its_restart(own: Cluster, table: str) -> None:
    storage = own.storage(TIMEOUT)
    assert _works(storage, table, "delta_1")
    own.box.stop_service(NAMENODE, kill=True)
    for call in (lambda: storage.exists(table), lambda: storage.write(child(table, "f"), b"x")):
        with pytest.raises(StorageUnavailable, match=r"refused|disconnected"):
            call()
    own.box.start_service(NAMENODE)
    eventually("the storage to work", lambda: _works(storage, table, "delta_2"))
    assert storage.read(child(table, "delta_1", "bucket_00000")) == b"content"


def test_namenode_when_suspended_then_requests_end_in_time_and_their_threads_are_used_again(
    own: Cluster, table: str
) -> None:
    storage = own.storage(TIMEOUT)
    assert _works(storage, table, "delta_1")
    own.box.pause_service(NAMENODE)
    try:
        for _ in range(3):
            with pytest.raises(StorageUnavailable, match=LATE):
                storage.entries(table)
        assert not _works(storage, table, "delta_2")
        storage.discard(table)
    finally:
        own.box.resume_service(NAMENODE)
    # The request of `discard` was sent, so it is executed later.
    eventually("the table to be removed", lambda: not storage.exists(table))
    threads = limited_threads()
    assert all(storage.exists(own.root + "/") for _ in range(100))
    assert limited_threads() <= threads


def test_namenode_when_in_safe_mode_then_reads_work_and_writes_say_so(own: Cluster, table: str) -> None:
    storage = own.storage()
    assert _works(storage, table, "delta_1")
    own.admin("-safemode", "enter")
    try:
        assert storage.read(child(table, "delta_1", "bucket_00000")) == b"content"
        writes: tuple[Callable[[], object], ...] = (
            lambda: storage.write(child(table, "f"), b"x"),
            lambda: storage.make_directory(child(table, "d")),
            lambda: storage.remove(child(table, "delta_1")),
            lambda: storage.check_writable(table),
        )
        for write in writes:
            with pytest.raises(StorageUnavailable, match="safe mode"):
                write()
    finally:
        own.admin("-safemode", "leave")
    assert _works(storage, table, "delta_2")


def test_quota_when_exhausted_then_no_space_and_nothing_is_left(own: Cluster, table: str) -> None:
    storage = own.storage()
    own.admin("-setSpaceQuota", "1", table.removeprefix(own.root))
    location = storage.location(table)
    staging = location.make_directory(".staging", "1")
    with pytest.raises(NoSpace, match="quota"):
        stage(storage, staging, "task", b"content")
    assert storage.leftovers(staging) == []
    own.admin("-clrSpaceQuota", table.removeprefix(own.root))
    assert _works(storage, table, "delta_1")
    own.admin("-setQuota", "1", table.removeprefix(own.root))
    with pytest.raises(NoSpace, match="quota"):
        storage.make_directory(child(table, "d"))


def test_permission_when_denied_then_names_the_user_and_the_path(
    own: Cluster, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = own.storage()
    owner.write(child(table, "kept"), b"kept")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    alice = own.storage()
    writes: tuple[Callable[[], object], ...] = (
        lambda: alice.check_writable(table),
        lambda: alice.write(child(table, "f"), b"x"),
        lambda: alice.remove(child(table, "kept")),
    )
    for write in writes:
        with pytest.raises(PermissionDenied, match=r"user=alice, access=WRITE, inode="):
            write()
    assert alice.read(child(table, "kept")) == b"kept"


def test_datanode_when_killed_then_writes_fail_and_succeed_after_its_restart(own: Cluster, table: str) -> None:
    storage = own.storage(TIMEOUT * 2)
    assert _works(storage, table, "delta_1")
    own.box.stop_service(DATANODE, kill=True)
    with pytest.raises(StorageUnavailable):
        storage.write(child(table, "f"), os.urandom(100_000))
    own.box.start_service(DATANODE)
    eventually("the storage to work", lambda: _works(storage, table, "delta_2"))
    assert storage.read(child(table, "delta_1", "bucket_00000")) == b"content"


def test_datanode_when_suspended_then_writes_and_reads_end_in_time(own: Cluster, table: str) -> None:
    storage = own.storage(TIMEOUT)
    storage.write(child(table, "kept"), b"kept")
    own.box.pause_service(DATANODE)
    requests = (lambda: storage.read(child(table, "kept")), lambda: storage.write(child(table, "f"), b"x"))
    try:
        for request in requests:
            with pytest.raises(StorageUnavailable):
                request()
    finally:
        own.box.resume_service(DATANODE)
    assert storage.read(child(table, "kept")) == b"kept"


def test_nameservice_when_the_first_namenode_is_dead_then_the_other_answers(own: Cluster, table: str) -> None:
    assert own.storage().exists(table)
    address = own.root.removeprefix("hdfs://")
    properties = {
        "dfs.nameservices": "cluster",
        "dfs.ha.namenodes.cluster": "a,b,c",
        "dfs.namenode.rpc-address.cluster.a": "127.0.0.1:9",
        "dfs.namenode.rpc-address.cluster.b": "127.0.0.1:10",
        "dfs.namenode.rpc-address.cluster.c": address,
        "fs.viewfs.mounttable.all.link./data": "hdfs://cluster/",
        "fs.defaultFS": "hdfs://cluster",
    }
    options = replace(own.options(), hdfs=HdfsOptions(properties=properties))
    path = table.removeprefix(own.root)
    for root, prefix in (("hdfs://cluster", ""), ("viewfs://all", "/data"), ("hdfs://", "")):
        storage = HdfsStorage(root, options)
        uri = f"{root}{prefix}{path}" if root != "hdfs://" else f"hdfs:{path}"
        assert storage.exists(uri)
        assert _works(storage, uri, f"delta_{len(root)}")
    assert not HdfsStorage("viewfs://all", options).exists(f"viewfs://all{path}")


def test_viewfs_when_a_partition_is_in_another_mount_than_the_table_then_its_files_are_copied(own: Cluster) -> None:
    storage = _mounted(own, 30.0, "mount-a", "mount-b")
    staging = storage.location("viewfs://all/mount-a").make_directory(".staging")
    partition = storage.location("viewfs://all/mount-b")
    (staged,) = stage(storage, staging, "task", b"content")
    delta = StagedDelta(partition, "delta_1", {"bucket_00000": staged}, {}, child(staging, "d"), ".hidden")
    storage.publish([delta], storage)
    assert partition.names() == ["delta_1"]
    assert own.storage().read(child(own.root, "mount-b/delta_1/bucket_00000")) == b"content"


def test_publish_when_the_namenode_is_suspended_then_the_withdrawal_of_many_deltas_stops_after_the_first_requests(
    own: Cluster,
) -> None:
    storage = _mounted(own, TIMEOUT, "withdrawal-a", "withdrawal-b")
    table, other = (storage.location(f"viewfs://all/{name}") for name in ("withdrawal-a", "withdrawal-b"))
    staging = table.make_directory(".staging")
    threads = limited_threads()

    def pause() -> None:
        eventually("the other deltas", lambda: len(table.names()) == 81)
        own.box.pause_service(NAMENODE)

    deltas = [
        StagedDelta(table, f"delta_{number}", {}, {"f": b"1"}, child(staging, f"d{number}"), ".hidden")
        for number in range(80)
    ]
    deltas.append(StagedDelta(other, "delta_80", {}, {"f": b"1"}, child(staging, "d80"), ".hidden", None, pause))
    try:
        with pytest.raises(StorageUnavailable, match=LATE):
            storage.publish(deltas, storage)
        storage.discard(*(child(table.uri, delta.name) for delta in deltas))
        # Each request without an answer occupies a thread: up to 16 of each removal, and not one for each delta.
        assert len(limited_threads() - threads) <= 40
    finally:
        own.box.resume_service(NAMENODE)


def _mounted(own: Cluster, timeout: float, *folders: str) -> HdfsStorage:
    """Create folders, and return a viewfs with a mount of each."""
    for folder in folders:
        own.storage().make_directory(child(own.root, folder))
    properties = {f"fs.viewfs.mounttable.all.link./{name}": child(own.root, name) for name in folders}
    return HdfsStorage("viewfs://all", replace(own.options(timeout), hdfs=HdfsOptions(properties=properties)))


def test_nameservice_when_the_first_namenode_does_not_answer_then_the_next_request_asks_the_other(
    own: Cluster, table: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties = {
            "dfs.ha.namenodes.cluster": "a,b",
            "dfs.namenode.rpc-address.cluster.a": f"127.0.0.1:{silent.getsockname()[1]}",
            "dfs.namenode.rpc-address.cluster.b": own.root.removeprefix("hdfs://"),
        }
        options = replace(own.options(TIMEOUT), hdfs=HdfsOptions(properties=properties))
        storage = HdfsStorage("hdfs://cluster", options)
        uri = f"hdfs://cluster{table.removeprefix(own.root)}"
        with pytest.raises(StorageUnavailable, match=LATE):
            storage.exists(uri)
        assert storage.exists(uri)
        assert _works(storage, uri, "delta_1")


def test_namenodes_when_all_are_dead_then_requests_fail_fast() -> None:
    properties = {
        "dfs.ha.namenodes.cluster": "a,b",
        "dfs.namenode.rpc-address.cluster.a": "127.0.0.1:9",
        "dfs.namenode.rpc-address.cluster.b": "127.0.0.1:10",
    }
    storage = HdfsStorage("hdfs://cluster", StorageOptions(hdfs=HdfsOptions(properties=properties)))
    with pytest.raises(StorageUnavailable, match="refused"):
        storage.exists("hdfs://cluster/warehouse")


@pytest.mark.parametrize(
    ("root", "properties", "words"),
    [
        ("hdfs://", {}, "names no cluster"),
        ("viewfs://all", {}, "mount table"),
        ("hdfs://name:9", {"fs.permissions.umask-mode": "u=rwx,g=rx,o="}, "umask-mode: must be an octal number"),
        ("hdfs://name:9", {"dfs.replication": "two"}, "dfs.replication: must be a number"),
        ("hdfs://name:9", {"fs.s3a.secret.key": "s"}, "fs.s3a.secret.key: this property does not apply to HDFS"),
    ],
)
def test_storage_when_the_cluster_is_not_configured_then_says_so(
    root: str, properties: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(ConfigError, match=words):
        HdfsStorage(root, StorageOptions(hdfs=HdfsOptions(properties=properties)))


@pytest.mark.parametrize(
    ("uri", "properties"),
    [
        ("hdfs://production/t", {}),
        ("hdfs://production/t", {"dfs.ha.namenodes.production": "a,b"}),
        ("viewfs://all/t", {"fs.viewfs.mounttable.all.link./t": "hdfs://production/t"}),
    ],
)
def test_storage_when_the_nameservice_is_not_configured_then_the_error_says_where_to_define_it(
    uri: str, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    storage = Storages(StorageOptions(timeout=10.0, hdfs=HdfsOptions(properties=properties)))
    with pytest.raises(StorageUnavailable, match=r"NameNode is not known.*storage\.hadoop_conf_dir"):
        storage.location(uri)


@pytest.mark.parametrize(
    ("uri", "properties"), [("hdfs://127.9.9.9/t", {}), ("hdfs:///t", {"fs.defaultFS": "hdfs://127.9.9.9"})]
)
def test_storage_when_a_namenode_has_no_port_then_the_default_port_is_used(
    uri: str, properties: dict[str, str]
) -> None:
    storage = Storages(StorageOptions(timeout=1.0, hdfs=HdfsOptions(properties=properties)))
    with socket.create_server(("127.9.9.9", 8020)) as namenode, ThreadPoolExecutor() as pool:
        request = pool.submit(storage.location, uri)
        namenode.settimeout(LIMIT)
        namenode.accept()[0].close()
        with pytest.raises(StorageUnavailable):
            request.result(LIMIT)
