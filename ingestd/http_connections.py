"""HTTP connections that end at a deadline, and such connections that are kept open for further requests.

Invariant: no connection receives anything after the deadline. The timeout of a socket does not ensure this: it limits a
single wait, and a server that sends a byte now and then never exceeds it.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

from ingestd.clock import Deadline

_CHUNK = 1 << 16


class LimitedConnections:
    """Makes connections, which end at the deadline. A context, in which they are used."""

    def __init__(self, limit: Deadline) -> None:
        self.limit = limit
        self._guard = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(limit.left, self._end)
        self._timer.daemon = True

    def __enter__(self) -> LimitedConnections:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._guard:
            for watched in self._sockets:
                watched.close()
            self._sockets.clear()

    def plain(self, host: str, /, **options: Any) -> HTTPConnection:
        """Return a connection that is not connected yet. `options` are those of HTTPConnection."""
        connection = _Plain(host, **options)
        connection.owner = self
        return connection

    def secure(self, host: str, /, **options: Any) -> HTTPSConnection:
        """Return the same with TLS. `options` are those of HTTPSConnection."""
        connection = _Secure(host, **options)
        connection.owner = self
        return connection

    def resume(self, connection: HTTPConnection) -> None:
        """Use an open connection of an earlier context."""
        assert isinstance(connection, _Plain)
        connection.owner = self
        self.watch(connection.sock)

    def watch(self, connected: socket.socket) -> None:
        """End a connection at the deadline."""
        # TLS detaches the socket that it uses, and does not duplicate its own.
        copy = socket.fromfd(connected.fileno(), connected.family, connected.type)
        with self._guard:
            self._sockets.append(copy)
        if self.limit.passed:
            self._end()

    def _end(self) -> None:
        with self._guard:
            for watched in self._sockets:
                with suppress(OSError):  # it may have ended
                    watched.shutdown(socket.SHUT_RDWR)


class _Plain(HTTPConnection):
    """A connection that is watched as soon as it exists."""

    owner: LimitedConnections

    def connect(self) -> None:
        """Connect."""
        super().connect()
        self.owner.watch(self.sock)


class _Secure(HTTPSConnection, _Plain):
    """A connection that is watched before its TLS handshake, because `_Plain` connects it."""


class KeptConnections:
    """A client that keeps its connections open, one for each server. For one thread at a time.

    It uses the proxies of the environment and follows redirects, as `urllib.request` does.
    """

    def __init__(self, timeout_seconds: float, tls: Callable[[], ssl.SSLContext]) -> None:
        """`timeout_seconds` limits each wait for a server. `tls` returns the context of a new connection with TLS."""
        self._timeout_seconds = timeout_seconds
        self._handler = _Handler(tls)
        self._opener = urllib.request.OpenerDirector()
        for kind in (
            urllib.request.ProxyHandler,
            urllib.request.UnknownHandler,
            urllib.request.HTTPDefaultErrorHandler,
            urllib.request.HTTPRedirectHandler,
            urllib.request.HTTPErrorProcessor,
        ):
            self._opener.add_handler(kind())
        self._opener.add_handler(self._handler)

    def get(
        self, url: str, limit: Deadline, max_bytes: int, headers: Mapping[str, str], login: Mapping[str, str]
    ) -> tuple[int, str, bytes]:
        """Return the HTTP status, the name of the status and the body of the answer to a GET request.

        The headers of `login` are not sent to the place of a redirect. The request is sent again if it was sent on a
        connection of an earlier one, which the server may have ended, and no answer has begun. Raises what `tls`
        raises, ValueError for the place of a redirect, HTTPException, and OSError, also for a body of more than
        `max_bytes` bytes, or of fewer than its header says.
        """
        try:
            return self._exchange(url, limit, max_bytes, headers, login)
        except (OSError, HTTPException):
            if not self._handler.may_repeat or limit.passed:
                raise
        return self._exchange(url, limit, max_bytes, headers, login)

    def _exchange(
        self, url: str, limit: Deadline, max_bytes: int, headers: Mapping[str, str], login: Mapping[str, str]
    ) -> tuple[int, str, bytes]:
        request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - the caller checks the scheme
        for name, value in login.items():
            request.add_unredirected_header(name, value)
        self._handler.may_repeat = False
        response: HTTPResponse | urllib.error.HTTPError
        with ExitStack() as failed, LimitedConnections(limit) as self._handler.limited:
            failed.callback(self.close)  # the rest of an answer would be read as the next one
            try:
                response = self._opener.open(request, timeout=self._timeout_seconds)
                status = response.status or 0
            except urllib.error.HTTPError as error:
                response, status = error, error.code
            with response:
                answer = status, response.reason, _body(response, max_bytes)
            failed.pop_all()
            return answer

    def close(self) -> None:
        """Close the connections. The next request opens a new one."""
        self._handler.close_all()


class _Handler(urllib.request.HTTPHandler):
    """Opens the requests of `KeptConnections`. Those of urllib end a connection after each answer."""

    limited: LimitedConnections
    may_repeat = False  # the request was sent on a connection of an earlier one, and no answer has begun

    def __init__(self, tls: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._tls = tls
        self._kept: dict[tuple[str, str, str], HTTPConnection] = {}

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        """See `HTTPHandler`."""
        return self._open(req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        """See `HTTPSHandler`."""
        return self._open(req)

    https_request = urllib.request.HTTPHandler.http_request

    def close_all(self) -> None:
        """Close the connections."""
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()

    def _open(self, request: urllib.request.Request) -> HTTPResponse:
        headers = {name.title(): value for name, value in request.header_items()}
        # A request with TLS reaches its host through a tunnel if `request.host` is a proxy.
        has_tunnel = request.type == "https" and request.host != headers["Host"]
        proxy = {name: headers.pop(name) for name in ("Proxy-Authorization",) if has_tunnel and name in headers}
        key = request.type, request.host, headers["Host"] if has_tunnel else ""
        connection = self._kept.get(key)
        if connection is not None and _is_idle(connection):
            self.may_repeat = True
            self.limited.resume(connection)
        else:
            if connection is not None:
                connection.close()
            connection = self._kept[key] = self._connection(request)
            if has_tunnel:
                connection.set_tunnel(headers["Host"], headers=proxy)
        connection.request(request.get_method(), request.selector, headers=headers)
        response = connection.getresponse()
        self.may_repeat = False
        response.msg = response.reason  # type: ignore[assignment]  # which other handlers of urllib read
        return response

    def _connection(self, request: urllib.request.Request) -> HTTPConnection:
        if request.type == "https":
            return self.limited.secure(request.host, timeout=request.timeout, context=self._tls())
        return self.limited.plain(request.host, timeout=request.timeout)


def _is_idle(connection: HTTPConnection) -> bool:
    """Return whether a connection is open, and has received nothing behind its last answer, not even its end."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _body(response: HTTPResponse | urllib.error.HTTPError, max_bytes: int) -> bytes:
    """Return the body of an answer. Raises OSError if it is too long, or shorter than its header says."""
    stream: HTTPResponse = response.fp if isinstance(response, urllib.error.HTTPError) else response  # type: ignore[assignment]
    body = bytearray()
    while part := stream.read1(_CHUNK):  # `read` waits for as many bytes
        body += part
        if len(body) > max_bytes:
            raise OSError(f"the answer is longer than {max_bytes >> 20} MiB")
    if stream.length:  # of which `read1` does not complain
        raise OSError(f"the connection ended {stream.length} bytes before the answer")
    return bytes(body)
