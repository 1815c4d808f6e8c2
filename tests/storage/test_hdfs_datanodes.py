"""HDFS with several DataNodes, one of which is killed: files are stored on the others, and can be read from them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ingestd.sandbox.options import DATANODES
from ingestd.storage.contract import child
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.options import HdfsOptions
from tests.support.hdfs import Cluster, hdfs, stage

_LAST = DATANODES[-1]
_FILES = 12


@pytest.fixture(scope="module")
def three(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield an HDFS with three DataNodes."""
    with hdfs(tmp_path_factory.mktemp("hdfs-datanodes") / "state", len(DATANODES)) as running:
        yield running


class Killing:
    """A stream that kills a DataNode after half of its bytes."""

    def __init__(self, cluster: Cluster, content: bytes) -> None:
        self.size = len(content)
        self._cluster = cluster
        self._halves = [content[: self.size // 2], content[self.size // 2 :]]

    def written(self) -> int:
        return 0

    def read(self, count: int) -> bytes:
        if len(self._halves) == 1:
            self._cluster.box.stop_service(_LAST, kill=True)
        return self._halves.pop(0) if self._halves else b""

    def close(self) -> None:
        """See `Stream`."""


def test_datanode_when_killed_while_a_file_is_written_then_the_others_store_it(three: Cluster) -> None:
    storage, file, content = three.storage(), child(three.root, "written"), os.urandom(4 << 20)
    storage.receive(file, Killing(three, content), ".temporary")
    assert storage.read(file) == content
    three.box.start_service(_LAST)


def test_datanode_when_killed_before_the_namenode_knows_it_then_new_files_are_stored_on_the_others(
    three: Cluster,
) -> None:
    # The NameNode chooses the killed DataNode for a third of the files.
    options = replace(three.options(), hdfs=HdfsOptions(properties={"dfs.replication": "1"}))
    storage, staging = HdfsStorage(three.root, options), child(three.root, "staging")
    storage.make_directory(staging)
    three.box.stop_service(_LAST, kill=True)
    contents = [os.urandom(10_000) for _ in range(_FILES)]
    staged = stage(storage, staging, "task", *contents)
    assert [storage.read(file) for file in staged] == contents
    three.box.start_service(_LAST)
