"""The results of an examination, and the contract of a check.

Invariant: a finding names its check, what was examined and the measured value, and has a fix unless its status is `ok`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from ingestd import __version__
from ingestd.errors import IngestdError

T = TypeVar("T")
Status = Literal["ok", "warning", "fault", "skipped"]

# The version of the JSON document. It increases when a key changes its meaning or is removed.
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check: the status, the measured value, how to fix the fault, and the exit code of a fault."""

    status: Status
    evidence: str
    fix: str = ""
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of `check` on `subject`, such as `metastore` or `mapping clicks`."""

    check: str
    subject: str
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as an entry of the JSON document."""
        verdict = self.verdict
        return {
            "check": self.check,
            "subject": self.subject,
            "status": verdict.status,
            "evidence": verdict.evidence,
            "fix": verdict.fix,
            "exit_code": verdict.exit_code,
        }


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """A check by name. `run` examines one object; an IngestdError that it raises is a fault."""

    name: str
    run: Callable[[T], Iterable[Verdict]]

    def examine(self, examined: T, subject: str) -> Iterator[Finding]:
        """Run the check and yield its findings."""
        try:
            for verdict in self.run(examined):
                yield Finding(self.name, subject, verdict)
        except IngestdError as error:
            yield Finding(self.name, subject, refused(error))


def ok(evidence: str) -> Verdict:
    """Return a verdict without a fault."""
    return Verdict("ok", evidence)


def warning(evidence: str, fix: str) -> Verdict:
    """Return the verdict on a state that works now and is likely to fail later."""
    return Verdict("warning", evidence, fix)


def fault(evidence: str, fix: str, kind: type[IngestdError]) -> Verdict:
    """Return the verdict on a state in which a mapping cannot work; `kind` determines the exit code."""
    return Verdict("fault", evidence, fix, kind.exit_code)


def skipped(evidence: str) -> Verdict:
    """Return the verdict of a check that could not run because of another fault."""
    return Verdict("skipped", evidence)


def refused(error: IngestdError) -> Verdict:
    """Return the fault that an error describes."""
    where = f"{error.where}: " if error.where else ""
    return Verdict("fault", f"{where}{error.what}", error.hint or "remove this cause", error.exit_code)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return the exit code of the first fault, or 0 if there is none."""
    return next((finding.verdict.exit_code for finding in findings if finding.verdict.status == "fault"), 0)


def as_document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings as one JSON document with a stable schema (docs/commands.md)."""
    counts = dict.fromkeys(("ok", "warning", "fault", "skipped"), 0)
    for finding in findings:
        counts[finding.verdict.status] += 1
    return {
        "schema": _SCHEMA,
        "version": __version__,
        "exit_code": exit_code(findings),
        "counts": counts,
        "findings": [finding.as_dict() for finding in findings],
    }
