"""During an outage of the broker or the metastore, the daemon waits, logs and then stores every id exactly once."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ingestd import java
from ingestd.errors import BrokerUnavailable
from ingestd.hive import transactions
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import open_transactions
from ingestd.kafka.admin import Broker
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions, jars
from ingestd.sandbox.database import derby
from ingestd.sandbox.ports import DERBY
from ingestd.sandbox.state import Layout, load
from tests.support.daemon import Daemon, Hold
from tests.support.patience import LIMIT
from tests.support.sandbox import running
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table, visible_ids

# The rows of a transaction.
ROWS = 100


@pytest.fixture(scope="module")
def own(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Yield a separate sandbox, because these tests pause and kill its services."""
    options = SandboxOptions(tmp_path_factory.mktemp("own-sandbox"), kafka_heap_mb=256, metastore_heap_mb=384)
    with running(options) as box:
        yield box


@pytest.fixture(scope="module")
def addresses(own: Sandbox) -> Addresses:
    """Return the addresses that the fixture `stack` uses in this module."""
    return own.addresses()


def _config(stack: Stack) -> Path:
    """Write a configuration with commits of `ROWS` rows and timeouts of 3 s."""
    return stack.config(
        {"commit": {"rows": ROWS, "interval": "300ms"}},
        metastore={"uri": stack.addresses.metastore, "timeout": "3s"},
        kafka={"bootstrap.servers": stack.addresses.kafka, "socket.timeout.ms": 3000},
    )


def _name(stack: Stack) -> TableName:
    return TableName("default", stack.name)


def _ids(stack: Stack) -> list[int]:
    return visible_ids(stack.metastore, _name(stack))


def _rows(daemon: Daemon) -> int:
    return sum(e["rows"] for e in daemon.events("committed"))


def _produce(stack: Stack, ids: range) -> None:
    """Produce records idempotently, so that records that are resent during an outage are stored only once."""
    producer = Producer({"bootstrap.servers": stack.addresses.kafka, "enable.idempotence": True})
    for n in ids:
        producer.produce(stack.name, json.dumps({"id": n}))
    assert producer.flush(LIMIT) == 0


class _Ingestion:
    """A daemon that commits records while services fail. `produced` is the number of records so far."""

    def __init__(self, stack: Stack, daemon: Daemon) -> None:
        self._stack = stack
        self.daemon = daemon
        self.produced = 0
        self._waits = 0

    def proceed(self) -> None:
        """Produce records for several commits, and wait for the first of them. At least four commits are then left."""
        left = 0
        while left < 4 * ROWS:
            before = _rows(self.daemon)
            _produce(self._stack, range(self.produced, self.produced + 8 * ROWS))
            self.produced += 8 * ROWS
            eventually("a commit", lambda before=before: _rows(self.daemon) > before)  # type: ignore[misc]
            self._waits = len(self.daemon.events("waiting"))
            left = self.produced - _rows(self.daemon)

    def assert_waits(self, reason: str) -> None:
        """Check that the daemon waits, for this reason, before it has committed all records."""

        def is_logged() -> bool:
            return reason in [event["reason"] for event in self.daemon.events("waiting")[self._waits :]]

        eventually("the outage to be logged", is_logged)
        assert _rows(self.daemon) < self.produced, "the outage began after the last commit"

    def assert_every_id_once(self) -> None:
        """Produce more records, stop the daemon, and check that the table contains every id exactly once."""
        self.proceed()
        eventually("all rows", lambda: _rows(self.daemon) == self.produced)
        self.daemon.terminate()
        assert self.daemon.wait() == 0, self.daemon.text()[-3000:]
        assert _ids(self._stack) == list(range(self.produced))
        assert open_transactions(self._stack.metastore, f"ingestd/ingestd/{self._stack.name}/") == []
        assert "Traceback" not in self.daemon.text()
        # Messages of librdkafka and Thrift do not flood the log.
        messages = re.findall(r"^%\d\|.*", self.daemon.text(), re.MULTILINE)
        notes = [note["text"] for note in self.daemon.events("note") if note["source"].startswith("thrift")]
        assert len(messages) + len(notes) < 10, messages + notes


def test_services_when_paused_killed_and_restarted_then_every_id_arrives_once(stack: Stack, own: Sandbox) -> None:
    stack.topic(2)
    make_table(stack.metastore, _name(stack))
    ingestion = _Ingestion(stack, stack.start_process(_config(stack)))
    for service, reason in (("kafka", "BrokerUnavailable"), ("metastore", "MetastoreUnavailable")):
        ingestion.proceed()
        own.pause_service(service)
        try:
            ingestion.assert_waits(reason)
        finally:
            own.resume_service(service)
    ingestion.proceed()
    own.stop_service("metastore", kill=True)
    try:
        ingestion.assert_waits("MetastoreUnavailable")
    finally:
        own.start_service("metastore")
    ingestion.proceed()
    own.stop_service("kafka")
    own.start_service("kafka")
    ingestion.assert_every_id_once()


def test_offsets_when_the_broker_does_not_answer_then_broker_unavailable_is_raised(stack: Stack, own: Sandbox) -> None:
    stack.topic(1)
    servers = {"bootstrap.servers": stack.addresses.kafka}
    partitions = Broker(servers).partitions([stack.name])
    broker = Broker(servers, timeout_seconds=0.5)
    own.pause_service("kafka")
    try:
        # librdkafka returns -1001 without an error here. Used as an offset, it would restart from the beginning.
        for ask in (broker.ends, broker.earliest, lambda asked: broker.at_time(asked, 0)):
            with pytest.raises(BrokerUnavailable):
                ask(partitions)
    finally:
        own.resume_service("kafka")


def test_metastore_when_it_does_not_answer_a_commit_then_logged_and_every_id_arrives_once(
    stack: Stack, own: Sandbox
) -> None:
    stack.topic(2)
    make_table(stack.metastore, _name(stack))
    hold = Hold("counted", times=2)
    daemon = stack.start(_config(stack), hold=hold)
    eventually("the mapping to be owned", lambda: daemon.events("owner"))
    ingestion = _Ingestion(stack, daemon)
    _produce(stack, range(ROWS))
    ingestion.produced = ROWS
    hold.wait()
    before = len(daemon.events("waiting"))

    def told() -> list[str]:
        waits = daemon.events("waiting")[before:]
        return [event["error"] for event in waits if event["reason"] == "MetastoreUnavailable"]

    own.pause_service("metastore")
    try:
        hold.release()
        # Calls of other threads may be logged as well, and before it.
        eventually("the outage to be logged more than once", lambda: len(told()) > 1)
        eventually("the lost answer to be logged", lambda: any("commit_txn" in error for error in told()))
    finally:
        own.resume_service("metastore")
    ingestion.assert_every_id_once()


@contextmanager
def _commits_refused(stack: Stack) -> Iterator[None]:
    """Let the database of the metastore refuse the row that each commit to the table of the test inserts."""
    rule = f"CONSTRAINT C_{stack.name}"
    # The table contains a row of the transaction in which the start position was stored.
    last = transactions.begin(stack.metastore, "tests").id
    transactions.abort(stack.metastore, last)
    _change_database(stack, f"ADD {rule} CHECK (CTC_TABLE <> '{stack.name}' OR CTC_TXNID < {last})")
    try:
        yield
    finally:
        _change_database(stack, f"DROP {rule}")


def _change_database(stack: Stack, change: str) -> None:
    """Alter the table of completed transactions with `ij`, whose exit code is 0 even after errors."""
    folder = Path(stack.addresses.state_dir)
    database = derby(Layout(folder).data, load(folder).ports[DERBY])
    login = [f"-Dij.{key}={getattr(database, key)}" for key in ("user", "password")]
    command = [str(java.find_java() / "bin" / "java"), *login, f"-Dij.database={database.other_process_url}"]
    classes = ["-cp", f"{jars.folder()}/metastore/*", "org.apache.derby.tools.ij"]
    statement = f"ALTER TABLE APP.COMPLETED_TXN_COMPONENTS {change};"
    said = subprocess.run([*command, *classes], input=statement, capture_output=True, text=True, check=True).stdout
    assert "ERROR" not in said, said


def test_metastore_when_its_database_refuses_commits_then_logged_and_every_id_arrives_once(
    stack: Stack, own: Sandbox
) -> None:
    stack.topic(2)
    make_table(stack.metastore, _name(stack))
    ingestion = _Ingestion(stack, stack.start(_config(stack)))
    eventually("the mapping to be owned", lambda: ingestion.daemon.events("owner"))
    with _commits_refused(stack):
        ingestion.produced = ROWS
        _produce(stack, range(ROWS))
        ingestion.assert_waits("CommitRefused")
        refused = [event for event in ingestion.daemon.events("waiting") if event["reason"] == "CommitRefused"]
        assert refused[0]["mapping"] == stack.name
        assert f"transaction {refused[0]['txn']}" in refused[0]["error"]
        assert _ids(stack) == []
    ingestion.assert_every_id_once()


def test_second_sigterm_when_the_stage_hangs_then_aborts_at_once_and_no_transaction_is_open(
    stack: Stack, own: Sandbox
) -> None:
    stack.topic(1)
    make_table(stack.metastore, _name(stack))
    hold = Hold("opened", times=2)
    # Without a socket timeout, so that the stage waits for longer than this test.
    daemon = stack.start(stack.config(), hold=hold)
    eventually("the mapping to be owned", lambda: daemon.events("owner"))
    stack.produce({"id": n} for n in range(50))
    hold.wait()
    own.pause_service("kafka")
    try:
        # The stage now waits for a broker that does not answer.
        hold.release()
        daemon.terminate()
        eventually("the stage to read", lambda: _is_reading(stack))
        daemon.terminate()
        code = daemon.wait()
    finally:
        own.resume_service("kafka")
    assert code == 0, daemon.text()[-3000:]
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/") == []
    assert _ids(stack) == []
    stack.drain()
    assert _ids(stack) == list(range(50))


def _is_reading(stack: Stack) -> bool:
    """Return whether a task has created its staging directory."""
    warehouse = stack.addresses.warehouse.removeprefix("file://")
    staging = os.path.join(warehouse, stack.name, ".ingestd-staging")
    return any(name.startswith("task-") for _, names, _ in os.walk(staging) for name in names)
