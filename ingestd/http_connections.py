"""HTTP connections that end at a deadline.

Invariant: no connection receives anything after the deadline. The timeout of a socket does not ensure this: it limits a
single wait, and a server that sends a byte now and then never exceeds it.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

from ingestd.clock import Deadline


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

    def watch(self, connected: socket.socket) -> None:
        """End a connection at the deadline."""
        with self._guard:
            self._sockets.append(connected.dup())  # TLS detaches the socket that it uses
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
