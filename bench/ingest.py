"""`python -m bench.ingest` compares ingestd with Spark's own Kafka source on the same topic and machine.

Both run as a user would run them, with the same broker and two cores. The steady rate of ingestd, which excludes
its startup, is compared with the second (warm) drain of one Spark session. Rates are comparable only within one run, so
quote the ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.latency import Latency, latency, produce_steadily, stop
from bench.memory import PeakMemory
from bench.records import COLUMNS, records
from ingestd.clock import Deadline, monotonic, pause
from ingestd.kafka.producer import create_topic, produce
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.hiveserver2 import query

_TOPIC = "backlog"
_PARTITIONS = 16


# Each lost or duplicate id of 0, 1, 2 … changes these values. Counting distinct ids would need too much memory.
_FINGERPRINT = "count(*), min(id), max(id), sum(id), sum(pmod(id * 7919, 1000003))"


def _fingerprint(count: int) -> tuple[int, ...]:
    ids = np.arange(count, dtype=np.int64)
    return count, 0, count - 1, int(ids.sum()), int((ids * 7919 % 1_000_003).sum())


@dataclass(frozen=True, slots=True)
class Drain:
    """One drain by ingestd: the run time of the process, its peak memory, and the milliseconds per step.

    `rate` is records per second from the first commit to the last. `warm` is the same rate over the second half of
    the records, because the second drain of Spark does not include the warm-up of the JVM either.
    """

    seconds: float
    rate: float
    warm: float
    peak_mib: int
    steps: dict[str, int]


class Bench:
    """The measurements on one sandbox. `folder` receives configurations, logs and the files that Spark writes."""

    def __init__(self, addresses: Addresses, folder: Path, count: int) -> None:
        self._addresses = addresses
        self._folder = folder
        self._count = count
        self._number = 0

    def backlog(self) -> None:
        """Create the topic and produce the records that the drains read."""
        create_topic(self._addresses.kafka, _TOPIC, _PARTITIONS)
        began = monotonic()
        produce(self._addresses.kafka, _TOPIC, records(self._count), lambda _more: None)
        print(f"produced {self._count:,} records in {monotonic() - began:.0f} s", flush=True)

    def ingestd(self) -> Drain:
        """Drain the topic into an ACID table with `ingestd run --until-caught-up`."""
        name, config = self._table_and_config(_TOPIC, {})
        began = monotonic()
        daemon = self._daemon(name, config, "--until-caught-up")
        try:
            with PeakMemory(daemon.pid) as peak:
                assert daemon.wait() == 0, (self._folder / f"{name}.log").read_text(encoding="utf-8")[-3000:]
        finally:
            stop(daemon)
        seconds = monotonic() - began
        assert self._sql(f"SELECT {_FINGERPRINT} FROM {name}") == [_fingerprint(self._count)]
        commits = [c for c in self._commits(name) if c["rows"]]
        steps: dict[str, int] = {}
        for commit in commits:
            for step, ms in commit["ms"].items():
                steps[step] = steps.get(step, 0) + ms
        return Drain(seconds, _rate(commits), _warm_rate(commits), peak.bytes >> 20, steps)

    def spark(self) -> dict[str, float]:
        """Drain the topic twice with Spark. Return the `cold` and the `warm` rate in records per second."""
        command = [sys.executable, "-m", "bench.spark", self._addresses.kafka, _TOPIC, str(self._folder / "spark")]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        result = json.loads(done.stdout.splitlines()[-1])
        assert result["rows"] == self._count
        return {"cold": self._count / result["cold"], "warm": self._count / result["warm"]}

    def latency(self, seconds: float) -> Latency:
        """Measure the latency at 1,000 records per second with a commit every second."""
        create_topic(self._addresses.kafka, "steady", _PARTITIONS)
        name, config = self._table_and_config("steady", {"interval": "1s"})
        daemon = self._daemon(name, config)
        # In the first seconds, Spark and its workers start, which is not the steady state.
        produce_steadily(self._addresses.kafka, "steady", 1000, 10)
        sent = produce_steadily(self._addresses.kafka, "steady", 1000, seconds)
        limit = Deadline.after(60)
        while not self._has_all(name, sent) and not limit.passed:
            pause(0.2)
        stop(daemon)
        return latency(self._commits(name), sent)

    def _has_all(self, name: str, sent: dict[int, list[tuple[int, float]]]) -> bool:
        wanted = {f"[{partition}]": pairs[-1][0] + 1 for partition, pairs in sent.items()}
        reached = {
            text[text.index("[") : text.index("]") + 1]: int(text.rpartition("..")[2])
            for commit in self._commits(name)
            for text in commit["ranges"]
        }
        return all(reached.get(partition, 0) >= last for partition, last in wanted.items())

    def _table_and_config(self, topic: str, commit: dict[str, str]) -> tuple[str, Path]:
        self._number += 1
        name = f"bench_{self._number}"
        self._sql(f"CREATE TABLE {name} ({COLUMNS}) STORED AS ORC TBLPROPERTIES ('transactional'='true')")
        document = {
            "http": {"listen": "off"},
            "metastore": {"uri": self._addresses.metastore},
            "kafka": {"bootstrap.servers": self._addresses.kafka},
            "spark": {"master": "local[2]"},
            "mappings": [{"name": name, "topics": [topic], "table": f"default.{name}", "commit": commit}],
        }
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return name, path

    def _daemon(self, name: str, config: Path, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ingestd", "run", "--config", str(config), "--log-format", "json", *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _commits(self, name: str) -> list[dict[str, Any]]:
        lines = (self._folder / f"{name}.log").read_text(encoding="utf-8").splitlines()
        parsed = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in parsed if event["event"] == "committed"]

    def _sql(self, statement: str) -> list[tuple[Any, ...]]:
        assert self._addresses.hiveserver2 is not None
        return query(self._addresses.hiveserver2, statement)[1]


def _warm_rate(commits: list[dict[str, Any]]) -> float:
    """Return the records per second after the commit that completes the first half of the records."""
    done, half = 0, sum(c["rows"] for c in commits) / 2
    for number, commit in enumerate(commits):
        done += commit["rows"]
        if done >= half:
            return _rate(commits[number:])
    return 0.0


def _rate(commits: list[dict[str, Any]]) -> float:
    """Return the records per second after the first commit, which includes the start of the daemon."""
    times = [datetime.fromisoformat(c["timestamp"].replace("Z", "+00:00")).timestamp() for c in commits]
    return float(sum(c["rows"] for c in commits[1:]) / (times[-1] - times[0])) if len(commits) > 1 else 0.0


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000, help="records in the topic")
    parser.add_argument("--runs", type=int, default=3, help="drains by each program; the medians are printed")
    parser.add_argument("--latency-seconds", type=float, default=30, help="duration of that measurement; 0 skips it")
    parser.add_argument("--skip-spark", "--skip-rival", action="store_true", help="measure ingestd only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as home:
        box = Sandbox(SandboxOptions(state_dir=Path(home) / "sandbox", hiveserver2=True))
        try:
            bench = Bench(box.up(), Path(home), arguments.records)
            bench.backlog()
            _compare(bench, arguments)
            if arguments.latency_seconds:
                result = bench.latency(arguments.latency_seconds)
                print(f"latency of {result.records:,} records: p50 {result.p50:.2f} s, p99 {result.p99:.2f} s")
        finally:
            box.down()


def _compare(bench: Bench, arguments: argparse.Namespace) -> None:
    """Drain with ingestd and Spark alternately, and print the medians."""
    ours: list[Drain] = []
    theirs: list[dict[str, float]] = []
    for run in range(arguments.runs):
        ours.append(bench.ingestd())
        print(f"run {run + 1}: ingestd {json.dumps(asdict(ours[-1]))}", flush=True)
        if not arguments.skip_spark:
            theirs.append(bench.spark())
            print(f"run {run + 1}: spark {json.dumps(theirs[-1])}", flush=True)
    rate, ours_warm = (statistics.median(rates) for rates in zip(*((o.rate, o.warm) for o in ours), strict=True))
    whole = statistics.median(arguments.records / o.seconds for o in ours)
    print(
        f"ingestd: {rate:,.0f} records/s steady, {ours_warm:,.0f} over the second half, {whole:,.0f} with startup; "
        f"peak {max(o.peak_mib for o in ours)} MiB"
    )
    if theirs:
        cold, warm = (statistics.median(t[kind] for t in theirs) for kind in ("cold", "warm"))
        print(f"spark: {warm:,.0f} records/s warm, {cold:,.0f} cold")
        print(
            f"ratio: {rate / warm:.2f} (steady to warm), {ours_warm / warm:.2f} (second half to warm), "
            f"{whole / cold:.2f} (whole process to cold drain)"
        )


if __name__ == "__main__":
    main()
