"""`python -m bench.partitions` drains a backlog with thousands of new partitions in one transaction.

It prints the files that the transaction has written, the time of its steps and the peak memory of the daemon's process
tree, with each task writing its own rows (`distribution: none`), with the default, and with the default for a
`transform`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bench.ingest import Bench
from ingestd.kafka.producer import create_topic, produce
from ingestd.sandbox import Sandbox, SandboxOptions

_CASES: dict[str, dict[str, Any]] = {
    "none": {"distribution": "none"},
    "auto": {},
    "transform": {"transform": {"select": "SELECT id, upper(note) AS note, part FROM records"}},
}


def main() -> None:
    """Run the benchmark and print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("--records", type=int, default=1 << 17, help="records in the backlog; at least 50,000")
    parser.add_argument("--partitions", type=int, default=3000, help="partitions of the table, all of them new")
    parser.add_argument("--case", action="append", choices=list(_CASES), help="default: all")
    arguments = parser.parse_args()
    count, partitions = arguments.records, arguments.partitions
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as home:
        box = Sandbox(SandboxOptions(state_dir=Path(home) / "sandbox", hiveserver2=True, compactor_check_seconds=300))
        try:
            addresses = box.up()
            create_topic(addresses.kafka, "parts", 16)
            records = (b'{"id":%d,"part":%d,"note":"note %d"}' % (n, n * 7919 % partitions, n) for n in range(count))
            produce(addresses.kafka, "parts", records, lambda _more: None)
            bench = Bench(addresses, Path(home), count)
            for case in arguments.case or _CASES:
                made = bench.partitions("parts", count, partitions, _CASES[case])
                print(
                    f"{case}: {count:,} records, {partitions:,} partitions, {made.files:,} files"
                    f" in {made.seconds:.1f} s: stage {made.stage_seconds:.1f} s,"
                    f" publication {made.publish_seconds:.1f} s, commit {made.commit_seconds:.2f} s;"
                    f" {made.peak_mib:,} MiB",
                    flush=True,
                )
        finally:
            box.down()


if __name__ == "__main__":
    main()
