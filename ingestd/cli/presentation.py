"""How commands print results: a table for people, or one JSON document with `--output json`.

Invariant: with `--output json`, standard output contains exactly one JSON document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Output = Literal["table", "json"]
# Without a terminal, nothing is gained by wrapping or truncating the cells of a table.
_UNLIMITED_WIDTH = 10_000


def with_output(command: Any) -> Any:
    """Add `--output` to a command, which receives it as the parameter `output`."""
    return click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="A table, or one JSON document.",
    )(command)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are aligned to the right."""

    title: str
    align: Literal["left", "right"] = "left"


def number(title: str) -> Column:
    """Return a column of numbers."""
    return Column(title, "right")


def console() -> Console:
    """Return the console for standard output."""
    terminal = Console(highlight=False, soft_wrap=True)
    return terminal if terminal.is_terminal else Console(highlight=False, soft_wrap=True, width=_UNLIMITED_WIDTH)


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table without lines. None is shown as `-`, and numbers are grouped by thousands."""
    made = Table(box=None, pad_edge=False)
    for column in columns:
        made.add_column(column.title, justify=column.align, overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def confirm(question: str) -> None:
    """Ask a question on standard error, and end the command unless the answer is yes. Refused without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError("without a terminal, --yes is required")
    click.confirm(question, abort=True, err=True)


def print_json(document: object) -> None:
    """Print one JSON document. Characters are escaped as in JSON unless standard output is UTF-8."""
    is_utf8 = sys.stdout is None or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    click.echo(json.dumps(document, indent=2, ensure_ascii=not is_utf8))


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))
