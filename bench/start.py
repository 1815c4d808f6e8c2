"""`python -m bench.start` measures the start of the daemon, and how soon a record can be read after it was produced.

The time from `ingestd run` to its first commit of records, of a new mapping and of one that continues, is compared with
the time in which Spark alone starts and runs its first Python tasks. Both alternate on the same machine and use two
cores. The medians are printed. Times are comparable only within one run, so quote the ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.latency import Latency, latency, produce_steadily, stop
from bench.records import COLUMNS, records
from ingestd.clock import Deadline, monotonic, now, pause
from ingestd.kafka.producer import create_topic, produce
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.hiveserver2 import query

_RECORDS = 1_000
_PER_SECOND = 1_000
_WARM_UP_SECONDS = 60
_WAIT_SECONDS = 120.0
# Spark as a user would start it, with a first job that needs a Python worker.
_SPARK_ALONE = """
from pyspark import SparkConf, SparkContext
conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
context = SparkContext(conf=SparkConf().setAll(list(conf.items())))
print("started", flush=True)
context.parallelize(range(2), 2).map(str).collect()
print("ran", flush=True)
context.stop()
"""


@dataclass(frozen=True, slots=True)
class SparkAlone:
    """The seconds from the start of the process until Spark had started, and until its first job had ended."""

    start: float
    first_job: float


def spark_alone() -> SparkAlone:
    """Start Spark without ingestd, and run one job."""
    began = monotonic()
    command = [sys.executable, "-c", _SPARK_ALONE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        times = {line.strip(): monotonic() - began for line in process.stdout}
    return SparkAlone(times["started"], times["ran"])


class Bench:
    """The measurements with the services at `addresses`. `folder` receives configurations and logs."""

    def __init__(self, addresses: Addresses, folder: Path) -> None:
        self._addresses = addresses
        self._folder = folder

    def first_commits(self) -> tuple[float, float]:
        """Return the seconds until the first commit of a new mapping, and of the same mapping in a second process."""
        name, config = self._mapping("30s")
        times = []
        for _ in range(2):
            produce(self._addresses.kafka, name, records(_RECORDS), lambda _more: None)
            began = monotonic()
            daemon = self._start(name, config)
            self._wait_for_records(daemon, name, _RECORDS)
            times.append(monotonic() - began)
            stop(daemon)
        return times[0], times[1]

    def latency(self, interval: str, seconds: float) -> Latency:
        """Measure the latency at a steady rate with a commit at this interval."""
        name, config = self._mapping(interval)
        daemon = self._start(name, config)
        # In the first minute, Spark's workers start and the JVMs compile their code, which is not the steady state.
        produce_steadily(self._addresses.kafka, name, _PER_SECOND, _WARM_UP_SECONDS)
        sent = produce_steadily(self._addresses.kafka, name, _PER_SECOND, seconds)
        last = sum(max(offset for offset, _ in pairs) + 1 for pairs in sent.values())
        self._wait_for_records(daemon, name, last)
        stop(daemon)
        return latency([commit for commit in self._commits(name) if commit["rows"]], sent)

    def _mapping(self, interval: str) -> tuple[str, Path]:
        """Create a topic and a table of the same name; return the name and the path of a configuration."""
        name = f"start_{int(now() * 1000)}"
        create_topic(self._addresses.kafka, name, 2)
        assert self._addresses.hiveserver2 is not None
        query(
            self._addresses.hiveserver2,
            f"CREATE TABLE {name} ({COLUMNS}) STORED AS ORC TBLPROPERTIES ('transactional'='true')",
        )
        document = {
            "http": {"listen": "127.0.0.1:0"},
            "metastore": {"uri": self._addresses.metastore},
            "kafka": {"bootstrap.servers": self._addresses.kafka},
            "spark": {"master": "local[2]"},
            "mappings": [
                {"name": name, "topics": [name], "table": f"default.{name}", "commit": {"interval": interval}}
            ],
        }
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return name, path

    def _start(self, name: str, config: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ingestd", "run", "--config", str(config), "--log-format", "json"]
        with self._log(name).open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_for_records(self, daemon: subprocess.Popen[bytes], name: str, count: int) -> None:
        """Wait until the process has committed this many records."""
        limit = Deadline.after(_WAIT_SECONDS)
        while sum(commit["records"] for commit in self._commits(name)) < count:
            assert daemon.poll() is None, self._log(name).read_text(encoding="utf-8")[-3000:]
            assert not limit.passed, f"no commit within {_WAIT_SECONDS:.0f} s"
            pause(0.02)

    def _commits(self, name: str) -> list[dict[str, Any]]:
        lines = self._log(name).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith('"event": "committed"}')]


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="starts of each program; the medians are printed")
    parser.add_argument("--latency-seconds", type=float, default=30, help="duration of each measurement; 0 skips them")
    parser.add_argument(
        "--services", type=Path, help="output of `ingestd sandbox up --output json`: use these services"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as home:
        if arguments.services is not None:
            running = json.loads(arguments.services.read_text(encoding="utf-8"))
            _measure(Bench(Addresses(**running), Path(home)), arguments)
            return
        box = Sandbox(SandboxOptions(state_dir=Path(home) / "sandbox", hiveserver2=True))
        try:
            _measure(Bench(box.up(), Path(home)), arguments)
        finally:
            box.down()


def _measure(bench: Bench, arguments: argparse.Namespace) -> None:
    ours, theirs = [], []
    for run in range(arguments.runs):
        theirs.append(spark_alone())
        ours.append(bench.first_commits())
        print(f"run {run + 1}: new {ours[-1][0]:.2f} s, continued {ours[-1][1]:.2f} s, {theirs[-1]}", flush=True)
    if ours:
        new, continued = (statistics.median(times) for times in zip(*ours, strict=True))
        start, first_job = (
            statistics.median(times) for times in zip(*((t.start, t.first_job) for t in theirs), strict=True)
        )
        print(f"first commit: {new:.2f} s (new mapping), {continued:.2f} s (continued)")
        print(f"Spark alone: {start:.2f} s, {first_job:.2f} s with its first job")
        print(
            f"ratio to Spark with its first job: {new / first_job:.2f} (new), {continued / first_job:.2f} (continued)"
        )
    for interval in ("1s", "200ms") if arguments.latency_seconds else ():
        result = bench.latency(interval, arguments.latency_seconds)
        print(
            f"interval {interval}: p50 {result.p50:.2f} s, p99 {result.p99:.2f} s of {result.records:,} records",
            flush=True,
        )


if __name__ == "__main__":
    main()
