"""The Kafka clients of a daemon, shared by mappings with equal properties.

Invariant: the number of clients depends on the number of different properties, not on the number of mappings, because
each client of librdkafka has several threads. Offset mirrors, which need one consumer per group, are the exception: a
bounded number of them, those that were used last, stay open. One whose commit no broker has answered, for example
because it is denied, stays open for longer, because its closing blocks a thread: a bounded number of threads do that.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ingestd.kafka.admin import REQUEST_SECONDS, Broker, OffsetMirror
from ingestd.kafka.ranges import Offsets
from ingestd.kafka.settings import ClientKey, client_key
from ingestd.kafka.watch import Watch

_MOST_MIRRORS = 32
_MOST_CLOSING = 4


class KafkaClients:
    """Creates each client when it is first needed. Safe for use from any thread.

    `timeout_seconds` bounds each request of a broker.
    """

    def __init__(self, *, timeout_seconds: float = REQUEST_SECONDS) -> None:
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._watches: dict[ClientKey, Watch] = {}
        # Those that no commit uses now, the one that was used last is last. Two mappings may have the same group.
        self._mirrors: dict[OffsetMirror, tuple[str, ClientKey]] = {}
        self._closing: list[threading.Thread] = []
        self._is_closed = False

    def watch(self, settings: Mapping[str, Any]) -> Watch:
        """Return the watch of the topics of the cluster. Raises ConfigError."""
        with self._lock:
            key = client_key(settings)
            if key not in self._watches:
                self._watches[key] = Watch(Broker(settings, timeout_seconds=self._timeout))
            return self._watches[key]

    def broker(self, settings: Mapping[str, Any]) -> Broker:
        """Return the client for requests to the cluster. Raises ConfigError."""
        return self.watch(settings).broker

    def mirror(self, settings: Mapping[str, Any], group: str, position: Offsets) -> None:
        """Commit offsets to a consumer group. Raises the errors of `OffsetMirror.commit`."""
        key = group, client_key(settings)
        with self._lock:
            mirror = next((mirror for mirror, its_key in self._mirrors.items() if its_key == key), None)
            if mirror is not None:
                del self._mirrors[mirror]
        mirror = mirror or OffsetMirror(settings, group)
        try:
            mirror.commit(position)
        finally:
            with self._lock:
                self._mirrors[mirror] = key
                answered = self._evict(0 if self._is_closed else _MOST_MIRRORS)
            _close(answered)

    def interrupt(self) -> None:
        """Make all requests of the brokers fail, so that no caller waits any longer (`Broker.interrupt`)."""
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.broker.interrupt()

    def close(self) -> None:
        """Close the consumers of the mirrors, and from now on each one after its commit."""
        with self._lock:
            self._is_closed = True
            answered = self._evict(0)
        _close(answered)

    def _evict(self, most: int) -> Sequence[OffsetMirror]:
        """Remove the mirrors beyond the `most` that may be open, and return those that can be closed without waiting.

        A thread closes one with a pending commit. If _MOST_CLOSING threads do that, the others stay open. At the end,
        one thread closes all of them. The caller holds the lock.
        """
        excess = max(0, len(self._mirrors) - most)
        answered = [mirror for mirror in self._mirrors if not mirror.is_pending][:excess]
        pending = [mirror for mirror in self._mirrors if mirror.is_pending][: excess - len(answered)]
        self._closing = [thread for thread in self._closing if thread.is_alive()]
        if self._is_closed:
            some = [pending] if pending else []
        else:
            some = [[mirror] for mirror in pending[: _MOST_CLOSING - len(self._closing)]]
        for closed in some:
            thread = threading.Thread(target=_close, args=(closed,), name="offset-mirror-close", daemon=True)
            thread.start()
            self._closing.append(thread)
        for mirror in chain(answered, *some):
            del self._mirrors[mirror]
        return answered


def _close(mirrors: Sequence[OffsetMirror]) -> None:
    for mirror in mirrors:
        mirror.close()
