"""Mappings whose stages run on a Spark cluster, while its processes are killed, suspended and replaced."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from ingestd.sandbox.options import SPARK_MASTER
from tests.support.cluster import Cluster, elsewhere, other_version, tree
from tests.support.daemon import DaemonProcess
from tests.support.every_table import every_table
from tests.support.files import contains, files_below
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

# It must appear nowhere.
_SECRET = f"hidden{os.urandom(8).hex()}"
# Enough records for one task on each of two executors.
_TWO_TASKS = 60_000
# Spark starts a second attempt of a task that is slower than the other one, after a fraction of a second.
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
_INFO = """
status = error
appender.c.type = Console
appender.c.name = c
appender.c.layout.type = PatternLayout
rootLogger.level = info
rootLogger.appenderRef.c.ref = c
# PySpark hides messages below WARN of loggers without a level of their own.
logger.spark.name = org.apache.spark
logger.spark.level = info
"""


class _Flow:
    """Records with consecutive ids."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._guard = threading.Lock()
        self._ids = count()
        self.sent = 0

    def send(self, number: int) -> None:
        """Produce records with the next ids."""
        with self._guard:
            self._stack.produce({"id": next(self._ids)} for _ in range(number))
            self.sent += number

    def send_at_once(self, number: int) -> None:
        """Produce records in one transaction, so that one plan of the mapping contains them all."""
        self._stack.produce_at_once({"id": next(self._ids)} for _ in range(number))
        self.sent += number

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Produce some records several times a second inside the `with` block."""
        ended = threading.Event()

        def produce() -> None:
            while not ended.wait(0.2):
                self.send(100)

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            yield
        finally:
            ended.set()
            producer.join()


def _commits(daemon: DaemonProcess) -> int:
    return len(daemon.events("committed"))


def _next_commit(daemon: DaemonProcess) -> None:
    before = _commits(daemon)
    eventually("a commit", lambda: _commits(daemon) > before + 1)


def _staged(stack: Stack) -> list[Path]:
    table = Path(stack.addresses.warehouse.removeprefix("file://")) / stack.name
    return files_below(table / ".ingestd-staging")


def test_mapping_when_an_executor_and_the_driver_are_killed_then_each_record_is_stored_once_and_no_secret_is_shown(
    stack: Stack, cluster: Cluster, tmp_path: Path
) -> None:
    stack.topic(4)
    stack.table("id bigint")
    flow = _Flow(stack)
    blocked = tmp_path / "blocked"
    conf = elsewhere(blocked, stack) | _talkative(tmp_path)
    kafka = {"bootstrap.servers": stack.addresses.kafka, "sasl.password": _SECRET}
    storage = {"s3": {"access_key": "unused", "secret_key": _SECRET}}
    config = stack.config(spark=cluster.options(conf), kafka=kafka, storage=storage)
    info = tmp_path / "info.properties"
    info.write_text(_INFO, encoding="utf-8")
    daemon = stack.start_process(config, SPARK_SUBMIT_OPTS=f"-Dlog4j2.configurationFile={info.as_uri()}")
    with flow.flowing():
        _next_commit(daemon)
        eventually("two executors", lambda: all(cluster.executors(worker) for worker in cluster.workers))
        _check_secrets(cluster, daemon, int(conf["spark.ui.port"]), tmp_path / "events")
        # A task is retried on the other executor, or on the one that replaces it.
        for process in tree(cluster.executors(cluster.workers[0])[0]):
            _kill(process)
        _next_commit(daemon)
        daemon.kill()
        daemon = stack.start_process(config)
        _next_commit(daemon)
    eventually("all rows", lambda: stack.count() >= flow.sent)
    _assert_stored_once(stack, daemon, flow)
    assert list(blocked.glob("python-*"))
    assert not (blocked / "refused").exists()


def _assert_stored_once(stack: Stack, daemon: DaemonProcess, flow: _Flow) -> None:
    """Stop the daemon, and check that it has stored each record once and has left no staged file."""
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(flow.sent))
    assert _staged(stack) == []


@pytest.mark.soak
def test_mapping_when_workers_are_killed_and_an_executor_is_suspended_then_each_record_is_stored_once(
    stack: Stack, cluster: Cluster
) -> None:
    stack.topic(4)
    stack.table("id bigint")
    flow = _Flow(stack)
    daemon = stack.start_process(stack.config(spark=cluster.options(_SPECULATION, executor_timeout="3s")))
    first, second = cluster.workers
    with flow.flowing():
        _next_commit(daemon)
        # A worker is replaced.
        cluster.kill(second)
        cluster.start(second)
        _next_commit(daemon)
        # Without any executor, the mapping waits, and then continues with those that appear.
        cluster.kill(first)
        cluster.kill(second)
        waits = eventually(
            "the event waiting", lambda: [event for event in daemon.events("waiting") if _is_starved(event)]
        )
        assert "Spark has had no executor for 3 s" in waits[0]["error"]
        cluster.start(first, second)
        _next_commit(daemon)
    eventually("two executors", lambda: all(cluster.executors(worker) for worker in cluster.workers))
    _win_by_speculation(flow, daemon, cluster)
    eventually("all rows", lambda: stack.count() >= flow.sent)
    _assert_stored_once(stack, daemon, flow)


def _talkative(folder: Path) -> dict[str, str]:
    """Return the properties with which Spark shows and logs as much as it can, and one that is secret."""
    (folder / "events").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    events = {"enabled": "true", "dir": (folder / "events").as_uri(), "compress": "false", "rolling.enabled": "false"}
    shown = {f"spark.eventLog.{key}": value for key, value in events.items()}
    return shown | {"spark.ui.enabled": "true", "spark.ui.port": str(port), "spark.hadoop.fs.s3a.secret.key": _SECRET}


def _check_secrets(cluster: Cluster, daemon: DaemonProcess, port: int, events: Path) -> None:
    """Fail if a secret is on a page of Spark, in a log, in an environment, on a command line or in a public file."""
    base = f"http://127.0.0.1:{port}"
    [application] = json.loads(_page(f"{base}/api/v1/applications"))
    api = f"{base}/api/v1/applications/{application['id']}"
    shown = {name: _page(f"{base}/{name}/") for name in ("jobs", "stages", "environment", "executors", "storage")}
    shown |= {name: _page(f"{api}/{name}") for name in ("jobs", "stages", "environment", "allexecutors", "storage/rdd")}
    shown |= {str(log): log.read_text(errors="replace") for log in (*cluster.logs(), *events.iterdir())}
    shown["log of the daemon"] = daemon.text()
    processes = [executor for worker in cluster.workers for executor in cluster.executors(worker)]
    processes += psutil.Process(daemon.process.pid).children(recursive=True)
    shown |= {f"process {process.pid}": _command_line(process) for process in processes}
    executors = [process for worker in cluster.workers for jvm in cluster.executors(worker) for process in tree(jvm)]
    shown |= {f"environment {executor.pid}": _environment(executor) for executor in executors}
    assert len(executors) > len(cluster.workers), "no Python worker"
    private = [path for path in files_below(cluster.folder) if contains(path, _SECRET)]
    assert private, "the executors have no file with the broadcast variable"
    assert [path for path in private if _is_public(path, cluster.folder)] == []
    assert "spark.hadoop.fs.s3a.secret.key" in shown["environment"]
    assert "Starting task" in daemon.text()
    assert "SparkListenerTaskEnd" in "".join(shown.values())
    assert [name for name, text in shown.items() if _SECRET in text] == []


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a Python worker that has ended
        return ""


def _environment(process: psutil.Process) -> str:
    try:
        return str(process.environ())
    except psutil.NoSuchProcess:
        return ""


def _is_public(file: Path, root: Path) -> bool:
    """Return whether other users can read a file below `root`."""
    folders = [parent for parent in file.parents if parent.is_relative_to(root) and parent != root]
    return bool(file.stat().st_mode & stat.S_IROTH) and all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        text: str = answer.read().decode()
    return text


def _is_starved(event: dict[str, object]) -> bool:
    return event["reason"] == "NoExecutors"


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _large(daemon: DaemonProcess, first: int) -> list[dict[str, Any]]:
    """Return the commits of many rows, beginning with the commit number `first`."""
    return [event for event in daemon.events("committed")[first:] if event["rows"] >= _TWO_TASKS]


def _win_by_speculation(flow: _Flow, daemon: DaemonProcess, cluster: Cluster) -> None:
    """Suspend one of two executors, so that only a speculative copy of its task can end, and resume it afterwards."""

    def next_files() -> int:
        """Return the number of files, which is that of tasks, of the commit of many records."""
        before = _commits(daemon)
        flow.send_at_once(_TWO_TASKS)
        commits = eventually("many rows", lambda: _large(daemon, before))
        return int(commits[0]["files"])

    eventually("a transaction of two tasks", lambda: next_files() == 2)
    suspended = tree(cluster.executors(cluster.workers[0])[0])
    for process in suspended:
        process.suspend()
    try:
        assert next_files() == 2
    finally:
        for process in suspended:
            with suppress(psutil.NoSuchProcess):  # the JVM, resumed first, ends the processes of the task that has lost
                process.resume()
    flow.send(_TWO_TASKS)


@pytest.mark.soak
def test_mapping_when_executors_are_allocated_dynamically_then_they_end_when_idle_and_appear_for_records(
    stack: Stack, cluster: Cluster
) -> None:
    stack.topic(4)
    stack.table("id bigint")
    flow = _Flow(stack)
    dynamic = {"enabled": "true", "minExecutors": "0", "initialExecutors": "0", "maxExecutors": "2"}
    dynamic |= {"executorIdleTimeout": "2s", "cachedExecutorIdleTimeout": "2s"}
    conf = {f"spark.dynamicAllocation.{key}": value for key, value in dynamic.items()}
    daemon = stack.start_process(stack.config(spark=cluster.options(conf)))
    for _ in range(2):
        flow.send_at_once(_TWO_TASKS)
        eventually("all rows", lambda: stack.count() == flow.sent)
        eventually("no executor", lambda: not any(cluster.executors(worker) for worker in cluster.workers))
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(flow.sent))
    assert not [event for event in daemon.events("waiting") if _is_starved(event)]


@pytest.mark.soak
def test_mapping_when_the_master_restarts_without_its_state_then_the_daemon_exits_and_the_next_one_continues(
    stack: Stack, cluster: Cluster
) -> None:
    stack.topic(4)
    stack.table("id bigint")
    flow = _Flow(stack)
    config = stack.config(spark=cluster.options(executor_timeout="3s"))
    daemon = stack.start_process(config)
    with flow.flowing():
        _next_commit(daemon)
        cluster.kill(SPARK_MASTER)
        cluster.start(SPARK_MASTER)
        assert daemon.wait() == 70, daemon.text()[-3000:]
        assert "does not know this application" in daemon.text()
        daemon = stack.start_process(config)
        _next_commit(daemon)
    eventually("all rows", lambda: stack.count() >= flow.sent)
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(flow.sent))


@pytest.mark.soak
def test_mapping_when_no_master_answers_then_the_daemon_exits_and_names_the_master(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce([{"id": 1}])
    daemon = stack.start_process(stack.config(spark={"master": "spark://127.0.0.1:1"}))
    assert daemon.wait() == 69  # Spark tries to register for a minute
    [lost] = daemon.events("engine_lost")
    assert "spark.master spark://127.0.0.1:1" in lost["error"]
    assert "no Spark master has accepted this application" in lost["error"]
    assert {event["reason"] for event in daemon.events("failed")} == {"EngineUnavailable"}


def test_executors_when_they_cannot_reach_the_metastore_then_fill_tables_of_every_kind(
    stack: Stack, cluster: Cluster, tmp_path: Path
) -> None:
    conf = elsewhere(tmp_path / "site", stack)
    with every_table(stack) as tables:
        config = stack.config(*tables.mappings, spark=cluster.options(conf), **tables.sections)
        daemon = stack.start_process(config, "--until-caught-up")
        assert daemon.wait() == 0, daemon.text()[-3000:]
        tables.assert_distributed(daemon.events("committed"))
    tables.assert_stored_once()
    assert not [log for log in cluster.logs() if contains(log, "registry-secret")]


@pytest.mark.soak
def test_mapping_when_the_environment_is_shipped_then_executors_need_none_of_their_own(
    stack: Stack, cluster: Cluster, tmp_path: Path
) -> None:
    """Run the commands of docs/spark.md, and remove the environment before Spark unpacks its archive."""
    environment, archive, site = tmp_path / "packed", tmp_path / "environment.tar.gz", tmp_path / "site"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    scripts = environment / "bin"
    subprocess.run([scripts / "pip", "install", "-q", f"{Path(__file__).parents[2]}[daemon]", "venv-pack"], check=True)
    pack = f"{scripts}/venv-pack -q -p {environment} -o {archive} --exclude".split()
    subprocess.run([*pack, "*/site-packages/pyspark/*"], check=True)
    shutil.rmtree(environment)
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import sys\nopen({str(site / 'prefix')!r}, 'w').write(sys.prefix)\n")
    conf = {
        "spark.archives": f"{archive}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.executorEnv.PYTHONPATH": str(site),
    }
    stack.topic(2)
    stack.table("id bigint")
    stack.produce({"id": n} for n in range(100))
    daemon = stack.start_process(stack.config(spark=cluster.options(conf)), "--until-caught-up")
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert stack.ids() == list(range(100))
    assert (site / "prefix").read_text().endswith("/environment")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("conf", "found"),
    [
        ({}, "runs 2 tasks at the same time"),
        ({"spark.executor.memory": "8g"}, "the cluster has not started an executor within"),
        ({"spark.pyspark.python": "/nowhere/python"}, "spark.pyspark.python"),
        ({"spark.executorEnv.PYTHONPATH": ""}, "has ingestd 0.0.9, and the driver has"),
    ],
)
def test_check_when_online_then_examines_the_executors(
    stack: Stack, cluster: Cluster, tmp_path: Path, conf: dict[str, str], found: str
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    other = other_version(tmp_path) if "spark.executorEnv.PYTHONPATH" in conf else {}
    config = stack.config(spark=cluster.options(conf | other))
    command = [sys.executable, "-m", "ingestd", "check", "--online", "--output", "json", "--config", str(config)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    [executors] = [finding for finding in json.loads(checked.stdout) if finding["subject"] == "spark executors"]
    assert found in json.dumps(executors)
    assert (checked.returncode == 0) == (not conf)
