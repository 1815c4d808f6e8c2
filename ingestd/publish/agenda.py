"""Runs planned work of many owners in a few threads.

Invariant: work never runs in two threads at a time; a time that is planned for it while it runs is kept. A thread ends
when no work is left for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ingestd.clock import monotonic

# Does some work, and returns the monotonic time at which there is more; None if there is none.
Work = Callable[[], float | None]


class Agenda:
    """Runs work in at most `size` threads. Safe for use from any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._planned: dict[Work, float] = {}
        self._running: set[Work] = set()
        self._threads = 0
        self._changed = threading.Condition()

    def plan(self, work: Work, at: float) -> None:
        """Call `work` at the monotonic time `at`, or earlier if that is already planned."""
        with self._changed:
            self._planned[work] = min(at, self._planned.get(work, at))
            if self._threads < min(self._size, len(self._planned) + len(self._running)):
                self._threads += 1
                threading.Thread(target=self._run, name="agenda", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            again: float | None = None
            try:
                again = work()
            except Exception as error:  # noqa: BLE001 - reported like that of a thread; other work continues
                thread = threading.current_thread()
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
            with self._changed:
                self._running.discard(work)
                if again is not None:
                    self._planned[work] = min(again, self._planned.get(work, again))
                self._changed.notify()

    def _next(self) -> Work | None:
        """Wait for the next work and take it; return None if the thread must end."""
        with self._changed:
            while True:
                ready = {work: at for work, at in self._planned.items() if work not in self._running}
                if len(ready) < self._threads - len(self._running):  # there are more idle threads than work
                    self._threads -= 1
                    return None
                work = min(ready, key=ready.__getitem__)
                seconds = ready[work] - monotonic()
                if seconds <= 0:
                    del self._planned[work]
                    self._running.add(work)
                    return work
                self._changed.wait(seconds)
