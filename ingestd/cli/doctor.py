"""`ingestd doctor`: finds what commonly goes wrong, with evidence and a fix for each finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.markup import escape

from ingestd.cli.presentation import Output, console, print_json, with_output
from ingestd.cli.run import with_config
from ingestd.config.document import load
from ingestd.daemon import log
from ingestd.doctor.examination import examine, examine_machine
from ingestd.doctor.finding import Finding, Status, as_document, exit_code, refused
from ingestd.errors import ConfigError, ConfigFaults

_SIGNS: dict[Status, str] = {
    "ok": "[green]✓[/]",
    "warning": "[yellow]![/]",
    "fault": "[red]✗[/]",
    "skipped": "[dim]-[/]",
}


@click.command()
@with_config
@with_output
@click.option(
    "--timeout",
    type=click.IntRange(1, 3_600),
    default=20,
    show_default=True,
    help="Time limit of a check in seconds.",
)
def doctor(files: tuple[Path, ...], directory: Path | None, output: Output, timeout: int) -> None:
    """Examine this machine, Kafka, the metastore and all tables.

    Each finding has its evidence and, if something is wrong, a fix. Nothing is changed. The exit code is 0 if there is
    no fault, and otherwise that of the first fault. Warnings do not change it.
    """
    log.configure("auto", "error")
    arriving = _findings(files, directory, timeout)
    findings = list(arriving) if output == "json" else _print(arriving)
    if output == "json":
        print_json(as_document(findings))
    sys.exit(exit_code(findings))


def _findings(files: tuple[Path, ...], directory: Path | None, timeout: int) -> Iterator[Finding]:
    try:
        document = load(files, directory)
    except ConfigError as error:
        for fault in error.faults if isinstance(error, ConfigFaults) else [error]:
            yield Finding("configuration", "configuration", refused(fault))
        yield from examine_machine(0, limit_seconds=timeout)
        return
    yield from examine(document, limit_seconds=timeout)


def _print(arriving: Iterator[Finding]) -> list[Finding]:
    """Print findings as they become known, below a heading for each subject, and return all of them."""
    to = console()
    findings: list[Finding] = []
    for line, group in groupby(arriving, _line):
        if not findings or findings[-1].subject != line.subject:
            to.print(f"[bold]{escape(line.subject)}[/]")
        same = list(group)
        if line.skipped_because:
            names = ", ".join(finding.check for finding in same)
            to.print(f"  {_SIGNS['skipped']} {escape(line.skipped_because)}: {names}")
        else:
            for finding in same:
                _print_one(to, finding)
        findings += same
    counts = as_document(findings)["counts"]
    to.print(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    return findings


class _Line(NamedTuple):
    """The common part of findings that are printed together; skipped checks with the same reason share one line."""

    subject: str
    check: str
    skipped_because: str


def _line(finding: Finding) -> _Line:
    if finding.verdict.status == "skipped":
        return _Line(finding.subject, "", finding.verdict.evidence)
    return _Line(finding.subject, finding.check, "")


def _print_one(to: Console, finding: Finding) -> None:
    verdict = finding.verdict
    to.print(f"  {_SIGNS[verdict.status]} {finding.check:29} {escape(verdict.evidence)}")
    if verdict.fix:
        to.print(f"    {'':29} → {escape(verdict.fix)}")
