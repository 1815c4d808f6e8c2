"""Kerberos everywhere: HDFS, metastore and HiveServer2 accept only tickets, which expire while records flow.

The connections to the metastore and to the NameNode are cut again and again, because only new connections log in.
HiveServer2, which logs in with a keytab of its own, reads the rows back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ingestd.clock import Deadline, pause
from ingestd.hive.security import Kerberos, Security
from ingestd.sandbox import Addresses
from ingestd.storage.contract import child
from ingestd.storage.hdfs_client import HdfsClient
from ingestd.storage.options import HdfsOptions, StorageOptions
from ingestd.storage.storages import Storages
from ingestd.streaming import ArrowWriter, HiveStreamingConnection
from tests.streaming.support import rows
from tests.support.cluster import Cluster
from tests.support.daemon import DaemonProcess
from tests.support.flow import Flow, proceed, wait_for_rows
from tests.support.kafka import kafka_broker
from tests.support.kerberos import NAME, Realm, realm
from tests.support.proxy import Proxy, proxy
from tests.support.secured_hdfs import SecuredCluster, secured_hdfs
from tests.support.secured_hive import ROOT, secured_hive
from tests.support.stack import Stack, eventually

_TICKET_SECONDS = 4


@pytest.fixture(scope="module")
def kdc(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm(tmp_path_factory.mktemp("kdc")) as running:
        running.add("etl", f"-maxlife {_TICKET_SECONDS}s")
        running.keytab("etl", "etl")
        yield running


@pytest.fixture(scope="module")
def cluster(kdc: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_hdfs(tmp_path_factory.mktemp("hdfs") / "state", kdc) as running:
        yield running


@pytest.fixture(scope="module")
def addresses(kdc: Realm, cluster: SecuredCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Yield the addresses that the fixture `stack` uses in this module."""
    with (
        kafka_broker(tmp_path_factory.mktemp("kafka")) as broker,
        secured_hive(tmp_path_factory.mktemp("hive"), kdc, cluster, broker.servers) as running,
    ):
        yield running


class _Doors:
    """The ways to the metastore and to the NameNode."""

    def __init__(self, cluster: SecuredCluster, kdc: Realm, metastore: Proxy, namenode: Proxy) -> None:
        self.metastore = metastore
        self.namenode = namenode
        self.keytab = kdc.folder / "etl.keytab"
        self.hdfs = cluster.client(f"localhost:{namenode.port}")

    def sections(self, keytab: Path | None = None) -> dict[str, Any]:
        """Return the sections `metastore` and `storage` of a configuration; HDFS may use another keytab."""
        user = f"etl@{NAME}"
        login = {"principal": f"hive/_HOST@{NAME}", "user": user, "keytab": str(self.keytab)}
        hdfs = {"principal": user, "keytab": str(keytab or self.keytab), "properties": self.hdfs}
        return {
            "metastore": {"uri": self.metastore.uri, "timeout": "20s", "kerberos": login},
            "storage": {"timeout": "20s", "hdfs": hdfs},
        }

    @property
    def storage(self) -> StorageOptions:
        """Options with which the storage logs in as the daemon does."""
        return StorageOptions(timeout=20.0, hdfs=HdfsOptions(f"etl@{NAME}", self.keytab, self.hdfs))

    def staged(self, stack: Stack) -> list[str]:
        """Return the names of the staging directories of the test's table."""
        table = child(stack.addresses.warehouse, stack.name)
        return Storages(self.storage).at(table).leftovers(child(table, ".ingestd-staging"))

    def owner(self, directory: str) -> str:
        """Return the user to whom a directory belongs."""
        root, path = directory[: len(ROOT)], directory[len(ROOT) :]
        return HdfsClient(root, self.storage).run(directory, lambda client: client.get_file_info(path)).owner

    def cut(self) -> None:
        """Cut all connections."""
        self.metastore.cut()
        self.namenode.cut()


@pytest.fixture
def doors(kdc: Realm, cluster: SecuredCluster, addresses: Addresses) -> Iterator[_Doors]:
    with proxy(addresses.metastore) as metastore, proxy(cluster.root) as namenode:
        yield _Doors(cluster, kdc, metastore, namenode)


def _until_waiting(daemon: DaemonProcess, reason: str, door: Proxy, *texts: str) -> None:
    """Cut connections until the daemon waits for this reason because of a login; its error contains one of `texts`.

    The first errors may say something else, because the ticket is valid until it expires.
    """

    def is_told() -> bool:
        door.cut()
        told = [event["error"] for event in daemon.events("waiting") if event["reason"] == reason]
        return any("KDC" in error and text in error for error in told for text in texts)

    eventually(f"the reason {reason} with one of {texts}", is_told)


def test_daemon_when_tickets_expire_and_the_kdc_fails_while_records_flow_then_every_id_is_stored_once(
    stack: Stack, kdc: Realm, doors: _Doors
) -> None:
    name = stack.name[-40:]
    daemon = _start(stack, doors)
    with Flow(stack.addresses.kafka, stack.name) as flow:
        proceed(daemon, name, flow)
        _log_in_again(daemon, name, flow, doors)

        with kdc.stopped():
            expired = f"the ticket of etl@{NAME} for HDFS has expired"
            _until_waiting(daemon, "StorageUnavailable", doors.namenode, expired)
            expired = f"the ticket of etl@{NAME} has expired"
            _until_waiting(daemon, "MetastoreUnavailable", doors.metastore, expired, "Cannot contact any KDC")
        proceed(daemon, name, flow)

        with kdc.suspended():
            suspended = Deadline.after(_TICKET_SECONDS + 2)
            while not suspended.passed:
                doors.cut()
                pause(0.5)
        proceed(daemon, name, flow)
    _check(stack, doors, daemon, flow.sent)
    # The metastore has created it for its client.
    assert doors.owner(child(stack.addresses.warehouse, stack.name, "day=today")) == "etl"


@pytest.mark.soak
def test_daemon_on_executors_when_logins_give_up_on_a_suspended_kdc_then_every_id_is_stored_once(
    stack: Stack, kdc: Realm, doors: _Doors, tmp_path: Path
) -> None:
    name = stack.name[-40:]
    with closing(Cluster(tmp_path / "cluster")) as spark:
        daemon = _start(stack, doors, spark=spark.options())
        with Flow(stack.addresses.kafka, stack.name) as flow:
            proceed(daemon, name, flow)
            for _ in range(3):
                _log_in_again(daemon, name, flow, doors)
                with kdc.suspended():
                    _until_login_fails(daemon, doors)
                proceed(daemon, name, flow)
        _check(stack, doors, daemon, flow.sent)


def _until_login_fails(daemon: DaemonProcess, doors: _Doors) -> None:
    """Cut connections until another login has failed for lack of a KDC."""

    def failures() -> int:
        doors.cut()
        return daemon.text().count("KDCs in krb5.conf")

    before = failures()
    eventually("a login to fail", lambda: failures() > before)


def _start(stack: Stack, doors: _Doors, **sections: Any) -> DaemonProcess:
    """Create topic and table, and start a daemon."""
    stack.topic(2)
    stack.table("id bigint", "day string")
    mapping = {"partition": {"day": "today"}, "commit": {"interval": "300ms"}}
    return stack.start_process(stack.config(mapping, **doors.sections(), **sections))


def _check(stack: Stack, doors: _Doors, daemon: DaemonProcess, sent: int) -> None:
    """Check that each id is stored once and no file is left, when the daemon has ended."""
    wait_for_rows(daemon, stack.name[-40:], sent)
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(sent))
    assert doors.staged(stack) == []


def _log_in_again(daemon: DaemonProcess, name: str, flow: Flow, doors: _Doors) -> None:
    """Cut all connections again and again, until tickets have expired twice."""
    expired = Deadline.after(2 * _TICKET_SECONDS + 1)
    while not expired.passed:
        doors.cut()
        proceed(daemon, name, flow)


@pytest.mark.soak
def test_streaming_when_tickets_expire_while_writing_then_every_commit_succeeds(stack: Stack, doors: _Doors) -> None:
    stack.table("id int, note string", "day string")
    connection = HiveStreamingConnection(
        table=stack.name,
        metastore_uri=doors.metastore.uri,
        record_writer=ArrowWriter(),
        security=Security(Kerberos(f"hive/_HOST@{NAME}", f"etl@{NAME}", doors.keytab)),
        storage=doors.storage,
    )
    expired = Deadline.after(2 * _TICKET_SECONDS + 1)
    count = 0
    with connection:
        while not expired.passed:
            with connection.transaction():
                connection.write(rows(count, day=["a", "b"] * 5))
                doors.cut()
                connection.write(rows(count + 10, day=["b", "c"] * 5))
                doors.cut()
            count += 20
    assert stack.ids() == list(range(count))
    assert stack.count() == count
    assert doors.staged(stack) == []


def test_daemon_when_a_keytab_has_another_principal_then_exits_with_77_and_names_both(
    stack: Stack, kdc: Realm, doors: _Doors
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    other = kdc.keytab("other", "ingestd")
    daemon = stack.drain(stack.config(**doors.sections(other)), expect=77)
    assert f"storage.hdfs.keytab {other}: the keytab has no key for etl@{NAME}" in daemon.text()
    assert f"set storage.hdfs.principal to a principal in it: ingestd@{NAME}" in daemon.text()
