"""`ingestd check`: validates a configuration without running it."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from ingestd.cli.run import with_config
from ingestd.config.document import Document, load
from ingestd.daemon import log
from ingestd.ingest.checks import Finding, check_mapping, check_metastore


@click.command()
@with_config
@click.option("--online", is_flag=True, help="Also test Kafka, the metastore and the storage.")
def check(files: tuple[Path, ...], directory: Path | None, online: bool) -> None:
    """Validate a configuration and report every fault.

    The exit code is 0 if there is no fault, 78 if the configuration is invalid, and otherwise that of the first fault
    that --online finds.
    """
    log.configure("auto", "info")
    console = Console(soft_wrap=True, highlight=False)
    document = load(files, directory)
    mappings = document.mappings
    console.print(f"[green]✓[/] configuration: {len(mappings)} mapping{'s' if len(mappings) != 1 else ''}")
    if online:
        faults = [f for f in _report(console, document) if f.error is not None]
        if faults and faults[0].error is not None:
            sys.exit(faults[0].error.exit_code)


def _report(console: Console, document: Document) -> list[Finding]:
    metastore = document.metastore.connect()
    try:
        findings = [_print(console, f) for f in check_metastore(metastore)]
        for options in document.mappings:
            findings.extend(_print(console, f) for f in check_mapping(metastore, options))
        return findings
    finally:
        metastore.close()


def _print(console: Console, finding: Finding) -> Finding:
    if finding.error is None:
        console.print(f"[green]✓[/] {escape(finding.subject)}: {escape(finding.detail)}")
    else:
        console.print(f"[red]✗[/] {escape(finding.subject)}: {escape(str(finding.error))}")
    return finding
