"""Runs planned work of many owners in a few threads.

Invariant: work never runs in two threads at a time; a time that is planned for it while it runs is kept. A thread ends
when no work is left for it. Work that hangs, as on a mount whose server is gone, delays the other work for a minute
only: then another thread may start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ingestd.clock import monotonic

# Does some work, and returns the monotonic time at which there is more; None if there is none.
Work = Callable[[], float | None]

# The largest number of threads, if some of them hang.
_MOST_THREADS = 16


class Agenda:
    """Runs `size` pieces of work at the same time, in addition to those that take longer than `patience_seconds`.

    Safe for use from any thread.
    """

    def __init__(self, size: int, *, patience_seconds: float = 60.0) -> None:
        self._size = size
        self._patience = patience_seconds
        self._planned: dict[Work, float] = {}
        self._overdue_at: dict[Work, float] = {}  # of the work that runs
        self._threads = 0
        self._changed = threading.Condition()

    def plan(self, work: Work, at: float) -> None:
        """Call `work` at the monotonic time `at`, or earlier if that is already planned."""
        with self._changed:
            self._planned[work] = min(at, self._planned.get(work, at))
            self._add_thread()
            self._changed.notify()

    def _add_thread(self) -> None:
        """Start a thread if there is work for it, and either it may run or nobody waits until it may.

        The caller holds the lock.
        """
        running = len(self._overdue_at)
        most = max(self._size, min(running + 1, _MOST_THREADS))
        if self._threads < min(most, len(self._planned) + running):
            self._threads += 1
            threading.Thread(target=self._run, name="agenda", daemon=True).start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            again: float | None = None
            try:
                again = work()
            except Exception as error:  # noqa: BLE001 - reported like that of a thread; other work continues
                thread = threading.current_thread()
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
            with self._changed:
                del self._overdue_at[work]
                if again is not None:
                    self._planned[work] = min(again, self._planned.get(work, again))
                self._changed.notify_all()  # all idle threads wait for the same moment, which may now be earlier

    def _next(self) -> Work | None:
        """Wait for the next work and take it; return None if the thread must end."""
        with self._changed:
            while True:
                running = self._overdue_at
                ready = {work: at for work, at in self._planned.items() if work not in running}
                if len(ready) < self._threads - len(running):  # there are more idle threads than work
                    self._threads -= 1
                    return None
                work, now = min(ready, key=ready.__getitem__), monotonic()
                in_time = sorted(at for at in running.values() if at > now)
                free_at = in_time[-self._size] if len(in_time) >= self._size else now
                seconds = max(ready[work], free_at) - now
                if seconds <= 0:
                    del self._planned[work]
                    running[work] = now + self._patience
                    self._add_thread()
                    return work
                self._changed.wait(seconds)
