"""`ingestd status`: the state of every mapping and policy, from the daemon or, without one, from Hive and Kafka."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ingestd.cli.client import Daemon
from ingestd.cli.presentation import Column, Output, console, number, print_json, table, with_output
from ingestd.cli.replication import POLICY_COLUMNS, opened, policy_row
from ingestd.cli.run import with_config
from ingestd.cli.source import Source, with_endpoint
from ingestd.clock import now, pause
from ingestd.daemon.http.policies import policy_entry
from ingestd.errors import IngestdError
from ingestd.ingest.inspection.stored import StoredMapping
from ingestd.kafka.hidden import BRIEF_SECONDS
from ingestd.replication.policies.policy_status import read_statuses

_COLUMNS = (
    *(Column("mapping"), Column("table"), Column("state"), number("lag"), Column("behind"), Column("last commit")),
    Column("owner"),
)
_COLOURS = {"running": "green", "owned": "green", "waiting": "yellow", "paused": "yellow", "failed": "red"}
# Without heartbeats for this long, the owner has probably ended. Clocks may differ by a few seconds.
_SILENT_SECONDS = 20.0
_REFRESH_SECONDS = 2.0


@click.command()
@with_config
@with_endpoint
@click.option("--watch", is_flag=True, help="Refresh the table every 2 s, until Ctrl-C.")
@with_output
def status(files: tuple[Path, ...], directory: Path | None, watch: bool, output: Output, **endpoint: Any) -> None:
    """Show the state, lag, owner and last commit of every mapping, and the state of every replication policy.

    Asks the daemon at --url, or at `http.listen` of the configuration. If no daemon of this configuration answers, the
    stored positions and owners are read from Hive, and the ends of the partitions from Kafka.
    """
    source = Source(files, directory, **endpoint)
    if watch and output == "json":
        raise click.UsageError("--watch shows a table; call --output json repeatedly instead")
    if watch:
        _watch(source)
        return
    document = read_status(source)
    if output == "json":
        print_json(document)
    else:
        console().print(_view(document))
    if document["exit_code"]:
        raise SystemExit(document["exit_code"])


def read_status(source: Source) -> dict[str, Any]:
    """Return the document of --output json: that of the daemon's /status, or the same fields from Hive and Kafka.

    `source` says which. `exit_code` is that of the first mapping that could not be read, else 0.
    """
    answer = source.try_daemon(Daemon.status)
    if answer is not None:
        return {"source": "daemon", "exit_code": 0, **answer}
    stored = source.read_stored()
    code = next((mapping.problem.exit_code for mapping in stored if mapping.problem), 0)
    mappings, policies = [_entry(mapping) for mapping in stored], _policies(source)
    return {"source": "services", "exit_code": code, "version": 1, "mappings": mappings, "policies": policies}


def _policies(source: Source) -> list[dict[str, Any]]:
    """Return the entries of the policies, if the configuration has the section `replication`."""
    if source.document.replication is None:
        return []
    with opened(source.files, source.directory) as access:
        return [
            policy_entry(policy_status)
            for policy_status in read_statuses(access.cluster, access.policies, access.schedules)
        ]


def _watch(source: Source) -> None:
    """Show the table until Ctrl-C; without a terminal, print it repeatedly.

    An error is shown in place of the table until a refresh succeeds.
    """
    screen = console()
    with Live(console=screen, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            view = _current(source)
            if screen.is_terminal:
                live.update(view, refresh=True)
            else:
                screen.print(view)
            pause(_REFRESH_SECONDS)


def _current(source: Source) -> Group | Text:
    try:
        return _view(read_status(source))
    except IngestdError as error:
        return Text(str(error), "red")


def _view(document: dict[str, Any]) -> Group:
    """Return what a terminal shows of the document: mappings with a problem first, because a screen has few rows.

    The problems are below the table, where a long one does not widen it.
    """
    mappings = sorted(document["mappings"], key=lambda mapping: not mapping["problem"])
    if document["source"] == "daemon":
        daemon = document["daemon"]
        title = f"daemon {daemon['release']} on {daemon['host']}, process {daemon['pid']}"
    else:
        title = "read from Hive and Kafka"
    policies = document.get("policies", ())  # absent from a daemon of an older release
    counts = [f"{len(mappings)} mapping{'' if len(mappings) == 1 else 's'}"] if mappings or not policies else []
    counts += [f"{len(policies)} polic{'y' if len(policies) == 1 else 'ies'}"] if policies else []
    tables = [_table(mappings)] if mappings or not policies else []
    tables += [table(POLICY_COLUMNS, map(policy_row, policies))] if policies else []
    problems = [_problem(mapping) for mapping in mappings if mapping["problem"]]
    hidden = [_hidden(mapping) for mapping in mappings if _is_hidden(mapping)]
    return Group(Text(f"{title}: {', '.join(counts)}", "dim"), *tables, *problems, *hidden)


def _table(mappings: list[dict[str, Any]]) -> Table:
    made = table(_COLUMNS, map(_row, mappings))
    for mapping, row in zip(mappings, made.rows, strict=True):
        row.style = _COLOURS.get(mapping["state"])
    return made


def _row(mapping: dict[str, Any]) -> list[object]:
    commit = mapping["last_commit"]
    return [
        mapping["name"],
        mapping["table"],
        mapping["state"],
        mapping["lag_offsets"],
        _duration(mapping["lag_seconds"]),
        f"{_duration(max(0.0, now() - commit['committed_unix']))} ago" if commit else None,
        mapping["owner"].rpartition("/")[2],
    ]


def _problem(mapping: dict[str, Any]) -> Text:
    """Return the problem of a mapping, as any other error is shown."""
    problem = mapping["problem"]
    error = IngestdError(problem["error"], where=problem["where"], hint=problem["hint"])
    return Text(f"{mapping['name']}: {error}", _COLOURS.get(mapping["state"], ""))


def _is_hidden(mapping: dict[str, Any]) -> bool:
    """Return whether open transactions hide records, and have done so for a while as far as that is known."""
    seconds = mapping.get("hidden_seconds")  # absent from a daemon of an older release
    return bool(mapping.get("hidden_offsets")) and (seconds is None or seconds >= BRIEF_SECONDS)


def _hidden(mapping: dict[str, Any]) -> Text:
    seconds = mapping["hidden_seconds"]
    state = "is open" if seconds is None else f"has been open for {_duration(seconds)}"
    return Text(
        f"{mapping['name']}: {mapping['hidden_offsets']:,} offsets, not part of the lag, are behind a Kafka "
        f"transaction that {state}\n  → `ingestd doctor` names its partition, and how to find the producer",
        "yellow",
    )


def _duration(seconds: float | None) -> str | None:
    """Return a duration with its largest unit, such as `90 s`, `12 m` or `3.5 h`."""
    if seconds is None:
        return None
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _entry(stored: StoredMapping) -> dict[str, Any]:
    """Return the entry of a mapping that was read without a daemon."""
    owner, state, problem = stored.owner, stored.state, stored.problem
    return {
        "name": stored.options.name,
        "table": str(stored.options.table),
        "topics": list(stored.options.topics),
        "state": _state(stored),
        "owner": owner.agent if owner else "",
        "owner_host": owner.host if owner else "",
        "owner_heartbeat_unix": stored.heartbeat,
        "problem": problem
        and {"reason": type(problem).__name__, "error": problem.what, "where": problem.where, "hint": problem.hint},
        "lag_offsets": stored.lag,
        "lag_seconds": None,
        "hidden_offsets": sum(offset.hidden for offset in stored.offsets) if stored.offsets else None,
        "hidden_seconds": None,
        "rows": state.rows if state else 0,
        "last_commit": state
        and {
            "txn": state.txn,
            "write_id": state.write_id,
            "committed_unix": datetime.fromisoformat(state.at).timestamp(),
            "owner": state.owner,
        },
        "partitions": [
            {
                "topic": offset.partition.topic,
                "partition": offset.partition.partition,
                "earliest": offset.earliest,
                "position": offset.committed,
                "end": offset.end,
                "lag_offsets": offset.lag,
                "hidden_offsets": offset.hidden,
            }
            for offset in stored.offsets
        ],
    }


def _state(stored: StoredMapping) -> str:
    """Return `paused`, `owned`, `silent` if the owner sends no heartbeats, `unowned`, or `unknown` after an error."""
    if stored.problem is not None:
        return "unknown"
    if stored.state and stored.state.paused:
        return "paused"
    if stored.heartbeat is None:
        return "unowned"
    return "silent" if now() - stored.heartbeat > _SILENT_SECONDS else "owned"
