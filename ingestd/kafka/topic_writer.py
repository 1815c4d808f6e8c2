"""Writes records to one topic, in Spark's Python workers.

Invariant: when `flush` returns, all replicas in sync have every record that was sent, except those that it returns
because the topic refuses their size. The topic is never created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ingestd.errors import BrokerUnavailable, IngestdError, InvalidTopic, TopicDenied
from ingestd.kafka.connections import ConnectionLog
from ingestd.kafka.record import Record
from ingestd.kafka.settings import QUIET, create_client, is_missing, shared_settings, time_limit, translate_error

# How long the broker may take to acknowledge a record, and how much longer the client may take to report it.
_DELIVERY_SECONDS, _REPORT_SECONDS = 60.0, 10.0
_POLL_SECONDS = 0.05
# The most that librdkafka allows, so that only the broker limits the size of a record.
_LARGEST = 1_000_000_000
_WRITER = {
    "enable.idempotence": True,
    "acks": "all",
    "allow.auto.create.topics": False,
    "message.max.bytes": _LARGEST,
    "linger.ms": 5,
    # The limits of a topic apply to compressed batches, and producers have compressed the records of most topics.
    "compression.type": "lz4",
}
# The broker refuses a whole batch because of its size, so each record must have a batch of its own.
_ONE_BY_ONE = {"batch.num.messages": 1}
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant WRITE and DESCRIBE on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant IDEMPOTENT_WRITE on the cluster (brokers before Kafka 2.8)",
}
# The broker's limits of the size of a batch: `max.message.bytes` and `segment.bytes` of the topic.
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
# Errors that a repetition does not remove, and the property of the topic that is usually the reason.
_REFUSED = {
    KafkaError.INVALID_TIMESTAMP: "message.timestamp.type and message.timestamp.after.max.ms",
    KafkaError.INVALID_RECORD: "cleanup.policy",
}


class TopicWriter:
    """Writes to `topic` with an idempotent producer. `settings` are librdkafka properties of any kind of client.

    Records are written while the program continues. `held_bytes` is the size of those that wait for the answer of the
    broker, and of those that `flush` will return.

    Only one thread may use it. After an error it must not be used again. Raises ConfigError.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        common = shared_settings(settings)
        self._topic = topic
        self._seconds = time_limit(settings, _DELIVERY_SECONDS)
        self._log = ConnectionLog(common, f"broker {settings['bootstrap.servers']}")
        ours = {"message.timeout.ms": int(self._seconds * 1000), "error_cb": self._log.report}
        self._properties = common | _WRITER | QUIET | ours
        self._producer = create_client(Producer, self._properties)
        self._is_one_by_one = False
        self._too_large: list[Record] = []
        self._error: KafkaError | None = None
        self.held_bytes = 0

    def send(self, records: Iterable[Record]) -> None:
        """Begin to write the records. Raises the errors of `flush` if they are known already."""
        for record in records:
            self.held_bytes += record.size
            self._produce(record)
        self._producer.poll(0)  # learn which records are written
        self._raise_error()

    def flush(self) -> list[Record]:
        """Wait until the broker has acknowledged all records.

        Returns those that were not written because the topic accepts no record of their size, in any order. Raises
        BrokerUnavailable; or InvalidTopic if the broker refuses a record for another reason, or denies the permission.
        Some of the records may then be in the topic.
        """
        self._wait()
        if self._too_large and not self._is_one_by_one:
            self._producer.close()
            self._producer, self._is_one_by_one = create_client(Producer, self._properties | _ONE_BY_ONE), True
            together, self._too_large, self.held_bytes = self._too_large, [], 0
            self.send(together)
            self._wait()
        refused, self._too_large, self.held_bytes = self._too_large, [], 0
        return refused

    def _wait(self) -> None:
        left = self._producer.flush(self._seconds + _REPORT_SECONDS)
        self._raise_error()
        if left:
            raise self._log.retriable_refusal() or BrokerUnavailable(
                f"{left:,} records were not acknowledged within {self._seconds:.0f} s", where=self._where
            )

    def close(self) -> None:
        """Drop the records that are not acknowledged, and close the connections."""
        self._producer.purge()
        self._producer.close()

    @property
    def _where(self) -> str:
        return f"topic {self._topic}"

    def _produce(self, record: Record) -> None:
        timestamp = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
        while self._error is None:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=partial(self._on_delivery, record),
                    **timestamp,
                )
            except KafkaException as error:  # noqa: PERF203 - at the end, the loop has no next round
                raise self._translated(error.args[0]) from error
            except BufferError:  # the queue of the client is full; records leave it during the poll
                self._producer.poll(_POLL_SECONDS)
            else:
                return

    def _on_delivery(self, record: Record, error: KafkaError | None, _message: Message) -> None:
        if error is not None and error.code() in _TOO_LARGE:
            self._too_large.append(record)
            return
        self.held_bytes -= record.size
        self._error = self._error or error  # the first error is the cause of the others

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._translated(self._error)

    def _translated(self, error: KafkaError) -> IngestdError:
        code = error.code()
        if code in _DENIED:
            return TopicDenied(f"permission denied: {error.str()}", where=self._where, hint=_DENIED[code])
        if code in _REFUSED:
            hint = f"check {_REFUSED[code]} of the topic"
            return InvalidTopic(f"the broker refuses a record: {error.str()}", where=self._where, hint=hint)
        if is_missing(error):
            hint = "create the topic, or check whether it was deleted"
            return BrokerUnavailable("the topic does not exist", where=self._where, hint=hint)
        if code == KafkaError._MSG_TIMED_OUT and (known := self._log.retriable_refusal()):
            return known
        return translate_error(error, self._where)
