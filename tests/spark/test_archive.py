"""The archive of Spark's classes: it is used once `ingestd prepare` has written it, and only if nobody else could."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ingestd.java import find_java
from ingestd.spark.archive import archive_options, archive_path

# Starts Spark, runs a job, and prints the archives that the JVM has mapped.
_START = """
from pathlib import Path
import psutil
from ingestd.spark.engine import Engine, JobGroup

engine = Engine("local[1]", {})
assert engine.run(JobGroup("test"), str, [1]) == ["1"]
[machine] = [one for one in psutil.Process().children() if "java" in one.name()]
lines = Path(f"/proc/{machine.pid}/maps").read_text().splitlines()
print(sorted({line.split()[-1] for line in lines if line.endswith(".jsa") and "classes-" in line}))
engine.stop()
"""


def _mapped() -> str:
    run = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_archive_when_prepared_then_the_driver_maps_it(processes: None) -> None:
    """The fixture has run `ingestd prepare`."""
    assert _mapped() == str([str(archive_path(find_java()))])


def test_archive_when_it_is_damaged_then_spark_starts_without_it(
    processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTD_CACHE", str(tmp_path))
    path = archive_path(find_java())
    path.parent.mkdir()
    path.write_bytes(b"damaged" * 1000)
    assert archive_options(find_java())
    assert _mapped() == "[]"


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
