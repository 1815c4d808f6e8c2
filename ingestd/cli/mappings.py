"""`ingestd mappings`: lists mappings, and pauses, resumes, flushes and retires them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from ingestd.cli.client import author
from ingestd.cli.presentation import Column, Output, confirm, console, print_json, table, with_output
from ingestd.cli.run import with_config
from ingestd.cli.source import Source, with_endpoint
from ingestd.cli.status import read_status
from ingestd.ingest.control import Request, RequestFailed

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
    entries = read_status(Source(files, directory, **endpoint))["mappings"]
    if output == "json":
        keys = ("name", "topics", "table", "state", "owner")
        print_json([{key: mapping[key] for key in keys} for mapping in entries])
        return
    rows = ((m["name"], ", ".join(m["topics"]), m["table"], m["state"], m["owner"].rpartition("/")[2]) for m in entries)
    console().print(table(_COLUMNS, rows))


def _with_request_options(command: Any) -> Any:
    for option in reversed([click.argument("mapping"), with_config, with_endpoint, with_output]):
        command = option(command)
    return command


@mappings.command()
@_with_request_options
def pause(mapping: str, output: Output, **where: Any) -> None:
    """Stop ingesting MAPPING until it is resumed.

    The daemon finishes the open transactions first. The pause is stored, so it survives restarts and takeovers. Without
    a daemon, it is stored for the next one.
    """
    _request("pause", mapping, output, Source(**where))


@mappings.command()
@_with_request_options
def resume(mapping: str, output: Output, **where: Any) -> None:
    """Continue MAPPING after a pause, or restart it after an error.

    If columns of its table were renamed, removed or narrowed, it continues with the changed columns.
    """
    _request("resume", mapping, output, Source(**where))


@mappings.command()
@_with_request_options
def flush(mapping: str, output: Output, **where: Any) -> None:
    """Commit the records of MAPPING that Kafka has now.

    Does not wait for `commit.interval`. Requires the daemon that runs the mapping.
    """
    _request("flush", mapping, output, Source(**where))


@mappings.command()
@click.argument("mapping")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
@with_config
@with_output
def retire(mapping: str, yes: bool, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Remove the stored state of MAPPING.

    Its consumer group in Kafka is removed, too. The table and its rows remain, and so does the control table, without a
    state. MAPPING may already be removed from the configuration. If it runs again, it starts where its key `start`
    says. Refused while a daemon runs it.
    """
    source = Source(files, directory)
    stored = source.read_retirable(mapping)
    if output == "table":
        state = stored.state
        click.echo(f"control table: {stored.options.control}, {len(stored.committed)} partitions")
        click.echo(f"last commit: {state.at if state else 'none'}, {state.rows if state else 0:,} rows in total")
        click.echo(f"consumer group: {stored.options.consumer_group}")
    if not yes:
        confirm(f"Remove the state of mapping {mapping}?")
    source.retire(stored)
    _report("retire", mapping, "removed", output)


def _request(action: Literal["pause", "resume", "flush"], mapping: str, output: Output, source: Source) -> None:
    """Let the daemon carry out the request. Without a daemon, carry it out here."""
    is_done = source.try_daemon(lambda daemon: daemon.change(mapping, action, {"by": author()}))
    if is_done is None:
        if action == "flush":
            hint = "start the daemon, or name it with --url"
            raise RequestFailed("no daemon answers that could flush it", where=f"mapping {mapping}", hint=hint)
        source.change_stored(source.mapping(mapping), Request(action, author()))
    _report(action, mapping, "accepted" if is_done is False else "done", output)


def _report(action: str, mapping: str, result: str, output: Output) -> None:
    if output == "json":
        print_json({"mapping": mapping, "action": action, "result": result})
    else:
        click.echo(f"mapping {mapping}: {action} {result}")
