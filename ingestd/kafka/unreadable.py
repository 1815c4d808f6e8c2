"""Names records that exist and that a client cannot read: corrupt, in an unknown format, or too large for its limits.

Invariant: the error names topic, partition, offset and, where there is one, the property that allows reading them. None
of these records is ever skipped: only a change of the committed position does that.

librdkafka reports a corrupt batch of records as an event of its partition, and fetches it again and again. If an answer
is larger than `receive.message.max.bytes`, it closes the connection and names no partition. An answer contains one
batch at least, and more only up to `fetch.max.bytes`, so a single batch is the reason. `find_oversized` finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as _TopicPartition

from ingestd.clock import Deadline
from ingestd.errors import RecordsUnreadable
from ingestd.kafka.connections import ConnectionLog
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.kafka.settings import create_client, reader_settings

_POLL_SECONDS = 0.05
# How often the same batch must be reported: a bit may have changed on the way, and not on the disk of the broker.
_ATTEMPTS = 3
_PROBE_SECONDS = 5.0
# One batch of records per answer.
_ONE_BATCH = {"queued.min.messages": 1, "max.partition.fetch.bytes": 1, "fetch.min.bytes": 1}
_LIMIT = "receive.message.max.bytes"
_CAUSES = {
    KafkaError._BAD_MSG: "are corrupt",
    KafkaError._BAD_COMPRESSION: "cannot be decompressed",
    KafkaError._NOT_IMPLEMENTED: "have a compression codec or format that this client does not know",
    KafkaError.INVALID_MSG: "are corrupt",
    KafkaError.MSG_SIZE_TOO_LARGE: "are too large for this client",
}
_HINTS = {
    KafkaError._BAD_COMPRESSION: (
        f"raise {_LIMIT} of `kafka` if they are larger than that once they are decompressed; otherwise their producer "
        "has written them wrongly. "
    ),
    KafkaError._NOT_IMPLEMENTED: "find out which producer has written them, and with which `compression.type`. ",
    KafkaError.MSG_SIZE_TOO_LARGE: f"raise {_LIMIT} and fetch.max.bytes of `kafka`. ",
}
_DISK = "check the disk of the partition's leader; another replica may have them unchanged. "


def skipping(partition: TopicPartition) -> str:
    """Return how to continue behind records that cannot be read."""
    return f"To skip them, run `ingestd offsets set MAPPING {partition.topic}:{partition.partition}=NEXT_OFFSET`"


class Unreadable:
    """The batches that a client has reported as unreadable since it began to read some ranges."""

    def __init__(self) -> None:
        self._reported: Counter[tuple[TopicPartition, int]] = Counter()

    def report(self, message: Message, error: KafkaError) -> RecordsUnreadable | None:
        """Return the error of a batch that was reported several times; None until then. See `is_unreadable`."""
        partition, offset = TopicPartition(message.topic(), message.partition()), message.offset()
        self._reported[partition, offset] += 1
        if self._reported[partition, offset] < _ATTEMPTS:
            return None
        code = error.code()
        return RecordsUnreadable(
            f"the records from this offset {_CAUSES[code]} ({error.str()})",
            where=f"{partition} offset {offset}",
            hint=_HINTS.get(code, _DISK) + skipping(partition),
        )


def is_unreadable(error: KafkaError) -> bool:
    """Return whether an event reports a batch of records that exists and cannot be read."""
    return error.code() in _CAUSES


def find_oversized(settings: Mapping[str, Any], positions: Offsets) -> RecordsUnreadable | None:
    """Return the error of the partition whose next batch is larger than the client's limit, if there is one.

    `positions` are the next offsets of the partitions that get no answer. Asks for one partition after the other, each
    for a few seconds at most.
    """
    for partition, offset in positions.items():
        size = _oversized(settings, partition, offset)
        if size is not None:
            limit = settings.get(_LIMIT, "librdkafka's default of 100,000,000")
            return RecordsUnreadable(
                f"the next records are too large for this client: the broker's answer has {size:,} bytes, and {_LIMIT} "
                f"allows {limit}",
                where=f"{partition} offset {offset}",
                hint=f"raise {_LIMIT} of `kafka` to at least {size:,}. {skipping(partition)}",
            )
    return None


def _oversized(settings: Mapping[str, Any], partition: TopicPartition, offset: int) -> int | None:
    """Return the size of the answer with the next batch of a partition if the client rejects it."""
    log = ConnectionLog(settings, str(partition))
    ours = {**_ONE_BATCH, "error_cb": log.report}
    with closing(create_client(Consumer, reader_settings(settings) | ours)) as consumer:
        consumer.incremental_assign([_TopicPartition(*partition, offset)])
        limit = Deadline.after(_PROBE_SECONDS)
        while not limit.passed and log.oversized() is None:
            if any(message.topic() is not None for message in consumer.consume(1, _POLL_SECONDS)):
                return None  # a record, the end of the partition, or an error that the read itself reports
    return log.oversized()
