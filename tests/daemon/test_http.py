"""The HTTP server on a real socket: documents, errors, and the limits of connections. No mapping runs."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from ingestd.clock import now
from ingestd.config.http import HttpOptions, TlsFiles
from ingestd.daemon.http.connections import MAX_CONNECTIONS
from ingestd.daemon.http.history import SPANS, History
from ingestd.daemon.http.live import MAX_STREAMS
from ingestd.daemon.http.server import AddressInUse, HttpServer, open_server
from ingestd.errors import ConfigError, MetastoreUnavailable, RecordError
from ingestd.ingest.control import Request
from ingestd.kafka.hidden import Hidden
from ingestd.kafka.ranges import TopicPartition
from ingestd.replication.policies.execution import PolicyDefect
from tests.support.http import LOOPBACK, Client, StaticFleet, commit, server_threads, serving
from tests.support.patience import LIMIT
from tests.support.policies import status as policy_status
from tests.support.stack import eventually


@pytest.fixture
def fleet() -> StaticFleet:
    made = StaticFleet()
    made.run("orders", rows=1000, lag=50)
    return made


@pytest.fixture
def client(fleet: StaticFleet) -> Iterator[Client]:
    with serving(fleet) as made:
        yield made


# --- health


def test_livez_when_a_mapping_is_stuck_then_503_names_it(client: Client, fleet: StaticFleet) -> None:
    assert (client.get("/livez").status, client.get("/livez").json) == (200, {"live": True, "stuck": []})
    fleet.stuck_names = ["orders"]
    assert (client.get("/livez").status, client.get("/livez").json["stuck"]) == (503, ["orders"])


def test_readyz_when_a_mapping_waits_then_503_says_why(client: Client, fleet: StaticFleet) -> None:
    assert client.get("/readyz").status == 200
    fleet.add("late")
    assert client.get("/readyz").json == {"ready": False, "not_ready": {"late": "starting"}, "ended": {}}
    fleet.monitors["late"].failed(MetastoreUnavailable("does not answer", where="thrift://hms:9083"), again_in=2.0)
    assert client.get("/readyz").json["not_ready"] == {"late": "waiting: thrift://hms:9083: does not answer"}
    assert client.get("/readyz").status == 503


def test_readyz_when_mappings_are_standby_paused_or_failed_then_200(client: Client, fleet: StaticFleet) -> None:
    for name, state in (("second", "standby"), ("third", "paused")):
        fleet.add(name).entered(state)  # type: ignore[arg-type]
        fleet.monitors[name].metastore_answered()
    fleet.add("fourth").failed(RecordError("is not a number", where="fourth[0]@17, column id"))
    answer = client.get("/readyz")
    assert answer.status == 200
    assert answer.json["ended"] == {"fourth": "failed: fourth[0]@17, column id: is not a number"}


def test_readyz_when_only_policies_run_then_metastore_must_have_answered(fleet: StaticFleet) -> None:
    only_policies = StaticFleet(policies_read_at=0.0, policies=[policy_status()])
    with serving(only_policies) as client:
        refused = client.get("/readyz")
        assert (refused.status, list(refused.json["not_ready"])) == (503, ["replication"])
        only_policies.policies_read_at = now()
        assert client.get("/readyz").status == 200
        only_policies.policies_error = PolicyDefect("KeyError: 'x'", where="replication")
        ended = client.get("/readyz")
        assert (ended.status, ended.json["not_ready"]) == (503, {})
        assert ended.json["ended"] == {"replication": "failed: replication: KeyError: 'x'"}
        assert client.get("/status").json["policies_error"] == "replication: KeyError: 'x'"
    with serving(StaticFleet()) as client:
        assert client.get("/readyz").status == 503


def test_status_when_policies_run_then_contains_them(client: Client, fleet: StaticFleet) -> None:
    assert client.get("/status").json["policies"] == []
    fleet.policies = [policy_status()]
    (policy,) = client.get("/status").json["policies"]
    assert (policy["name"], policy["state"], policy["lag_events"]) == ("repl1", "failed", 12)
    assert policy["schedule"] == "EVERY 30 MINUTES"
    assert policy["statement"] == "REPL DUMP db1 WITH ('hive.repl.rootdir'='hdfs://ns/repl')"
    assert (policy["last_execution"]["id"], policy["last_execution"]["status"]) == (8, "FAILED")
    assert policy["unreadable_tables"] == ["ext", "logs"]


def test_readyz_when_a_service_has_never_answered_then_503(client: Client, fleet: StaticFleet) -> None:
    fleet.add("deaf").entered("running")
    assert "no answer of the metastore" in client.get("/readyz").json["not_ready"]["deaf"]
    fleet.monitors["deaf"].metastore_answered()
    assert "no answer of Kafka" in client.get("/readyz").json["not_ready"]["deaf"]


# --- documents


def test_status_then_contains_totals_lag_and_every_mapping(client: Client, fleet: StaticFleet) -> None:
    fleet.run("clicks", rows=20)
    fleet.monitors["clicks"].failed(RecordError("is not a number", where="clicks[0]@17", hint="fix it"))
    status = client.get("/status").json
    assert status["version"] == 1
    assert {state: count for state, count in status["states"].items() if count} == {"running": 1, "failed": 1}
    assert status["states"]["standby"] == 0
    assert (status["totals"]["rows"], status["lag_offsets"]) == (1020, 50)
    clicks, orders = status["mappings"]
    assert (clicks["name"], clicks["problem"]["error"], clicks["problem"]["hint"]) == (
        "clicks", "is not a number", "fix it",
    )  # fmt: skip
    assert orders["partitions"] == [
        {
            "topic": "orders",
            "partition": 0,
            "position": 1000,
            "end": 1050,
            "lag_offsets": 50,
            "hidden_offsets": None,
        }
    ]
    assert (orders["hidden_offsets"], orders["hidden_seconds"], orders["hidden_since_unix"]) == (None, None, None)
    fleet.monitors["orders"].measured({TopicPartition("orders", 0): Hidden(1050, 1057)}, 1_790_000_000.0)
    orders = client.get("/status").json["mappings"][1]
    assert (orders["hidden_offsets"], orders["hidden_seconds"], orders["hidden_since_unix"]) == (7, 0.0, 1_790_000_000)
    assert orders["partitions"][0]["hidden_offsets"] == 7
    assert orders["last_commit"]["steps_ms"]["staged"] == 340
    assert "commits" not in orders
    fleet.monitors["orders"].entered("standby", owner="there:1")
    status = client.get("/status").json
    orders = status["mappings"][1]
    assert (status["lag_offsets"], orders["lag_offsets"], orders["lag_seconds"], orders["partitions"]) == (
        0,
        None,
        None,
        [],
    )


def test_mapping_when_asked_alone_then_answers_its_documents(client: Client, fleet: StaticFleet) -> None:
    commit(fleet.monitors["orders"], "orders", 10, end=1050, txn=8)
    details = client.get("/mappings/orders").json
    assert [part["name"] for part in details["hive_partitions"]] == ["dt=2026-11-22", "dt=2026-11-21"]
    commits = client.get("/mappings/orders/commits").json["commits"]
    assert [(entry["txn"], entry["ranges"]) for entry in commits] == [
        (8, ["orders[0] 1000..1010"]), (7, ["orders[0] 0..1000"]),
    ]  # fmt: skip
    history = eventually(
        "the first point", lambda: (h := client.get("/mappings/orders/history").json)["lag_offsets"] and h
    )
    assert history["step_seconds"] == 10
    assert len(history["records_per_second"]) == len(history["latency_seconds"]) == 1


def test_history_when_it_is_long_then_bounded_and_six_hours_have_one_value_per_minute() -> None:
    fleet, history = StaticFleet(), History()
    fleet.run("orders", rows=0, lag=7)
    for number in range(2500):
        if number == 2498:  # in the last minute
            commit(fleet.monitors["orders"], "orders", 60, end=1000, txn=8)
        history.add(fleet.monitors, 10)
    lengths = {}
    for span in SPANS:
        found = history.read("orders", span)
        values = found["records_per_second"], found["lag_offsets"], found["lag_seconds"], found["latency_seconds"]
        lengths[span] = found["step_seconds"], {len(value) for value in values}
    assert lengths == {"15m": (10, {90}), "1h": (10, {360}), "6h": (60, {360})}
    found = history.read("orders", "6h")
    assert found["records_per_second"][-2:] == [0, 1]
    assert found["lag_offsets"][-2:] == [7, 940]
    assert [len(history.read("none", span)["lag_offsets"]) for span in SPANS] == [0, 0, 0]


def test_metrics_then_serves_the_document_of_the_daemon(client: Client) -> None:
    answer = client.get("/metrics")
    assert (answer.text, answer.headers["content-type"]) == ("ingestd_up 1\n", "text/plain; version=0.0.4")


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/nothing", 404, "docs/monitor.md"),
        ("GET", "/mappings/none", 404, "GET /status"),
        ("GET", "/mappings/none/commits", 404, "GET /status"),
        ("GET", "/mappings/orders/history?span=1d", 400, "15m, 1h, 6h"),
        ("POST", "/status", 405, "allowed: GET, HEAD"),
        ("GET", "/mappings/orders/pause", 405, "allowed: POST"),
    ],
)
def test_request_when_it_fits_no_route_then_the_error_says_what_exists(
    client: Client, method: str, path: str, status: int, words: str
) -> None:
    answer = client.send(method, path)
    assert answer.status == status
    assert set(answer.json) == {"error", "where", "hint"}
    assert words in answer.json["hint"]


def test_answer_then_forbids_browsers_to_load_from_other_hosts(client: Client) -> None:
    for path in ("/status", "/nothing", "/livez"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


# --- the stream of changes


class _Events:
    """Reads /events."""

    def __init__(self, client: Client) -> None:
        self.connection = client.open()
        self.connection.request("GET", "/events")
        self.answer = self.connection.getresponse()

    def next(self) -> tuple[str, dict[str, object]]:
        """Return the next event that is not an empty change, which the server sends to show that it is alive."""
        while True:
            fields: dict[str, str] = {}
            while line := self.answer.readline().decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                fields[name] = value
            data = json.loads(fields["data"])
            if fields["event"] != "change" or data["mappings"] or data["removed"] or "policies" in data:
                return fields["event"], data


def test_events_when_a_mapping_changes_then_only_the_changed_fields_are_sent(
    client: Client, fleet: StaticFleet
) -> None:
    events = _Events(client)
    kind, state = events.next()
    assert (kind, list(state["mappings"])) == ("state", ["orders"])  # type: ignore[call-overload]
    fleet.monitors["orders"].entered("paused")
    kind, change = events.next()
    assert (kind, set(change["mappings"]["orders"])) == ("change", {"state", "state_since_unix"})  # type: ignore[index]
    fleet.remove("orders")
    assert events.next()[1]["removed"] == ["orders"]
    events.connection.close()


def test_events_when_a_policy_changes_then_all_policies_are_sent(client: Client, fleet: StaticFleet) -> None:
    events = _Events(client)
    assert events.next()[1]["policies"] == []
    fleet.policies = [policy_status()]
    _, change = events.next()
    assert [policy["name"] for policy in change["policies"]] == ["repl1"]  # type: ignore[attr-defined]
    events.connection.close()


def test_events_when_too_many_clients_read_then_the_next_is_refused(fleet: StaticFleet) -> None:
    with serving(fleet) as client, ExitStack() as streams:
        for _ in range(MAX_STREAMS):
            stream = _Events(client)
            streams.enter_context(closing(stream.connection))
            stream.next()
        assert client.get("/events").status == 503
        assert client.get("/livez").status == 200


def test_server_when_it_stops_then_streams_end_first(fleet: StaticFleet) -> None:
    others = set(threading.enumerate())
    with serving(fleet) as client:
        stream = _Events(client)
        stream.next()
    assert stream.answer.read() == b""  # otherwise the server cuts the connection after a while
    stream.connection.close()
    eventually("the end of the server", lambda: not server_threads(others))


# --- start


def test_server_when_the_port_is_in_use_then_the_error_names_the_key(fleet: StaticFleet) -> None:
    with serving(fleet) as client, pytest.raises(ConfigError, match="Address already in use") as error:
        HttpServer(client.address, HttpOptions())
    assert (error.value.where, "another port" in error.value.hint) == ("http.listen", True)


def test_open_server_when_listen_is_set_then_it_is_used_or_off(fleet: StaticFleet) -> None:
    assert open_server(HttpOptions(listen="off")) is None
    with serving(fleet) as client, pytest.raises(AddressInUse):
        open_server(HttpOptions(listen=client.address))


def test_server_when_the_certificate_is_missing_then_the_error_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        HttpServer(LOOPBACK, HttpOptions(tls=TlsFiles(tmp_path / "none.crt", tmp_path / "none.key")))
    assert error.value.where == "http.tls"


# --- floods


def test_server_when_idle_connections_flood_it_then_health_checks_are_answered(client: Client) -> None:
    with ExitStack() as flood:
        for _ in range(1400):
            flood.enter_context(closing(socket.create_connection(client.address, timeout=LIMIT)))
        assert client.get("/livez").status == 200
        assert _accepted(client) <= MAX_CONNECTIONS + 1


def test_server_when_busy_connections_flood_it_then_health_checks_are_answered(
    client: Client, fleet: StaticFleet
) -> None:
    flush = b"POST /mappings/orders/flush HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n"
    waiting: list[Request] = []
    with ExitStack() as flood:
        for _ in range(MAX_CONNECTIONS):
            flood.enter_context(closing(socket.create_connection(client.address, timeout=LIMIT))).sendall(flush)

        def all_wait() -> bool:
            waiting.extend(fleet.controls["orders"].take())
            return len(waiting) == MAX_CONNECTIONS

        eventually("the requests", all_wait)
        assert client.get("/livez").status == 200
        for request in waiting:
            request.done.set_result(None)


def test_server_when_many_clients_read_large_documents_then_health_checks_are_answered_first(
    client: Client, fleet: StaticFleet
) -> None:
    for number in range(300):
        fleet.run(f"tenant_{number:03}")
    documents = [client.open() for _ in range(60)]
    with ExitStack() as opened:
        for document in documents:
            opened.enter_context(closing(document)).request("GET", "/status")
        assert client.get("/livez").status == 200
        waiting = [document for document in documents if not select.select([document.sock], [], [], 0)[0]]
        assert waiting
        assert {document.getresponse().status for document in documents} == {200}


@pytest.mark.soak
def test_server_when_clients_are_slow_then_their_connections_end(client: Client, fleet: StaticFleet) -> None:
    unfinished = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: y"
    no_body = b"POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    not_reading = b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500
    for number in range(300):
        fleet.run(f"tenant_{number:03}")
    with ExitStack() as slow:
        for request in (b"", unfinished, no_body, not_reading):
            connection = slow.enter_context(socket.create_connection(client.address, timeout=LIMIT))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(request)
        eventually("all connections", lambda: _accepted(client) == 4)
        eventually("the end of all connections", lambda: _accepted(client) == 0)
    assert client.get("/livez").status == 200


def _accepted(client: Client) -> int:
    """Return how many connections the server has open."""
    found = psutil.Process().net_connections("tcp")
    return sum(1 for connection in found if connection.laddr.port == client.address.port and connection.raddr)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000,
        b"\x16\x03\x01\x00\xff not http\r\n\r\n",
        b"GET " + b"/" * 40_000,
    ],
)
def test_server_when_a_request_is_too_long_or_invalid_then_it_is_refused(client: Client, request_bytes: bytes) -> None:
    with socket.create_connection(client.address, timeout=LIMIT) as connection:
        connection.sendall(request_bytes)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert client.get("/livez").status == 200


# --- the documentation


def _paths(value: object, path: str = "") -> Iterator[str]:
    """Yield the path of each value of a document, such as `mappings[].totals.rows`."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _paths(part, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from _paths(value[0], f"{path}[]")
    else:
        yield path


def test_documents_then_contain_exactly_the_documented_fields(client: Client, fleet: StaticFleet) -> None:
    fleet.monitors["orders"].failed(MetastoreUnavailable("no answer", where="hms"), again_in=1.0)
    fleet.policies = [policy_status()]
    text = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text(encoding="utf-8")
    section = text.partition("### Status")[2].partition("### Events")[0]
    documented = set(re.findall(r"`([a-z_.*\[\]]+)`", "\n".join(re.findall(r"^\| (`.+?) \|", section, re.MULTILINE))))
    documented |= set(re.findall(r"`(hive_partitions\[\]\.\w+)`", section))
    status = set(_paths(client.get("/status").json))
    details = {f"{path}" for path in _paths(client.get("/mappings/orders").json) if path.startswith("hive_partitions")}
    commits = {path.removeprefix("mappings[].last_commit.") for path in status if ".last_commit." in path}
    plain = {path for path in status if ".last_commit." not in path} | {
        f"mappings[].{section}" for section in ("last_commit", "problem", "pacing", "compaction")
    }
    found = plain | commits | details
    stars = {star[:-1] for star in documented if star.endswith("*")}
    assert not {path for path in found if path not in documented and not path.startswith(tuple(stars))}
    assert not {path for path in documented if path not in found and not path.endswith("*")}
