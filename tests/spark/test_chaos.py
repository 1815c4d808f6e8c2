"""Tables on HDFS and on local files, written by a Spark cluster whose processes are killed and suspended at random."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ingestd.clock import Deadline, pause
from ingestd.sandbox import HDFS, Sandbox, SandboxOptions
from ingestd.sandbox.options import SPARK_MASTER
from ingestd.storage.contract import child
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from tests.support.cluster import Cluster, tree
from tests.support.daemon import DaemonProcess
from tests.support.flow import Flow
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

_SECONDS = float(os.environ.get("INGESTD_TEST_CHAOS_SECONDS", "180"))
_SEED = int(os.environ.get("INGESTD_TEST_CHAOS_SEED", "0")) or random.SystemRandom().randrange(10**6)
_ON_DISK = "on_disk"
_TXN_TIMEOUT_SECONDS = 10
_CONF = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "5s",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    # An executor that is suspended for longer is lost, and its tasks are repeated.
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "5s",
    "spark.network.timeoutInterval": "1s",
    "spark.task.maxFailures": "8",
}

_TASK_ON_EACH_WORKER = {
    "spark.cores.max": "2",
    "spark.default.parallelism": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


@pytest.fixture(scope="module")
def box(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    folder = tmp_path_factory.mktemp("hdfs-sandbox")
    made = Sandbox(SandboxOptions(folder, storage=HDFS, hiveserver2=True, txn_timeout_seconds=_TXN_TIMEOUT_SECONDS))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def stack(box: Sandbox, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    made = Stack(box.addresses(), request.node.name, tmp_path)
    try:
        yield made
    finally:
        made.close()


class _Pair:
    """A table on HDFS and one on local files, with a mapping each of the same topic."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._disk = stack.directory / "disk"
        stack.topic(4)
        stack.table("id bigint")
        stack.sql(f"CREATE DATABASE {stack.name} MANAGEDLOCATION '{self._disk.as_uri()}'")
        self.tables = (f"default.{stack.name}", f"{stack.name}.{_ON_DISK}")
        stack.table("id bigint", name=self.tables[1])

    @property
    def mappings(self) -> list[dict[str, object]]:
        return [{"name": f"m{number}_{self._stack.name}"[:40], "table": t} for number, t in enumerate(self.tables)]

    def wait(self, count: int, seconds: float = LIMIT) -> None:
        """Wait until each table has as many rows, or more."""

        eventually(f"{count} rows", lambda: self.has(count), seconds)

    def has(self, count: int) -> bool:
        """Return whether each table has as many rows, or more."""
        return all(self._stack.count(name=table) >= count for table in self.tables)

    def check(self, count: int) -> None:
        """Fail unless each table has each of the first ids once, and nothing else is left of the transactions."""
        for table in self.tables:
            assert self._stack.ids(table) == list(range(count))
            assert self._stack.count(name=table) == count
        assert self.staged() == []

    def staged(self) -> list[str]:
        storages = Storages(StorageOptions(hadoop_conf_dir=Path(self._stack.addresses.hadoop_conf_dir or "")))
        tables = (child(self._stack.addresses.warehouse, self._stack.name), child(self._disk.as_uri(), _ON_DISK))
        found = [child(table, ".ingestd-staging") for table in tables]
        return [child(root, left) for root in found for left in storages.at(root).leftovers(root)]


class _Chaos:
    """Disturbs a daemon and its cluster until the end of the `with` block."""

    def __init__(self, cluster: Cluster, start: Callable[[], DaemonProcess], dice: random.Random) -> None:
        self._cluster = cluster
        self._start = start
        self._dice = dice
        self.daemon = start()
        self.done: list[str] = []

    def disturb(self) -> None:
        name, act = self._dice.choice(
            [
                ("executor", self._kill_executor),
                ("jvm of an executor", self._kill_jvm),
                ("python", self._kill_python),
                ("suspend", self._suspend),
                ("worker", self._kill_worker),
                ("master", self._kill_master),
                ("driver", self._kill_driver),
                ("jvm of the driver", self._kill_driver_jvm),
            ]
        )
        self.done.append(name)
        act()
        pause(self._dice.uniform(1, 8))
        self.restart()

    def restart(self) -> None:
        """Restart the daemon if it has ended, as systemd does."""
        if not self.daemon.is_running:
            code = self.daemon.wait()
            assert code == 70, self.daemon.text()[-3000:]
            self.done.append(f"exit code {code}")
            self.daemon = self._start()

    def _executor(self) -> list[psutil.Process]:
        running = [executor for worker in self._cluster.workers for executor in self._cluster.executors(worker)]
        return tree(self._dice.choice(running)) if running else []

    def _kill_executor(self) -> None:
        _send(self._executor(), psutil.Process.kill)

    def _kill_jvm(self) -> None:
        _send(self._executor()[:1], psutil.Process.kill)

    def _kill_python(self) -> None:
        _send(self._executor()[1:], psutil.Process.kill)

    def _suspend(self) -> None:
        suspended = self._executor()
        _send(suspended, psutil.Process.suspend)
        pause(self._dice.choice((1.0, 12.0)))
        _send(suspended, psutil.Process.resume)

    def _kill_worker(self) -> None:
        worker = self._dice.choice(self._cluster.workers)
        self._cluster.kill(worker)
        self._cluster.start(worker)

    def _kill_master(self) -> None:
        self._cluster.kill(SPARK_MASTER)
        pause(self._dice.uniform(0, 3))
        self._cluster.start(SPARK_MASTER)

    def _kill_driver(self) -> None:
        self.daemon.kill()
        self.daemon = self._start()

    def _kill_driver_jvm(self) -> None:
        children = psutil.Process(self.daemon.process.pid).children()
        _send([process for process in children if process.name() == "java"], psutil.Process.kill)


def _send(processes: list[psutil.Process], signal: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            signal(process)


def _spools(folder: Path) -> list[Path]:
    return list(folder.glob("**/ingestd-spool-*"))


@pytest.mark.soak
def test_tables_when_processes_of_the_cluster_end_at_random_then_each_record_is_stored_once(
    stack: Stack, cluster: Cluster
) -> None:
    pair = _Pair(stack)
    config = stack.config(*pair.mappings, spark=cluster.options(_CONF, executor_timeout="5s"))
    chaos = _Chaos(cluster, lambda: stack.start_process(config), random.Random(_SEED))
    with Flow(stack.addresses.kafka, stack.name) as flow:
        end = Deadline.after(_SECONDS)
        while not end.passed:
            chaos.disturb()
    # If the master has forgotten the application, the daemon ends once more.
    end = Deadline.after(LIMIT)
    while not pair.has(flow.sent):
        chaos.restart()
        assert not end.passed, f"seed {_SEED}, {chaos.done}:\n{chaos.daemon.text()[-3000:]}"
    chaos.daemon.terminate()
    assert chaos.daemon.wait() == 0, chaos.daemon.text()[-3000:]
    # The next task on each machine removes the temporary files of killed executors.
    sent = flow.sent + stack.produce({"id": number} for number in range(flow.sent, flow.sent + 60_000))
    daemon = stack.start_process(stack.config(*pair.mappings, spark=cluster.options(_TASK_ON_EACH_WORKER)))
    pair.wait(sent)
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    pair.check(sent)
    eventually("no executor", lambda: not any(cluster.executors(worker) for worker in cluster.workers))
    assert _spools(cluster.folder) == [], f"seed {_SEED}, {chaos.done}"


@pytest.mark.soak
def test_tables_when_an_executor_resumes_after_its_transactions_have_ended_then_its_writes_have_no_effect(
    stack: Stack, cluster: Cluster
) -> None:
    pair = _Pair(stack)
    conf = {key: _CONF[key] for key in _CONF if "network" in key or "heartbeat" in key}
    config = stack.config(*pair.mappings, spark=cluster.options(conf, executor_timeout="5s"))
    daemon = stack.start_process(config)
    stack.produce({"id": number} for number in range(1000))
    pair.wait(1000)
    sent = stack.produce({"id": number} for number in range(1000, 1_000_000)) + 1000
    eventually("staged files", pair.staged)
    jvms = [jvm for worker in cluster.workers for jvm in cluster.executors(worker)]
    workers = [child for jvm in jvms for child in jvm.children(recursive=True)]
    assert len(workers) > len(jvms), "no task is running"
    _send(jvms + workers, psutil.Process.suspend)
    try:
        daemon.kill()
        pause(_TXN_TIMEOUT_SECONDS + 5)
        daemon = stack.start_process(config)
        # It has aborted their transactions and removed the staging directories.
        eventually("two owners", lambda: len(daemon.events("owner")) == len(pair.tables))
        # They stage the rest of their records: only the JVM knows that the driver has ended.
        _send(workers, psutil.Process.resume)
        pair.wait(sent)
    finally:
        _send(jvms + workers, psutil.Process.resume)
    eventually("their end", lambda: not any(process.is_running() for process in jvms + workers))
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    pair.check(sent)
    eventually("no executor", lambda: not any(cluster.executors(worker) for worker in cluster.workers))
    assert _spools(cluster.folder) == []
