"""During an outage of the broker or the metastore, the daemon waits, logs and then stores every id exactly once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ingestd.clock import monotonic
from ingestd.errors import BrokerUnavailable, SandboxError
from ingestd.hive.transactions import open_transactions
from ingestd.kafka.admin import Broker
from ingestd.sandbox import Sandbox, SandboxOptions
from tests.support.daemon import Daemon, DaemonProcess, Hold
from tests.support.stack import Stack, eventually

RECORDS = 800


@pytest.fixture(scope="module")
def own(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Yield a separate sandbox, because these tests pause and kill its services."""
    options = SandboxOptions(tmp_path_factory.mktemp("own-sandbox"), hiveserver2=True)
    box = Sandbox(replace(options, kafka_heap_mb=256, metastore_heap_mb=384, hiveserver2_heap_mb=768))
    try:
        box.up()
        yield box
    finally:
        box.down()


@pytest.fixture
def stack(own: Sandbox, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(own.addresses(), request.node.name, tmp_path_factory.mktemp("outage"))
    try:
        yield made
    finally:
        made.close()


def _config(stack: Stack) -> Path:
    """Write a configuration with commits of 100 rows and a metastore timeout of 3 s."""
    return stack.config(
        {"commit": {"rows": 100, "interval": "300ms"}},
        metastore={"uri": stack.addresses.metastore, "timeout": "3s"},
    )


def _commits(daemon: Daemon) -> int:
    return sum(e["rows"] > 0 for e in daemon.events("committed"))


def _rows(stack: Stack) -> int:
    """Return the row count, or -1 while HiveServer2 has not recovered from an outage of its metastore."""
    try:
        return stack.count()
    except SandboxError:
        return -1


def _produce(stack: Stack, ids: range) -> None:
    """Produce records idempotently, so that records that are resent during an outage are stored only once."""
    producer = Producer({"bootstrap.servers": stack.addresses.kafka, "enable.idempotence": True})
    for n in ids:
        producer.produce(stack.name, json.dumps({"id": n}))
    assert producer.flush(60) == 0


def _prepare(stack: Stack) -> DaemonProcess:
    """Produce all records and return a daemon that has committed some of them."""
    stack.topic(2)
    _produce(stack, range(RECORDS))
    stack.table("id bigint")
    daemon = stack.start_process(_config(stack))
    _more_commits(daemon)
    return daemon


def _more_commits(daemon: Daemon) -> None:
    wanted = _commits(daemon) + 2
    eventually("two more commits", lambda: _commits(daemon) >= wanted)


def _assert_waits(daemon: Daemon, reason: str, waits: int) -> None:
    told = eventually("the outage to be logged", lambda: daemon.events("waiting")[waits:], 60)
    assert told[0]["reason"] == reason
    assert _commits(daemon) < RECORDS // 100, "the outage began after the last commit"


def _assert_every_id_once(stack: Stack, daemon: Daemon) -> None:
    """Produce more records, and check that the table contains every id exactly once after the daemon has stopped."""
    _produce(stack, range(RECORDS, RECORDS + 100))
    eventually("all rows", lambda: _rows(stack) == RECORDS + 100, 90)
    daemon.terminate()
    assert daemon.wait(60) == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(RECORDS + 100))
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/") == []
    assert "Traceback" not in daemon.text()
    # Nearly every line is an event, so messages of librdkafka and Thrift do not flood the log.
    assert len(daemon.text().splitlines()) < len(daemon.events()) + 10


def test_broker_when_paused_and_restarted_then_every_id_arrives_once(stack: Stack, own: Sandbox) -> None:
    daemon = _prepare(stack)
    own.pause_service("kafka")
    try:
        _assert_waits(daemon, "BrokerUnavailable", 0)
    finally:
        own.resume_service("kafka")
    _more_commits(daemon)
    own.stop_service("kafka")
    own.start_service("kafka")
    _assert_every_id_once(stack, daemon)


def test_offsets_when_the_broker_does_not_answer_then_broker_unavailable_is_raised(stack: Stack, own: Sandbox) -> None:
    stack.topic(1)
    broker = Broker({"bootstrap.servers": stack.addresses.kafka}, timeout_seconds=2)
    partitions = eventually("the topic", lambda: broker.partitions([stack.name]))
    own.pause_service("kafka")
    try:
        # librdkafka returns -1001 without an error here. Used as an offset, it would restart from the beginning.
        for ask in (broker.ends, broker.earliest, lambda asked: broker.at_time(asked, 0)):
            with pytest.raises(BrokerUnavailable):
                ask(partitions)
    finally:
        own.resume_service("kafka")


def test_metastore_when_paused_and_killed_then_every_id_arrives_once(stack: Stack, own: Sandbox) -> None:
    daemon = _prepare(stack)
    own.pause_service("metastore")
    try:
        _assert_waits(daemon, "MetastoreUnavailable", 0)
    finally:
        own.resume_service("metastore")
    _more_commits(daemon)
    waits = len(daemon.events("waiting"))
    own.stop_service("metastore", kill=True)
    try:
        _assert_waits(daemon, "MetastoreUnavailable", waits)
    finally:
        own.start_service("metastore")
    _assert_every_id_once(stack, daemon)


def test_metastore_when_it_does_not_answer_a_commit_then_logged_and_every_id_arrives_once(
    stack: Stack, own: Sandbox
) -> None:
    stack.topic(2)
    stack.table("id bigint")
    hold = Hold("counted", times=2)
    daemon = stack.start(_config(stack), hold=hold)
    eventually("the mapping to be owned", lambda: daemon.events("owner"))
    _produce(stack, range(RECORDS))
    hold.wait()
    own.pause_service("metastore")
    try:
        hold.release()
        eventually("the outage to be logged more than once", lambda: len(daemon.events("waiting")) > 1, 30)
    finally:
        own.resume_service("metastore")
    told = daemon.events("waiting")
    assert {event["reason"] for event in told} == {"MetastoreUnavailable"}
    assert "commit_txn" in told[0]["error"]
    _assert_every_id_once(stack, daemon)


def test_second_sigterm_when_the_stage_hangs_then_aborts_at_once_and_no_transaction_is_open(
    stack: Stack, own: Sandbox
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    gate = stack.directory / "gate"
    daemon = stack.start_process(_config(stack), INGESTD_TESTING="1", INGESTD_FAILPOINT=f"opened@2=hold:{gate}")
    eventually("the mapping to be owned", lambda: daemon.events("owner"))
    stack.produce({"id": n} for n in range(50))
    eventually("the transaction", lambda: os.path.exists(f"{gate}.held"))
    own.pause_service("kafka")
    try:
        # The stage now waits for a broker that does not answer.
        gate.touch()
        daemon.terminate()
        eventually("the first signal to be handled", lambda: _is_reading(stack), 20)
        daemon.terminate()
        began = monotonic()
        code = daemon.wait(60)
        assert monotonic() - began < 10
    finally:
        own.resume_service("kafka")
    assert code == 0, daemon.text()[-3000:]
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/") == []
    assert stack.count() == 0
    stack.drain()
    assert stack.ids() == list(range(50))


def _is_reading(stack: Stack) -> bool:
    """Return whether a task has created its staging directory."""
    warehouse = stack.addresses.warehouse.removeprefix("file://")
    staging = os.path.join(warehouse, stack.name, ".ingestd-staging")
    return any(name.startswith("task-") for _, names, _ in os.walk(staging) for name in names)
