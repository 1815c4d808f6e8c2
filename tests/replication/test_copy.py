"""Copies between all storages, with sources that change and targets that fail, interrupted and concurrent copies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.errors import StorageUnavailable
from ingestd.hive.client import Metastore
from ingestd.hive.objects import TableObject
from ingestd.replication.cluster import Cluster as Side
from ingestd.replication.copying.copy import Copier, CopyOptions, CopyStopped, Progress, packed
from ingestd.replication.copying.transfer import Assignment, CopyFile
from ingestd.replication.load.target_moves import abort_left_uploads
from ingestd.storage.contract import NoSpace, Storage, Stream, child
from ingestd.storage.local import LocalStorage
from ingestd.storage.storages import Storages
from ingestd.storage.stream import BytesStream, read_all
from tests.support.daemon import shared_engine
from tests.support.files import files_below
from tests.support.hdfs import Cluster
from tests.support.s3 import BUCKET, Server
from tests.support.s3_proxy import s3_proxy
from tests.support.stack import eventually

KINDS = ("local", "hdfs", "s3")
ODD = "p=a%3Ab ü#?+&=%25"


class Places:
    """Storages, and new directories in them."""

    def __init__(self, cluster: Cluster, s3: Server, folder: Path) -> None:
        self.storages = Storages(replace(cluster.options(), s3=s3.options.s3))
        self._roots = {"local": f"file:{folder}", "hdfs": cluster.root, "s3": f"s3a://{BUCKET}"}

    def new(self, kind: str) -> str:
        return child(self._roots[kind], f"d {uuid.uuid4().hex}")


@pytest.fixture
def places(cluster: Cluster, s3: Server, tmp_path: Path) -> Places:
    return Places(cluster, s3, tmp_path)


def _put(storages: Storages, file: str, content: bytes) -> None:
    storages.at(file).replace(file, BytesStream(content), ".put")


def _read(storages: Storages, file: str) -> bytes:
    with closing(storages.at(file).stream(file)) as stream:
        return read_all(stream)


def _files(source: str, target: str, contents: dict[str, bytes]) -> list[CopyFile]:
    """Return the copies of files, whose names contain a directory."""
    found = []
    for path, content in contents.items():
        directory, _, name = path.rpartition("/")
        found.append(CopyFile(child(source, path), len(content), child(target, directory), name))
    return found


def _local(tmp_path: Path, contents: dict[str, bytes]) -> list[CopyFile]:
    """Create files in a local directory and return their copies to another one."""
    for path, content in contents.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(content)
    return _files(f"file:{tmp_path}/source", f"file:{tmp_path}/target", contents)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _many(count: int) -> dict[str, bytes]:
    return {f"delta_{number % 7}/bucket_{number:05d}": os.urandom(1000 + number) for number in range(count)}


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_copy_when_between_any_storages_then_equal_and_not_read_twice(places: Places, source: str, target: str) -> None:
    contents = {f"{ODD}/delta_1/bucket %20": os.urandom(70_000), "a/empty": b"", "large": os.urandom(17 << 20)}
    here, there = places.new(source), places.new(target)
    for path, content in contents.items():
        _put(places.storages, child(here, path), content)
    files = _files(here, there, contents)
    copier, seen = Copier(places.storages), list[Progress]()
    result = copier.copy(files, on_progress=seen.append)
    assert {copied.file for copied in result.copied} == set(files)
    assert not result.lost
    assert not result.equal
    for copied in result.copied:
        content = contents[copied.file.source.removeprefix(f"{here}/")]
        assert copied.checksum == f"crc32:{zlib.crc32(content):08x}"
        assert _read(places.storages, copied.file.target) == content
        assert [entry.name for entry in places.storages.at(there).entries(copied.file.directory)].count(
            copied.file.name
        ) == 1
    total = sum(map(len, contents.values()))
    assert [progress.files for progress in seen] == [1, 2, 3]
    assert seen[-1] == Progress(3, total, 3, total)

    places.storages.at(here).remove(here)
    again = copier.copy(files)
    assert set(again.equal) == set(files)
    assert not again.copied
    assert not again.lost


@pytest.mark.parametrize("kind", KINDS)
def test_copy_when_the_source_is_not_the_expected_file_then_from_the_archive_or_lost(places: Places, kind: str) -> None:
    here, there, archive = places.new(kind), places.new("local"), places.new(kind)
    names = ("removed", "longer", "shorter", "other", "later", "fine")
    for name in names:
        _put(places.storages, child(archive, name), b"content")
        _put(places.storages, child(here, name), b"content")
    places.storages.at(here).remove_file(child(here, "removed"))
    for name, content in {"longer": b"content and more", "shorter": b"cont", "other": b"CONTENT"}.items():
        _put(places.storages, child(here, name), content)
    checksum = f"crc32:{zlib.crc32(b'content'):08x}"
    written = {entry.name: entry.written for entry in places.storages.at(here).entries(here)}
    written |= {"later": written["later"] - 5, "fine": written["fine"] + 1}
    files = [
        CopyFile(child(here, name), 7, there, name, checksum=checksum, written=written.get(name, 0)) for name in names
    ]
    found = Copier(places.storages).copy(files)
    assert [copied.file.name for copied in found.copied] == ["fine"]
    reasons = {lost.file.name: lost.reason for lost in found.lost}
    assert "16 bytes instead of 7" in reasons["longer"]
    assert "4 bytes instead of 7" in reasons["shorter"]
    assert f"instead of {checksum}" in reasons["other"]
    assert "was written at another time" in reasons["later"]
    assert child(here, "removed") in reasons["removed"]

    missing = [child(archive, name) for name in ("removed", "shorter")]
    places.storages.at(archive).remove_file(missing[0])
    _put(places.storages, missing[1], b"c")
    found = Copier(places.storages).copy([replace(file, archive=child(archive, file.name)) for file in files])
    assert {copied.file.name for copied in found.copied} == {"longer", "other", "later"}
    assert {lost.file.name for lost in found.lost} == {"removed", "shorter"}
    assert all(archive in lost.reason for lost in found.lost)
    assert {entry.name for entry in places.storages.at(there).entries(there)} == {"fine", "longer", "other", "later"}


class Meddler(Storages):
    """Storages in which something happens when the first bytes of a file have been read."""

    def __init__(self, then: Callable[[Path], None]) -> None:
        super().__init__()
        self._then = then

    def at(self, uri: str) -> Storage:
        return _MeddledStorage(self._then)


class _MeddledStorage(LocalStorage):
    def __init__(self, then: Callable[[Path], None]) -> None:
        self._then = then

    def stream(self, file: str) -> Stream:  # type: ignore[override]  # the contract allows any stream
        return _MeddledStream(super().stream(file), lambda: self._then(Path(file.removeprefix("file:"))))


class _MeddledStream:
    def __init__(self, stream: Stream, then: Callable[[], None]) -> None:
        self._stream = stream
        self._then: Callable[[], None] | None = then
        self.size = stream.size

    def written(self) -> int:
        return self._stream.written()

    def read(self, count: int) -> bytes:
        found = self._stream.read(count)
        if self._then is not None:
            self._then()
            self._then = None
        return found

    def close(self) -> None:
        self._stream.close()


def _truncate(file: Path) -> None:
    with file.open("r+b") as changed:
        changed.truncate(1 << 20)


def _append(file: Path) -> None:
    with file.open("ab") as changed:
        changed.write(b"more")


def _replace(file: Path) -> None:
    file.unlink()
    file.write_bytes(b"other")


@pytest.mark.parametrize("change", [_truncate, _append, _replace, Path.unlink])
def test_copy_when_the_source_changes_meanwhile_then_its_first_content_or_lost(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    content = os.urandom(5 << 20)
    (file,) = _local(tmp_path, {"d/file": content})
    found = Copier(Meddler(change)).copy([file])
    if change in {_truncate, _append}:
        assert [lost.reason for lost in found.lost] == [f"{file.source}: the file was written while it was read"]
        assert _tree(tmp_path / "target") == {}
    else:  # the open file still exists
        assert _tree(tmp_path / "target") == {"d/file": content}


def test_copy_when_the_target_differs_then_replaced_if_longer_or_stale(tmp_path: Path) -> None:
    files = _local(tmp_path, {"d/longer": b"new content", "d/stale": b"new", "d/equal": b"new"})
    for name in ("longer", "stale", "equal"):
        target = tmp_path / "target" / "d" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"old")
    found = Copier(Storages()).copy([replace(file, is_stale=file.name == "stale") for file in files])
    assert [file.name for file in found.equal] == ["equal"]
    expected = {"d/longer": b"new content", "d/stale": b"new", "d/equal": b"old"}
    assert _tree(tmp_path / "target") == expected


def test_copy_when_a_target_is_named_twice_then_the_last_file_is_copied(tmp_path: Path) -> None:
    first, second = _local(tmp_path, {"a/file": b"a", "b/file": b"b"})
    found = Copier(Storages()).copy([replace(first, directory=second.directory), second])
    assert [copied.file for copied in found.copied] == [second]
    assert Copier(Storages()).copy([]).copied == ()


_COPY_SLOWLY = """
import sys
from ingestd.replication.copying.copy import Copier, CopyOptions
from ingestd.replication.copying.transfer import CopyFile
from ingestd.storage.storages import Storages
from ingestd.storage.stream import BytesStream, read_all
source, target = sys.argv[1:]
files = [CopyFile(f"{source}/{n}", 300_000, f"{target}/{n % 3}", str(n)) for n in range(40)]
Copier(Storages(), options=CopyOptions(bytes_per_second=500_000)).copy(files)
"""


def test_copy_when_killed_then_the_next_one_continues_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    contents = {str(number): os.urandom(300_000) for number in range(40)}
    _local(tmp_path, contents)
    source, target = f"file:{tmp_path}/source", tmp_path / "target"
    command = [sys.executable, "-c", _COPY_SLOWLY, source, f"file:{target}"]
    process = subprocess.Popen(command)

    def done() -> set[str]:
        return {str(file.relative_to(target)) for file in files_below(target) if ".ingestd" not in file.name}

    def is_amid() -> bool:
        """Suspend the process; return whether it has copied some files and is copying others, or let it continue."""
        process.send_signal(signal.SIGSTOP)
        if len(done()) > 3 and len(files_below(target)) > len(done()):
            return True
        process.send_signal(signal.SIGCONT)
        return False

    eventually("some files to be copied", is_amid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = done()
    assert len(before) < 40
    files = [CopyFile(f"{source}/{n}", 300_000, f"file:{target}/{n % 3}", str(n)) for n in range(40)]
    found = Copier(Storages()).copy(files)
    assert {f"{int(file.name) % 3}/{file.name}" for file in found.equal} == before
    assert _tree(target) == {f"{int(name) % 3}/{name}": content for name, content in contents.items()}


def test_copies_when_two_run_at_once_then_both_end_and_the_files_are_complete(tmp_path: Path) -> None:
    contents = _many(300)
    files = _local(tmp_path, contents)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: Copier(Storages()).copy(files), range(2)))
    for found in results:
        assert found.lost == ()
        assert len(found.copied) + len(found.equal) == len(files)
    assert _tree(tmp_path / "target") == contents


def test_copy_when_larger_than_a_limit_then_one_spark_job_with_the_same_result(processes: None, tmp_path: Path) -> None:
    contents = _many(60)
    files = _local(tmp_path, contents)
    (tmp_path / "source" / "delta_3" / "bucket_00003").unlink()
    seen = list[Progress]()
    with closing(Copier(Storages(), shared_engine(), CopyOptions(job_files=10))) as copier:
        found = copier.copy(files, on_progress=seen.append)
        assert len(found.copied) == 59
        assert [lost.file.name for lost in found.lost] == ["bucket_00003"]
        assert seen[-1].files == 60
        lacking = {path: content for path, content in contents.items() if path != "delta_3/bucket_00003"}
        assert _tree(tmp_path / "target") == lacking
        assert len(copier.copy(files).equal) == 59


def test_copy_when_stopped_then_leaves_nothing_and_a_further_one_continues(processes: None, tmp_path: Path) -> None:
    contents = _many(60)
    files, target = _local(tmp_path, contents), tmp_path / "target"
    for engine in (None, shared_engine()):
        number = len(files_below(target))
        stop = threading.Event()
        options = CopyOptions(bytes_per_second=10_000, job_files=10)
        copier = Copier(Storages(), engine, options)
        with ThreadPoolExecutor(1) as pool:
            copying = pool.submit(copier.copy, files, stop=stop)
            eventually("files to be copied", partial(_has_more_files, target, number + 1))
            stop.set()
            with pytest.raises(CopyStopped):
                copying.result()
        copier.close()
        left = _tree(target)
        assert left.items() < contents.items()  # no temporary file
    found = Copier(Storages()).copy(files)
    assert len(found.equal) == len(left)
    assert _tree(target) == contents


def _has_more_files(folder: Path, number: int) -> bool:
    return len(files_below(folder)) > number


def test_copy_when_the_target_is_full_then_no_space_and_after_it_complete(
    places: Places, cluster: Cluster, tmp_path: Path
) -> None:
    contents = _many(30)
    _local(tmp_path, contents)
    there = places.new("hdfs")
    places.storages.at(there).make_directories(there)
    cluster.admin("-setSpaceQuota", "1", there.removeprefix(cluster.root))
    files = _files(f"file:{tmp_path}/source", there, contents)
    copier = Copier(places.storages, options=CopyOptions(attempts=2))
    with pytest.raises(NoSpace, match="quota"):
        copier.copy(files)
    cluster.admin("-clrSpaceQuota", there.removeprefix(cluster.root))
    found = copier.copy(files)
    assert len(found.copied) + len(found.equal) == 30
    for file in files:
        assert len(places.storages.at(there).entries(file.directory)) in {4, 5}


def test_copy_when_the_target_fails_for_a_while_then_repeated(s3: Server, tmp_path: Path) -> None:
    contents = _many(3)
    _local(tmp_path, contents)
    with s3_proxy(s3.port) as proxy:
        storages = Storages(s3.options_at(proxy.endpoint))
        proxy.refuse("PUT", 503, "SlowDown", times=14)
        target = f"s3a://{BUCKET}/{uuid.uuid4().hex}"
        files = _files(f"file:{tmp_path}/source", target, contents)
        found = Copier(storages).copy(files)
        assert len(found.copied) == 3
        proxy.refuse("PUT", 503, "SlowDown")
        other = [replace(file, directory=child(target, "other")) for file in files]
        with pytest.raises(StorageUnavailable, match="SlowDown"):
            Copier(storages, options=CopyOptions(attempts=1)).copy(other)


def test_copy_when_the_bucket_of_the_source_is_missing_then_unavailable_and_no_file_is_lost(
    s3: Server, tmp_path: Path
) -> None:
    copier = Copier(Storages(s3.options), options=CopyOptions(attempts=1))
    with pytest.raises(StorageUnavailable, match="NoSuchBucket"):
        copier.copy([CopyFile("s3a://no-such-bucket/d/file", 7, f"file:{tmp_path}", "file")])


def test_copy_when_an_earlier_one_left_an_upload_then_aborted(s3: Server, tmp_path: Path) -> None:
    (file,) = _files(f"file:{tmp_path}/source", f"s3a://{BUCKET}/{uuid.uuid4().hex}", {"d/file": b"content"})
    _local(tmp_path, {"d/file": b"content"})
    keys = [file.target.removeprefix(f"s3a://{BUCKET}/"), f"{uuid.uuid4().hex}/other"]
    for key in keys:
        s3.client().create_multipart_upload(Bucket=BUCKET, Key=key)
    Copier(Storages(s3.options)).copy([file])
    assert keys[0] not in s3.uploads()
    assert keys[1] in s3.uploads()


@pytest.mark.parametrize(("kind", "is_aborted"), [("MANAGED_TABLE", True), ("EXTERNAL_TABLE", False)])
def test_table_when_dropped_after_a_killed_load_then_its_uploads_are_aborted(
    s3: Server, kind: str, is_aborted: bool
) -> None:
    prefix = uuid.uuid4().hex
    keys = [f"{prefix}/t/day=a/delta_1_1/bucket_00000", f"{prefix}/t2/bucket_00000"]
    for key in keys:
        s3.client().create_multipart_upload(Bucket=BUCKET, Key=key)
    storage = ttypes.StorageDescriptor(location=f"s3a://{BUCKET}/{prefix}/t")
    raw = ttypes.Table(dbName="d", tableName="t", sd=storage, parameters={}, tableType=kind)
    abort_left_uploads(Side(Metastore("thrift://127.0.0.1:1"), Storages(s3.options)), TableObject(raw))
    assert [key in s3.uploads() for key in keys] == [not is_aborted, True]


def test_copy_when_the_bandwidth_is_limited_then_it_takes_as_long(tmp_path: Path) -> None:
    files = _local(tmp_path, {str(number): os.urandom(500_000) for number in range(4)})
    start = time.monotonic()
    Copier(Storages(), options=CopyOptions(bytes_per_second=2_000_000)).copy(files)
    assert time.monotonic() - start > 0.7


def test_tasks_when_packed_then_bounded_and_even() -> None:
    def assignments(*lengths: int) -> list[Assignment]:
        return [Assignment(CopyFile("s", length, "d", str(n)), replaces=False) for n, length in enumerate(lengths)]

    def lengths(tasks: list[list[Assignment]]) -> list[list[int]]:
        return [[assignment.file.length for assignment in task] for task in tasks]

    large = 3 << 30
    assert lengths(packed(assignments(1, large, 2), 1)) == [[large], [2, 1]]
    assert lengths(packed(assignments(5 << 20, 9 << 20, 4 << 20, 1), 2)) == [[9 << 20, 1], [5 << 20, 4 << 20]]
    assert [len(task) for task in packed(assignments(*[10] * 4000), 2)] == [1000] * 4
    assert packed([], 4) == []
