"""Runs all checks, several at once, each in a thread of its own with a time limit.

Invariant: a check that hangs or a service that does not answer delays the other checks by at most one time limit.
Findings are in the same order in every run: machine, metastore, compaction, then Kafka, table and lease per mapping.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ingestd.clock import Deadline
from ingestd.config.document import Document
from ingestd.doctor import compaction, login, machine, mapping, table
from ingestd.doctor import metastore as service
from ingestd.doctor.finding import Check, Finding, Verdict, skipped
from ingestd.doctor.mapping import Examined
from ingestd.doctor.metastore import Service
from ingestd.errors import Unavailable
from ingestd.hive.client import Metastore
from ingestd.hive.options import MetastoreOptions

T = TypeVar("T")
# The properties that determine the connections to Kafka (Examined.cluster).
_Cluster = tuple[tuple[str, str], ...]
_AT_ONCE = 8
_DEFECT = 70  # the exit code of internal errors
# The metastore has this part of a check's time limit to answer one call.
_CALL_PART = 0.4
_NO_METASTORE = "not examined, because the metastore does not answer"
_NO_KAFKA = "not examined, because Kafka does not answer"


@dataclass(frozen=True, slots=True)
class _Job:
    """A check of one subject; `run` yields the findings."""

    check: str
    subject: str
    run: Callable[[], Iterable[Finding]]


class _Running:
    """A job in a daemon thread. A thread that hangs is abandoned; it ends with the process."""

    def __init__(self, job: _Job, limit_seconds: float) -> None:
        self._job = job
        self._seconds = limit_seconds
        self._limit = Deadline.after(limit_seconds)
        self._findings: list[Finding] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._work, name=f"doctor {job.check}", daemon=True).start()

    def _work(self) -> None:
        try:
            self._findings.extend(self._job.run())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._done.set()

    def result(self) -> list[Finding]:
        """Wait for the findings; return a fault instead after the time limit, or if the check itself is defective."""
        if not self._done.wait(self._limit.left):
            text = f"no result after {self._seconds:,.0f} s"
            fix = "check whether the service or the file system hangs; --timeout extends the limit"
            return [self._fault(text, fix, Unavailable.exit_code)]
        if self._error is not None:
            # The message may contain anything, even secrets. The place is enough to find the defect.
            place = traceback.extract_tb(self._error.__traceback__)[-1]
            text = (
                f"the check failed with {type(self._error).__name__} in {place.name}, {place.filename}:{place.lineno}"
            )
            return [*self._findings, self._fault(text, "report this as a defect of ingestd", _DEFECT)]
        return self._findings

    def _fault(self, evidence: str, fix: str, code: int) -> Finding:
        return Finding(self._job.check, self._job.subject, Verdict("fault", evidence, fix, code))


def examine_machine(mappings: int) -> list[Finding]:
    """Return the findings about this machine. `mappings` is the number of mappings in the configuration."""
    return [finding for check in machine.CHECKS for finding in check.examine(mappings, "this machine")]


def examine(document: Document, *, limit_seconds: float = 20.0) -> Iterator[Finding]:
    """Run all checks and yield each finding as soon as it and those before it are complete.

    `limit_seconds` is the time limit of each check.
    """
    yield from examine_machine(len(document.mappings))
    yield from _examine_services(document, limit_seconds)


def _examine_services(document: Document, limit_seconds: float) -> Iterator[Finding]:
    """Examine first whether the services answer, then everything that needs those that do."""
    options = replace(document.metastore, timeout=min(document.metastore.timeout, limit_seconds * _CALL_PART))
    metastore = options.connect()
    members = {f"metastore {host}:{port}": _member(options, host, port) for host, port in metastore.addresses}
    mappings = [Examined(one, metastore) for one in document.mappings]
    clusters = _clusters(mappings)
    first = [_job(check, options, "metastore login") for check in login.CHECKS]
    first += [_job(service.VERSION, member, subject) for subject, member in members.items()]
    first += [
        _job(mapping.CLUSTER, one, clusters[one.cluster]) for one in {one.cluster: one for one in mappings}.values()
    ]
    found = _tolerant(list(_run(first, limit_seconds)), set(members))
    yield from found
    down = {finding.subject for finding in found if finding.check in _ANSWERS and finding.verdict.status != "ok"}
    answering = [member for subject, member in members.items() if subject not in down]
    examined = Service(metastore, answering, lambda most: replace(options, connections=most).connect())
    yield from _without_repetition(_run(_jobs(examined, mappings, clusters, down), limit_seconds))
    for client in (metastore, *members.values()):
        client.close()


# The checks whose verdict says whether a service answers.
_ANSWERS = (service.VERSION.name, mapping.CLUSTER.name)


def _member(options: MetastoreOptions, host: str, port: int) -> Metastore:
    address = f"[{host}]" if ":" in host else host
    return replace(options, uri=f"thrift://{address}:{port}").connect()


def _clusters(mappings: Sequence[Examined]) -> dict[_Cluster, str]:
    """Return the name of each combination of brokers and credentials. The first mapping that has it is in the name."""
    names: dict[_Cluster, str] = {}
    for one in mappings:
        name = f"kafka {one.options.kafka['bootstrap.servers']}"
        names.setdefault(one.cluster, f"{name} of mapping {one.options.name}" if name in names.values() else name)
    return names


def _tolerant(found: Sequence[Finding], members: set[str]) -> list[Finding]:
    """Return the findings; a missing address of the metastore is a warning if another address answers."""
    if not any(one.subject in members and one.verdict.status == "ok" for one in found):
        return list(found)
    return [
        replace(one, verdict=replace(one.verdict, status="warning", exit_code=0))
        if one.subject in members and one.verdict.exit_code == Unavailable.exit_code
        else one
        for one in found
    ]


def _without_repetition(found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings; a check that failed with the fault of an earlier check of its subject counts as skipped."""
    earlier: dict[tuple[str, str], str] = {}
    for one in found:
        if one.verdict.status == "fault":
            cause = earlier.setdefault((one.subject, one.verdict.evidence), one.check)
            if cause != one.check:
                yield replace(one, verdict=skipped(f"not examined, because of the fault that {cause} found"))
                continue
        yield one


def _jobs(
    metastore: Service, mappings: Sequence[Examined], clusters: Mapping[_Cluster, str], down: set[str]
) -> Iterator[_Job]:
    is_up = bool(metastore.members)
    for of_service in (*service.CHECKS, *compaction.CHECKS):
        yield _job(of_service, metastore, "metastore") if is_up else _skip(of_service, "metastore", _NO_METASTORE)
    for one in mappings:
        subject = f"mapping {one.options.name}"
        no_kafka = _NO_KAFKA if clusters[one.cluster] in down else ""
        no_metastore = "" if is_up else _NO_METASTORE
        for checks, missing in (
            (mapping.KAFKA_CHECKS, no_kafka),
            (mapping.RETENTION_CHECKS, no_kafka or no_metastore),
            (mapping.LEASE_CHECKS, no_metastore),
            (table.CHECKS, no_metastore),
        ):
            for check in checks:
                yield _skip(check, subject, missing) if missing else _job(check, one, subject)


def _job(check: Check[T], examined: T, subject: str) -> _Job:
    return _Job(check.name, subject, partial(check.examine, examined, subject))


def _skip(check: Check[T], subject: str, missing: str) -> _Job:
    return _Job(check.name, subject, lambda: [Finding(check.name, subject, skipped(missing))])


def _run(jobs: Iterable[_Job], limit_seconds: float) -> Iterator[Finding]:
    """Run the jobs, several at once, and yield their findings in order."""
    running: deque[_Running] = deque()
    for job in jobs:
        if len(running) == _AT_ONCE:
            yield from running.popleft().result()
        running.append(_Running(job, limit_seconds))
    while running:
        yield from running.popleft().result()
