"""The requests of the Spark driver to Kafka: descriptions of topics, first and last offsets, and mirrored offsets.

Invariant: an end is the last *stable* offset, so records of an open Kafka transaction are never planned. No request
creates a topic, even if the broker's `auto.create.topics.enable` is true.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka import TopicPartition as _TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec

from ingestd.clock import Deadline, pause
from ingestd.errors import BrokerUnavailable, IngestdError, TopicMissing
from ingestd.kafka.connections import ConnectionLog
from ingestd.kafka.ranges import EpochOffset, Offsets, TopicIdentity, TopicPartition
from ingestd.kafka.settings import (
    QUIET,
    create_client,
    is_group_denied,
    is_missing,
    shared_settings,
    time_limit,
    translate_error,
)

T = TypeVar("T")

# The default time limit of a request.
REQUEST_SECONDS = 15.0
_POLL_SECONDS = 0.005
# How long a request may continue after `interrupt`.
_INTERRUPT_SECONDS = 0.1
# What brokers answer while they create the topic of the offsets, or another broker becomes the coordinator of a group.
_MOVING = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
# How long the first attempt to describe topics waits for an answer.
QUICK_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Topic:
    """The identity of a topic, and its partitions in ascending order."""

    identity: TopicIdentity
    partitions: tuple[TopicPartition, ...]


class Broker:
    """A client for requests to one Kafka cluster; safe for use from several threads.

    `timeout_seconds` bounds each request, as does a lower `socket.timeout.ms`. Every method raises BrokerUnavailable,
    InvalidTopic or LoginFailed; the constructor raises ConfigError.
    """

    def __init__(self, settings: Mapping[str, Any], *, timeout_seconds: float = REQUEST_SECONDS) -> None:
        self._settings = shared_settings(settings) | QUIET
        self.where = f"broker {settings['bootstrap.servers']}"
        self.timeout_seconds = time_limit(settings, timeout_seconds)
        self._log = ConnectionLog(self._settings, self.where)
        # `describe` may replace it. A request never ends if nothing refers to its client any more.
        self._admin = self._connected()
        self._seen: set[str] = set()
        self._interrupted = threading.Event()

    def _connected(self) -> AdminClient:
        # To librdkafka an admin client is a producer, whose metadata requests let the broker create topics.
        ours = {"allow.auto.create.topics": False, "error_cb": self._log.report}
        return create_client(AdminClient, self._settings | ours)

    def interrupt(self) -> None:
        """Make the requests in progress and all later ones raise BrokerUnavailable, as their answers are not needed."""
        self._interrupted.set()

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Describe topics, by name. Raises BrokerUnavailable if a topic has disappeared since an earlier call."""
        topics = {}
        for name, answer in self.describe(names).items():
            if isinstance(answer, IngestdError):
                raise answer
            topics[name] = answer
        return topics

    def describe(self, names: Sequence[str], seconds: float | None = None) -> dict[str, Topic | IngestdError]:
        """Return what `topics` returns or would raise for each topic, with a time limit of `seconds`.

        Raises the error of a request that fails as a whole.
        """
        if not names:
            return {}
        admin, limit = self._admin, self.timeout_seconds if seconds is None else seconds
        try:
            return self._describe(admin, names, min(limit, QUICK_SECONDS))
        except BrokerUnavailable:
            # A client sends these requests to the broker that it regards as the controller, even if that one hangs. In
            # KRaft mode, that is any broker. A new client probably chooses another one.
            if self._admin is admin:
                self._admin = self._connected()
            return self._describe(self._admin, names, limit)

    def _describe(self, admin: AdminClient, names: Sequence[str], seconds: float) -> dict[str, Topic | IngestdError]:
        described = admin.describe_topics(TopicCollection(list(names)), request_timeout=seconds)
        cluster = admin.describe_cluster(request_timeout=seconds)
        cluster_id = self._answer(cluster, self.where).cluster_id or ""
        self._note_answer()
        return {name: self._described(name, cluster_id, answer) for name, answer in described.items()}

    def _described(self, name: str, cluster_id: str, answer: Future[Any]) -> Topic | IngestdError:
        where = f"{self.where}, topic {name}"
        try:
            topic = self._wait(answer, where)
        except KafkaException as error:
            return self._missing(name) if is_missing(error) else self._translated(error, where, "DESCRIBE")
        except IngestdError as error:
            return error
        self._seen.add(name)
        partitions = sorted(TopicPartition(name, p.id) for p in topic.partitions)
        return Topic(TopicIdentity(cluster_id, _text(topic.topic_id)), tuple(partitions))

    def partitions(self, names: Sequence[str]) -> list[TopicPartition]:
        """Return all partitions of the topics. Raises the same errors as `topics`."""
        return [partition for topic in self.topics(names).values() for partition in topic.partitions]

    def _missing(self, topic: str) -> IngestdError:
        if topic in self._seen:
            hint = "check whether the topic was deleted"
            return BrokerUnavailable("the topic no longer exists", where=f"{self.where}, topic {topic}", hint=hint)
        return TopicMissing("the topic does not exist", where=f"{self.where}, topic {topic}", hint="create the topic")

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return, for each partition, the first offset that retention has not deleted."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition: the end for consumers that read only committed records."""
        return self._offsets(partitions, OffsetSpec.latest())

    def at_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Return, for each partition, the first offset with a timestamp of at least `timestamp_ms`, or its end.

        `timestamp_ms` is in milliseconds of Unix time.
        """
        partitions = list(partitions)
        # Requested first: a record with that timestamp that arrives in between must not lie before the end.
        ends = self.ends(partitions)
        offsets = self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        return {p: offsets[p] if offsets[p] >= 0 else ends[p] for p in partitions}

    def newest_times(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the largest timestamp of each partition that has records, in milliseconds of Unix time."""
        answers = self._list_offsets(partitions, OffsetSpec.max_timestamp())
        times = {key: int(checked(answer).timestamp) for key, answer in answers}
        return {key: time for key, time in times.items() if time > 0}

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the last failed connection of this client, if there is one, in place of a BrokerUnavailable.

        For commands only: to a daemon with many brokers, one that is stopped does not explain why others hang.
        """
        try:
            yield
        except BrokerUnavailable as error:
            self._admin.poll(0)
            raise self._log.last_failure() or error from error

    def _translated(self, error: KafkaException, where: str, operation: str = "") -> IngestdError:
        """Translate the error of a request. A request that gets no answer fails with the reason, if it is known."""
        known = translate_error(error, where, operation)
        return self._refusal() or known if isinstance(known, BrokerUnavailable) else known

    def _refusal(self) -> IngestdError | None:
        self._admin.poll(0)  # calls `ConnectionLog.report`
        return self._log.refusal()

    def _note_answer(self) -> None:
        self._admin.poll(0)  # otherwise the failed connections of other brokers would fill the memory
        self._log.answered()

    def describe_cluster(self) -> tuple[str, int]:
        """Return the id of the cluster, '' if unknown, and the number of brokers."""
        admin = self._admin
        cluster = self._answer(admin.describe_cluster(request_timeout=self.timeout_seconds), self.where)
        return cluster.cluster_id or "", len(cluster.nodes)

    def topic_settings(self, name: str) -> dict[str, str]:
        """Return the effective configuration of a topic, such as `retention.ms`.

        Raises TopicDenied without permission DESCRIBE_CONFIGS.
        """
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        admin = self._admin
        [answer] = admin.describe_configs([resource], request_timeout=self.timeout_seconds).values()
        settings = self._answer(answer, f"{self.where}, topic {name}", "DESCRIBE_CONFIGS")
        return {key: str(entry.value) for key, entry in settings.items() if entry.value is not None}

    def topic_names(self) -> list[str]:
        """Return the names of all topics that this client may describe, without internal ones."""
        try:
            answer = self._admin.list_topics(timeout=self.timeout_seconds)
        except KafkaException as error:
            raise translate_error(error, self.where) from error
        return sorted(name for name in answer.topics if not name.startswith("__"))

    def may_commit(self, group: str) -> bool:
        """Return whether the permissions allow commits of offsets to a consumer group, which need not exist.

        For commands only, and after `OffsetMirror.committed`: requests about groups have aborted the process when the
        coordinator of the group did not answer (librdkafka issue 4605).
        """
        admin = self._admin
        [answer] = admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=self.timeout_seconds
        ).values()
        allowed = self._answer(answer, f"{self.where}, consumer group {group}", "DESCRIBE").authorized_operations
        return not allowed or AclOperation.READ in allowed

    def may_write(self, topic: str) -> bool:
        """Return whether the permissions allow writing records to a topic."""
        admin, names = self._admin, TopicCollection([topic])
        described = admin.describe_topics(
            names, include_authorized_operations=True, request_timeout=self.timeout_seconds
        )
        allowed = self._answer(described[topic], f"{self.where}, topic {topic}", "DESCRIBE").authorized_operations
        return not allowed or AclOperation.WRITE in allowed

    def delete_group(self, group: str) -> None:
        """Delete a consumer group and its offsets. Does nothing if the group does not exist."""
        where = f"{self.where}, consumer group {group}"
        admin = self._admin
        [answer] = admin.delete_consumer_groups([group], request_timeout=self.timeout_seconds).values()
        try:
            self._wait(answer, where)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise translate_error(error, where, "DELETE") from error

    def find_ends(
        self, partitions: Iterable[TopicPartition], seconds: float | None = None
    ) -> dict[TopicPartition, EpochOffset | IngestdError]:
        """Return the end of each partition or the error that `ends` would raise, with a time limit of `seconds`."""
        return self._find_latest(partitions, IsolationLevel.READ_COMMITTED, seconds)

    def find_high_watermarks(
        self, partitions: Iterable[TopicPartition], seconds: float | None = None
    ) -> dict[TopicPartition, EpochOffset | IngestdError]:
        """Return the same as `find_ends`, but the ends for consumers that also read records of open transactions."""
        return self._find_latest(partitions, IsolationLevel.READ_UNCOMMITTED, seconds)

    def _find_latest(
        self, partitions: Iterable[TopicPartition], isolation: IsolationLevel, seconds: float | None
    ) -> dict[TopicPartition, EpochOffset | IngestdError]:
        answers = self._list_offsets(partitions, OffsetSpec.latest(), seconds, isolation)
        return {
            key: answer if isinstance(answer, IngestdError) else EpochOffset(int(answer.offset), answer.leader_epoch)
            for key, answer in answers
        }

    def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        return {key: int(checked(answer).offset) for key, answer in self._list_offsets(partitions, spec)}

    def _list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        spec: Any,
        seconds: float | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Iterator[tuple[TopicPartition, Any]]:
        """Yield each partition with its answer or its IngestdError."""
        requested = {_TopicPartition(p.topic, p.partition): spec for p in partitions}
        if not requested:
            return
        admin = self._admin
        answers: Mapping[_TopicPartition, Future[Any]] = admin.list_offsets(
            requested,
            isolation_level=isolation,
            request_timeout=self.timeout_seconds if seconds is None else seconds,
        )
        has_answered = False
        for partition, future in answers.items():
            key = TopicPartition(partition.topic, partition.partition)
            where = f"{self.where}, {key}"
            try:
                answer = self._answer(future, where, "DESCRIBE")
            except IngestdError as error:
                yield key, error
                continue
            # librdkafka reports a timeout as an invalid offset without an error.
            if answer.offset == OFFSET_INVALID:
                yield key, self._refusal() or BrokerUnavailable("the request for offsets timed out", where=where)
            else:
                has_answered = True
                yield key, answer
        if has_answered:
            self._note_answer()

    def _answer(self, future: Future[T], where: str, operation: str = "") -> T:
        """Return the result of a request, which needs the permission for `operation`.

        Raises the errors of `translate_error`, or BrokerUnavailable on timeout.
        """
        try:
            return self._wait(future, where)
        except KafkaException as error:
            raise self._translated(error, where, operation) from error

    def _wait(self, future: Future[T], where: str) -> T:
        limit = Deadline.after(self.timeout_seconds * 2)
        while not limit.passed:
            if self._interrupted.is_set():
                raise BrokerUnavailable("the request was interrupted by the end of the daemon", where=where)
            with suppress(FutureTimeoutError):
                return future.result(timeout=min(_INTERRUPT_SECONDS, limit.left))
        raise BrokerUnavailable("the request timed out", where=where)


def _text(topic_id: Uuid) -> str:
    """Return the id as Kafka's tools print it; '' for the zero id, which brokers without topic ids return."""
    if not topic_id.get_most_significant_bits() and not topic_id.get_least_significant_bits():
        return ""
    return str(topic_id)


def checked(answer: T | IngestdError) -> T:
    """Return an answer, or raise it if it is an error."""
    if isinstance(answer, IngestdError):
        raise answer
    return answer


class OffsetMirror:
    """Commits to a Kafka consumer group the offsets that Hive has committed, for lag monitoring only.

    Uses asynchronous commits and polls for the result, because a synchronous commit blocks forever on a broker that
    hangs, and the admin client's group requests abort the process on a timeout (librdkafka issue 4605).
    """

    def __init__(self, settings: Mapping[str, Any], group: str, *, timeout_seconds: float = 5.0) -> None:
        plain = shared_settings(settings)
        ours = {"group.id": group, "enable.auto.commit": False, "on_commit": self._on_commit}
        self._where = f"consumer group {group}"
        self._log = ConnectionLog(plain, self._where)
        self._consumer = create_client(Consumer, plain | ours | QUIET | {"error_cb": self._log.report})
        self._timeout = timeout_seconds
        self._is_pending = False
        self._error: KafkaError | None = None
        self._denied: KafkaError | None = None

    def commit(self, position: Offsets) -> None:
        """Commit the next offset of each partition.

        Raises the errors of `translate_error`, or BrokerUnavailable after a timeout.
        """
        offsets = [_TopicPartition(p.topic, p.partition, offset) for p, offset in position.items()]
        limit = Deadline.after(self._timeout)
        self._await_result(limit)
        self._is_pending, self._error = True, None
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._is_pending = False
            raise translate_error(error, self._where) from error
        self._await_result(limit)
        if self._error is not None:
            raise translate_error(self._error, self._where, "READ")

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that the group has committed for each partition, if it has committed one.

        Raises InvalidTopic without permission to read the group, LoginFailed and BrokerUnavailable.
        """
        asked = [_TopicPartition(*p) for p in partitions]
        limit = Deadline.after(self._timeout)
        moving: KafkaError | None = None
        while True:
            answers, error = self._ask(asked, limit.left)
            if error is None:
                return {TopicPartition(p.topic, p.partition): p.offset for p in answers if p.offset >= 0}
            if error.code() == KafkaError._TIMED_OUT:
                error = moving or error  # what a broker has answered says more
            if error.code() not in _MOVING or limit.passed:
                raise translate_error(error, self._where, "DESCRIBE")
            moving = error
            pause(_POLL_SECONDS)

    def _ask(
        self, partitions: list[_TopicPartition], seconds: float
    ) -> tuple[list[_TopicPartition], KafkaError | None]:
        """Request the committed offsets; return them, and the first error of the answer."""
        try:
            answers = self._consumer.committed(partitions, timeout=seconds)
        except KafkaException as error:
            # librdkafka retries when it may not look up the coordinator. It reports the reason to `poll` only.
            event = self._consumer.poll(0)
            return [], (event.error() if event is not None else None) or error.args[0]
        return answers, next((p.error for p in answers if p.error is not None), None)

    @property
    def is_pending(self) -> bool:
        """Whether no broker has answered the last commit."""
        return self._is_pending

    def close(self) -> None:
        """Close the consumer. That blocks until a broker answers a pending commit, for 45 s if none does.

        So does the destruction of a consumer that was not closed, which blocks any thread in which Python collects it.
        """
        self._consumer.close()

    def _await_result(self, limit: Deadline) -> None:
        """Wait for the result of a pending commit, if there is one."""
        while self._is_pending and not limit.passed:
            event = self._consumer.poll(_POLL_SECONDS)
            cause = event.error() if event is not None else None
            if cause is not None and is_group_denied(cause):
                self._denied = cause
            if self._is_pending and self._denied is not None:
                # librdkafka says this once, and looks up the coordinator of the group until it is allowed to.
                raise translate_error(self._denied, self._where, "READ")
        if self._is_pending:
            raise self._log.refusal() or BrokerUnavailable("the offset commit timed out", where=self._where)

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[_TopicPartition]) -> None:
        self._error = error or next((p.error for p in partitions if p.error is not None), None)
        if self._error is None:
            self._log.answered()
        self._is_pending, self._denied = False, None
