"""The last six hours of every mapping, for charts: rate, lag and latency, one point per ten seconds.

Invariant: memory is bounded. A mapping needs 2,160 points of 16 bytes; mappings that no longer exist are dropped.
Values have seven exact digits. All methods run in the thread of the server, but `records_per_second` may run in any.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

from ingestd.clock import monotonic, now
from ingestd.ingest.monitoring.monitor import Monitor, Snapshot

STEP_SECONDS = 10
# By the span of a chart: the number of points that are read for it, and how many of them one value combines.
SPANS = {"15m": (90, 1), "1h": (360, 1), "6h": (2160, 6)}
_MAX_POINTS = max(points for points, _ in SPANS.values())
# The rate that the overview shows is an average, because most mappings commit less than once per point.
_RATE_POINTS = 6


@dataclass(slots=True)
class _Series:
    """The points of one mapping, oldest first. `nan` means that a value is not known."""

    records: int
    commits: int
    rate: array[float] = field(default_factory=lambda: array("f"))
    lag: array[float] = field(default_factory=lambda: array("f"))
    lag_seconds: array[float] = field(default_factory=lambda: array("f"))
    latency: array[float] = field(default_factory=lambda: array("f"))

    def add(self, seen: Snapshot, seconds: float) -> None:
        totals = seen.totals
        lag, age = seen.lag, seen.lag_seconds
        values = (
            # A mapping that was removed and added again counts from 0.
            (self.rate, max(0, totals.records - self.records) / seconds),
            (self.lag, nan if lag is None else float(lag)),
            (self.lag_seconds, nan if age is None else age),
            (self.latency, _latency(seen, max(0, totals.commits - self.commits))),
        )
        self.records, self.commits = totals.records, totals.commits
        for points, value in values:
            points.append(value)
            del points[:-_MAX_POINTS]


def _latency(seen: Snapshot, commits: int) -> float:
    """Return the greatest time from the timestamp of a record to its commit among the last `commits` commits."""
    recent = seen.commits[-commits:] if commits else ()
    return max((commit.at - commit.oldest for commit in recent if commit.oldest is not None), default=nan)


class History:
    """Collects a point of each mapping every ten seconds."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self._last: float | None = None
        self._last_unix = 0.0

    def observe(self, monitors: Mapping[str, Monitor]) -> None:
        """Add a point to every mapping if ten seconds have passed since the last one."""
        at = monotonic()
        if self._last is not None and at - self._last < STEP_SECONDS:
            return
        seconds = STEP_SECONDS if self._last is None else at - self._last
        self._last = at
        self.add(monitors, seconds)

    def add(self, monitors: Mapping[str, Monitor], seconds: float) -> None:
        """Add a point to every mapping, `seconds` after the last one."""
        self._last_unix = now()
        series = {}
        for name, monitor in monitors.items():
            seen = monitor.snapshot()
            series[name] = self._series.get(name) or _Series(seen.totals.records, seen.totals.commits)
            series[name].add(seen, seconds)
        self._series = series

    def records_per_second(self, name: str) -> float:
        """Return the rate of a mapping over the last minute; 0 if it is not known yet."""
        series = self._series.get(name)
        recent = series.rate[-_RATE_POINTS:] if series else ()
        return sum(recent) / len(recent) if recent else 0.0

    def read(self, name: str, span: str) -> dict[str, Any]:
        """Return the points of a mapping in a span of SPANS as JSON values, oldest first; None if a value is not known.

        A value that combines several points is their mean for the rate, and otherwise the greatest of them.
        """
        series = self._series.get(name) or _Series(0, 0)
        points, size = SPANS[span]
        return {
            "step_seconds": STEP_SECONDS * size,
            "last_unix": round(self._last_unix, 3),
            "records_per_second": _values([sum(part) / len(part) for part in _parts(series.rate[-points:], size)]),
            "lag_offsets": _values(map(_greatest, _parts(series.lag[-points:], size))),
            "lag_seconds": _values(map(_greatest, _parts(series.lag_seconds[-points:], size))),
            "latency_seconds": _values(map(_greatest, _parts(series.latency[-points:], size))),
        }


def _parts(points: array[float], size: int) -> Iterator[array[float]]:
    """Yield parts of `size` points. The first one may be shorter, so that the last one is complete."""
    for end in range((len(points) - 1) % size + 1, len(points) + 1, size):
        yield points[max(0, end - size) : end]


def _greatest(points: array[float]) -> float:
    return max((value for value in points if not isnan(value)), default=nan)


def _values(points: Iterable[float]) -> list[float | None]:
    return [None if isnan(value) else round(value, 3) for value in points]
