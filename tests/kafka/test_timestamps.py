"""The timestamps of the first records at or after offsets of a real Kafka, and the first offsets at or after a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from ingestd.clock import now
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.record import NO_TIMESTAMP
from ingestd.kafka.timestamps import FirstRecord, RecordTimestamps
from tests.support.patience import LIMIT
from tests.support.records import wait_for_ends
from tests.support.stack import Stack, eventually


@pytest.fixture
def reader(stack: Stack) -> Iterator[RecordTimestamps]:
    with closing(RecordTimestamps({"bootstrap.servers": stack.addresses.kafka})) as made:
        yield made


def _produce(stack: Stack, partition: int, *seconds: float) -> None:
    """Produce one record for each timestamp, each in a batch of its own."""
    producer = Producer({"bootstrap.servers": stack.addresses.kafka})
    for at in seconds:
        producer.produce(stack.name, b"{}", partition=partition, timestamp=int(at * 1000))
        assert producer.flush(LIMIT) == 0


def _produce_in_transactions(stack: Stack, partition: int, *, aborted: float, committed: float | None) -> None:
    """Produce a record in a transaction that aborts and, if it has a timestamp, one in a transaction that commits."""
    producer = Producer({"bootstrap.servers": stack.addresses.kafka, "transactional.id": f"{stack.name}-{partition}"})
    producer.init_transactions(LIMIT)
    producer.begin_transaction()
    producer.produce(stack.name, b"{}", partition=partition, timestamp=int(aborted * 1000))
    assert producer.flush(LIMIT) == 0  # otherwise the abort discards it
    producer.abort_transaction(LIMIT)
    if committed is not None:
        producer.begin_transaction()
        producer.produce(stack.name, b"{}", partition=partition, timestamp=int(committed * 1000))
        producer.commit_transaction(LIMIT)
    wait_for_ends(stack, {partition: 2 if committed is None else 4})


def _read(reader: RecordTimestamps, stack: Stack, *offsets: int, seconds: float = LIMIT) -> dict[int, float | None]:
    """Return by partition the timestamp of the first record; None if it is known that there is no record."""
    wanted = {TopicPartition(stack.name, partition): offset for partition, offset in enumerate(offsets)}
    found = reader.read(wanted, seconds=seconds, stop=threading.Event())
    return {record.partition.partition: record.timestamp if record.exists else None for record in found}


def test_timestamps_when_partitions_have_records_or_gaps_then_are_those_of_the_first_committed_records(
    stack: Stack, reader: RecordTimestamps
) -> None:
    stack.topic(partitions=5)
    _produce(stack, 0, 1000.5, 2000, 3000)
    _produce(stack, 1, 4000, 5000)
    _produce_in_transactions(stack, 2, aborted=6000, committed=7000)
    _produce_in_transactions(stack, 3, aborted=8000, committed=None)
    assert _read(reader, stack, 1, 0, 0, 0, 0) == {0: 2000, 1: 4000, 2: 7000, 3: None, 4: None}
    _produce(stack, 4, 9000)
    assert _read(reader, stack, 0, 1, 1, 1, 0) == {0: 1000.5, 1: 5000, 2: 7000, 3: None, 4: 9000}


def test_timestamps_when_a_partition_has_no_record_then_it_counts_as_young(
    stack: Stack, reader: RecordTimestamps
) -> None:
    stack.topic(partitions=1)
    before = now()
    [found] = reader.read({TopicPartition(stack.name, 0): 0}, seconds=LIMIT, stop=threading.Event())
    assert before <= found.timestamp <= now()


def test_timestamps_when_an_offset_topic_or_timestamp_does_not_exist_then_the_others_are_returned(
    stack: Stack, reader: RecordTimestamps
) -> None:
    stack.topic(partitions=3)
    _produce(stack, 0, 1000)
    _produce(stack, 1, 2000)
    _produce(stack, 2, NO_TIMESTAMP / 1000)
    missing = TopicPartition(f"{stack.name}_missing", 0)
    too_far, first, without_time = (TopicPartition(stack.name, partition) for partition in range(3))
    wanted = {missing: 0, too_far: 1000, first: 0, without_time: 0}
    found = eventually("the existing record", lambda: reader.read(wanted, seconds=3, stop=threading.Event()))
    assert found == [FirstRecord(first, 0, 2000)]
    assert _read(reader, stack, 0, 0) == {0: 1000, 1: 2000}


def test_timestamps_when_many_partitions_have_large_batches_then_one_consumer_reads_all(
    stack: Stack, reader: RecordTimestamps
) -> None:
    stack.topic(partitions=100)
    producer = Producer({"bootstrap.servers": stack.addresses.kafka, "linger.ms": 50})
    for partition in range(100):
        for record in range(5):
            producer.produce(stack.name, b"x" * 20_000, partition=partition, timestamp=1_000_000 + partition + record)
        producer.poll(0)
    assert producer.flush(LIMIT) == 0
    assert _read(reader, stack, *[0] * 100) == {p: (1_000_000 + p) / 1000 for p in range(100)}


def test_offset_at_a_time_when_records_arrive_meanwhile_then_none_of_them_is_skipped(stack: Stack) -> None:
    stack.topic(partitions=40)
    broker = Broker({"bootstrap.servers": stack.addresses.kafka})
    partitions = [TopicPartition(stack.name, number) for number in range(40)]

    def produce() -> None:
        for partition in partitions:
            _produce(stack, partition.partition, 1000)

    producing = threading.Thread(target=produce)
    producing.start()
    while producing.is_alive():
        # The first record with that time, or the end of an empty partition.
        assert set(broker.at_time(partitions, 1_000_000).values()) == {0}
    producing.join()
