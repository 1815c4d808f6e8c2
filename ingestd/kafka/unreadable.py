"""Names records that exist and that a client cannot read: corrupt, in an unknown format, or too large for its limits.

Invariant: the error names topic, partition, offset and, where there is one, the property that allows reading them. None
of these records is ever skipped: only a change of the committed position does that.

librdkafka reports a corrupt batch of records as an event of its partition. If an answer is larger than
`receive.message.max.bytes`, it closes the connection and names no partition. An answer contains one batch at least, and
more only up to `fetch.max.bytes`, so a single batch is the reason. `find_oversized` finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as _TopicPartition

from ingestd.clock import Deadline
from ingestd.errors import BrokerUnavailable, IngestdError, RecordsUnreadable
from ingestd.kafka.connections import ConnectionLog
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.kafka.settings import create_client, reader_settings

_POLL_SECONDS = 0.05
_PROBE_SECONDS = 5.0
# A batch has at most so many records (a 32-bit number).
_LONGEST = 2**31
# One batch of records per answer.
_ONE_BATCH = {"queued.min.messages": 1, "max.partition.fetch.bytes": 1, "fetch.min.bytes": 1}
_LIMIT, _LIBRDKAFKA_LIMIT = "receive.message.max.bytes", 100_000_000
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


def is_unreadable(error: KafkaError) -> bool:
    """Return whether an event reports a batch of records that exists and cannot be read."""
    return error.code() in _CAUSES


def explain(settings: Mapping[str, Any], message: Message, error: KafkaError, position: int) -> IngestdError:
    """Return the error to raise for an event of `is_unreadable`, for a reader that needs the offset `position` next.

    The reader must not continue: librdkafka may go on at any offset after such an event. Another client fetches the
    batch once more. If it can read it, a bit has changed on the way, and the result is BrokerUnavailable.
    """
    partition, code = TopicPartition(message.topic(), message.partition()), error.code()
    first = max(message.offset(), position)
    found = _probe(settings, partition, first)
    if found is None:
        return BrokerUnavailable(
            f"records of a fetch {_CAUSES[code]} ({error.str()}), but not those of another one",
            where=f"{partition} offset {first}",
            hint="if this recurs, check the network and the memory of this machine and of the broker",
        )
    return _error(settings, partition, first, found, f"{_CAUSES[code]} ({error.str()})", _HINTS.get(code, _DISK))


def find_oversized(settings: Mapping[str, Any], positions: Offsets) -> RecordsUnreadable | None:
    """Return the error of the partition whose next batch is larger than the client's limit, if there is one.

    `positions` are the next offsets of the partitions that get no answer. Asks for one partition after the other, each
    for a few seconds at most.
    """
    for partition, offset in positions.items():
        found = _probe(settings, partition, offset)
        if found is not None and found.size:
            limit = f"{int(str(settings.get(_LIMIT, _LIBRDKAFKA_LIMIT))):,}"
            what = f"are too large for this client: the answer has {found.size:,} bytes, and {_LIMIT} allows {limit}"
            hint = f"raise {_LIMIT} of `kafka` to at least {found.size:,}"
            return _error(settings, partition, offset, found, what, hint)
    return None


def _error(
    settings: Mapping[str, Any], partition: TopicPartition, first: int, found: _Batch, what: str, hint: str
) -> RecordsUnreadable:
    """Return the error of a batch, of which the reader needs the offset `first`, and how to skip the batch."""
    end = _end(settings, partition, first, found)
    return RecordsUnreadable(
        f"the records of the offsets {first} to {end - 1} {what}",
        where=f"{partition} offset {first}",
        hint=f"{hint}. To skip them, run `ingestd offsets set MAPPING {partition.topic}:{partition.partition}={end}`",
    )


def _end(settings: Mapping[str, Any], partition: TopicPartition, first: int, found: _Batch) -> int:
    """Return the offset after the batch `found` at `first`.

    A client cannot see the end of a batch that it cannot read. It gets the same batch for every offset of it.
    """
    inside, outside = first, first + 1
    while outside - first < _LONGEST and _probe(settings, partition, outside) == found:
        inside, outside = outside, outside + 2 * (outside - first)
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if _probe(settings, partition, middle) == found:
            inside = middle
        else:
            outside = middle
    return outside


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
