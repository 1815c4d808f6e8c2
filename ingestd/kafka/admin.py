"""What the driver asks of Kafka: which topic a name stands for, where its partitions begin and end; and the mirror.

Invariant: an end is the last *stable* offset: nothing of an open transaction is ever planned. No request creates a
topic, whatever `auto.create.topics.enable` of the broker says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka import TopicPartition as _TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ingestd.clock import Deadline
from ingestd.errors import BrokerUnavailable, IngestdError, InvalidTopic
from ingestd.kafka.ranges import Offsets, TopicIdentity, TopicPartition
from ingestd.kafka.settings import QUIET, create_client, is_missing, translate_error

T = TypeVar("T")

_ANSWER_SECONDS = 0.005
# Keys that every client understands; a consumer's own would be warned about.
_PLAIN_KEYS = ("bootstrap.servers", "client.", "broker.", "security.", "sasl.", "ssl.", "socket.")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it was described: which one it is, and its partitions in order."""

    identity: TopicIdentity
    partitions: tuple[TopicPartition, ...]


class Broker:
    """The driver's conversation with one Kafka cluster; safe from several threads.

    `timeout_seconds` bounds each question. Every method raises BrokerUnavailable, InvalidTopic or LoginFailed.
    """

    def __init__(self, settings: Mapping[str, Any], *, timeout_seconds: float = 15.0) -> None:
        self._settings = {k: v for k, v in settings.items() if k.startswith(_PLAIN_KEYS)} | QUIET
        self.where = f"broker {settings['bootstrap.servers']}"
        self.timeout_seconds = timeout_seconds
        # An admin client is a producer to librdkafka, and producers let the broker create what they ask about.
        self._admin = create_client(AdminClient, self._settings | {"allow.auto.create.topics": False})
        self._seen: set[str] = set()

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """The topics by name. One that this object has described before and that is gone is BrokerUnavailable."""
        seconds = self.timeout_seconds
        described = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=seconds)
        cluster = self._admin.describe_cluster(request_timeout=seconds)
        cluster_id = self._answer(cluster, self.where).cluster_id or ""
        found = {}
        for name, answer in described.items():
            where = f"{self.where}, topic {name}"
            try:
                topic = self._wait(answer, where)
            except KafkaException as error:
                raise (self._without(name) if is_missing(error) else translate_error(error, where)) from error
            self._seen.add(name)
            partitions = sorted(TopicPartition(name, p.id) for p in topic.partitions)
            found[name] = Topic(TopicIdentity(cluster_id, _text(topic.topic_id)), tuple(partitions))
        return found

    def partitions(self, names: Sequence[str]) -> list[TopicPartition]:
        """All partitions of the topics; see `topics`."""
        return [partition for topic in self.topics(names).values() for partition in topic.partitions]

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
            offset = int(self._answer(answer, f"{self.where}, {key}").offset)
            # A broker that is silent for the whole time comes as "invalid offset" without an error.
            if offset == OFFSET_INVALID:
                raise BrokerUnavailable("no answer about offsets", where=f"{self.where}, {key}")
            found[key] = offset
        return found

    def _answer(self, future: Future[T], where: str) -> T:
        """The answer to an admin request. Raises as `translate_error` does, or BrokerUnavailable without an answer."""
        try:
            return self._wait(future, where)
        except KafkaException as error:
            raise translate_error(error, where) from error

    def _wait(self, future: Future[T], where: str) -> T:
        try:
            return future.result(timeout=self.timeout_seconds * 2)
        except NoAnswer as error:
            raise BrokerUnavailable("no answer", where=where) from error


def _text(topic_id: Uuid) -> str:
    """The id as Kafka's tools print it; '' for the zero id of a broker that has no topic ids."""
    if not topic_id.get_most_significant_bits() and not topic_id.get_least_significant_bits():
        return ""
    return str(topic_id)


class OffsetMirror:
    """Commits to a consumer group what Hive has already committed, for lag tools; never read back by us.

    A consumer's own waiting commit never returns before a silent broker, and the admin client's calls about groups
    abort the process when they time out (librdkafka issue 4605): the answer to an asynchronous commit is awaited here.
    """

    def __init__(self, settings: Mapping[str, Any], group: str, *, timeout_seconds: float = 5.0) -> None:
        plain = {k: v for k, v in settings.items() if k.startswith(_PLAIN_KEYS)}
        ours = {"group.id": group, "enable.auto.commit": False, "on_commit": self._answered}
        self._consumer = create_client(Consumer, plain | ours | QUIET)
        self._where = f"consumer group {group}"
        self._timeout = timeout_seconds
        self._unanswered = False
        self._error: KafkaError | None = None

    def commit(self, position: Offsets) -> None:
        """Commit next offsets. Raises what `translate_error` says, BrokerUnavailable when no answer came in time."""
        offsets = [_TopicPartition(p.topic, p.partition, offset) for p, offset in position.items()]
        limit = Deadline.after(self._timeout)
        self._await_answer(limit)
        self._unanswered, self._error = True, None
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._unanswered = False
            raise translate_error(error, self._where) from error
        self._await_answer(limit)
        if self._error is not None:
            raise translate_error(self._error, self._where)

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
