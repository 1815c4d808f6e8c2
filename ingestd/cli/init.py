"""`ingestd init`: writes a first configuration by asking Kafka and the metastore.

Invariant: an existing file is replaced only with `--force`, and then as a whole.
"""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from ingestd.acid.encoding import Encoding
from ingestd.acid.routing import Shape
from ingestd.config.document import Document, load
from ingestd.config.draft import Draft, checked_settings, mapping_name
from ingestd.daemon import log
from ingestd.errors import ConfigError, ConfigFaults, TableMissing
from ingestd.formats.registry import Registry
from ingestd.hive.client import Metastore
from ingestd.hive.creation import NewTable
from ingestd.hive.tables import TableName, list_tables, require_writable_database
from ingestd.ingest.inspection.sample import match, propose, read_sample
from ingestd.ingest.options import ControlOptions
from ingestd.ingest.table.target import load_target
from ingestd.kafka.admin import Broker

_SHOWN = 30
_ANSWER_SECONDS = 10.0
# Databases without tables of users.
_OTHER_DATABASES = (ControlOptions().database, "sys", "information_schema")


@click.command()
@click.option(
    "--metastore", "uri", required=True, help="Addresses of the metastore, thrift://host:port, separated by commas."
)
@click.option(
    "--bootstrap-servers", "servers", required=True, help="Addresses of Kafka brokers, host:port, separated by commas."
)
@click.option("--topic", help="The topic to read. On a terminal, the command asks for it.")
@click.option("--table", "table_text", help="The table to write, as database.table. It need not exist.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another key of metastore, kafka or registry, such as kafka.security.protocol=SASL_SSL. Repeatable. Write a"
    " secret as a reference: 'kafka.sasl.password=${ENV:NAME}'.",
)
@click.option(
    "--output-file",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("ingestd.yaml"),
    show_default=True,
    help="The file to write.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def init(  # noqa: PLR0913 - click passes each option
    *,
    uri: str,
    servers: str,
    topic: str | None,
    table_text: str | None,
    settings: tuple[str, ...],
    file: Path,
    force: bool,
) -> None:
    """Write a first configuration by asking Kafka and the metastore.

    The command reads a sample of the topic, finds the format of its records, compares their fields with the columns of
    the table, and says what fits. It changes nothing in Kafka or Hive. For a table that does not exist, it proposes a
    CREATE TABLE statement.
    """
    log.configure("auto", "error")
    if not force and os.path.lexists(file):
        raise ConfigError(
            "the file already exists", where=str(file), hint="use --force to replace it, or --output-file"
        )
    given = checked_settings(
        dict(map(_setting, (f"metastore.uri={uri}", f"kafka.bootstrap.servers={servers}", *settings)))
    )
    document = _loaded(Draft(given, "first", "first", TableName("default", "first")))
    metastore = replace(document.metastore, timeout=min(document.metastore.timeout, _ANSWER_SECONDS)).connect()
    try:
        chosen = topic or _chosen_topic(document)
        table = TableName.parse(table_text or _chosen_table(metastore, chosen))
        plain = Draft(given, mapping_name(chosen), chosen, table)
        draft = _compared(plain, _loaded(plain), metastore)
    finally:
        metastore.close()
    _loaded(draft)
    _write(file, draft.text(), force=force)
    _report(draft, file)


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.UsageError("--set requires KEY=VALUE")  # the text may contain a secret
    return key, value


def _loaded(draft: Draft) -> Document:
    """Validate the text of a draft as a file. Raises ConfigFaults, without the name of that file."""
    with tempfile.TemporaryDirectory(prefix="ingestd-init-") as folder:
        file = Path(folder) / "draft.yaml"
        file.write_text(draft.text(), encoding="utf-8")
        try:
            return load([file])
        except ConfigFaults as error:
            faults = [
                ConfigError(fault.what, where=fault.where.partition(": ")[2], hint=fault.hint) for fault in error.faults
            ]
            raise ConfigFaults(faults) from None


def _chosen_topic(document: Document) -> str:
    broker = Broker(document.mappings[0].kafka, timeout_seconds=_ANSWER_SECONDS)
    with broker.explained():
        names = broker.topic_names()
    return _choice("topic", names, lambda names: names)


def _chosen_table(metastore: Metastore, topic: str) -> str:
    """Return the table that the user chooses. Those with a name similar to the topic's are listed first."""

    def closest_first(names: Sequence[str]) -> Sequence[str]:
        def distance(name: str) -> float:
            return -difflib.SequenceMatcher(None, mapping_name(topic), name.partition(".")[2]).ratio()

        return sorted(names, key=distance)

    names = [str(name) for name in list_tables(metastore) if name.database not in _OTHER_DATABASES]
    return _choice("table", names, closest_first)


def _choice(what: str, names: Sequence[str], order: Callable[[Sequence[str]], Sequence[str]]) -> str:
    shown = list(order(names))[:_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    if not sys.stdin.isatty():
        choices = f"there are {', '.join(shown)}{more}" if shown else "there is none"
        raise click.UsageError(f"--{what} is required without a terminal: {choices}")
    click.echo(f"{what.capitalize()}s: {', '.join(shown)}{more}", err=True)
    answer: str = click.prompt(what.capitalize(), default=shown[0] if shown else None, err=True)
    return answer


def _compared(plain: Draft, document: Document, metastore: Metastore) -> Draft:
    """Return the draft with the result of comparing a sample of the topic with the columns of the table.

    Raises InvalidTable for a table that the mapping cannot write or, if it is missing, that Hive would not create.
    """
    mapping = document.mappings[0]
    sample, unreadable = read_sample(mapping.reader, plain.topic)
    registry = Registry.of(mapping.registry)
    table: Shape | None = None
    try:
        table = load_target(metastore, mapping).shape
    except TableMissing:
        require_writable_database(metastore, plain.table)
    columns = None if table is None else (*table.columns, *table.partition_columns)
    proposal = propose(sample, columns, registry, plain.topic)
    notes = [note for note in (unreadable, proposal.note) if note]
    shape = table or Shape(proposal.columns, partition_columns=(), bucketing=None, encoding=Encoding())
    if not shape.columns:
        notes.append("The table does not exist, and its columns could not be derived from the records.")
    draft = replace(plain, format=proposal.format or {}, notes=notes)
    if proposal.format is None or not shape.columns or (unreadable and not sample):
        return draft
    matched = match(sample, shape, _loaded(draft).mappings[0].format, registry)
    return replace(draft, match=matched, statement="" if table else NewTable(plain.table, shape.columns).statement)


def _write(file: Path, text: str, *, force: bool) -> None:
    """Write a complete file or nothing, even if the process is killed."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        if force:
            fresh.replace(file)
        else:
            os.link(fresh, file)  # fails if another process has created the file meanwhile
    except OSError as error:
        hint = "choose another file with --output-file"
        raise ConfigError(f"cannot write the file: {error.strerror}", where=str(file), hint=hint) from error
    finally:
        with suppress(OSError):  # it was renamed, or could not be created
            fresh.unlink()


def _report(draft: Draft, file: Path) -> None:
    lines = draft.remarks
    if draft.match and draft.match.misfits:
        lines.append(f"The first that does not fit: {draft.match.reason}")
    if draft.statement:
        lines += [f"The table {draft.table} does not exist. Create it in Hive, for example:", f"{draft.statement};"]
    for line in (*lines, f"Wrote {file}. Next: ingestd check --online --config {file}"):
        click.echo(line, err=True)
