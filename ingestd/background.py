"""Work in a thread of its own.

Invariant: calls run one after the other in the order given, and what one raises comes out of the next `run` or `wait`.
After `close` no call runs, whatever interrupted the calls of this class before. No signal handler runs inside such a
call: Python runs those in the main thread only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs one call at a time, each in a thread that ends with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: _Job | None = None

    def run(self, call: Callable[[], None]) -> None:
        """Begin `call` once the one before it is done; raises what that one raised.

        When the interpreter ends it may start no thread any more; then the call is made here.
        """
        self.wait()
        job = self._last = _Job(call)
        try:
            threading.Thread(target=job.work, name=self._name).start()
        except RuntimeError:
            job.work()

    def wait(self) -> None:
        """Return when nothing runs; raises what the last call raised."""
        if self._last is None:
            return
        self._last.done.wait()
        error, self._last = self._last.error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Return when nothing runs, nor will; what the last call raised is lost."""
        if self._last is not None:
            self._last.end()
        self._last = None


def apart(call: Callable[[], None]) -> None:
    """Make a call in a thread of its own; returns when it is done, and raises what it raised."""
    work = Background("ingestd-apart")
    try:
        work.run(call)
        work.wait()
    finally:
        work.close()


class _Job:
    """A call that is made once or, if it was ended before, never."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._taken = threading.Lock()
        self.done = threading.Event()
        self.error: BaseException | None = None

    def work(self) -> None:
        """Make the call."""
        if not self._taken.acquire(blocking=False):
            return
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            self.error = error
        finally:
            self.done.set()

    def end(self) -> None:
        """Return when the call is done, or will never be made."""
        if not self._taken.acquire(blocking=False):
            self.done.wait()
