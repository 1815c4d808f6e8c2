"""Paces commits: with too many deltas or a slow metastore, commits become less frequent and larger.

Invariant: the interval between commits is never shorter than the configured one, nor longer than `pacing.max_interval`.
It depends on the latest measurements only, so it returns to the configured one as soon as they are within their limits.
`commit.rows` and `commit.bytes` still end a transaction earlier, because they bound the memory of a stage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ingestd.compaction.options import PacingOptions

# The weight of the latest commit in the average latency, which starts at 0: one slow commit, for example the first one,
# changes little, and five commits replace five sixths of it.
_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Pacing:
    """The pace of commits.

    `interval` is the time between commits in seconds, `factor` times the configured one. `reason` names the measurement
    that exceeds its limit; it is empty if the factor is 1. `deltas` is the largest number of deltas in a partition that
    the last commit wrote, and `latency` the average number of seconds in which the metastore opens and commits a
    transaction.
    """

    interval: float
    factor: float = 1.0
    reason: Literal["", "deltas", "metastore"] = ""
    deltas: int = 0
    latency: float = 0.0


class Pace:
    """The pace of one mapping. Safe for use from any thread.

    `interval` is the configured one. `on_change` is called with each new pace, in the thread that measured it.
    """

    def __init__(self, options: PacingOptions, interval: float, on_change: Callable[[Pacing], None]) -> None:
        self._options = options
        self._interval = interval
        self._on_change = on_change
        self._lock = threading.Lock()
        self._now = Pacing(interval)

    @property
    def now(self) -> Pacing:
        """The current pace."""
        return self._now

    def committed(self, latency: float) -> None:
        """Note the seconds in which the metastore opened and committed a transaction."""
        with self._lock:
            known = self._now.latency
            before, after = self._update(self._now.deltas, known + _WEIGHT * (latency - known))
        self._report(before, after)

    def counted(self, deltas: int) -> None:
        """Note the largest number of deltas in a partition that the last commit wrote."""
        with self._lock:
            before, after = self._update(deltas, self._now.latency)
        self._report(before, after)

    def _update(self, deltas: int, latency: float) -> tuple[Pacing, Pacing]:
        options, before = self._options, self._now
        by_deltas, by_latency = deltas / options.deltas, latency / options.latency
        longest = options.longest_interval(self._interval) / self._interval
        factor = min(longest, max(1.0, by_deltas, by_latency))
        reason: Literal["", "deltas", "metastore"] = ""
        if factor > 1.0:
            reason = "deltas" if by_deltas >= by_latency else "metastore"
        self._now = Pacing(self._interval * factor, factor, reason, deltas, latency)
        return before, self._now

    def _report(self, before: Pacing, after: Pacing) -> None:
        if before != after:
            self._on_change(after)
