"""`python -m bench.ingest` compares ingestd with Spark's own Kafka source on the same topic and machine.

Both run as a user would run them, with the same broker and two cores. The steady rate of ingestd, which excludes its
startup, is compared with the second (warm) drain of one Spark session. Rates are comparable only within one run, so
quote the ratio. `--rival flink` compares with Flink SQL instead (`bench.flink`), which writes ORC files as well: there
is no sink of Flink 2 for Hive 4. FLINK_PYTHON is the Python of its environment.

With `--storage hdfs` or `--storage s3`, the rate and the duration of a commit are compared with those of a table on the
local disk instead; the server of the storage uses the same cores. HDFS has three DataNodes, which store every block:
with a single one, it takes half a second to close most files. The S3 server is versitygw if it is on the PATH, because
moto is too slow for a measurement of ingestd.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pyarrow.dataset import dataset

from bench.formats import SparkJob, encoding_of
from bench.latency import Latency, latency, produce_steadily, stop
from bench.memory import Usage
from bench.records import FLAT, Shape, is_reject
from ingestd.clock import Deadline, monotonic, pause
from ingestd.java import find_java
from ingestd.kafka.producer import create_topic, produce
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.hiveserver2 import query
from ingestd.sandbox.options import DATANODES, LOCAL, S3, STORAGES
from tests.support.registry import RegistryServer

_PARTITIONS = 16
_LOCAL = "local[2]"
_LOCAL_DATABASE = "on_disk"
_STEPS_OF_COMMIT = ("locked", "registered", "placed", "announced", "counted", "committed")
_ROWS_OF_COMMIT = 2_000
_FEWEST_COMMITS = 2
_READ_AT_ONCE = 250

# Each lost or duplicate id of 0, 1, 2 … changes these values. Counting distinct ids would need too much memory.
_FINGERPRINT = "count(*), min(id), max(id), sum(id), sum(pmod(id * 7919, 1000003))"


def _fingerprint(count: int, shape: Shape) -> tuple[int, ...]:
    ids = np.arange(count, dtype=np.int64)
    if shape.has_rejects:
        ids = ids[[not is_reject(number) for number in range(count)]]
    return len(ids), int(ids[0]), int(ids[-1]), int(ids.sum()), int((ids * 7919 % 1_000_003).sum())


@dataclass(frozen=True, slots=True)
class Drain:
    """One drain by ingestd: the run time of the process, its peak memory, and the milliseconds per step.

    `rate` is records per second from the first commit to the last. `warm` is the same rate over the second half of
    the records, because the second drain of Spark does not include the warm-up of the JVM either. `cpu_seconds` is the
    CPU time of the process and its children.
    """

    seconds: float
    rate: float
    warm: float
    peak_mib: int
    steps: dict[str, int]
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class ManyPartitions:
    """One transaction: the run time of its process, its files, the seconds of its steps, and the peak memory.

    `publish_seconds` is the time from `locked` to `counted`, and `commit_seconds` that of the call that commits.
    """

    seconds: float
    files: int
    stage_seconds: float
    publish_seconds: float
    commit_seconds: float
    peak_mib: int


class Bench:
    """The measurements on one sandbox with records of one shape.

    `folder` receives configurations, logs and the files that Spark writes. The name of the shape is that of its topic.
    `registry` has the schemas of formats that need them.
    """

    def __init__(
        self,
        addresses: Addresses,
        folder: Path,
        count: int,
        shape: Shape = FLAT,
        registry: RegistryServer | None = None,
    ) -> None:
        self._addresses = addresses
        self._folder = folder
        self._count = count
        self._shape = shape
        self._registry = registry or RegistryServer()
        self._encoding = encoding_of(shape, self._registry)
        self._number = 0

    def backlog(self) -> None:
        """Create the topic and produce the records that the drains read."""
        create_topic(self._addresses.kafka, self._shape.name, self._shape.kafka_partitions)
        began = monotonic()
        records = map(self._encoding.encode, map(self._shape.record, range(self._count)))
        produce(self._addresses.kafka, self._shape.name, records, lambda _more: None)
        print(f"produced {self._count:,} records in {monotonic() - began:.0f} s", flush=True)

    def create_local_database(self) -> None:
        """Create a database whose tables are on the local disk, whatever the storage of the warehouse is."""
        location = (self._folder / _LOCAL_DATABASE).as_uri()
        self._sql(f"CREATE DATABASE {_LOCAL_DATABASE} MANAGEDLOCATION '{location}'")

    def ingestd(self, master: str = _LOCAL, database: str = "default") -> Drain:
        """Drain the topic into an ACID table with `ingestd run --until-caught-up` and this Spark master."""
        name = self._table(self._shape.columns, database, self._shape.partition)
        config = self._config(name, self._shape.name, {}, database, master, self._mapping(name))
        seconds, usage = self._drained(name, config)
        assert self._sql(f"SELECT {_FINGERPRINT} FROM {database}.{name}") == [_fingerprint(self._count, self._shape)]
        commits = [c for c in self._commits(name) if c["rows"]]
        steps: dict[str, int] = {}
        for commit in commits:
            for step, ms in commit["ms"].items():
                steps[step] = steps.get(step, 0) + ms
        return Drain(seconds, rate(commits), warm_rate(commits), usage.bytes >> 20, steps, usage.cpu_seconds)

    def spark(self) -> dict[str, float]:
        """Drain the topic twice with Spark. Return the `cold` and the `warm` rate in records per second."""
        job = SparkJob(self._addresses.kafka, self._shape.name, str(self._folder / "spark"), self._encoding.schema)
        command = [sys.executable, "-m", "bench.spark", json.dumps(asdict(job))]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        result = json.loads(done.stdout.splitlines()[-1])
        assert result["rows"] == _fingerprint(self._count, self._shape)[0]
        return {"cold": self._count / result["cold"], "warm": self._count / result["warm"]}

    def flink(self) -> dict[str, float]:
        """Drain the topic twice with Flink; see `spark`, and `bench.flink` for what it needs."""
        folder = self._folder / f"flink_{self._number}"
        program = Path(__file__).with_name("flink.py")
        command = [os.environ["FLINK_PYTHON"], str(program), self._addresses.kafka, self._shape.name, str(folder)]
        environment = os.environ | {"JAVA_HOME": str(find_java())}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        assert dataset(folder / "warm", format="orc").count_rows() == self._count
        shutil.rmtree(folder)
        return {name: self._count / seconds for name, seconds in json.loads(done.stdout.splitlines()[-1]).items()}

    def commits(self, partitions: int, database: str) -> tuple[float, float]:
        """Return the seconds of a commit that creates partitions, and of the next one, which writes to the same."""
        name = self._table("id bigint", f"{database}", "part int")
        create_topic(self._addresses.kafka, name, 1)
        rows = (f'{{"id": {n}, "part": {n % partitions}}}'.encode() for n in range(2 * _ROWS_OF_COMMIT))
        produce(self._addresses.kafka, name, rows, lambda _more: None)
        self._drained(name, self._config(name, name, {"rows": _ROWS_OF_COMMIT}, database))
        found = [commit["ms"] for commit in self._commits(name) if commit["rows"]]
        print(f"steps of a commit with {partitions} partitions in {database}: {json.dumps(found)}", flush=True)
        first, second = (sum(ms[step] for step in _STEPS_OF_COMMIT) / 1000 for ms in found)
        return first, second

    def partitions(self, topic: str, count: int, partitions: int, keys: dict[str, Any]) -> ManyPartitions:
        """Drain a topic of `count` records in one transaction into a table, all of whose partitions are new.

        Each record has the fields `id`, from 0, and `part`, a number below `partitions`. `keys` belong to the mapping.
        """
        name = self._table("id bigint, note string", "default", "part int")
        # The size that a transaction assumes for records until one has measured it is 8 KiB.
        commit = {"rows": count, "bytes": count << 13, "interval": "10m", "partitions": partitions}
        config = self._config(name, topic, commit, mapping=keys)
        seconds, usage = self._drained(name, config)
        # HiveServer2 requests a lock for each partition that a query reads, and a metastore on Derby does not take
        # thousands of them at once.
        slices = [
            f"part >= {first} AND part < {first + _READ_AT_ONCE}" for first in range(0, partitions, _READ_AT_ONCE)
        ]
        read = [
            self._sql(f"SELECT {_FINGERPRINT}, count(DISTINCT part) FROM {name} WHERE {part}")[0] for part in slices
        ]
        rows, first, last, ids, mixed, written = zip(*read, strict=True)
        assert (sum(rows), min(first), max(last), sum(ids), sum(mixed)) == _fingerprint(count, FLAT)
        assert sum(written) == partitions
        [transaction] = [commit for commit in self._commits(name) if commit["rows"]]
        ms = transaction["ms"]
        publishing = sum(ms[step] for step in _STEPS_OF_COMMIT if step != "committed") / 1000
        return ManyPartitions(
            seconds, transaction["files"], ms["staged"] / 1000, publishing, ms["committed"] / 1000, usage.bytes >> 20
        )

    def latency(self, seconds: float) -> Latency:
        """Measure the latency at 1,000 records per second with a commit every second."""
        create_topic(self._addresses.kafka, "steady", _PARTITIONS)
        name = self._table(FLAT.columns)
        daemon = self._daemon(name, self._config(name, "steady", {"interval": "1s"}))
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

    def _table(self, columns: str, database: str = "default", partitioned: str = "") -> str:
        self._number += 1
        name = f"{self._shape.name}_{self._number}"
        by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
        self._sql(
            f"CREATE TABLE {database}.{name} ({columns}) {by} STORED AS ORC TBLPROPERTIES ('transactional'='true')"
        )
        return name

    def _mapping(self, name: str) -> dict[str, Any]:
        """Return the keys of the mapping that depend on the shape. Dead letters go to a topic of their own."""
        mapping = self._encoding.mapping | {"on_error": self._shape.on_error, **self._shape.sql}
        if self._shape.on_error == "dead_letter":
            create_topic(self._addresses.kafka, f"{name}.dead", _PARTITIONS)
            mapping["dead_letter"] = {"topic": f"{name}.dead"}
        return mapping

    def _config(
        self,
        name: str,
        topic: str,
        commit: dict[str, Any],
        database: str = "default",
        master: str = _LOCAL,
        mapping: dict[str, Any] | None = None,
    ) -> Path:
        document: dict[str, Any] = {
            "http": {"listen": "off"},
            "metastore": {"uri": self._addresses.metastore},
            "kafka": {"bootstrap.servers": self._addresses.kafka},
            "spark": {"master": master},
            "mappings": [
                {"name": name, "topics": [topic], "table": f"{database}.{name}", "commit": commit, **(mapping or {})}
            ],
        }
        if self._registry.url:
            document["registry"] = {"url": self._registry.url}
        if self._addresses.hadoop_conf_dir:
            document["storage"] = {"hadoop_conf_dir": self._addresses.hadoop_conf_dir}
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    def _daemon(self, name: str, config: Path, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ingestd", "run", "--config", str(config), "--log-format", "json", *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _drained(self, name: str, config: Path) -> tuple[float, Usage]:
        """Run a daemon until it has caught up; return the seconds of its process, and what the process has used."""
        began = monotonic()
        daemon = self._daemon(name, config, "--until-caught-up")
        try:
            with Usage(daemon.pid) as usage:
                assert daemon.wait() == 0, (self._folder / f"{name}.log").read_text(encoding="utf-8")[-3000:]
        finally:
            stop(daemon)
        return monotonic() - began, usage

    def _commits(self, name: str) -> list[dict[str, Any]]:
        lines = (self._folder / f"{name}.log").read_text(encoding="utf-8").splitlines()
        parsed = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in parsed if event["event"] == "committed"]

    def _sql(self, statement: str) -> list[tuple[Any, ...]]:
        assert self._addresses.hiveserver2 is not None
        return query(self._addresses.hiveserver2, statement)[1]


def rate(commits: Sequence[dict[str, Any]]) -> float:
    """Return the records per second after the first commit, which includes the start of the daemon.

    Raises ValueError if no other commit follows.
    """
    if len(commits) < _FEWEST_COMMITS:
        raise ValueError("the records were stored by one commit, so no rate can be computed; raise --records")
    times = [datetime.fromisoformat(c["timestamp"].replace("Z", "+00:00")).timestamp() for c in commits]
    return float(sum(c["rows"] for c in commits[1:]) / (times[-1] - times[0]))


def warm_rate(commits: Sequence[dict[str, Any]]) -> float:
    """Return the records per second after the commit that completes the first half of the records.

    If only the last commit does, it is the rate of that commit. Raises ValueError as `rate` does.
    """
    half = sum(c["rows"] for c in commits) / 2
    before = sum(done < half for done in accumulate(c["rows"] for c in commits))
    return rate(commits[min(before, max(0, len(commits) - _FEWEST_COMMITS)) :])


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000, help="records in the topic")
    parser.add_argument("--runs", type=int, default=3, help="drains by each program; the medians are printed")
    parser.add_argument("--latency-seconds", type=float, default=30, help="duration of that measurement; 0 skips it")
    parser.add_argument("--rival", choices=("spark", "flink"), default="spark", help="the program to compare with")
    parser.add_argument("--skip-spark", "--skip-rival", action="store_true", help="measure ingestd only")
    parser.add_argument("--master", help="a second Spark master, whose rate is printed beside that of local[2]")
    parser.add_argument("--spark-workers", type=int, default=0, help="use a cluster of the sandbox as --master")
    parser.add_argument("--storage", choices=STORAGES, default=LOCAL, help="storage of the warehouse")
    parser.add_argument("--datanodes", type=int, default=len(DATANODES), help="DataNodes of HDFS, and replicas")
    arguments = parser.parse_args()
    if arguments.storage != LOCAL and (arguments.master or arguments.spark_workers):
        parser.error("--storage cannot be combined with --master or --spark-workers")
    versitygw = shutil.which("versitygw")
    if arguments.storage == S3 and not versitygw:
        print("versitygw is not installed: the figures below are those of moto", flush=True)
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as home:
        box = Sandbox(
            SandboxOptions(
                state_dir=Path(home) / "sandbox",
                hiveserver2=True,
                spark_workers=arguments.spark_workers,
                storage=arguments.storage,
                datanodes=arguments.datanodes,
                versitygw=Path(versitygw) if versitygw else None,
                # Hive's default. Looking for tables to compact would otherwise disturb every commit: it lists their
                # directories, and its locks in Derby sometimes stop a commit for two seconds.
                compactor_check_seconds=300,
            )
        )
        try:
            addresses = box.up()
            bench = Bench(addresses, Path(home), arguments.records)
            bench.backlog()
            if arguments.storage == LOCAL:
                _compare(bench, arguments, addresses.spark or arguments.master)
            else:
                _compare_storages(bench, arguments)
            if arguments.latency_seconds:
                result = bench.latency(arguments.latency_seconds)
                print(f"latency of {result.records:,} records: p50 {result.p50:.2f} s, p99 {result.p99:.2f} s")
        finally:
            box.down()


def _compare_storages(bench: Bench, arguments: argparse.Namespace) -> None:
    """Drain into the storage and into the local disk alternately, measure single commits, and print the medians."""
    bench.create_local_database()
    databases = {arguments.storage: "default", LOCAL: _LOCAL_DATABASE}
    rates: dict[str, list[tuple[float, float]]] = {storage: [] for storage in databases}
    for run in range(arguments.runs):
        for storage, database in databases.items():
            drain = bench.ingestd(database=database)
            rates[storage].append((drain.rate, drain.warm))
            print(f"run {run + 1}: {storage} {json.dumps(asdict(drain))}", flush=True)
    steady, warm = (
        {storage: statistics.median(pair[kind] for pair in pairs) for storage, pairs in rates.items()}
        for kind in (0, 1)
    )
    ratios = (medians[arguments.storage] / medians[LOCAL] for medians in (steady, warm))
    print(f"{arguments.storage}: {steady[arguments.storage]:,.0f} records/s steady, {LOCAL}: {steady[LOCAL]:,.0f};")
    print("ratio: {:.2f} (steady), {:.2f} (second half)".format(*ratios))
    for partitions in (1, 200):
        for storage, database in databases.items():
            created, existing = bench.commits(partitions, database)
            print(f"commit of {partitions} partitions on {storage}: {created:.2f} s if new, {existing:.2f} s if not")


def _compare(bench: Bench, arguments: argparse.Namespace, master: str | None) -> None:
    """Drain with ingestd, with ingestd on `master` and with Spark alternately, and print the medians."""
    ours: list[Drain] = []
    remote: list[Drain] = []
    theirs: list[dict[str, float]] = []
    for run in range(arguments.runs):
        ours.append(bench.ingestd())
        print(f"run {run + 1}: ingestd {json.dumps(asdict(ours[-1]))}", flush=True)
        if master:
            remote.append(bench.ingestd(master))
            print(f"run {run + 1}: ingestd on {master} {json.dumps(asdict(remote[-1]))}", flush=True)
        if not arguments.skip_spark:
            theirs.append(bench.flink() if arguments.rival == "flink" else bench.spark())
            print(f"run {run + 1}: {arguments.rival} {json.dumps(theirs[-1])}", flush=True)
    rate, ours_warm = (statistics.median(rates) for rates in zip(*((o.rate, o.warm) for o in ours), strict=True))
    whole = statistics.median(arguments.records / o.seconds for o in ours)
    print(
        f"ingestd: {rate:,.0f} records/s steady, {ours_warm:,.0f} over the second half, {whole:,.0f} with startup; "
        f"peak {max(o.peak_mib for o in ours)} MiB"
    )
    if remote:
        rates = [statistics.median(kind) for kind in zip(*((o.rate, o.warm) for o in remote), strict=True)]
        print(
            f"ingestd on {master}: {rates[0]:,.0f} records/s steady, {rates[1]:,.0f} over the second half;"
            f" ratio to local {rates[0] / rate:.2f}, {rates[1] / ours_warm:.2f}"
        )
    if theirs:
        cold, warm = (statistics.median(t[kind] for t in theirs) for kind in ("cold", "warm"))
        print(f"{arguments.rival}: {warm:,.0f} records/s warm, {cold:,.0f} cold")
        print(
            f"ratio: {rate / warm:.2f} (steady to warm), {ours_warm / warm:.2f} (second half to warm), "
            f"{whole / cold:.2f} (whole process to cold drain)"
        )


if __name__ == "__main__":
    main()
