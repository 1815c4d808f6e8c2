"""A TCP proxy for a NameNode without Kerberos that loses requests and answers, and holds requests."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.patience import LIMIT
from tests.support.relay import Losses, shut_down

# "hrpc", the version, the service class and the authentication, which a client sends first.
_PREAMBLE_BYTES = 7
_LENGTH = struct.Struct(">I")


class HdfsProxy(Losses):
    """Forwards calls and answers. `calls` counts the calls by method of ClientProtocol, such as rename2 or addBlock.

    `held` is set when a call is held.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._target = ("127.0.0.1", port)
        self._held: str | None = None
        self.held = threading.Event()
        self._released = threading.Event()
        self._answered = threading.Event()
        self._links: list[_Link] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, method: str) -> None:
        """Hold the next call of `method`, but forward the calls after it."""
        self._held = method

    def release(self) -> None:
        """Forward the call that is held, and wait until the NameNode has executed it."""
        self._released.set()
        assert self._answered.wait(LIMIT)

    def close(self) -> None:
        """Refuse new connections and cut the existing ones."""
        self._released.set()
        shut_down(self._door)
        self._door.close()
        for link in self._links:
            link.cut()

    def take(self, method: str) -> tuple[bool, bool, bool]:
        """Count a call. Return whether to lose it, whether to lose its answer, and whether to hold it."""
        with self._guard:
            is_held = method == self._held
            if is_held:
                self._held = None
                self.held.set()
        return *self.count(method), is_held

    def wait_for_release(self) -> None:
        """Wait until `release`."""
        self._released.wait()

    def note_answer(self) -> None:
        """Note that the NameNode has answered the call that was held."""
        self._answered.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            try:
                link = _Link(self, near, socket.create_connection(self._target))
            except OSError:
                near.close()
                continue
            self._links.append(link)
            threading.Thread(target=link.work, daemon=True).start()


class _Link:
    """One connection: the socket to the client and the socket to the NameNode."""

    def __init__(self, proxy: HdfsProxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy, self._near, self._far = proxy, near, far
        self._lost: set[int] = set()
        self._held: set[int] = set()
        self._sending = threading.Lock()

    def work(self) -> None:
        """Forward both directions until one side closes its connection."""
        with self._near, self._far:
            up = threading.Thread(target=self._up, daemon=True)
            up.start()
            with suppress(OSError, EOFError):
                while self._forward_answer():
                    pass
            self.cut()
            up.join()

    def cut(self) -> None:
        """Shut down both sockets. The forwarding threads then close them."""
        shut_down(self._near, self._far)

    def _up(self) -> None:
        with suppress(OSError, EOFError):
            self._far.sendall(_exactly(self._near, _PREAMBLE_BYTES))
            while self._forward_call():
                pass
        self.cut()

    def _forward_call(self) -> bool:
        """Forward a call; False if the connection is to be cut."""
        frame = _frame(self._near)
        number, method = _call(frame)
        is_lost, is_answer_lost, is_held = self._proxy.take(method)
        if is_lost:
            return False
        if is_answer_lost:
            self._lost.add(number)
        if is_held:
            self._held.add(number)
            threading.Thread(target=self._send_later, args=(frame,), daemon=True).start()
        else:
            self._send(frame)
        return True

    def _forward_answer(self) -> bool:
        """Forward an answer; False if the connection is to be cut."""
        frame = _frame(self._far)
        header, _ = _delimited(frame, _LENGTH.size)
        number = _fields(header)[1]
        if number in self._lost:
            return False
        self._near.sendall(frame)
        if number in self._held:
            self._proxy.note_answer()
        return True

    def _send_later(self, frame: bytes) -> None:
        self._proxy.wait_for_release()
        with suppress(OSError):
            self._send(frame)

    def _send(self, frame: bytes) -> None:
        with self._sending:
            self._far.sendall(frame)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = source.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _frame(source: socket.socket) -> bytes:
    """Receive a message with its length in front."""
    length = _exactly(source, _LENGTH.size)
    return length + _exactly(source, _LENGTH.unpack(length)[0])


def _call(frame: bytes) -> tuple[int, str]:
    """Return the number of a call and its method; a negative number and "" for what is not a call."""
    header, end = _delimited(frame, _LENGTH.size)
    raw = _fields(header)[3]
    assert isinstance(raw, int)
    number = (raw >> 1) ^ -(raw & 1)  # zigzag
    if number < 0:
        return number, ""
    method = _fields(_delimited(frame, end)[0])[1]
    assert isinstance(method, bytes)
    return number, method.decode()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def _delimited(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the Protobuf message at a position, which its length precedes, and the position after it."""
    length, start = _varint(data, at)
    return data[start : start + length], start + length


def _fields(message: bytes) -> dict[int, int | bytes]:
    """Return the fields of a Protobuf message of numbers, strings and messages by field number."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7:
            fields[key >> 3], at = _delimited(message, at)
        else:
            fields[key >> 3], at = _varint(message, at)
    return fields


@contextmanager
def hdfs_proxy(port: int) -> Iterator[HdfsProxy]:
    """Run a proxy for the NameNode on a port of this machine."""
    proxy = HdfsProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
