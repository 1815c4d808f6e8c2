"""`python -m bench.shapes` compares ingestd with Spark's own Kafka source on records of the shapes that topics have.

For each shape, both drain the same topic with two cores, one after the other. As in `bench.ingest`, the steady rate of
ingestd is compared with the second (warm) drain of one Spark session. The clean shape is `flat`; `hot` has the same
records in one Kafka partition. In `rejects` and `dead_letters`, the ids of 1 % of them are not numbers. In `flat_where`
and `flat_transform`, all rows of `flat` pass through the SQL of the mapping, so compare their CPU time with that of
`flat`. Rates are comparable only within one run, so quote the ratio. Spark needs the packages of its formats
(`bench.spark`).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.ingest import Bench
from bench.records import SHAPES, Shape
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from tests.support.registry import RegistryServer, registry_server


def main() -> None:
    """Run the benchmark and print a line for each shape."""
    parser = argparse.ArgumentParser(prog="python -m bench.shapes", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300, help="size of each topic")
    parser.add_argument("--runs", type=int, default=3, help="drains by each program; the medians are printed")
    parser.add_argument("--shape", action="append", choices=[shape.name for shape in SHAPES], help="default: all")
    parser.add_argument("--skip-spark", action="store_true", help="measure ingestd only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as home, registry_server() as registry:
        # As in bench.ingest: looking for tables to compact would disturb the commits.
        options = SandboxOptions(state_dir=Path(home) / "sandbox", hiveserver2=True, compactor_check_seconds=300)
        box = Sandbox(options)
        try:
            addresses = box.up()
            for shape in SHAPES:
                if not arguments.shape or shape.name in arguments.shape:
                    print(_measure(shape, addresses, Path(home), registry, arguments), flush=True)
        finally:
            box.down()


def _measure(
    shape: Shape, addresses: Addresses, folder: Path, registry: RegistryServer, arguments: argparse.Namespace
) -> str:
    count = arguments.megabytes * 1_000_000 // shape.size
    bench = Bench(addresses, folder, count, shape, registry)
    bench.backlog()
    ours, theirs = [], []
    skips_spark = arguments.skip_spark
    for _ in range(arguments.runs):
        ours.append(bench.ingestd())
        if not skips_spark:
            try:
                theirs.append(bench.spark()["warm"])
            except subprocess.CalledProcessError:
                print(f"{shape.name}: Spark fails; are its packages at hand?", flush=True)
                skips_spark = True
    rate = statistics.median(drain.rate for drain in ours)
    line = f"{shape.name}: {count:,} records, ingestd {rate:,.0f} records/s, {rate * shape.size / 1e6:.0f} MB/s"
    line += f", {min(drain.cpu_seconds for drain in ours):.1f} s of CPU time"
    if theirs:
        warm = statistics.median(theirs)
        line += f"; spark {warm:,.0f} records/s; ratio {rate / warm:.2f}"
    return line


if __name__ == "__main__":
    main()
