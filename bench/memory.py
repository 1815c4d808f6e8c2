"""Measures the peak memory and the CPU time of a process tree.

Invariant: the memory is the sum of the PSS of all processes, so pages that forked workers share are counted only once.
The CPU time includes that of processes which nobody has waited for, such as Spark's workers when their JVM is killed.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

import psutil

from ingestd.clock import pause

# Each sample walks the page tables of every process, which takes CPU time from the drain.
_EVERY_SECONDS = 1.0


class Usage:
    """Samples a process tree inside a `with` statement. `bytes` is the highest sum of its memory so far.

    The CPU time of a process after its last sample is not known.
    """

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._cpu_seconds: dict[psutil.Process, float] = {}
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all processes that were seen, in user and in system mode."""
        return sum(self._cpu_seconds.values())

    def __enter__(self) -> Usage:
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
                for process in tree:
                    with suppress(psutil.Error):
                        used = process.cpu_times()
                        self._cpu_seconds[process] = used.user + used.system


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0
