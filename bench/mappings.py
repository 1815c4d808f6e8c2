"""`python -m bench.mappings` runs one daemon with hundreds of mappings and reports what it costs.

Most mappings are idle, some receive a few records per second, and some have a backlog. Measured are the time until all
mappings are owned (first start and restart), the time of an orderly stop, and while all mappings are idle and while
they work: processor time, threads, connections to the metastore and memory of the daemon's Python process. The latency
of the steady mappings, while others drain their backlog, shows whether the cores are shared fairly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.records import COLUMNS, records
from ingestd.clock import Deadline, monotonic, now, pause
from ingestd.ingest.steps import STEPS
from ingestd.kafka.producer import produce
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.hiveserver2 import Session

_PARTITIONS = 2
_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What the Python process of a daemon uses: cores, threads without those of librdkafka, connections, memory."""

    cores: float
    threads: int
    librdkafka_threads: int
    metastore_connections: int
    mib: int


@dataclass(frozen=True, slots=True)
class Mappings:
    """The names of the mappings of each kind; topics and tables have the same names."""

    idle: Sequence[str]
    steady: Sequence[str]
    busy: Sequence[str]

    @property
    def names(self) -> list[str]:
        """All names."""
        return [*self.idle, *self.steady, *self.busy]


class Daemon:
    """One `ingestd run` process, and the events of its log."""

    def __init__(self, config: Path, log: Path, addresses: Addresses) -> None:
        self._log = log
        self._metastore = urlsplit(addresses.metastore).port
        self.began = monotonic()
        command = [sys.executable, "-m", "ingestd", "run", "--config", str(config), "--log-format", "json"]
        with log.open("wb") as sink:
            self._process = subprocess.Popen(command, stdout=sink, stderr=sink)
        self._usage = psutil.Process(self._process.pid)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of this name so far."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        wanted = f'"event": "{name}"'
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}") and wanted in line]

    def wait_for_owners(self, count: int) -> float:
        """Wait until all mappings are owned, and return the seconds since the start of the process."""
        limit = Deadline.after(_START_SECONDS)
        while len({event["mapping"] for event in self.events("owner")}) < count:
            assert self._process.poll() is None, self._log.read_text(encoding="utf-8")[-3000:]
            assert not limit.passed, f"{len(self.events('owner'))} of {count} mappings are owned"
            pause(0.25)
        return monotonic() - self.began

    def cost(self, seconds: float) -> Cost:
        """Measure what the process uses in the next `seconds`."""
        before, began = self._usage.cpu_times(), monotonic()
        pause(seconds)
        after, lasted = self._usage.cpu_times(), monotonic() - began
        names = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{self._process.pid}/task").glob("*/comm")]
        theirs = sum(name.startswith("rdk:") for name in names)
        connections = [c for c in self._usage.net_connections() if c.raddr and c.raddr.port == self._metastore]
        return Cost(
            cores=round((after.user + after.system - before.user - before.system) / lasted, 3),
            threads=len(names) - theirs,
            librdkafka_threads=theirs,
            metastore_connections=len(connections),
            mib=self._usage.memory_info().rss >> 20,
        )

    def stop(self) -> float:
        """Stop the daemon, and return the seconds that it took."""
        began = monotonic()
        self._process.terminate()
        assert self._process.wait(120) == 0, self._log.read_text(encoding="utf-8")[-3000:]
        return monotonic() - began


def create(addresses: Addresses, mappings: Mappings, folder: Path, interval: str) -> Path:
    """Create all topics and tables, and return the path of the configuration."""
    admin = AdminClient({"bootstrap.servers": addresses.kafka})
    for answer in admin.create_topics([NewTopic(name, _PARTITIONS, 1) for name in mappings.names]).values():
        answer.result(120)
    sessions = threading.local()

    def create_table(name: str) -> None:
        if not hasattr(sessions, "session"):
            assert addresses.hiveserver2 is not None
            sessions.session = Session(addresses.hiveserver2)
        sessions.session.query(f"CREATE TABLE {name} ({COLUMNS}) STORED AS ORC TBLPROPERTIES ('transactional'='true')")

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(create_table, mappings.names))
    document = {
        "metastore": {"uri": addresses.metastore},
        "kafka": {"bootstrap.servers": addresses.kafka},
        "spark": {"master": "local[2]"},
        "http": {"listen": "off"},
        "defaults": {"commit": {"interval": interval}},
        "mappings": [{"name": name, "topics": [name], "table": f"default.{name}"} for name in mappings.names],
    }
    path = folder / "ingestd.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@contextmanager
def steady(servers: str, topics: Sequence[str], per_second: float) -> Iterator[dict[str, list[tuple[int, float]]]]:
    """Produce to each topic at a steady rate during the block.

    Yields the (offset, time produced) of each record by `topic[partition]`, which is complete after the block.
    """
    sent: dict[str, list[tuple[int, float]]] = {}
    ended = threading.Event()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})

    def delivered(at: float) -> Any:
        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            sent.setdefault(f"{message.topic()}[{message.partition()}]", []).append((message.offset(), at))

        return note

    def work() -> None:
        began, count = monotonic(), 0
        values = records(10_000_000)
        while not ended.is_set():
            due = int((monotonic() - began) * per_second * len(topics))
            while count < due:
                producer.produce(topics[count % len(topics)], next(values), on_delivery=delivered(now()))
                count += 1
            producer.poll(0)
            pause(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()
        assert producer.flush(60) == 0


def latencies(commits: list[dict[str, Any]], sent: dict[str, list[tuple[int, float]]]) -> list[float]:
    """Return the seconds from produced to readable of all records that were committed, sorted."""
    ends: dict[str, list[tuple[int, float]]] = {}
    for commit in commits:
        at = datetime.fromisoformat(commit["timestamp"].replace("Z", "+00:00")).timestamp()
        at -= commit["ms"]["mirrored"] / 1000
        for text in commit.get("ranges", []):
            partition, _, offsets = text.partition(" ")
            ends.setdefault(partition, []).append((int(offsets.rpartition("..")[2]), at))
    found = []
    for partition, pairs in sent.items():
        known = ends.get(partition, [])
        for offset, at in pairs:
            index = bisect_right(known, (offset, float("inf")))
            if index < len(known):
                found.append(known[index][1] - at)
    return sorted(found)


def run(addresses: Addresses, mappings: Mappings, folder: Path, arguments: argparse.Namespace) -> None:
    """Run all measurements and print them."""
    config = create(addresses, mappings, folder, arguments.interval)
    count = len(mappings.names)
    daemon = Daemon(config, folder / "first.log", addresses)
    print(f"first start: {count} mappings owned after {daemon.wait_for_owners(count):.1f} s", flush=True)
    pause(arguments.settle)
    print(f"idle: {json.dumps(asdict(daemon.cost(arguments.seconds)))}", flush=True)
    print(f"stop: {daemon.stop():.1f} s", flush=True)
    for name in mappings.busy:
        produce(addresses.kafka, name, records(arguments.backlog), lambda _more: None)
    daemon = Daemon(config, folder / "second.log", addresses)
    print(f"restart: {count} mappings owned after {daemon.wait_for_owners(count):.1f} s", flush=True)
    with steady(addresses.kafka, mappings.steady, arguments.rate) as sent:
        print(f"working: {json.dumps(asdict(daemon.cost(arguments.seconds)))}", flush=True)
        limit = Deadline.after(_START_SECONDS)
        wanted = arguments.backlog * len(mappings.busy)
        while sum(c["rows"] for c in daemon.events("committed") if c["mapping"] in mappings.busy) < wanted:
            assert not limit.passed, "the backlog was not drained in time"
            pause(0.5)
        print(f"backlog: {wanted:,} records drained {monotonic() - daemon.began:.0f} s after the start", flush=True)
    pause(arguments.settle)
    commits = daemon.events("committed")
    found = latencies(commits, sent)
    total = sum(map(len, sent.values()))
    print(
        f"steady: {len(found):,} of {total:,} records readable, "
        f"p50 {found[len(found) // 2]:.2f} s, p99 {found[len(found) * 99 // 100]:.2f} s, maximum {found[-1]:.2f} s"
    )
    steps = {name: statistics.median(commit["ms"].get(name, 0) for commit in commits) for name in STEPS[1:]}
    print(f"{len(commits)} commits, medians of their steps in ms: {json.dumps(steps)}")
    print(f"stop: {daemon.stop():.1f} s; failures: {len(daemon.events('failed'))}", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench.mappings", description=__doc__)
    parser.add_argument("--idle", type=int, default=200, help="mappings without records")
    parser.add_argument("--steady", type=int, default=90, help="mappings with a steady rate")
    parser.add_argument("--busy", type=int, default=10, help="mappings with a backlog")
    parser.add_argument("--rate", type=float, default=20.0, help="records per second of each steady mapping")
    parser.add_argument("--backlog", type=int, default=100_000, help="records of each busy mapping")
    parser.add_argument("--interval", default="10s", help="commit.interval of all mappings")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each measurement")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds without a measurement before and after")
    parser.add_argument("--metastore-db", help="PostgreSQL for the metastore, as `ingestd sandbox up` has it")
    arguments = parser.parse_args()
    mappings = Mappings(
        *([f"{kind}_{n:03d}" for n in range(count)] for kind, count in vars(arguments).items() if kind in _KINDS)
    )
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as home:
        state = Path(home) / "sandbox"
        box = Sandbox(SandboxOptions(state_dir=state, hiveserver2=True, metastore_db=arguments.metastore_db))
        try:
            run(box.up(), mappings, Path(home), arguments)
        finally:
            box.down()


_KINDS = ("idle", "steady", "busy")

if __name__ == "__main__":
    main()
