"""Broker and metastore go away in mid-stream: the daemon waits, says so, and goes on by itself; every id once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from ingestd.clock import monotonic
from ingestd.errors import SandboxError
from ingestd.hive.transactions import open_transactions
from ingestd.sandbox import Sandbox, SandboxOptions
from tests.support.stack import Daemon, Stack, eventually

RECORDS = 800


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox of this module's own: what it pauses and kills must be nobody else's."""
    heaps = {"kafka_heap_mb": 256, "metastore_heap_mb": 384, "hiveserver2_heap_mb": 768}
    box = Sandbox(SandboxOptions(state_dir=tmp_path_factory.mktemp("own-sandbox"), hiveserver2=True, **heaps))
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


def _start(stack: Stack, **environment: str) -> Daemon:
    """A daemon that commits a hundred rows at a time; a metastore that is silent for 3 s counts as away."""
    config = stack.config(
        {"commit": {"rows": 100, "interval": "300ms"}},
        metastore={"uri": stack.addresses.metastore, "timeout": "3s"},
    )
    return stack.start(config, **environment)


def _commits(daemon: Daemon) -> int:
    return sum(e["rows"] > 0 for e in daemon.events("committed"))


def _rows(stack: Stack) -> int:
    """How many rows HiveServer2 counts; it needs a moment itself when its metastore was away."""
    try:
        return stack.count()
    except SandboxError:
        return -1


Act = Callable[[Sandbox], None]
OUTAGES: dict[str, tuple[str, Act, Act]] = {
    "broker-paused": ("BrokerUnavailable", lambda b: b.pause_service("kafka"), lambda b: b.resume_service("kafka")),
    "broker-stopped": ("BrokerUnavailable", lambda b: b.stop_service("kafka"), lambda b: b.start_service("kafka")),
    "metastore-paused": (
        "MetastoreUnavailable",
        lambda b: b.pause_service("metastore"),
        lambda b: b.resume_service("metastore"),
    ),
    "metastore-killed": (
        "MetastoreUnavailable",
        lambda b: b.stop_service("metastore", kill=True),
        lambda b: b.start_service("metastore"),
    ),
}


@pytest.mark.parametrize(("reason", "begin", "end"), list(OUTAGES.values()), ids=list(OUTAGES))
def test_service_when_away_in_mid_stream_then_the_daemon_waits_and_every_id_comes_once(
    stack: Stack, own: Sandbox, reason: str, begin: Act, end: Act
) -> None:
    stack.topic(2)
    stack.produce({"id": n} for n in range(RECORDS))
    stack.table("id bigint")
    daemon = _start(stack)
    eventually("the second commit", lambda: _commits(daemon) >= 2)
    begin(own)
    try:
        told = eventually("the daemon to say so", lambda: daemon.events("waiting"), 60)
        before = _commits(daemon)
    finally:
        end(own)
    assert told[0]["reason"] == reason
    assert before < RECORDS // 100
    stack.produce({"id": n} for n in range(RECORDS, RECORDS + 100))
    eventually("all rows", lambda: _rows(stack) == RECORDS + 100, 90)
    daemon.terminate()
    assert daemon.wait(60) == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(RECORDS + 100))
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/") == []
    assert "Traceback" not in daemon.text()
    # Every line is one of ours: nothing that librdkafka or Thrift say of themselves floods the log.
    assert len(daemon.text().splitlines()) < len(daemon.events()) + 20


def test_second_sigterm_when_the_stage_hangs_then_aborts_at_once_and_leaves_nothing_open(
    stack: Stack, own: Sandbox
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    gate = stack.directory / "gate"
    daemon = _start(stack, INGESTD_TESTING="1", INGESTD_FAILPOINT=f"opened@2=hold:{gate}")
    eventually("the mapping to be owned", lambda: daemon.events("owner"))
    stack.produce({"id": n} for n in range(50))
    eventually("the transaction", lambda: os.path.exists(f"{gate}.held"))
    own.pause_service("kafka")
    try:
        # The stage now waits for a broker that says nothing.
        gate.touch()
        daemon.terminate()
        eventually("the first signal to be taken", lambda: _is_reading(stack), 20)
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
    """A task has made its staging directory."""
    warehouse = stack.addresses.warehouse.removeprefix("file://")
    staging = os.path.join(warehouse, stack.name, ".ingestd-staging")
    return any(name.startswith("task-") for _, names, _ in os.walk(staging) for name in names)
