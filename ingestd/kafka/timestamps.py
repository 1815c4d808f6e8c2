"""Reads the timestamp of the first record at or after an offset, for many partitions at once.

Invariant: one consumer serves all partitions of a cluster. It is assigned partitions only during a read, and each of
them only until its first record has arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as _TopicPartition

from ingestd.clock import Deadline, now
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.kafka.record import timestamp_ms
from ingestd.kafka.settings import create_client, reader_settings, translate_error

_POLL_SECONDS = 0.1
# A fetch returns whole batches of records, at most about this many bytes per partition, of which one record is needed.
_SMALL_FETCHES = {
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1_024,
    "max.partition.fetch.bytes": 16_384,
    "fetch.min.bytes": 1,
}


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record of a partition at or after an offset.

    `timestamp` is that of the record in seconds since 1970. `exists` is False if the partition ends before a record;
    then `timestamp` is the time when this was seen, because a record that arrives later is younger.
    """

    partition: TopicPartition
    offset: int
    timestamp: float
    exists: bool = True


class RecordTimestamps:
    """A consumer that reads timestamps. Only one thread may use it. Raises ConfigError if librdkafka rejects a setting.

    `settings` are the librdkafka properties of a mapping. With the isolation level `read_uncommitted`, records of open
    and aborted Kafka transactions are read as well.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> None:
        ours = {**_SMALL_FETCHES, "isolation.level": isolation}
        self._consumer = create_client(Consumer, reader_settings(settings) | ours)
        self._where = f"broker {settings['bootstrap.servers']}"

    def read(self, offsets: Offsets, *, seconds: float, stop: threading.Event) -> list[FirstRecord]:
        """Return the first record of the isolation level at or after the offset of each partition.

        A partition is missing in the result if it was not read within `seconds` or before `stop` was set, if Kafka no
        longer has its offset, or if its record has no timestamp. Raises the errors of `translate_error`.
        """
        records: list[FirstRecord] = []
        left = dict(offsets)
        limit = Deadline.after(seconds)
        try:
            self._consumer.incremental_assign([_TopicPartition(*p, offset) for p, offset in offsets.items()])
            while left and not limit.passed and not stop.is_set():
                for message in self._consumer.consume(len(left), _POLL_SECONDS):
                    partition = TopicPartition(message.topic(), message.partition())
                    if partition in left:
                        records += _first_record(message, partition, left.pop(partition))
                        self._consumer.incremental_unassign([_TopicPartition(*partition)])
        except KafkaException as error:
            raise translate_error(error, self._where) from error
        finally:
            self._consumer.unassign()
        return records

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _first_record(message: Message, partition: TopicPartition, offset: int) -> list[FirstRecord]:
    """Return the first record at or after `offset`: a message that is one, or that reports the end of the partition.

    Empty if the message is another error, or a record without a timestamp.
    """
    error = message.error()
    if error is not None:
        is_end = error.code() == KafkaError._PARTITION_EOF
        return [FirstRecord(partition, offset, now(), exists=False)] if is_end else []
    at = timestamp(message)
    return [] if at is None else [FirstRecord(partition, offset, at)]


def timestamp(message: Message) -> float | None:
    """Return the timestamp of a record in seconds since 1970; None if it has none."""
    milliseconds = timestamp_ms(message)
    return None if milliseconds is None else milliseconds / 1000
