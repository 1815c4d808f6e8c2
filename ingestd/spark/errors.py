"""The errors of Spark jobs and of the driver JVM, and the translation of Spark's messages.

Invariant: a failed job becomes WorkerLost only if Spark reports that a process ended or a task raised MemoryError. No
other exception of a task is mistaken for a lost worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError

from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from pyspark import SparkContext

# The exceptions that a call through py4j raises if the JVM has ended or its connection breaks.
GATEWAY_ERRORS = (Py4JError, OSError, EOFError, RuntimeError)
_MAX_TEXT = 600
# Spark's messages about a process that ran tasks and ended (PythonRunner, PythonWorkerFactory, TaskSetManager).
_WORKER_ENDED = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "EOFException",
    "Connection reset",
    "Broken pipe",
    "ExecutorLostFailure",
)
# Messages about a Python of executors that lacks ingestd or its dependencies, is another version, or does not exist.
_OTHER_PYTHON = ("ModuleNotFoundError", "ImportError", "PYTHON_VERSION_MISMATCH", "Cannot run program")
_SHUT_DOWN = "SparkContext was shut down"
STOPPED = "Spark stopped itself"
PYTHON_HINT = (
    "executors need the same versions of Python and ingestd as the driver: set spark.pyspark.python to their path, or"
    " ship them with spark.archives"
)
_HEAP_HINT = (
    "correct values of a query that can become very large, such as repeat(text, 1000000000); otherwise raise"
    " spark.driver.memory, and on a cluster spark.executor.memory"
)
_TRACE = "Traceback (most recent call last):"
# An error condition of Spark, which may have several lines, and the class of its SQLSTATE.
_CONDITION = re.compile(r"(\[[A-Z_.0-9]+\] .{,2000}?) SQLSTATE: (\w\w)\w{3}", re.DOTALL)
# The classes of conditions of a query: of its data, of its text, and of raise_error.
_QUERY_CLASSES = ("22", "42", "P0")
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_LOST_TASK = re.compile(r"most recent failure: Lost task [^)]*\)(?: \([^)]*\))*: *")


class JobFailed(IngestdError):
    """A Spark job failed for an unknown reason. `what` contains the innermost error."""

    exit_code = 70


class QueryFailed(JobFailed):
    """An expression of a query cannot be evaluated for a row, such as a CAST of a text that is not a number."""

    exit_code = 65


class JobCancelled(JobFailed):
    """The job was cancelled by `Engine.cancel`."""


class WorkerLost(JobFailed):
    """A task of the job ran out of memory, or its process ended, for example through the OOM killer."""

    is_retriable = True


class LocalDiskFull(JobFailed):
    """A local disk has no space for the rows that Spark stores while it distributes them. Space may be freed later."""

    is_retriable = True
    exit_code = 69


class JobTimeout(JobFailed):
    """The job exceeded `EngineLimits.job_seconds` and was cancelled."""

    is_retriable = True


class NoExecutors(JobFailed):
    """Spark had no executor for a job during `EngineLimits.executor_seconds`. The cluster may provide one later."""

    is_retriable = True
    exit_code = 69


class EngineLost(IngestdError):
    """The Spark driver's JVM did not start, has ended or hangs. ingestd must be restarted."""

    exit_code = 70


class EngineUnavailable(EngineLost):
    """Spark did not start because its master, or another service that it needs, does not answer."""

    exit_code = 69


class StartCancelled(EngineLost):
    """Spark was stopped before it had started, because the daemon stops."""

    is_retriable = True


@contextmanager
def calling(context: SparkContext) -> Iterator[None]:
    """Call the JVM in the block. If another thread has stopped the context, one of GATEWAY_ERRORS says so.

    PySpark itself then raises AttributeError, as other defects do.
    """
    try:
        yield
    except AttributeError as error:
        if context._jsc is not None:
            raise
        raise Py4JError("Spark was stopped") from error


def job_message(error: Exception) -> str | None:
    """Return Spark's message about a failed job, or None if the JVM has ended or Spark was shut down."""
    if not isinstance(error, Py4JJavaError):
        return None
    try:
        text = str(error.java_exception.getMessage() or "")
    except (Py4JError, OSError, EOFError):
        return None
    return None if _SHUT_DOWN in text else text


def job_error(text: str, where: str) -> JobFailed:
    """Convert Spark's message about a failed job to QueryFailed, WorkerLost, LocalDiskFull or JobFailed."""
    if faults := [match for match in _CONDITION.finditer(text) if match[2] in _QUERY_CLASSES]:
        what, state = faults[0].groups()
        remedy = "use try_cast, or another function that returns NULL instead" if state == "22" else "correct the SQL"
        return QueryFailed(" ".join(what.split())[:_MAX_TEXT], where=where, hint=f"{remedy}; no record was lost")
    what = innermost(text)
    if what.startswith("["):  # an error condition, whose message may contain any text of a record
        return JobFailed(what, where=where)
    if _TRACE not in text and any(words in text for words in _WORKER_ENDED):
        return WorkerLost("a process that ran tasks of the job ended unexpectedly", where=where)
    if _DISK_FULL.search(what):
        hint = "free space in spark.local.dir of the machines that run tasks; by default, it is in TMPDIR"
        return LocalDiskFull(what, where=where, hint=hint)
    if "MemoryError" in what:
        return WorkerLost(what, where=where, hint=_HEAP_HINT if "OutOfMemoryError" in what else "")
    is_other_python = any(words in what for words in _OTHER_PYTHON)
    return JobFailed(what, where=where, hint=PYTHON_HINT if is_other_python else "")


def innermost(text: str) -> str:
    """Return one line of Spark's message: the Python exception of the task, or else the reason why the task failed."""
    trace = text.rpartition(_TRACE)[2] if _TRACE in text else ""
    raised = [line for line in trace.splitlines() if line and not line[0].isspace()]
    if raised:
        return raised[0].strip()[:_MAX_TEXT]
    reason = _LOST_TASK.split(text.strip())[-1] or "no message"
    condition = _CONDITION.match(reason)
    return (" ".join(condition[1].split()) if condition else reason.splitlines()[0])[:_MAX_TEXT]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
