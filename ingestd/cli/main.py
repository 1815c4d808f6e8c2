"""`ingestd`: the command group. Only this module converts an error to a message and an exit code.

Exit codes: 0 success, 1 failure, 2 usage error, 65 invalid data or table, 69 service unavailable, 70 internal error of
ingestd or Spark, 77 login failed, 78 invalid configuration.
"""

from __future__ import annotations

import errno
import sys

import click

from ingestd import __version__
from ingestd.cli.check import check
from ingestd.cli.compaction import compaction
from ingestd.cli.completion import completion
from ingestd.cli.config import config
from ingestd.cli.demo import demo
from ingestd.cli.doctor import doctor
from ingestd.cli.init import init
from ingestd.cli.man import man
from ingestd.cli.mappings import mappings
from ingestd.cli.offsets import offsets
from ingestd.cli.output import protect_stderr
from ingestd.cli.prepare import prepare
from ingestd.cli.run import run
from ingestd.cli.sandbox import sandbox
from ingestd.cli.status import status
from ingestd.errors import ConfigFaults, IngestdError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "INGESTD"})
@click.version_option(__version__, prog_name="ingestd")
def cli() -> None:
    """Move Kafka records into Apache Hive ACID tables, exactly once."""


_COMMANDS = (
    *(run, init, check, config, doctor, status, mappings, offsets, compaction),
    *(prepare, demo, sandbox, completion, man),
)
for command in _COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Run the command line: the entry point of the console script."""
    protect_stderr()
    try:
        cli(prog_name="ingestd")
    except ConfigFaults as error:
        for fault in error.faults:
            click.echo(fault, err=True)
        sys.exit(error.exit_code)
    except IngestdError as error:
        click.echo(f"ingestd: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        click.echo(f"ingestd: standard output cannot be written: {error.strerror}", err=True)
        sys.exit(1)
