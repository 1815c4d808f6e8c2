"""`ingestd man`: prints the man page, which is generated from the definitions of the commands.

Invariant: every command is in the page, with every option that its `--help` shows except `--help` itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from ingestd import __version__

_EXIT_CODES = (
    ("0", "success"),
    ("1", "failure"),
    ("2", "usage error"),
    ("65", "invalid data or table"),
    ("69", "service unavailable"),
    ("70", "internal error of ingestd or Spark"),
    ("75", "repl verify could not compare a table"),
    ("77", "login failed"),
    ("78", "invalid configuration"),
)


@click.command()
def man() -> None:
    """Print the man page in roff format.

    \b
    ingestd man | man -l -                                           read it
    ingestd man > /usr/local/share/man/man1/ingestd.1                install it
    """
    root = click.get_current_context().find_root().command
    if isinstance(root, click.Group):
        click.echo(man_page(root))


def man_page(root: click.Group) -> str:
    """Return the man page of a program and all its commands, as roff source with the macros of man(7)."""
    return "\n".join(
        [
            f'.TH INGESTD 1 "" "ingestd {__version__}" "ingestd"',
            ".SH NAME",
            f"ingestd \\- {_escaped(root.get_short_help_str(200).rstrip('.'))}",
            ".SH SYNOPSIS",
            *_usage("ingestd", root),
            ".SH DESCRIPTION",
            *_paragraphs(root.help or ""),
            ".SH OPTIONS",
            *_options(root, "ingestd"),
            ".SH COMMANDS",
            *(line for path, command in commands(root, "ingestd") for line in _command(path, command)),
            ".SH EXIT STATUS",
            *(line for code, meaning in _EXIT_CODES for line in (".TP", f".B {code}", meaning)),
            ".SH ENVIRONMENT",
            "Every option can be set by a variable INGESTD_COMMAND_OPTION, such as INGESTD_RUN_LOG_LEVEL.",
        ]
    )


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command below `group`, and its words after `path`, in the order of `--help`."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def _command(path: str, command: click.Command) -> Iterator[str]:
    yield f".SS {_escaped(path)}"
    yield from _usage(path, command)
    yield ".PP"
    yield from _paragraphs(command.help or "")
    yield from _options(command, path)


def _usage(path: str, command: click.Command) -> Iterator[str]:
    pieces = command.collect_usage_pieces(click.Context(command, info_name=path))
    yield f".B {_escaped(path)}"
    yield _escaped(" ".join(pieces))


def _options(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            names, text = record
            yield from (".TP", f".B {_escaped(names)}", _escaped(" ".join(text.split())))


def _paragraphs(text: str) -> Iterator[str]:
    r"""Yield a help text. A paragraph that begins with \b keeps its lines, as in `--help`."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line.rstrip() for line in paragraph.splitlines()]
        if lines and lines[0].strip() == "\b":
            yield from (".nf", *map(_escaped, lines[1:]), ".fi")
        else:
            yield _escaped(" ".join(" ".join(lines).split()))
        yield ".PP"


def _escaped(text: str) -> str:
    """Escape what roff would interpret, and characters that are not ASCII."""
    escaped = (
        text.replace("…", "...").replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    )
    escaped = "".join(character if character.isascii() else f"\\[u{ord(character):04X}]" for character in escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
