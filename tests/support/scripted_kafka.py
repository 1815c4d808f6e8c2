"""A Kafka broker in the test process that answers the requests of consumer groups with chosen errors."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from contextlib import suppress

from tests.support.relay import shut_down

_METADATA, _OFFSET_COMMIT, _OFFSET_FETCH, _FIND_COORDINATOR, _VERSIONS = 3, 8, 9, 10, 18
# The only version of each request that the broker knows. A client first asks for these in a newer version.
_VERSION_OF = {_METADATA: 1, _OFFSET_COMMIT: 1, _OFFSET_FETCH: 1, _FIND_COORDINATOR: 0, _VERSIONS: 0}
_UNSUPPORTED_VERSION = 35
_GROUP_AUTHORIZATION_FAILED = 30
_NULL = struct.pack(">h", -1)


class ScriptedKafka:
    """A broker that is the coordinator of all groups, and knows one partition, `topic`[0].

    It denies groups whose names begin with `denied`, if that is not empty, and accepts the offsets of the others.
    `offsets_error` is the error of its answer to a request for these offsets, 0 for none. It answers only the first
    `most_offsets` of these requests, or all if that is None.
    """

    def __init__(
        self, topic: str, *, denied: str = "", offsets_error: int = 0, most_offsets: int | None = None
    ) -> None:
        self._topic, self._denied = topic, denied
        self._offsets_error, self._most_offsets = offsets_error, most_offsets
        self._calls: Counter[int] = Counter()
        self._door = socket.create_server(("127.0.0.1", 0))
        self._port = self._door.getsockname()[1]
        self.servers = f"127.0.0.1:{self._port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Refuse further connections."""
        shut_down(self._door)
        self._door.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._door.accept()[:1], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as requests:
            while head := requests.read(4):
                request = requests.read(*struct.unpack(">i", head))
                key, version, number = struct.unpack(">hhi", request[:8])
                self._calls[key] += 1
                if key == _OFFSET_FETCH and self._most_offsets is not None and self._calls[key] > self._most_offsets:
                    continue
                answer = struct.pack(">i", number) + self._answer(key, version, request[8:])
                connection.sendall(struct.pack(">i", len(answer)) + answer)

    def _answer(self, key: int, version: int, rest: bytes) -> bytes:
        address = _text("127.0.0.1") + struct.pack(">i", self._port)
        if key == _VERSIONS:
            known = b"".join(struct.pack(">hhh", key, only, only) for key, only in _VERSION_OF.items())
            return struct.pack(">hi", _UNSUPPORTED_VERSION if version else 0, len(_VERSION_OF)) + known
        if key == _METADATA:
            return struct.pack(">ii", 1, 1) + address + _NULL + struct.pack(">ii", 1, 0)
        if key == _FIND_COORDINATOR:
            (client,) = struct.unpack(">h", rest[:2])
            group = rest[2 + client + 2 :].decode()
            is_denied = self._denied and group.startswith(self._denied)
            return struct.pack(">hi", _GROUP_AUTHORIZATION_FAILED if is_denied else 0, 1) + address
        partition = struct.pack(">ii", 1, 0)
        if key == _OFFSET_COMMIT:
            partition += struct.pack(">h", 0)
        else:
            partition += struct.pack(">q", -1) + _NULL + struct.pack(">h", self._offsets_error)
        return struct.pack(">i", 1) + _text(self._topic) + partition


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
