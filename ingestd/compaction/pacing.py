"""Paces commits: with too many deltas or a slow metastore, commits become less frequent and larger.

Invariant: the interval between commits is never shorter than the configured one, nor longer than `pacing.max_interval`.
It depends on the last `COMMITS` commits only, and returns to the configured one when most of them are within their
limits: one slow commit, for example after an outage, or one commit to a crowded partition changes nothing.
`commit.rows` and `commit.bytes` still end a transaction earlier, because they bound the memory of a stage.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from ingestd.compaction.options import PacingOptions

# The pace follows the medians of the measurements of so many commits. At first, commits that did not happen count as 0.
COMMITS = 5


@dataclass(frozen=True, slots=True)
class Pacing:
    """The pace of commits.

    `interval` is the time between commits in seconds, `factor` times the configured one. `reason` names the measurement
    that exceeds its limit; it is empty if the factor is 1. `deltas` is the largest number of deltas in a partition that
    a commit wrote, and `latency` the number of seconds in which the metastore opened and committed a transaction; both
    are medians of the last commits.
    """

    interval: float
    factor: float = 1.0
    reason: Literal["", "deltas", "metastore"] = ""
    deltas: int = 0
    latency: float = 0.0


class Pace:
    """The pace of one mapping. Safe for use from any thread.

    `interval` is the configured one. `on_change` is called with each new pace, in the thread that measured it, and must
    not call back.
    """

    def __init__(self, options: PacingOptions, interval: float, on_change: Callable[[Pacing], None]) -> None:
        self._options = options
        self._interval = interval
        self._on_change = on_change
        self._lock = threading.Lock()
        self._latencies = deque([0.0] * COMMITS, COMMITS)
        self._now = Pacing(interval)

    @property
    def now(self) -> Pacing:
        """The current pace."""
        return self._now

    def committed(self, latency: float) -> None:
        """Note the seconds in which the metastore opened and committed a transaction."""
        with self._lock:
            self._latencies.append(latency)
            self._update(self._now.deltas, median_low(self._latencies))

    def counted(self, deltas: Sequence[int]) -> None:
        """Note, for each of the last commits, the largest number of deltas in a partition that it wrote."""
        with self._lock:
            self._update(median_low([*deltas, *[0] * (COMMITS - len(deltas))]), self._now.latency)

    def _update(self, deltas: int, latency: float) -> None:
        """Change the pace. The caller holds the lock, so that changes are reported in their order."""
        options, before = self._options, self._now
        by_deltas, by_latency = deltas / options.deltas, latency / options.latency
        longest = options.longest_interval(self._interval) / self._interval
        factor = min(longest, max(1.0, by_deltas, by_latency))
        reason: Literal["", "deltas", "metastore"] = ""
        if factor > 1.0:
            reason = "deltas" if by_deltas >= by_latency else "metastore"
        self._now = Pacing(self._interval * factor, factor, reason, deltas, latency)
        if self._now != before:
            self._on_change(self._now)
