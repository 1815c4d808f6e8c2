"""Records that exist and cannot be read are named with topic, partition, offset and property."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from ingestd.errors import RecordsUnreadable
from ingestd.hive.tables import TableName
from ingestd.kafka.ranges import OffsetRange
from ingestd.kafka.reader import read
from ingestd.kafka.unreadable import UnreadableBatch
from tests.support.patience import LIMIT
from tests.support.segments import flip_last_bits, set_unknown_codec
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table

_LIMIT = {"receive.message.max.bytes": 2_000_000}
_LARGE = '{"id": 2, "text": "%s"}' % ("x" * 2_500_000)


def _send(stack: Stack, topic: str, *values: bytes, partition: int = 0, **properties: Any) -> None:
    """Send each value as a batch of its own."""
    servers = {"bootstrap.servers": stack.addresses.kafka, "message.max.bytes": 9_000_000}
    producer = Producer(servers | {key.replace("_", "."): value for key, value in properties.items()})
    for value in values:
        producer.produce(topic, value, partition=partition)
        assert producer.flush(LIMIT) == 0


def _ids(topic: str, settings: dict[str, Any], partition: int = 0, first: int = 0, end: int = 3) -> list[int]:
    batches = read(settings, [OffsetRange(topic, partition, first, end)])
    return [offset for batch in batches for offset in batch.offsets.tolist()]


def test_read_when_records_are_too_large_or_corrupt_then_the_error_names_them_and_what_helps(stack: Stack) -> None:
    topic = stack.topic(6, **{"max.message.bytes": "9000000"})
    small, large = b'{"id": 1}', _LARGE.encode()
    for partition in range(5):
        _send(stack, topic, small, large if partition == 1 else small, small, partition=partition)
    _send(stack, topic, small, large, small, partition=5, compression_type="zstd")
    flip_last_bits(stack, topic, 2, 1)
    set_unknown_codec(stack, topic, 3, 1)
    servers = {"bootstrap.servers": stack.addresses.kafka}
    unchecked = servers | {"check.crcs": False}
    for settings, partition, what, hint in (
        (servers | _LIMIT, 1, "receive.message.max.bytes allows 2,000,000", "raise receive.message.max.bytes"),
        (servers, 2, "are corrupt", "check the disk"),
        (unchecked, 3, "compression codec", "compression.type"),
        (servers | _LIMIT, 5, "cannot be decompressed", "raise receive.message.max.bytes"),
    ):
        # Other partitions of the same read do not hide it.
        ranges = [OffsetRange(topic, number, 0, 3) for number in sorted({0, 4, partition})]
        with pytest.raises(RecordsUnreadable) as caught:
            list(read(settings, ranges))
        error = caught.value
        assert error.where == f"{topic}[{partition}] offset 1"
        assert what in error.what, error
        assert hint in error.hint, error
        assert "the records of the offsets 1 to 1 " in error.what
        assert error.hint.endswith(f"`ingestd offsets set MAPPING {topic}:{partition}=2`")
        # Neither the records before it nor those behind it are affected, nor is a range that ends before it.
        assert _ids(topic, settings, partition, end=1) == [0]
        assert _ids(topic, settings, partition, first=2) == [2]
    assert _ids(topic, servers, 1) == _ids(topic, servers, 5) == [0, 1, 2]
    assert _ids(topic, servers | _LIMIT | {"fetch.max.bytes": 1_500_000}, 0) == [0, 1, 2]


def test_read_when_a_batch_has_many_records_then_the_error_names_all_of_them_and_what_follows(stack: Stack) -> None:
    topic = stack.topic(2, **{"max.message.bytes": "9000000"})
    settings = {"bootstrap.servers": stack.addresses.kafka}
    batched = Producer(settings | {"linger.ms": 60_000, "batch.size": 8_000_000, "message.max.bytes": 9_000_000})
    batched.list_topics(topic, LIMIT)  # else it may send the first record as soon as it knows the topic
    for partition, size in ((0, 9), (1, 30_000)):
        _send(stack, topic, b"first", partition=partition)
        for _ in range(100):
            batched.produce(topic, b"x" * size, partition=partition)
        assert batched.flush(LIMIT) == 0
        _send(stack, topic, b"last", partition=partition)
    flip_last_bits(stack, topic, 0, 1)
    for partition in range(2):
        for first in (0, 40):
            with pytest.raises(RecordsUnreadable) as caught:
                list(read(settings | _LIMIT, [OffsetRange(topic, partition, first, 102)]))
            start = max(1, first)
            assert caught.value.where == f"{topic}[{partition}] offset {start}"
            assert f"the records of the offsets {start} to 100 " in caught.value.what
            assert f"{topic}:{partition}=101`" in caught.value.hint
        assert _ids(topic, settings | _LIMIT, partition, first=101, end=102) == [101]


def test_read_when_large_batches_of_one_size_surround_a_small_one_then_only_they_are_named(stack: Stack) -> None:
    topic = stack.topic(3, **{"max.message.bytes": "9000000"})
    small, large = b'{"id": 1}', _LARGE.encode()
    _send(stack, topic, large, large, small, large, small, large)
    _send(stack, topic, small, small, small, small, partition=1)
    _send(stack, topic, small, small, small, partition=2)
    flip_last_bits(stack, topic, 1, 0)
    flip_last_bits(stack, topic, 1, 2)
    found: list[UnreadableBatch] = []
    ranges = [OffsetRange(topic, 0, 0, 6), OffsetRange(topic, 1, 0, 4), OffsetRange(topic, 2, 0, 3)]
    batches = list(read({"bootstrap.servers": stack.addresses.kafka} | _LIMIT, ranges, on_unreadable=found.append))
    read_offsets = sorted(
        (partition, offset)
        for batch in batches
        for partition, offset in zip(batch.partitions.tolist(), batch.offsets.tolist(), strict=True)
    )
    assert read_offsets == [(0, 2), (0, 4), (1, 1), (1, 3), (2, 0), (2, 1), (2, 2)]
    places = sorted((batch.partition.partition, batch.first, batch.next) for batch in found)
    assert places == [(0, 0, 1), (0, 1, 2), (0, 3, 4), (0, 5, 6), (1, 0, 1), (1, 2, 3)]


def test_mapping_when_a_record_is_too_large_then_stops_before_it_and_others_go_on(stack: Stack) -> None:
    topic = stack.topic(1, **{"max.message.bytes": "9000000"})
    other = stack.topic(1, f"{topic}_other")
    make_table(stack.metastore, TableName("default", topic))
    make_table(stack.metastore, TableName("default", other))
    _send(stack, topic, b'{"id": 1}', _LARGE.encode(), b'{"id": 3}')
    _send(stack, other, b'{"id": 7}')
    limited = {"bootstrap.servers": stack.addresses.kafka} | _LIMIT
    one = {"commit": {"rows": 1}, "kafka": limited}
    config = stack.config(one, {"name": other[-40:], "topics": [other], "table": f"default.{other}"})
    daemon = stack.start(config)
    [failed] = eventually("the failure", lambda: daemon.events("failed"))
    assert failed["reason"] == "RecordsUnreadable"
    assert f"{topic}[0] offset 1" in failed["error"]
    _send(stack, other, b'{"id": 8}')
    eventually("the other mapping", lambda: daemon.supervisor.monitors[other[-40:]].snapshot().totals.rows == 2)
    daemon.terminate()
    daemon.wait()
    assert stack.ids(topic) == [1]
    stack.drain(stack.config({"kafka": limited | {"receive.message.max.bytes": 4_000_000}}))
    assert stack.ids(topic) == [1, 2, 3]
