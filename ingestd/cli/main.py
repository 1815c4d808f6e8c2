"""`ingestd`: the command group. Only this module converts an error to a message and an exit code (listed in `man.py`).

Invariant: a user's mistake never causes a stack trace.
"""

from __future__ import annotations

import errno
import importlib
import sys

import click

from ingestd import __version__
from ingestd.cli.output import escape_stdout, protect_stderr
from ingestd.errors import ConfigFaults, IngestdError

# A command is the attribute of the same name of its module in this package.
_COMMANDS = (
    *("run", "init", "check", "preview", "config", "doctor", "status", "mappings", "offsets", "compaction"),
    *("deadletters", "policy", "repl", "prepare", "demo", "sandbox", "completion", "man"),
)


class _Commands(click.Group):
    """Imports only the command that is used, because the imports of all commands take a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None if there is none."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"ingestd.cli.{cmd_name}"), cmd_name)
        _name_variables(command, f"ingestd_{cmd_name}")
        return command


def _name_variables(command: click.Command, path: str) -> None:
    """Let every option be set by the variable INGESTD_COMMAND_OPTION. click would use the names of parameters."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            option = max(parameter.opts, key=len).lstrip("-")
            parameter.envvar = f"{path}_{option}".replace("-", "_").upper()
    for name, child in command.commands.items() if isinstance(command, click.Group) else ():
        _name_variables(child, f"{path}_{name}")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ingestd")
def cli() -> None:
    """Move Kafka records into Apache Hive ACID tables, exactly once."""


def main() -> None:
    """Run the command line: the entry point of the console script."""
    protect_stderr()
    escape_stdout()
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
