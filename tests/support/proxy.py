"""A TCP proxy for a metastore that cuts connections, loses calls and answers, and delays calls."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from ingestd.clock import pause
from tests.support.relay import Losses, shut_down, taken

# Thrift's strict binary protocol: version and type, then the length of the method's name.
_CALL = struct.Struct(">II")
_VERSION_CALL = 0x80010001
_VERSION_REPLY = 0x80010002


class Proxy(Losses):
    """Forwards both directions. `sent` contains all bytes of the clients, and `calls` counts unencrypted Thrift calls.

    While `flowing` is cleared, calls are not forwarded, as if the metastore did not answer. While `answering` is
    cleared, answers are not forwarded, as if the client were suspended.
    """

    def __init__(self, uri: str) -> None:
        super().__init__()
        parts = urlsplit(uri)
        self._target = (parts.hostname or "", parts.port or 0)
        self._pairs: set[_Pair] = set()
        self._garbled_answers: Counter[str] = Counter()
        self._held: set[str] = set()
        self._ever_new: frozenset[str] = frozenset()
        self._seen: set[bytes] | None = None
        self._delays: dict[str, float] = {}
        self.flowing = threading.Event()
        self.flowing.set()
        self.answering = threading.Event()
        self.answering.set()
        self.sent = bytearray()
        self.accepted = 0
        self.port = 0
        self._door: socket.socket | None = None
        self.open()

    @property
    def uri(self) -> str:
        """The address of the proxy, with the host name in the certificates and principals of the tests."""
        return f"thrift://localhost:{self.port}"

    def open(self) -> None:
        """Listen on the same port as before, or at the first call on any port."""
        self._door = socket.create_server(("127.0.0.1", self.port))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._door,), daemon=True).start()

    def shut(self) -> None:
        """Refuse new connections and cut the existing ones, as if the metastore were down."""
        door, self._door = self._door, None
        if door:
            shut_down(door)
            door.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        with self._guard:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.cut()

    def garble_answer(self, method: str, times: int = 1) -> None:
        """Replace the method name in the next `times` answers to `method` with bytes that are not UTF-8."""
        with self._guard:
            self._garbled_answers[method] += times

    def lose_first_answers(self, *methods: str) -> None:
        """From now on, lose the answer to each request that differs from all before; of `methods`, to the first one.

        These are methods whose requests differ each time, so that a client that repeats them would never succeed.
        """
        with self._guard:
            self._ever_new = frozenset(methods)
            self._seen = set()

    def hold(self, method: str) -> None:
        """Block further calls of `method` until their client disconnects. The metastore never receives them."""
        self._held.add(method)

    def forward(self, method: str) -> None:
        """Forward further calls of `method` again, and cut all connections, so that clients repeat blocked calls."""
        self._held.discard(method)
        self.cut()

    def is_held(self, method: str) -> bool:
        """Return whether calls of `method` are blocked."""
        return method in self._held

    def delay(self, method: str, seconds: float) -> None:
        """Forward further calls of `method` only after `seconds`, as if the metastore were slow."""
        self._delays[method] = seconds

    def wait(self, method: str) -> None:
        """Wait until a call of `method` may be forwarded."""
        pause(self._delays.get(method, 0.0))
        self.flowing.wait()

    def note(self, method: str, request: bytes) -> tuple[bool, bool, bool]:
        """Count a call. Return whether to lose it, whether to lose its answer, and whether to garble its answer."""
        with self._guard:
            is_garbled = taken(self._garbled_answers, method)
            kind = method.encode() if method in self._ever_new else request
            is_first = self._seen is not None and kind not in self._seen
            if self._seen is not None:
                self._seen.add(kind)
        is_lost, is_answer_lost = self.count(method)
        return is_lost, is_answer_lost or is_first, is_garbled

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
                if self._door is not door:  # `shut` has run in the meantime
                    pair.cut()
            threading.Thread(target=pair.work, daemon=True).start()


class _Pair:
    """One connection: the socket to the client and the socket to the metastore."""

    def __init__(self, proxy: Proxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy, self._near, self._far = proxy, near, far
        self._losing = False
        self._garbling = False

    def work(self) -> None:
        """Forward both directions until one side closes its connection."""
        with self._near, self._far:
            up = threading.Thread(target=self._up, daemon=True)
            up.start()
            self._down()
            up.join()

    def cut(self) -> None:
        """Shut down both sockets. The forwarding threads then close them."""
        shut_down(self._near, self._far)

    def _up(self) -> None:
        with suppress(OSError):
            while piece := self._near.recv(1 << 16):
                self._proxy.sent += piece
                if method := _method(piece):
                    lost, self._losing, self._garbling = self._proxy.note(method, piece)
                    if lost:
                        break
                    if self._proxy.is_held(method):
                        while self._near.recv(1 << 16):
                            pass
                        break
                self._proxy.wait(method)
                self._far.sendall(piece)
        self.cut()

    def _down(self) -> None:
        with suppress(OSError):
            while (piece := self._far.recv(1 << 16)) and not self._losing:
                if self._garbling and (method := _method(piece)):
                    piece = piece.replace(method.encode(), b"\xff" * len(method), 1)
                self._proxy.answering.wait()
                self._near.sendall(piece)
        self.cut()


def _method(piece: bytes) -> str:
    """Return the method name if `piece` starts with a call or an answer, or an empty string.

    Clients wait for each answer, so a piece contains at most one call.
    """
    if len(piece) < _CALL.size:
        return ""
    version, length = _CALL.unpack_from(piece)
    return piece[_CALL.size : _CALL.size + length].decode() if version in (_VERSION_CALL, _VERSION_REPLY) else ""


@contextmanager
def proxy(uri: str) -> Iterator[Proxy]:
    """Run a proxy and stop it at the end of the `with` block."""
    made = Proxy(uri)
    try:
        yield made
    finally:
        made.shut()
