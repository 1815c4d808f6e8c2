"""Peak memory of a process tree.

Invariant: what is counted is PSS, which shares pages fairly among processes; forked workers are not counted double.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

import psutil

from ingestd.clock import pause

# Each look walks the page tables of every process of the tree and costs what the drain could use.
_EVERY_SECONDS = 1.0


class PeakMemory:
    """Samples a process and its children while the block lasts; `bytes` is the highest sum seen."""

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
