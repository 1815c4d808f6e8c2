"""The Spark session: applies a function to values as one job, and runs several jobs concurrently.

Invariant: jobs of different mappings share the cores fairly, and one can be cancelled without affecting the others. No
call blocks forever: a JVM that ends or hangs is killed (see `driver`), and a job that exceeds its limit is cancelled.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ingestd.clock import pause
from ingestd.errors import IngestdError
from ingestd.spark.driver import Driver
from ingestd.spark.errors import GATEWAY_ERRORS, EngineLost, JobFailed, JobTimeout, first_line, job_error, job_message
from ingestd.spark.options import SparkOptions
from ingestd.spark.session import Session

A = TypeVar("A")
B = TypeVar("B")

_CHECK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Time limits in seconds: for a job, for an answer of the JVM, and for an orderly stop of Spark."""

    job_seconds: float = SparkOptions().stage_timeout
    silence_seconds: float = SparkOptions().answer_timeout
    stop_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs that share the cores fairly with other groups and are cancelled together; groups may have equal names."""

    name: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def __str__(self) -> str:
        return f"{self.name}-{self.id}"


@dataclass(slots=True, eq=False)  # two jobs of a group may have equal fields
class _Job:
    """A running job, its number of tasks, its age in seconds, and whether it must be cancelled."""

    group: JobGroup
    tasks: int
    age: float = 0.0
    is_overdue: bool = False
    is_cancelled: bool = False


class Engine:
    """A Spark session that runs jobs. While it is still starting, only calls that need its JVM wait for it."""

    def __init__(self, session: Session, limits: EngineLimits | None = None) -> None:
        self._session = session
        self._limits = limits or EngineLimits()
        self._guard = threading.Lock()
        self._jobs: list[_Job] = []
        self._stopped = threading.Event()
        self._started_driver: Driver | None = None
        threading.Thread(target=self._cancel_jobs, name="spark-cancel", daemon=True).start()

    @property
    def has_started(self) -> bool:
        """Whether Spark has started, so that no call waits for it."""
        return self._session.has_started

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at the same time. Waits until Spark has started. Raises EngineLost."""
        return self._session.parallelism()

    @property
    def lost(self) -> EngineLost | None:
        """The error that says why the JVM can no longer be used; None while it starts or can be used."""
        driver = self._started_driver
        return self._session.failure if driver is None else driver.lost

    @property
    def is_busy(self) -> bool:
        """Whether jobs are running."""
        with self._guard:
            return bool(self._jobs)

    @property
    def tasks(self) -> int:
        """The number of tasks of the jobs that are running."""
        with self._guard:
            return sum(job.tasks for job in self._jobs)

    def check(self) -> None:
        """Raise EngineLost if Spark did not start, or if the JVM has ended or has been found to hang."""
        if self._started_driver is not None:
            self._started_driver.check()
        elif self._session.failure is not None:
            raise self._session.failure

    def run(self, group: JobGroup, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """Apply `function` to each item, one task per item. Waits until Spark has started.

        Raises WorkerLost, JobTimeout, JobFailed, or EngineLost if the JVM did not start or has ended.
        """
        with self._job(group, len(items)) as job:
            context = self._session.context()
            self.check()
            try:
                context.setLocalProperty("spark.scheduler.pool", str(group))
                context.setJobGroup(str(group), f"ingestd {group.name}", interruptOnCancel=False)
                return context.parallelize(items, len(items)).map(function).collect()
            except GATEWAY_ERRORS as error:
                raise self._translated(error, job) from error

    def java_command(self) -> tuple[str, list[str]]:
        """Return the class path of the JVM and its options."""
        machine: Any = self._session.context()._jvm
        runtime = machine.java.lang.management.ManagementFactory.getRuntimeMXBean()
        return str(runtime.getClassPath()), [str(option) for option in runtime.getInputArguments()]

    def cancel(self, group: JobGroup) -> None:
        """Cancel the running jobs of a group, for which `run` then raises JobFailed. Returns immediately."""
        with self._guard:
            for job in self._jobs:
                job.is_cancelled |= job.group == group

    def kill(self, reason: str) -> None:
        """Kill the JVM and its child processes; calls in progress raise EngineLost with this reason."""
        if self._session.has_started:
            self._driver().kill(reason)
        else:
            self._session.cancel()

    def stop(self, seconds: float | None = None) -> None:
        """End the session and its processes, and remove its temporary files. Never raises.

        Spark has `seconds`, by default `EngineLimits.stop_seconds`, for an orderly stop.
        """
        self._stopped.set()
        self._session.cancel()
        if self._session.has_started:
            self._driver().stop(self._limits.stop_seconds if seconds is None else seconds)
        self._session.close()

    def _driver(self) -> Driver:
        """Wait until Spark has started, and return the supervision of its JVM. Raises EngineLost."""
        context = self._session.context()
        with self._guard:
            if self._started_driver is None:
                self._started_driver = Driver(context, self._session.launch, self._limits.silence_seconds)
            return self._started_driver

    @contextmanager
    def _job(self, group: JobGroup, tasks: int) -> Iterator[_Job]:
        job = _Job(group, tasks)
        with self._guard:
            self._jobs.append(job)
        try:
            yield job
        finally:
            with self._guard:
                self._jobs.remove(job)

    def _cancel_jobs(self) -> None:
        """Cancel jobs on request or when they exceed their limit, repeatedly until they end.

        Spark ignores the cancellation of a job that it has not started yet, so one request may not be enough.
        """
        # The JVM did not start, or it has ended: `lost` reports it.
        with suppress(*GATEWAY_ERRORS, AttributeError, EngineLost):
            self._driver()
            context = self._session.context()
            while not pause(_CHECK_SECONDS, self._stopped):
                for group in self._groups_to_cancel():
                    context.cancelJobGroup(str(group))

    def _groups_to_cancel(self) -> set[JobGroup]:
        """Add a tick to the age of each job, and return the groups that are overdue or cancelled."""
        with self._guard:
            for job in self._jobs:
                job.age += _CHECK_SECONDS
            overdue = {job.group for job in self._jobs if job.age > self._limits.job_seconds}
            for job in self._jobs:
                # The transactions of a group commit in order, so the result of a job after a failed one is useless.
                job.is_overdue |= job.group in overdue
            return {job.group for job in self._jobs if job.is_cancelled or job.is_overdue}

    def _translated(self, error: Exception, job: _Job) -> IngestdError:
        where = f"Spark job of {job.group.name}"
        text = job_message(error)
        if text is None:
            return self._driver().kill(self._driver().exit_reason() or first_line(error))
        if (lost := self.lost) is not None:
            return lost
        if job.is_overdue:
            return JobTimeout(
                f"the job took longer than {self._limits.job_seconds:.0f} s and was cancelled",
                where=where,
                hint="raise spark.stage_timeout, or lower commit.rows and commit.bytes; check whether a worker hangs",
            )
        if job.is_cancelled:
            return JobFailed("the job was cancelled", where=where)
        return job_error(text, where)
