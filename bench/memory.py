"""Measures the peak memory of a process tree.

Invariant: it is the sum of the PSS of all processes, so pages that forked workers share are counted only once.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

import psutil

from ingestd.clock import pause

# Each sample walks the page tables of every process, which takes CPU time from the drain.
_EVERY_SECONDS = 1.0


class PeakMemory:
    """Samples the memory of a process tree inside a `with` statement. `bytes` is the highest sum so far."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not pause(_EVERY_SECONDS, self._done):
            with suppress(psutil.Error):
                tree = [self._root, *self._root.children(recursive=True)]
                self.bytes = max(self.bytes, sum(_pss(process) for process in tree))


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0
