"""Requests to a broker that hangs end when they are interrupted."""

from __future__ import annotations

import gc
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ingestd.errors import BrokerUnavailable
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.shared import KafkaClients
from tests.support.patience import LIMIT


def test_requests_when_they_are_interrupted_then_all_fail_at_once_although_the_broker_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(2) as threads:
        settings = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        clients = KafkaClients(timeout_seconds=LIMIT)
        subscription = clients.watch(settings).subscribe(["orders"], 1.0)
        described = threads.submit(clients.broker(settings).topics, ["orders"])
        viewed = threads.submit(subscription.read)
        connection, _ = silent.accept()  # nobody will answer
        clients.interrupt()  # otherwise the requests time out
        with pytest.raises(BrokerUnavailable, match="interrupted"):
            described.result()
        with pytest.raises(BrokerUnavailable, match="interrupted"):
            viewed.result()
        with pytest.raises(BrokerUnavailable, match="interrupted"):
            clients.broker(settings).topics(["orders"])
        subscription.close()
        connection.close()


def test_offsets_when_the_broker_hangs_then_their_client_is_closed_in_its_own_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        clients = KafkaClients()
        for group in ("before the end", "after the end"):
            with pytest.raises(BrokerUnavailable, match="the offset commit timed out"):
                clients.mirror(settings, group, {TopicPartition("orders", 0): 1})
            clients.close()
        # Python may collect garbage in any thread, such as one that sends heartbeats.
        gc.collect()
        assert [thread for thread in threading.enumerate() if thread.name == "offset-mirror-close"]
