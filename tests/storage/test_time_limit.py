"""A time limit for calls that cannot be cancelled."""

from __future__ import annotations

import threading

import pytest

from ingestd.storage.time_limit import TimeLimit
from tests.support.patience import LIMIT
from tests.support.stack import eventually
from tests.support.threads import limited_threads


def test_run_when_the_call_ends_then_its_result_or_exception() -> None:
    limit = TimeLimit(1)
    assert [limit.run(lambda: "result", LIMIT) for _ in range(3)] == ["result"] * 3

    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        limit.run(fail, LIMIT)


def test_run_when_calls_are_overdue_then_times_out_and_refuses_further_calls_until_one_has_ended() -> None:
    limit = TimeLimit(2)
    gate = threading.Event()
    closed: list[bool] = []
    for _ in range(2):
        with pytest.raises(TimeoutError):
            limit.run(gate.wait, 0.01, closed.append)
    with pytest.raises(TimeoutError):
        limit.run(lambda: "refused", LIMIT)
    threads = limited_threads()
    assert len(threads) >= 2
    gate.set()

    def runs() -> bool:
        try:
            return limit.run(lambda: True, LIMIT)
        except TimeoutError:
            return False

    eventually("an overdue call to end", runs)
    assert all(limit.run(lambda: True, LIMIT) for _ in range(20))
    assert limited_threads() <= threads
    eventually("late results to be closed", lambda: closed == [True, True])
