"""A load that has lost its lease stops to copy, so that it changes nothing after the next one has begun."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.errors import OwnershipLost
from ingestd.hive.client import Metastore
from ingestd.hive.objects import TableObject
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.copy import Copier, CopyOptions
from ingestd.replication.copying.fence import Fence
from ingestd.replication.copying.transfer import CopyFile
from ingestd.replication.load.target_moves import abort_left_uploads
from ingestd.storage.storages import Storages
from tests.support.daemon import shared_engine
from tests.support.s3 import BUCKET, Server


def _files(folder: Path, contents: dict[str, bytes]) -> list[CopyFile]:
    """Create files in a directory, and return their copies to another one."""
    (folder / "source").mkdir()
    for name, content in contents.items():
        (folder / "source" / name).write_bytes(content)
    source, target = f"file:{folder}/source", f"file:{folder}/target"
    return [CopyFile(f"{source}/{name}", len(content), target, name) for name, content in contents.items()]


def _copied(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "target").glob("*")}


class Lease:
    """A lease that is lost at the given call of `check`."""

    def __init__(self, lost_at: int) -> None:
        self._left = lost_at

    def check(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise OwnershipLost("another process loads into the database", where="lease")


@pytest.mark.parametrize("lost_at", range(1, 9))
def test_copy_when_the_lease_is_lost_at_any_time_then_no_further_file_appears(tmp_path: Path, lost_at: int) -> None:
    """A file is checked before it is opened, after each read, and at its end: three or more times."""
    contents = {f"bucket_{number}": os.urandom(1000) for number in range(3)}
    files = _files(tmp_path, contents)
    copier = Copier(Storages(), options=CopyOptions(threads=1)).guarded(Lease(lost_at).check)
    with pytest.raises(OwnershipLost):
        copier.copy(files)
    copied = _copied(tmp_path)
    assert len(copied) == (lost_at - 1) // 3
    assert copied.items() <= contents.items()


def test_copy_when_the_lease_is_lost_during_a_job_then_the_job_is_cancelled(processes: None, tmp_path: Path) -> None:
    contents = {f"bucket_{number}": os.urandom(100_000) for number in range(20)}
    files = _files(tmp_path, contents)
    options = CopyOptions(job_files=1, bytes_per_second=50_000)
    with closing(Copier(Storages(), shared_engine(), options)) as copier, pytest.raises(OwnershipLost):
        copier.guarded(Lease(3).check).copy(files)
    assert len(_copied(tmp_path).keys() & contents.keys()) < len(files)


def test_copy_when_another_load_begins_and_its_process_is_suspended_then_its_job_places_no_further_file(
    processes: None, tmp_path: Path
) -> None:
    contents = {f"bucket_{number}": os.urandom(50_000) for number in range(10)}
    files, storages = _files(tmp_path, contents), Storages()
    (tmp_path / "dump").mkdir()
    dump = f"file:{tmp_path}/dump"
    present: list[int] = []

    def take_over() -> None:
        if not present and _copied(tmp_path).keys() & contents.keys():
            Fence.begin(storages, dump)
            present.append(len(_copied(tmp_path).keys() & contents.keys()))

    options = CopyOptions(job_files=1, bytes_per_second=100_000, attempts=1)
    with (
        closing(Copier(storages, shared_engine(), options)) as copier,
        pytest.raises(OwnershipLost, match="another process loads this dump"),
    ):
        copier.guarded(take_over, Fence.begin(storages, dump)).copy(files)
    assert len(_copied(tmp_path).keys() & contents.keys()) <= present[0] + 2  # each of two tasks may rename one now


def _target(storages: Storages, lease: Lease) -> Cluster:
    """Return a cluster whose metastore is not called."""
    return Cluster(Metastore("thrift://127.0.0.1:1"), storages, lease.check)


def test_uploads_when_the_lease_is_lost_then_those_of_the_next_load_are_not_aborted(s3: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    name = uuid.uuid4().hex
    directory, key = f"s3a://{BUCKET}/{name}", f"{name}/file"
    s3.client().create_multipart_upload(Bucket=BUCKET, Key=key)
    file, storages = CopyFile(f"file:{tmp_path}/file", 7, directory, "file"), Storages(s3.options)
    with pytest.raises(OwnershipLost):
        Copier(storages).guarded(Lease(1).check).copy([file])
    assert key in s3.uploads()
    described = ttypes.StorageDescriptor(location=directory)
    raw = ttypes.Table(dbName="d", tableName="t", sd=described, parameters={}, tableType="MANAGED_TABLE")
    with pytest.raises(OwnershipLost):
        abort_left_uploads(_target(storages, Lease(1)), TableObject(raw))
    assert key in s3.uploads()
    abort_left_uploads(_target(storages, Lease(2)), TableObject(raw))
    assert key not in s3.uploads()


def test_table_when_its_storage_is_not_supported_then_it_has_no_uploads() -> None:
    described = ttypes.StorageDescriptor(location="abfs://container@account/t")
    raw = ttypes.Table(dbName="d", tableName="t", sd=described, parameters={}, tableType="MANAGED_TABLE")
    abort_left_uploads(_target(Storages(), Lease(1)), TableObject(raw))


def test_fence_when_the_dump_is_removed_then_is_lost(tmp_path: Path) -> None:
    fence = Fence.begin(Storages(), f"file:{tmp_path}")
    fence.check(Storages())
    (tmp_path / "_loader").unlink()
    with pytest.raises(OwnershipLost, match="or has loaded it"):
        fence.check(Storages())
