"""The archive of Spark's classes is used once `ingestd prepare` has written it, unless another user can write it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ingestd.java import find_java
from ingestd.spark.archive import archive_options, archive_path
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
    assert _mapped(os.getpid()) == [str(archive_path(find_java()))]


def test_archive_when_it_is_damaged_then_spark_starts_without_it(
    processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTD_CACHE", str(tmp_path))
    path = archive_path(find_java())
    path.parent.mkdir()
    path.write_bytes(b"damaged" * 1000)
    assert archive_options(find_java())
    with subprocess.Popen([sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout
        assert run.stdout.readline() == b"started\n"
        assert _mapped(run.pid) == []
        run.communicate(timeout=LIMIT)
    assert run.returncode == 0


def test_archive_when_another_user_can_write_it_then_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTD_CACHE", str(tmp_path))
    path = archive_path(find_java())
    path.parent.mkdir()
    assert archive_options(find_java()) == []
    path.touch()
    assert archive_options(find_java())[0] == f"-XX:SharedArchiveFile={path}"
    path.chmod(0o666)
    assert archive_options(find_java()) == []
    path.chmod(0o644)
    path.parent.chmod(0o777)
    assert archive_options(find_java()) == []
