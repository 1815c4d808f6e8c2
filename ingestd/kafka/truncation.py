"""Finds out whether the records before an offset are still part of the log of a partition (KIP-320).

Invariant: the answer comes from the current leader of the partition. For the epoch of a former leader, it knows where
its own log continues with records of a later epoch. If that is before the offset, the former leader had records that
the current one lacks: the partition was truncated there, however many records have followed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as _TopicPartition

from ingestd.clock import Deadline, pause
from ingestd.errors import BrokerUnavailable
from ingestd.kafka.connections import ConnectionLog
from ingestd.kafka.ranges import EpochOffset, TopicPartition
from ingestd.kafka.settings import create_client, is_group_denied, reader_settings, translate_error
from ingestd.kafka.throttling import Silence, Throttling

_POLL_SECONDS = 0.05
# A seek fails until librdkafka's own thread has begun to fetch the partition.
_SEEK_SECONDS = 0.005
_PROBE = {
    # librdkafka continues where the log of a truncated partition left the former one.
    "auto.offset.reset": "latest",
    # One batch of records is enough.
    "queued.min.messages": 1,
    "max.partition.fetch.bytes": 1_024,
}


def find_truncated(
    settings: Mapping[str, Any], marks: Mapping[TopicPartition, EpochOffset], seconds: float
) -> dict[TopicPartition, int]:
    """Return the partitions that were truncated before their mark, and the offsets where that happened.

    `marks` must have epochs. Partitions of brokers that cannot validate offsets (before Kafka 2.1) are never returned.
    Raises BrokerUnavailable when no answer arrives for `seconds`, and the other errors of `translate_error`.
    """
    where = f"broker {settings['bootstrap.servers']}"
    log, throttling = ConnectionLog(settings, where), Throttling()
    callbacks = {"error_cb": log.report, "throttle_cb": throttling.report}
    silence = Silence(throttling, seconds)
    with closing(create_client(Consumer, reader_settings(settings) | _PROBE | callbacks)) as consumer:
        offsets = _first_offsets(consumer, marks, silence, where)
        if len(offsets) < len(marks):
            raise log.retriable_refusal() or BrokerUnavailable(
                f"the leaders of {len(marks) - len(offsets)} partitions did not answer for {seconds:.0f} s", where=where
            )
    return {partition: at for partition, at in offsets.items() if at < marks[partition].offset}


def _first_offsets(
    consumer: Consumer, marks: Mapping[TopicPartition, EpochOffset], silence: Silence, where: str
) -> dict[TopicPartition, int]:
    """Return the offset at which each partition continues, of those that answer in time.

    It is that of the first record or of the end of the partition: at the mark or behind it if the leader's log contains
    the mark, and otherwise where the leader's log leaves the former one.
    """
    starts = [_TopicPartition(*p, mark.offset, leader_epoch=mark.epoch) for p, mark in marks.items()]
    offsets: dict[TopicPartition, int] = {}
    consumer.incremental_assign(starts)
    for start in starts:
        _seek(consumer, start, silence)
    while len(offsets) < len(marks):
        messages = consumer.consume(len(marks), _POLL_SECONDS)
        for message in messages:
            error = message.error()
            if error is not None and is_group_denied(error):
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise translate_error(error, where, "READ")
            offsets.setdefault(TopicPartition(message.topic(), message.partition()), message.offset())
        if messages:
            silence.end()
        elif silence.is_too_long():
            break
    return offsets


def _seek(consumer: Consumer, start: _TopicPartition, silence: Silence) -> None:
    """Make librdkafka validate the offset before it fetches: it validates the offset of a seek, not of an assignment.

    Records that were fetched before are discarded.
    """
    limit = Deadline.after(silence.seconds)
    while not _has_sought(consumer, start):
        if limit.passed:
            raise BrokerUnavailable("the seek timed out", where=f"{start.topic}[{start.partition}]")
        pause(_SEEK_SECONDS)


def _has_sought(consumer: Consumer, start: _TopicPartition) -> bool:
    """Seek, and return False if librdkafka does not fetch the partition yet."""
    try:
        consumer.seek(start)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._STATE:
            raise translate_error(error, f"{start.topic}[{start.partition}]") from error
        return False
    return True
