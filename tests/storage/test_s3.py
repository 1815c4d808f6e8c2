"""S3: what the contract's tests do not cover, on a server that ignores signatures and on one that checks them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from ingestd.storage.contract import AlreadyExists, NotFound, PermissionDenied, StagedDelta, child
from ingestd.storage.options import S3Options, StorageOptions
from ingestd.storage.s3 import S3Storage
from tests.support.s3 import BUCKET, Server, moto, versitygw
from tests.support.s3_proxy import s3_proxy

TABLE = f"s3a://{BUCKET}/wh/web.db/clicks"
ODD = "p=a%3Ab ü#?+&=%25"


@pytest.fixture(scope="module", params=["moto", "versitygw"])
def server(
    processes: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("s3")
    with moto() if request.param == "moto" else versitygw(folder) as running:
        yield running


@pytest.fixture
def storage(server: Server) -> Iterator[S3Storage]:
    storage = S3Storage(BUCKET, server.options)
    yield storage
    storage.remove(f"s3a://{BUCKET}/wh")
    assert not server.objects("wh/")
    assert not server.uploads()


def _stage(storage: S3Storage, owner: str, *sizes: int) -> dict[str, bytes]:
    """Stage files, and return their contents by URI."""
    outbox = storage.outbox(storage.location(TABLE).make_directory(".staging", owner), "task-1")
    staged = {}
    for number, size in enumerate(sizes):
        file = outbox.directory / f"f{number}"
        file.write_bytes(os.urandom(size))
        content = file.read_bytes()
        staged[outbox.send(file)] = content
    outbox.finish()
    assert not outbox.directory.exists()
    return staged


def _delta(storage: S3Storage, location: str, files: dict[str, str], name: str = "delta_1_1_0000") -> StagedDelta:
    return StagedDelta(storage.location(location), name, files, {}, f"{TABLE}/.staging/1/d", ".hidden")


def test_s3_when_files_of_any_name_and_size_are_staged_and_published_then_they_round_trip(
    server: Server, storage: S3Storage
) -> None:
    staged = _stage(storage, "1", 0, 1, 100_000, (16 << 20) + 1)
    partition = child(TABLE, ODD)
    delta = _delta(storage, partition, {f"bucket_{n:05d}": uri for n, uri in enumerate(staged)})
    storage.publish([replace(delta, contents={"version": b"2"})], storage)
    published = child(partition, delta.name)
    contents = [*staged.values(), b"2"]
    assert [storage.read(child(published, entry.name)) for entry in storage.entries(published)] == contents
    assert [entry.size for entry in storage.entries(published)] == [0, 1, 100_000, (16 << 20) + 1, 1]
    assert [(entry.name, entry.is_directory) for entry in storage.entries(TABLE)] == [(".staging", True), (ODD, True)]
    assert storage.location(partition).names() == [delta.name]
    storage.remove(f"{TABLE}/.staging/1")
    assert not storage.exists(f"{TABLE}/.staging")
    assert f"wh/web.db/clicks/{ODD}/delta_1_1_0000/bucket_00000" in server.objects("wh/")
    assert not server.uploads()


def test_s3_when_a_file_exceeds_the_limit_of_one_copy_request_then_it_is_copied_in_parts(
    server: Server, storage: S3Storage
) -> None:
    ((uri, content),) = _stage(storage, "1", (64 << 20) + 7).items()
    storage.publish([_delta(storage, TABLE, {"bucket_00000": uri})], storage)
    assert storage.read(f"{TABLE}/delta_1_1_0000/bucket_00000") == content
    assert not server.uploads()


def test_s3_when_files_go_to_another_bucket_or_identity_then_files_are_copied_there(
    server: Server, storage: S3Storage
) -> None:
    server.create_bucket("second")
    ((uri, content),) = _stage(storage, "1", 1000).items()
    other = S3Storage("second", server.options)
    other.publish([_delta(other, "s3a://second/x", {"bucket_00000": uri})], storage)
    assert other.read("s3a://second/x/delta_1_1_0000/bucket_00000") == content
    other.remove("s3a://second/x")
    # Another identity of the same server: its files pass through this process.
    stranger = S3Storage(BUCKET, replace(server.options, s3=replace(server.options.s3, connections=2)))
    stranger.publish([_delta(stranger, f"{TABLE}/q", {"bucket_00000": uri})], storage)
    assert stranger.read(f"{TABLE}/q/delta_1_1_0000/bucket_00000") == content


def test_s3_when_a_staged_file_was_removed_then_nothing_is_published(server: Server, storage: S3Storage) -> None:
    staged = list(_stage(storage, "1", 10, 10))
    storage.remove_file(staged[1])
    deltas = [_delta(storage, f"{TABLE}/p={n}", {"bucket_00000": uri}) for n, uri in enumerate(staged)]
    with pytest.raises(NotFound):
        storage.publish(deltas, storage)
    assert not server.objects("wh/")


def test_s3_when_the_names_of_a_location_are_known_then_a_delta_is_refused_without_a_request(
    server: Server, storage: S3Storage
) -> None:
    (uri,) = _stage(storage, "1", 10)
    delta = _delta(storage, f"{TABLE}/p=1", {"bucket_00000": uri})
    with s3_proxy(server.port) as proxy:
        through = S3Storage(BUCKET, server.options_at(proxy.endpoint))
        with pytest.raises(AlreadyExists, match="delta_1_1_0000"):
            through.publish([replace(delta, siblings=["base_1", "delta_1_1_0000"])], through)
        assert not proxy.calls
        through.publish([replace(delta, siblings=["base_1"])], through)
        assert proxy.calls == {"LIST": 1, "COPY": 1}
    assert storage.exists(f"{TABLE}/p=1/delta_1_1_0000")


def test_s3_when_the_delta_exists_then_it_and_the_staged_files_are_not_touched(storage: S3Storage) -> None:
    (uri,) = _stage(storage, "1", 10)
    storage.write(f"{TABLE}/delta_1_1_0000/bucket_00000", b"of another writer")
    with pytest.raises(AlreadyExists, match="delta_1_1_0000"):
        storage.publish([_delta(storage, TABLE, {"bucket_00001": uri})], storage)
    assert storage.read(f"{TABLE}/delta_1_1_0000/bucket_00000") == b"of another writer"
    assert storage.read(uri)


def test_s3_when_a_directory_has_only_unfinished_uploads_then_it_is_a_leftover_and_removed(
    server: Server, storage: S3Storage
) -> None:
    for owner in ("7", "8"):
        key = f"wh/web.db/clicks/.staging/{owner}/task-0/f0"
        server.client().create_multipart_upload(Bucket=BUCKET, Key=key)
    _stage(storage, "9", 10)
    staging = f"{TABLE}/.staging"
    assert storage.leftovers(staging) == ["7", "8", "9"]
    storage.remove(f"{staging}/7")
    storage.discard(f"{staging}/9")
    assert storage.leftovers(staging) == ["8"]
    assert len(server.uploads()) == 1
    storage.remove(f"{staging}/7")
    assert storage.leftovers(f"{TABLE}/none") == []
    key = f"wh/web.db/clicks/{ODD}/delta_1_1_0000/f0"
    server.client().create_multipart_upload(Bucket=BUCKET, Key=key)
    assert storage.abort_uploads(TABLE, lambda file: ODD in file) == [f"s3a://{BUCKET}/{key}"]
    assert len(server.uploads()) == 1


def test_s3_when_an_outbox_is_abandoned_then_its_files_are_removed_and_not_those_of_others(
    server: Server, storage: S3Storage
) -> None:
    _stage(storage, "1", 10)
    outbox = storage.outbox(f"{TABLE}/.staging/1", "task-2")
    (outbox.directory / "f").write_bytes(b"1")
    outbox.send(outbox.directory / "f")
    (outbox.directory / "open").write_bytes(b"1")
    outbox.abandon()
    assert server.objects("wh/") == ["wh/web.db/clicks/.staging/1/task-1/f0"]
    assert not outbox.directory.exists()


def test_s3_when_an_orc_file_is_opened_then_blocks_are_read(storage: S3Storage, tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(range(1_000_000), pa.int64()), "b": pa.array([os.urandom(4).hex()] * 1_000_000)})
    file = tmp_path / "f.orc"
    orc.write_table(table, file, compression="uncompressed")
    content = file.read_bytes()
    assert len(content) > 2 << 20
    storage.write(f"{TABLE}/f.orc", content + b"later rows")
    with storage.open(f"{TABLE}/f.orc", len(content)) as opened:
        assert opened.size() == len(content)
        assert orc.ORCFile(opened).read().equals(table)
    with storage.open(f"{TABLE}/f.orc") as opened:
        assert opened.read() == content + b"later rows"
        opened.seek(10)
        assert opened.read(5) == content[10:15]
    storage.write(f"{TABLE}/empty", b"")
    with storage.open(f"{TABLE}/empty") as opened:
        assert opened.read() == b""
    with storage.open(f"{TABLE}/f.orc", 0) as opened:
        assert opened.read() == b""
    with pytest.raises(NotFound, match="none"):
        storage.open(f"{TABLE}/none")


def test_s3_when_directories_are_examined_then_a_missing_one_is_empty(server: Server, storage: S3Storage) -> None:
    location = storage.location(f"s3n://{BUCKET}//wh//none/")
    location.check()
    assert location.names() == []
    assert not storage.exists(location.uri)
    held = location.hold()
    held.discard("x")
    held.close()
    storage.check_writable(location.uri)
    assert storage.free_bytes(location.uri) is None
    storage.write(f"{TABLE}/p=1/f", b"1")
    assert storage.exists(TABLE)
    assert not storage.exists(TABLE[:-1])
    with pytest.raises(NotFound, match="NoSuchKey"):
        storage.read(f"{TABLE}/f0")
    missing = S3Storage("missing-bucket", server.options)
    for check in (
        missing.location("s3a://missing-bucket/x").check,
        lambda: missing.check_writable("s3a://missing-bucket/x"),
    ):
        with pytest.raises(NotFound, match="NoSuchBucket"):
            check()


def test_s3_when_many_directories_are_listed_then_few_requests_are_sent(server: Server, storage: S3Storage) -> None:
    uris = [f"{TABLE}/p={number}{end}" for number in range(40) for end in ("", "-x", "%3A")]
    for uri in uris[::5]:
        storage.write(f"{uri}/delta_1_1_0000/bucket_00000", b"1")
    storage.write(f"{uris[0]}/base_1/bucket_00000", b"1")
    expected = {uri: [] if number % 5 else ["delta_1_1_0000"] for number, uri in enumerate(uris)}
    expected[uris[0]].insert(0, "base_1")
    with s3_proxy(server.port) as proxy:
        through = S3Storage(BUCKET, server.options_at(proxy.endpoint))
        assert {uri: listing.names for uri, listing in through.listings(uris).items()} == expected
        assert proxy.calls == {"LIST": 1}
        directories = [child(uri, name) for uri in uris for name in ("base_1", "delta_1_1_0000")]
        sizes = {uri: [entry.size for entry in entries] for uri, entries in through.entries_of(directories).items()}
        assert [uri for uri in directories if sizes[uri]] == [
            child(uri, name) for uri in uris for name in expected[uri]
        ]
        assert proxy.calls == {"LIST": 2}
        proxy.refuse("LIST", 403, "AccessDenied", times=1)  # the user may not list the directory of the table
        assert {uri: listing.names for uri, listing in through.listings(uris).items()} == expected
        assert proxy.calls == {"LIST": 3 + len(uris)}
    missing, elsewhere = S3Storage("missing", server.options), [f"s3a://missing/p={number}" for number in range(50)]
    assert missing.entries_of(elsewhere) == {}
    with pytest.raises(NotFound, match="missing"):
        missing.listings(elsewhere)


def test_s3_when_the_key_is_wrong_then_access_is_denied_and_no_secret_is_shown(
    server: Server, request: pytest.FixtureRequest
) -> None:
    if "moto" in request.node.name:
        pytest.skip("moto does not check signatures")
    wrong = replace(server.options.s3, secret_key="another-secret")
    unknown = replace(server.options.s3, access_key="nobody")
    for s3 in (wrong, unknown):
        storage = S3Storage(BUCKET, replace(server.options, s3=s3))
        for call in (storage.location(TABLE).check, lambda s=storage: s.check_writable(TABLE)):
            with pytest.raises(PermissionDenied, match=r"storage\.s3") as raised:
                call()
            assert "secret" not in str(raised.value).replace("secret_key", "")
    assert "test-secret" not in repr(server.options) + repr(S3Storage(BUCKET, server.options).settings)


def test_s3_when_no_credentials_exist_then_the_error_says_where_they_are_searched(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    options = StorageOptions(timeout=2.0, s3=S3Options(endpoint=server.endpoint, region="eu-west-9"))
    storage = S3Storage(BUCKET, options)
    with pytest.raises(PermissionDenied, match="no credentials were found"):
        storage.exists(TABLE)


def test_create_when_several_writers_compete_then_one_creates_the_file_and_the_others_fail(
    processes: None, tmp_path: Path
) -> None:
    contents = [f"writer {number} ".encode() * 10_000 for number in range(4)]
    with versitygw(tmp_path) as server:
        storage = S3Storage(BUCKET, server.options)

        def create(content: bytes) -> bytes | None:
            try:
                storage.create(f"{TABLE}/_state", content)
            except AlreadyExists:
                return None
            return content

        with ThreadPoolExecutor(len(contents)) as threads:
            created = [content for content in threads.map(create, contents) if content]
        assert created == [storage.read(f"{TABLE}/_state")]
