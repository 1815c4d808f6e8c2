"""`ingestd sandbox`: starts, stops and inspects a real Kafka and Hive on this machine.

Invariant: with `--output json` or `--json`, standard output contains exactly one JSON document. Progress goes to
standard error.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn

from ingestd.cli.presentation import Column, Output, console, number, print_json, table, with_output
from ingestd.clock import pause
from ingestd.sandbox import SERVICES, STORAGES, Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.options import BROKERS, DATANODES, SPARK_WORKERS, ServiceState

_FOLLOW_SECONDS = 0.3
_state_dir = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for data, ports and logs. Each sandbox needs its own.  [default: in the cache directory]",
)


_json = click.option("--json", "as_json", is_flag=True, help="The same as --output json.")


def _heap_option(service: str, *, least: int, default: int) -> Callable[[Any], Any]:
    """Return the option for the Java heap of a service in MiB."""
    name = service.removeprefix("the ").lower()
    return click.option(
        f"--{name}-heap-mb",
        type=click.IntRange(least),
        default=default,
        show_default=True,
        help=f"Maximum Java heap of {service} in MiB.",
    )


@click.group()
def sandbox() -> None:
    """Run a real Kafka and Hive 4 on this machine."""


@sandbox.command()
@_state_dir
@click.option("--hiveserver2", is_flag=True, help="Also start HiveServer2, for SQL queries.")
@click.option(
    "--replica",
    is_flag=True,
    help="Run two Hives, a source and a target of replication, whose metastores 4.2.0 log events.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, len(BROKERS)),
    default=1,
    show_default=True,
    help="Number of Kafka brokers, which all store every topic by default.",
)
@click.option(
    "--storage",
    type=click.Choice(STORAGES),
    help="Storage of the warehouse: the local file system, a real HDFS, or an S3 server.  [default: local]",
)
@click.option(
    "--datanodes",
    type=click.IntRange(1, len(DATANODES)),
    default=1,
    show_default=True,
    help="Number of DataNodes of HDFS, which all store every block.",
)
@click.option(
    "--spark-workers",
    type=click.IntRange(0, len(SPARK_WORKERS)),
    default=0,
    show_default=True,
    help="Number of workers of a standalone Spark cluster, with its master.",
)
@click.option(
    "--spark-worker-cores", type=click.IntRange(1), default=1, show_default=True, help="Cores of each Spark worker."
)
@click.option(
    "--spark-worker-memory-mb",
    type=click.IntRange(512),
    default=1024,
    show_default=True,
    help="Memory of each Spark worker for its executors in MiB.",
)
@click.option("--metastore-db", metavar="URL", help="PostgreSQL database for the metastore.  [default: embedded Derby]")
@click.option("--kafka-port", type=click.IntRange(1, 65535), help="Port of the first broker.  [default: a free port]")
@click.option("--metastore-port", type=click.IntRange(1, 65535), help="Port for the metastore.  [default: a free port]")
@click.option("--hiveserver2-port", type=click.IntRange(1, 65535), help="Port for HiveServer2.  [default: a free port]")
@_heap_option("Kafka", least=128, default=512)
@_heap_option("the metastore", least=128, default=512)
@_heap_option("HiveServer2", least=384, default=1024)
@click.option(
    "--txn-timeout-seconds",
    type=click.IntRange(1),
    default=300,
    show_default=True,
    help="Time without a heartbeat after which the metastore aborts a transaction.",
)
@click.option(
    "--housekeeper-seconds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Interval at which the metastore looks for timed-out transactions.",
)
@click.option(
    "--compactor-check-seconds",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Interval at which the compactor looks for work.",
)
@with_output
@_json
def up(output: Output, as_json: bool, **options: Any) -> None:
    """Start the services and wait until they answer."""
    with interruptible(), progress_display() as progress:
        addresses = _sandbox(**options).up(progress)
    if as_json or output == "json":
        click.echo(addresses.as_json())
    else:
        _print_addresses(addresses)


@sandbox.command()
@_state_dir
def down(state_dir: Path | None) -> None:
    """Stop the services and keep their data."""
    with progress_display() as progress:
        ended = _sandbox(state_dir=state_dir).down(progress)
    Console(highlight=False).print(f"stopped {', '.join(ended)}" if ended else "nothing was running")


@sandbox.command()
@_state_dir
@with_output
@_json
def status(state_dir: Path | None, output: Output, as_json: bool) -> None:
    """Show which services run and whether they answer."""
    states = _sandbox(state_dir=state_dir).status()
    if as_json or output == "json":
        print_json([{**asdict(state), "state": state.word} for state in states])
        return
    columns = (*map(Column, ("service", "state", "address")), number("pid"), number("memory"))
    shown = table(columns, ((s.name, s.word, s.address, str(s.pid or ""), _memory(s)) for s in states))
    for state, row in zip(states, shown.rows, strict=True):
        row.style = {"running": "green", "silent": "yellow"}.get(state.word, "dim")
    console().print(shown)


@sandbox.command()
@_state_dir
@click.argument("service", type=click.Choice(SERVICES), metavar="[SERVICE]", required=False)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=50,
    show_default=True,
    help="Number of lines to print from the end.",
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they arrive, until Ctrl-C.")
def logs(state_dir: Path | None, service: str | None, lines: int, follow: bool) -> None:
    """Print the log of one SERVICE, such as metastore or hiveserver2, or of all services."""
    box = _sandbox(state_dir=state_dir)
    names = [service] if service else list(SERVICES)
    files = {name: box.log_path(name) for name in names if box.log_path(name).exists()}
    if not files:
        click.echo(f"no logs yet in {box.options.folder}", err=True)
    read = {name: _print_tail(name, file, lines, named=len(names) > 1) for name, file in files.items()}
    while follow and files:
        pause(_FOLLOW_SECONDS)
        for name, file in files.items():
            read[name] = _print_new(name, file, read[name], named=len(names) > 1)


def _sandbox(**options: Any) -> Sandbox:
    return Sandbox(SandboxOptions(**options))


def _print_tail(name: str, file: Path, lines: int, *, named: bool) -> int:
    """Print the last lines of `file` and return the offset of its end."""
    with file.open("rb") as log:
        for line in deque(log, maxlen=lines):
            _print_line(name if named else "", line)
        return log.tell()


def _print_new(name: str, file: Path, start: int, *, named: bool) -> int:
    """Print the lines after offset `start` and return the offset of the end. Read a truncated file from its start."""
    with file.open("rb") as log:
        log.seek(start if file.stat().st_size >= start else 0)
        for line in log:
            _print_line(name if named else "", line)
        return log.tell()


def _print_line(name: str, line: bytes) -> None:
    click.echo((f"{name}: " if name else "") + line.decode(errors="replace").rstrip("\n"))


def _memory(state: ServiceState) -> str:
    return f"{state.memory_mb} MiB" if state.pid else ""


def _print_addresses(addresses: Addresses) -> None:
    given = {name: value for name, value in asdict(addresses).items() if value}
    console().print(table((Column("service"), Column("address")), given.items()))
    if addresses.target_metastore:
        for side, uri in (("source", addresses.metastore), ("target", addresses.target_metastore)):
            click.echo(f"\n# {side}.yaml\n{_configuration(uri, addresses)}")


def _configuration(metastore: str, addresses: Addresses) -> str:
    """Return the sections of a configuration that depend on the sandbox."""
    text = f'metastore: {{uri: "{metastore}"}}\nkafka: {{bootstrap.servers: "{addresses.kafka}"}}'
    if addresses.hadoop_conf_dir:
        text += f'\nstorage: {{hadoop_conf_dir: "{addresses.hadoop_conf_dir}"}}'
    return text


@contextmanager
def progress_display() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function `(step, done, total)` that shows progress on standard error.

    It shows a bar on a terminal, and otherwise prints one line per step.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def show(step: str, done: int, total: int) -> None:
            bars.update(task, description=step, completed=done, total=total or None)

        yield show


def _lines(console: Console) -> Callable[[str, int, int], None]:
    last = [""]

    def show(step: str, done: int, total: int) -> None:
        if step != last[0]:
            console.print(f"{step} ({total >> 20} MiB)" if total else step, markup=False)
        last[0] = step

    return show


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that a partial start is rolled back as it is after Ctrl-C."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
