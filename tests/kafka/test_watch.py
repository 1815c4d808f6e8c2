"""One watch polls Kafka for all subscriptions, with few requests, and reports news."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from ingestd.clock import monotonic
from ingestd.errors import BrokerUnavailable, IngestdError, InvalidTopic
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import EpochOffset, TopicPartition
from ingestd.kafka.watch import Watch
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually


class _CountingBroker(Broker):
    """Counts the requests for ends."""

    requests = 0

    def find_ends(
        self, partitions: Iterable[TopicPartition], seconds: float | None = None
    ) -> dict[TopicPartition, EpochOffset | IngestdError]:
        self.requests += 1
        return super().find_ends(partitions, seconds)


class _HalfSilentBroker(Broker):
    """Does not answer for the partitions of the topic `silent` before `seconds` have passed, or `released` is set."""

    silent = ""

    def __init__(self, servers: str) -> None:
        super().__init__({"bootstrap.servers": servers})
        self.released = threading.Event()

    def find_ends(
        self, partitions: Iterable[TopicPartition], seconds: float | None = None
    ) -> dict[TopicPartition, EpochOffset | IngestdError]:
        wanted = list(partitions)
        answers = super().find_ends(wanted, seconds)
        late = [partition for partition in wanted if partition.topic == self.silent]
        if late and not self.released.wait(0 if seconds != self.timeout_seconds else LIMIT):
            answers |= dict.fromkeys(late, BrokerUnavailable("timed out"))
        return answers


def _watch(stack: Stack) -> tuple[Watch, _CountingBroker]:
    broker = _CountingBroker({"bootstrap.servers": stack.addresses.kafka})
    return Watch(broker), broker


def test_watch_when_many_subscribe_then_few_requests_serve_all_and_news_are_reported(stack: Stack) -> None:
    topic = stack.topic(2)
    watch, broker = _watch(stack)
    others = set(threading.enumerate())
    news = [threading.Event() for _ in range(100)]
    subscriptions = [watch.subscribe([topic], 0.2, event.set) for event in news]
    assert {tuple(subscription.read().ends.values()) for subscription in subscriptions} == {(0, 0)}
    for event in news:
        event.clear()
    began, before = monotonic(), broker.requests
    stack.produce([{"id": 1}], partition=1)
    assert all(event.wait(LIMIT) for event in news)
    assert {subscription.checked().ends[TopicPartition(topic, 1)] for subscription in subscriptions} == {1}
    assert broker.requests - before <= 2 + 20 * (monotonic() - began)
    for subscription in subscriptions:
        subscription.close()
    eventually("the thread to end", lambda: not _watching(others))


def _watching(others: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kafka-watch" and thread not in others]


def test_watch_when_a_leader_hangs_then_other_partitions_are_polled_and_nothing_fails_at_once(stack: Stack) -> None:
    broker = _HalfSilentBroker(stack.addresses.kafka)
    watch, silent = Watch(broker), f"{stack.name}_silent"
    for name in (stack.name, silent):
        stack.topic(1, name)
    good, hanging = watch.subscribe([stack.name], 0.05), watch.subscribe([silent], 0.05)
    assert set(hanging.read().ends.values()) == {0}
    broker.silent = silent
    eventually("a request with more patience", lambda: hanging.is_slow)
    for _ in range(3):
        before = good.latest.at
        eventually("a poll", lambda before=before: good.latest.at > before)  # type: ignore[misc]
    assert hanging.is_slow
    assert not hanging.has_failed
    broker.released.set()
    eventually("the late answer", lambda: not hanging.is_slow)
    good.close()
    hanging.close()


def test_watch_when_one_topic_is_missing_then_only_its_subscription_fails(stack: Stack) -> None:
    watch, _ = _watch(stack)
    topic = stack.topic(1)
    good, bad = watch.subscribe([topic], 0.2), watch.subscribe([f"{topic}_missing"], 0.2)
    with pytest.raises(InvalidTopic, match="does not exist"):
        bad.read()
    assert good.read().topics[topic].partitions == (TopicPartition(topic, 0),)
    bad.close()
    with pytest.raises(BrokerUnavailable):
        bad.read()
    good.close()


def test_subscription_when_it_asks_for_a_time_then_the_next_request_is_made_then(stack: Stack) -> None:
    watch, _ = _watch(stack)
    topic = stack.topic(1)
    subscription = watch.subscribe([topic], 600)
    first = subscription.read().at
    subscription.ask_in(0.2)
    eventually("the next request", lambda: subscription.latest.at > first)
    assert subscription.latest.at >= first + 0.15
    subscription.close()
