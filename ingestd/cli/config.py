"""`ingestd config`: shows the effective configuration, and the JSON Schema of its files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ingestd.cli.presentation import Column, Output, console, print_json, table, with_output
from ingestd.cli.run import with_config
from ingestd.config.document import Document
from ingestd.config.effective import Value, effective_values
from ingestd.config.schema import json_schema
from ingestd.ingest.options import MappingOptions


@click.group()
def config() -> None:
    """Show the effective configuration, or its JSON Schema."""


@config.command()
@with_config
@with_output
def show(files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Show the effective value of every key, and where it comes from.

    The source is a file with its line, the variable or file of a reference, or `default`. Secrets are shown as ***.
    Durations are in seconds and sizes in bytes.
    """
    values = effective_values(files, directory)
    if output == "json":
        print_json([asdict(value) for value in values])
        return
    columns = (Column("key"), Column("value"), Column("source"))
    console().print(table(columns, ((value.key, _text(value.value), value.source) for value in values)))


@config.command()
@click.option("--mapping", is_flag=True, help="Print the schema of a file in --config-dir, which contains one mapping.")
def schema(mapping: bool) -> None:
    """Print the JSON Schema of a configuration file, for editors.

    For example, save it as ingestd.schema.json and begin ingestd.yaml with the line

    # yaml-language-server: $schema=ingestd.schema.json
    """
    print_json(json_schema(MappingOptions if mapping else Document))


def _text(value: Value) -> str | None:
    """Return the value as a user would write it in YAML."""
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else None if value is None else str(value)
