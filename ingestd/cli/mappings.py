"""`ingestd mappings`: lists mappings, and pauses, resumes, flushes and retires them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from ingestd.cli.client import author
from ingestd.cli.presentation import Column, Output, console, print_json, table, with_output
from ingestd.cli.run import with_config
from ingestd.cli.source import Source, with_endpoint
from ingestd.cli.status import read_status
from ingestd.ingest.control import RequestFailed

_COLUMNS = (Column("mapping"), Column("topics"), Column("table"), Column("state"), Column("owner"))


@click.group()
def mappings() -> None:
    """List mappings, or pause, resume, flush or retire one of them."""


@mappings.command("list")
@with_config
@with_endpoint
@with_output
def list_mappings(files: tuple[Path, ...], directory: Path | None, output: Output, **endpoint: Any) -> None:
    """List the mappings with their topics, tables, states and owners."""
    found = read_status(Source(files, directory, **endpoint))["mappings"]
    if output == "json":
        keys = ("name", "topics", "table", "state", "owner")
        print_json([{key: mapping[key] for key in keys} for mapping in found])
        return
    rows = ((m["name"], ", ".join(m["topics"]), m["table"], m["state"], m["owner"].rpartition("/")[2]) for m in found)
    console().print(table(_COLUMNS, rows))


def _with_request_options(command: Any) -> Any:
    for option in reversed([click.argument("mapping"), with_config, with_endpoint, with_output]):
        command = option(command)
    return command


@mappings.command()
@_with_request_options
def pause(mapping: str, output: Output, **where: Any) -> None:
    """Stop ingesting MAPPING until it is resumed, also after restarts and takeovers.

    The daemon finishes the open transactions first. Without a daemon, the pause is stored and the next daemon obeys it.
    """
    _request("pause", mapping, output, Source(**where))


@mappings.command()
@_with_request_options
def resume(mapping: str, output: Output, **where: Any) -> None:
    """Continue MAPPING after a pause, or start it again after an error."""
    _request("resume", mapping, output, Source(**where))


@mappings.command()
@_with_request_options
def flush(mapping: str, output: Output, **where: Any) -> None:
    """Commit the records of MAPPING that Kafka has now, without waiting for `commit.interval`.

    Needs the daemon that runs the mapping.
    """
    _request("flush", mapping, output, Source(**where))


def _request(action: Literal["pause", "resume", "flush"], mapping: str, output: Output, source: Source) -> None:
    """Let the daemon carry out the request. Without a daemon, store it."""
    is_done = source.ask(lambda daemon: daemon.change(mapping, action, {"by": author()}))
    if is_done is None:
        hint = "start the daemon, or name it with --url"
        raise RequestFailed(f"no daemon answers that could {action} it", where=f"mapping {mapping}", hint=hint)
    _report(action, mapping, "accepted" if is_done is False else "done", output)


def _report(action: str, mapping: str, result: str, output: Output) -> None:
    if output == "json":
        print_json({"mapping": mapping, "action": action, "result": result})
    else:
        click.echo(f"mapping {mapping}: {action} {result}")
