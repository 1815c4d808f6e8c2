"""Values that tasks send to other tasks: each arrives once, also if processes are lost, and none is left on a disk."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import TaskContext

from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import JobFailed
from ingestd.spark.session import Session
from tests.support.cluster import Cluster
from tests.support.daemon import shared_engine
from tests.support.patience import LIMIT
from tests.support.stack import eventually

ITEMS = [0, 1, 2]
VALUES = 2_000
RECEIVERS = 4
EXPECTED = [list(range(receiver, len(ITEMS) * VALUES, RECEIVERS)) for receiver in range(RECEIVERS)]


def _send(folder: str, item: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive values. The first attempt of one item is lost after half of them."""
    (Path(folder) / f"sent-{item}-{os.getpid()}-{_attempt()}").touch()
    for n in range(VALUES):
        if item == 1 and n == VALUES // 2 and _is_first(folder, "send"):
            os.kill(os.getpid(), signal.SIGKILL)
        yield n % RECEIVERS, item * VALUES + n


def _receive(folder: str, received: tuple[int, Iterable[int]]) -> list[int]:
    """Return all values in order. The first attempt of one receiver is lost, on a cluster with its whole executor."""
    number, values = received
    found = sorted(values)
    if number == 0 and _is_first(folder, "receive"):
        for process in reversed(_executor()):
            process.kill()
        os.kill(os.getpid(), signal.SIGKILL)
    return found


def _executor() -> list[psutil.Process]:
    """Return the process of this task and its parents up to the JVM of the executor; none with a local master."""
    parents = psutil.Process().parents()
    places = [
        place for place, parent in enumerate(parents) if "CoarseGrainedExecutorBackend" in " ".join(parent.cmdline())
    ]
    return parents[: places[0] + 1] if places else []


def _is_first(folder: str, step: str) -> bool:
    try:
        (Path(folder) / step).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _attempt() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.taskAttemptId()


def run_with_losses(master: str, conf: str, folder: str) -> None:
    """Exchange values in a session that retries tasks, and print what the receivers have returned.

    Afterwards, waits until Spark has removed the files of the exchange.
    """
    local = Path(folder) / "local"
    engine = Engine(Session(master, json.loads(conf) | {"spark.local.dir": str(local)}))
    try:
        send, receive = partial(_send, folder), partial(_receive, folder)
        done = engine.exchange(JobGroup("exchange"), send, receive, ITEMS, RECEIVERS)
        eventually("no file of the exchange", lambda: not list(local.rglob("shuffle_*.data")))
        sys.stdout.write(f"{json.dumps(done)}\n")
    finally:
        engine.stop()


def _run(master: str, conf: dict[str, Any], folder: Path) -> list[list[int]]:
    code = "import sys; from tests.spark.test_exchange import run_with_losses; run_with_losses(*sys.argv[1:])"
    arguments = [sys.executable, "-c", code, master, json.dumps(conf), str(folder)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=LIMIT)
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_exchange_when_processes_of_tasks_are_killed_then_each_value_arrives_once_and_no_file_is_left(
    tmp_path: Path,
) -> None:
    assert _run("local[2,3]", {}, tmp_path) == EXPECTED
    assert {"send", "receive"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.soak
def test_exchange_when_an_executor_is_lost_with_sent_values_then_they_are_sent_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    options = cluster.options({"spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2])})
    assert _run(options["master"], options["conf"], tmp_path) == EXPECTED
    # One attempt of each item, one that was killed, and those whose values were lost.
    assert len(list(tmp_path.glob("sent-*"))) > len(ITEMS) + 1


def _memory(kind: str) -> int:
    """Return the memory of this process (`VmRSS`), or the largest one since the last reset (`VmHWM`), in KiB."""
    [size] = re.findall(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(size)


def _send_large(item: int) -> Iterator[tuple[int, bytes]]:
    """Yield 600 MiB, and how much more memory, in KiB, the process had meanwhile than before."""
    before = _memory("VmRSS")  # perhaps much, because Spark reuses processes
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
    for n in range(60):
        yield n % RECEIVERS, b"x" * (10 << 20)
    yield item, str(_memory("VmHWM") - before).encode()


def _sizes(received: tuple[int, Iterable[bytes]]) -> tuple[int, list[bytes]]:
    values = list(map(_short, received[1]))
    return len(values), [value for value in values if value]


def _short(value: bytes) -> bytes:
    return value if len(value) < 100 else b""


@pytest.fixture
def engine(processes: None) -> Engine:
    return shared_engine()


def test_exchange_when_values_are_large_then_a_sender_holds_few_of_them(engine: Engine) -> None:
    done = engine.exchange(JobGroup("exchange"), _send_large, _sizes, [0], RECEIVERS)
    assert [count for count, _ in done] == [16, 15, 15, 15]
    [[more], *others] = [values for _, values in done]
    assert others == [[]] * 3
    assert int(more) < 150 << 10


def _fail(_item: int) -> Iterator[tuple[int, int]]:
    yield 0, 1
    raise ValueError("lost")


def _count(received: tuple[int, Iterable[int]]) -> int:
    return len(list(received[1]))


def test_exchange_when_a_function_fails_then_the_error_names_its_exception(engine: Engine) -> None:
    with pytest.raises(JobFailed, match="ValueError: lost"):
        engine.exchange(JobGroup("exchange"), _fail, _count, [0, 1], 2)


def _stored(engine: Engine) -> list[Path]:
    """Return the files with values that tasks have sent."""
    option = "-Djava.io.tmpdir="
    [folder] = [argument.removeprefix(option) for argument in engine.java_command()[1] if argument.startswith(option)]
    names = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return [file for file in names if file.name.startswith("shuffle_")]


def test_values_when_the_job_has_ended_then_spark_removes_them(engine: Engine) -> None:
    engine.exchange(JobGroup("sizes"), _send_large, _sizes, [0, 1], RECEIVERS)
    eventually("no stored value", lambda: not _stored(engine))
    with pytest.raises(JobFailed):
        engine.exchange(JobGroup("exchange"), _fail, _count, [0, 1], 2)
    eventually("no stored value", lambda: not _stored(engine))
