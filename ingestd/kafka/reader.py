"""Reads offset ranges in large batches, in Spark's Python workers.

Invariant: the batches contain every record of the ranges exactly once, and no other record; records that the client
cannot read are named instead. A range has been read when a record at or beyond its last offset arrives, or when the
partition ends at or beyond the end of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress
from typing import Any

import numpy as np
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as _TopicPartition
from numpy.typing import NDArray

from ingestd.clock import monotonic
from ingestd.errors import BrokerUnavailable, IngestdError, LoginFailed, RangeLost
from ingestd.kafka.connections import ConnectionLog
from ingestd.kafka.ranges import OffsetRange, TopicIdentity, TopicPartition
from ingestd.kafka.record import NO_TIMESTAMP, Headers, Record, headers
from ingestd.kafka.settings import (
    ClientKey,
    client_key,
    create_client,
    reader_settings,
    time_limit,
    translate_error,
)
from ingestd.kafka.throttling import Silence, Throttling
from ingestd.kafka.timestamps import FirstRecord, timestamp
from ingestd.kafka.unreadable import UnreadableBatch, examine, find_oversized, is_unreadable, stop_before

_POLL_RECORDS = 20_000
# Records to ask for while their size is unknown.
_FIRST_RECORDS = 100
# One in so many kept messages is examined for the size of keys and headers. Parsing all headers would take too long.
_SAMPLED = 64
# `consume` waits until it has the requested number of messages; this limits the wait at a gap at the end of a range.
_POLL_SECONDS = 0.05
# Consumers outlive their task: connecting and fetching metadata again would cost each small transaction 100 ms or more.
_consumers: dict[ClientKey, _Pooled] = {}


@dataclass(frozen=True, slots=True)
class _Pooled:
    """A consumer with `settings` that later tasks reuse, the topics that it has read, and what brokers reported."""

    settings: Mapping[str, Any]
    consumer: Consumer
    topics: dict[str, TopicIdentity]
    log: ConnectionLog
    throttling: Throttling


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one topic. `values[i]` is from `partitions[i]` at `offsets[i]`, and of `messages[i]` if they are kept.

    `size` is the number of bytes of all values. `firsts` contains those that are the first records of their ranges.
    `throttled_seconds` is the time that the read has waited for them because brokers delayed their answers.
    """

    topic: str
    values: list[bytes | None]
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    size: int
    firsts: tuple[FirstRecord, ...] = ()
    throttled_seconds: float = 0.0
    messages: Sequence[Message] = field(default=(), repr=False)

    def part(self, part: slice) -> Batch:
        """Return some of the records, without `firsts` and `throttled_seconds`."""
        values = self.values[part]
        return Batch(
            self.topic,
            values,
            self.partitions[part],
            self.offsets[part],
            sum(map(len, filter(None, values))),
            messages=self.messages[part],
        )

    def keys(self) -> list[bytes | None]:
        """Return the keys of all records, if `messages` are kept."""
        return list(map(Message.key, self.messages))

    def headers(self) -> list[Headers | None]:
        """Return the headers of all records, if `messages` are kept; None if the client cannot read them."""
        return list(map(headers, self.messages))

    def timestamps(self) -> NDArray[np.int64]:
        """Return the timestamps of all records, or NO_TIMESTAMP, in milliseconds since 1970, if `messages` are kept."""
        pairs = np.fromiter(
            chain.from_iterable(map(Message.timestamp, self.messages)), np.int64, 2 * len(self.messages)
        ).reshape(-1, 2)
        return np.where(pairs[:, 0] == TIMESTAMP_NOT_AVAILABLE, NO_TIMESTAMP, pairs[:, 1])

    def held_bytes(self) -> int:
        """Return the bytes of all values and, if `messages` are kept, an estimate of those of the keys and headers."""
        sample = self.messages[::_SAMPLED]
        if not sample:
            return self.size
        return self.size + sum(map(_more_bytes, sample)) * len(self.messages) // len(sample)

    def record(self, row: int) -> Record:
        """Return one record with its key, its headers and its timestamp, if `messages` are kept."""
        return Record.of(self.messages[row])

    def origin(self, row: int) -> str:
        """Return the topic, partition and offset of one record as text for messages."""
        return f"{self.topic}[{self.partitions[row]}] offset {self.offsets[row]}"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The size of a batch in records and bytes, and how long the read may wait for a record before it fails.

    The bytes are those of `Batch.held_bytes`. The values of a larger batch have left the processor's cache when they
    are decoded: with 16 MiB, texts of 10 KB were stored at three quarters of the rate. Delays that a broker announces
    because of a client quota are not part of `silence_seconds`.
    """

    batch_records: int = 60_000
    batch_bytes: int = 4 * 1024 * 1024
    silence_seconds: float = 30.0


def read(
    settings: Mapping[str, Any],
    ranges: Sequence[OffsetRange],
    limits: ReadLimits | None = None,
    *,
    topics: Mapping[str, TopicIdentity] | None = None,
    keep_messages: bool = False,
    on_unreadable: Callable[[UnreadableBatch], None] = stop_before,
) -> Iterator[Batch]:
    """Read every record of the ranges, in batches of one topic; the offsets of each partition ascend.

    `topics` contains the topic identities for which the ranges were planned. A pooled consumer that has read an earlier
    topic of the same name would fetch nothing, so it is replaced. `topics` does not prove which topic the records came
    from; `Planner.confirm` does. Only with `keep_messages` do the batches have `messages`, because keeping them takes
    about a fifth more CPU time.

    `on_unreadable` is called with each batch of records that exist in the ranges and that this client cannot read. If
    it returns, the records behind them are read.

    Raises RangeLost when Kafka no longer has a range, or has other records there than its leader had when the range was
    planned; what `on_unreadable` raises, which is RecordsUnreadable by default; TopicDenied without permission to read;
    and BrokerUnavailable when no record arrives for `limits.silence_seconds`, or for `socket.timeout.ms` if that is
    shorter. It names a login or a certificate that is the reason.
    """
    limits = limits or ReadLimits()
    limits = replace(limits, silence_seconds=time_limit(settings, limits.silence_seconds))
    try:
        for topic in sorted({r.topic for r in ranges}):
            of_topic = [r for r in ranges if r.topic == topic]
            topic_read = _TopicRead(
                partial(_consumer, settings, topics or {}), topic, of_topic, limits, keep_messages=keep_messages
            )
            yield from topic_read.batches(on_unreadable)
    except BaseException:
        # Partitions that are still assigned and records that are queued must not reach the next task.
        _close_consumer(settings)
        raise


class _TopicRead:
    """Reads the ranges of one topic with the client that `connect` returns: a new one after unreadable records.

    For partition p, `_next[p]` is the end of its range, or 0 once it has been read; `_position[p]` is the next offset.
    """

    def __init__(
        self,
        connect: Callable[[], _Pooled],
        topic: str,
        ranges: Sequence[OffsetRange],
        limits: ReadLimits,
        *,
        keep_messages: bool,
    ) -> None:
        self._connect = connect
        self._topic = topic
        self._limits = limits
        self._keep_messages = keep_messages
        # The first event of each partition that reports records that the client cannot read.
        self._bad: dict[int, tuple[Message, KafkaError]] = {}
        self._open = {r.partition for r in ranges}
        # The first offsets of the ranges of which no record has arrived.
        self._unseen = {r.partition: r.first for r in ranges}
        self._next: NDArray[np.int64] = np.zeros(max(self._open) + 1, np.int64)
        self._position = self._next.copy()
        self._record_bytes = limits.batch_bytes / _FIRST_RECORDS  # the mean of the last records
        self._epochs = {r.partition: r.epoch for r in ranges if r.epoch is not None}
        for r in ranges:
            self._position[r.partition], self._next[r.partition] = r.first, r.next
        self._start()

    def _start(self) -> None:
        """Assign what is left of the ranges to the client."""
        pooled = self._connect()
        self._settings, self._consumer, self._log = pooled.settings, pooled.consumer, pooled.log
        self._silence = Silence(pooled.throttling, self._limits.silence_seconds)
        # Since when an answer that is too large has not been examined.
        self._examined_at = monotonic()
        starts = [_TopicPartition(self._topic, p, int(self._position[p])) for p in sorted(self._open)]
        self._consumer.incremental_assign(starts)

    def batches(self, on_unreadable: Callable[[UnreadableBatch], None]) -> Iterator[Batch]:
        parts: list[Batch] = []
        records = held = 0
        self._silence.end()
        while self._open:
            messages = self._consumer.consume(self._wanted(held), _POLL_SECONDS)
            if messages:
                self._silence.end()
                part = self._select(messages)
                parts.append(part)
                part_bytes = part.held_bytes()
                records, held = records + len(part.values), held + part_bytes
                self._record_bytes = part_bytes / max(1, len(part.values))
            elif (oversized := self._find_oversized()) is not None:
                self._skip([oversized], on_unreadable)
            elif self._silence.is_too_long():
                raise self._log.retriable_refusal() or BrokerUnavailable(
                    f"no record arrived for {self._silence.seconds:.0f} s", where=f"topic {self._topic}"
                )
            if self._bad:
                bad = [
                    examine(self._settings, message, error, int(self._position[partition]))
                    for partition, (message, error) in self._bad.items()
                ]
                self._skip(bad, on_unreadable)
            if records >= self._limits.batch_records or held >= self._limits.batch_bytes:
                yield self._joined(parts)
                self._silence.end()
                parts, records, held = [], 0, 0
        if any(part.values for part in parts):
            yield self._joined(parts)

    def _find_oversized(self) -> UnreadableBatch | None:
        """Return the next records of a partition that are too large, if the client has rejected an answer."""
        if self._log.oversized(self._examined_at) is None:
            return None
        positions = {TopicPartition(self._topic, p): int(self._position[p]) for p in sorted(self._open)}
        batch = find_oversized(self._settings, positions)
        self._examined_at = monotonic()
        return batch

    def _skip(self, bad: Iterable[UnreadableBatch], on_unreadable: Callable[[UnreadableBatch], None]) -> None:
        """Report what belongs to the ranges, and continue behind it with another client.

        What this client has fetched of records behind such a batch is not used, as it may lack some.
        """
        for batch in bad:
            partition = batch.partition.partition
            end = int(self._next[partition])
            on_unreadable(replace(batch, next=min(batch.end, end)))
            self._position[partition] = batch.end
            if batch.end >= end:
                self._close({partition})
        self._bad.clear()
        throttled = self._silence.throttled_seconds
        _close_consumer(self._settings)
        if self._open:
            self._start()
        self._silence.throttled_seconds = throttled

    def _joined(self, parts: list[Batch]) -> Batch:
        throttled, self._silence.throttled_seconds = self._silence.throttled_seconds, 0.0
        return replace(_concatenated(self._topic, parts), throttled_seconds=throttled)

    def _wanted(self, held: int) -> int:
        """Return for how many records to ask, at least 1, if a batch has `held` bytes.

        These are as many as probably fill the batch. `consume` would wait if it were asked for more than are left.
        """
        left = int(np.maximum(self._next - self._position, 0).sum())
        fitting = int((self._limits.batch_bytes - held) / max(1.0, self._record_bytes)) + 1
        return max(1, min(_POLL_RECORDS, left, fitting))

    def _select(self, messages: list[Message]) -> Batch:
        """Return the records that belong to a range, and unassign partitions whose range has been read."""
        ended: set[int] = set()
        errors = list(map(Message.error, messages))
        if any(errors):
            messages, ended = self._without_events(messages, errors)
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
        self._check_epochs(messages, partitions)
        values: list[bytes | None] = list(map(Message.value, messages))
        size = sum(map(len, filter(None, values)))
        firsts = tuple(self._first_records(messages, partitions))
        return Batch(
            self._topic, values, partitions, offsets, size, firsts, messages=messages if self._keep_messages else ()
        )

    def _check_epochs(self, messages: list[Message], partitions: NDArray[np.int32]) -> None:
        """Raise RangeLost if records were written after the election of a leader that lacks those of the planned range.

        Epochs ascend with the offsets, so the last record of each partition is enough.
        """
        last = np.zeros(self._next.size, np.int64)
        last[partitions] = np.arange(partitions.size)
        for partition in np.flatnonzero(np.bincount(partitions)).tolist():
            message = messages[last[partition]]
            planned, epoch = self._epochs.get(partition), message.leader_epoch()
            if planned is not None and epoch is not None and epoch > planned:
                raise RangeLost(
                    f"the records of leader epoch {planned} were replaced by those of epoch {epoch}: the partition was "
                    "truncated by an unclean leader election",
                    where=f"{self._topic}[{partition}] offset {message.offset()}",
                )

    def _first_records(self, messages: list[Message], partitions: NDArray[np.int32]) -> Iterator[FirstRecord]:
        """Yield the first records of ranges of which no record had arrived yet."""
        if not self._unseen:
            return
        distinct, rows = np.unique(partitions, return_index=True)
        for partition, row in zip(distinct.tolist(), rows.tolist(), strict=True):
            first = self._unseen.pop(partition, None)
            at = timestamp(messages[row])
            if first is not None and at is not None:
                yield FirstRecord(TopicPartition(self._topic, partition), first, at)

    def _without_events(
        self, messages: list[Message], errors: list[KafkaError | None]
    ) -> tuple[list[Message], set[int]]:
        """Return the records, without those behind records that cannot be read, and the partitions that have ended.

        These are reported to end, or to continue, at or beyond the end of their range. Raises any other error.

        librdkafka looks up the coordinator of the consumer group, although the reader never uses its group. An error of
        that, such as a missing permission, names no topic and has no consequences.
        """
        records, ended = [], set()
        for message, error in zip(messages, errors, strict=True):
            partition = message.partition()
            if message.topic() is None or partition in self._bad:
                continue
            if error is None:
                records.append(message)
                continue
            is_bad = is_unreadable(error)
            if not is_bad and error.code() != KafkaError._PARTITION_EOF:
                raise self._translated(message, error)
            if message.offset() >= self._next[partition]:
                ended.add(partition)
            elif is_bad:
                self._bad[partition] = message, error
        return records, ended

    def _translated(self, message: Message, error: KafkaError) -> IngestdError:
        """Translate an error. A rejected login is retried: the client of the driver decides when to give up."""
        translated = translate_error(error, f"{self._topic}[{message.partition()}] offset {message.offset()}", "READ")
        if isinstance(translated, LoginFailed):
            return BrokerUnavailable(translated.what, where=f"topic {self._topic}", hint=translated.hint)
        return translated

    def _close(self, ended: set[int]) -> None:
        """Unassign partitions whose range has been read; keeping them assigned makes reading 2.5 times slower."""
        if not ended:
            return
        self._consumer.incremental_unassign([_TopicPartition(self._topic, p) for p in ended])
        self._open -= ended
        for partition in ended:
            self._next[partition] = 0


def _more_bytes(message: Message) -> int:
    """Return the size of the key and the headers of a message."""
    return len(message.key() or b"") + sum(len(name) + len(value or b"") for name, value in headers(message) or ())


def _concatenated(topic: str, parts: list[Batch]) -> Batch:
    return Batch(
        topic,
        [value for part in parts for value in part.values],
        np.concatenate([p.partitions for p in parts]),
        np.concatenate([p.offsets for p in parts]),
        sum(p.size for p in parts),
        tuple(first for p in parts for first in p.firsts),
        messages=[message for part in parts for message in part.messages],
    )


def _consumer(settings: Mapping[str, Any], topics: Mapping[str, TopicIdentity]) -> _Pooled:
    key = client_key(settings)
    known = _consumers[key].topics if key in _consumers else {}
    if any(identity.differs(known.get(name, identity)) for name, identity in topics.items()):
        # The leader epochs of a recreated topic start at 0; librdkafka regards them as stale and fetches nothing.
        _close_consumer(settings)
    if key not in _consumers:
        log = ConnectionLog(settings, f"broker {settings['bootstrap.servers']}")
        throttling = Throttling()
        callbacks = {"error_cb": log.report, "throttle_cb": throttling.report}
        consumer = create_client(Consumer, reader_settings(settings) | callbacks)
        _consumers[key] = _Pooled(settings, consumer, {}, log, throttling)
    _consumers[key].topics.update(topics)
    return _consumers[key]


def _close_consumer(settings: Mapping[str, Any]) -> None:
    pooled = _consumers.pop(client_key(settings), None)
    if pooled is not None:
        pooled.consumer.close()
