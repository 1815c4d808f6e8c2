"""The client that mirrors offsets to a consumer group says what the broker has answered."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import KafkaError

from ingestd.errors import BrokerUnavailable
from ingestd.kafka.admin import OffsetMirror
from ingestd.kafka.ranges import TopicPartition
from tests.support.scripted_kafka import ScriptedKafka

_MOVING = KafkaError.NOT_COORDINATOR


@pytest.mark.parametrize("most", [1, None], ids=["once", "always"])
def test_offsets_when_the_group_moves_until_the_time_is_over_then_that_is_the_error(most: int | None) -> None:
    with closing(ScriptedKafka("orders", offsets_error=_MOVING, most_offsets=most)) as broker:
        mirror = OffsetMirror({"bootstrap.servers": broker.servers}, "lag", timeout_seconds=2.0)
        with closing(mirror), pytest.raises(BrokerUnavailable, match="Not coordinator"):
            mirror.committed([TopicPartition("orders", 0)])
