"""The clients that mirror offsets to consumer groups say what the broker has answered, and their number is bounded."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from confluent_kafka import KafkaError

from ingestd.errors import BrokerUnavailable, TopicDenied
from ingestd.kafka.admin import OffsetMirror
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.shared import KafkaClients
from tests.support.scripted_kafka import ScriptedKafka

_MOVING = KafkaError.NOT_COORDINATOR


@pytest.mark.parametrize("most", [1, None], ids=["once", "always"])
def test_offsets_when_the_group_moves_until_the_time_is_over_then_that_is_the_error(most: int | None) -> None:
    with closing(ScriptedKafka("orders", offsets_error=_MOVING, most_offsets=most)) as broker:
        mirror = OffsetMirror({"bootstrap.servers": broker.servers}, "lag", timeout_seconds=2.0)
        with closing(mirror), pytest.raises(BrokerUnavailable, match="Not coordinator"):
            mirror.committed([TopicPartition("orders", 0)])


def _closing(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that close clients, without those of earlier tests."""
    return [thread for thread in threading.enumerate() if "mirror-close" in thread.name and thread not in before]


def test_groups_when_the_commits_of_many_are_denied_then_few_threads_close_their_clients() -> None:
    with closing(ScriptedKafka("orders", denied="denied")) as broker, closing(KafkaClients()) as clients:
        before = set(threading.enumerate())

        def mirror(group: str) -> bool:
            """Commit an offset; return whether the broker accepts it."""
            try:
                clients.mirror({"bootstrap.servers": broker.servers}, group, {TopicPartition("orders", 0): 1})
            except TopicDenied:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            assert not any(threads.map(mirror, [f"denied-{number}" for number in range(32)]))
            assert all(threads.map(mirror, [f"permitted-{number}" for number in range(8)]))
            assert _closing(before) == []
            for _ in range(2):
                assert not any(threads.map(mirror, [f"denied-{number}" for number in range(44)]))
        assert 1 <= len(_closing(before)) <= 4
        assert mirror("permitted-0")
