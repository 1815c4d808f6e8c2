"""The client of the daemon's HTTP server: limits, errors and the token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ingestd.cli.client import Daemon, DaemonRefused, DaemonUnreachable, Endpoint, OtherDaemon
from ingestd.config.http import Address, TlsFiles
from ingestd.errors import ConfigError, IngestdError, LoginFailed
from tests.support import certificates
from tests.support.http import StaticFleet, serving


class _Server(HTTPServer):
    """Answers every request with one status and body, and remembers the requests."""

    def __init__(self, status: int, body: bytes, **headers: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = (status, body, headers)
        # Whether it disconnects instead of answering a POST.
        self.is_silent = False
        # If it is not 0, an answer never ends, and so long is the wait before each time that it repeats `endless`.
        self.pause_seconds = 0.0
        self.endless = b" "
        self.ended = threading.Event()
        self.requests: list[tuple[str, str, str, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.command == "POST" and self.server.is_silent:
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length") or 0)
        token = self.headers.get("Authorization", "")
        self.server.requests.append((self.command, self.path, token, self.rfile.read(length)))
        status, body, headers = self.server.answer
        if self.server.endless != b" ":
            self._repeat()
            return
        if self.server.pause_seconds:
            headers = headers | {"Content-Length": "999999999"}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self._repeat()

    def _repeat(self) -> None:
        with suppress(OSError):  # the client ends the connection
            while self.server.pause_seconds and not self.server.ended.wait(self.server.pause_seconds):
                self.wfile.write(self.server.endless)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@contextmanager
def _answering(status: int, document: object, **headers: str) -> Iterator[tuple[_Server, Endpoint]]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with _Server(status, body, **headers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server, Endpoint(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()


STATUS = {"version": 1, "daemon": {}, "mappings": []}
TOKEN = "0123456789abcdef"


def test_change_then_sends_the_token_once_a_daemon_has_answered_without_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n", encoding="ascii")
    with _answering(200, STATUS | {"result": "done"}) as (server, at):
        assert Daemon(Endpoint(at.url, token)).change("a/b", "pause", {"by": "ann"})
        first, (method, path, sent, body) = server.requests
    assert first == ("GET", "/status", "", b"")
    assert (method, path, sent) == ("POST", "/mappings/a%2Fb/pause", f"Bearer {TOKEN}")
    assert json.loads(body)["by"] == "ann"
    with _answering(202, STATUS | {"result": "accepted"}) as (_, at):
        assert not Daemon(at).change("a", "pause", {})


def test_status_when_a_text_contains_control_characters_then_they_are_escaped() -> None:
    with _answering(200, STATUS | {"mappings": [{"problem": "\x1b]0;x\x07 \x9b31m Bad Ischl – 日本\n"}]}) as (_, at):
        assert Daemon(at).status()["mappings"] == [{"problem": r"\x1b]0;x\x07 \x9b31m Bad Ischl – 日本" + "\n"}]


def test_change_when_the_answer_is_lost_then_says_that_the_daemon_may_have_carried_it_out() -> None:
    with _answering(200, STATUS) as (server, at):
        server.is_silent = True
        with pytest.raises(DaemonUnreachable, match="may have carried out the request"):
            Daemon(at).change("a", "offsets", {})


@pytest.mark.parametrize("document", [{"result": "done"}, STATUS | {"version": 2}, b"[" * 100_000, b"\xff"])
def test_change_when_the_server_is_no_daemon_then_it_does_not_get_the_token(document: object, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="ascii")
    with _answering(200, document) as (server, at), pytest.raises(DaemonUnreachable):
        Daemon(Endpoint(at.url, token)).change("a", "pause", {})
    assert [(method, sent) for method, _, sent, _ in server.requests] == [("GET", "")]


def test_change_when_the_network_could_read_the_token_then_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="ascii")
    with pytest.raises(ConfigError, match="not sent over a network without TLS"):
        Daemon(Endpoint("http://192.0.2.1:8080", token)).change("a", "pause", {})


@pytest.mark.parametrize("content", [f"{TOKEN}\n{TOKEN}\n", "short", "", "ÿ" * 16])
def test_token_when_it_cannot_be_sent_then_the_error_does_not_contain_it(content: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match="must contain a token") as caught:
        Daemon(Endpoint("http://localhost", token))
    assert not content or content[:10] not in str(caught.value)


# --- TLS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificate of a server, that of its CA, and that of another CA."""
    return certificates.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(folder: Path) -> Iterator[Address]:
    """The address of a server with a certificate for localhost."""
    fleet = StaticFleet()
    fleet.run("orders")
    with serving(fleet, tls=TlsFiles(folder / "server.pem", folder / "server.key")) as client:
        yield client.address


def test_status_when_the_certificate_is_trusted_then_is_returned(tls: Address, folder: Path) -> None:
    named = Endpoint(f"https://localhost:{tls.port}", ca_file=folder / "ca.pem")
    # The certificate does not contain the address.
    configured = Endpoint(f"https://{tls}", certificate=folder / "server.pem")
    for at in (named, configured):
        assert [mapping["name"] for mapping in Daemon(at).status()["mappings"]] == ["orders"]


def test_status_when_the_certificate_is_not_trusted_then_says_why(tls: Address, folder: Path) -> None:
    by_name, by_address = f"https://localhost:{tls.port}", f"https://{tls}"
    for at, words in (
        (Endpoint(by_name), "unable to get local issuer"),
        (Endpoint(by_name, ca_file=folder / "other.pem"), "unable to get local issuer"),
        (Endpoint(by_address, ca_file=folder / "ca.pem"), "IP address mismatch"),
        (Endpoint(by_address, certificate=folder / "other.pem"), "unable to get local issuer"),
    ):
        with pytest.raises(OtherDaemon, match=f"not trusted: .*{words}"):
            Daemon(at).status()


@pytest.mark.parametrize(
    ("status", "document", "kind", "words"),
    [
        (
            409,
            {"error": "is owned by ann", "where": "mapping a", "hint": "ask ann"},
            DaemonRefused,
            "mapping a: is owned",
        ),
        (401, {"error": "the token is wrong", "where": "x", "hint": ""}, LoginFailed, "--token-file"),
        (404, b"<html>", DaemonUnreachable, "is not ingestd"),
        (200, b"<html>", DaemonUnreachable, "is not ingestd"),
        (200, b"[]", DaemonUnreachable, "is not ingestd"),
        (302, b"", DaemonUnreachable, "is not ingestd"),
        (200, {"hello": "world"}, DaemonUnreachable, "is not ingestd"),
        (200, STATUS | {"version": 2}, DaemonUnreachable, "use the release of ingestd that the daemon runs"),
    ],
)
def test_status_when_the_answer_is_an_error_then_says_what_and_where(
    status: int, document: object, kind: type[IngestdError], words: str
) -> None:
    with _answering(status, document, Location="http://127.0.0.1:1/") as (_, at), pytest.raises(kind) as caught:
        Daemon(at).status()
    assert words in str(caught.value)
    assert f"daemon {at.url}" in str(caught.value)


def test_status_when_the_answer_is_too_long_then_stops_reading() -> None:
    with _answering(200, b" " * (65 << 20)) as (_, at), pytest.raises(DaemonUnreachable, match="64 MiB"):
        Daemon(at).status()


@pytest.mark.parametrize("endless", [b" ", b"HTTP/1.1 100 Continue\r\n\r\n", b"X"])
def test_status_when_the_answer_never_ends_then_stops_reading(endless: bytes) -> None:
    with _answering(200, b"") as (server, at):
        server.pause_seconds, server.endless = 0.05, endless
        with pytest.raises(DaemonUnreachable, match="took too long"):
            Daemon(at, answer_seconds=0.5).status()


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:8080", "ftp://localhost", "http://", "http://localhost/status", "http://[::1", "http://a..b"),
        *("http://localhost:99999", "http://localhost:x", "http://localhost?a=b", "http://ann:secret@localhost"),
    ],
)
def test_endpoint_when_it_is_no_url_of_a_server_then_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT") as caught:
        Endpoint(url)
    assert "secret" not in str(caught.value)


def test_files_when_unreadable_then_the_error_names_them(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match="missing cannot be read"):
        Daemon(Endpoint("http://localhost", token_file=missing))
    missing.write_text("no certificate", encoding="ascii")
    with pytest.raises(ConfigError, match="--ca-file"):
        Daemon(Endpoint("https://localhost", ca_file=missing))
    with pytest.raises(ConfigError, match=r"http\.tls\.certificate"):
        Daemon(Endpoint("https://localhost", certificate=missing))
