"""The errors of Spark jobs and of the driver JVM, and the translation of Spark's messages.

Invariant: a failed job becomes WorkerLost only when Spark reports that a process ended; an exception that a task raised
is never mistaken for it.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError

from ingestd.errors import IngestdError, Reaction

# What calls through py4j raise when the JVM has ended or the connection to it breaks.
GATEWAY_ERRORS = (Py4JError, OSError, EOFError, RuntimeError)
_MAX_TEXT = 600
# Spark's messages for a process that ran tasks and ended (PythonRunner, PythonWorkerFactory, TaskSetManager).
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
    """A Spark job failed for an unknown reason; `what` holds the innermost error."""

    exit_code = 70


class WorkerLost(JobFailed):
    """A process that ran a task of the job ended, for example because the kernel's OOM killer killed it."""

    reaction = Reaction.REWIND


class JobTimeout(JobFailed):
    """The job exceeded `EngineLimits.job_seconds` and was cancelled."""

    reaction = Reaction.REWIND


class EngineLost(IngestdError):
    """The Spark driver's JVM did not start, ended or hangs; ingestd must be restarted."""

    exit_code = 70


def job_message(error: Exception) -> str | None:
    """Spark's message about a failed job; None when the JVM ended or shut Spark down, so that no job can run."""
    if not isinstance(error, Py4JJavaError):
        return None
    try:
        text = str(error.java_exception.getMessage() or "")
    except (Py4JError, OSError, EOFError):
        return None
    return None if _SHUT_DOWN in text else text


def job_error(text: str, where: str) -> JobFailed:
    """WorkerLost or JobFailed for Spark's message about a failed job."""
    if _TRACE not in text and any(words in text for words in _WORKER_ENDED):
        return WorkerLost("a process that ran tasks of the job ended unexpectedly", where=where)
    what = innermost(text)
    return WorkerLost(what, where=where) if "MemoryError" in what else JobFailed(what, where=where)


def innermost(text: str) -> str:
    """One line of Spark's message: the Python exception that the task raised, else the reason of the task's failure."""
    trace = text.rpartition(_TRACE)[2] if _TRACE in text else ""
    raised = [line for line in trace.splitlines() if line and not line[0].isspace()]
    if raised:
        return raised[0].strip()[:_MAX_TEXT]
    first = text.strip().splitlines()[0] if text.strip() else "no message"
    return _LOST_TASK.split(first)[-1][:_MAX_TEXT]


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
