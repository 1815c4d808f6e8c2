"""Translation of Spark's messages about failed jobs."""

from __future__ import annotations

import pytest

from ingestd.spark.errors import JobFailed, LocalDiskFull, QueryFailed, WorkerLost, innermost, job_error

TASK = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: "
LOST = f"{TASK}Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): "
DISK_FULL = "java.io.IOException: No space left on device"
ENDED = "a process that ran tasks of the job ended unexpectedly"
KEYS = "[DUPLICATED_MAP_KEY] Duplicate map key"
TRACE = 'org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "x.py", line 1\n'


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        (f"{LOST}{TRACE}ValueError: no\n\n\tat org.apache", JobFailed, "ValueError: no"),
        (f"{LOST}{TRACE}MemoryError\n", WorkerLost, "MemoryError"),
        (f"{LOST}{TRACE}ConnectionError: Broken pipe\n", JobFailed, "ConnectionError: Broken pipe"),
        (
            f"{LOST}java.io.EOFException\n\tat java",
            WorkerLost,
            "a process that ran tasks of the job ended unexpectedly",
        ),
        (f"{LOST}java.lang.IllegalStateException: x\n\tat java", JobFailed, "java.lang.IllegalStateException: x"),
        (f"{LOST}{DISK_FULL}\n\tat", LocalDiskFull, DISK_FULL),
        ("", JobFailed, "no message"),
        (
            f"{LOST}org.apache.spark.SparkRuntimeException: [DIFFERENT] It:\n  the pattern. SQLSTATE: 42K0B\n",
            QueryFailed,
            "[DIFFERENT] It: the pattern.",
        ),
        # An exception with an error condition is the message itself, and has no stack.
        (f"{KEYS} a was found.\n Correct it. SQLSTATE: 23505", JobFailed, f"{KEYS} a was found. Correct it."),
        (f"{KEYS} Broken pipe MemoryError. SQLSTATE: 23505", JobFailed, f"{KEYS} Broken pipe MemoryError."),
        (f"{KEYS} {DISK_FULL}. SQLSTATE: 23505", JobFailed, f"{KEYS} {DISK_FULL}."),
        (
            f"{LOST}org.apache.spark.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] No. SQLSTATE: 53200\n\tat",
            WorkerLost,
            "org.apache.spark.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] No. SQLSTATE: 53200",
        ),
        (
            f"{LOST}java.util.regex.PatternSyntaxException: Unclosed group near index 1\n(\n\tat java",
            JobFailed,
            "java.util.regex.PatternSyntaxException: Unclosed group near index 1",
        ),
    ],
)
def test_job_error_when_given_a_message_then_returns_class_and_cause(
    text: str, kind: type[JobFailed], what: str
) -> None:
    error = job_error(text, "Spark job of orders")
    assert type(error) is kind
    assert error.what == what
    assert error.where == "Spark job of orders"


@pytest.mark.parametrize(
    "text",
    [
        f"{LOST}{TRACE}ModuleNotFoundError: No module named 'ingestd'\n",
        f'{LOST}java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory\n\tat java',
    ],
)
def test_job_error_when_executors_have_another_python_then_says_how_to_provide_it(text: str) -> None:
    error = job_error(text, "Spark job of orders")
    assert type(error) is JobFailed
    assert "spark.pyspark.python" in error.hint


def test_innermost_when_the_message_is_long_then_truncates_it() -> None:
    assert len(innermost("x" * 5_000)) == 600
