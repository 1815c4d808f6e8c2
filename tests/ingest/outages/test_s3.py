"""A warehouse in S3: every id is stored once after faults and late requests.

The server is versitygw if it is installed, because it is faster and stricter, and otherwise moto. The tests of
`tests/storage/test_tables.py` kill the daemon after each step, and let Hive change the rows.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestd.hive.transactions import open_transactions
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.options import S3_SERVER
from ingestd.storage.contract import child
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from tests.support.cluster import Cluster, elsewhere, tree
from tests.support.patience import LIMIT
from tests.support.proxy import Proxy
from tests.support.proxy import proxy as tcp_proxy
from tests.support.s3 import find_versitygw
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.sandbox import running
from tests.support.stack import Stack, eventually

ROWS = 100
# How often ingestd sends a request to S3 that gets no answer.
_ATTEMPTS = 4


@pytest.fixture(scope="module")
def box(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    folder = tmp_path_factory.mktemp("s3-sandbox")
    options = SandboxOptions(folder, storage="s3", versitygw=find_versitygw(), hiveserver2=True, kafka_heap_mb=256)
    with running(options) as made:
        yield made


@pytest.fixture(scope="module")
def addresses(box: Sandbox) -> Addresses:
    """Return the addresses that the fixture `stack` uses in this module."""
    return box.addresses()


@pytest.fixture
def proxy(box: Sandbox) -> Iterator[S3Proxy]:
    (server,) = (service for service in box.status() if service.name == "s3")
    with s3_proxy(int(server.address.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def door(proxy: S3Proxy) -> Iterator[Proxy]:
    """Yield an address of the proxy that can refuse connections."""
    with tcp_proxy(proxy.endpoint) as door:
        yield door


def _through(
    stack: Stack, proxy: S3Proxy, door: Proxy | None = None, *, refusals: dict[str, Any] | None = None, **sections: Any
) -> Path:
    """Write a configuration of a daemon that reaches the server through the proxy, and the proxy through the door."""
    s3 = {"endpoint": f"http://127.0.0.1:{door.port}" if door else proxy.endpoint}
    storage = {"hadoop_conf_dir": stack.addresses.hadoop_conf_dir, "timeout": "8s", "s3": s3}
    mapping = {"commit": {"rows": ROWS, "interval": "300ms"}} | ({"refusals": refusals} if refusals else {})
    return stack.config(mapping, storage=storage, **sections)


def _orders(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": i, "note": f"note {i}", "dt": f"2026-11-{i % 3 + 1:02d}:a"} for i in range(first, last)]


def _large(first: int) -> list[dict[str, Any]]:
    """Return records of one partition whose file is uploaded in parts."""
    notes = (base64.b64encode(os.urandom(400_000)).decode() for _ in range(64))
    return [{"id": first + n, "note": note, "dt": "2026-11-01"} for n, note in enumerate(notes)]


def _table(stack: Stack, name: str) -> str:
    return stack.table("id bigint, note string", "dt string", f"default.{name}")


def _left(stack: Stack, name: str) -> list[str]:
    """Return the names of the staging directories of a table."""
    bucket = stack.addresses.warehouse.rpartition("/")[0]
    storages = Storages(StorageOptions(hadoop_conf_dir=Path(stack.addresses.hadoop_conf_dir or "")))
    found = [child(bucket, part, name, ".ingestd-staging") for part in ("managed", "external")]
    return [left for directory in found for left in storages.at(directory).leftovers(directory)]


def test_check_when_the_bucket_is_read_only_then_names_the_request_to_write(stack: Stack, proxy: S3Proxy) -> None:
    stack.topic(1)
    _table(stack, stack.name)
    proxy.refuse("PUT", 403, "AccessDenied")
    proxy.refuse("LIST", 403, "RequestOfTheRemoval")
    command = [sys.executable, "-m", "ingestd", "check", "--online", "--config", str(_through(stack, proxy))]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 77
    assert "AccessDenied" in said.stdout
    assert "RequestOfTheRemoval" not in said.stdout


def test_s3_when_it_denies_a_permission_then_the_mapping_stops_and_leaves_nothing_behind(
    stack: Stack, proxy: S3Proxy
) -> None:
    stack.topic(1)
    _table(stack, stack.name)
    stack.produce(_orders(0, ROWS))
    config = _through(stack, proxy, refusals={"retries": 2, "period": "300ms"})
    for operation in ("PUT", "COPY"):  # while files are staged, and while they are published
        proxy.refuse(operation, 403, "AccessDenied")
        daemon = stack.drain(config, expect=77)
        proxy.recover()
        [failed] = daemon.events("failed")
        assert failed["reason"] == "PermissionDenied"
        assert "AccessDenied" in failed["error"]
        assert f"/{stack.name}/" in failed["error"]
        assert [event["reason"] for event in daemon.events("waiting")].count("PermissionDenied") >= 2
        assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name[-40:]}/") == []
        assert _left(stack, stack.name) == []
        assert stack.ids() == []
    stack.drain(config)
    assert stack.ids() == list(range(ROWS))


@pytest.mark.parametrize("operation", ["PUT", "COPY"])
def test_s3_when_killed_while_a_request_is_in_progress_then_its_late_execution_has_no_effect(
    stack: Stack, proxy: S3Proxy, operation: str
) -> None:
    stack.topic(2)
    _table(stack, stack.name)
    config = _through(stack, proxy)
    stack.drain(config)
    stack.produce(_orders(0, ROWS))
    proxy.hold(operation)
    killed = stack.start_process(config)
    assert proxy.held.acquire(timeout=LIMIT)
    killed.kill()
    assert stack.ids() == []
    stack.drain(stack.config())  # not through the proxy, which still holds requests of the killed daemon
    assert stack.ids() == list(range(ROWS))
    before = proxy.forwarded
    proxy.release(operation)
    proxy.wait_until_forwarded(before + 1)
    assert stack.ids() == list(range(ROWS))
    assert stack.count() == ROWS
    stack.produce(_orders(ROWS, 2 * ROWS))
    stack.drain(stack.config())
    assert stack.ids() == list(range(2 * ROWS))
    assert _left(stack, stack.name) == []


def test_s3_when_executors_of_a_cluster_are_killed_while_they_upload_then_every_id_is_stored_once(
    stack: Stack, proxy: S3Proxy, tmp_path: Path
) -> None:
    """The executors have neither the Hadoop configuration with the keys nor a connection to the metastore."""
    stack.topic(2)
    _table(stack, stack.name)
    site = tmp_path / "site"
    with closing(Cluster(tmp_path / "spark")) as cluster:
        daemon = stack.start_process(_through(stack, proxy, spark=cluster.options(elsewhere(site, stack))))
        eventually("the daemon to own the mapping", lambda: daemon.events("owner"))
        proxy.hold("PUT")
        stack.produce(_orders(0, ROWS))
        assert proxy.held.acquire(timeout=LIMIT)
        for process in (part for worker in cluster.workers for jvm in cluster.executors(worker) for part in tree(jvm)):
            process.kill()
        before = proxy.forwarded
        proxy.release("PUT")
        proxy.wait_until_forwarded(before + 1)
        eventually("all rows", lambda: sum(event["rows"] for event in daemon.events("committed")) >= ROWS)
        daemon.terminate()
        assert daemon.wait() == 0
    assert list(site.glob("python-*"))
    assert not (site / "refused").exists()
    stack.drain(stack.config())
    assert stack.ids() == list(range(ROWS))
    assert stack.count() == ROWS
    assert _left(stack, stack.name) == []


def test_s3_when_suspended_between_copies_then_after_a_takeover_it_publishes_nothing(
    stack: Stack, proxy: S3Proxy
) -> None:
    stack.topic(2)
    _table(stack, stack.name)
    stack.drain(_through(stack, proxy))
    stack.produce(_orders(0, ROWS))
    proxy.hold("COPY", after=1)
    suspended = stack.start_process(_through(stack, proxy))
    assert proxy.held.acquire(timeout=LIMIT)
    os.kill(suspended.process.pid, signal.SIGSTOP)
    rival = stack.start(stack.config())  # not through the proxy
    eventually("the rival's rows", lambda: stack.ids() == list(range(ROWS)))
    before = proxy.forwarded
    proxy.release("COPY")
    proxy.wait_until_forwarded(before + 1)
    assert stack.ids() == list(range(ROWS))
    os.kill(suspended.process.pid, signal.SIGCONT)
    eventually("the suspended daemon to become standby", lambda: suspended.events("standby"))
    stack.produce(_orders(ROWS, 2 * ROWS))
    eventually("all rows", lambda: stack.ids() == list(range(2 * ROWS)))
    assert stack.count() == 2 * ROWS
    for daemon in (suspended, rival):
        daemon.terminate()
        assert daemon.wait() == 0
    assert _left(stack, stack.name) == []


def test_s3_when_a_new_owner_cannot_fence_the_former_one_then_it_waits(stack: Stack, proxy: S3Proxy) -> None:
    stack.topic(1)
    _table(stack, stack.name)
    stack.drain(_through(stack, proxy))
    stack.produce(_orders(0, ROWS))
    proxy.hold("COPY")
    suspended = stack.start_process(_through(stack, proxy))
    assert proxy.held.acquire(timeout=LIMIT)
    os.kill(suspended.process.pid, signal.SIGSTOP)
    with s3_proxy(proxy.backend) as other:
        other.refuse("UPLOADS", 403, "AccessDenied")
        rival = stack.start(_through(stack, other))
        refused = "s3:ListBucketMultipartUploads"
        eventually("the rival to wait", lambda: [e for e in rival.events("waiting") if refused in e["error"]])
        assert not rival.events("owner")
        other.recover()
        eventually("the rival's rows", lambda: stack.ids() == list(range(ROWS)))
    suspended.kill()


def test_s3_when_it_fails_while_data_flows_then_the_daemon_waits_and_every_id_is_stored_once(
    stack: Stack, box: Sandbox, proxy: S3Proxy, door: Proxy
) -> None:
    stack.topic(2)
    _table(stack, stack.name)
    daemon = stack.start(_through(stack, proxy, door))
    produced = 0

    def stored(ids: int) -> bool:
        return bool(sum(event["rows"] for event in daemon.events("committed")) >= ids)

    def has_waited(times: int, code: str) -> bool:
        return any(code in str(event) for event in daemon.events("waiting")[times:])

    for operation in ("PUT", "COPY", "LIST", "DELETE"):
        proxy.lose_answer(operation, 2)
        proxy.refuse(operation, 503, "SlowDown", times=2)
        produced += stack.produce(_orders(produced, produced + ROWS))
        eventually(f"rows in spite of lost answers to {operation}", partial(stored, produced))
    for operation, status, code in (
        ("PUT", 400, "ExpiredToken"),
        ("COPY", 503, "SlowDown"),
        ("COPY", 403, "AccessDenied"),
        ("LIST", 404, "NoSuchBucket"),
    ):
        waits = len(daemon.events("waiting"))
        proxy.refuse(operation, status, code)
        produced += stack.produce(_orders(produced, produced + ROWS))
        eventually(f"the daemon to wait because of {code}", partial(has_waited, waits, code))
        proxy.recover()
        eventually("rows after the server has recovered", partial(stored, produced))
    for fail, recover in (
        (door.shut, door.open),
        (partial(box.pause_service, S3_SERVER), partial(box.resume_service, S3_SERVER)),
    ):
        waits = len(daemon.events("waiting"))
        fail()
        try:
            produced += stack.produce(_orders(produced, produced + ROWS))
            eventually("the daemon to wait for an answer", partial(has_waited, waits, "S3 does not answer"))
        finally:
            recover()
        eventually("rows after the server answers again", partial(stored, produced))
    waits = len(daemon.events("waiting"))
    proxy.lose_answer("COMPLETE", _ATTEMPTS)  # the file is stored, and nobody knows
    produced += stack.produce_at_once(_large(produced), partition=0)
    eventually("the daemon to wait", partial(has_waited, waits, "StorageUnavailable"))
    eventually("rows of a large file", partial(stored, produced))
    assert proxy.requests["COMPLETE"] > _ATTEMPTS
    assert stack.ids() == list(range(produced))
    assert stack.count() == produced
    assert _left(stack, stack.name) == []


def test_s3_when_a_mapping_is_paused_without_a_daemon_then_its_storage_is_that_of_the_configuration(
    stack: Stack,
) -> None:
    stack.topic(1)
    _table(stack, stack.name)
    config = stack.config()
    command = [sys.executable, "-m", "ingestd", "mappings", "pause", stack.name[-40:], "--config", str(config)]
    without = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HADOOP_"))}
    done = subprocess.run(command, env=without, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
