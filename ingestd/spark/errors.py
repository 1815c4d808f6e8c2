"""The errors of Spark jobs and of the driver JVM, and the translation of Spark's messages.

Invariant: a failed job becomes WorkerLost only if Spark reports that a process ended or a task raised MemoryError. No
other exception of a task is mistaken for a lost worker.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError

from ingestd.errors import IngestdError

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
_SHUT_DOWN = "SparkContext was shut down"
_TRACE = "Traceback (most recent call last):"
_LOST_TASK = re.compile(r"most recent failure: Lost task [^)]*\)(?: \([^)]*\))*: *")


class JobFailed(IngestdError):
    """A Spark job failed for an unknown reason. `what` contains the innermost error."""

    exit_code = 70


class WorkerLost(JobFailed):
    """A task of the job ran out of memory, or its process ended, for example through the OOM killer."""

    is_retriable = True


class JobTimeout(JobFailed):
    """The job exceeded `EngineLimits.job_seconds` and was cancelled."""

    is_retriable = True


class EngineLost(IngestdError):
    """The Spark driver's JVM did not start, has ended or hangs. ingestd must be restarted."""

    exit_code = 70


class StartCancelled(EngineLost):
    """Spark was stopped before it had started, because the daemon stops."""

    is_retriable = True


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
    """Convert Spark's message about a failed job to WorkerLost or JobFailed."""
    if _TRACE not in text and any(words in text for words in _WORKER_ENDED):
        return WorkerLost("a process that ran tasks of the job ended unexpectedly", where=where)
    what = innermost(text)
    return WorkerLost(what, where=where) if "MemoryError" in what else JobFailed(what, where=where)


def innermost(text: str) -> str:
    """Return one line of Spark's message: the Python exception of the task, or else the reason why the task failed."""
    trace = text.rpartition(_TRACE)[2] if _TRACE in text else ""
    raised = [line for line in trace.splitlines() if line and not line[0].isspace()]
    if raised:
        return raised[0].strip()[:_MAX_TEXT]
    first = text.strip().splitlines()[0] if text.strip() else "no message"
    return _LOST_TASK.split(first)[-1][:_MAX_TEXT]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
