"""An agenda runs the work of many owners when it is due, in few threads, and never twice at the same time."""

from __future__ import annotations

import threading
from functools import partial

from ingestd.clock import monotonic
from ingestd.publish.agenda import Agenda, Work
from tests.support.patience import LIMIT
from tests.support.stack import eventually


class _Count:
    """Work that asks to run several times. `most` is the largest number of instances that ran concurrently.

    The first instances wait until `size` of them run.
    """

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.size, self.are_enough = size, threading.Event()
        self.running = self.most = 0
        self.done: list[int] = []
        self.left: dict[int, int] = {}

    def work(self, number: int) -> float | None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running == self.size:
                self.are_enough.set()
        assert self.are_enough.wait(LIMIT)
        threading.Event().wait(0.002)
        with self.lock:
            self.running -= 1
            self.done.append(number)
            self.left[number] -= 1
            return monotonic() if self.left[number] else None


def test_agenda_when_work_is_planned_by_many_then_few_threads_do_all_of_it_and_end() -> None:
    agenda, count = Agenda(3), _Count(3)
    before = set(threading.enumerate())
    count.left = dict.fromkeys(range(20), 3)
    for number in range(20):
        agenda.plan(partial(count.work, number), monotonic())
    eventually("all work", lambda: len(count.done) == 60)
    assert count.most == 3

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "agenda" and thread not in before]

    eventually("the threads to end", lambda: not threads())


def test_agenda_when_work_is_planned_again_then_runs_in_order_of_time_and_never_twice_at_once() -> None:
    agenda, begun, go_on, planned = Agenda(2), threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []
    ran_at: list[float] = []

    def slow() -> None:
        begun.set()
        order.append("begin")
        assert go_on.wait(LIMIT)
        order.append("end")

    def block() -> None:
        assert planned.wait(LIMIT)

    def late() -> None:
        order.append("late")
        ran_at.append(monotonic())

    agenda.plan(slow, monotonic())
    assert begun.wait(LIMIT)
    agenda.plan(block, monotonic() - 1.0)  # the other thread is busy until all work is planned
    agenda.plan(slow, monotonic())
    at = monotonic()
    due = at + 0.5
    agenda.plan(late, due)
    agenda.plan(partial(order.append, "soon"), at)
    planned.set()
    eventually("the other work", lambda: ran_at)
    assert order == ["begin", "soon", "late"]
    assert ran_at[0] >= due
    go_on.set()
    eventually("the repeated work", lambda: len(order) == 6)
    assert order[3:] == ["end", "begin", "end"]


def test_agenda_when_work_is_planned_earlier_then_the_earlier_time_counts() -> None:
    agenda, done = Agenda(1), threading.Event()

    def finish() -> None:
        done.set()

    work: Work = finish
    agenda.plan(work, monotonic() + 600)
    agenda.plan(work, monotonic())
    assert done.wait(LIMIT)


def test_agenda_when_all_its_threads_hang_then_other_work_runs_and_the_threads_end_afterwards() -> None:
    agenda, go_on = Agenda(2, patience_seconds=0.05), threading.Event()
    before = set(threading.enumerate())
    done: list[int] = []

    def hang(_number: int) -> None:
        assert go_on.wait(LIMIT)

    for number in range(5):
        agenda.plan(partial(hang, number), monotonic())
    for number in range(5):
        agenda.plan(partial(done.append, number), monotonic())
    eventually("the other work", lambda: sorted(done) == list(range(5)))
    go_on.set()

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "agenda" and thread not in before]

    eventually("the threads to end", lambda: not threads())
