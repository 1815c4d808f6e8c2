"""`python -m bench.streaming` measures the records per second of each writer of `ingestd.streaming` in one thread.

Each transaction writes 200,000 records from memory. The time includes the commits, and HiveServer2 counts all rows at
the end. Rates are comparable only within one run, so quote the ratio to another implementation (`--rival`).
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from ingestd.clock import monotonic
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.hiveserver2 import query
from ingestd.streaming import (
    ArrowWriter,
    HiveStreamingConnection,
    StrictDelimitedInputWriter,
    StrictJsonWriter,
)

_COLUMNS = "id bigint, ts timestamp, `user` string, amount double, flag boolean, note string"
_LETTERS = "abcdefghijklmnopqrstuvwxyz "
_WARM_UP = 1
_METASTORE_WARM_UP = 30  # transactions, because the rival's metastore has run as many before its measurement


@dataclass(frozen=True, slots=True)
class Case:
    """One case to measure.

    `write` writes one transaction. `rival` is the key of the rate in the output of `--rival`.
    """

    name: str
    writer: Any
    write: Callable[[HiveStreamingConnection], None]
    rival: str


def rows(count: int) -> list[tuple[int, str, str, float, bool, str]]:
    """Return `count` rows, each of about 142 bytes as JSON and 84 bytes as delimited text."""
    choose = random.Random(42)
    first = datetime(2025, 1, 1)
    return [
        (
            1_000_000 + number,
            f"{first + timedelta(seconds=7 * number)}",
            f"user_{choose.randrange(50_000)}",
            round(choose.random() * 1e4, 2),
            choose.random() < 0.5,
            "".join(choose.choices(_LETTERS, k=choose.randrange(26, 37))),
        )
        for number in range(count)
    ]


def cases(count: int) -> list[Case]:
    """Return a case for every writer with every kind of input."""
    data = rows(count)
    names = ("id", "ts", "user", "amount", "flag", "note")
    as_json = [json.dumps(dict(zip(names, row, strict=True))).encode() for row in data]
    as_text = [",".join(map(_text, row)).encode() for row in data]
    arrow = pa.table(dict(zip(names, map(list, zip(*data, strict=True)), strict=True)))
    stamps = arrow.column("ts").cast(pa.timestamp("ns"))
    arrow = arrow.set_column(1, "ts", stamps)
    delimited = StrictDelimitedInputWriter(field_delimiter=",")

    def one_by_one(records: list[bytes]) -> Callable[[HiveStreamingConnection], None]:
        def write(connection: HiveStreamingConnection) -> None:
            for record in records:
                connection.write(record)

        return write

    json_lines, text_lines = b"\n".join(as_json), b"\n".join(as_text)
    return [
        Case("ArrowWriter", ArrowWriter(), lambda c: c.write(arrow), "json_timestamp"),
        Case("StrictJsonWriter, list", StrictJsonWriter(), lambda c: c.write(as_json), "json_timestamp"),
        Case(
            "StrictJsonWriter, stream", StrictJsonWriter(), lambda c: c.write(io.BytesIO(json_lines)), "json_timestamp"
        ),
        Case("StrictJsonWriter, one by one", StrictJsonWriter(), one_by_one(as_json), "json_timestamp"),
        Case("StrictDelimitedInputWriter, list", delimited, lambda c: c.write(as_text), "csv"),
        Case("StrictDelimitedInputWriter, stream", delimited, lambda c: c.write(io.BytesIO(text_lines)), "csv"),
        Case("StrictDelimitedInputWriter, one by one", delimited, one_by_one(as_text), "csv"),
    ]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def measure(addresses: Addresses, case: Case, count: int, transactions: int, *, optimized: bool) -> tuple[float, int]:
    """Write to a new table. Return the records per second after a warm-up transaction and the bytes per record."""
    table = re.sub(r"\W+", "_", case.name.lower()) + f"_{random.randrange(10**6)}"
    assert addresses.hiveserver2
    acid = "STORED AS ORC TBLPROPERTIES ('transactional'='true', 'no_auto_compaction'='true')"
    query(addresses.hiveserver2, f"CREATE TABLE {table} ({_COLUMNS}) {acid}")
    with HiveStreamingConnection(
        table=table,
        record_writer=case.writer,
        metastore_uri=addresses.metastore,
        streaming_optimizations=optimized,
    ) as connection:
        began = 0.0
        for number in range(_WARM_UP + transactions):
            began = monotonic() if number == _WARM_UP else began
            with connection.transaction():
                case.write(connection)
        seconds = monotonic() - began
        location = Path("/" + connection.table.location.partition(":")[2].lstrip("/"))
    total = count * (transactions + _WARM_UP)
    counted = query(addresses.hiveserver2, f"SELECT count(DISTINCT id), count(*), min(ts) FROM {table} WHERE id >= 0")[
        1
    ]
    if counted[0][:2] != (count, total):
        raise SystemExit(f"{case.name}: expected {count} ids in {total} rows, but Hive counted {counted[0]}")
    size = sum(file.stat().st_size for file in location.rglob("bucket_*"))
    query(addresses.hiveserver2, f"DROP TABLE {table}")
    return count * transactions / seconds, size // total


def rival(command: str) -> dict[str, float]:
    """Run another implementation. Return the rates in its last line, `peer_NAME=RECORDS_PER_SECOND …`, by name."""
    printed = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
    return {name: float(rate) for name, rate in re.findall(r"peer_(\w+)=(\d+)", printed.splitlines()[-1])}


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(prog="python -m bench.streaming", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="records per transaction")
    parser.add_argument("--transactions", type=int, default=5, help="transactions per measurement")
    parser.add_argument("--runs", type=int, default=3, help="measurements per writer; the median is printed")
    parser.add_argument("--rival", default="", help="a command whose last line is peer_json_timestamp=… peer_csv=…")
    parser.add_argument("--metastore-db", metavar="URL", help="an empty PostgreSQL database to use instead of Derby")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as folder:
        box = Sandbox(
            SandboxOptions(state_dir=Path(folder) / "sandbox", hiveserver2=True, metastore_db=given.metastore_db)
        )
        try:
            _run(box.up(), given)
        finally:
            box.down()


def _run(addresses: Addresses, given: argparse.Namespace) -> None:
    against = rival(given.rival) if given.rival else {}
    for name, rate in against.items():
        print(f"rival {name}: {rate:,.0f} records/s", flush=True)
    all_cases = cases(given.rows)
    measure(addresses, all_cases[0], given.rows, _METASTORE_WARM_UP, optimized=True)
    for case in all_cases:
        for optimized in (True, False):
            runs = [
                measure(addresses, case, given.rows, given.transactions, optimized=optimized) for _ in range(given.runs)
            ]
            rate, size = statistics.median(run[0] for run in runs), runs[0][1]
            ratio = f", {rate / against[case.rival]:.2f} times {case.rival} of the rival" if against else ""
            how = "" if optimized else ", without streaming optimizations"
            print(f"{case.name}{how}: {rate:,.0f} records/s, {size} bytes/record{ratio}", flush=True)


if __name__ == "__main__":
    main()
