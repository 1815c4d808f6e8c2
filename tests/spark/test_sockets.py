"""The sockets between Spark's driver and the processes of its tasks, and what the driver keeps of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkContext

from ingestd.schema import Column, HiveType
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.query import Batches, Exchange, Query
from ingestd.spark.session import Session
from ingestd.spark.shared import Reference
from tests.support.patience import LIMIT

GROUP = JobGroup("sockets")
QUERY = Query((Column("id", HiveType.parse("bigint")),), "id > 0")
HAS_UNIX_SOCKETS = not pyspark.__version__.startswith(("3.", "4.0."))
# The length of the directory of sockets, beyond which Spark does not start with Unix domain sockets.
LONGEST = 61


def _kinds() -> list[str]:
    """Return the kinds of sockets by which this process is connected."""
    process = psutil.Process()
    return [kind for kind in ("unix", "tcp") if process.net_connections(kind)]


def _in_task(shared: Reference[str], _item: int) -> list[str]:
    assert shared.value == "shared"
    return _kinds()


def _read(_item: int, report: Callable[[list[str]], None]) -> Batches:
    yield pa.RecordBatch.from_pydict({"id": [1, 2]})
    report(_kinds())


def _write(_item: int, batches: Batches) -> list[str]:
    assert sum(batch.num_rows for batch in batches) == 2
    return _kinds()


def _send(_item: int, batches: Batches) -> Iterator[tuple[int, list[str]]]:
    assert sum(batch.num_rows for batch in batches) == 2
    yield 0, _kinds()


def _receive(received: tuple[int, Iterable[list[str]]]) -> list[str]:
    [sent] = received[1]
    return [*sent, *_kinds()]


def _jobs(engine: Engine) -> dict[str, Any]:
    """Run a job of each kind, and return the kinds of sockets of its tasks."""
    shared = engine.share("shared")
    try:
        return {
            "run": engine.run(GROUP, partial(_in_task, shared.reference()), [1]),
            "query": engine.query(GROUP, QUERY, _read, _write, [1]),
            "exchange": engine.exchange_result(GROUP, QUERY, _read, Exchange(_send, _receive, 1), [1]),
        }
    finally:
        shared.release()


def _kept() -> set[str]:
    """Return the files that the JVM keeps in mind until it ends, to delete them then."""
    context = SparkContext._active_spark_context
    assert context is not None
    java: Any = context._jvm
    files = java.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    files.setAccessible(True)
    return set(java.java.lang.String.join("\n", files.get(None)).splitlines())


def run_in_own_session() -> None:
    """Print the kinds of sockets of the tasks, and the files that the JVM keeps in mind after more jobs."""
    engine = Engine(Session("local[2]", {}))
    try:
        kinds, before = _jobs(engine), _kept()
        for _ in range(3):
            assert _jobs(engine) == kinds
        sys.stdout.write(f"{json.dumps([kinds, sorted(_kept() - before)])}\n")
    finally:
        engine.stop()


@pytest.mark.parametrize(
    ("length", "site", "kind"),
    [
        (LONGEST, "", "unix" if HAS_UNIX_SOCKETS else "tcp"),
        (LONGEST + 1, "", "tcp"),
        (LONGEST, "spark.io.encryption.enabled true", "tcp"),
    ],
)
def test_jobs_when_they_have_ended_then_used_sockets_of_one_kind_and_spark_keeps_nothing(
    processes: None, length: int, site: str, kind: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        temporary = Path(folder).joinpath("t" * (length - len(f"{folder}//ingestd-spark-12345678")))
        temporary.mkdir()
        Path(folder, "spark-defaults.conf").write_text(site, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", "from tests.spark.test_sockets import run_in_own_session; run_in_own_session()"],
            env=os.environ | {"TMPDIR": str(temporary), "SPARK_CONF_DIR": folder},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stderr
        kinds, kept = json.loads(done.stdout.splitlines()[-1])
        assert kinds == {"run": [[kind]], "query": [[[kind], [kind]]], "exchange": [[[kind]], [[kind, kind]]]}
        assert kept == []
        assert list(temporary.iterdir()) == []
