"""What the driver asks of Kafka: which partitions a topic has, where they begin and end; and the mirrored offsets.

Invariant: an end is the last *stable* offset: nothing of an open transaction is ever planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as _TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ingestd.clock import Deadline
from ingestd.errors import BrokerUnavailable, IngestdError, InvalidTopic
from ingestd.kafka.client import QUIET, is_missing, made, translated
from ingestd.kafka.ranges import Position, TopicPartition

_ANSWER_SECONDS = 0.005
# Keys that every client understands; a consumer's own would be warned about.
_PLAIN_KEYS = ("bootstrap.servers", "client.", "broker.", "security.", "sasl.", "ssl.", "socket.")


class Broker:
    """The driver's conversation with one Kafka cluster; safe from several threads.

    `timeout_seconds` bounds each question. Every method raises BrokerUnavailable, InvalidTopic or LoginFailed.
    """

    def __init__(self, settings: Mapping[str, Any], *, timeout_seconds: float = 15.0) -> None:
        self._settings = {k: v for k, v in settings.items() if k.startswith(_PLAIN_KEYS)} | QUIET
        self.where = f"broker {settings['bootstrap.servers']}"
        self.timeout_seconds = timeout_seconds
        self._admin = made(AdminClient, self._settings)
        self._seen: set[str] = set()

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """All partitions of the topics. A topic that was there once and is not now is BrokerUnavailable."""
        found: list[TopicPartition] = []
        for topic in topics:
            try:
                metadata = self._admin.list_topics(topic, timeout=self.timeout_seconds).topics[topic]
            except KafkaException as error:
                raise translated(error, self.where) from error
            if metadata.error is not None:
                raise (
                    self._without(topic) if is_missing(metadata.error) else translated(metadata.error, f"topic {topic}")
                )
            self._seen.add(topic)
            found.extend(TopicPartition(topic, number) for number in sorted(metadata.partitions))
        return found

    def _without(self, topic: str) -> IngestdError:
        if topic in self._seen:
            return BrokerUnavailable("the topic is not there any more", where=f"{self.where}, topic {topic}")
        return InvalidTopic("the topic does not exist", where=f"{self.where}, topic {topic}", hint="create the topic")

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offset of each partition: the next one that a committed record may get."""
        return self._offsets(partitions, OffsetSpec.latest())

    def at_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """The first offset whose record is not older than `timestamp_ms` (since 1970); the end when there is none."""
        partitions = list(partitions)
        found = self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        ends = self.ends([p for p in partitions if found[p] < 0])
        return {p: ends.get(p, found[p]) for p in partitions}

    def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        asked = {_TopicPartition(p.topic, p.partition): spec for p in partitions}
        if not asked:
            return {}
        answers: Mapping[_TopicPartition, Future[Any]] = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self.timeout_seconds
        )
        found = {}
        for partition, answer in answers.items():
            key = TopicPartition(partition.topic, partition.partition)
            try:
                offset = int(answer.result(timeout=self.timeout_seconds * 2).offset)
            except KafkaException as error:
                raise translated(error, f"{self.where}, {key}") from error
            except NoAnswer as error:
                raise BrokerUnavailable("no answer about offsets", where=f"{self.where}, {key}") from error
            # A broker that is silent for the whole time comes as "invalid offset" without an error.
            if offset == OFFSET_INVALID:
                raise BrokerUnavailable("no answer about offsets", where=f"{self.where}, {key}")
            found[key] = offset
        return found


class OffsetMirror:
    """Commits to a consumer group what Hive has already committed, for lag tools; never read back by us.

    A consumer's own waiting commit never returns before a silent broker, and the admin client's calls about groups
    abort the process when they time out (librdkafka issue 4605): the answer to an asynchronous commit is awaited here.
    """

    def __init__(self, settings: Mapping[str, Any], group: str, *, timeout_seconds: float = 5.0) -> None:
        plain = {k: v for k, v in settings.items() if k.startswith(_PLAIN_KEYS)}
        ours = {"group.id": group, "enable.auto.commit": False, "on_commit": self._answered}
        self._consumer = made(Consumer, plain | ours | QUIET)
        self._where = f"consumer group {group}"
        self._timeout = timeout_seconds
        self._unanswered = False
        self._error: KafkaError | None = None

    def commit(self, position: Position) -> None:
        """Commit next offsets. Raises what `translated` says, BrokerUnavailable when no answer came in time."""
        offsets = [_TopicPartition(p.topic, p.partition, offset) for p, offset in position.items()]
        limit = Deadline.after(self._timeout)
        self._await_answer(limit)
        self._unanswered, self._error = True, None
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._unanswered = False
            raise translated(error, self._where) from error
        self._await_answer(limit)
        if self._error is not None:
            raise translated(self._error, self._where)

    def close(self) -> None:
        """Let go of the group; not while an answer is awaited: that would wait as long as the broker is silent."""
        if not self._unanswered:
            self._consumer.close()

    def _await_answer(self, limit: Deadline) -> None:
        """Wait for the answer to an earlier commit, if there is one to come."""
        while self._unanswered and not limit.passed:
            self._consumer.poll(_ANSWER_SECONDS)
        if self._unanswered:
            raise BrokerUnavailable("no answer to the offsets", where=self._where)

    def _answered(self, error: KafkaError | None, partitions: Sequence[_TopicPartition]) -> None:
        self._error = error or next((p.error for p in partitions if p.error is not None), None)
        self._unanswered = False
