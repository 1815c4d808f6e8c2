"""Limits the connections of clients: their number, and the time that each may take.

Invariant: at most `_MAX_SOCKETS` sockets are open, besides a few that are being closed, whatever clients do. A new
connection is always accepted, because another one is closed for it if there are too many. A health check is therefore
answered even during a flood.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from ingestd.clock import monotonic

# Connections whose TLS handshake is complete, and all sockets including those in a handshake.
MAX_CONNECTIONS = 128
_MAX_SOCKETS = 256
# Connections that wait in the kernel; if this queue is full, a client retries after a second. asyncio accepts only some
# of them before it handles them, because it can close an idle connection only then.
_QUEUE = 512
ACCEPTS_PER_TURN = 32
# The maximum size of the request line and of the headers.
MAX_HEADER_BYTES = 16 * 1024
# How long a client may take to send the headers of a request, and how long it may pause while it reads a response.
_IDLE_SECONDS = 10.0
_STALLED_SECONDS = 20.0


class Listener(socket.socket):
    """A listening socket that ends the oldest accepted connection if too many are open."""

    def __init__(self, family: int, kind: int) -> None:
        super().__init__(family, kind)
        self._accepted: list[socket.socket] = []

    def listen(self, _backlog: int = _QUEUE, /) -> None:
        """Listen with the queue of this class: asyncio passes the number of connections that it accepts per turn."""
        super().listen(_QUEUE)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection (see `socket.socket.accept`)."""
        accepted, address = super().accept()
        self._accepted = [known for known in self._accepted if known.fileno() >= 0]
        if len(self._accepted) >= _MAX_SOCKETS:
            # Probably a TLS handshake that its client never finishes. asyncio notices the end and closes the socket.
            with suppress(OSError):  # the client has closed it
                self._accepted.pop(0).shutdown(socket.SHUT_RDWR)
        self._accepted.append(accepted)
        return accepted, address


class Connection(H11Protocol):
    """One HTTP connection of uvicorn, whose waits for its client are limited."""

    _waits_since: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock. If there are too many connections, close the one that is idle longest, or a busy one."""
        super().connection_made(transport)
        self._waits_since = monotonic()
        if len(self.connections) > MAX_CONNECTIONS:
            others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
            oldest = min(others, key=lambda other: (not other.is_idle, other._waits_since))
            # Its end is reported later, and until then it must not count.
            self.connections.discard(oldest)
            oldest.transport.abort()

    def on_response_complete(self) -> None:
        """Start the clock for the next request."""
        self._waits_since = monotonic()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def end_if_overdue(self) -> None:
        """Abort the connection if its client keeps it waiting for too long."""
        waits_for_client = self.is_idle or self.flow.write_paused or self.transport.is_closing()
        if not waits_for_client:
            self._waits_since = monotonic()
        limit = _IDLE_SECONDS if self.is_idle else _STALLED_SECONDS
        if monotonic() - self._waits_since > limit:
            self.transport.abort()


def end_overdue(connections: Iterable[object]) -> None:
    """Abort the connections whose clients keep them waiting for too long. Call this about once a second."""
    for connection in list(connections):
        if isinstance(connection, Connection):
            connection.end_if_overdue()
