"""Creates topics and produces records for the demo and the benchmark.

Invariant: `produce` returns only when the broker has acknowledged every record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ingestd.errors import BrokerUnavailable
from ingestd.kafka.settings import QUIET, translate_error

_SETTINGS = {"compression.type": "lz4", "linger.ms": 50, "batch.num.messages": 50_000, "batch.size": 1_000_000}
_PROGRESS_RECORDS = 10_000


def create_topic(servers: str, topic: str, partitions: int) -> None:
    """Create a topic with one replica. Raises BrokerUnavailable."""
    admin = AdminClient({"bootstrap.servers": servers} | QUIET)
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    except KafkaException as error:
        raise translate_error(error, f"topic {topic}") from error


def produce(servers: str, topic: str, values: Iterable[bytes], on_progress: Callable[[int], None]) -> int:
    """Send the values to all partitions and return their number.

    `on_progress` is called with the number of values sent since its last call. Raises BrokerUnavailable if the broker
    does not acknowledge all of them.
    """
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 500_000, **_SETTINGS})
    count = 0
    for count, value in enumerate(values, 1):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.05)
        if count % _PROGRESS_RECORDS == 0:
            producer.poll(0)
            on_progress(_PROGRESS_RECORDS)
    left = producer.flush(60)
    if left:
        raise BrokerUnavailable(f"{left} of {count} records were not acknowledged", where=f"topic {topic}")
    on_progress(count % _PROGRESS_RECORDS)
    return count
