"""`ingestd run`: runs the daemon in the foreground."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingestd.daemon.start import start_daemon

if TYPE_CHECKING:
    from ingestd.daemon.log import Form, Level

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
    log_format: Form,
    log_level: Level,
) -> None:
    """Move records from Kafka into Hive until stopped.

    After the first SIGTERM or SIGINT, the daemon finishes open transactions and exits with 0. A second signal aborts
    them. SIGHUP reads the configuration again, except with --until-caught-up.
    """
    errors = start_daemon(files, directory, log_format, log_level, drain=until_caught_up)
    # They are imported by now. `start_daemon` starts Spark before it imports them.
    from ingestd.daemon.log import shortened  # noqa: PLC0415
    from ingestd.daemon.supervisor import StillRunning  # noqa: PLC0415

    for error in errors:
        click.echo(f"ingestd: {shortened(str(error))}", err=True)
    if any(isinstance(error, StillRunning) for error in errors):
        sys.stderr.flush()
        os._exit(errors[0].exit_code)
    if errors:
        sys.exit(errors[0].exit_code)
