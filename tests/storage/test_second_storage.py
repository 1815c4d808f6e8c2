"""A partition in another storage than its table: a former owner publishes nothing late, and nothing is left behind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from ingestd.acid.writer_pool import StagingFiles, WriterPool
from ingestd.errors import IngestdError, StorageUnavailable
from ingestd.hive import transactions
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.publish import staging
from ingestd.publish.deltas import StagedFiles
from ingestd.publish.staging import Staging
from ingestd.publish.warehouse import Warehouse
from ingestd.schema import Column, HiveType
from ingestd.storage.contract import child
from ingestd.storage.local import local_path
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from tests.support.hdfs import Cluster
from tests.support.hdfs_proxy import hdfs_proxy
from tests.support.patience import LIMIT
from tests.support.s3 import BUCKET, Server, moto, versitygw
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.stack import Stack
from tests.support.tables import make_table

COLUMNS = (Column("id", HiveType.parse("int")), Column("note", HiveType.parse("string")))


@dataclass(frozen=True)
class Second:
    """The directory of a partition in a second storage.

    `former` contains the options of a process whose requests can be held, and `new` those of its successor. `wait`
    waits until a request is held, and `release` lets the server execute it.
    """

    partition: str
    former: StorageOptions
    new: StorageOptions
    hold: Callable[[str], None]
    wait: Callable[[], bool]
    release: Callable[[], None]


class Former:
    """A process that has staged one file for a partition in a second storage."""

    def __init__(self, stack: Stack, second: Second) -> None:
        name = TableName("default", stack.name)
        make_table(stack.metastore, name, partitioned=True)
        self.second = second
        self.table = load_acid_table(stack.metastore, name)
        self.txn, self.write_id = transactions.begin_writing(stack.metastore, name, "tests")
        storages = Storages(second.former)
        self.staging = Staging(storages, storages.location(self.table.location), staging.DAEMON, str(self.txn.id))
        files = StagingFiles(self.staging.storage.outbox(self.staging.make(), "task"), COLUMNS, self.write_id)
        pool = WriterPool(files)
        pool.add(("a",), 0, pa.record_batch({"id": pa.array([1], pa.int32()), "note": ["x"]}))
        pool.close()
        self.files = StagedFiles(files.closed, self.staging)
        self._warehouse = Warehouse(stack.metastore, Storages(second.new))

    def enlarge(self, size: int) -> None:
        """Let the staged file have this size."""
        (file,) = self.files.files
        os.truncate(local_path(file.uri), size)

    def place(self) -> None:
        self.files.place(self.table, self.write_id, {"day=a": PartitionInfo("day=a", self.second.partition, True)})

    def is_fenced(self) -> None:
        """Do what a new owner does."""
        transactions.abort(self._warehouse.metastore, self.txn.id)
        staging.sweep(self._warehouse, self.table, roots=(staging.DAEMON,))

    def left(self) -> list[str]:
        """Return what is left of the transaction in the partition and in the staging directories."""
        storages = self._warehouse.storages
        roots = (child(self.table.location, staging.DAEMON), self.second.partition)
        return [name for root in roots for name in storages.at(root).leftovers(root)]


@pytest.fixture
def hdfs_second(cluster: Cluster) -> Iterator[Second]:
    with hdfs_proxy(int(cluster.root.rpartition(":")[2])) as proxy:
        name = f"p{uuid.uuid4().hex}"
        cluster.storage().make_directory(child(cluster.root, name))
        uri = f"hdfs://127.0.0.1:{proxy.port}/{name}"
        options = cluster.options()
        yield Second(uri, options, options, proxy.hold, lambda: proxy.held.wait(LIMIT), proxy.release)


@pytest.fixture
def s3_second(processes: None) -> Iterator[Second]:
    with moto() as server, s3_proxy(server.port) as proxy:
        yield _in_s3(server, proxy)


def _in_s3(server: Server, proxy: S3Proxy) -> Second:
    held = []

    def hold(operation: str) -> None:
        proxy.hold(operation)
        held.append(operation)

    return Second(
        f"s3a://{BUCKET}/elsewhere/day=a",
        server.options_at(proxy.endpoint, LIMIT),
        server.options,
        hold,
        lambda: proxy.held.acquire(timeout=LIMIT),
        lambda: proxy.release(held[0]),
    )


@pytest.mark.parametrize(
    ("second", "request_held"),
    [("hdfs_second", "create"), ("hdfs_second", "rename2"), ("s3_second", "PUT"), ("s3_second", "COPY")],
)
def test_copy_when_a_request_is_executed_after_the_fence_of_the_next_owner_then_no_delta_appears(
    stack: Stack, request: pytest.FixtureRequest, second: str, request_held: str
) -> None:
    former = Former(stack, request.getfixturevalue(second))
    former.second.hold(request_held)
    with ThreadPoolExecutor(1) as pool:
        placed = pool.submit(former.place)
        assert former.second.wait()
        former.is_fenced()
        former.second.release()
        with pytest.raises(IngestdError):
            placed.result()
    former.staging.discard()
    assert former.left() == []


@pytest.mark.parametrize("after", [0, 1], ids=["upload", "copy"])
def test_copy_in_parts_when_completed_after_the_fence_of_the_next_owner_then_no_delta_appears(
    stack: Stack, tmp_path: Path, after: int
) -> None:
    (tmp_path / "s3").mkdir()
    with versitygw(tmp_path / "s3") as server, s3_proxy(server.port) as proxy:
        former = Former(stack, _in_s3(server, proxy))
        former.enlarge((64 << 20) + 1)
        proxy.hold("COMPLETE", after)
        with ThreadPoolExecutor(1) as pool:
            placed = pool.submit(former.place)
            assert former.second.wait()
            former.is_fenced()
            proxy.release("COMPLETE")
            with pytest.raises(IngestdError):
                placed.result()
        former.staging.discard()
        assert server.objects() == server.uploads() == former.left() == []


@pytest.mark.parametrize("second", ["hdfs_second", "s3_second"])
def test_copy_when_it_succeeds_then_only_the_delta_is_left(
    stack: Stack, request: pytest.FixtureRequest, second: str
) -> None:
    former = Former(stack, request.getfixturevalue(second))
    former.place()
    transactions.commit(stack.metastore, former.txn)
    former.files.discard()
    assert former.left() == [f"delta_{former.write_id:07d}_{former.write_id:07d}_0000"]


def test_copy_when_the_second_storage_cannot_be_fenced_then_the_next_owner_fails(
    stack: Stack, s3_second: Second
) -> None:
    former = Former(stack, s3_second)
    former.second.hold("COPY")
    with ThreadPoolExecutor(1) as pool:
        placed = pool.submit(former.place)
        assert former.second.wait()
        s3 = replace(former.second.new.s3, endpoint="http://127.0.0.1:1")
        transactions.abort(stack.metastore, former.txn.id)
        with pytest.raises(StorageUnavailable, match=r"127\.0\.0\.1:1"):
            staging.sweep(Warehouse(stack.metastore, Storages(replace(former.second.new, s3=s3))), former.table)
        former.is_fenced()
        former.second.release()
        with pytest.raises(IngestdError):
            placed.result()
    former.staging.discard()
    assert former.left() == []
