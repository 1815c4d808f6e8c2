"""Sets client quotas of a Kafka cluster, which confluent_kafka cannot do."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tests.support.patience import LIMIT

_ALTER_CLIENT_QUOTAS = 49


@contextmanager
def consumer_quota(servers: str, client: str, bytes_per_second: int) -> Iterator[None]:
    """Limit how fast all consumers together with the `client.id` `client` may fetch from each broker."""
    _alter(servers, client, bytes_per_second, remove=False)
    try:
        yield
    finally:
        _alter(servers, client, 0, remove=True)


def _alter(servers: str, client: str, value: int, *, remove: bool) -> None:
    """Send AlterClientQuotas, version 0, and check its answer."""
    entity = struct.pack(">i", 1) + _text("client-id") + _text(client)
    change = struct.pack(">i", 1) + _text("consumer_byte_rate") + struct.pack(">d?", value, remove)
    request = struct.pack(">hhi", _ALTER_CLIENT_QUOTAS, 0, 1) + _text("test")
    request += struct.pack(">i", 1) + entity + change + struct.pack(">?", False)
    host, port = servers.split(",", maxsplit=1)[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), LIMIT) as broker, broker.makefile("rb") as answers:
        broker.sendall(struct.pack(">i", len(request)) + request)
        answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    _correlation, _throttle, entries, error = struct.unpack_from(">iiih", answer)
    assert (entries, error) == (1, 0), answer


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def produce_random(servers: str, topic: str, values: list[bytes]) -> None:
    """Produce records in batches of 100 kB, which a quota must be able to deliver as a whole."""
    producer = Producer({"bootstrap.servers": servers, "batch.size": 100_000, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(LIMIT) == 0
