"""When child processes are killed or frozen, the daemon releases its leases, cleans up and exits as documented."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from ingestd.hive import leases
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import open_transactions
from ingestd.storage.local import local_path
from tests.support.daemon import Daemon, DaemonProcess
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually


def _mapping(stack: Stack, case: str) -> dict[str, Any]:
    name = f"{stack.name}_{case}"[-40:]
    stack.topic(1, name)
    stack.table("id bigint", name=f"default.{name}")
    return {"name": name, "topics": [name], "table": f"default.{name}"}


def _start(stack: Stack, config: Path) -> DaemonProcess:
    """Start a daemon with its own temporary directory."""
    place = stack.directory / "tmp"
    place.mkdir(exist_ok=True)
    return stack.start_process(config, TMPDIR=str(place))


def _ids(first: int, last: int) -> list[dict[str, int]]:
    return [{"id": n} for n in range(first, last)]


def _family(daemon: DaemonProcess) -> list[psutil.Process]:
    return psutil.Process(daemon.process.pid).children(recursive=True)


def _jvm(daemon: DaemonProcess) -> psutil.Process:
    return next(p for p in _family(daemon) if "java" in p.name())


def _workers(daemon: DaemonProcess) -> list[psutil.Process]:
    """Return the processes that run tasks, which are the children of `pyspark.daemon`."""
    try:
        return [child for p in _jvm(daemon).children() for child in p.children()]
    except (psutil.NoSuchProcess, StopIteration):
        return []


def _freeze_workers(daemon: DaemonProcess) -> list[psutil.Process]:
    """Freeze and return the idle workers, which will receive the next tasks."""
    workers = _workers(daemon)
    assert workers
    for worker in workers:
        worker.suspend()
    return workers


def _has_task(frozen: psutil.Process) -> bool:
    """Return whether a frozen worker has received a task, that is, whether one of its sockets has unread bytes."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{frozen.pid}/fd").iterdir()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return any(f"socket:[{line[9]}]" in sockets and line[4].rpartition(":")[2] != "00000000" for line in lines)


def _committed(daemon: Daemon, mapping: str, rows: int) -> None:
    eventually(f"{rows} committed rows", lambda: rows <= _rows(daemon, mapping))


def _rows(daemon: Daemon, mapping: str) -> int:
    return sum(int(e["rows"]) for e in daemon.events("committed") if e["mapping"] == mapping)


def _holders(stack: Stack, mapping: str) -> list[str]:
    return [claim.agent for claim in leases.claims(stack.metastore, TableName("ingestd", f"owner_{mapping}"))]


def _has_open(stack: Stack, mapping: str) -> bool:
    return bool(open_transactions(stack.metastore, f"ingestd/ingestd/{mapping}/"))


def _is_staging(stack: Stack, mapping: dict[str, Any]) -> bool:
    table = load_acid_table(stack.metastore, TableName.parse(mapping["table"]))
    return any(local_path(table.location).glob(".ingestd-staging/*"))


def _assert_nothing_left(stack: Stack, family: list[psutil.Process]) -> None:
    eventually("no process to be left", lambda: not [p for p in family if p.is_running()])
    assert not list((stack.directory / "tmp").glob("ingestd-spark-*"))


def test_jvm_when_killed_then_leases_are_released_and_exit_is_70(stack: Stack) -> None:
    idle, watched = _mapping(stack, "i"), _mapping(stack, "w")
    owner = stack.start(stack.config(watched))
    eventually("the first daemon to become owner", lambda: owner.events("owner"))
    daemon = _start(stack, stack.config(idle, watched))
    eventually("one owner and one standby", lambda: daemon.events("owner") and daemon.events("standby"))
    stack.produce(_ids(0, 10), idle["topics"][0])
    _committed(daemon, idle["name"], 10)
    family = _family(daemon)
    _jvm(daemon).kill()
    assert daemon.wait() == 70, daemon.text()[-3000:]
    assert _holders(stack, idle["name"]) == []
    assert not _has_open(stack, idle["name"])
    _assert_nothing_left(stack, family)
    assert {e["mapping"] for e in daemon.events("owner")} == {idle["name"]}
    assert "signal 9" in daemon.events("engine_lost")[0]["error"]
    assert "Traceback" not in daemon.text()


def test_jvm_when_frozen_then_another_daemon_takes_over_or_a_second_sigterm_ends_it_and_exit_is_70(
    stack: Stack,
) -> None:
    """Before that, the JVM of the first daemon answers late: it prints its threads, and the daemon continues."""
    watched, alone = _mapping(stack, "w"), _mapping(stack, "a")
    frozen, ended = (
        _start(stack, stack.config(mapping, spark={"master": "local[2]", "answer_timeout": limit}))
        for mapping, limit in ((watched, "40s"), (alone, "10m"))
    )
    for daemon, mapping in ((frozen, watched), (ended, alone)):
        stack.produce(_ids(0, 10), mapping["topics"][0])
        _committed(daemon, mapping["name"], 10)
    other = stack.start(stack.config(watched))
    eventually("the other daemon to become standby", lambda: other.events("standby"))
    families = _family(frozen) + _family(ended)
    machine = _jvm(frozen)
    for jvm, mapping in ((machine, watched), (_jvm(ended), alone)):
        jvm.suspend()
        stack.produce(_ids(10, 20), mapping["topics"][0])
    eventually("the JVM to be asked", lambda: signal.SIGQUIT in _pending(machine.pid))
    machine.resume()
    eventually("its threads", lambda: "Full thread dump" in frozen.text())
    # Two signals end the second daemon long before its JVM is considered lost.
    eventually("a stage", lambda: _is_staging(stack, alone))
    ended.terminate()
    eventually("the first signal to be handled", lambda: signal.SIGTERM not in _pending(ended.process.pid))
    ended.terminate()
    assert ended.wait() == 70, ended.text()[-3000:]
    assert _holders(stack, alone["name"]) == []
    assert not _has_open(stack, alone["name"])
    # The first daemon ends by itself.
    _committed(frozen, watched["name"], 20)
    machine.suspend()
    stack.produce(_ids(20, 30), watched["topics"][0])
    eventually("the other daemon to take over", lambda: other.events("owner"))
    assert frozen.wait() == 70, frozen.text()[-3000:]
    assert "has not answered for 40 s" in frozen.events("engine_lost")[0]["error"]
    assert "Traceback" not in frozen.text()
    _assert_nothing_left(stack, families)
    _committed(other, watched["name"], 10)
    stack.drain(stack.config(alone))
    assert stack.ids(watched["topics"][0]) == list(range(30))
    assert stack.ids(alone["topics"][0]) == list(range(20))


def _pending(process: int) -> set[int]:
    """Return the numbers of the pending signals of a process."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return {n for n in range(1, 32) if any(mask >> (n - 1) & 1 for mask in masks)}


def test_abort_when_the_metastore_does_not_answer_then_the_process_ends(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce(_ids(0, 10))
    with proxy(stack.addresses.metastore) as between:
        daemon = _start(stack, stack.config(metastore={"uri": between.uri, "timeout": "10m"}))
        _committed(daemon, stack.name[-40:], 10)
        family = _family(daemon)
        between.flowing.clear()
        daemon.terminate()
        eventually("the first signal to be handled", lambda: signal.SIGTERM not in _pending(daemon.process.pid))
        daemon.terminate()
        assert daemon.wait() == 69, daemon.text()[-3000:]
        between.flowing.set()
    assert daemon.events("left_running")[0]["mapping"] == stack.name[-40:]
    _assert_nothing_left(stack, family)
    # The lease that the daemon could not release is taken over at once, because its process has ended.
    stack.produce(_ids(10, 20))
    stack.drain()
    assert stack.ids() == list(range(20))


def test_start_when_spark_hangs_then_one_signal_ends_it_and_no_command_line_contains_a_secret(stack: Stack) -> None:
    secret = "hunter2canary"
    daemon = _start(stack, stack.config(spark={"master": "local[1]", "conf": {"spark.x.password": secret}}))
    eventually("Spark to start", lambda: [p for p in _family(daemon) if "SparkSubmit" in _command_line(p)])
    family = _family(daemon)
    for process in family:
        process.suspend()
    assert not [line for line in map(_command_line, family) if secret in line]
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert "Traceback" not in daemon.text()
    _assert_nothing_left(stack, family)
    assert not list((stack.directory / "tmp").iterdir())


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


_HOLD = "from ingestd.spark.scratch import Scratch; print(Scratch().path, flush=True); input()"


def test_temporary_folder_when_its_process_was_killed_then_the_next_one_removes_it(tmp_path: Path) -> None:
    def hold() -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", _HOLD]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    with ExitStack() as ended:
        killed, left = hold()
        living, kept = hold()
        (left / "spark-1").mkdir()
        killed.kill()
        killed.communicate()
        last, _ = hold()
        for process in (living, last):
            ended.callback(process.communicate, "\n")
        assert not left.exists()
        assert kept.is_dir()


def test_worker_when_killed_then_its_stage_is_repeated_and_when_killed_each_time_then_mapping_stops(
    stack: Stack,
) -> None:
    stops, lasts = _mapping(stack, "s"), _mapping(stack, "l")
    stack.produce(_ids(0, 10), stops["topics"][0])
    config = stack.config(stops, lasts)
    daemon = _start(stack, config)
    eventually("both mappings to be owned", lambda: len({e["mapping"] for e in daemon.events("owner")}) == 2)
    _committed(daemon, stops["name"], 10)
    workers = _freeze_workers(daemon)
    stack.produce(_ids(10, 20), stops["topics"][0])
    eventually("a task", lambda: any(map(_has_task, workers)))
    for worker in workers:
        worker.kill()
    _committed(daemon, stops["name"], 20)
    assert "WorkerLost" in [e["reason"] for e in daemon.events("waiting")]
    assert not daemon.events("failed")
    workers = _freeze_workers(daemon)
    stack.produce(_ids(20, 30), stops["topics"][0])
    sent = 30

    def has_stopped() -> bool:
        nonlocal sent
        for worker in _workers(daemon):
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        if _rows(daemon, stops["name"]) == sent:  # on a busy machine, a worker may end its task before it is killed
            stack.produce(_ids(sent, sent + 10), stops["topics"][0])
            sent += 10
        return bool(daemon.events("failed"))

    eventually("the mapping to stop", has_stopped)
    error = daemon.events("failed")[0]["error"]
    assert "5 times in a row" in error
    assert "memory" in error
    assert "org.apache" not in daemon.text()
    assert not _has_open(stack, stops["name"])
    _assert_stops_without_jvm(stack, daemon, lasts)
    stack.drain(config)
    assert stack.ids(stops["topics"][0]) == list(range(sent))
    assert stack.ids(lasts["topics"][0]) == list(range(20))


def _assert_stops_without_jvm(stack: Stack, daemon: DaemonProcess, mapping: dict[str, Any]) -> None:
    """Kill the JVM during a stage, while its workers are frozen. The daemon must end by itself."""
    stack.produce(_ids(0, 10), mapping["topics"][0])
    _committed(daemon, mapping["name"], 10)
    _freeze_workers(daemon)
    family = _family(daemon)
    stack.produce(_ids(10, 20), mapping["topics"][0])
    eventually("a transaction", lambda: _has_open(stack, mapping["name"]))
    _jvm(daemon).kill()
    assert daemon.wait() == 70, daemon.text()[-3000:]
    assert _holders(stack, mapping["name"]) == []
    assert not _has_open(stack, mapping["name"])
    _assert_nothing_left(stack, family)


def test_stage_when_it_never_ends_then_is_cancelled_and_another_daemon_takes_over(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce(_ids(0, 10))
    daemon = _start(stack, stack.config(spark={"master": "local[2]", "stage_timeout": "8s"}))
    _committed(daemon, stack.name[-40:], 10)
    before = len(daemon.events("waiting"))
    other = stack.start(stack.config())
    eventually("the other daemon to become standby", lambda: other.events("standby"))
    family = _family(daemon)
    _freeze_workers(daemon)
    stack.produce(_ids(10, 20))
    eventually("the other daemon to take over", lambda: other.events("owner"))
    _committed(other, stack.name[-40:], 10)
    # The daemon releases the lease first, and logs the reason after a pause in which another daemon can take over.
    eventually("the reason", lambda: "JobTimeout" in [e["reason"] for e in daemon.events("waiting")[before:]])
    # SIGINT has the same effect as SIGTERM, because Spark's own handler is not used.
    jvm = _jvm(daemon)
    os.kill(daemon.process.pid, signal.SIGINT)
    jvm.terminate()  # as when a service manager sends the signal to all processes
    assert daemon.wait() == 0, daemon.text()[-3000:]
    assert daemon.events("stopped")
    _assert_nothing_left(stack, family)
    assert stack.ids() == list(range(20))
