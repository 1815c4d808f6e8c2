"""One Spark session, which runs a function over a few values as one job, several jobs side by side.

Invariant: jobs of different mappings share the cores fairly and one can be cancelled without touching the others. No
call of this module waits for ever: a driver JVM that died or stopped answering is noticed by a thread that never talks
to it, killed, and reported as EngineLost by every call; a job beyond its limit is cancelled.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, TypeVar

import psutil
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from ingestd.clock import pause
from ingestd.errors import IngestdError, Reaction, masked
from ingestd.spark.launch import kill_family, launch
from ingestd.spark.scratch import Scratch

A = TypeVar("A")
B = TypeVar("B")


_LOOK_SECONDS = 0.25
_PROBE_SECONDS = 1.0


class JobFailed(IngestdError):
    """A Spark job failed for a reason that ingestd does not know; `what` holds the innermost error."""

    exit_code = 70


class WorkerLost(JobFailed):
    """A process that ran a task of the job ended: killed, by the kernel for lack of memory or by a person."""

    reaction = Reaction.REWIND


class JobTimeout(JobFailed):
    """The job took longer than `EngineLimits.job_seconds` and was cancelled."""

    reaction = Reaction.REWIND


class EngineLost(IngestdError):
    """The Spark driver's JVM ended or does not answer. Only a new process can replace it."""

    exit_code = 70


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Seconds that a job may take, that the JVM may be silent, and that an orderly stop of Spark may take."""

    job_seconds: float = 900.0
    silence_seconds: float = 30.0
    stop_seconds: float = 10.0


@dataclass(slots=True, eq=False)  # two jobs of a group may look alike
class _Job:
    """A running job, its age in seconds, and whether it is to be cancelled."""

    group: str
    age: float = 0.0
    is_overdue: bool = False
    is_cancelled: bool = False


class Engine:
    """A running Spark session. `master` as Spark writes it, such as `local[*]`; `conf` wins over our defaults.

    Raises EngineLost when Spark does not start, and when `unwanted` is set before it has.
    """

    def __init__(
        self,
        master: str,
        conf: Mapping[str, str],
        limits: EngineLimits | None = None,
        unwanted: threading.Event | None = None,
    ) -> None:
        self._limits = limits or EngineLimits()
        self._guard = threading.Lock()
        self._jobs: list[_Job] = []
        self._lost_because = ""
        self._unanswered = 0.0
        self._ended = threading.Event()
        try:
            self._scratch = Scratch()
        except OSError as error:
            raise EngineLost(
                f"no temporary folder can be made: {error}", hint="see the environment's TMPDIR"
            ) from error
        try:
            self._context = _start(master, conf, self._scratch.path, unwanted or threading.Event())
        except BaseException:
            self._scratch.remove()
            raise
        self._process: Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
        self.parallelism = self._context.defaultParallelism
        for work in (self._watch, self._probe, self._carry_out_cancels):
            threading.Thread(target=work, name=f"spark{work.__name__}", daemon=True).start()

    @property
    def lost(self) -> EngineLost | None:
        """Why the JVM cannot be used any more; None as long as it can."""
        return self._as_error() if self._lost_because else None

    @property
    def is_busy(self) -> bool:
        """Whether jobs are running."""
        with self._guard:
            return bool(self._jobs)

    def check(self) -> None:
        """Raise EngineLost when the JVM is known to be gone or silent."""
        if self._process is not None and self._process.poll() is not None:
            self._lose(self._how_it_ended())
        if (lost := self.lost) is not None:
            raise lost

    def run(self, group: str, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """`function` of each item, each as one task; `group` names the job for fair shares and for `cancel`.

        Raises WorkerLost, JobTimeout, JobFailed, or EngineLost when the JVM is gone.
        """
        with self._job(group) as job:
            self.check()
            try:
                self._context.setLocalProperty("spark.scheduler.pool", group)
                self._context.setJobGroup(group, f"ingestd {group}", interruptOnCancel=False)
                return self._context.parallelize(items, len(items)).map(function).collect()
            except (Py4JError, OSError, EOFError, RuntimeError) as error:
                raise self._translated(error, job) from error

    def cancel(self, group: str) -> None:
        """Cancel the running jobs of a group; their `run` raises JobFailed. Returns at once."""
        with self._guard:
            for job in self._jobs:
                job.is_cancelled |= job.group == group

    def kill(self, reason: str) -> None:
        """End the JVM and all its processes with SIGKILL; calls in progress raise EngineLost with this reason."""
        self._lose(reason)

    def stop(self) -> None:
        """End the session and its processes, and remove its temporary files; never raises."""
        if not self._lost_because:
            self._ended.set()
            stopping = threading.Thread(target=self._stop_context, name="spark-stop", daemon=True)
            stopping.start()
            stopping.join(self._limits.stop_seconds)
        self._ended.set()
        self._kill_processes()
        self._scratch.remove()

    def _stop_context(self) -> None:
        try:
            self._context.stop()
        except (Py4JError, OSError, EOFError, RuntimeError):
            return  # `stop` kills what is left

    @contextmanager
    def _job(self, group: str) -> Iterator[_Job]:
        job = _Job(group)
        with self._guard:
            self._jobs.append(job)
        try:
            yield job
        finally:
            with self._guard:
                self._jobs.remove(job)

    # --- the threads that watch the JVM

    def _watch(self) -> None:
        """Notice what takes too long. Only time in which this process runs itself counts: it may be frozen as well."""
        while not pause(_LOOK_SECONDS, self._ended):
            if self._process is not None and self._process.poll() is not None:
                self._lose(self._how_it_ended())
                return
            self._unanswered += _LOOK_SECONDS
            if self._unanswered > self._limits.silence_seconds:
                self._lose(f"it has not answered for {self._limits.silence_seconds:.0f} s")
                return
            self._look_at_jobs()

    def _look_at_jobs(self) -> None:
        with self._guard:
            for job in self._jobs:
                job.age += _LOOK_SECONDS
            overdue = {job.group for job in self._jobs if job.age > self._limits.job_seconds}
            for job in self._jobs:
                # Transactions of a group follow each other: without this job those that come after it are in vain.
                job.is_overdue |= job.group in overdue

    def _probe(self) -> None:
        """Ask the JVM something small again and again; this thread may wait for the answer for ever."""
        while not pause(_PROBE_SECONDS, self._ended):
            try:
                is_stopped = self._context._jsc.sc().isStopped()
            except (Py4JError, OSError, EOFError, AttributeError) as error:
                if not self._ended.is_set():
                    self._lose(self._how_it_ended() or _first_line(error))
                return
            self._unanswered = 0.0
            if is_stopped and not self._ended.is_set():
                self._lose("Spark stopped itself")
                return

    def _carry_out_cancels(self) -> None:
        """Cancel jobs again until they end: one that is cancelled before Spark knows it would run on."""
        while not pause(_LOOK_SECONDS, self._ended):
            with self._guard:
                groups = {job.group for job in self._jobs if job.is_cancelled or job.is_overdue}
            try:
                for group in groups:
                    self._context.cancelJobGroup(group)
            except (Py4JError, OSError, EOFError, AttributeError):
                return  # the JVM is gone, which `_watch` reports

    # --- errors

    def _translated(self, error: Exception, job: _Job) -> IngestdError:
        where = f"spark job of {job.group}"
        text = _message(error)
        if text is None or _SHUT_DOWN in text:
            return self._lose(self._how_it_ended() or _first_line(error))
        if (lost := self.lost) is not None:
            return lost
        if job.is_overdue:
            return JobTimeout(
                f"the job was cancelled: it took longer than {self._limits.job_seconds:.0f} s",
                where=where,
                hint="raise spark.stage_timeout or lower commit.rows and commit.bytes; see whether a worker hangs",
            )
        if job.is_cancelled:
            return JobFailed("the job was cancelled", where=where)
        what = innermost(text)
        if _TRACE not in text and any(words in text for words in _WORKER_DIED):
            return WorkerLost("a process that ran tasks of the job ended unexpectedly", where=where)
        return WorkerLost(what, where=where) if "MemoryError" in what else JobFailed(what, where=where)

    def _how_it_ended(self) -> str:
        """`exit code 1` or `signal 9`; '' while it runs. A process whose sockets are closed may take a moment."""
        if self._process is None:
            return ""
        try:
            code = self._process.wait(1.0)
        except TimeoutExpired:
            return ""
        return f"it ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"

    def _lose(self, reason: str) -> EngineLost:
        with self._guard:
            self._lost_because = self._lost_because or reason
        # Every call that waits for the JVM ends with it.
        self._kill_processes()
        return self._as_error()

    def _as_error(self) -> EngineLost:
        pid = f" (process {self._process.pid})" if self._process is not None else ""
        return EngineLost(
            f"the Spark driver's JVM cannot be used any more: {self._lost_because}",
            where=f"spark.master {self._context.master}{pid}",
            hint="restart ingestd; look at the kernel's log for its OOM killer, and at spark.driver.memory",
        )

    def _kill_processes(self) -> None:
        """SIGKILL for the JVM and what it started, frozen or not."""
        # The id of a process that has been waited for may be another's by now.
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(psutil.Error):
            kill_family(psutil.Process(self._process.pid))
        try:
            self._process.wait(5.0)
        except TimeoutExpired:
            return  # it waits in the kernel, for a disk; nothing can be done about it


_DEFAULTS = {
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    # The driver only hands out tasks: what its JVM would compile better does not come up again.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.worker.reuse": "true",
    # A second copy of a task would only double the load: its files would be thrown away.
    "spark.speculation": "false",
    "spark.ui.showConsoleProgress": "false",
}

# What Spark says when a process that ran tasks is gone (PythonRunner, PythonWorkerFactory, TaskSetManager).
_WORKER_DIED = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "EOFException",
    "Connection reset",
    "Broken pipe",
    "ExecutorLostFailure",
)
_SHUT_DOWN = "SparkContext was shut down"
_TRACE = "Traceback (most recent call last):"
_LOST_TASK = re.compile(r"most recent failure: Lost task [^)]*\)(?: \([^)]*\))*: *")


def _start(master: str, conf: Mapping[str, str], scratch: Path, unwanted: threading.Event) -> SparkContext:
    values = _DEFAULTS | {"spark.local.dir": str(scratch)} | dict(conf)
    java = values["spark.driver.extraJavaOptions"]
    values["spark.driver.extraJavaOptions"] = f'"-Djava.io.tmpdir={scratch}" {java}'
    values = {"spark.master": master, "spark.app.name": "ingestd"} | values
    is_main = threading.current_thread() is threading.main_thread()
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        context = launch(values, scratch, unwanted)
    except (RuntimeError, OSError, EOFError) as error:
        words = masked(" ".join(str(error).split()), conf.values())[:300]
        raise EngineLost(f"Spark did not start: {words}", where=f"spark.master {master}") from None
    finally:
        if is_main:  # Spark replaces the handler by one that raises KeyboardInterrupt
            signal.signal(signal.SIGINT, interrupt)
    # It would print a traceback when the JVM's connection breaks; that the JVM is gone is told by `_watch`.
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_request: None
    return context


def _message(error: Exception) -> str | None:
    """What Spark says of a failed job; None when it could not be asked."""
    if not isinstance(error, Py4JJavaError):
        return None
    try:
        return str(error.java_exception.getMessage() or "")
    except (Py4JError, OSError, EOFError):
        return None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def innermost(text: str) -> str:
    """One line of a Spark error: the Python error that the task raised, else the failure of the task."""
    trace = text.rpartition(_TRACE)[2] if _TRACE in text else ""
    raised = [line for line in trace.splitlines() if line and not line[0].isspace()]
    if raised:
        return raised[0].strip()[:600]
    first = text.strip().splitlines()[0] if text.strip() else "no message"
    return _LOST_TASK.split(first)[-1][:600]
