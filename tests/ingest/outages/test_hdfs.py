"""A warehouse in HDFS that fails while data flows: the daemon waits and continues, and every id is stored once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from hdfs_native import Client

from ingestd.clock import Deadline, pause
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import open_transactions
from ingestd.sandbox import DATANODE, NAMENODE, Addresses, Sandbox, SandboxOptions
from ingestd.storage.contract import child
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from tests.support.daemon import Daemon
from tests.support.flow import Flow, proceed, wait_for_rows
from tests.support.hdfs import dfsadmin
from tests.support.sandbox import running
from tests.support.stack import Stack, eventually

# The user of the daemon. The superuser, who started the NameNode, is never denied anything.
USER = "etl"
_SECONDS = float(os.environ.get("INGESTD_TEST_CHAOS_SECONDS", "180"))
_SEED = int(os.environ.get("INGESTD_TEST_CHAOS_SEED", "0")) or random.SystemRandom().randrange(10**6)


@pytest.fixture(scope="module")
def box(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    options = SandboxOptions(
        tmp_path_factory.mktemp("hdfs-sandbox"), storage="hdfs", hiveserver2=True, kafka_heap_mb=256
    )
    with running(options) as made:
        yield made


@pytest.fixture(scope="module")
def addresses(box: Sandbox) -> Addresses:
    """Return the addresses that the fixture `stack` uses in this module."""
    return box.addresses()


class Table:
    """A table of `USER`, and what administrators do to its directory."""

    def __init__(self, stack: Stack, name: str, partitioned: str = "") -> None:
        stack.table("id bigint", partitioned, f"default.{name}")
        self._conf = Path(stack.addresses.hadoop_conf_dir or "")
        self._uri = load_acid_table(stack.metastore, TableName("default", name)).location
        self._path = "/" + self._uri.split("/", 3)[3]
        self._client = Client(self._uri.removesuffix(self._path))
        self._client.set_owner(self._path, USER)

    @contextmanager
    def safe_mode(self) -> Iterator[None]:
        dfsadmin(self._conf, "-safemode", "enter")
        try:
            yield
        finally:
            dfsadmin(self._conf, "-safemode", "leave")

    @contextmanager
    def quota(self) -> Iterator[None]:
        dfsadmin(self._conf, "-setSpaceQuota", "1", self._path)
        try:
            yield
        finally:
            dfsadmin(self._conf, "-clrSpaceQuota", self._path)

    @contextmanager
    def quota_of_names(self) -> Iterator[None]:
        dfsadmin(self._conf, "-setQuota", "1", self._path)
        try:
            yield
        finally:
            dfsadmin(self._conf, "-clrQuota", self._path)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        mode = self._client.get_file_info(self._path).permission
        self._client.set_permission(self._path, 0o555)
        try:
            yield
        finally:
            self._client.set_permission(self._path, mode)

    def staged(self) -> list[str]:
        """Return the names of the staging directories."""
        staging = child(self._uri, ".ingestd-staging")
        return Storages(StorageOptions(hadoop_conf_dir=self._conf)).at(staging).leftovers(staging)


@contextmanager
def _killed(box: Sandbox, service: str) -> Iterator[None]:
    box.stop_service(service, kill=True)
    try:
        yield
    finally:
        box.start_service(service)
        if service == NAMENODE:  # until a DataNode has reported its blocks, it refuses the changes of administrators
            dfsadmin(Path(box.addresses().hadoop_conf_dir or ""), "-safemode", "wait")


@contextmanager
def _suspended(box: Sandbox, service: str) -> Iterator[None]:
    box.pause_service(service)
    try:
        yield
    finally:
        box.resume_service(service)


class Fault(NamedTuple):
    """A fault that lasts as long as the context of `inject`, and what the daemon says about it."""

    inject: Callable[[], AbstractContextManager[None]]
    reason: str
    text: str


def _faults(box: Sandbox, table: Table) -> list[Fault]:
    return [
        Fault(partial(_killed, box, NAMENODE), "StorageUnavailable", ""),
        Fault(partial(_suspended, box, NAMENODE), "NoAnswer", "not answered within 2 s"),
        Fault(table.safe_mode, "StorageUnavailable", "safe mode"),
        Fault(partial(_killed, box, DATANODE), "StorageUnavailable", ""),
        Fault(table.quota, "NoSpace", "quota"),
        Fault(table.read_only, "PermissionDenied", f"user={USER}"),
    ]


def _has_waited(daemon: Daemon, times: int, fault: Fault) -> bool:
    """Return whether the daemon has waited because of this fault after it had waited for so many times."""
    waits = daemon.events("waiting")[times:]
    return any(event["reason"] == fault.reason and fault.text in event["error"] for event in waits)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_hdfs_when_it_fails_while_data_flows_then_the_daemon_waits_and_every_id_is_stored_once(
    stack: Stack, box: Sandbox
) -> None:
    stack.topic(2)
    table = Table(stack, stack.name)
    storage = {"hadoop_conf_dir": stack.addresses.hadoop_conf_dir, "timeout": "2s"}
    local = stack.directory / "local"
    local.mkdir()
    daemon = stack.start_process(stack.config(storage=storage), HADOOP_USER_NAME=USER, SPARK_LOCAL_DIRS=str(local))
    faults = _faults(box, table)
    with Flow(stack.addresses.kafka, stack.name) as flow:
        proceed(daemon, stack.name, flow)
        for number in range(5):
            for fault in random.sample(faults, len(faults)) if number else faults:
                waits = len(daemon.events("waiting"))
                with fault.inject():
                    eventually(f"the daemon to wait: {fault}", partial(_has_waited, daemon, waits, fault))
                proceed(daemon, stack.name, flow)
    wait_for_rows(daemon, stack.name, flow.sent)
    eventually("staging directories to be removed", lambda: not table.staged())
    assert list(local.rglob("ingestd-spool-*")) == []
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(flow.sent))
    assert stack.count() == flow.sent
    assert table.staged() == []
    assert "Traceback" not in daemon.text()


@pytest.mark.soak
@pytest.mark.timeout(_SECONDS + 900)
def test_hdfs_when_short_faults_follow_each_other_then_every_id_is_stored_once_in_each_table(
    stack: Stack, box: Sandbox
) -> None:
    chance = random.Random(_SEED)
    stack.topic(3)
    partitioned = f"{stack.name}_p"
    names = [stack.name, partitioned]
    tables = [Table(stack, stack.name), Table(stack, partitioned, "part int")]
    storage = {"hadoop_conf_dir": stack.addresses.hadoop_conf_dir, "timeout": "2s"}
    often: dict[str, object] = {"commit": {"interval": "1s"}}
    second = {"name": partitioned[-40:], "table": f"default.{partitioned}"}
    daemon = stack.start_process(stack.config(often, often | second, storage=storage), HADOOP_USER_NAME=USER)
    faults = [fault for table in tables for fault in (table.quota, table.quota_of_names, table.read_only)]
    faults += [tables[0].safe_mode]
    faults += [partial(inject, box, name) for inject in (_killed, _suspended) for name in (NAMENODE, DATANODE)]
    with Flow(stack.addresses.kafka, stack.name, parts=30) as flow:
        for name in names:
            proceed(daemon, name[-40:], flow)
        end, rest = Deadline.after(_SECONDS), faults[:0]
        while not end.passed:
            rest = rest or chance.sample(faults, len(faults))
            with rest.pop()():
                pause(chance.choice((0.3, 1.5, 4.0)))
            pause(chance.choice((0.0, 0.5, 2.0)))
    for name in names:
        wait_for_rows(daemon, name[-40:], flow.sent)
    eventually("staging directories to be removed", lambda: not [name for table in tables for name in table.staged()])
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    for name in names:
        assert stack.ids(name) == list(range(flow.sent)), f"seed {_SEED}"
        assert stack.count(name=name) == flow.sent, f"seed {_SEED}"
    assert "Traceback" not in daemon.text()


@pytest.mark.soak
def test_hdfs_when_it_denies_a_permission_then_the_mapping_stops_and_without_space_it_waits(stack: Stack) -> None:
    stack.topic(2)
    table = Table(stack, stack.name)
    stack.produce({"id": n} for n in range(100))
    refusals = {"refusals": {"retries": 2, "period": "300ms"}}
    config = stack.config(refusals, storage={"hadoop_conf_dir": stack.addresses.hadoop_conf_dir})
    with table.read_only():
        daemon = stack.start_process(config, "--until-caught-up", HADOOP_USER_NAME=USER)
        assert daemon.wait() == 77, daemon.text()[-3000:]
    [failed] = daemon.events("failed")
    assert failed["reason"] == "PermissionDenied"
    assert f"user={USER}" in failed["error"]
    assert stack.name in failed["error"]
    assert [event["reason"] for event in daemon.events("waiting")].count("PermissionDenied") >= 2
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name[-40:]}/") == []
    assert table.staged() == []

    daemon = stack.start_process(config, HADOOP_USER_NAME=USER)
    for number, (inject, reason) in enumerate(((table.quota, "NoSpace"), (table.safe_mode, "StorageUnavailable")), 1):
        wait_for_rows(daemon, stack.name, 100 * number)
        waits = len(daemon.events("waiting"))
        with inject():
            stack.produce({"id": n} for n in range(100 * number, 100 * (number + 1)))
            eventually(
                "the daemon to wait more often than for a refusal",
                lambda: len([e for e in daemon.events("waiting")[waits:] if e["reason"] == reason]) > 3,  # noqa: B023
            )
    wait_for_rows(daemon, stack.name, 300)
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(300))
    assert table.staged() == []
