"""`ingestd demo`: moves records from a real Kafka into a real Hive table and reads them back through HiveServer2.

Invariant: without `--keep`, the demo stops every process and removes every file that it created, even after an error.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ingestd.cli.replication_demo import ReplicationDemo
from ingestd.cli.sandbox import interruptible, progress_display
from ingestd.clock import monotonic
from ingestd.errors import IngestdError
from ingestd.kafka.producer import create_topic, produce
from ingestd.sandbox import HDFS, LOCAL, STORAGES, Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.hiveserver2 import client, query
from ingestd.sandbox.options import S3
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages

_TOPIC = "orders"
_TABLE = "shop.orders"
_PARTITIONS = 16
_DAYS = 3
# Where the table is, and what the first start downloads.
_PLACES = {LOCAL: ("on the local disk", 270), HDFS: ("in a real HDFS", 280), S3: ("on an S3 server", 570)}
_CREATE = (
    f"CREATE TABLE {_TABLE} (id bigint, ordered_at timestamp, customer string, amount decimal(10,2), express boolean, "
    "note string) PARTITIONED BY (dt date) STORED AS ORC TBLPROPERTIES ('transactional'='true')"
)
_DDL = ("CREATE DATABASE IF NOT EXISTS shop", f"DROP TABLE IF EXISTS {_TABLE}", _CREATE)
_QUERIES = (
    ("Every record, exactly once", "SELECT count(*) AS row_count, count(DISTINCT id) AS ids FROM shop.orders"),
    (
        "Orders per day",
        "SELECT dt, count(*) AS orders, sum(amount) AS amount FROM shop.orders GROUP BY dt ORDER BY dt",
    ),
    ("The first rows", "SELECT id, ordered_at, customer, amount, dt FROM shop.orders WHERE id < 3 ORDER BY id"),
)
# The JVM prints this whenever Spark 4 starts it.
_JVM_NOISE = "WARNING: Using incubator modules"
_CONFIG = """\
# written by `ingestd demo`
http: {{listen: off}}
metastore: {{uri: "{metastore}"}}
kafka: {{bootstrap.servers: "{kafka}"}}
spark: {{master: "local[2]"}}
{storage}mappings:
  - name: orders
    topics: [orders]
    table: shop.orders          # partitioned by dt, which is a field of the records
    commit: {{rows: 250000, interval: 5s}}
"""


@click.command()
@click.option("--records", type=click.IntRange(1), default=1_000_000, show_default=True, help="Number of records.")
@click.option(
    "--storage", type=click.Choice(STORAGES), default=LOCAL, show_default=True, help="Storage of the warehouse."
)
@click.option(
    "--replication", is_flag=True, help="Instead, copy a database to another Hive, and keep the copy up to date."
)
@click.option("--keep", is_flag=True, help="Keep the sandbox running and keep its files.")
def demo(records: int, storage: str, replication: bool, keep: bool) -> None:
    """Move a million records from a real Kafka into a real Hive table.

    Starts the services on this machine, runs the daemon, and queries the table. With --replication, starts two Hives
    and a daemon for each, changes a database on one, and queries both.
    """
    if replication and storage != LOCAL:
        raise click.UsageError("--replication supports the local storage only")
    # These fail, before any service starts, if the client for the queries or the library for HDFS is not installed.
    client()
    if storage == HDFS:
        Storages(StorageOptions(properties={})).at("hdfs://127.0.0.1")
    console = Console(highlight=False)
    state_dir = Path(tempfile.mkdtemp(prefix="ingestd-demo-"))
    box = Sandbox(SandboxOptions(state_dir=state_dir, hiveserver2=True, storage=storage, replica=replication))
    kept = False
    try:
        with interruptible():
            if replication:
                ReplicationDemo(console, box, state_dir).run()
            else:
                _Demo(console, box, state_dir, storage).run(records)
        kept = keep
    finally:
        if kept:
            console.print(f"\nThe sandbox is still running. Stop it with: ingestd sandbox down --state-dir {state_dir}")
        else:
            box.down()
            shutil.rmtree(state_dir, ignore_errors=True)
    if not kept:
        console.print("\nStopped all services and removed all files. Use --keep to keep the sandbox running.")


class _Demo:
    """Runs the steps of the demo and prints a heading before each step."""

    def __init__(self, console: Console, box: Sandbox, directory: Path, storage: str) -> None:
        self._console = console
        self._storage = storage
        self._box = box
        self._config = directory / "demo.yaml"

    def run(self, records: int) -> None:
        place, megabytes = _PLACES[self._storage]
        self._say(
            f"Starting Kafka, a Hive Metastore and HiveServer2 on this machine, with tables {place}"
            f" (downloads {megabytes} MiB the first time)"
        )
        with progress_display() as progress:
            addresses = self._box.up(progress)
        self._prepare(addresses)
        self._produce(addresses, records)
        self._ingest(addresses, records)
        self._ask(addresses)
        self._point_onward(addresses)

    def _say(self, text: str) -> None:
        self._console.print(f"\n[bold]▸ {text}[/]")

    def _prepare(self, addresses: Addresses) -> None:
        self._say(f"Creating a topic with {_PARTITIONS} partitions, and a partitioned ACID table through HiveServer2")
        create_topic(addresses.kafka, _TOPIC, _PARTITIONS)
        for statement in _DDL:
            query(_hiveserver2(addresses), statement)
        self._console.print(f"  [dim]{_CREATE}[/]")

    def _produce(self, addresses: Addresses, records: int) -> None:
        self._say(f"Producing {records:,} JSON records")
        with _bar(self._console) as bar:
            task = bar.add_task("produced", total=records)
            produce(addresses.kafka, _TOPIC, _orders(records), lambda more: bar.advance(task, more))

    def _ingest(self, addresses: Addresses, records: int) -> None:
        self._say("Running `ingestd run --until-caught-up` with this configuration:")
        place = f'storage: {{hadoop_conf_dir: "{addresses.hadoop_conf_dir}"}}\n' if addresses.hadoop_conf_dir else ""
        text = _CONFIG.format(metastore=addresses.metastore, kafka=addresses.kafka, storage=place)
        self._config.write_text(text, encoding="utf-8")
        self._console.print(text, style="dim", markup=False)
        command = [sys.executable, "-m", "ingestd", "run", "--config", str(self._config)]
        command += ["--until-caught-up", "--log-format", "json"]
        began = monotonic()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
            try:
                commits = self._follow(daemon, records)
            except BaseException:
                daemon.terminate()
                raise
        if daemon.returncode:
            raise IngestdError(
                f"the daemon failed with exit code {daemon.returncode}", where="ingestd run", hint="see its log above"
            )
        seconds, working = monotonic() - began, sum(c["seconds"] for c in commits)
        self._console.print(
            f"  {records:,} records in {seconds:.1f} s, including Spark startup ({records / seconds:,.0f} per second)"
        )
        self._console.print(f"  [dim]Commits: {len(commits)}. Sum of their transaction times: {working:.1f} s[/]")

    def _follow(self, daemon: subprocess.Popen[str], records: int) -> list[dict[str, Any]]:
        """Print commits and warnings from the daemon's log as they arrive, and return the events of the commits."""
        commits: list[dict[str, Any]] = []
        with _bar(self._console) as bar:
            task = bar.add_task("committed", total=records)
            for line in daemon.stderr or ():
                event = _parsed(line)
                if event.get("event") == "committed" and event["rows"]:
                    commits.append(event)
                    bar.advance(task, event["rows"])
                    steps = ", ".join(f"{step} {ms}" for step, ms in event["ms"].items() if ms)
                    bar.console.print(
                        f"  txn {event['txn']}, write id {event['write_id']}: {event['rows']:,} rows, "
                        f"{event['files']} file{'s' if event['files'] != 1 else ''}; ms: {steps}"
                    )
                elif event.get("level") in ("warning", "error") or not (event or line.startswith(_JVM_NOISE)):
                    bar.console.print(f"  {line.rstrip()}", markup=False)
        return commits

    def _ask(self, addresses: Addresses) -> None:
        self._say("Querying the table through HiveServer2")
        for title, sql in _QUERIES:
            self._console.print(f"  [dim]{sql}[/]")
            columns, rows = query(_hiveserver2(addresses), sql)
            table = Table(*columns, title=title)
            for row in rows:
                table.add_row(*(str(value) for value in row))
            self._console.print(table)

    def _point_onward(self, addresses: Addresses) -> None:
        self._say("Next steps")
        self._console.print("  ingestd run --help      run the daemon (its file: docs/configuration.md)")
        self._console.print("  ingestd check --help    validate a configuration before you run it")
        self._console.print("  ingestd sandbox --help  start this Kafka and Hive for your own experiments")
        self._console.print(f"  [dim]This run used Kafka at {addresses.kafka} and {addresses.metastore}.[/]")


def _orders(records: int) -> Iterator[bytes]:
    """Yield orders, spread over three days, as JSON objects."""
    chance = random.Random(20261121)
    start = datetime(2026, 11, 19)
    step = timedelta(days=_DAYS) / records
    for number in range(records):
        moment = start + step * number
        yield json.dumps(
            {
                "id": number,
                "ordered_at": moment.isoformat(sep=" ", timespec="milliseconds"),
                "customer": f"customer-{chance.randrange(50_000):05d}",
                "amount": f"{chance.randrange(100, 50_000) / 100:.2f}",
                "express": chance.random() < 0.1,
                "note": "leave at the door" if number % 3 else "",
                "dt": moment.date().isoformat(),
            },
            separators=(",", ":"),
        ).encode()


def _bar(console: Console) -> Progress:
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _parsed(line: str) -> dict[str, Any]:
    with suppress(json.JSONDecodeError):
        parsed = json.loads(line)
        return parsed if isinstance(parsed, dict) else {}
    return {}


def _hiveserver2(addresses: Addresses) -> str:
    if addresses.hiveserver2 is None:
        raise IngestdError(
            "the sandbox was started without HiveServer2",
            where=addresses.state_dir,
            hint="start it with --hiveserver2",
        )
    return addresses.hiveserver2
