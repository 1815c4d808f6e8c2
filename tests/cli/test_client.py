"""The client of the daemon's HTTP server: limits, errors and the token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ingestd.cli.client import Daemon, DaemonRefused, DaemonUnreachable, Endpoint
from ingestd.errors import ConfigError, IngestdError, LoginFailed


class _Server(HTTPServer):
    """Answers every request with one status and body, and remembers the requests."""

    def __init__(self, status: int, body: bytes, **headers: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = (status, body, headers)
        self.requests: list[tuple[str, str, str, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        token = self.headers.get("Authorization", "")
        self.server.requests.append((self.command, self.path, token, self.rfile.read(length)))
        status, body, headers = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

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
            server.shutdown()
            thread.join()


def test_change_then_sends_the_token_and_says_whether_it_is_done(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n", encoding="ascii")
    with _answering(200, {"result": "done"}) as (server, at):
        assert Daemon(Endpoint(at.url, token)).change("a/b", "pause", {"by": "ann"})
        [(method, path, sent, body)] = server.requests
    assert (method, path, sent) == ("POST", "/mappings/a%2Fb/pause", "Bearer s3cret")
    assert json.loads(body)["by"] == "ann"
    with _answering(202, {"result": "accepted"}) as (_, at):
        assert not Daemon(at).change("a", "pause", {})


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


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://localhost", "http://", "http://localhost/status"])
def test_endpoint_when_it_is_no_url_of_a_server_then_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        Endpoint(url)


def test_files_when_unreadable_then_the_error_names_them(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match="missing cannot be read"):
        Daemon(Endpoint("http://localhost", token_file=missing))
    missing.write_text("no certificate", encoding="ascii")
    with pytest.raises(ConfigError, match="--ca-file"):
        Daemon(Endpoint("https://localhost", ca_file=missing))
