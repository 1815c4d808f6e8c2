"""`ingestd check`: validates a configuration without running it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.markup import escape

from ingestd.cli.presentation import Output, console, print_json, with_output
from ingestd.cli.run import with_config
from ingestd.config.document import Document, load
from ingestd.daemon import log
from ingestd.ingest.checks import Finding, check_metastore, check_table, check_topics, counted

# The time limit of a call of the metastore. A user is waiting for the result.
_ANSWER_SECONDS = 10.0


@click.command()
@with_config
@click.option("--online", is_flag=True, help="Also test Kafka, the metastore and the storage.")
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
    sys.exit(next((finding.error.exit_code for finding in findings if finding.error is not None), 0))


def _findings(document: Document, online: bool) -> Iterator[Finding]:
    yield Finding("configuration", counted(len(document.mappings), "mapping"), None)
    if not online:
        return
    metastore = replace(document.metastore, timeout=min(document.metastore.timeout, _ANSWER_SECONDS)).connect()
    try:
        of_metastore = list(check_metastore(metastore))
        yield from of_metastore
        for options in document.mappings:
            yield from check_topics(options)
            # Otherwise each check would only wait for the metastore again.
            if not any(finding.error for finding in of_metastore):
                yield from check_table(metastore, options)
    finally:
        metastore.close()


def _print(finding: Finding) -> None:
    sign = "[green]✓[/]" if finding.error is None else "[red]✗[/]"
    text = finding.detail if finding.error is None else str(finding.error)
    console().print(f"{sign} {escape(finding.subject)}: {escape(text)}")


def _document(finding: Finding) -> dict[str, object]:
    error = finding.error
    return {
        "subject": finding.subject,
        "detail": finding.detail,
        "problem": error
        and {"reason": type(error).__name__, "error": error.what, "where": error.where, "hint": error.hint},
    }
