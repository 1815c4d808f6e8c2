"""Checks that hang, fail or are defective do not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ingestd.doctor.finding import Check, Verdict, ok
from ingestd.doctor.jobs import Job, job, run, skip
from ingestd.errors import InvalidTopic

CANARY = "hunter2canary"


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Yield an event on which checks hang, and set it after the test."""
    event = threading.Event()
    yield event
    event.set()


def _good(_examined: str) -> Iterator[Verdict]:
    yield ok("fine")


def _refused(_examined: str) -> Iterator[Verdict]:
    yield ok("first")
    raise InvalidTopic("no such topic", where="topic x", hint="create it")


def _defective(_examined: str) -> Iterator[Verdict]:
    yield ok("first")
    raise ZeroDivisionError(CANARY)


def _hanging(event: threading.Event) -> Job:
    def hang(_examined: str) -> Iterator[Verdict]:
        event.wait()
        yield ok("late")

    return job(Check("hanging", hang), "x", "x")


def test_jobs_when_some_hang_fail_or_are_defective_then_all_are_reported_in_order(released: threading.Event) -> None:
    jobs = [
        _hanging(released),
        job(Check("refused", _refused), "x", "x"),
        job(Check("defective", _defective), "x", "x"),
        skip(Check("skipped", _good), "x", "the service is down"),
        job(Check("good", _good), "x", "x"),
    ]
    found = list(run(jobs, 5.0))  # the others need much less time, even on a busy machine
    assert [(finding.check, finding.verdict.status, finding.verdict.exit_code) for finding in found] == [
        ("hanging", "fault", 69),
        ("refused", "ok", 0),
        ("refused", "fault", 65),
        ("defective", "ok", 0),
        ("defective", "fault", 70),
        ("skipped", "skipped", 0),
        ("good", "ok", 0),
    ]
    assert "no result after" in found[0].verdict.evidence
    assert "ZeroDivisionError in _defective" in found[4].verdict.evidence
    assert CANARY not in str(found)


def test_jobs_when_many_hang_then_the_others_are_skipped_after_a_few_time_limits(released: threading.Event) -> None:
    before = _hanging_threads()
    found = list(run((_hanging(released) for _ in range(1_000)), 0.3))
    assert len(found) == 1_000
    statuses = [finding.verdict.status for finding in found]
    assert statuses.count("fault") < 40  # several of them hang at the same time
    assert set(statuses[40:]) == {"skipped"}
    assert len(_hanging_threads() - before) == statuses.count("fault")


def _hanging_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "doctor hanging"}
