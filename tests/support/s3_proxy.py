"""An HTTP proxy for an S3 server that refuses requests, loses or delays answers, and holds requests."""

from __future__ import annotations

import http.client
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.support.patience import LIMIT

# Shorter than any time limit that a client has for one read.
_BYTE_SECONDS = 0.2
_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Answer(NamedTuple):
    """An answer that does not come from the server."""

    status: int
    content: bytes = b""
    type: str = "application/xml"
    location: str = "/"


class S3Proxy:
    """Forwards requests. `requests` counts them by operation, such as PUT, COPY, GET, LIST, UPLOADS or DELETE.

    `calls` does not count the requests with which a client repeats one that was not answered in time.
    `encryptions` contains the encryption that the last request of an operation asked for, and `logins` its access key
    and its session token, or None if it had none.
    """

    def __init__(self, port: int) -> None:
        self.backend = port
        self.requests: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._invocations: set[str] = set()
        self.encryptions: dict[str, str] = {}
        self.logins: dict[str, tuple[str | None, str | None]] = {}
        self._guard = threading.Lock()
        self._answers: dict[str, tuple[int, Answer]] = {}
        self._lost: Counter[str] = Counter()
        self._trickling: set[str] = set()
        self.is_recovered = threading.Event()
        self._held: dict[str, tuple[threading.Event, Iterator[int]]] = {}
        self.held = threading.Semaphore(0)
        self._changed = threading.Condition()
        self.forwarded = 0
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """The URL of the proxy."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def refuse(self, operation: str, status: int, code: str, times: int = 1 << 30) -> None:
        """Answer the next `times` requests of an operation with an error."""
        text = f"<Error><Code>{code}</Code><Message>injected</Message></Error>"
        self.answer(operation, Answer(status, text.encode()), times)

    def answer(self, operation: str, answer: Answer, times: int = 1 << 30) -> None:
        """Answer the next `times` requests of an operation, instead of the server."""
        with self._guard:
            self._answers[operation] = (times, answer)

    def lose_answer(self, operation: str, times: int = 1) -> None:
        """Forward the next `times` requests of an operation, and cut the connection instead of answering."""
        with self._guard:
            self._lost[operation] += times

    def trickle(self, operation: str) -> None:
        """Answer the requests of an operation with success, but send the content byte by byte and without an end."""
        self.is_recovered.clear()
        self._trickling.add(operation)

    def trickles(self, operation: str) -> bool:
        """Return whether the answers of an operation have no end."""
        return operation in self._trickling

    def hold(self, operation: str, after: int = 0) -> None:
        """Hold the requests of an operation until `release`, except the first `after` of them.

        `held` is released for each request that is held.
        """
        self._held[operation] = threading.Event(), count(-after)

    def release(self, operation: str) -> None:
        """Forward the requests that are held."""
        self._held.pop(operation)[0].set()

    def recover(self) -> None:
        """Forward everything again."""
        with self._guard:
            self._answers.clear()
            self._lost.clear()
        self._trickling.clear()
        self.is_recovered.set()
        for operation in list(self._held):
            self.release(operation)

    def take(self, operation: str, invocation: str) -> tuple[Answer | None, bool]:
        """Count a request. Return the answer that is not the server's, if any, and whether to lose the answer.

        `invocation` is the same for a request and its repetitions.
        """
        with self._guard:
            self.requests[operation] += 1
            self.calls[operation] += invocation not in self._invocations
            self._invocations.add(invocation)
            times, answer = self._answers.get(operation, (0, None))
            if times and answer:
                self._answers[operation] = (times - 1, answer)
            is_lost = self._lost[operation] > 0
            self._lost[operation] -= is_lost
        return (answer if times else None), is_lost

    def wait(self, operation: str) -> None:
        """Wait while the operation is held."""
        released, numbers = self._held.get(operation, (None, None))
        if released and numbers and next(numbers) >= 0:
            self.held.release()
            released.wait()

    def note_forwarded(self) -> None:
        """Count a request that the server has executed."""
        with self._changed:
            self.forwarded += 1
            self._changed.notify_all()

    def wait_until_forwarded(self, number: int) -> None:
        """Wait until the server has executed this number of requests."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.forwarded >= number, timeout=LIMIT)

    def close(self) -> None:
        """Stop the proxy."""
        self.recover()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: S3Proxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        operation = self._operation()
        if encryption := self.headers.get("x-amz-server-side-encryption"):
            self.owner.encryptions[operation] = encryption
        signed = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        self.owner.logins[operation] = signed[1] if signed else None, self.headers.get("x-amz-security-token")
        own, is_lost = self.owner.take(operation, self.headers.get("amz-sdk-invocation-id", ""))
        if own:
            self._answer(own.status, {"Content-Type": own.type, "Location": own.location}, own.content)
            return
        if self.owner.trickles(operation):
            self._trickle()
            return
        self.owner.wait(operation)
        backend = http.client.HTTPConnection("127.0.0.1", self.owner.backend, timeout=LIMIT)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            backend.request(self.command, self.path, body, headers)
            answer = backend.getresponse()
            content = answer.read()
            self.owner.note_forwarded()
        except OSError:
            self.close_connection = True
            return
        finally:
            backend.close()
        if is_lost:
            self.close_connection = True
            return
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
        self._answer(answer.status, kept, content, answer.getheader("Content-Length"))

    def _answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else content)

    def _trickle(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("ETag", "x")
        self.send_header("Last-Modified", self.date_time_string())
        self.send_header("Content-Length", str(1 << 30))
        self.end_headers()
        try:
            while not self.owner.is_recovered.wait(_BYTE_SECONDS):
                self.wfile.write(b" ")
        except OSError:
            """The client has closed the connection."""

    def _operation(self) -> str:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if self.command == "PUT" and "partNumber" in query:
            return "PART"
        if self.command == "PUT":
            return "COPY" if self.headers.get("x-amz-copy-source") else "PUT"
        posts = {"delete": "DELETE", "uploads": "CREATE", "uploadId": "COMPLETE"}
        if self.command == "POST":
            return next((name for key, name in posts.items() if key in query), "POST")
        gets = {"list-type": "LIST", "uploads": "UPLOADS"}
        if self.command == "GET":
            return next((name for key, name in gets.items() if key in query), "GET")
        return "ABORT" if self.command == "DELETE" else self.command


@contextmanager
def s3_proxy(port: int) -> Iterator[S3Proxy]:
    """Run a proxy for the server on a port of this machine."""
    proxy = S3Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
