"""Requests that change the daemon: who may send them, what they do, and how long an answer takes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingestd.config.http import Address, HttpOptions, TlsFiles
from ingestd.daemon import log
from ingestd.daemon.http.server import HttpServer
from ingestd.errors import ConfigError, ConfigFaults
from ingestd.ingest.control import Request, RequestFailed
from ingestd.ingest.inspection.preview import AtOffset, AtTime, Preview
from ingestd.kafka.ranges import TopicPartition
from ingestd.spark.engine import JobGroup
from tests.support import certificates
from tests.support.http import JSON, LOOPBACK, Client, StaticFleet, server_threads, serving
from tests.support.patience import LIMIT
from tests.support.stack import eventually

TOKEN = "0123456789abcdef"
ANY = Address("0.0.0.0", 0)


@pytest.fixture
def fleet() -> StaticFleet:
    made = StaticFleet()
    made.run("orders")
    return made


@pytest.fixture
def client(fleet: StaticFleet) -> Iterator[Client]:
    with serving(fleet) as made:
        yield made


@pytest.fixture(scope="module")
def refusing() -> Iterator[Client]:
    """Yield a client for requests that change nothing. A server takes 0.2 s to stop, so these tests share one."""
    shared = StaticFleet()
    shared.run("orders")
    with serving(shared) as made:
        yield made
    assert shared.controls["orders"].take() == []
    assert shared.reloads == 0


@contextmanager
def _carrying_out(fleet: StaticFleet, react: Callable[[Request], None]) -> Iterator[list[Request]]:
    """Carry out the requests to `orders` in a thread, as its main loop does, and yield them."""
    control, seen, is_over = fleet.controls["orders"], list[Request](), threading.Event()

    def work() -> None:
        while not is_over.is_set():
            control.changed.wait()
            for request in control.take():
                seen.append(request)
                react(request)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        control.changed.set()
        thread.join()


def _succeed(request: Request) -> None:
    request.done.set_result(None)


def _fail(request: Request) -> None:
    request.done.set_exception(RequestFailed("the mapping lost its lease", where="mapping orders", hint="try again"))


# --- what requests do


@pytest.mark.parametrize("verb", ["pause", "resume", "flush"])
def test_change_when_the_mapping_carries_it_out_then_done(client: Client, fleet: StaticFleet, verb: str) -> None:
    with _carrying_out(fleet, _succeed) as seen:
        answer = client.post(f"/mappings/orders/{verb}", {"by": "ann"})
    assert (answer.status, answer.json) == (200, {"mapping": "orders", "action": verb, "result": "done"})
    assert [(request.action, request.by) for request in seen] == [(verb, "ann (127.0.0.1)")]


def test_offsets_when_valid_then_the_mapping_receives_the_change(client: Client, fleet: StaticFleet) -> None:
    with _carrying_out(fleet, _succeed) as seen:
        body = {"offsets": {"orders": {"0": 7}}, "expected": {"orders": {"0": 1000}}}
        assert client.post("/mappings/orders/offsets", body).status == 200
    change = seen[0].change
    assert change is not None
    assert (change.offsets, change.expected) == ({TopicPartition("orders", 0): 7}, {TopicPartition("orders", 0): 1000})


def test_preview_then_returns_the_document_and_needs_the_rights_of_an_operator(
    fleet: StaticFleet, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN, encoding="ascii")
    path, token = "/mappings/orders/preview", {"Authorization": f"Bearer {TOKEN}"}
    with serving(fleet, token_file=file) as client:
        assert client.post(path).status == 401
        assert client.get(path).status == 405
        assert client.post("/mappings/other/preview", **token).status == 404
        for body in ({"limit": 0}, {"limit": True}, {"at": 5}, {"at": "soon"}, {"more": 1}):
            assert client.post(path, body, **token).status == 400, body
        shown = client.post(path, {"limit": 5, "at": "orders:0:7"}, **token).json
    assert (shown["mapping"], shown["records"]) == ("orders", 5)
    assert shown["rows"][0]["values"] == {"start": str(AtOffset(TopicPartition("orders", 0), 7))}


@dataclass
class _SlowFleet(StaticFleet):
    """A fleet whose previews take until `go_on` is set.

    `begun` counts them, and `groups` are those of their jobs; `cancelled` are groups that were cancelled.
    """

    go_on: threading.Event = field(default_factory=threading.Event)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    groups: list[JobGroup] = field(default_factory=list)
    cancelled: list[JobGroup] = field(default_factory=list)

    def preview(self, name: str, limit: int, start: AtTime | AtOffset | None, group: JobGroup) -> Preview:
        self.groups.append(group)
        self.begun.release()
        assert self.go_on.wait(LIMIT)
        return super().preview(name, limit, start, group)

    def cancel(self, group: JobGroup) -> None:
        self.cancelled.append(group)


def test_preview_when_its_client_disconnects_then_is_cancelled_and_no_other_one_runs_before_its_end(
    fleet: StaticFleet,
) -> None:
    slow = _SlowFleet(fleet.monitors, fleet.controls)
    path = "/mappings/orders/preview"
    with serving(slow) as client:
        try:
            with closing(client.open()) as leaving:
                leaving.request("POST", path, headers=JSON)
                assert slow.begun.acquire(timeout=LIMIT)
                assert client.post(path).status == 409
                assert slow.cancelled == []  # the client is still connected
            eventually("a cancellation of the jobs that the preview starts later", lambda: len(slow.cancelled) > 1)
            refused = client.post(path)
            assert refused.status == 409
            assert "another preview is running: of the mapping orders for 127.0.0.1, since " in refused.json["error"]
        finally:
            slow.go_on.set()
        eventually("another preview", lambda: client.post(path).status == 200)
    [group, other] = slow.groups
    assert other not in slow.cancelled
    assert set(slow.cancelled) == {group}


def test_change_when_the_mapping_refuses_it_then_409_with_its_error(client: Client, fleet: StaticFleet) -> None:
    with _carrying_out(fleet, _fail):
        answer = client.post("/mappings/orders/flush")
    assert answer.status == 409
    assert answer.json == {"error": "the mapping lost its lease", "where": "mapping orders", "hint": "try again"}


def test_change_when_it_takes_long_then_accepted_and_carried_out_later(client: Client, fleet: StaticFleet) -> None:
    answer = client.post("/mappings/orders/pause", {"wait_seconds": 0.1})
    assert (answer.status, answer.json["result"]) == (202, "accepted")
    [request] = fleet.controls["orders"].take()
    request.done.set_result(None)
    assert client.get("/livez").status == 200


def test_change_when_it_fails_after_its_answer_then_this_is_logged(
    client: Client, fleet: StaticFleet, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure("json", "warning")
    assert client.post("/mappings/orders/flush", {"by": "ann", "wait_seconds": 0}).status == 202
    [request] = fleet.controls["orders"].take()
    _fail(request)
    event = json.loads(capfd.readouterr().err)
    assert (event["event"], event["mapping"], event["change"]) == ("request_failed", "orders", "flush")
    assert (event["by"], event["error"]) == (
        "ann (127.0.0.1)",
        "mapping orders: the mapping lost its lease → try again",
    )


def test_change_when_its_client_disconnects_then_it_is_still_carried_out(client: Client, fleet: StaticFleet) -> None:
    with closing(client.open()) as connection:
        connection.request("POST", "/mappings/orders/pause", "{}", JSON)
        eventually("the request", fleet.controls["orders"].changed.is_set)
    [request] = fleet.controls["orders"].take()  # without requests that were cancelled
    request.done.set_result(None)


def test_reload_then_the_fleet_reads_its_configuration_or_says_why_not(client: Client, fleet: StaticFleet) -> None:
    assert (client.post("/reload").status, fleet.reloads) == (200, 1)
    fleet.reload_error = ConfigError("unknown key", where="a.yaml:3: mappings[0].tabel", hint="did you mean table?")
    answer = client.post("/reload")
    assert (answer.status, answer.json["where"]) == (409, "a.yaml:3: mappings[0].tabel")
    fleet.reload_error = ConfigFaults([fleet.reload_error, ConfigError("is missing", where="a.yaml: kafka")])
    answer = client.post("/reload")
    assert answer.json["error"].splitlines()[1] == "a.yaml: kafka: is missing"
    fleet.reload_error, fleet.reload_hangs = None, True
    answer = client.post("/reload", {"wait_seconds": 0.1})
    assert (answer.status, answer.json) == (202, {"action": "reload", "result": "accepted"})


@pytest.mark.parametrize(
    ("verb", "body", "where"),
    [
        ("pause", "[1]", "body"),
        ("pause", "{", "body"),
        ("pause", "[" * 200_000, "body"),
        ("pause", '{"\\ud800": 1}', "body"),
        ("pause", '{"by": "ann", "by": "bob"}', "body"),
        ("pause", {"why": "x"}, "body: why"),
        ("pause", {"by": "a\nb"}, "body: by"),
        ("pause", {"wait_seconds": 1e9}, "body: wait_seconds"),
        ("offsets", {}, "body: offsets"),
        ("offsets", {"offsets": {"orders": {"0": -1}}, "expected": {"orders": {"0": 1}}}, "body: offsets"),
        ("offsets", {"offsets": {"orders": {"0": 1, "00": 2}}}, "body: offsets"),
        ("offsets", {"offsets": {"orders": {"-1": 1}}}, "body: offsets"),
        ("offsets", {"offsets": {"orders": {"0": True}}}, "body: offsets"),
        ("offsets", '{"offsets": {"orders": {"0": 1, "0": 2}}}', "body"),
        ("offsets", {"offsets": {"orders": {"0": 1}}, "expected": {"orders": {"1": 1}}}, "body: expected"),
    ],
)
def test_change_when_the_body_is_invalid_then_400_names_the_field(
    refusing: Client, verb: str, body: object, where: str
) -> None:
    answer = refusing.post(f"/mappings/orders/{verb}", body)
    assert (answer.status, answer.json["where"]) == (400, where)


def test_change_when_the_body_is_too_long_then_413(refusing: Client) -> None:
    assert refusing.post("/mappings/orders/pause", b'{"by": "' + b"x" * 300_000).status == 413


# --- who may send them


def test_change_when_a_token_is_set_then_only_requests_with_it_are_accepted(fleet: StaticFleet, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="ascii")
    with serving(fleet, ANY, token_file=file) as client:
        for wrong in ({}, {"Authorization": "Bearer " + "x" * 16}, {"Authorization": f"Basic {TOKEN}"}):
            answer = client.post("/reload", None, **wrong)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert TOKEN not in answer.text
        assert client.post("/reload", Authorization=f"Bearer {TOKEN}").status == 200
        file.write_text(TOKEN[::-1], encoding="ascii")
        assert client.post("/reload", Authorization=f"Bearer {TOKEN}").status == 401
        assert client.post("/reload", Authorization=f"Bearer {TOKEN[::-1]}").status == 200
        file.unlink()
        assert client.post("/reload", Authorization=f"Bearer {TOKEN}").status == 503
        assert client.get("/status").status == 200
    assert fleet.reloads == 2


def test_change_when_the_server_is_on_a_network_without_a_token_then_403(fleet: StaticFleet) -> None:
    with serving(fleet, ANY) as client:
        answer = client.post("/reload")
        assert client.get("/status", Host="ingestd.example.com").status == 200
    assert (answer.status, answer.json["where"], fleet.reloads) == (403, "http.token_file", 0)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_change_when_a_form_of_another_site_could_send_it_then_415(refusing: Client, content_type: str) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    assert refusing.send("POST", "/reload", "{}", headers).status == 415
    assert refusing.send("POST", "/reload", "{}", JSON | {"Sec-Fetch-Site": "cross-site"}).status == 403
    assert refusing.send("OPTIONS", "/reload", None, {"Origin": "http://evil.example"}).status == 405


@pytest.mark.parametrize("host", ["evil.example:8080", "127.0.0.1.evil.example", "192.168.0.7", "localhost@evil", ""])
def test_request_when_the_name_was_rebound_to_loopback_then_421(refusing: Client, host: str) -> None:
    assert refusing.get("/status", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8080", "127.9.9.9:1"])
def test_request_when_the_host_is_loopback_then_200(refusing: Client, host: str) -> None:
    assert refusing.get("/status", Host=host).status == 200


@pytest.mark.parametrize("content", [None, "", "short\n"])
def test_server_when_the_token_is_missing_or_short_then_it_does_not_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, encoding="ascii")
    with pytest.raises(ConfigError) as error:
        HttpServer(LOOPBACK, HttpOptions(token_file=file))
    assert error.value.where == "http.token_file"


# --- TLS


def test_server_when_the_certificate_changes_then_new_connections_use_the_new_one(
    fleet: StaticFleet, tmp_path: Path
) -> None:
    first, second = (certificates.make(_folder(tmp_path / name)) for name in ("first", "second"))
    files = TlsFiles(tmp_path / "server.pem", tmp_path / "server.key")
    _copy(first, tmp_path)
    others = set(threading.enumerate())
    with serving(fleet, tls=files) as plain:
        assert Client(plain.address, first / "ca.pem").get("/livez").status == 200
        _copy(second, tmp_path)
        renewed = Client(plain.address, second / "ca.pem")
        eventually("the new certificate", lambda: _answers(renewed))
        # Handshakes that never end keep nobody from connecting, and the server from stopping.
        stuck = [socket.create_connection(plain.address) for _ in range(600)]
        assert renewed.get("/livez").status == 200
    eventually("the end of the server", lambda: not server_threads(others))
    for connection in stuck:
        connection.close()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _copy(source: Path, target: Path) -> None:
    for name in ("server.key", "server.pem"):
        (target / name).write_bytes((source / name).read_bytes())


def _answers(client: Client) -> bool:
    try:
        return client.get("/livez").status == 200
    except OSError:
        return False
