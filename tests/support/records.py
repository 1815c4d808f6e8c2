"""Reads and writes whole records: key, value, headers and timestamp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import TopicPartition as Partition
from ingestd.kafka.record import Record
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually


def read_all(stack: Stack, topic: str) -> list[Message]:
    """Return all records of a topic with one partition, in their order."""
    consumer = Consumer({"bootstrap.servers": stack.addresses.kafka, "group.id": topic, "enable.auto.commit": False})
    try:
        partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(partition, timeout=LIMIT)
        consumer.assign([partition])
        found: list[Message] = []
        while len(found) < end:
            found += [message for message in consumer.consume(end - len(found), 1.0) if message.error() is None]
        return found
    finally:
        consumer.close()


def produce_all(stack: Stack, topic: str, records: Sequence[Record]) -> None:
    """Write records with their keys, headers and timestamps to partition 0 of a topic."""
    producer = Producer({"bootstrap.servers": stack.addresses.kafka})
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=0,
            headers=list(record.headers),
            timestamp=record.timestamp_ms or 0,
            on_delivery=_on_delivery,
        )
    assert producer.flush(LIMIT) == 0


def wait_for_ends(stack: Stack, ends: Mapping[int, int]) -> None:
    """Wait until readers see the records of transactions up to these offsets, by partition of the test's topic.

    A broker ends a transaction in each partition shortly after it has answered the producer.
    """
    wanted = {Partition(stack.name, number): end for number, end in ends.items()}
    broker = Broker({"bootstrap.servers": stack.addresses.kafka})
    eventually("the ends of the transactions", lambda: broker.ends(wanted) == wanted)


def _on_delivery(error: KafkaError | None, _message: Message) -> None:
    assert error is None, error
