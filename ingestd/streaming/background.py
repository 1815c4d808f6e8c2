"""Work that goes on while the caller does something else.

Invariant: calls run one after the other in the order given, and what one raises comes out of the next `run` or `wait`.
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
        """Begin `call` once the one before it is done; raises what that one raised."""
        self.wait()
        self._threads = self._threads or ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._last = self._threads.submit(call)

    def wait(self) -> None:
        """Return when nothing runs; raises what the last call raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """End the thread when its call is done; what that one raises is lost. Never raises; `run` begins anew."""
        threads, self._threads, self._last = self._threads, None, None
        if threads is not None:
            threads.shutdown()
