"""The Spark session: applies a function to values as one job, and runs several jobs concurrently.

Invariant: jobs of different mappings share the cores fairly, and one can be cancelled without affecting the others. No
call blocks forever: a JVM that ends or hangs is killed (see `driver`), and a job that exceeds its limit is cancelled.
If the job does not end, the JVM is killed too, because a lack of memory may have ended a thread of Spark.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ingestd.clock import Deadline, pause
from ingestd.errors import IngestdError
from ingestd.schema import Column
from ingestd.spark.counter import Count, Counter, Sum
from ingestd.spark.driver import Driver
from ingestd.spark.errors import (
    GATEWAY_ERRORS,
    STOPPED,
    EngineLost,
    JobCancelled,
    JobTimeout,
    NoExecutors,
    calling,
    first_line,
    job_error,
    job_message,
)
from ingestd.spark.exchange import exchange
from ingestd.spark.options import SparkOptions
from ingestd.spark.query import Exchange, Query, Read, Write
from ingestd.spark.results import collected
from ingestd.spark.same_version import SameVersion
from ingestd.spark.session import Session
from ingestd.spark.shared import Shared
from ingestd.spark.slots import tasks_per_job
from ingestd.spark.standalone import is_forgotten

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext, StatusTracker

    from ingestd.spark.queries import Queries

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
V = TypeVar("V")
W = TypeVar("W")

_CHECK_SECONDS = 0.25
_TASKS_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Time limits in seconds: for a job, for an answer of the JVM, and for an orderly stop of Spark.

    `executor_seconds` limits the time that a job waits while there is no executor, and `cancel_seconds` the time in
    which a job ends that is cancelled.
    """

    job_seconds: float = SparkOptions().stage_timeout
    executor_seconds: float = SparkOptions().executor_timeout
    silence_seconds: float = SparkOptions().answer_timeout
    cancel_seconds: float = 60.0
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
    """A running job, its number of tasks, and why it must be cancelled.

    `age` is in seconds, as are its limit `seconds`, `starving`, the time for which there has been no executor, and
    `ending`, the time since it was cancelled.
    """

    group: JobGroup
    tasks: int
    seconds: float
    age: float = 0.0
    starving: float = 0.0
    ending: float = 0.0
    is_overdue: bool = False
    is_starved: bool = False
    is_cancelled: bool = False

    @property
    def must_end(self) -> bool:
        """Whether the job must be cancelled."""
        return self.is_cancelled or self.is_overdue or self.is_starved


class Engine:
    """A Spark session that runs jobs. While it is still starting, only calls that need its JVM wait for it."""

    def __init__(self, session: Session, limits: EngineLimits | None = None) -> None:
        self._session = session
        self._limits = limits or EngineLimits()
        self._guard = threading.Lock()
        self._jobs: list[_Job] = []
        self._stopped = threading.Event()
        self._started_driver: Driver | None = None
        self._known_queries: Queries | None = None
        for work in (self._watch_jobs, self._cancel_jobs):
            threading.Thread(target=work, name=f"spark{work.__name__}", daemon=True).start()

    @property
    def has_started(self) -> bool:
        """Whether Spark has started, so that no call waits for it."""
        return self._session.has_started

    @property
    def parallelism(self) -> int:
        """The largest useful number of tasks of a job. Waits until Spark has started. Raises EngineLost."""
        driver = self._driver()
        driver.wait_for_probe()
        return tasks_per_job(driver.slots, self._session.launch.properties)

    @property
    def slots(self) -> int:
        """The number of tasks that the live executors run at the same time; 0 until Spark has started."""
        driver = self._started_driver
        return 0 if driver is None else driver.slots

    @property
    def lost(self) -> EngineLost | None:
        """The error that says why the JVM can no longer be used; None while it starts or can be used."""
        driver = self._started_driver
        return self._session.failure if driver is None else driver.lost

    @property
    def delay(self) -> EngineLost | None:
        """What Spark waits for, if it has not started for some seconds; None before and once it has started."""
        return self._session.delay

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

    def run(self, group: JobGroup, function: Callable[[A], B], items: Sequence[A], *, seconds: float = 0.0) -> list[B]:
        """Apply `function` to each item, one task per item. Waits until Spark has started.

        The time limit of the job is `seconds` or, if that is longer, `EngineLimits.job_seconds`. Raises WorkerLost,
        JobTimeout, NoExecutors, JobFailed, or EngineLost if the JVM did not start or has ended.
        """
        with self._started(_Job(group, len(items), max(seconds, self._limits.job_seconds))) as context:
            return collected(context.parallelize(items, len(items)).map(SameVersion(function)))

    def query(
        self, group: JobGroup, query: Query, read: Read[A, R], write: Write[A, W], items: Sequence[A]
    ) -> list[tuple[R | None, W]]:
        """Run a query between two functions, one task per item (`Queries.run`). Waits until Spark has started.

        Raises the errors of `run`, and QueryFailed if the query cannot be evaluated for a row.
        """
        with self._started(_Job(group, len(items), self._limits.job_seconds)) as context:
            return self._queries(context).run(query, read, write, items)

    def exchange_result(
        self, group: JobGroup, query: Query, read: Read[A, R], moved: Exchange[A, V, B], items: Sequence[A]
    ) -> tuple[list[R | None], list[B]]:
        """Run a query, one task per item, and move its result to other tasks (`Queries.exchange`).

        Returns what `read` has reported for each item, and what the receivers have returned. Raises the errors of
        `query`.
        """
        with self._started(_Job(group, max(len(items), moved.receivers), self._limits.job_seconds)) as context:
            return self._queries(context).exchange(query, read, moved, items)

    def exchange(
        self,
        group: JobGroup,
        send: Callable[[A], Iterable[tuple[int, V]]],
        receive: Callable[[tuple[int, Iterable[V]]], B],
        items: Sequence[A],
        receivers: int,
    ) -> list[B]:
        """Apply `send` to each item, and `receive` to the number of each receiver, from 0, and the values sent to it.

        `send` yields the number of a receiver with each value. Spark stores the values in its local directories until
        all have been received. Raises the errors of `run`.
        """
        with self._started(_Job(group, max(len(items), receivers), self._limits.job_seconds)) as context:
            return exchange(context.parallelize(items, len(items)), send, receive, receivers)

    def examine(self, query: Query) -> tuple[Column, ...]:
        """Return the columns of the result of a query. Waits until Spark has started.

        Raises ConfigError for a query that is invalid or not allowed, and EngineLost.
        """
        context = self._session.context()
        self.check()
        try:
            with calling(context):
                return self._queries(context).examine(query)
        except GATEWAY_ERRORS as error:
            raise self._driver().kill(self._driver().exit_reason() or first_line(error)) from error

    def share(self, value: A) -> Shared[A]:
        """Prepare a value that is secret, or the same for many tasks. Call `release` when no job uses it any more."""
        return Shared(self._broadcast, value)

    def counter(self) -> Counter:
        """Return a counter for the tasks of one job. Waits until Spark has started. Raises EngineLost."""
        context = self._session.context()
        self.check()
        return Counter(context.accumulator(Count(0, 0), Sum()))

    def java_command(self) -> tuple[str, list[str]]:
        """Return the class path of the JVM and its options."""
        machine: Any = self._session.context()._jvm
        runtime = machine.java.lang.management.ManagementFactory.getRuntimeMXBean()
        return str(runtime.getClassPath()), [str(option) for option in runtime.getInputArguments()]

    def cancel(self, group: JobGroup) -> None:
        """Cancel the running jobs of a group, for which `run` then raises JobCancelled. Returns immediately."""
        with self._guard:
            for job in self._jobs:
                job.is_cancelled |= job.group == group

    def await_tasks(self, group: JobGroup) -> None:
        """Wait until no task of the jobs of a group runs, for at most `EngineLimits.cancel_seconds`, or until `stop`.

        Spark ends a job that fails or is cancelled at once, and kills its tasks some seconds later. Without the JVM,
        there are no tasks, or nobody knows of them.
        """
        deadline = Deadline.after(self._limits.cancel_seconds)
        with suppress(*GATEWAY_ERRORS, EngineLost):
            context = self._session.context()
            with calling(context):
                tracker = context.statusTracker()
                while not deadline.passed and _has_tasks(tracker, group):
                    if pause(_TASKS_SECONDS, self._stopped):
                        return

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

    def _queries(self, context: SparkContext) -> Queries:
        """Return the session of queries. Only a query imports PySpark's SQL and pandas, which it needs."""
        from ingestd.spark.queries import Queries  # noqa: PLC0415 - see above

        with self._guard:
            if self._known_queries is None:
                self._known_queries = Queries(context)
            return self._known_queries

    def _driver(self) -> Driver:
        """Wait until Spark has started, and return the supervision of its JVM. Raises EngineLost."""
        context = self._session.context()
        with self._guard:
            if self._started_driver is None:
                self._started_driver = Driver(context, self._session.launch, self._limits.silence_seconds)
            return self._started_driver

    def _broadcast(self, value: A) -> Broadcast[A]:
        context = self._session.context()
        self.check()
        try:
            with calling(context):
                return context.broadcast(value)
        except GATEWAY_ERRORS as error:
            raise self._driver().kill(self._driver().exit_reason() or first_line(error)) from error

    @contextmanager
    def _started(self, job: _Job) -> Iterator[SparkContext]:
        """Count a job as running during the block, which starts it with the context. Translates its exceptions."""
        with self._job(job):
            context = self._session.context()
            self.check()
            try:
                with calling(context):
                    context.setLocalProperty("spark.scheduler.pool", str(job.group))
                    context.setJobGroup(str(job.group), f"ingestd {job.group.name}", interruptOnCancel=False)
                    yield context
            except GATEWAY_ERRORS as error:
                raise self._translated(error, job) from error

    @contextmanager
    def _job(self, job: _Job) -> Iterator[_Job]:
        with self._guard:
            self._jobs.append(job)
        try:
            yield job
        finally:
            with self._guard:
                self._jobs.remove(job)

    def _watch_jobs(self) -> None:
        """Find the jobs that must be cancelled, and kill the JVM if one does not end. Calls the JVM only to kill it."""
        with suppress(EngineLost):  # `lost` reports it
            driver = self._driver()
            while not pause(_CHECK_SECONDS, self._stopped):
                if self._tick():
                    driver.kill(f"a job has not ended {self._limits.cancel_seconds:.0f} s after it was cancelled")
                    return

    def _cancel_jobs(self) -> None:
        """Cancel jobs repeatedly until they end.

        Spark ignores the cancellation of a job that it has not started yet, so one request may not be enough.
        """
        # The JVM did not start, or it has ended: `lost` reports it.
        with suppress(*GATEWAY_ERRORS, EngineLost):
            self._driver()
            context = self._session.context()
            while not pause(_CHECK_SECONDS, self._stopped):
                with self._guard:
                    groups = {job.group for job in self._jobs if job.must_end}
                with calling(context):
                    for group in groups:
                        context.cancelJobGroup(str(group))

    def _tick(self) -> bool:
        """Add a tick to the age of each job, note which must end, and return whether one has not ended in time."""
        has_executors = self.slots > 0
        with self._guard:
            for job in self._jobs:
                job.age += _CHECK_SECONDS
                job.starving = 0.0 if has_executors else job.starving + _CHECK_SECONDS
            overdue = {job.group for job in self._jobs if job.age > job.seconds}
            starved = {job.group for job in self._jobs if job.starving > self._limits.executor_seconds}
            for job in self._jobs:
                # The transactions of a group commit in order, so the result of a job after a failed one is useless.
                job.is_overdue |= job.group in overdue
                job.is_starved |= job.group in starved
                job.ending += _CHECK_SECONDS if job.must_end else 0.0
            return any(job.ending > self._limits.cancel_seconds for job in self._jobs)

    def _translated(self, error: Exception, job: _Job) -> IngestdError:
        where = f"Spark job of {job.group.name}"
        text = job_message(error)
        driver = self._driver()
        has_stopped = driver.has_stopped()  # then the message is about whatever the job was doing
        if text is None or has_stopped:
            return driver.kill(driver.exit_reason() or (STOPPED if has_stopped else first_line(error)))
        if (lost := self.lost) is not None:
            return lost
        if job.is_overdue:
            return JobTimeout(
                f"the job took longer than {job.seconds:.0f} s and was cancelled",
                where=where,
                hint="raise spark.stage_timeout, or lower commit.rows and commit.bytes; check whether a worker hangs,"
                " or a quota of Kafka delays the records",
            )
        if job.is_cancelled:
            return JobCancelled("the job was cancelled", where=where)
        if job.is_starved:
            return self._starved()
        return job_error(text, where)

    def _starved(self) -> IngestdError:
        """Return the error of jobs that have waited too long for an executor."""
        master = self._session.launch.master
        if is_forgotten(self._session.context(), master):
            return self._driver().kill("the Spark master was restarted and does not know this application any more")
        return NoExecutors(
            f"Spark has had no executor for {self._limits.executor_seconds:.0f} s",
            where=f"spark.master {master}",
            hint="check that the cluster runs, has free cores and memory, and that its machines reach the driver"
            " (spark.driver.host); the logs of the executors say why they ended",
        )


def _has_tasks(tracker: StatusTracker, group: JobGroup) -> bool:
    """Return whether tasks of a group run, or Spark may not know it yet, because the end of a job is not processed."""
    infos = map(tracker.getJobInfo, tracker.getJobIdsForGroup(str(group)))
    jobs = [job for job in infos if job is not None]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    is_running = any(job.status == "RUNNING" for job in jobs)
    return is_running or any(stage.numActiveTasks for stage in stages if stage is not None)
