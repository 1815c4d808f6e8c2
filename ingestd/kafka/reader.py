"""Reads offset ranges in large batches, in Spark's Python workers.

Invariant: the batches contain every record of the ranges exactly once, and no other record. A range has been read when
a record at or beyond its last offset arrives, or when the partition ends at or beyond the end of the range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as _TopicPartition
from numpy.typing import NDArray

from ingestd.clock import Deadline
from ingestd.errors import BrokerUnavailable
from ingestd.kafka.ranges import OffsetRange, TopicIdentity, TopicPartition
from ingestd.kafka.settings import ClientKey, client_key, create_client, reader_settings, time_limit, translate_error
from ingestd.kafka.timestamps import FirstRecord, timestamp

_POLL_RECORDS = 20_000
# `consume` waits until it has the requested number of messages; this limits the wait at a gap at the end of a range.
_POLL_SECONDS = 0.05
# Consumers outlive their task: connecting and fetching metadata again would cost each small transaction 100 ms or more.
_consumers: dict[ClientKey, _Pooled] = {}


@dataclass(frozen=True, slots=True)
class _Pooled:
    """A consumer that later tasks reuse, and the identities of the topics that it has read."""

    consumer: Consumer
    topics: dict[str, TopicIdentity]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one topic. `values[i]` is from `partitions[i]` at `offsets[i]`.

    `size` is the number of bytes of all values. `firsts` contains those that are the first records of their ranges.
    """

    topic: str
    values: list[bytes | None]
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    size: int
    firsts: tuple[FirstRecord, ...] = ()

    def origin(self, row: int) -> str:
        """Return the topic, partition and offset of one record as text for messages."""
        return f"{self.topic}[{self.partitions[row]}] offset {self.offsets[row]}"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The size of a batch in records and bytes, and how long the read may wait for a record before it fails."""

    batch_records: int = 60_000
    batch_bytes: int = 16 * 1024 * 1024
    silence_seconds: float = 30.0


def read(
    settings: Mapping[str, Any],
    ranges: Sequence[OffsetRange],
    limits: ReadLimits | None = None,
    *,
    topics: Mapping[str, TopicIdentity] | None = None,
) -> Iterator[Batch]:
    """Read every record of the ranges, in batches of one topic; the offsets of each partition ascend.

    `topics` contains the topic identities for which the ranges were planned. A pooled consumer that has read an earlier
    topic of the same name would fetch nothing, so it is replaced. `topics` does not prove which topic the records came
    from; `Planner.confirm` does.

    Raises RangeLost when Kafka no longer has a range, InvalidTopic without permission to read, LoginFailed when the
    login is rejected, and BrokerUnavailable when no record arrives for `limits.silence_seconds`, or for
    `socket.timeout.ms` if that is shorter.
    """
    limits = limits or ReadLimits()
    limits = replace(limits, silence_seconds=time_limit(settings, limits.silence_seconds))
    consumer = _consumer(settings, topics or {})
    try:
        for topic in sorted({r.topic for r in ranges}):
            yield from _TopicRead(consumer, topic, [r for r in ranges if r.topic == topic], limits).batches()
    except BaseException:
        # Partitions that are still assigned and records that are queued must not reach the next task.
        _close_consumer(settings)
        raise


class _TopicRead:
    """Reads the ranges of one topic.

    For partition p, `_next[p]` is the end of its range, or 0 once it has been read; `_position[p]` is the next offset.
    """

    def __init__(self, consumer: Consumer, topic: str, ranges: Sequence[OffsetRange], limits: ReadLimits) -> None:
        self._consumer = consumer
        self._topic = topic
        self._ranges = ranges
        self._limits = limits
        self._open = {r.partition for r in ranges}
        # The first offsets of the ranges of which no record has arrived.
        self._unseen = {r.partition: r.first for r in ranges}
        self._next: NDArray[np.int64] = np.zeros(max(self._open) + 1, np.int64)
        self._position = self._next.copy()
        for r in ranges:
            self._position[r.partition], self._next[r.partition] = r.first, r.next

    def batches(self) -> Iterator[Batch]:
        starts = [_TopicPartition(self._topic, r.partition, r.first) for r in self._ranges]
        self._consumer.incremental_assign(starts)
        parts: list[Batch] = []
        silence = Deadline.after(self._limits.silence_seconds)
        while self._open:
            messages = self._consumer.consume(min(_POLL_RECORDS, self._remaining()), _POLL_SECONDS)
            if messages:
                silence = Deadline.after(self._limits.silence_seconds)
                parts.append(self._select(messages))
            elif silence.passed:
                raise BrokerUnavailable(
                    f"no record arrived for {self._limits.silence_seconds:.0f} s", where=f"topic {self._topic}"
                )
            if self._is_full(parts):
                yield _concatenated(self._topic, parts)
                parts = []
        if any(part.values for part in parts):
            yield _concatenated(self._topic, parts)

    def _remaining(self) -> int:
        """Return the number of offsets left to read, at least 1. `consume` would wait if it were asked for more."""
        return max(1, int(np.maximum(self._next - self._position, 0).sum()))

    def _is_full(self, parts: list[Batch]) -> bool:
        records, size = sum(len(p.values) for p in parts), sum(p.size for p in parts)
        return records >= self._limits.batch_records or size >= self._limits.batch_bytes

    def _select(self, messages: list[Message]) -> Batch:
        """Return the records that belong to a range, and unassign partitions whose range has been read."""
        ended: set[int] = set()
        errors = list(map(Message.error, messages))
        if any(errors):
            ended |= self._events(messages, errors)
            messages = [m for m, error in zip(messages, errors, strict=True) if error is None]
        count = len(messages)
        partitions = np.fromiter(map(Message.partition, messages), np.int32, count)
        offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
        ends = self._next[partitions]
        # Offsets of a partition ascend, so with repeated indices numpy keeps the highest.
        self._position[partitions] = offsets + 1
        ended |= set(np.unique(partitions[offsets >= ends - 1]).tolist())
        wanted = offsets < ends
        if not wanted.all():
            messages = list(compress(messages, wanted.tolist()))
            partitions, offsets = partitions[wanted], offsets[wanted]
        self._close(ended & self._open)
        values: list[bytes | None] = list(map(Message.value, messages))
        size = sum(map(len, filter(None, values)))
        return Batch(self._topic, values, partitions, offsets, size, tuple(self._first_records(messages, partitions)))

    def _first_records(self, messages: list[Message], partitions: NDArray[np.int32]) -> Iterator[FirstRecord]:
        """Yield the first records of ranges of which no record had arrived yet."""
        if not self._unseen:
            return
        found, rows = np.unique(partitions, return_index=True)
        for partition, row in zip(found.tolist(), rows.tolist(), strict=True):
            first = self._unseen.pop(partition, None)
            at = timestamp(messages[row])
            if first is not None and at is not None:
                yield FirstRecord(TopicPartition(self._topic, partition), first, at)

    def _events(self, messages: list[Message], errors: list[KafkaError | None]) -> set[int]:
        """Return the partitions that are reported to end at or beyond the end of their range; raise any other error."""
        ended = set()
        for message, error in zip(messages, errors, strict=True):
            if error is None:
                continue
            if error.code() != KafkaError._PARTITION_EOF:
                raise translate_error(error, f"{self._topic}[{message.partition()}] offset {message.offset()}")
            if message.offset() >= self._next[message.partition()]:
                ended.add(message.partition())
        return ended

    def _close(self, ended: set[int]) -> None:
        """Unassign partitions whose range has been read; keeping them assigned makes reading 2.5 times slower."""
        if not ended:
            return
        self._consumer.incremental_unassign([_TopicPartition(self._topic, p) for p in ended])
        self._open -= ended
        for partition in ended:
            self._next[partition] = 0


def _concatenated(topic: str, parts: list[Batch]) -> Batch:
    return Batch(
        topic,
        [value for part in parts for value in part.values],
        np.concatenate([p.partitions for p in parts]),
        np.concatenate([p.offsets for p in parts]),
        sum(p.size for p in parts),
        tuple(first for p in parts for first in p.firsts),
    )


def _consumer(settings: Mapping[str, Any], topics: Mapping[str, TopicIdentity]) -> Consumer:
    key = client_key(settings)
    known = _consumers[key].topics if key in _consumers else {}
    if any(identity.differs(known.get(name, identity)) for name, identity in topics.items()):
        # The leader epochs of a recreated topic start at 0; librdkafka regards them as stale and fetches nothing.
        _close_consumer(settings)
    if key not in _consumers:
        _consumers[key] = _Pooled(create_client(Consumer, reader_settings(settings)), {})
    _consumers[key].topics.update(topics)
    return _consumers[key].consumer


def _close_consumer(settings: Mapping[str, Any]) -> None:
    pooled = _consumers.pop(client_key(settings), None)
    if pooled is not None:
        pooled.consumer.close()
