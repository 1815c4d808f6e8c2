"""The start of the daemon: Spark starts while everything else does, and nothing is left of a start that ends early."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.support.daemon import DaemonProcess
from tests.support.stack import Stack, eventually


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of daemons that a test starts."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def _processes(folder: Path) -> list[int]:
    """Return the processes whose TMPDIR is this directory, without those that have ended."""
    found = [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("TMPDIR") == str(folder)
    ]
    return [process.pid for process in found if process.pid != os.getpid() and process.is_running()]


def _started(stack: Stack, **keys: object) -> DaemonProcess:
    stack.topic(1, stack.name)
    stack.table("id bigint")
    stack.produce({"id": n} for n in range(3))
    return stack.start_process(stack.config(**keys))


def test_daemon_when_stopped_while_spark_starts_then_ends_with_0_and_leaves_nothing(stack: Stack, folder: Path) -> None:
    daemon = _started(stack)
    eventually("a start of Spark", lambda: list(folder.glob("ingestd-spark-*/spark.properties")))
    daemon.terminate()
    assert daemon.wait() == 0
    eventually("the end of all processes", lambda: not _processes(folder))
    assert list(folder.iterdir()) == []
    assert daemon.events("failed") == []


def test_daemon_when_stopped_after_the_mapping_became_owner_then_leaves_no_open_transaction(
    stack: Stack, folder: Path
) -> None:
    daemon = _started(stack)
    eventually("an owner", lambda: daemon.events("owner"))
    daemon.terminate()
    assert daemon.wait() == 0
    eventually("the end of all processes", lambda: not _processes(folder))
    assert list(folder.iterdir()) == []
    assert stack.drain().events("owner")[0]["aborted_transactions"] == []
    assert sorted(stack.ids()) == [0, 1, 2]


def test_daemon_when_the_configuration_has_a_fault_then_leaves_nothing(stack: Stack, folder: Path) -> None:
    daemon = stack.start_process(stack.config({"name": "Wrong Name", "topics": ["x"], "table": "default.x"}))
    assert daemon.wait() == 78
    assert "mappings[0].name" in daemon.text()
    eventually("the end of all processes", lambda: not _processes(folder))
    assert list(folder.iterdir()) == []


def test_daemon_when_the_jvm_does_not_start_then_says_so_without_records_and_leaves_nothing(
    stack: Stack, folder: Path
) -> None:
    stack.topic(1, stack.name)
    stack.table("id bigint")
    conf = {"spark.driver.extraJavaOptions": "-Xmx1"}  # Spark refuses this option
    # There is nothing to read, so that the mapping never needs Spark.
    config = stack.config(spark={"master": "local[2]", "conf": conf})
    daemon = stack.start_process(config, "--until-caught-up")
    assert daemon.wait() == 70
    assert "ingestd: spark.master local[2]: Spark did not start: its JVM ended with exit code 1" in daemon.text()
    eventually("the end of all processes", lambda: not _processes(folder))
    assert list(folder.iterdir()) == []
