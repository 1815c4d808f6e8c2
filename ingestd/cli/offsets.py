"""`ingestd offsets`: shows and changes the committed position of a mapping.

Invariant: a change is shown before it is made, and it is refused if the committed position has changed since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ingestd.cli.client import author
from ingestd.cli.presentation import Column, Output, confirm, console, number, print_json, table, with_output
from ingestd.cli.run import with_config
from ingestd.cli.source import Source, with_endpoint
from ingestd.errors import ConfigError
from ingestd.ingest.control import PositionChange, Request
from ingestd.ingest.inspection.positions import NewPosition, PartitionMove, position_change, preview
from ingestd.ingest.inspection.stored import StoredMapping
from ingestd.ingest.options import MappingOptions, milliseconds, parse_time
from ingestd.ingest.ownership.owner import OwnerAlive
from ingestd.kafka.ranges import Offsets, TopicPartition

_COLUMNS = (Column("topic"), *map(number, ("partition", "earliest", "committed", "end", "lag")))
_MOVES = (Column("topic"), *map(number, ("partition", "committed", "new", "read again", "skipped")))
_PARTITION = re.compile(r"([\w.-]{1,249}):(\d+)")
_FILE_FORM = '{"offsets": [{"topic": "clicks", "partition": 0, "committed": 1234}]}'
# Returns the new offsets of some partitions of a stored mapping.
Wanted = Callable[[StoredMapping], Offsets]


@click.group()
def offsets() -> None:
    """Show or change the committed position of a mapping."""


@offsets.command()
@click.argument("mapping")
@with_config
@with_output
def show(mapping: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """Show the committed position of MAPPING and Kafka's offsets.

    The position is read from Hive, which is the source of truth. The consumer group in Kafka is only a copy.
    """
    source = Source(files, directory)
    stored = source.read_one(mapping)
    if output == "json":
        print_json(_document(stored))
        return
    rows = ((p.partition.topic, p.partition.partition, p.earliest, p.committed, p.end, p.lag) for p in stored.offsets)
    console().print(table(_COLUMNS, rows))
    state = stored.state
    if state and state.changed_by:
        click.echo(f"last change: {state.change}, by {state.changed_by} at {state.changed_at}")


def _with_change_options(command: Any) -> Any:
    """Add the options of the commands that change a position."""
    options: list[Any] = [
        click.option("--dry-run", is_flag=True, help="Show what would be skipped or read again, and change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal."),
        click.option("--hand-over", is_flag=True, help="Let the daemon that runs the mapping make the change."),
        with_endpoint,
        with_config,
        with_output,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@offsets.command("set")
@click.argument("mapping")
@click.argument("assignments", metavar="[TOPIC:PARTITION=OFFSET]...", nargs=-1)
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Take the offsets from a file in the form of `offsets show --output json`.",
)
@_with_change_options
def set_offsets(mapping: str, assignments: tuple[str, ...], file: Path | None, **options: Any) -> None:
    """Commit other next offsets for partitions of MAPPING. Partitions that are not named keep theirs."""
    if bool(assignments) == bool(file):
        raise click.UsageError("name offsets as TOPIC:PARTITION=OFFSET, or a --file with them")
    wanted = _of_file(file) if file else _of_words(assignments)
    _change(mapping, lambda _stored: wanted, **options)


@offsets.command()
@click.argument("mapping")
@click.option("--to-timestamp", metavar="TIME", help="The first records at or after a time, such as 2026-11-01T00:00Z.")
@click.option("--to-offset", type=click.IntRange(0), help="An offset, the same in each partition.")
@click.option("--to-earliest", is_flag=True, help="The first offset that Kafka has.")
@click.option("--to-latest", is_flag=True, help="The last stable offset: skip everything that is not committed.")
@click.option(
    "--partition",
    "partitions",
    metavar="TOPIC:PARTITION",
    multiple=True,
    help="Change only this partition. Repeatable.  [default: all]",
)
@_with_change_options
def rewind(mapping: str, partitions: tuple[str, ...], **options: Any) -> None:
    """Commit an earlier or later position for all partitions of MAPPING.

    Records that are read again are added to the table again. Remove their rows first if the table must not contain them
    twice.
    """
    new = _new_position(*(options.pop(f"to_{name}") for name in ("timestamp", "offset", "earliest", "latest")))
    chosen = [_partition(text) for text in partitions]

    def wanted(stored: StoredMapping) -> Offsets:
        return new.offsets(stored, chosen or [offset.partition for offset in stored.offsets])

    _change(mapping, wanted, **options)


def _change(  # noqa: PLR0913 - the options of two commands
    mapping: str,
    wanted: Wanted,
    *,
    files: tuple[Path, ...],
    directory: Path | None,
    dry_run: bool,
    yes: bool,
    hand_over: bool,
    output: Output,
    **endpoint: Any,
) -> None:
    """Show what a new position skips and reads again, ask for confirmation, and commit it."""
    source = Source(files, directory, **endpoint)
    stored = source.read_one(mapping)
    moves = preview(stored, wanted(stored))
    _show(moves, Console(stderr=True, highlight=False) if output == "json" else console())
    is_wanted = bool(moves) and not dry_run
    if is_wanted and not yes:
        confirm(f"Change the committed position of mapping {mapping}?")
    result = "unchanged"
    if is_wanted:
        change = position_change(moves)
        result = _hand_over(source, mapping, change) if hand_over else _store(source, stored.options, change)
    if output == "json":
        print_json({"mapping": mapping, "result": result, "moves": [_move(move) for move in moves]})
    else:
        click.echo(f"{result}: the committed position of mapping {mapping}")


def _hand_over(source: Source, mapping: str, change: PositionChange) -> str:
    """Let the daemon commit the change. Returns `changed`, or `accepted` if the daemon is not done yet."""
    endpoint = source.endpoint
    if endpoint is None:
        raise click.UsageError("--hand-over requires the address of the daemon: set http.listen or use --url")
    fields = {"offsets": _nested(change.offsets), "expected": _nested(change.expected), "by": author()}
    is_done = source.call_daemon(endpoint, lambda daemon: daemon.change(mapping, "offsets", fields))
    return "changed" if is_done else "accepted"


def _store(source: Source, options: MappingOptions, change: PositionChange) -> str:
    """Commit the change without a daemon. Returns `changed`. Raises OwnerAlive if a daemon runs the mapping."""
    try:
        source.change_stored(options, Request("set_position", author(), change))
    except OwnerAlive as error:
        hint = "let the daemon make the change (--hand-over), or stop it first"
        raise OwnerAlive(error.what, where=error.where, hint=hint) from None
    return "changed"


def _show(moves: Sequence[PartitionMove], to: Console) -> None:
    if not moves:
        to.print("nothing to change: these offsets are already committed")
        return
    rows = ((m.partition.topic, m.partition.partition, m.before, m.after, m.read_again, m.skipped) for m in moves)
    to.print(table(_MOVES, rows))
    again, skipped = sum(m.read_again for m in moves), sum(m.skipped for m in moves)
    if again:
        to.print(f"{again:,} offsets are read again: the table gets their rows a second time.")
    if skipped:
        to.print(f"{skipped:,} offsets are skipped: their records are never read.")


def _new_position(timestamp: str | None, offset: int | None, earliest: bool, latest: bool) -> NewPosition:
    given = []
    if timestamp is not None:
        given.append(NewPosition("timestamp", _milliseconds(timestamp)))
    if offset is not None:
        given.append(NewPosition("offset", offset))
    if earliest:
        given.append(NewPosition("earliest"))
    if latest:
        given.append(NewPosition("latest"))
    if len(given) != 1:
        raise click.UsageError("use one of --to-timestamp, --to-offset, --to-earliest and --to-latest")
    return given[0]


def _milliseconds(text: str) -> int:
    moment = parse_time(text)
    if moment is None:
        raise click.UsageError(f"{text!r} is not a time such as 2026-11-01T00:00:00Z")
    return milliseconds(moment)


def _partition(text: str) -> TopicPartition:
    match = _PARTITION.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{text!r} is not TOPIC:PARTITION")
    return TopicPartition(match[1], int(match[2]))


def _of_words(words: Sequence[str]) -> Offsets:
    positions = {}
    for word in words:
        name, _, offset = word.partition("=")
        if not offset.isdecimal():
            raise click.UsageError(f"{word!r} is not TOPIC:PARTITION=OFFSET")
        positions[_partition(name)] = int(offset)
    if len(positions) < len(words):
        raise click.UsageError("a partition is named twice")
    return positions


def _of_file(file: Path) -> Offsets:
    try:
        items = json.loads(file.read_text(encoding="utf-8"))["offsets"]
        positions = {TopicPartition(item["topic"], item["partition"]): item["committed"] for item in items}
    except (OSError, ValueError, KeyError, TypeError):
        positions = {}
    positions = {partition: offset for partition, offset in positions.items() if offset is not None}
    numbers = [number for partition, offset in positions.items() for number in (partition.partition, offset)]
    if not positions or not all(type(number) is int and number >= 0 for number in numbers):
        raise ConfigError("contains no offsets", where=str(file), hint=f"write {_FILE_FORM}")
    return positions


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition, as the daemon expects them."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic


def _move(move: PartitionMove) -> dict[str, object]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "committed": move.before,
        "new": move.after,
        "read_again": move.read_again,
        "skipped": move.skipped,
    }


def _document(stored: StoredMapping) -> dict[str, object]:
    state = stored.state
    return {
        "mapping": stored.options.name,
        "table": str(stored.options.table),
        "paused": bool(state and state.paused),
        "last_commit": state and {"txn": state.txn, "write_id": state.write_id, "owner": state.owner, "at": state.at},
        "last_change": {"change": state.change, "by": state.changed_by, "at": state.changed_at}
        if state and state.changed_by
        else None,
        "offsets": [
            {
                "topic": offset.partition.topic,
                "partition": offset.partition.partition,
                "earliest": offset.earliest,
                "committed": offset.committed,
                "end": offset.end,
                "lag": offset.lag,
            }
            for offset in stored.offsets
        ],
    }
