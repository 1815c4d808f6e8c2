"""Batches of the reader are limited by what they keep in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from confluent_kafka import Message

from ingestd.errors import RecordError
from ingestd.kafka.ranges import OffsetRange
from ingestd.kafka.reader import Batch, ReadLimits, read
from ingestd.kafka.record import Record
from tests.support.raw_headers import produce_with_header
from tests.support.records import produce_all
from tests.support.stack import Stack

_HEADERS = (("trace", b"x" * 95), ("none", None))


def _batch(messages: Sequence[Message]) -> Batch:
    return Batch("clicks", [b"12"] * 200, np.zeros(200, np.int32), np.arange(200), 400, messages=messages)


def test_held_bytes_then_are_those_of_the_values_and_of_kept_keys_and_headers() -> None:
    messages = [Message(topic="clicks", key=b"key", value=b"12", headers=list(_HEADERS)) for _ in range(200)]
    assert _batch(()).held_bytes() == 400
    assert _batch([Message(topic="clicks", value=b"12")] * 200).held_bytes() == 400
    assert _batch(messages).held_bytes() == 400 + 200 * (3 + 100 + 4)


def test_read_when_headers_are_large_then_batches_with_messages_are_smaller(stack: Stack) -> None:
    topic, count = stack.topic(1), 30_000
    produce_all(stack, topic, [Record(None, b"12", _HEADERS)] * count)
    settings = {"bootstrap.servers": stack.addresses.kafka}
    limits = ReadLimits(batch_bytes=1_000_000)
    ranges = [OffsetRange(topic, 0, 0, count)]
    plain = [len(batch.values) for batch in read(settings, ranges, limits)]
    assert plain == [count]
    kept = [len(batch.values) for batch in read(settings, ranges, limits, keep_messages=True)]
    assert sum(kept) == count
    assert len(kept) > 1


def test_read_when_records_are_large_then_batches_are_not_larger_than_the_limit_and_a_record(stack: Stack) -> None:
    topic, count, size = stack.topic(1), 400, 50_000
    produce_all(stack, topic, [Record(None, b"1" * size)] * count)
    limits = ReadLimits()
    batches = list(read({"bootstrap.servers": stack.addresses.kafka}, [OffsetRange(topic, 0, 0, count)], limits))
    assert sum(len(batch.values) for batch in batches) == count
    # The size of the records is unknown before the first of them are read.
    assert all(batch.size <= limits.batch_bytes + size for batch in batches[1:])
    assert len(batches) >= 4


def test_headers_when_a_name_is_not_utf8_after_many_others_then_those_of_its_record_are_none(stack: Stack) -> None:
    """The interpreter specializes a call that is executed often, and then no longer detects the error of the client."""
    topic, count = stack.topic(1), 1_000
    produce_all(stack, topic, [Record(None, b"12", _HEADERS)] * count)
    produce_with_header(stack.addresses.kafka, topic, 0, b"12", b"\xff")
    ranges = [OffsetRange(topic, 0, 0, count + 1)]
    [batch] = read({"bootstrap.servers": stack.addresses.kafka}, ranges, keep_messages=True)
    assert batch.headers() == [_HEADERS] * count + [None]
    assert batch.headers()[-1] is None
    with pytest.raises(RecordError, match="the name of a header is not UTF-8"):
        batch.record(count)
