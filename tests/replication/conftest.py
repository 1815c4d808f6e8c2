"""Fixtures for tests of replication: a root directory in each storage, and a database that another one follows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ingestd.storage.contract import child
from ingestd.storage.storages import Storages
from tests.support.hdfs import Cluster, hdfs
from tests.support.replica import Replica
from tests.support.replica_following import Following, new_following
from tests.support.s3 import BUCKET, Server, moto


class Root(NamedTuple):
    """An empty directory `uri` of a storage."""

    storages: Storages
    uri: str


@pytest.fixture(scope="session")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with hdfs(tmp_path_factory.mktemp("hdfs") / "state") as running:
        yield running


@pytest.fixture(scope="session")
def s3(processes: None) -> Iterator[Server]:
    with moto() as running:
        yield running


@pytest.fixture
def local_root(tmp_path: Path) -> Root:
    (tmp_path / "dumps").mkdir()
    return Root(Storages(), f"file:{tmp_path}/dumps")


@pytest.fixture(params=["local", "hdfs", "s3"])
def root(processes: None, request: pytest.FixtureRequest) -> Root:
    name = f"dumps {uuid.uuid4().hex}"
    if request.param == "hdfs":
        cluster: Cluster = request.getfixturevalue("cluster")
        uri = child(cluster.root, name)
        cluster.storage().make_directory(uri)
        return Root(Storages(cluster.options()), uri)
    if request.param == "s3":
        return Root(Storages(request.getfixturevalue("s3").options), f"s3a://{BUCKET}/{name}")
    local: Root = request.getfixturevalue("local_root")
    return local


@pytest.fixture
def following(replica: Replica, tmp_path: Path) -> Following:
    """Yield an empty database and its empty copy."""
    return new_following(replica, tmp_path)
