"""Main loops wait without a thread, lose no wake-up, and share the stages fairly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext

import pytest

from ingestd.clock import Deadline
from ingestd.ingest.workers import Worker, Workers
from tests.support.patience import LIMIT


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.close()


def test_loops_when_they_wait_then_hold_no_thread_and_each_is_woken(workers: Workers) -> None:
    before = set(threading.enumerate())
    members = [workers.worker() for _ in range(300)]
    released = threading.Event()
    ends = [workers.start(member.wait(LIMIT, released.is_set)) for member in members]
    names = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in names if name.startswith(("mappings", "call", "commit", "stage", "asyncio"))]
    assert not any(end.done() for end in ends)
    released.set()
    for member in members:
        member.wake()
    assert all(end.result(LIMIT) for end in ends)


def test_wait_when_woken_at_any_moment_then_no_wakeup_is_lost(workers: Workers) -> None:
    member, counted = workers.worker(), [0]

    async def follow() -> int:
        """Wait for each of the numbers up to 2,000."""
        seen = 0
        while seen < 2_000:
            assert await member.wait(LIMIT, lambda: counted[0] > seen)  # noqa: B023
            seen = counted[0]
        return seen

    end = workers.start(follow())
    for _ in range(2_000):
        counted[0] += 1
        member.wake()
    assert end.result(LIMIT) == 2_000


def test_wait_when_the_time_is_over_then_returns_whether_the_condition_is_true(workers: Workers) -> None:
    member = workers.worker()
    assert workers.start(member.wait(0.01, lambda: False)).result(LIMIT) is False
    limit = Deadline.after(0.01)
    assert workers.start(member.wait(0.02, lambda: limit.passed)).result(LIMIT) is True


def test_stages_when_one_mapping_has_many_then_others_go_first(workers: Workers) -> None:
    busy, other = workers.worker(), workers.worker()
    order: list[str] = []
    started, go_on = threading.Event(), threading.Event()

    def first() -> None:
        started.set()
        assert go_on.wait(LIMIT)

    async def stage_all() -> None:
        def staged(worker: Worker, name: str) -> asyncio.Task[None]:
            return asyncio.create_task(worker.stage(nullcontext(), order.append, name))

        running = asyncio.create_task(busy.stage(nullcontext(), first))
        await asyncio.sleep(0)
        more = [staged(busy, "busy"), staged(busy, "busy"), staged(other, "other")]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(running, *more)

    workers.start(stage_all()).result(LIMIT)
    assert started.is_set()
    assert order[-1] == "busy"
    assert sorted(order) == ["busy", "busy", "other"]


def test_calls_when_many_hang_then_others_still_run() -> None:
    workers, released = Workers(1, patience_seconds=0.1), threading.Event()
    hanging: list[Future[bool]] = []
    for run in (Worker.call, Worker.commit):
        hanging += [workers.start(run(workers.worker(), released.wait, 60)) for _ in range(40)]
        assert workers.start(run(workers.worker(), released.is_set)).result(LIMIT) is False
    assert not any(end.done() for end in hanging)
    released.set()
    assert all(end.result(LIMIT) for end in hanging)
    workers.close()


def test_call_when_it_fails_then_its_caller_raises(workers: Workers) -> None:
    with pytest.raises(ZeroDivisionError):
        workers.start(workers.worker().call(lambda: 1 // 0)).result(LIMIT)
