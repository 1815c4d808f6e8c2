"""Reads explicit offset ranges in large blocks; runs in the processes that do the work.

Invariant: a block holds exactly records of the asked ranges, each once; the reader stops when every range has reached
its end, be it by a record at or beyond it or by Kafka's word that the partition ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as _TopicPartition
from numpy.typing import NDArray

from ingestd.clock import Deadline
from ingestd.errors import BrokerUnavailable
from ingestd.kafka.ranges import OffsetRange, TopicIdentity
from ingestd.kafka.settings import create_client, reader_settings, translate_error

_BATCH = 20_000
# `consume` waits for as many messages as it was asked for; a gap at a range's end must not cost more than this.
_POLL_SECONDS = 0.05
# Consumers outlive the task: dialling and fetching metadata anew would cost each small transaction 100 ms or more.
_consumers: dict[tuple[tuple[str, str], ...], _Pooled] = {}


@dataclass(frozen=True, slots=True)
class _Pooled:
    """A consumer that is kept, and the topics that it has read."""

    consumer: Consumer
    topics: dict[str, TopicIdentity]


@dataclass(frozen=True, slots=True)
class Block:
    """Records of one topic: `values[i]` came from `partitions[i]` at `offsets[i]`; `size` is the values' bytes."""

    topic: str
    values: list[bytes | None]
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    size: int

    def origin(self, row: int) -> str:
        """Topic, partition and offset of one record, for people."""
        return f"{self.topic}[{self.partitions[row]}] offset {self.offsets[row]}"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """When a block is full, and how long a broker may be silent before the read fails."""

    block_records: int = 60_000
    block_bytes: int = 16 * 1024 * 1024
    silence_seconds: float = 30.0


def read(
    settings: Mapping[str, Any],
    ranges: Sequence[OffsetRange],
    limits: ReadLimits | None = None,
    *,
    topics: Mapping[str, TopicIdentity] | None = None,
) -> Iterator[Block]:
    """Every record of the ranges, in blocks, offsets of one partition ascending.

    `topics` are the identities that the ranges were planned with. They spare a recreated topic the wait of a consumer
    that knows the former one; they do not prove which topic the records came from (`Planner.confirm` does).

    Raises RangeLost when Kafka no longer has a range, InvalidTopic (no right), LoginFailed, or BrokerUnavailable when
    nothing came for `limits.silence_seconds`.
    """
    limits = limits or ReadLimits()
    consumer = _consumer(settings, topics or {})
    try:
        for topic in sorted({r.topic for r in ranges}):
            yield from _TopicRead(consumer, topic, [r for r in ranges if r.topic == topic], limits).blocks()
    except BaseException:
        # Whatever is still assigned or queued must not leak into the next task.
        _forget(settings)
        raise


class _TopicRead:
    """The ranges of one topic: `_next[p]` is the end of partition p's range, 0 once reached, `_at[p]` where we are."""

    def __init__(self, consumer: Consumer, topic: str, ranges: Sequence[OffsetRange], limits: ReadLimits) -> None:
        self._consumer = consumer
        self._topic = topic
        self._ranges = ranges
        self._limits = limits
        self._open = {r.partition for r in ranges}
        self._next: NDArray[np.int64] = np.zeros(max(self._open) + 1, np.int64)
        self._at = self._next.copy()
        for r in ranges:
            self._at[r.partition], self._next[r.partition] = r.first, r.next

    def blocks(self) -> Iterator[Block]:
        starts = [_TopicPartition(self._topic, r.partition, r.first) for r in self._ranges]
        self._consumer.incremental_assign(starts)
        pieces: list[Block] = []
        silence = Deadline.after(self._limits.silence_seconds)
        while self._open:
            messages = self._consumer.consume(min(_BATCH, self._left()), _POLL_SECONDS)
            if messages:
                silence = Deadline.after(self._limits.silence_seconds)
                pieces.append(self._take(messages))
            elif silence.passed:
                raise BrokerUnavailable(
                    f"nothing came for {self._limits.silence_seconds:.0f} s", where=f"topic {self._topic}"
                )
            if self._full(pieces):
                yield _joined(self._topic, pieces)
                pieces = []
        if any(piece.values for piece in pieces):
            yield _joined(self._topic, pieces)

    def _left(self) -> int:
        """Offsets still to come, at least 1: asking for more would mean to wait for what nobody wants."""
        return max(1, int(np.maximum(self._next - self._at, 0).sum()))

    def _full(self, pieces: list[Block]) -> bool:
        records, size = sum(len(p.values) for p in pieces), sum(p.size for p in pieces)
        return records >= self._limits.block_records or size >= self._limits.block_bytes

    def _take(self, messages: list[Message]) -> Block:
        """The records of the batch that belong to a range; ranges that ended are given back to librdkafka."""
        ended: set[int] = set()
        errors = list(map(Message.error, messages))
        if any(errors):
            ended |= self._events(messages, errors)
            messages = [m for m, error in zip(messages, errors, strict=True) if error is None]
        count = len(messages)
        partitions = np.fromiter(map(Message.partition, messages), np.int32, count)
        offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
        ends = self._next[partitions]
        # Offsets of one partition ascend within a batch, so the last assignment of each is the highest.
        self._at[partitions] = offsets + 1
        ended |= set(np.unique(partitions[offsets >= ends - 1]).tolist())
        wanted = offsets < ends
        if not wanted.all():
            messages = list(compress(messages, wanted.tolist()))
            partitions, offsets = partitions[wanted], offsets[wanted]
        self._close(ended & self._open)
        values: list[bytes | None] = list(map(Message.value, messages))
        size = sum(map(len, filter(None, values)))
        return Block(self._topic, values, partitions, offsets, size)

    def _events(self, messages: list[Message], errors: list[KafkaError | None]) -> set[int]:
        """Partitions whose range ended because the partition does; any other event is an error and raised."""
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
        """Stop fetching what is not ours: keeping ended partitions assigned made reading 2.5 times slower."""
        if not ended:
            return
        self._consumer.incremental_unassign([_TopicPartition(self._topic, p) for p in ended])
        self._open -= ended
        for partition in ended:
            self._next[partition] = 0


def _joined(topic: str, pieces: list[Block]) -> Block:
    return Block(
        topic,
        [value for piece in pieces for value in piece.values],
        np.concatenate([p.partitions for p in pieces]),
        np.concatenate([p.offsets for p in pieces]),
        sum(p.size for p in pieces),
    )


def _key(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, str(v)) for k, v in settings.items()))


def _consumer(settings: Mapping[str, Any], topics: Mapping[str, TopicIdentity]) -> Consumer:
    key = _key(settings)
    known = _consumers[key].topics if key in _consumers else {}
    if any(identity.differs(known.get(name, identity)) for name, identity in topics.items()):
        # A recreated topic's leader epochs start from 0: librdkafka takes them for stale and fetches nothing.
        _forget(settings)
    if key not in _consumers:
        _consumers[key] = _Pooled(create_client(Consumer, reader_settings(settings)), {})
    _consumers[key].topics.update(topics)
    return _consumers[key].consumer


def _forget(settings: Mapping[str, Any]) -> None:
    pooled = _consumers.pop(_key(settings), None)
    if pooled is not None:
        pooled.consumer.close()
