"""A client quota of a real Kafka delays answers for longer than the reader may wait for a record."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ingestd.errors import BrokerUnavailable
from ingestd.kafka.ranges import OffsetRange
from ingestd.kafka.reader import ReadLimits, read
from ingestd.sandbox import Addresses
from tests.support.kafka import kafka_broker
from tests.support.quota import consumer_quota, produce_random
from tests.support.stack import Stack

# A broker measures over ten seconds: it answers with at most 1 MB, and with the other 0.5 MB five seconds later.
_BYTES_PER_SECOND = 100_000
_RECORDS, _RECORD_BYTES = 30, 50_000


def test_read_when_a_quota_delays_answers_then_waits_longer_than_for_silence_and_every_record_arrives_once(
    stack: Stack,
) -> None:
    topic, servers = stack.topic(1), stack.addresses.kafka
    values = [os.urandom(_RECORD_BYTES) for _ in range(_RECORDS)]
    limits = ReadLimits(batch_records=10, silence_seconds=3.0)
    with consumer_quota(servers, stack.name, _BYTES_PER_SECOND):
        produce_random(servers, topic, values)
        settings = {"bootstrap.servers": servers}
        batches = list(read(settings | {"client.id": stack.name}, [OffsetRange(topic, 0, 0, _RECORDS)], limits))
        assert [value for batch in batches for value in batch.values] == values
        assert sum(batch.throttled_seconds for batch in batches) > limits.silence_seconds
        with pytest.raises(BrokerUnavailable, match="no record arrived for 3 s"):
            list(read(settings, [OffsetRange(topic, 0, _RECORDS, _RECORDS + 1)], limits))


@pytest.mark.soak
def test_daemon_when_a_quota_delays_an_answer_for_more_than_30_seconds_then_every_id_arrives_once(
    addresses: Addresses, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The broker measures over 40 seconds. It delivers 1 MB at once, and the other 0.5 MB after this time."""
    with (
        kafka_broker(tmp_path / "kafka", {"quota.window.size.seconds": "4"}) as broker,
        Stack(replace(addresses, kafka=broker.servers), request.node.name, tmp_path) as stack,
        consumer_quota(broker.servers, stack.name, 25_000),
    ):
        stack.topic(1)
        stack.table("id bigint")
        texts = [base64.b64encode(os.urandom(37_500)).decode() for _ in range(30)]
        records = [json.dumps({"id": n, "text": text}).encode() for n, text in enumerate(texts)]
        produce_random(broker.servers, stack.name, records)
        kafka = {"bootstrap.servers": broker.servers, "client.id": stack.name}
        daemon = stack.drain(stack.config(kafka=kafka))
        assert stack.ids() == list(range(len(records)))
        assert not [event for event in daemon.events("waiting") if "no record arrived" in event["error"]]
        assert max(event.get("throttled", 0) for event in daemon.events("committed")) > 30
        assert daemon.events("throttled")
