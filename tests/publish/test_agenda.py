"""An agenda runs the work of many owners when it is due, in few threads, and never twice at the same time."""

from __future__ import annotations

import threading
from functools import partial

from ingestd.clock import monotonic
from ingestd.publish.agenda import Agenda, Work
from tests.support.stack import eventually


class _Count:
    """Work that asks to run `times` times. `most` is the largest number of instances that ran concurrently."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.done: list[int] = []
        self.left: dict[int, int] = {}

    def work(self, number: int) -> float | None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        threading.Event().wait(0.002)
        with self.lock:
            self.running -= 1
            self.done.append(number)
            self.left[number] -= 1
            return monotonic() if self.left[number] else None


def test_agenda_when_work_is_planned_by_many_then_few_threads_do_all_of_it_and_end() -> None:
    agenda, count = Agenda(3), _Count()
    count.left = dict.fromkeys(range(20), 3)
    for number in range(20):
        agenda.plan(partial(count.work, number), monotonic())
    eventually("all work", lambda: len(count.done) == 60)
    assert 1 < count.most <= 3
    eventually("the threads to end", lambda: not [t for t in threading.enumerate() if t.name == "agenda"])


def test_agenda_when_work_is_planned_again_then_runs_in_order_of_time_and_never_twice_at_once() -> None:
    agenda, begun, go_on = Agenda(2), threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        begun.set()
        order.append("begin")
        assert go_on.wait(180)
        order.append("end")

    agenda.plan(slow, monotonic())
    assert begun.wait(180)
    agenda.plan(slow, monotonic())
    agenda.plan(partial(order.append, "late"), monotonic() + 1.0)
    agenda.plan(partial(order.append, "soon"), monotonic())
    eventually("the other work", lambda: "late" in order)
    assert order == ["begin", "soon", "late"]
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
    assert done.wait(180)
