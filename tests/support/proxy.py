"""A TCP proxy in front of a metastore that cuts connections, loses calls and answers, and delays them."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

# Thrift's strict binary protocol: version and type, then the length of the method's name.
_CALL = struct.Struct(">II")
_VERSION_CALL = 0x80010001
_VERSION_REPLY = 0x80010002


class Proxy:
    """Forwards both directions. `sent` holds all bytes of the clients, `calls` counts the unencrypted Thrift calls.

    While `flowing` is cleared, calls wait: the metastore does not answer.
    """

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self._target = (parts.hostname or "", parts.port or 0)
        self._guard = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._lost_calls: Counter[str] = Counter()
        self._lost_answers: Counter[str] = Counter()
        self._garbled_answers: Counter[str] = Counter()
        self._held: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.flowing = threading.Event()
        self.flowing.set()
        self.sent = bytearray()
        self.accepted = 0
        self.port = 0
        self._door: socket.socket | None = None
        self.open()

    @property
    def uri(self) -> str:
        """Its address, with the host name that the certificates and principals of tests have."""
        return f"thrift://localhost:{self.port}"

    def open(self) -> None:
        """Listen, always on the same port."""
        self._door = socket.create_server(("127.0.0.1", self.port))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._door,), daemon=True).start()

    def shut(self) -> None:
        """Refuse new connections and cut the existing ones: the metastore is down."""
        door, self._door = self._door, None
        if door:
            with suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)  # unblocks accept
            door.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        with self._guard:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.cut()

    def lose_answer(self, method: str, times: int = 1) -> None:
        """Forward the next calls of `method`, then cut the connection instead of forwarding the answer."""
        with self._guard:
            self._lost_answers[method] += times

    def lose_call(self, method: str, times: int = 1) -> None:
        """Cut the connection at the next calls of `method`, before the metastore receives them."""
        with self._guard:
            self._lost_calls[method] += times

    def garble_answer(self, method: str, times: int = 1) -> None:
        """Make the next answers to `method` unreadable: the method name in them is not UTF-8."""
        with self._guard:
            self._garbled_answers[method] += times

    def hold(self, method: str) -> None:
        """Let further calls of `method` wait until their client disconnects; the metastore never receives them."""
        self._held.add(method)

    def is_held(self, method: str) -> bool:
        """Whether calls of `method` wait."""
        return method in self._held

    def note(self, method: str) -> tuple[bool, bool, bool]:
        """Count a call. Returns whether to lose it, whether to lose its answer, and whether to garble its answer."""
        with self._guard:
            self.calls[method] += 1
            is_lost, is_answer_lost = _taken(self._lost_calls, method), _taken(self._lost_answers, method)
            return is_lost, is_answer_lost, _taken(self._garbled_answers, method)

    def _accept(self, door: socket.socket) -> None:
        while True:
            try:
                near, _ = door.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                pair = _Pair(self, near, socket.create_connection(self._target))
            except OSError:
                near.close()
                continue
            with self._guard:
                self._pairs.add(pair)
                if self._door is not door:  # `shut` ran since
                    pair.cut()
            threading.Thread(target=pair.work, daemon=True).start()


class _Pair:
    """One connection: the socket to the client and the socket to the metastore."""

    def __init__(self, proxy: Proxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy, self._near, self._far = proxy, near, far
        self._losing = False
        self._garbling = False

    def work(self) -> None:
        """Forward both directions until one side ends."""
        with self._near, self._far:
            up = threading.Thread(target=self._up, daemon=True)
            up.start()
            self._down()
            up.join()

    def cut(self) -> None:
        """Shut both sockets down; the threads that forward then close them."""
        for one in (self._near, self._far):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _up(self) -> None:
        with suppress(OSError):
            while piece := self._near.recv(1 << 16):
                self._proxy.sent += piece
                if method := _method(piece):
                    lost, self._losing, self._garbling = self._proxy.note(method)
                    if lost:
                        break
                    if self._proxy.is_held(method):
                        while self._near.recv(1 << 16):
                            pass
                        break
                self._proxy.flowing.wait()
                self._far.sendall(piece)
        self.cut()

    def _down(self) -> None:
        with suppress(OSError):
            while (piece := self._far.recv(1 << 16)) and not self._losing:
                if self._garbling and (method := _method(piece)):
                    piece = piece.replace(method.encode(), b"\xff" * len(method), 1)
                self._near.sendall(piece)
        self.cut()


def _taken(left: Counter[str], method: str) -> bool:
    is_left = left[method] > 0
    left[method] -= is_left
    return is_left


def _method(piece: bytes) -> str:
    """The method name if a call starts in this piece. Clients wait for each answer, so a piece has at most one call."""
    if len(piece) < _CALL.size:
        return ""
    version, length = _CALL.unpack_from(piece)
    return piece[_CALL.size : _CALL.size + length].decode() if version in (_VERSION_CALL, _VERSION_REPLY) else ""


@contextmanager
def proxy(uri: str) -> Iterator[Proxy]:
    """A proxy that ends with the block."""
    made = Proxy(uri)
    try:
        yield made
    finally:
        made.shut()
