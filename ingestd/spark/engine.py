"""The Spark session: applies a function to values as one job, and runs several jobs concurrently.

Invariant: jobs of different mappings share the cores fairly, and one can be cancelled without affecting the others. No
call blocks forever: a JVM that ends or hangs is killed (see `driver`), and a job that exceeds its limit is cancelled.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ingestd.clock import pause
from ingestd.errors import IngestdError
from ingestd.java import find_java
from ingestd.spark.archive import archive_options
from ingestd.spark.driver import Driver
from ingestd.spark.errors import GATEWAY_ERRORS, EngineLost, JobFailed, JobTimeout, first_line, job_error, job_message
from ingestd.spark.launch import launch, spark_properties
from ingestd.spark.options import SparkOptions
from ingestd.spark.scratch import Scratch

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
    """A running Spark session. `master` is a Spark master URL such as `local[*]`; `conf` overrides ingestd's defaults.

    Raises EngineLost if Spark does not start, or if `cancelled` is set before it has started; ConfigError if no Java is
    found.
    """

    def __init__(
        self,
        master: str,
        conf: Mapping[str, str],
        limits: EngineLimits | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._limits = limits or EngineLimits()
        self._guard = threading.Lock()
        self._jobs: list[_Job] = []
        self._stopped = threading.Event()
        try:
            self._scratch = Scratch()
        except OSError as error:
            raise EngineLost(f"cannot create a temporary directory: {error}", hint="check TMPDIR") from error
        try:
            java = find_java()
            properties = spark_properties(master, conf, self._scratch.path, archive_options(java))
            cancelled = cancelled or threading.Event()
            self._context = launch(java, properties, self._scratch.path, cancelled, conf.values())
        except BaseException:
            self._scratch.remove()
            raise
        self._driver = Driver(self._context, self._limits.silence_seconds)
        self.parallelism = self._context.defaultParallelism
        threading.Thread(target=self._cancel_jobs, name="spark-cancel", daemon=True).start()

    @property
    def lost(self) -> EngineLost | None:
        """The error that says why the JVM can no longer be used; None while it can be used."""
        return self._driver.lost

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
        """Raise EngineLost if the JVM has ended or has been found to hang."""
        self._driver.check()

    def run(self, group: JobGroup, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """Apply `function` to each item, one task per item.

        Raises WorkerLost, JobTimeout, JobFailed, or EngineLost if the JVM has ended.
        """
        with self._job(group, len(items)) as job:
            self.check()
            try:
                self._context.setLocalProperty("spark.scheduler.pool", str(group))
                self._context.setJobGroup(str(group), f"ingestd {group.name}", interruptOnCancel=False)
                return self._context.parallelize(items, len(items)).map(function).collect()
            except GATEWAY_ERRORS as error:
                raise self._translated(error, job) from error

    def java_command(self) -> tuple[str, list[str]]:
        """Return the class path of the JVM and its options."""
        machine: Any = self._context._jvm
        runtime = machine.java.lang.management.ManagementFactory.getRuntimeMXBean()
        return str(runtime.getClassPath()), [str(option) for option in runtime.getInputArguments()]

    def cancel(self, group: JobGroup) -> None:
        """Cancel the running jobs of a group, for which `run` then raises JobFailed. Returns immediately."""
        with self._guard:
            for job in self._jobs:
                job.is_cancelled |= job.group == group

    def kill(self, reason: str) -> None:
        """Kill the JVM and its child processes; calls in progress raise EngineLost with this reason."""
        self._driver.kill(reason)

    def stop(self) -> None:
        """End the session and its processes, and remove its temporary files. Never raises."""
        self._stopped.set()
        self._driver.stop(self._limits.stop_seconds)
        self._scratch.remove()

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
        with suppress(*GATEWAY_ERRORS, AttributeError):  # the JVM has ended; the driver's supervision reports it
            while not pause(_CHECK_SECONDS, self._stopped):
                for group in self._groups_to_cancel():
                    self._context.cancelJobGroup(str(group))

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
            return self._driver.kill(self._driver.exit_reason() or first_line(error))
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
