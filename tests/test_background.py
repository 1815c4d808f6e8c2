"""`Background` runs calls in order, raises their errors once, and finishes when the interpreter exits."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ingestd.background import Background
from tests.support.patience import LIMIT


def test_calls_when_queued_then_they_run_in_order_and_errors_are_raised_once() -> None:
    work = Background()
    done: list[int] = []
    running = threading.Event()
    go_on = threading.Event()

    def slow() -> None:
        running.set()
        assert go_on.wait(LIMIT)
        done.append(1)

    work.run(slow)
    assert running.wait(LIMIT)
    assert done == []
    go_on.set()
    work.run(lambda: done.append(2))
    work.wait()
    assert done == [1, 2]

    work.run(lambda: done.append(1 // 0))
    with pytest.raises(ZeroDivisionError):
        work.run(lambda: done.append(3))
    work.wait()
    assert done == [1, 2]
    work.run(lambda: done.append(1 // 0))
    work.close()
    work.run(lambda: done.append(4))
    work.close()
    assert done in ([1, 2], [1, 2, 4])  # `close` prevents a call that has not started yet


AFTER_EXIT = """
import threading, time, atexit
from ingestd.background import Background

def wait():
    threading.main_thread().join()
    time.sleep(0.2)
    work()

def work():
    background = Background()
    for number in range(3):
        background.run(lambda: print(number, flush=True))
        background.wait()

threading.Thread(target=wait).start()
atexit.register(work)
"""


def test_calls_when_the_interpreter_exits_then_they_still_run() -> None:
    ended = subprocess.run([sys.executable, "-c", AFTER_EXIT], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["0", "1", "2"] * 2


INTERRUPTED = """
import signal
from ingestd.background import Background

class Interrupt(Exception):
    pass

armed, interrupted = False, 0

def interrupt(*_):
    global armed, interrupted
    if armed:
        armed = False
        interrupted += 1
        raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
for turn in range(8_000):
    work = Background()
    signal.setitimer(signal.ITIMER_REAL, 0.00001 * (turn % 40 + 1))
    try:
        armed = True
        work.run(lambda: sum(range(turn % 7 * 100)))
        work.wait()
        armed = False
    except Interrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    work.close()
print(interrupted > 100)
"""


def test_run_and_wait_when_a_signal_handler_raises_inside_them_then_close_returns() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert ended.stdout == "True\n", ended.stderr
