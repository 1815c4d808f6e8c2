"""Sends records to a topic while a test disturbs the services."""

from __future__ import annotations

import json
import threading

from confluent_kafka import KafkaError, Message, Producer

from ingestd.clock import pause
from tests.support.daemon import Daemon
from tests.support.patience import LIMIT
from tests.support.stack import eventually


class Flow:
    """Sends increasing ids to a topic until the end of the `with` block, each exactly once.

    The field `part` of a record is a number below `parts`.
    """

    def __init__(self, servers: str, topic: str, *, parts: int = 1) -> None:
        self._topic = topic
        self._parts = parts
        settings = {"enable.idempotence": True, "topic.metadata.refresh.interval.ms": 1000, "linger.ms": 5}
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 2} | settings)
        self._thread = threading.Thread(target=self._run, name="flow")
        self._has_ended = threading.Event()
        self.sent = self.stored = 0

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()
        assert self._producer.flush(LIMIT) == 0
        assert self.stored == self.sent

    def _run(self) -> None:
        while not self._has_ended.is_set():
            for _ in range(20):
                record = json.dumps({"id": self.sent, "part": self.sent % self._parts})
                self._producer.produce(self._topic, record, on_delivery=self._on_delivery)
                self.sent += 1
            self._producer.poll(0)
            pause(0.05)

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        assert error is None, error
        self.stored += 1


def rows(daemon: Daemon, mapping: str) -> int:
    """Return the number of rows that a mapping has committed."""
    return sum(event["rows"] for event in daemon.events("committed") if event["mapping"] == mapping)


def wait_for_rows(daemon: Daemon, mapping: str, count: int) -> None:
    """Wait until a mapping has committed at least `count` rows."""
    eventually(f"{count} rows of {mapping}", lambda: rows(daemon, mapping) >= count)


def proceed(daemon: Daemon, mapping: str, flow: Flow) -> None:
    """Wait until a record that is sent from now on has been committed."""
    wait_for_rows(daemon, mapping, flow.sent + 1)
