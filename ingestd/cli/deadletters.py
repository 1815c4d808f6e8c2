"""`ingestd deadletters`: lists the dead letters of a mapping by their reasons, shows one of them, and replays them.

Invariant: only a replay changes anything in Hive, and nothing is changed in Kafka. The value of a record may be
confidential, and is shown on request only. A reason can quote a part of it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import click
from rich.console import Console

from ingestd.cli.presentation import Column, Output, console, number, print_json, table, with_output
from ingestd.cli.run import with_config
from ingestd.cli.source import Source
from ingestd.daemon import log
from ingestd.errors import IngestdError
from ingestd.ingest.inspection.checks import counted
from ingestd.ingest.letters.groups import LetterGroup, grouped
from ingestd.ingest.letters.reader import Selection
from ingestd.ingest.letters.table import Letter
from ingestd.ingest.offline.replay import ReplayResult
from ingestd.ingest.options import parse_time

_GROUPS = (
    *(Column("topic"), Column("column"), Column("reason of the first"), number("letters")),
    *(Column("first"), Column("last"), Column("id of the first")),
)
_FIELDS = (Column("field"), Column("value"))


class NoSuchLetter(IngestdError):
    """A mapping has no dead letter with the given id."""

    exit_code = 65


@click.group()
def deadletters() -> None:
    """Show the dead letters of a mapping, or replay them.

    They are read from its table of dead letters if it has one, otherwise from the topic. Needs no daemon. Only a replay
    for a mapping with `where` or `transform` starts Spark, on this machine.
    """


@deadletters.command("list")
@click.argument("mapping")
@with_config
@with_output
def list_letters(mapping: str, files: tuple[Path, ...], directory: Path | None, output: Output) -> None:
    """List the dead letters of MAPPING by topic, column and reason, the most frequent reason first.

    Reasons that differ only in what they quote of a record are counted together. Letters that were replayed are only
    counted.
    """
    log.configure("auto", "error")
    replayed = 0

    def remaining() -> Iterable[LetterGroup]:
        nonlocal replayed
        for letter in Source(files, directory).letters(mapping):
            if letter.replay is None:
                yield LetterGroup.of(letter)
            else:
                replayed += 1

    groups = grouped(remaining())
    count = sum(group.count for group in groups)
    if output == "json":
        print_json({"mapping": mapping, "letters": count, "replayed": replayed, "reasons": _listed(groups)})
        return
    _show_groups(groups, console())
    more = f"; {replayed:,} more {'was' if replayed == 1 else 'were'} replayed" if replayed else ""
    console().print(f"{counted(count, 'dead letter')} of the mapping {mapping}{more}")


def _parse_moment(_context: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    moment = None if text is None else parse_time(text)
    if text is not None and moment is None:
        raise click.BadParameter(f"{text!r} is not a time such as 2026-11-01T00:00:00Z", param=option)
    return moment


@deadletters.command("replay")
@click.argument("mapping")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Only the letter with this id. Repeatable.")
@click.option("--column", help="Only letters with this column; '' selects records that are malformed.")
@click.option("--reason", metavar="TEXT", default="", help="Only letters whose reason contains this text.")
@click.option(
    "--since", metavar="TIME", callback=_parse_moment, help="Only letters rejected at or after a time, in UTC."
)
@click.option("--until", metavar="TIME", callback=_parse_moment, help="Only letters rejected before a time, in UTC.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of letters.")
@click.option("--dry-run", is_flag=True, help="Show which letters would become rows, and change nothing.")
@with_config
@with_output
def replay_letters(  # noqa: PLR0913 - the options of the command
    mapping: str,
    *,
    ids: Sequence[str],
    column: str | None,
    reason: str,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    dry_run: bool,
    files: tuple[Path, ...],
    directory: Path | None,
    output: Output,
) -> None:
    """Make rows of the dead letters of MAPPING whose records now fit.

    Decodes the records of all dead letters in the table that were not replayed before, or of those that the options
    select, with the present configuration and the present columns of the table. The rows, and the marks of the letters
    that were replayed, are one transaction: each letter becomes rows exactly once, even if the command is killed and
    repeated. Letters whose records still do not fit remain. The daemon may run meanwhile.
    """
    selection = Selection(frozenset(ids), column, reason, since, until, limit)
    source = Source(files, directory)
    done = source.try_replay(mapping, selection) if dry_run else source.replay(mapping, selection)
    if output == "json":
        print_json(_replayed(mapping, done, dry_run=dry_run))
        return
    if not done.replayed and not done.remaining:
        console().print(f"The mapping {mapping} has no such dead letter, or all were replayed before")
        return
    _show_groups(done.remaining, console())
    verb = "would be" if dry_run else "was" if done.replayed == 1 else "were"
    places = f" in {counted(done.partitions, 'partition')}" if done.partitions > 1 else ""
    result = f"{verb} replayed: {counted(done.rows, 'row')}{places}"
    committed = f", transaction {done.transaction}" if done.transaction else ""
    console().print(f"{counted(done.replayed, 'dead letter')} of the mapping {mapping} {result}{committed}")
    if done.remaining:
        count = sum(group.count for group in done.remaining)
        console().print(f"{counted(count, 'dead letter')} still {'does' if count == 1 else 'do'} not fit")
    if done.hidden:
        console().print(f"A concurrent TRUNCATE hides rows of: {', '.join(done.hidden)}")


@deadletters.command()
@click.argument("mapping")
@click.argument("identity", metavar="ID")
@click.option("--value", "with_value", is_flag=True, help="Show the value of the record, too.")
@with_config
@with_output
def show(
    mapping: str, identity: str, with_value: bool, files: tuple[Path, ...], directory: Path | None, output: Output
) -> None:
    """Show the dead letter ID of MAPPING: origin, reason, key and headers of the record."""
    log.configure("auto", "error")
    letters = Source(files, directory).letters(mapping)
    chosen = next((letter for letter in letters if letter.id == identity), None)
    if chosen is None:
        hint = f"`ingestd deadletters list {mapping}` shows an id of each reason"
        raise NoSuchLetter("there is no such dead letter", where=f"mapping {mapping}, id {identity}", hint=hint)
    if output == "json":
        print_json(_document(chosen, with_value=with_value))
    else:
        _show(chosen, console(), with_value=with_value)


def _show_groups(groups: Sequence[LetterGroup], to: Console) -> None:
    if groups:
        rows = [
            (group.topic, group.column, group.reason, group.count, _time(group.first), _time(group.last), group.id)
            for group in groups
        ]
        to.print(table(_GROUPS, rows), "")


def _listed(groups: Iterable[LetterGroup]) -> list[dict[str, object]]:
    return [
        {
            "topic": group.topic,
            "column": group.column,
            "reason": group.reason,
            "letters": group.count,
            "first": _time(group.first),
            "last": _time(group.last),
            "id": group.id,
        }
        for group in groups
    ]


def _replayed(mapping: str, done: ReplayResult, *, dry_run: bool) -> dict[str, object]:
    return {
        "mapping": mapping,
        "dry_run": dry_run,
        "replayed": done.replayed,
        "rows": done.rows,
        "partitions": done.partitions,
        "txn": done.transaction,
        "hidden": list(done.hidden),
        "remaining": sum(group.count for group in done.remaining),
        "reasons": _listed(done.remaining),
    }


def _show(letter: Letter, to: Console, *, with_value: bool) -> None:
    record = letter.record
    rows: list[tuple[str, object]] = [
        ("id", letter.id),
        ("mapping", letter.mapping),
        ("origin", f"{letter.partition} offset {letter.offset}"),
        ("timestamp", _record_time(letter)),
        ("rejected at", _time(letter.time)),
        *([("replayed", f"{done.transaction}, at {_time(done.time)}")] if (done := letter.replay) else []),
        ("stage", letter.stage),
        ("column", letter.column),
        ("reason", letter.reason),
        ("key", _text(record.key)),
        *((f"header {name}", _text(value)) for name, value in record.headers),
        ("value", _text(record.value) if with_value else _size(record.value)),
    ]
    to.print(table(_FIELDS, rows))


def _document(letter: Letter, *, with_value: bool) -> dict[str, object]:
    record = letter.record
    document: dict[str, object] = {
        "id": letter.id,
        "mapping": letter.mapping,
        "topic": letter.partition.topic,
        "partition": letter.partition.partition,
        "offset": letter.offset,
        "timestamp": _record_time(letter),
        "time": _time(letter.time),
        "replayed": letter.replay and {"by": letter.replay.transaction, "time": _time(letter.replay.time)},
        "stage": letter.stage,
        "column": letter.column,
        "reason": letter.reason,
        "key": _encoded(record.key),
        "headers": [{"key": name, "value": _encoded(value)} for name, value in record.headers],
        "value_bytes": None if record.value is None else len(record.value),
    }
    return document | ({"value": _encoded(record.value)} if with_value else {})


def _record_time(letter: Letter) -> str | None:
    """Return the timestamp of the record; None if it has none, or one after the year 9999."""
    try:
        milliseconds = letter.record.timestamp_ms
        return None if milliseconds is None else _time(datetime.fromtimestamp(milliseconds / 1000, timezone.utc))
    except (ValueError, OverflowError, OSError):
        return None


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: bytes | None) -> str:
    """Return bytes on one line; those that are no printable UTF-8 text are escaped."""
    if value is None:
        return "NULL"
    text = value.decode("utf-8", "backslashreplace")
    return (
        "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
        )
        or "''"
    )


def _size(value: bytes | None) -> str:
    return "NULL" if value is None else f"{counted(len(value), 'byte')}; --value shows them"


def _encoded(value: bytes | None) -> dict[str, str] | None:
    """Return bytes for JSON: `text` if they are UTF-8, otherwise `base64`."""
    if value is None:
        return None
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
