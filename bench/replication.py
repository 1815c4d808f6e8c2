"""`python -m bench.replication` measures copies of files, and how fast a copy of a database follows its source.

It copies 10,000 small and 20 large files by threads and by Spark, beside `cp -r` and, with `--distcp`, Hadoop's distcp,
and then replays small transactions of a partitioned and of an unpartitioned table. Medians of runs that take turns.
Rates are comparable only within one run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.copies import FileSet, create, measure, programs
from bench.replay import Copied, Replayed
from ingestd.java import find_java
from ingestd.sandbox import METASTORE, TARGET_METASTORE, Sandbox, SandboxOptions
from ingestd.spark.engine import Engine
from ingestd.spark.session import Session

_SMALL_BYTES, _LARGE_BYTES = 16 << 10, 64 << 20
_WARM_UP = 20


def main() -> None:
    """Run both measurements and print a table each."""
    parser = argparse.ArgumentParser(prog="python -m bench.replication", description=__doc__)
    parser.add_argument("--small-files", type=int, default=10_000, help="of 16 KiB (default: %(default)s; 0: none)")
    parser.add_argument("--large-files", type=int, default=20, help="of 64 MiB (default: %(default)s; 0: none)")
    parser.add_argument("--distcp", metavar="JAR", help="path of hadoop-distcp-VERSION.jar, to measure it as well")
    parser.add_argument("--commits", type=int, default=200, help="per cycle (default: %(default)s; 0: no replay)")
    parser.add_argument("--runs", type=int, default=3, help="whose medians are printed (default: %(default)s)")
    parser.add_argument("--folder", help="where to copy files; by default, the directory of temporary files")
    given = parser.parse_args()
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-", dir=given.folder) as folder:
        sets = [("small", given.small_files, _SMALL_BYTES), ("large", given.large_files, _LARGE_BYTES)]
        files = {name: create(Path(folder) / name, count, length) for name, count, length in sets if count}
        if files:
            console.print(_copies(files, given.distcp, given.runs))
        if given.commits:
            console.print(_replay(Path(folder), given.commits, given.runs))


def copies(sets: Mapping[str, FileSet], found: Mapping[str, Callable[[FileSet], None]], runs: int) -> Table:
    """Return a table of the rates of the programs, and of their ratios to `cp -r`."""
    table = _table("files", "program", "seconds", "files/s", "MB/s", "times cp -r")
    for name, files in sets.items():
        seconds = measure(files, found, runs)
        for program, taken in seconds.items():
            rates = f"{len(files.files) / taken:,.0f}", f"{files.bytes / taken / 1e6:,.0f}"
            table.add_row(
                f"{len(files.files):,} {name}", program, f"{taken:.2f}", *rates, f"{seconds['cp -r'] / taken:.2f}"
            )
    return table


def _copies(sets: Mapping[str, FileSet], distcp: str | None, runs: int) -> Table:
    os.environ["JAVA_HOME"] = str(find_java())
    engine = Engine(Session("local[2]", {}))
    try:
        engine.counter()  # waits until Spark has started
        return copies(sets, programs(engine, distcp), runs)
    finally:
        engine.stop()


def replay(source: str, target: str, folder: Path, commits: int, runs: int) -> Table:
    """Return a table of cycles between two metastores; `folder` is an empty directory for dumps.

    The lag is the median of the time from the begin of a dump to the end of the load, with one commit.
    """
    table = _table("table", "commits", "events/s", "commits/s", "calls/commit", "dump s", "load s", "lag of one commit")
    kinds = {"unpartitioned": False, "partitioned": True}
    copied = {
        name: Copied(source, target, folder / name, is_partitioned=is_partitioned)
        for name, is_partitioned in kinds.items()
    }
    cycles: dict[str, list[Replayed]] = {name: [] for name in kinds}
    lags: dict[str, list[Replayed]] = {name: [] for name in kinds}
    for copy in copied.values():
        copy.measure(min(commits, _WARM_UP))
    for _ in range(runs):
        for name, copy in copied.items():
            cycles[name].append(copy.measure(commits))
            lags[name].append(copy.measure(1))
    for name, some in cycles.items():
        table.add_row(
            name,
            *_row(some),
            f"{_median(lags[name], lambda replayed: replayed.dump_seconds + replayed.load_seconds):.2f} s",
        )
    for copy in copied.values():
        copy.close()
    return table


def _row(cycles: Sequence[Replayed]) -> list[str]:
    return [
        f"{cycles[0].commits:,}",
        f"{_median(cycles, lambda replayed: replayed.events / replayed.load_seconds):.1f}",
        f"{_median(cycles, lambda replayed: replayed.commits / replayed.load_seconds):.1f}",
        f"{_median(cycles, lambda replayed: sum(replayed.calls.values()) / replayed.commits):.2f}",
        f"{_median(cycles, lambda replayed: replayed.dump_seconds):.2f}",
        f"{_median(cycles, lambda replayed: replayed.load_seconds):.2f}",
    ]


def _replay(folder: Path, commits: int, runs: int) -> Table:
    box = Sandbox(SandboxOptions(folder / "sandbox", replica=True))
    try:
        box.start_service(METASTORE, TARGET_METASTORE)
        found = box.addresses()
        assert found.target_metastore
        (folder / "dumps").mkdir()
        return replay(found.metastore, found.target_metastore, folder / "dumps", commits, runs)
    finally:
        box.down()


def _median(cycles: Sequence[Replayed], value: Callable[[Replayed], float]) -> float:
    return statistics.median(map(value, cycles))


def _table(*columns: str) -> Table:
    table = Table(box=None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


if __name__ == "__main__":
    main()
