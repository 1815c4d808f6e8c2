"""Requests to a broker that hangs end when they are interrupted."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from ingestd.errors import BrokerUnavailable
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
