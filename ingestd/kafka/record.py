"""One Kafka record with all that its producer has set.

Invariant: key, value and headers are the bytes that Kafka has stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import methodcaller
from typing import Literal

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from ingestd.errors import RecordError
from ingestd.kafka.ranges import TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]

# Whether the producer has set the timestamp of a record, or the broker that has stored it.
TimestampType = Literal["CreateTime", "LogAppendTime"]
_TYPES: dict[TimestampType, int] = {
    "CreateTime": TIMESTAMP_CREATE_TIME,
    "LogAppendTime": TIMESTAMP_LOG_APPEND_TIME,
}
# What Kafka stores as the timestamp of a record that has none.
NO_TIMESTAMP = -1
# The client returns a result although it has set an exception. The interpreter detects this only in calls that it does
# not specialize; it specializes `message.headers()` after a few calls, and the exception then surfaces anywhere.
_read_headers = methodcaller("headers")
# Marks a message whose headers the client cannot read.
_UNREADABLE: list[tuple[str, bytes | None]] = []


@dataclass(frozen=True, slots=True)
class Record:
    """A record to write, or one that was read.

    `timestamp_ms` is in milliseconds since 1970. None means that a record has no timestamp (brokers before Kafka 0.10),
    or that the record is written with the current time. So is one with the timestamp 0. `timestamp_type` describes the
    timestamp of a record that was read.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    timestamp_type: TimestampType = "CreateTime"

    @classmethod
    def of(cls, message: Message) -> Record:
        """Return the record in a message of a consumer. Raises RecordError if the client cannot read its headers."""
        readable = headers(message)
        if readable is None:
            raise RecordError(
                "the name of a header is not UTF-8, so the record cannot be copied",
                where=f"{message.topic()}[{message.partition()}] offset {message.offset()}",
                hint="fix the producer; on_error: skip, or another position (`ingestd offsets`), skips the record",
            )
        kind: TimestampType = "LogAppendTime" if message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME else "CreateTime"
        return cls(message.key(), message.value(), readable, timestamp_ms(message), kind)

    @property
    def size(self) -> int:
        """The number of bytes of the key, the value and the headers."""
        parts = len(self.key or b"") + len(self.value or b"")
        return parts + sum(len(name) + len(value or b"") for name, value in self.headers)

    def message(self, partition: TopicPartition, offset: int) -> Message:
        """Return the message by which a consumer would return the record from this place in Kafka."""
        milliseconds = self.timestamp_ms
        at = (TIMESTAMP_NOT_AVAILABLE, 0) if milliseconds is None else (_TYPES[self.timestamp_type], milliseconds)
        return Message(
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            key=self.key,
            value=self.value,
            headers=list(self.headers),
            timestamp=at,
        )


def timestamp_ms(message: Message) -> int | None:
    """Return the timestamp of a message of a consumer in milliseconds since 1970; None if the record has none."""
    kind, milliseconds = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE or milliseconds == NO_TIMESTAMP else milliseconds


def headers(message: Message) -> Headers | None:
    """Return the headers of a message of a consumer, in the order of the record; None if the client cannot read them.

    The client cannot read a name that is not UTF-8. The protocol of Kafka does not allow such names, but brokers do.
    """
    try:
        given = _read_headers(message)
    except SystemError:
        # The client has kept headers without names, which would crash the process when they are used.
        message.set_headers(_UNREADABLE)
        return None
    return None if given is _UNREADABLE else tuple(given or ())
