"""`ingestd check`: validates a configuration without running it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click
from rich.markup import escape

from ingestd.cli.presentation import Output, console, print_json, with_output
from ingestd.cli.run import with_config
from ingestd.config.document import Document, load
from ingestd.daemon import log
from ingestd.errors import IngestdError
from ingestd.ingest.inspection.checks import (
    Finding,
    check_control,
    check_group,
    check_locations,
    check_metastore,
    check_registry,
    check_sql,
    check_table,
    check_topics,
    counted,
)
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.examine import examine_executors
from ingestd.spark.local import LocalEngine
from ingestd.storage.storages import Storages

# The time limit of a call of the metastore. A user is waiting for the result.
_ANSWER_SECONDS = 10.0
# How long Spark and its executors may take to start.
_EXECUTOR_SECONDS = 60.0


@click.command()
@with_config
@click.option("--online", is_flag=True, help="Also test Kafka, the metastore, the storage and the executors of Spark.")
@with_output
def check(files: tuple[Path, ...], directory: Path | None, online: bool, output: Output) -> None:
    """Validate a configuration and report every fault.

    The exit code is 0 if there is no fault, 78 if the configuration is invalid, and otherwise that of the first fault
    that --online finds.
    """
    log.configure("auto", "info")
    document = load(files, directory)
    findings = []
    for finding in _findings(document, online):
        findings.append(finding)
        if output == "table":
            _print(finding)
    if output == "json":
        print_json([_document(finding) for finding in findings])
    faults = (finding.error for finding in findings if not finding.is_warning)
    sys.exit(next((error.exit_code for error in faults if error is not None), 0))


def _findings(document: Document, online: bool) -> Iterator[Finding]:
    yield Finding("configuration", _contents(document), None)
    if not online:
        return
    metastore = replace(document.metastore, timeout=min(document.metastore.timeout, _ANSWER_SECONDS)).connect()
    storages = Storages(document.storage)
    with LocalEngine() as engine, closing(metastore):
        of_metastore = list(check_metastore(metastore))
        yield from of_metastore
        if document.mappings and not any(finding.error for finding in of_metastore):
            yield from check_locations(metastore, document.mappings)
        for options in document.mappings:
            of_topics = list(check_topics(options))
            yield from of_topics
            if not any(finding.error for finding in of_topics):
                yield from check_group(options)
            yield from check_registry(options)
            # Otherwise each check would only wait for the metastore again.
            if not any(finding.error for finding in of_metastore):
                yield from check_control(metastore, options)
                yield from check_table(Warehouse(metastore, storages), options)
                yield from check_sql(metastore, options, engine)
    yield from _executors(document)


def _contents(document: Document) -> str:
    parts = [counted(len(document.mappings), "mapping")] if document.mappings else []
    if document.replication is not None:
        number = len(document.replication.policies)
        parts.append(f"replication with {number} polic{'y' if number == 1 else 'ies'}")
    return ", ".join(parts)


def _executors(document: Document) -> Iterator[Finding]:
    """Check the executors of a cluster. A local master has none."""
    if not document.spark.has_executors:
        return
    try:
        text = examine_executors(document.spark, document.kafka_clusters, document.registries, _EXECUTOR_SECONDS)
        yield Finding("spark executors", text, None)
    except IngestdError as error:
        yield Finding("spark executors", "", error)


def _print(finding: Finding) -> None:
    sign = "[green]✓[/]" if finding.error is None else "[yellow]![/]" if finding.is_warning else "[red]✗[/]"
    text = finding.detail if finding.error is None else str(finding.error)
    console().print(f"{sign} {escape(finding.subject)}: {escape(text)}")


def _document(finding: Finding) -> dict[str, object]:
    error = finding.error
    return {
        "subject": finding.subject,
        "detail": finding.detail,
        "warning": finding.is_warning,
        "problem": error
        and {"reason": type(error).__name__, "error": error.what, "where": error.where, "hint": error.hint},
    }
