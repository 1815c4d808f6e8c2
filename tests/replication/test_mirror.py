"""Directories of external tables: where they are copied to, and how a copy follows its source."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hdfs_native import Client

from ingestd.errors import ConfigError, InvalidTable, OwnershipLost, ReplicationError, StorageUnavailable
from ingestd.replication import external
from ingestd.replication.copying.copy import Copier, CopyOptions, CopyStopped
from ingestd.replication.copying.mirror import Mirror, MirrorResult, Mirrors, copied_versions
from ingestd.replication.directory.manifest import Manifest, ManifestIncomplete, ManifestWriter
from ingestd.replication.external import ExternalDirectory, overlap, target_location
from ingestd.replication.statements.settings import check_base
from ingestd.storage.contract import PermissionDenied, Storage, child, split
from ingestd.storage.local import LocalStorage, local_path
from ingestd.storage.storages import Storages
from ingestd.storage.stream import BytesStream
from tests.replication.conftest import Root
from tests.support.daemon import shared_engine
from tests.support.hdfs import Cluster
from tests.support.patience import LIMIT
from tests.support.s3 import BUCKET, Server
from tests.support.s3_proxy import s3_proxy


def _update(storages: Storages, *pairs: Mirror) -> MirrorResult:
    return Mirrors(storages, Copier(storages)).update(pairs)


def _put(root: Root, path: str, content: bytes) -> None:
    root.storages.at(root.uri).replace(child(root.uri, path), BytesStream(content), ".put")


def _tree(root: Root, directory: str) -> dict[str, bytes]:
    """Return the visible files below a directory."""
    storage, found = root.storages.at(directory), dict[str, bytes]()
    for entry in storage.entries(directory):
        inner = child(directory, entry.name)
        if entry.is_directory:
            found |= {f"{entry.name}/{path}": content for path, content in _tree(root, inner).items()}
        elif not entry.name.startswith("."):
            found[entry.name] = storage.read(inner)
    return found


def test_mirror_when_a_source_cannot_be_read_then_the_others_are_copied(
    cluster: Cluster, local_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, storages = child(cluster.root, f"denied {uuid.uuid4().hex}"), Storages(cluster.options())
    hdfs = storages.at(place)
    for name in ("closed", "partly", "open"):
        hdfs.make_directories(child(place, name, "p=1"))
        hdfs.write(child(place, name, "p=1", "file"), name.encode())
    client = Client(cluster.root)
    for path in ("closed/p=1", "partly/p=1/file"):
        client.set_permission(f"{split(place).path}/{path}", 0o000)
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    pairs = [Mirror(child(place, name), child(local_root.uri, name)) for name in ("closed", "partly", "open")]
    unsupported = Mirror("abfs://container@account/t", child(local_root.uri, "unsupported"))
    kept = local_path(child(local_root.uri, "closed")) / "file"
    kept.parent.mkdir()
    kept.write_bytes(b"earlier")
    result = _update(Storages(cluster.options()), *pairs, unsupported)
    assert result.copied == 1
    assert (result.lost, result.missing) == ((), ())
    assert list(result.unreadable) == [pairs[0].source, unsupported.source, pairs[1].source]
    kinds = [type(error) for error in result.unreadable.values()]
    assert kinds == [PermissionDenied, InvalidTable, PermissionDenied]
    assert "user=alice" in str(result.unreadable[pairs[0].source])
    assert _tree(local_root, pairs[2].target) == {"p=1/file": b"open"}
    assert kept.read_bytes() == b"earlier"
    monkeypatch.delenv("HADOOP_USER_NAME")
    result = _update(Storages(cluster.options()), *pairs)
    assert (result.copied, result.unreadable, kept.exists()) == (2, {}, False)


def test_mirror_when_files_are_added_changed_and_removed_then_the_target_follows(root: Root) -> None:
    pair = Mirror(child(root.uri, "source"), child(root.uri, "base/target"))
    for path in ("a", "p=1/b", "p=1/c", "p=2/q=3/d", "_SUCCESS", ".hive-staging/x", "_temporary/0/y"):
        _put(root, f"source/{path}", b"first")
    first = _update(root.storages, pair)
    visible = {"a": b"first", "p=1/b": b"first", "p=1/c": b"first", "p=2/q=3/d": b"first"}
    assert (first.copied, first.copied_bytes, first.removed) == (4, 20, 0)
    assert _tree(root, pair.target) == visible

    for directory in ("source", "base/target"):
        _put(root, f"{directory}/p=1/.ingestd-copy-killed", b"fir")
    idle = _update(root.storages, pair)
    assert (idle.copied, idle.removed) == (0, 0)
    hidden = [
        entry.name
        for directory in (pair.source, pair.target)
        for entry in root.storages.at(root.uri).entries(child(directory, "p=1"))
    ]
    assert hidden.count(".ingestd-copy-killed") == 1  # the source's

    _put(root, "source/a", b"other")  # of the same length
    _put(root, "source/p=1/b", b"longer content")
    _put(root, "source/new/e", b"")
    root.storages.at(root.uri).remove_file(child(pair.source, "p=1/c"))
    root.storages.at(root.uri).remove(child(pair.source, "p=2"))
    second = _update(root.storages, pair)
    assert (second.copied, second.removed) == (3, 2)
    assert _tree(root, pair.target) == {"a": b"other", "p=1/b": b"longer content", "new/e": b""}
    assert not root.storages.at(root.uri).exists(child(pair.target, "p=2"))

    below = copied_versions(root.storages, Mirror(child(pair.source, "p=1"), child(pair.target, "p=1")))
    assert {path: version.length for path, version in below.items()} == {"b": 14}
    assert copied_versions(root.storages, pair).keys() == {"a", "p=1/b", "new/e"}
    assert copied_versions(root.storages, Mirror(child(root.uri, "other"), pair.target)) == {}


@pytest.fixture
def pair(local_root: Root) -> Mirror:
    return Mirror(child(local_root.uri, "source"), child(local_root.uri, "target"))


def test_mirror_when_the_source_is_missing_then_the_target_is_created_and_nothing_is_removed(
    local_root: Root, pair: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    assert _update(local_root.storages, pair).missing == ()
    assert local_root.storages.at(pair.target).exists(pair.target)
    assert caplog.messages == []
    _put(local_root, "target/file", b"kept")
    assert _update(local_root.storages, pair).missing == (pair,)
    assert caplog.messages == [f"{pair.source} does not exist; the files in its copy {pair.target} are kept"]
    assert _tree(local_root, pair.target) == {"file": b"kept"}


def test_mirror_when_the_source_disappears_or_is_emptied_then_only_an_empty_directory_empties_the_target(
    root: Root, caplog: pytest.LogCaptureFixture
) -> None:
    storage, pair = root.storages.at(root.uri), Mirror(child(root.uri, "gone"), child(root.uri, "kept"))
    for path in ("gone/a", "gone/p=1/b"):
        _put(root, path, b"content")
    _update(root.storages, pair)
    storage.remove(pair.source)
    gone = _update(root.storages, pair)
    assert (gone.missing, gone.removed) == ((pair,), 0)
    assert _tree(root, pair.target) == {"a": b"content", "p=1/b": b"content"}
    assert f"{pair.source} does not exist; the files in its copy {pair.target} are kept" in caplog.text

    storage.location(root.uri).mark_directory("gone")
    emptied = _update(root.storages, pair)
    assert (emptied.missing, emptied.removed) == ((), 2)
    assert _tree(root, pair.target) == {}


@pytest.mark.parametrize("is_bucket_removed", [True, False])
def test_mirror_when_the_source_in_s3_disappears_while_it_is_listed_then_nothing_is_removed(
    s3: Server, tmp_path: Path, *, is_bucket_removed: bool
) -> None:
    s3.create_bucket("source")
    with s3_proxy(s3.port) as proxy, ThreadPoolExecutor(1) as pool:
        storages = Storages(s3.options_at(proxy.endpoint, LIMIT))
        target = Root(storages, tmp_path.as_uri())
        _put(Root(storages, "s3a://source"), "t/p=1/file", b"kept")
        pair = Mirror("s3a://source/t", child(target.uri, "t"))
        _update(storages, pair)
        proxy.hold("LIST", after=1)
        update = pool.submit(_update, storages, pair)
        assert proxy.held.acquire(timeout=LIMIT)
        s3.client().delete_object(Bucket="source", Key="t/p=1/file")
        if is_bucket_removed:
            s3.client().delete_bucket(Bucket="source")
        proxy.release("LIST")
        assert update.result().missing == (pair,)
        assert _tree(target, pair.target) == {"p=1/file": b"kept"}


def test_mirror_when_a_file_becomes_a_directory_or_the_reverse_then_the_target_follows(
    local_root: Root, pair: Mirror
) -> None:
    for path in ("a", "b/c"):
        _put(local_root, f"source/{path}", b"content")
    local_root.storages.at(pair.source).make_directories(child(pair.source, "empty/d"))
    _update(local_root.storages, pair)
    assert local_root.storages.at(pair.target).exists(child(pair.target, "empty/d"))
    storage = local_root.storages.at(pair.source)
    storage.remove_file(child(pair.source, "a"))
    storage.remove(child(pair.source, "b"))
    storage.remove(child(pair.source, "empty"))
    _put(local_root, "source/a/x", b"x")
    _put(local_root, "source/b", b"b")
    _update(local_root.storages, pair)
    assert _tree(local_root, pair.target) == {"a/x": b"x", "b": b"b"}
    assert not storage.exists(child(pair.target, "empty"))


def test_mirror_when_files_were_in_place_of_its_directories_then_the_target_follows(root: Root) -> None:
    def pair(path: str) -> Mirror:
        return Mirror(child(root.uri, "source", path), child(root.uri, "base/source", path))

    storage = root.storages.at(root.uri)
    for path in ("a/x", "b/y", "c/z"):
        _put(root, f"source/{path}", b"file")
    _update(root.storages, pair("a"), pair("b"), pair("c"))
    for path in ("a/x", "b/y", "c/z"):
        storage.remove_file(child(root.uri, "source", path))
    _put(root, "source/a/x/part", b"part")
    _put(root, "source/b/y/deep/part", b"part")
    changed = [pair(path) for path in ("a/x", "b/y/deep", "c/z")]
    for copied in (2, 0):
        assert _update(root.storages, *changed).copied == copied
        assert [_tree(root, there.target) for there in changed[:2]] == [{"part": b"part"}] * 2
        entries = storage.entries(child(root.uri, "base/source/c"))
        assert [entry.name for entry in entries if not entry.is_directory] == [".ingestd-mirror"]


def test_mirror_when_the_target_was_not_written_by_it_then_it_is_copied_although_it_looks_equal(
    local_root: Root, pair: Mirror
) -> None:
    _put(local_root, "source/file", b"source")
    _put(local_root, "target/file", b"target")
    assert _update(local_root.storages, pair).copied == 1
    assert _tree(local_root, pair.target) == {"file": b"source"}
    other = Mirror(child(local_root.uri, "other"), pair.target)
    _put(local_root, "other/file", b"OTHERS")
    assert _update(local_root.storages, other).copied == 1
    assert _tree(local_root, pair.target) == {"file": b"OTHERS"}


@pytest.mark.parametrize(
    ("theirs", "ours", "is_same"),
    [("t", "t", False), ("t", "t/p=1", False), ("t/p=1", "t", False), ("t", "t", True), ("t/p=1", "t", True)],
)
def test_mirror_when_another_owner_has_copied_to_its_place_then_is_refused_unless_from_the_same_source(
    local_root: Root, theirs: str, ours: str, *, is_same: bool
) -> None:
    """A directory inside or around the place is another owner's as well."""
    root = local_root
    for bucket in ("a", "b"):
        _put(root, f"{bucket}/t/p=1/{bucket}", b"content")

    def update(path: str, bucket: str, owner: str) -> MirrorResult:
        pair = Mirror(child(root.uri, bucket, path), child(root.uri, "base", path))
        return Mirrors(root.storages, Copier(root.storages), owner=owner).update([pair])

    update(theirs, "a", "the database first")
    before = _tree(root, child(root.uri, "base"))
    if is_same:
        assert update(ours, "a", "the database second").removed == 0
        return
    with pytest.raises(ConfigError, match=r"the copy of .*/a/t.* for the database first") as refusal:
        update(ours, "b", "the database second")
    assert "different base directories; if nothing uses" in (refusal.value.hint or "")
    assert _tree(root, child(root.uri, "base")) == before
    update(theirs, "b", "the database first")  # the table has another location
    assert set(_tree(root, child(root.uri, "base"))) == {"t/p=1/b"}
    root.storages.at(root.uri).remove(child(root.uri, "base/t"))
    update(ours, "a", "the database second")


def test_mirror_when_an_earlier_release_has_copied_then_the_copy_gets_its_owner(local_root: Root, pair: Mirror) -> None:
    _put(local_root, "source/file", b"content")
    _update(local_root.storages, pair)
    version = copied_versions(local_root.storages, pair)["file"]
    lines = "\n".join(map(json.dumps, (pair.source, ["file", *version])))
    _put(local_root, "target/.ingestd-mirror", gzip.compress(lines.encode()))
    assert copied_versions(local_root.storages, pair) == {"file": version}

    def update(source: str, owner: str) -> MirrorResult:
        mirrors = Mirrors(local_root.storages, Copier(local_root.storages), owner=owner)
        return mirrors.update([Mirror(source, pair.target)])

    assert update(pair.source, "the database first").copied == 0
    _put(local_root, "other/file", b"content")
    with pytest.raises(ConfigError, match="for the database first"):
        update(child(local_root.uri, "other"), "the database second")


def test_mirror_when_stopped_then_nothing_is_removed_and_the_next_update_copies_only_the_rest(
    local_root: Root, pair: Mirror
) -> None:
    contents = {f"{number}": os.urandom(100_000) for number in range(40)}
    for path, content in contents.items():
        _put(local_root, f"source/{path}", content)
    _put(local_root, "target/gone", b"gone")
    stop = threading.Event()
    slow = Copier(local_root.storages, options=CopyOptions(bytes_per_second=1_000_000))
    with pytest.raises(CopyStopped):
        Mirrors(local_root.storages, slow).update([pair], stop=stop, on_progress=lambda _: stop.set())
    present = _tree(local_root, pair.target)
    assert present["gone"] == b"gone"
    assert 1 < len(present) < 41
    rest = _update(local_root.storages, pair)
    assert (rest.copied, rest.removed) == (41 - len(present), 1)
    assert _tree(local_root, pair.target) == contents


class _Vanishing(Storages):
    """Storages in which a file disappears when it is opened."""

    def at(self, uri: str) -> Storage:
        return _VanishingStorage()


class _VanishingStorage(LocalStorage):
    def stream(self, file: str):  # type: ignore[no-untyped-def]  # raises for one file
        if file.endswith("/vanishes"):
            self.remove_file(file)
        return super().stream(file)


def test_mirror_when_a_file_vanishes_while_it_is_copied_then_reported_and_removed_by_the_next_update(
    local_root: Root, pair: Mirror
) -> None:
    for name in ("stays", "vanishes"):
        _put(local_root, f"source/{name}", b"content")
        _put(local_root, f"target/{name}", b"old")
    found = _update(_Vanishing(), pair)
    assert [lost.file.name for lost in found.lost] == ["vanishes"]
    assert _tree(local_root, pair.target) == {"stays": b"content", "vanishes": b"old"}
    assert _update(local_root.storages, pair).removed == 1


def test_mirror_when_the_copy_fails_then_nothing_is_removed(local_root: Root, pair: Mirror, tmp_path: Path) -> None:
    _put(local_root, "source/dir/file", b"content")
    _put(local_root, "target/gone", b"gone")
    (tmp_path / "dumps/target/dir").symlink_to("/proc/ingestd-no-such")
    copier = Copier(local_root.storages, options=CopyOptions(attempts=1))
    with pytest.raises(StorageUnavailable):
        Mirrors(local_root.storages, copier).update([pair])
    assert (tmp_path / "dumps/target/gone").exists()


def test_mirror_when_the_lease_is_lost_then_nothing_is_removed(local_root: Root, pair: Mirror, tmp_path: Path) -> None:
    for path in ("a", "gone", "dir/gone"):
        _put(local_root, f"source/{path}", b"content")
    _update(local_root.storages, pair)
    (tmp_path / "dumps/source/gone").unlink()
    shutil.rmtree(tmp_path / "dumps/source/dir")

    def lost() -> None:
        raise OwnershipLost("another process loads into the database", where="lease")

    with pytest.raises(OwnershipLost):
        Mirrors(local_root.storages, Copier(local_root.storages).guarded(lost)).update([pair])
    assert set(_tree(local_root, pair.target)) == {"a", "gone", "dir/gone"}
    assert _update(local_root.storages, pair).removed == 2


def test_mirror_when_a_killed_copy_has_left_uploads_then_aborts_those_of_the_target_only(s3: Server) -> None:
    root = Root(Storages(s3.options), f"s3a://{BUCKET}/{uuid.uuid4().hex}")
    pair = Mirror(child(root.uri, "source"), child(root.uri, "target"))
    _put(root, "source/p=1/file", b"content")
    _update(root.storages, pair)
    paths = ("target/p=1/gone", "target2/other", "target/_temporary/p=1/other")
    keys = [child(root.uri, path).removeprefix(f"s3a://{BUCKET}/") for path in paths]
    for key in keys:
        s3.client().create_multipart_upload(Bucket=BUCKET, Key=key)
    assert _update(root.storages, pair).copied == 0
    assert [key in s3.uploads() for key in keys] == [False, True, True]
    assert _tree(root, pair.target) == {"p=1/file": b"content"}


def test_mirror_when_the_tree_is_large_then_spark_lists_it(processes: None, local_root: Root, pair: Mirror) -> None:
    source = Path(pair.source.removeprefix("file:"))
    for number in range(2100):
        (source / f"p={number}").mkdir(parents=True)
    for number in range(0, 2100, 100):
        (source / f"p={number}" / "file").write_bytes(b"content")
    with closing(Copier(local_root.storages, shared_engine())) as copier:
        mirrors = Mirrors(local_root.storages, copier)
        assert mirrors.update([pair]).copied == 21
        assert mirrors.update([pair]).copied == 0
    assert len(_tree(local_root, pair.target)) == 21
    assert len(local_root.storages.at(pair.target).entries(pair.target)) == 2101


TABLE = "hdfs://source:8020/ext/t"


def test_directories_when_partitions_are_elsewhere_then_each_has_an_entry_that_can_be_read_again() -> None:
    inside, outside = f"{TABLE}/p=1", "hdfs://source:8020/ext/t2/p=a,b%2F"
    found = external.directories("t", TABLE, {"p=1": inside, "p=a,b%2F/q=ü": outside, "p=3": f"{TABLE}/"})
    assert found == [ExternalDirectory("t", "", TABLE), ExternalDirectory("t", "p=a,b%2F/q=ü", outside)]
    content = external.encoded(found)
    assert content.startswith(b"t,aGRmczovL3NvdXJjZTo4MDIwL2V4dC90\n")
    assert external.decoded(content, "hdfs://x/_external_tables_info") == found
    assert external.decoded(b"", "x") == []
    for line in (b"t\n", b"t,%%%\n", b"\xff\n", b",aGRmcw==\n", b"t,p=1,\n"):
        with pytest.raises(ReplicationError, match="x, line 1"):
            external.decoded(line, "x")


def test_directories_when_partitions_have_hidden_directories_then_they_are_copied_as_well() -> None:
    hidden, below, inner = f"{TABLE}/_day=1", f"{TABLE}/p=1/.x/y", f"{TABLE}/_day=1/p=2"
    found = external.directories("t", TABLE, {"_day=1": hidden, "q=1": below, "r=1": inner, "p=1": f"{TABLE}/p=1"})
    assert [directory.uri for directory in found] == [TABLE, hidden, below, inner]
    pairs = external.mirrors([*found, ExternalDirectory("u", "", below)], "hdfs://target/base")
    assert [pair.source for pair in pairs] == [TABLE, hidden, below]
    assert [pair.target for pair in pairs] == [f"hdfs://target/base/ext/t{pair.source[len(TABLE) :]}" for pair in pairs]
    with pytest.raises(ConfigError, match="would both be copied"):
        external.mirrors([*found, ExternalDirectory("v", "", "s3a://bucket/ext/t/p=1/.x")], "hdfs://target/base")


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_directories_when_lines_are_missing_or_added_then_the_manifest_is_incomplete(
    tmp_path: Path, lines: int
) -> None:
    writer = ManifestWriter(LocalStorage(), str(tmp_path))
    found = [ExternalDirectory("t", "", TABLE), ExternalDirectory("u", "", f"{TABLE}2")]
    external.store_directories(writer, found)
    writer.finish()
    manifest = Manifest(LocalStorage(), str(tmp_path))
    assert external.read_directories(manifest) == found
    file = tmp_path / "_external_tables_info"
    file.write_text("".join([*file.read_text().splitlines(keepends=True), "v,aGRmcw==\n"][:lines]))
    with pytest.raises(ManifestIncomplete, match=f"_external_tables_info has {lines} lines instead of 2"):
        external.read_directories(manifest)


@pytest.mark.parametrize(
    ("location", "base", "expected"),
    [
        ("hdfs://source/ext_loc/t", "hdfs://target/ext_base1", "hdfs://target/ext_base1/ext_loc/t"),
        ("s3a://bucket/ext/t/", "hdfs://target/", "hdfs://target/ext/t"),
        ("file:/ext/t", "file:///base", "file:///base/ext/t"),
        ("hdfs://source/", "s3a://bucket/base/", "s3a://bucket/base/"),
    ],
)
def test_location_when_mapped_then_the_base_directory_and_the_path_of_the_source(
    location: str, base: str, expected: str
) -> None:
    check_base(base)
    assert target_location(location, base) == expected


@pytest.mark.parametrize("base", ["", "/base", "hdfs:/base", "base", "s3a:base"])
def test_base_directory_when_not_fully_qualified_then_refused(base: str) -> None:
    with pytest.raises(ConfigError, match="fully qualified"):
        check_base(base)


def test_base_directories_when_one_contains_the_other_then_overlap() -> None:
    for place in ("hdfs://n/base/", "hdfs://n/base/inner", "hdfs://n/"):
        assert overlap("hdfs://n/base", place)
    assert overlap("s3://b/base", "s3a://b/base")
    for place in ("hdfs://n/base1", "hdfs://other/base"):
        assert not overlap("hdfs://n/base", place)


def test_mirrors_when_directories_contain_each_other_then_copied_once_and_collisions_are_refused() -> None:
    found = [ExternalDirectory("t", "p=1", f"{TABLE}/p=1"), ExternalDirectory("u", "", TABLE)]
    expected = [Mirror(TABLE, "hdfs://target/base/ext/t")]
    assert external.mirrors(found, "hdfs://target/base") == expected
    collision = [*found, ExternalDirectory("v", "", "s3a://bucket/ext/t/v")]
    with pytest.raises(ConfigError, match="would both be copied"):
        external.mirrors(collision, "hdfs://target/base")


def test_mirrors_when_there_are_thousands_then_each_is_looked_up() -> None:
    """Each pair of them would take minutes."""
    found = [ExternalDirectory("t", f"p={number}", f"hdfs://source/{number}/p") for number in range(10_000)]
    assert len(external.mirrors(found, "hdfs://target/base")) == 10_000


@pytest.mark.parametrize("base", ["file:///", "file:///ext/t/replica"])
def test_mirrors_when_a_directory_would_be_copied_into_itself_then_are_refused(base: str) -> None:
    """Otherwise each cycle would copy the copies of the last one."""
    with pytest.raises(ConfigError, match="which is the same directory"):
        external.mirrors([ExternalDirectory("t", "", "file:/ext/t")], base)
