"""What every storage must do: the contract, tested on the local file system, HDFS and S3."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyarrow import orc

from ingestd.clock import now
from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import (
    AlreadyExists,
    Entry,
    FileChanged,
    Location,
    NotFound,
    Outbox,
    StagedDelta,
    Storage,
    Stream,
    child,
)
from ingestd.storage.local import LocalStorage, local_path
from ingestd.storage.s3 import S3Storage
from ingestd.storage.stream import BytesStream, read_all
from tests.support.hdfs import Cluster
from tests.support.s3 import BUCKET, Server, moto

ODD = "p=a%3Ab ü#?+&=%25"


class Case(NamedTuple):
    """A storage with an empty table. `other` is another storage, from which files are published as well."""

    storage: Storage
    table: Location
    other: Storage
    elsewhere: str

    @property
    def has_directories(self) -> bool:
        return self.storage.capabilities.rename

    def staging(self, owner: str = "1") -> str:
        return self.table.make_directory(".staging", owner)


@pytest.fixture(scope="module")
def s3(processes: None) -> Iterator[Server]:
    with moto() as running:
        yield running


@pytest.fixture(params=["local", "hdfs", "s3"])
def case(processes: None, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    name = f"t {uuid.uuid4().hex}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if request.param == "local":
        (tmp_path / name).mkdir()
        local = LocalStorage()
        yield Case(local, local.location(f"file:{tmp_path}/{name}"), LocalStorage(), str(elsewhere))
    elif request.param == "hdfs":
        cluster: Cluster = request.getfixturevalue("cluster")
        hdfs = cluster.storage()
        hdfs.make_directory(child(cluster.root, name))
        yield Case(hdfs, hdfs.location(child(cluster.root, name)), LocalStorage(), str(elsewhere))
    else:
        s3 = S3Storage(BUCKET, request.getfixturevalue("s3").options)
        yield Case(s3, s3.location(f"s3a://{BUCKET}/{name}"), LocalStorage(), str(elsewhere))


def _stage(storage: Storage, directory: str, task: str, *contents: bytes) -> list[str]:
    outbox = storage.outbox(directory, task)
    uris = []
    for number, content in enumerate(contents):
        (outbox.directory / f"f{number}").write_bytes(content)
        uris.append(outbox.send(outbox.directory / f"f{number}"))
    outbox.finish()
    return uris


def _send(outbox: Outbox, name: str) -> None:
    (outbox.directory / name).write_bytes(b"content")
    outbox.send(outbox.directory / name)
    outbox.finish()


def _delta(case: Case, location: Location, staged: list[str], number: int = 0, name: str = "delta_1") -> StagedDelta:
    files = {f"bucket_{bucket:05d}": uri for bucket, uri in enumerate(staged)}
    return StagedDelta(location, name, files, {"_note": b"n"}, child(case.staging(), f"d{number}"), f".hidden{number}")


def _contents(storage: Storage, directory: str) -> dict[str, bytes]:
    return {entry.name: storage.read(child(directory, entry.name)) for entry in storage.entries(directory)}


def test_storage_when_directories_and_files_have_any_name_then_they_are_listed_read_and_removed(case: Case) -> None:
    storage, table = case.storage, case.table
    inner = table.make_directory(ODD, "q=x")
    assert table.make_directory(ODD, "q=x") == inner
    storage.write(child(inner, "1 %20"), b"abc")
    table.check()
    assert table.names() == [ODD]
    assert storage.entries(table.uri) == [Entry(ODD, is_directory=True, size=0)]
    assert [entry[:3] for entry in storage.entries(inner)] == [("1 %20", False, 3)]
    assert storage.read(child(inner, "1 %20")) == b"abc"
    assert storage.leftovers(table.uri) == [ODD]
    assert storage.exists(inner)
    storage.check_writable(table.uri)
    table.mark_directory(ODD, "q=x")
    assert table.names() == [ODD]
    table.mark_directory(ODD, "q=y")
    assert [entry for entry in storage.entries(child(table.uri, ODD)) if entry.name == "q=y"] == [Entry("q=y", True, 0)]
    assert storage.exists(child(table.uri, ODD, "q=y"))
    assert storage.entries(child(table.uri, ODD, "q=y")) == []
    held = table.hold()
    held.discard(ODD, "q=x")
    held.close()
    storage.remove(child(table.uri, ODD))
    storage.remove(child(table.uri, ODD))
    storage.discard(child(table.uri, ODD))
    assert not storage.exists(inner)
    assert table.names() == []
    assert storage.free_bytes(table.uri) is None or storage.free_bytes(table.uri)


def test_storage_when_a_directory_has_owners_then_its_permissions_are_those_of_this_process(case: Case) -> None:
    directory = case.table.make_directory("made")
    found, again = case.storage.permissions(directory), case.storage.permissions(case.table.make_directory("again"))
    assert found == again
    assert (found is not None) == case.has_directories
    if found:
        assert found.owner
        assert found.group
        assert found.mode & 0o700 == 0o700
        assert str(found).startswith("drwx")
        assert not found.has_acl


def test_storage_when_many_directories_are_listed_then_each_has_its_names(case: Case) -> None:
    uris = [case.table.make_directory(f"p={number}-{end}") for number in range(30) for end in ("a", "%3A")]
    for number, uri in enumerate(uris[::2]):
        case.storage.write(child(uri, f"f{number}"), b"1")
    found = case.storage.listings(uris)
    assert {uri: (listing.location.uri, list(listing.names)) for uri, listing in found.items()} == {
        uri: (uri, [] if number % 2 else [f"f{number // 2}"]) for number, uri in enumerate(uris)
    }
    assert case.storage.listings([]) == {}
    entries = case.storage.entries_of([case.table.uri, *uris])
    assert entries == {uri: case.storage.entries(uri) for uri in uris} | {case.table.uri: entries[case.table.uri]}
    assert sorted(entries[case.table.uri]) == sorted(case.storage.entries(case.table.uri))
    if case.has_directories:
        with pytest.raises(NotFound, match="missing"):
            case.storage.listings([*uris, child(case.table.uri, "missing")])
        assert list(case.storage.entries_of([child(case.table.uri, "missing"), uris[0]])) == [uris[0]]
    else:  # where `.` is a name like any other
        dotted = [child(case.table.uri, ".", "q=1", f"p={number}") for number in range(50)]
        for uri in dotted:
            case.storage.write(child(uri, "f"), b"1")
        assert {uri: listing.names for uri, listing in case.storage.listings(dotted).items()} == {
            uri: ["f"] for uri in dotted
        }


def test_storage_when_something_is_missing_then_not_found_names_it(case: Case) -> None:
    storage, missing = case.storage, child(case.table.uri, "missing")
    for read in (storage.read, storage.open, storage.stream):
        with pytest.raises(NotFound, match="missing"):
            read(missing)
    assert not storage.exists(missing)
    assert storage.leftovers(missing) == []
    if case.has_directories:
        uses = (storage.location, storage.entries, storage.check_writable, storage.permissions)
        for use in (*uses, lambda at: storage.outbox(at, "t")):
            with pytest.raises(NotFound, match="missing"):
                use(missing)
        case.storage.remove(case.table.uri)
        for call in (case.table.check, case.table.names, lambda: case.table.make_directory("x")):
            with pytest.raises(NotFound):
                call()
        assert not storage.exists(case.table.uri)


def test_storage_when_a_path_is_below_a_file_then_nothing_is_there(case: Case) -> None:
    storage, file = case.storage, child(case.table.uri, "file")
    storage.replace(file, BytesStream(b"content"), ".put")
    for place in (child(file, "missing"), child(file, "missing", "more")):
        for read in (storage.read, storage.open, storage.stream, *([storage.entries] if case.has_directories else [])):
            with pytest.raises(NotFound, match="missing"):
                read(place)
        assert not storage.exists(place)


def test_storage_when_an_orc_file_is_opened_then_its_parts_are_read(case: Case, tmp_path: Path) -> None:
    rows = pa.table({"id": range(400_000), "text": [uuid.UUID(int=n * 7919 << 64).hex for n in range(400_000)]})
    orc.write_table(rows, tmp_path / "rows.orc")
    content = (tmp_path / "rows.orc").read_bytes()
    (staged,) = _stage(case.storage, case.staging(), "task", content)
    with case.storage.open(staged) as file:
        assert file.size() == len(content)
        assert orc.ORCFile(file).nrows == rows.num_rows
        assert orc.ORCFile(file).read(columns=["id"])["id"].to_pylist() == list(range(400_000))
    with case.storage.open(staged, 1000) as part:
        assert part.size() == 1000
        part.seek(990)
        assert part.read() == content[990:1000]


def test_publish_when_deltas_go_to_several_locations_then_all_are_complete(case: Case) -> None:
    partitions = [case.storage.location(case.table.make_directory(f"p={n}")) for n in range(20)]
    contents = [os.urandom(1000 + n) for n in range(40)]
    staged = _stage(case.storage, case.staging(), "task", *contents)
    deltas = [_delta(case, at, staged[2 * n : 2 * n + 2], n) for n, at in enumerate(partitions)]
    case.storage.publish(deltas, case.storage)
    for n, at in enumerate(partitions):
        expected = {"bucket_00000": contents[2 * n], "bucket_00001": contents[2 * n + 1], "_note": b"n"}
        assert _contents(case.storage, child(at.uri, "delta_1")) == expected
    case.storage.remove(case.staging())
    assert case.storage.leftovers(child(case.table.uri, ".staging")) == []


def test_publish_when_the_files_are_in_another_storage_then_copied(case: Case) -> None:
    content = os.urandom(3_000_000)
    staged = _stage(case.other, case.elsewhere, "task", content, b"")
    noted: list[list[str]] = []
    delta = replace(_delta(case, case.table, staged), before_copy=lambda: noted.append(case.table.names()))
    case.storage.publish([delta], case.other)
    is_copied = not isinstance(case.storage, LocalStorage)  # `other` is on the same file system
    assert [set(names) - {".staging"} for names in noted] == [set()] * is_copied
    expected = {"bucket_00000": content, "bucket_00001": b"", "_note": b"n"}
    assert _contents(case.storage, child(case.table.uri, "delta_1")) == expected
    assert not [name for name in case.table.names() if name.startswith(".hidden")]

    # And in the other direction.
    here = _stage(case.storage, case.staging(), "task", content)
    target = case.other.location(case.elsewhere)
    case.other.publish([_delta(case, target, here)], case.storage)
    assert _contents(case.other, child(case.elsewhere, "delta_1")) == {"bucket_00000": content, "_note": b"n"}


def test_publish_when_the_delta_exists_then_refused_and_the_delta_is_untouched(case: Case) -> None:
    first = _stage(case.storage, case.staging(), "task-1", b"first")
    case.storage.publish([_delta(case, case.table, first)], case.storage)
    second = _stage(case.storage, case.staging(), "task-2", b"second")
    with pytest.raises(AlreadyExists, match="delta_1"):
        case.storage.publish([_delta(case, case.table, second, 2)], case.storage)
    assert _contents(case.storage, child(case.table.uri, "delta_1")) == {"bucket_00000": b"first", "_note": b"n"}


def test_publish_when_the_staging_directory_was_removed_then_nothing_appears(case: Case) -> None:
    kept = _stage(case.storage, case.staging("kept"), "task", b"kept")
    gone = _stage(case.storage, case.staging("gone"), "task", b"gone")
    case.storage.remove(case.staging("gone"))
    deltas = [_delta(case, case.table, kept, 1, "delta_1"), _delta(case, case.table, gone, 2, "delta_2")]
    with pytest.raises(NotFound):
        case.storage.publish(deltas, case.storage)
    assert [name for name in case.table.names() if name.startswith("delta")] == []


def test_outbox_when_abandoned_then_nothing_is_left_there(case: Case) -> None:
    staging = case.staging()
    outbox = case.storage.outbox(staging, "task-1")
    (outbox.directory / "sent").write_bytes(b"s" * 100_000)
    outbox.send(outbox.directory / "sent")
    (outbox.directory / "open").write_bytes(b"o")
    outbox.abandon()
    assert not outbox.directory.exists()
    assert case.storage.leftovers(staging) == []
    assert case.storage.entries(case.table.uri) == [] or case.has_directories


def test_outbox_when_the_staging_directory_is_removed_then_later_files_are_refused_or_not_published(case: Case) -> None:
    staging = case.staging()
    outbox = case.storage.outbox(staging, "task-1")
    case.storage.remove(staging)
    if case.has_directories:
        with pytest.raises((StorageUnavailable, FileNotFoundError)):
            _send(outbox, "late")
    outbox.abandon()
    assert not case.storage.exists(staging)


def test_create_when_several_writers_compete_then_one_content_is_complete_and_the_others_fail(case: Case) -> None:
    storage, file = case.storage, child(case.table.uri, "_state")
    contents = [f"writer {number} ".encode() * 10_000 for number in range(4)]

    def create(content: bytes) -> bytes | None:
        try:
            storage.create(file, content)
        except AlreadyExists:
            return None
        return content

    # moto checks the condition and creates the object in two steps; test_s3 has writers that compete.
    with ThreadPoolExecutor(4 if case.has_directories else 1) as threads:
        created = [content for content in threads.map(create, contents) if content]
    assert created == [storage.read(file)]
    storage.create(file, created[0])  # as after a lost answer
    assert case.table.names() == ["_state"]
    storage.remove_file(file)
    storage.remove_file(file)
    assert case.table.names() == []
    if case.has_directories:
        with pytest.raises(NotFound):
            storage.create(child(case.table.uri, "missing", "_state"), b"")


class _Broken(BytesStream):
    """A stream that is `lacking` bytes too short; a read after `fails_at` bytes raises an error."""

    def __init__(self, content: bytes, *, fails_at: int | None = None, lacking: int = 0) -> None:
        super().__init__(content)
        self.size += lacking
        self._left = fails_at

    def read(self, count: int) -> bytes:
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                raise FileChanged("changed", where="source")
        return super().read(count)


def _read(stream: Stream) -> bytes:
    with closing(stream):
        return read_all(stream)


@pytest.mark.parametrize("size", [0, 3_000_000, 17 << 20])
def test_file_when_received_from_a_stream_then_complete_with_its_directories(case: Case, size: int) -> None:
    content = os.urandom(size)
    file = child(case.table.uri, ODD, "delta_1", "bucket %20")
    case.storage.receive(file, BytesStream(content), ".temporary")
    with closing(case.storage.stream(file)) as stream:
        assert stream.size == size
    assert _read(case.storage.stream(file)) == content
    entries = case.storage.entries(child(case.table.uri, ODD, "delta_1"))
    assert [entry[:3] for entry in entries] == [("bucket %20", False, size)]


def test_file_when_it_exists_then_only_replace_changes_it(case: Case) -> None:
    file = child(case.table.uri, "file")
    case.storage.replace(file, BytesStream(b"first"), ".1")
    if case.has_directories:
        with pytest.raises(AlreadyExists, match="file"):
            case.storage.receive(file, BytesStream(b"second"), ".2")
        assert _contents(case.storage, case.table.uri) == {"file": b"first"}
    case.storage.replace(file, BytesStream(b"third"), ".3")
    assert _contents(case.storage, case.table.uri) == {"file": b"third"}
    for name in ("file", "missing"):
        case.storage.remove_file(child(case.table.uri, name))
    assert case.table.names() == []


@pytest.mark.parametrize("size", [2_000_000, 40 << 20])
def test_file_when_the_stream_fails_then_the_error_is_raised_and_nothing_is_left(case: Case, size: int) -> None:
    content = bytes(size)
    for store in (case.storage.receive, case.storage.replace):
        with pytest.raises(FileChanged, match="source"):
            store(child(case.table.uri, "file"), _Broken(content, fails_at=size // 2), ".temporary")
        with pytest.raises(StorageUnavailable, match=r"instead of|incomplete|early"):
            store(child(case.table.uri, "file"), _Broken(content, lacking=1), ".temporary")
    assert case.table.names() == []
    assert case.storage.abort_uploads(case.table.uri, lambda _: True) == []


def test_entry_when_a_file_is_replaced_then_its_version_changes(case: Case) -> None:
    file = child(case.table.uri, "file")

    def version() -> str:
        (entry,) = case.storage.entries(case.table.uri)
        return entry.version

    case.storage.replace(file, BytesStream(b"first"), ".1")
    first = version()
    assert first
    assert version() == first
    case.storage.replace(file, BytesStream(b"other"), ".2")
    assert version() != first


def test_entry_when_a_file_was_written_then_has_the_time_that_its_stream_has(case: Case) -> None:
    file = child(case.table.uri, "file")
    before = now() - 1.0  # some storages count whole seconds, and the clock of a file system may be some ms behind
    case.storage.replace(file, BytesStream(b"content"), ".1")
    (entry,) = case.storage.entries(case.table.uri)
    assert before <= entry.written <= now()
    with closing(case.storage.stream(file)) as stream:
        assert stream.written() == entry.written


def test_directories_when_made_then_with_those_above_and_twice_does_no_harm(case: Case) -> None:
    directory = child(case.table.uri, "a", ODD, "c")
    for _ in range(2):
        case.storage.make_directories(directory)
    assert case.storage.exists(directory) == case.has_directories


@pytest.mark.parametrize("change", ["remove", "replace", "truncate", "append"])
def test_stream_when_the_file_changes_then_one_version_is_read_or_an_error_raised(case: Case, change: str) -> None:
    first, second = os.urandom(12 << 20), os.urandom(12 << 20)
    file = child(case.table.uri, "file")
    case.storage.receive(file, BytesStream(first), ".1")
    with closing(case.storage.stream(file)) as stream:
        begin = stream.read(1 << 20)
        if change == "remove":
            case.storage.remove_file(file)
        elif change == "replace":
            case.storage.replace(file, BytesStream(second), ".2")
        elif isinstance(case.storage, LocalStorage):
            with local_path(file).open("r+b") as changed:
                changed.truncate(5 << 20 if change == "truncate" else 13 << 20)
        else:
            return
        if change in {"truncate", "append"}:
            with pytest.raises(FileChanged):
                _read(stream)
            return
        try:
            rest = _read(stream)
        except StorageUnavailable:
            return  # the blocks of HDFS are gone
    assert begin + rest == first
