"""Detects when memory is short and buffered rows must be written to files (in Java, when the heap is nearly full).

Invariant: the limit of a container takes precedence over the memory of the machine.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from ingestd.streaming.configuration import Configuration

_INTERVAL_BYTES = 100 << 20
_THRESHOLD = 0.7
_LIMIT = Path("/sys/fs/cgroup/memory.max")


class MemoryWatch:
    """Compares memory use with a threshold once per `interval_bytes` of input.

    The defaults are those of the Hive settings `hive.streaming.auto.flush.check.interval.size`,
    `hive.streaming.auto.flush.enabled` and `hive.heap.memory.monitor.usage.threshold`.
    """

    def __init__(self, configuration: Configuration, interval_bytes: int | None) -> None:
        self._interval = interval_bytes or configuration.number(
            "hive.streaming.auto.flush.check.interval.size", float(_INTERVAL_BYTES)
        )
        self._enabled = configuration.flag("hive.streaming.auto.flush.enabled", default=True)
        self._threshold = configuration.number("hive.heap.memory.monitor.usage.threshold", _THRESHOLD)
        self._next = self._interval

    def is_short(self, written_bytes: int) -> bool:
        """Return whether rows must be flushed now. `written_bytes` is the total input so far."""
        if written_bytes < self._next:
            return False
        self._next = written_bytes + self._interval
        return self._enabled and used_share() >= self._threshold


def used_share() -> float:
    """Return the resident memory of this process as a share (0 to 1) of its limit."""
    return float(psutil.Process().memory_info().rss / _limit())


def _limit() -> int:
    total = int(psutil.virtual_memory().total)
    try:
        text = _LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(int(text), total) if text.isdigit() else total
