"""A nameservice of two real NameNodes: requests find the active one, also after a failover."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import StagedDelta, child
from ingestd.storage.hdfs import HdfsStorage
from tests.support.hdfs import stage
from tests.support.hdfs_ha import FIRST, ROOT, SECOND, Pair, hdfs_pair
from tests.support.stack import eventually

_TABLE = f"{ROOT}/t"


@pytest.fixture
def pair(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with hdfs_pair(tmp_path_factory.mktemp("hdfs-pair")) as running:
        yield running


def _publish(storage: HdfsStorage, name: str) -> None:
    location = storage.location(_TABLE)
    staging = location.make_directory(".staging", name)
    (staged,) = stage(storage, staging, "task", name.encode())
    storage.publish([StagedDelta(location, name, {"f": staged}, {}, child(staging, "d"), f".{name}")], storage)


def _is_published(storage: HdfsStorage, name: str) -> bool:
    try:
        _publish(storage, name)
    except StorageUnavailable:
        return False
    return True


def test_nameservice_when_its_namenodes_fail_over_then_files_are_published_through_the_active_one(pair: Pair) -> None:
    storage = HdfsStorage(ROOT, pair.options(5.0))
    storage.make_directory(_TABLE)
    _publish(storage, "delta_1")

    pair.make_standby(FIRST)
    with pytest.raises(StorageUnavailable, match="standby") as raised:
        _publish(storage, "none")
    assert "NameNode is active" in raised.value.hint
    pair.make_active(SECOND)
    _publish(storage, "delta_2")  # at the first attempt

    pair.pause(SECOND)
    with pytest.raises(StorageUnavailable):
        _publish(storage, "none")
    pair.kill(SECOND)
    pair.make_active(FIRST)
    eventually("a delta", lambda: _is_published(storage, "delta_3"))

    names = sorted(name for name in storage.location(_TABLE).names() if name != ".staging")
    assert names == ["delta_1", "delta_2", "delta_3"]
    assert [storage.read(f"{_TABLE}/{name}/f") for name in names] == [name.encode() for name in names]
