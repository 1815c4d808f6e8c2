"""`ingestd run`: runs the daemon in the foreground."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from ingestd.config.document import load
from ingestd.daemon import log
from ingestd.daemon.run import run_daemon
from ingestd.daemon.supervisor import StillRunning

_config_options: list[Any] = [
    click.option(
        "--config",
        "files",
        type=click.Path(path_type=Path, dir_okay=False),
        multiple=True,
        help="Configuration file. Repeatable; later files override earlier ones.",
    ),
    click.option(
        "--config-dir",
        "directory",
        type=click.Path(path_type=Path),
        help="Directory with one mapping per YAML file.",
    ),
]


def with_config(command: Any) -> Any:
    """Add --config and --config-dir to a command."""
    for option in reversed(_config_options):
        command = option(command)
    return command


@click.command()
@with_config
@click.option("--until-caught-up", is_flag=True, help="Commit all records that Kafka has now, then exit with 0.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "text", "json", "logfmt"]),
    default="auto",
    show_default=True,
    help="Log format. auto: text on a terminal, JSON otherwise.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Minimum log level.",
)
def run(
    files: tuple[Path, ...],
    directory: Path | None,
    until_caught_up: bool,
    log_format: log.Form,
    log_level: log.Level,
) -> None:
    """Move records from Kafka into Hive until stopped.

    After the first SIGTERM or SIGINT, the daemon finishes open transactions and exits with 0. A second signal aborts
    them. SIGHUP reads the configuration again, except with --until-caught-up.
    """
    log.configure(log_format, log_level)
    document = load(files, directory)
    errors = run_daemon(document, lambda: load(files, directory), drain=until_caught_up)
    for error in errors:
        click.echo(f"ingestd: {log.shortened(str(error))}", err=True)
    if any(isinstance(error, StillRunning) for error in errors):
        sys.stderr.flush()
        os._exit(errors[0].exit_code)
    if errors:
        sys.exit(errors[0].exit_code)
