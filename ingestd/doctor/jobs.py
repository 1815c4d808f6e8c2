"""Runs checks concurrently, each in a thread of its own with a time limit.

Invariant: a check that hangs, fails or is defective does not stop the others. It delays them by at most one time limit,
and all checks that hang together delay the examination by a few time limits, however many checks there are.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ingestd.clock import Deadline, monotonic
from ingestd.doctor.finding import Check, Finding, Verdict, skipped
from ingestd.errors import Unavailable

T = TypeVar("T")
_AT_ONCE = 8
# A check is slow if it takes longer than this part of its time limit.
_SLOW_PART = 0.35
_MOST_SLOW = 16
_DEFECT = 70  # the exit code of internal errors


@dataclass(frozen=True, slots=True)
class Job:
    """A check of one subject; `run` yields the findings."""

    check: str
    subject: str
    run: Callable[[], Iterable[Finding]]

    def skipped(self, reason: str) -> Finding:
        """Return the finding of a job that does not run."""
        return Finding(self.check, self.subject, skipped(reason))


def job(check: Check[T], examined: T, subject: str) -> Job:
    """Return the job that examines one object."""
    return Job(check.name, subject, partial(check.examine, examined, subject))


def skip(check: Check[T], subject: str, reason: str) -> Job:
    """Return a job that only reports why its check is skipped."""
    left_out = Job(check.name, subject, tuple)
    return Job(check.name, subject, lambda: [left_out.skipped(reason)])


def run(jobs: Iterable[Job], limit_seconds: float) -> Iterator[Finding]:
    """Run the jobs, several of them concurrently, and yield their findings in order.

    After 16 slow checks, for example because a service hangs, the others are skipped.
    """
    running: deque[_Running] = deque()
    slow = 0
    for next_job in jobs:
        if slow < _MOST_SLOW and len(running) == _AT_ONCE:
            slow += running[0].is_slow()
            yield from running.popleft().result()
        if slow < _MOST_SLOW:
            running.append(_Running(next_job, limit_seconds))
            continue
        while running:
            yield from running.popleft().result()
        yield next_job.skipped(f"not examined, because {_MOST_SLOW} checks were slow or had no result")
    while running:
        yield from running.popleft().result()


class _Running:
    """A job in a daemon thread. A thread that hangs is abandoned; it ends with the process."""

    def __init__(self, task: Job, limit_seconds: float) -> None:
        self._job = task
        self._seconds = limit_seconds
        self._limit = Deadline.after(limit_seconds)
        self._took = limit_seconds
        self._findings: list[Finding] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._work, name=f"doctor {task.check}", daemon=True).start()

    def _work(self) -> None:
        began = monotonic()
        try:
            self._findings.extend(self._job.run())
        except BaseException as error:  # noqa: BLE001 - `result` reports it
            self._error = error
        self._took = monotonic() - began
        self._done.set()

    def is_slow(self) -> bool:
        """Wait for the end of the job, or for its time limit, and return whether it took long."""
        self._done.wait(self._limit.left)
        return self._took > _SLOW_PART * self._seconds

    def result(self) -> list[Finding]:
        """Wait for the findings; return a fault instead after the time limit, or if the check itself is defective."""
        if not self._done.wait(self._limit.left):
            text = f"no result after {self._seconds:,.0f} s"
            fix = "check whether the service or the file system hangs; --timeout extends the limit"
            return [self._fault(text, fix, Unavailable.exit_code)]
        if self._error is not None:
            # The message may contain anything, even secrets. The place is enough to find the defect.
            place = traceback.extract_tb(self._error.__traceback__)[-1]
            kind = type(self._error).__name__
            text = f"the check failed with {kind} in {place.name}, {place.filename}:{place.lineno}"
            return [*self._findings, self._fault(text, "report this as a defect of ingestd", _DEFECT)]
        return self._findings

    def _fault(self, evidence: str, fix: str, code: int) -> Finding:
        return Finding(self._job.check, self._job.subject, Verdict("fault", evidence, fix, code))
