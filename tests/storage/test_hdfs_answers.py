"""Answers of the NameNode that are lost or late: a file or delta is published once and complete, or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import StagedDelta, child
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.local import LocalStorage
from ingestd.storage.options import HdfsOptions, StorageOptions
from tests.support.hdfs import Cluster, stage
from tests.support.hdfs_proxy import HdfsProxy, hdfs_proxy

RENAME = "rename2"
STATUS = "getFileInfo"
CONTENTS = {"bucket_00000": b"first", "bucket_00001": b"second"}


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[HdfsProxy]:
    with hdfs_proxy(int(cluster.root.rpartition(":")[2])) as proxy:
        yield proxy


class Case:
    """An empty table, and a storage that reaches the NameNode through the proxy."""

    def __init__(self, cluster: Cluster, proxy: HdfsProxy, options: StorageOptions, root: str = "") -> None:
        self.proxy = proxy
        name = f"t{uuid.uuid4().hex}"
        cluster.storage().make_directory(child(cluster.root, name))
        self._direct, self._uri = cluster.storage(), child(cluster.root, name)
        root = root or f"hdfs://127.0.0.1:{proxy.port}"
        self.storage = HdfsStorage(root, options)
        self.table = self.storage.location(child(root, name))
        self.staging = self.table.make_directory(".staging")

    def delta(self, staged: dict[str, str], name: str = "delta_1") -> StagedDelta:
        return StagedDelta(self.table, name, staged, {}, child(self.staging, name), f".{name}")

    def stage(self, task: str = "task") -> dict[str, str]:
        return dict(zip(CONTENTS, stage(self.storage, self.staging, task, *CONTENTS.values()), strict=True))

    def names(self) -> list[str]:
        """Return the names in the table except the staging directory, not through the proxy."""
        return sorted(entry.name for entry in self._direct.entries(self._uri) if entry.name != ".staging")

    def staged(self) -> list[str]:
        return self._direct.leftovers(child(self._uri, ".staging"))

    def has_delta(self, name: str = "delta_1") -> bool:
        """Return whether exactly this delta is in the table, with all its files."""
        assert self.names() == [name]
        directory = child(self._uri, name)
        found = self._direct.entries(directory)
        return {entry.name: self._direct.read(child(directory, entry.name)) for entry in found} == CONTENTS

    def works(self) -> bool:
        """Stage and publish a delta, and return whether it is complete and the only one."""
        self.storage.publish([self.delta(self.stage("again"), "delta_2")], self.storage)
        return self.has_delta("delta_2")


@pytest.fixture
def case(cluster: Cluster, proxy: HdfsProxy) -> Case:
    return Case(cluster, proxy, cluster.options())


@pytest.fixture
def nameservice(cluster: Cluster, proxy: HdfsProxy) -> Case:
    """Return a case with two NameNodes, of which only the first is reached through the proxy."""
    properties = {
        "dfs.ha.namenodes.cluster": "a,b",
        "dfs.namenode.rpc-address.cluster.a": f"127.0.0.1:{proxy.port}",
        "dfs.namenode.rpc-address.cluster.b": cluster.root.removeprefix("hdfs://"),
    }
    options = replace(cluster.options(), hdfs=HdfsOptions(properties=properties))
    return Case(cluster, proxy, options, "hdfs://cluster")


def test_rename_when_its_answer_is_lost_then_the_delta_is_published_without_a_second_rename(case: Case) -> None:
    staged = case.stage()
    case.proxy.lose_answer(RENAME, 3)  # of two files and of their directory
    case.storage.publish([case.delta(staged)], case.storage)
    assert case.has_delta()
    assert case.proxy.calls[RENAME] == 3


@pytest.mark.parametrize("files", [True, False])
def test_rename_when_its_answer_is_lost_in_a_nameservice_then_the_delta_is_published(
    nameservice: Case, files: bool
) -> None:
    staged = nameservice.stage()
    nameservice.proxy.lose_answer(RENAME)
    nameservice.storage.publish([nameservice.delta(staged if files else {})], nameservice.storage)
    assert nameservice.names() == ["delta_1"]
    assert not files or nameservice.has_delta()


@pytest.mark.parametrize("files", [True, False])
def test_rename_when_the_request_is_lost_then_fails_and_nothing_is_left(case: Case, files: bool) -> None:
    delta = case.delta(case.stage() if files else {})
    case.proxy.lose_call(RENAME)
    with pytest.raises(StorageUnavailable, match="disconnected"):
        case.storage.publish([delta], case.storage)
    assert case.proxy.calls[RENAME] == 1
    assert case.names() == []
    assert case.works()


def test_rename_when_further_answers_are_lost_then_fails_and_the_delta_is_removed(case: Case) -> None:
    before = case.proxy.calls[STATUS]
    case.proxy.lose_answer(RENAME)
    case.proxy.lose_answer(STATUS, 2)  # the library repeats a request that only reads
    with pytest.raises(StorageUnavailable, match="disconnected"):
        case.storage.publish([case.delta({})], case.storage)
    # A request on the connection that is just being closed does not reach the proxy.
    assert before < case.proxy.calls[STATUS] <= before + 2
    assert case.names() == []
    assert case.works()


def test_rename_when_executed_after_the_timeout_then_nothing_appears(cluster: Cluster, proxy: HdfsProxy) -> None:
    case = Case(cluster, proxy, cluster.options(4.0))
    proxy.hold(RENAME)
    with pytest.raises(StorageUnavailable, match="not answered within 4 s"):
        case.storage.publish([case.delta({})], case.storage)
    proxy.release()
    assert case.names() == []
    assert case.works()


@pytest.mark.parametrize("method", ["create", "addBlock", "complete"])
def test_upload_when_an_answer_is_lost_then_fails_and_the_task_leaves_no_file(case: Case, method: str) -> None:
    case.proxy.lose_answer(method)
    with pytest.raises(StorageUnavailable, match="disconnected"):
        case.stage()
    assert case.staged() == []
    assert case.works()


@pytest.mark.parametrize("method", ["create", "addBlock", "complete"])
def test_copy_when_an_answer_is_lost_then_fails_and_no_file_is_left(case: Case, method: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    case.proxy.lose_answer(method)
    case.proxy.lose_call("delete")
    with pytest.raises(StorageUnavailable, match="disconnected"):
        case.storage.publish([case.delta({"bucket_00000": str(tmp_path / "f")})], LocalStorage())
    assert case.names() == []
    assert case.works()


def test_directory_when_the_answer_is_lost_then_it_exists_or_is_removed_all_the_same(case: Case) -> None:
    directory = child(case.table.uri, "d")
    case.proxy.lose_answer("mkdirs")
    with pytest.raises(StorageUnavailable, match="disconnected"):
        case.storage.make_directory(directory)
    assert case.names() == ["d"]
    case.storage.make_directory(directory)
    case.proxy.lose_answer("delete")
    with pytest.raises(StorageUnavailable, match="disconnected"):
        case.storage.remove(directory)
    assert case.names() == []
    case.storage.remove(directory)
    assert case.works()
