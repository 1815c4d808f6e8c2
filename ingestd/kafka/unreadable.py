"""Names records that exist and that a client cannot read: corrupt, in an unknown format, or too large for its limits.

Invariant: `UnreadableBatch` names topic, partition, offsets and, where there is one, the property that allows reading
them. It contains no offset of a record that can be read.

librdkafka reports a corrupt batch of records as an event of its partition. If an answer is larger than
`receive.message.max.bytes`, it closes the connection and names no partition. An answer contains one batch at least, and
more only up to `fetch.max.bytes`, so a single batch is the reason. `find_oversized` finds it.

A broker answers with the same batch for every offset of it. Batches that are corrupt are told apart by their first
offsets. Batches that are too large may have equal sizes, so the last offset of one is read with a higher limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as _TopicPartition

from ingestd.clock import Deadline
from ingestd.errors import BrokerUnavailable, RecordsUnreadable
from ingestd.kafka.connections import ConnectionLog
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.kafka.settings import create_client, reader_settings

_POLL_SECONDS = 0.05
_PROBE_SECONDS = 5.0
# A batch has at most so many records (a 32-bit number).
_LONGEST = 2**31
# How long the last offset of a batch that is too large is looked up, and how often.
_END_SECONDS, _END_ATTEMPTS = 60.0, 3
# One batch of records per answer.
_ONE_BATCH = {"queued.min.messages": 1, "max.partition.fetch.bytes": 1, "fetch.min.bytes": 1}
# The broker holds each answer for half a second, so the client reports its position before the second one arrives.
_SLOWLY = {**_ONE_BATCH, "fetch.min.bytes": 100_000_000, "fetch.wait.max.ms": 500, "statistics.interval.ms": 50}
_LIMIT, _LIBRDKAFKA_LIMIT, _LARGEST_LIMIT = "receive.message.max.bytes", 100_000_000, 2**31 - 1
# Answers to the same request may differ by a few bytes, such as those of aborted transactions.
_MARGIN = 65_536
_CAUSES = {
    KafkaError._BAD_MSG: "are corrupt",
    KafkaError._BAD_COMPRESSION: "cannot be decompressed",
    KafkaError._NOT_IMPLEMENTED: "have a compression codec or format that this client does not know",
    KafkaError.INVALID_MSG: "are corrupt",
    KafkaError.MSG_SIZE_TOO_LARGE: "are too large for this client",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "have a compression codec that the broker does not send to this client",
}
_HINTS = {
    KafkaError._BAD_COMPRESSION: (
        f"raise {_LIMIT} of `kafka` if they are larger than that once they are decompressed; otherwise their producer "
        "has written them wrongly"
    ),
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "upgrade the broker, or change the `compression.type` of the topic",
    KafkaError._NOT_IMPLEMENTED: "find out which producer has written them, and with which `compression.type`",
    KafkaError.MSG_SIZE_TOO_LARGE: f"raise {_LIMIT} and fetch.max.bytes of `kafka`",
}
_DISK = "check the disk of the partition's leader; another replica may have them unchanged"


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """The offsets `first` to `next`, exclusive, of a batch that cannot be read, which ends at `end`, exclusive.

    Some of the offsets may have no record, or one of an aborted Kafka transaction: this cannot be known either. `what`
    continues the sentence "the records ...", and `hint` says how to read them.
    """

    partition: TopicPartition
    first: int
    next: int
    end: int
    what: str
    hint: str

    @property
    def reason(self) -> str:
        """What is wrong with which offsets."""
        return f"the records of the offsets {self.first} to {self.next - 1} {self.what}"

    def error(self) -> RecordsUnreadable:
        """Return the error that stops a reader before the batch. It says how to skip the whole batch."""
        partition = f"{self.partition.topic}:{self.partition.partition}"
        return RecordsUnreadable(
            f"the records of the offsets {self.first} to {self.end - 1} {self.what}",
            where=f"{self.partition} offset {self.first}",
            hint=f"{self.hint}. To skip them, set on_unreadable: reject, or run `ingestd offsets set MAPPING "
            f"{partition}={self.end}`",
        )


def stop_before(batch: UnreadableBatch) -> None:
    """Raise the error of a batch."""
    raise batch.error()


def is_unreadable(error: KafkaError) -> bool:
    """Return whether an event reports a batch of records that exists and cannot be read."""
    return error.code() in _CAUSES


def examine(settings: Mapping[str, Any], message: Message, error: KafkaError, position: int) -> UnreadableBatch:
    """Return the batch of an event of `is_unreadable`, for a reader that needs the offset `position` next.

    The reader must not continue with the same client: librdkafka may go on at any offset after such an event. Another
    client fetches the batch once more. Raises BrokerUnavailable if it can read it: a bit has changed on the way.
    """
    partition, code = TopicPartition(message.topic(), message.partition()), error.code()
    first = max(message.offset(), position)
    batch = _probe(settings, partition, first)
    if batch is None:
        raise BrokerUnavailable(
            f"records of a fetch {_CAUSES[code]} ({error.str()}), but not those of another one",
            where=f"{partition} offset {first}",
            hint="if this recurs, check the network and the memory of this machine and of the broker",
        )
    end = (_end_of_large if batch.size else _end)(settings, partition, first, batch)
    return UnreadableBatch(partition, first, end, end, f"{_CAUSES[code]} ({error.str()})", _HINTS.get(code, _DISK))


def find_oversized(settings: Mapping[str, Any], positions: Offsets) -> UnreadableBatch | None:
    """Return the next batch of a partition if it is larger than the client's limit.

    `positions` are the next offsets of the partitions that get no answer. Asks for one partition after the other, each
    for a few seconds at most. Raises BrokerUnavailable if the end of the batch cannot be determined.
    """
    for partition, offset in positions.items():
        batch = _probe(settings, partition, offset)
        if batch is not None and batch.size:
            limit = f"{int(str(settings.get(_LIMIT, _LIBRDKAFKA_LIMIT))):,}"
            what = f"are too large for this client: the answer has {batch.size:,} bytes, and {_LIMIT} allows {limit}"
            hint = f"raise {_LIMIT} of `kafka` to at least {batch.size:,}"
            end = _end_of_large(settings, partition, offset, batch)
            return UnreadableBatch(partition, offset, end, end, what, hint)
    return None


def _end(settings: Mapping[str, Any], partition: TopicPartition, first: int, batch: _Batch) -> int:
    """Return the offset after the `batch` at `first`, whose first offset identifies it."""
    inside, outside = first, first + 1
    while outside - first < _LONGEST and _probe(settings, partition, outside) == batch:
        inside, outside = outside, outside + 2 * (outside - first)
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if _probe(settings, partition, middle) == batch:
            inside = middle
        else:
            outside = middle
    return outside


def _end_of_large(settings: Mapping[str, Any], partition: TopicPartition, first: int, batch: _Batch) -> int:
    """Return the offset after the `batch` at `first`, which is too large.

    If the answer for the last offset has another size, more than this batch has arrived, and the lookup is repeated.
    """
    for _ in range(_END_ATTEMPTS):
        end = _next_position(settings, partition, first, batch.size)
        if end is not None and (end == first + 1 or _probe(settings, partition, end - 1) == batch):
            return end
    raise BrokerUnavailable(
        f"a batch of {batch.size:,} bytes is too large, and its last offset cannot be determined",
        where=f"{partition} offset {first}",
        hint=f"raise {_LIMIT} of `kafka` to at least {batch.size:,}",
    )


def _next_position(settings: Mapping[str, Any], partition: TopicPartition, first: int, size: int) -> int | None:
    """Return the position of a client after it has fetched the batch at `first`; None if no answer arrives in time."""
    positions: list[int] = []

    def note(statistics: str) -> None:
        topics = json.loads(statistics)["topics"]
        state = topics.get(partition.topic, {}).get("partitions", {}).get(str(partition.partition), {})
        if (position := state.get("next_offset", -1)) > first:
            positions.append(position)

    limit = min(_LARGEST_LIMIT, size + _MARGIN)
    ours = {**_SLOWLY, "stats_cb": note}
    with closing(create_client(Consumer, reader_settings({**settings, _LIMIT: limit}) | ours)) as consumer:
        consumer.incremental_assign([_TopicPartition(*partition, first)])
        deadline = Deadline.after(_END_SECONDS)
        while not positions and not deadline.passed:
            consumer.poll(_POLL_SECONDS)
    return positions[0] if positions else None


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that cannot be read: the size of an answer that is too large, otherwise 0, and its first offset."""

    size: int
    first: int


def _probe(settings: Mapping[str, Any], partition: TopicPartition, offset: int) -> _Batch | None:
    """Return the batch at or after an offset if it cannot be read; None if it can, and if there is no answer."""
    log = ConnectionLog(settings, str(partition))
    ours = {**_ONE_BATCH, "error_cb": log.report}
    with closing(create_client(Consumer, reader_settings(settings) | ours)) as consumer:
        consumer.incremental_assign([_TopicPartition(*partition, offset)])
        limit = Deadline.after(_PROBE_SECONDS)
        while not limit.passed:
            for message in consumer.consume(1, _POLL_SECONDS):
                if message.topic() is not None:
                    error = message.error()
                    return _Batch(0, message.offset()) if error is not None and is_unreadable(error) else None
            if (size := log.oversized()) is not None:
                return _Batch(size, -1)
    return None
