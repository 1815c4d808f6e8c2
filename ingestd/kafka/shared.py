"""The Kafka clients of a daemon, shared by mappings with equal properties.

Invariant: the number of clients depends on the number of different properties, not on the number of mappings, because
each client of librdkafka has several threads. Offset mirrors, which need one consumer per group, are the exception: a
bounded number of them, those that were used last, stay open.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ingestd.kafka.admin import REQUEST_SECONDS, Broker, OffsetMirror
from ingestd.kafka.ranges import Offsets
from ingestd.kafka.settings import ClientKey, client_key
from ingestd.kafka.watch import Watch

_MOST_MIRRORS = 32


class KafkaClients:
    """Creates each client when it is first needed. Safe for use from any thread.

    `timeout_seconds` bounds each request of a broker.
    """

    def __init__(self, *, timeout_seconds: float = REQUEST_SECONDS) -> None:
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._watches: dict[ClientKey, Watch] = {}
        self._mirrors: dict[tuple[str, ClientKey], OffsetMirror] = {}  # the one that was used last is last
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
            mirror = self._mirrors.pop(key, None)
        mirror = mirror or OffsetMirror(settings, group)
        try:
            mirror.commit(position)
        finally:
            with self._lock:
                replaced = self._mirrors.pop(key, None)  # two mappings may have the same group
                self._mirrors[key] = mirror
                most = 0 if self._is_closed else _MOST_MIRRORS
                evicted = [self._mirrors.pop(next(iter(self._mirrors)))] if len(self._mirrors) > most else []
            for unused in [*evicted, *([replaced] if replaced else [])]:
                unused.close()

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
            mirrors, self._mirrors = self._mirrors, {}
        for mirror in mirrors.values():
            mirror.close()
