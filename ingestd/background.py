"""Runs calls in a background thread.

Invariant: calls run one at a time, in the order given. If a call fails, the next `run` or `wait` raises its exception.
After `close` no call runs, even if an exception interrupted `run` or `wait`. Signal handlers never interrupt a call,
because Python runs them in the main thread only.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


class Background:
    """Runs one call at a time, each in a new thread."""

    def __init__(self) -> None:
        self._last: _Job | None = None

    def run(self, call: Callable[[], None]) -> None:
        """Wait for the previous call, raise its exception if it failed, then start `call`.

        While the interpreter shuts down no thread can be started; `call` then runs in this thread.
        """
        self.wait()
        job = self._last = _Job(call)
        try:
            # Not `Thread.start`: it waits for an Event, which stays locked if a signal handler raises at that moment.
            _thread.start_new_thread(job.work, ())
        except RuntimeError:
            job.work()

    def wait(self) -> None:
        """Wait for the last call and raise its exception, if any."""
        if self._last is None:
            return
        self._last.wait()
        error, self._last = self._last.error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait for the last call, or prevent it from starting; its exception is discarded."""
        if self._last is not None:
            self._last.finish()
        self._last = None


def run_uninterrupted(call: Callable[[], None]) -> None:
    """Run `call` in another thread, wait for it, and raise its exception, if any."""
    work = Background()
    try:
        work.run(call)
        work.wait()
    finally:
        work.close()


class _Job:
    """A call that runs once, or never if `finish` is called first."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._claim = threading.Lock()
        # Held until the call is done. An Event would stay locked if a signal handler raised inside its `wait`.
        self._running = threading.Lock()
        self._running.acquire()
        self.error: BaseException | None = None

    def work(self) -> None:
        """Run the call, unless `finish` was called first."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self.error = error
        finally:
            self._running.release()

    def wait(self) -> None:
        """Wait until the call has ended."""
        with self._running:
            pass

    def finish(self) -> None:
        """Wait for the call if it has started; otherwise prevent it."""
        if not self._claim.acquire(blocking=False):
            self.wait()
