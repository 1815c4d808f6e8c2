"""Work in a thread of its own.

Invariant: calls run one after the other in the order given, and what one raises comes out of the next `run` or `wait`.
No signal handler runs inside such a call: Python runs those in the main thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """A thread that runs one call at a time; it starts with the first one and ends with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def run(self, call: Callable[[], None]) -> None:
        """Begin `call` once the one before it is done; raises what that one raised.

        When the interpreter ends it starts no thread any more; then the call is made here.
        """
        self.wait()
        try:
            self._threads = self._threads or ThreadPoolExecutor(1, thread_name_prefix=self._name)
            self._last = self._threads.submit(call)
        except RuntimeError:
            call()

    def wait(self) -> None:
        """Return when nothing runs; raises what the last call raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """End the thread when its call is done; what that one raises is lost. Never raises; `run` begins anew."""
        if self._threads is not None:
            self._threads.shutdown()
        self._threads, self._last = None, None


def apart(call: Callable[[], None]) -> None:
    """Make a call in a thread of its own; returns when it is done, and raises what it raised."""
    work = Background("ingestd-apart")
    try:
        work.run(call)
        work.wait()
    finally:
        work.close()
