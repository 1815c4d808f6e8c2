"""`python -m bench.queries` measures the CPU time that `where` and `transform` add to a mapping without SQL.

For each query, a process of its own starts Spark as a daemon does, and stages the same topic several times as one
transaction: tasks read records from Kafka, decode them, evaluate the query, and write ORC files. What a commit adds is
the same for all. The CPU time is that of the process and its children, with the JVM, after each stage. The first stage
includes the start of Spark and the compilation of the query; the median of the second half of the others is the cost of
the records. Compare the ratio to the mapping without SQL of the same shape.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from bench.records import SHAPES, Shape
from ingestd.acid.encoding import Encoding
from ingestd.acid.routing import Shape as TableShape
from ingestd.hive.tables import TableName
from ingestd.ingest.letters.writer import LetterTargets
from ingestd.ingest.options import MappingOptions, TransformOptions
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.rows.transform import Decoding
from ingestd.ingest.stage.jobs import StageJobs
from ingestd.ingest.stage.task import RecordRules, StagedTable, StageResult, StageTask
from ingestd.kafka.producer import create_topic, produce
from ingestd.kafka.ranges import OffsetRange, split
from ingestd.sandbox import Sandbox, SandboxOptions
from ingestd.spark.engine import Engine
from ingestd.spark.launch import JAVA_OPTIONS, QUERY_JAVA_OPTIONS
from ingestd.spark.session import Session
from ingestd.storage.storages import Storages

_MASTER = "local[2]"
# The keys of the mapping without and with SQL, by shape.
QUERIES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "flat": {
        "no SQL": {},
        "where, of one column": {"where": "amount < 10000"},
        "where, half of the rows": {"where": "id % 2 = 0"},
        "transform, two expressions": {
            "transform": "SELECT id, ts, upper(user_name) AS user_name, amount * 2 AS amount, flag, note FROM records"
        },
    },
    "nested": {
        "no SQL": {},
        "where, of one field": {"where": "buyer.name >= ''"},
        "transform, two expressions": {
            "transform": "SELECT id + 1 AS id, buyer, items, map('tier', upper(labels['tier'])) AS labels FROM records"
        },
    },
}


@dataclass(frozen=True, slots=True)
class _Load:
    """`count` records of a shape in a topic with one partition, which each query reads `stages` times."""

    servers: str
    topic: str
    shape: Shape
    count: int
    stages: int


def main() -> None:
    """Run the benchmark and print a line for each query."""
    parser = argparse.ArgumentParser(prog="python -m bench.queries", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="size of each topic")
    parser.add_argument("--stages", type=int, default=7, help="how often each query is evaluated for the topic")
    parser.add_argument("--shape", action="append", choices=list(QUERIES), help="default: all")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as home:
        box = Sandbox(SandboxOptions(state_dir=Path(home) / "sandbox"))
        try:
            servers = box.up().kafka
            for name in arguments.shape or QUERIES:
                measure(servers, name, name, Path(home), arguments.megabytes, arguments.stages)
        finally:
            box.down()


def measure(servers: str, name: str, topic: str, folder: Path, megabytes: int, stages: int) -> None:
    """Create and fill a topic with records of a shape, and print the CPU time of each query."""
    [shape] = [shape for shape in SHAPES if shape.name == name]
    load = _Load(servers, topic, shape, megabytes * 1_000_000 // shape.size, stages)
    create_topic(servers, topic, 1)
    produce(servers, topic, map(shape.record, range(load.count)), lambda _more: None)
    plain = 0.0
    for query, sql in QUERIES[name].items():
        # PySpark starts one JVM in a process.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            seconds = process.submit(_stage, load, sql, folder).result()
        spent = [after - before for before, after in pairwise(seconds)]
        steady = statistics.median(spent[len(spent) // 2 :])
        plain = plain or steady
        print(
            f"{name}, {query}: {steady * 1e6 / load.count:.2f} us of CPU time per record, {steady / plain:.2f} times"
            f" that without SQL; start and first {megabytes} MB {seconds[0]:.1f} s, then"
            f" {', '.join(f'{second:.1f}' for second in spent)} s",
            flush=True,
        )


def _stage(load: _Load, sql: Mapping[str, str], folder: Path) -> list[float]:
    """Stage the topic several times, and return the CPU time of this process and its children after each stage."""
    engine = Engine(Session(_MASTER, {JAVA_OPTIONS: QUERY_JAVA_OPTIONS} if sql else {}))
    try:
        transform = TransformOptions(sql["transform"]) if "transform" in sql else None
        options = MappingOptions(
            "bench",
            (load.topic,),
            TableName("default", "bench"),
            where=sql.get("where", ""),
            transform=transform,
            kafka={"bootstrap.servers": load.servers},
        )
        jobs = StageJobs(engine, options, Storages())
        seconds = []
        for _ in range(load.stages):
            with tempfile.TemporaryDirectory(dir=folder) as staging:
                answers = jobs.run(_tasks(load, options, Path(staging), jobs.parallelism))
            _require(answers, load.count)
            seconds.append(_cpu_seconds())
        return seconds
    finally:
        engine.stop()


def _tasks(load: _Load, options: MappingOptions, staging: Path, parallelism: int) -> list[StageTask]:
    table = TableShape(tuple(load.shape.all_columns()), (), None, Encoding())
    partitioning = Partitioning.of(table, {})
    rules = RecordRules.of(options, Decoding.of(table, partitioning, options))
    shares = split([OffsetRange(load.topic, 0, 0, load.count)], parallelism)
    return [
        StageTask(
            mapping=options.name,
            number=number,
            tasks=len(shares),
            ranges=tuple(share),
            offsets=load.count,
            topics={},
            rules=rules,
            table=StagedTable(table, partitioning, 1, staging.as_uri(), 10),
            letters=LetterTargets(),
        )
        for number, share in enumerate(shares)
    ]


def _require(answers: Sequence[Any], count: int) -> None:
    """Raise an error of a task, and make sure that all records were read."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    assert sum(answer.records for answer in answers if isinstance(answer, StageResult)) == count


def _cpu_seconds() -> float:
    """Return the CPU time of this process and its children, with those that have ended."""
    myself = psutil.Process()
    times = [process.cpu_times() for process in (myself, *myself.children(recursive=True))]
    return sum(sum(time[:4]) for time in times)


if __name__ == "__main__":
    main()
