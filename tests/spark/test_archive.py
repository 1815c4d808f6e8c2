"""The archive of Spark's classes is used once `ingestd prepare` has written it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ingestd.java import find_java
from ingestd.spark.launch import driver_archive
from tests.support.daemon import shared_engine
from tests.support.patience import LIMIT

# Starts Spark and stops it when its input ends.
_START = """
import sys
from ingestd.spark.engine import Engine
from ingestd.spark.session import Session

engine = Engine(Session("local[1]", {}))
engine.parallelism
print("started", flush=True)
sys.stdin.read()
engine.stop()
"""


def _mapped(pid: int) -> list[str]:
    """Return the class archives that the JVM of the process's Spark session has mapped."""
    children = [child for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    [machine] = [
        child.pid for child in children if any(word.startswith("org.apache.spark") for word in child.cmdline())
    ]
    lines = Path(f"/proc/{machine}/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if line.endswith(".jsa") and "classes-" in line})


def test_archive_when_prepared_then_the_driver_maps_it(processes: None) -> None:
    """The fixture has run `ingestd prepare`."""
    assert shared_engine().parallelism == 2
    assert _mapped(os.getpid()) == [str(driver_archive(find_java()).path)]


def test_archive_when_it_is_damaged_then_spark_starts_without_it(
    processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTD_CACHE", str(tmp_path))
    path = driver_archive(find_java()).path
    path.parent.mkdir()
    path.write_bytes(b"damaged" * 1000)
    assert driver_archive(find_java()).options
    with subprocess.Popen([sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout
        assert run.stdout.readline() == b"started\n"
        assert _mapped(run.pid) == []
        run.communicate(timeout=LIMIT)
    assert run.returncode == 0
