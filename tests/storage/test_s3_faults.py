"""S3 servers that are dead, frozen or overloaded, that lose answers, and keys that are wrong or have expired."""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestd.errors import StorageUnavailable
from ingestd.storage.contract import NoAnswer, NoSpace, NotFound, PermissionDenied, StagedDelta
from ingestd.storage.options import S3Options, StorageOptions
from ingestd.storage.s3 import S3Storage
from tests.support import certificates
from tests.support.patience import LIMIT
from tests.support.s3 import BUCKET, Server, moto, versitygw
from tests.support.s3_proxy import Answer, S3Proxy, s3_proxy
from tests.support.s3_role import role_server
from tests.support.stack import eventually

TABLE = f"s3a://{BUCKET}/wh/t"


@pytest.fixture(scope="module")
def server(processes: None) -> Iterator[Server]:
    with moto() as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[S3Proxy]:
    with s3_proxy(server.port) as proxy:
        yield proxy
    for key in server.objects():
        server.client().delete_object(Bucket=BUCKET, Key=key)


@pytest.fixture
def storage(server: Server, proxy: S3Proxy) -> S3Storage:
    return S3Storage(BUCKET, server.options_at(proxy.endpoint))


def _stage(storage: S3Storage, *sizes: int) -> list[str]:
    outbox = storage.outbox(f"{TABLE}/.staging/1", "task-1")
    try:
        uris = []
        for number, size in enumerate(sizes):
            file = outbox.directory / f"f{number}"
            file.write_bytes(os.urandom(size))
            uris.append(outbox.send(file))
        outbox.finish()
    except StorageUnavailable:
        outbox.abandon()
        raise
    return uris


def _publish(storage: S3Storage, uris: list[str]) -> None:
    names = {f"bucket_{number:05d}": uri for number, uri in enumerate(uris)}
    delta = StagedDelta(storage.location(TABLE), "delta_1_1_0000", names, {}, f"{TABLE}/.staging/1/d", ".hidden")
    storage.publish([delta], storage)


def test_s3_when_answers_are_lost_then_requests_are_repeated_and_each_file_exists_once(
    server: Server, proxy: S3Proxy
) -> None:
    storage = S3Storage(BUCKET, server.options_at(proxy.endpoint, LIMIT))
    proxy.lose_answer("PUT")
    proxy.lose_answer("PART")
    proxy.lose_answer("CREATE")
    uris = _stage(storage, 100, (16 << 20) + 1)
    assert proxy.requests["PUT"] == 2
    proxy.lose_answer("COPY")
    proxy.lose_answer("LIST")
    _publish(storage, uris)
    assert proxy.requests["COPY"] == 3
    proxy.lose_answer("DELETE")
    storage.remove(f"{TABLE}/.staging")
    assert server.objects() == [f"wh/t/delta_1_1_0000/bucket_0000{n}" for n in (0, 1)]
    assert [entry.size for entry in storage.entries(f"{TABLE}/delta_1_1_0000")] == [100, (16 << 20) + 1]
    assert not server.uploads()


def test_s3_when_the_completion_of_an_upload_is_lost_then_its_object_is_accepted(
    processes: None, tmp_path: Path
) -> None:
    # versitygw answers the second completion with NoSuchUpload, as S3 does.
    with versitygw(tmp_path) as server, s3_proxy(server.port) as proxy:
        storage = S3Storage(BUCKET, server.options_at(proxy.endpoint, LIMIT))
        proxy.lose_answer("COMPLETE")
        (uri,) = _stage(storage, (16 << 20) + 1)
        assert proxy.requests["COMPLETE"] == 2
        assert len(storage.read(uri)) == (16 << 20) + 1


@pytest.mark.parametrize("operation", ["PUT", "COPY", "LIST"])
def test_s3_when_the_server_is_overloaded_then_requests_are_repeated_a_few_times(
    server: Server, proxy: S3Proxy, storage: S3Storage, operation: str
) -> None:
    proxy.refuse(operation, 503, "SlowDown", times=2)
    _publish(storage, _stage(storage, 100))
    assert "wh/t/delta_1_1_0000/bucket_00000" in server.objects()


def test_s3_when_it_refuses_copies_for_longer_then_nothing_of_the_transaction_is_left(
    server: Server, proxy: S3Proxy, storage: S3Storage
) -> None:
    uris = _stage(storage, *[10] * 5)
    proxy.refuse("COPY", 503, "SlowDown")
    with pytest.raises(StorageUnavailable, match=r"SlowDown.*storage\.s3\.connections"):
        _publish(storage, uris)
    assert not server.objects()


def test_s3_when_a_copy_is_executed_after_the_failure_then_its_source_is_missing(
    server: Server, proxy: S3Proxy, storage: S3Storage
) -> None:
    """The server receives a copy, hangs, and continues after this process has given up."""
    uris = _stage(storage, 10)
    proxy.hold("COPY")
    failed: list[StorageUnavailable] = []

    def publish() -> None:
        try:
            _publish(storage, uris)
        except StorageUnavailable as error:
            failed.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    assert proxy.held.acquire(timeout=LIMIT)
    thread.join(LIMIT)
    assert "does not answer" in str(failed[0])
    before = proxy.forwarded
    proxy.release("COPY")
    proxy.wait_until_forwarded(before + 1)
    assert not server.objects()


def test_s3_when_a_copy_in_parts_is_completed_after_the_recovery_of_another_owner_then_nothing_appears(
    processes: None, tmp_path: Path
) -> None:
    """All parts are copied, so the staged file is no longer needed, when the process is suspended."""
    with versitygw(tmp_path) as server, s3_proxy(server.port) as proxy:
        rival = S3Storage(BUCKET, server.options)
        uris = _stage(rival, (64 << 20) + 1)
        proxy.hold("COMPLETE")
        with ThreadPoolExecutor(1) as pool:
            suspended = pool.submit(_publish, S3Storage(BUCKET, server.options_at(proxy.endpoint, LIMIT)), uris)
            assert proxy.held.acquire(timeout=LIMIT)
            rival.remove(f"{TABLE}/.staging")
            assert len(rival.abort_uploads(TABLE, lambda file: "/delta_1_1_0000/" in file)) == 1
            proxy.release("COMPLETE")
            with pytest.raises(StorageUnavailable):
                suspended.result()
        assert not server.objects()
        assert not server.uploads()


def test_s3_when_the_server_is_frozen_or_dead_then_calls_fail(processes: None) -> None:
    with moto() as server:
        storage = S3Storage(BUCKET, server.options_at(server.endpoint))
        assert not storage.exists(TABLE)
        server.suspend()
        with pytest.raises(StorageUnavailable, match="does not answer"):
            storage.exists(TABLE)
        server.resume()
        _publish(storage, _stage(storage, 10))
        server.process.kill()
        server.process.wait()
        for call in (storage.location(TABLE).check, lambda: _stage(storage, 10), lambda: storage.leftovers(TABLE)):
            with pytest.raises(StorageUnavailable, match=r"does not answer|failed"):
                call()
        storage.discard(TABLE)


def test_s3_when_answers_arrive_byte_by_byte_then_calls_fail_and_later_ones_succeed(
    server: Server, proxy: S3Proxy
) -> None:
    options = server.options_at(proxy.endpoint)
    S3Storage(BUCKET, options).write(f"{TABLE}/f", b"1")
    storage = S3Storage(BUCKET, replace(options, timeout=0.4))
    calls: dict[str, list[Callable[[], object]]] = {
        "LIST": [partial(storage.exists, TABLE)],
        "PUT": [partial(storage.write, f"{TABLE}/g", b"1"), partial(_stage, storage, 10)],
        "GET": [partial(storage.read, f"{TABLE}/f"), partial(storage.open, f"{TABLE}/f"), partial(_read, storage)],
    }
    for operation in calls:
        proxy.trickle(operation)
    with ThreadPoolExecutor(8) as pool:
        ended = [pool.submit(call) for some in calls.values() for call in some]
    for call in ended:
        with pytest.raises(NoAnswer, match=r"within the time limit.*storage\.timeout"):
            call.result()
    proxy.recover()

    def reads() -> bool:
        try:
            return storage.read(f"{TABLE}/f") == b"1"
        except NoAnswer:  # a busy machine needs longer than the time limit
            return False

    eventually("a later call", reads)


def _read(storage: S3Storage) -> None:
    stream = storage.stream(f"{TABLE}/f")
    try:
        stream.read(1 << 20)
    finally:
        stream.close()


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (400, "ExpiredToken", StorageUnavailable, "new temporary keys"),
        (403, "AccessDenied", PermissionDenied, "grant access"),
        (403, "RequestTimeTooSkewed", StorageUnavailable, "clock"),
        (404, "NoSuchBucket", NotFound, "create the bucket"),
        (400, "IllegalLocationConstraintException", StorageUnavailable, "region"),
        (403, "QuotaExceeded", NoSpace, "free space"),
        (500, "InternalError", StorageUnavailable, "check the server"),
    ],
)
def test_s3_when_a_request_is_refused_then_the_error_has_the_path_and_a_hint(
    proxy: S3Proxy, storage: S3Storage, status: int, code: str, kind: type[StorageUnavailable], hint: str
) -> None:
    proxy.refuse("PUT", status, code)
    with pytest.raises(StorageUnavailable) as raised:
        storage.write(f"{TABLE}/f", b"1")
    assert type(raised.value) is kind
    assert raised.value.where == f"{TABLE}/f"
    assert code in raised.value.what
    assert hint in raised.value.hint
    proxy.recover()
    storage.write(f"{TABLE}/f", b"1")
    assert storage.read(f"{TABLE}/f") == b"1"


def test_s3_when_the_server_has_a_private_ca_then_the_configuration_names_its_file(
    processes: None, tmp_path: Path
) -> None:
    certificates.make(tmp_path)
    certificates.issue(tmp_path, "s3", "localhost")
    with moto(tmp_path) as server:
        storage = S3Storage(BUCKET, server.options)
        storage.write(f"{TABLE}/f", b"1")
        assert storage.read(f"{TABLE}/f") == b"1"
        without = replace(server.options, s3=replace(server.options.s3, ca_file=None))
        missing = replace(server.options, s3=replace(server.options.s3, ca_file=tmp_path / "none.pem"))
        with pytest.raises(StorageUnavailable, match=r"TLS failed.*storage\.s3\.ca_file"):
            S3Storage(BUCKET, without).exists(TABLE)
        with pytest.raises(StorageUnavailable, match=r"storage\.s3\.ca_file .*none\.pem"):
            S3Storage(BUCKET, missing).exists(TABLE)
        key = replace(server.options, s3=replace(server.options.s3, ca_file=tmp_path / "s3.key"))
        with pytest.raises(StorageUnavailable, match=r"storage\.s3\.ca_file .*no certificate"):
            S3Storage(BUCKET, key).exists(TABLE)


def test_s3_when_the_server_does_not_use_tls_then_the_error_says_so(server: Server) -> None:
    with pytest.raises(StorageUnavailable, match="http:// in storage"):
        S3Storage(BUCKET, server.options_at(f"https://127.0.0.1:{server.port}")).exists(TABLE)


@pytest.mark.parametrize("keys", [("key", "secret", "canary\ncanary"), ("canary\n", "secret", None)])
def test_s3_when_a_key_contains_a_line_break_then_no_secret_is_shown(
    storage: S3Storage, server: Server, keys: tuple[str, str, str | None]
) -> None:
    s3 = S3Options(server.endpoint, access_key=keys[0], secret_key=keys[1], session_token=keys[2])
    with pytest.raises(PermissionDenied, match="line break") as raised:
        S3Storage(BUCKET, StorageOptions(s3=s3)).exists(TABLE)
    trace = "".join(traceback.format_exception(raised.value))
    assert "canary" not in trace
    assert "Signature=" not in trace


def test_s3_when_encryption_is_set_then_the_examination_asks_for_it_as_writers_do(
    server: Server, proxy: S3Proxy
) -> None:
    options = server.options_at(proxy.endpoint)
    storage = S3Storage(BUCKET, replace(options, s3=replace(options.s3, encryption="AES256")))
    storage.write(f"{TABLE}/f", b"1")
    storage.check_writable(TABLE)
    assert proxy.encryptions == {"PUT": "AES256", "CREATE": "AES256"}


_LOGIN = b"<!DOCTYPE html><html><head><meta charset=utf-8></head><body>Sign in<br></body></html>"
_STRICT = b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><body>Sign in</body></html>"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, _LOGIN, "text/html"),
        Answer(200, _STRICT, "application/xhtml+xml"),
        Answer(200),
        Answer(302, b"", "text/html", "/login"),
        Answer(403, _LOGIN, "text/html"),
        Answer(404, _STRICT, "text/html"),
    ],
    ids=lambda answer: f"{answer.status}-{answer.type}",
)
def test_s3_when_a_proxy_answers_then_no_request_counts_as_executed_and_the_error_says_so(
    server: Server, proxy: S3Proxy, storage: S3Storage, answer: Answer
) -> None:
    calls: dict[str, Callable[[list[str]], object]] = {
        "LIST": lambda _: storage.entries(TABLE),
        "GET": lambda uris: storage.read(uris[0]),
        "PUT": lambda _: _stage(storage, 10),
        "COPY": lambda uris: _publish(storage, uris),
        "UPLOADS": lambda _: storage.remove(TABLE),
        "DELETE": lambda uris: storage.remove_file(uris[0]),
        "CREATE": lambda _: _stage(storage, (16 << 20) + 1),
    }
    for operation, call in calls.items():
        uris = _stage(storage, 10)
        proxy.answer(operation, answer)
        with pytest.raises(StorageUnavailable, match=r"HTML|not come from an S3 server|redirects") as raised:
            call(uris)
        assert "storage.s3.endpoint" in raised.value.hint
        proxy.recover()
    assert [key for key in server.objects() if "delta_" in key] == []


@pytest.mark.parametrize("operation", ["UPLOADS", "ABORT", "DELETE"])
def test_s3_when_a_permission_of_the_recovery_is_missing_then_the_examination_fails(
    proxy: S3Proxy, storage: S3Storage, operation: str
) -> None:
    proxy.refuse(operation, 403, "AccessDenied")
    with pytest.raises(PermissionDenied, match="AccessDenied") as raised:
        storage.check_writable(TABLE)
    assert ("s3:ListBucketMultipartUploads" in raised.value.hint) == (operation != "DELETE")


def test_s3_when_the_environment_provides_a_web_identity_then_its_role_is_assumed(
    server: Server, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("header.payload.signature")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/ingestd")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", proxy.endpoint)
    storage = S3Storage(
        BUCKET, StorageOptions(timeout=LIMIT, s3=S3Options(endpoint=proxy.endpoint, region="us-east-1"))
    )
    storage.write(f"{TABLE}/f", b"1")
    assert storage.read(f"{TABLE}/f") == b"1"
    assert (proxy.requests["POST"], proxy.requests["PUT"], proxy.requests["GET"]) == (1, 1, 1)


_KEYS = {"access_key": "key", "secret_key": "secret", "session_token": "token"}


@pytest.mark.parametrize(
    ("s3", "hadoop", "environment", "login"),
    [
        (_KEYS, {}, {}, ("key", "token")),
        ({"anonymous": True}, {}, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, (None, None)),
        ({}, {"access.key": "hadoop", "secret.key": "s"}, {}, ("hadoop", None)),
        ({}, {"access.key": "h", "secret.key": "s", "session.token": "temporary"}, {}, ("h", "temporary")),
        (
            {},
            {},
            {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"},
            ("a", "c"),
        ),
    ],
    ids=["configuration", "anonymous", "hadoop", "hadoop-temporary", "environment"],
)
def test_s3_when_credentials_come_from_a_source_then_requests_are_signed_with_them(
    proxy: S3Proxy,
    monkeypatch: pytest.MonkeyPatch,
    s3: dict[str, Any],
    hadoop: dict[str, str],
    environment: dict[str, str],
    login: tuple[str | None, str | None],
) -> None:
    _without_login(monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    properties = {f"fs.s3a.{name}": value for name, value in hadoop.items()}
    options = S3Options(endpoint=proxy.endpoint, region="us-east-1", **s3)
    storage = S3Storage(BUCKET, StorageOptions(timeout=LIMIT, s3=options, properties=properties))
    storage.write(f"{TABLE}/f", b"1")
    assert proxy.logins == {"PUT": login}


def test_s3_when_a_container_has_a_role_then_its_keys_are_renewed_before_they_expire(
    proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_login(monkeypatch)
    with role_server() as role:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.url)
        storage = _storage_without_keys(proxy)
        logins = []
        for _ in range(3):
            storage.write(f"{TABLE}/f", b"1")
            logins.append(proxy.logins["PUT"])
        assert len(set(logins)) == 3
        assert set(logins) <= set(role.given)


def test_s3_when_a_virtual_machine_has_a_role_then_requests_are_signed_with_its_keys(
    proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_login(monkeypatch)
    with role_server() as role:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", role.url)
        _storage_without_keys(proxy).write(f"{TABLE}/f", b"1")
        assert proxy.logins["PUT"] in role.given


def test_s3_when_the_program_that_returns_keys_does_not_end_then_calls_fail_and_work_once_it_does(
    proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _without_login(monkeypatch)
    gate, keys, profile = (tmp_path / name for name in ("gate", "keys.json", "config"))
    os.mkfifo(gate)
    keys.write_text(json.dumps({"Version": 1, "AccessKeyId": "late", "SecretAccessKey": "secret"}))
    profile.write_text(f"[default]\ncredential_process = cat {gate} {keys}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profile))
    storage = _storage_without_keys(proxy, 0.2)
    with ThreadPoolExecutor(2) as pool:  # one of them waits for the other
        calls = [pool.submit(storage.write, f"{TABLE}/f", b"1") for _ in range(2)]
    for call in calls:
        with pytest.raises(NoAnswer, match=r"no credentials were obtained within the time limit.*credential_process"):
            call.result()
    with gate.open("w"):
        gate.unlink()
        gate.touch()
    eventually("the keys", lambda: _is_written(storage))
    assert proxy.logins["PUT"][0] == "late"


def _is_written(storage: S3Storage) -> bool:
    try:
        storage.write(f"{TABLE}/f", b"1")
    except NoAnswer:  # a busy machine starts no program within the time limit
        return False
    return True


def _storage_without_keys(proxy: S3Proxy, timeout: float = 8.0) -> S3Storage:
    """Return a bucket for which botocore has to find the keys."""
    options = S3Options(endpoint=proxy.endpoint, region="us-east-1")
    return S3Storage(BUCKET, StorageOptions(timeout=timeout, s3=options))


def _without_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what the environment of the tests may contain."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
