"""The last hour of every mapping, for charts: rate, lag and latency, one value per ten seconds.

Invariant: memory is bounded. A mapping needs 360 points of 32 bytes; mappings that no longer exist are dropped.
All methods run in the thread of the server, except that `records_per_second` may run in any.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan

from ingestd.clock import monotonic, now
from ingestd.ingest.monitor import Monitor, Snapshot

STEP_SECONDS = 10
POINTS = 360
# The rate that the overview shows is an average, because most mappings commit less than once per point.
_RATE_POINTS = 6


@dataclass(slots=True)
class _Series:
    """The points of one mapping, oldest first. `nan` means that a value is not known."""

    records: int
    commits: int
    rate: array[float] = field(default_factory=lambda: array("d"))
    lag: array[float] = field(default_factory=lambda: array("d"))
    lag_seconds: array[float] = field(default_factory=lambda: array("d"))
    latency: array[float] = field(default_factory=lambda: array("d"))

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
            del points[:-POINTS]


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

    def read(self, name: str) -> dict[str, object]:
        """Return the points of a mapping as JSON values, oldest first; None for values that are not known."""
        series = self._series.get(name) or _Series(0, 0)
        return {
            "step_seconds": STEP_SECONDS,
            "last_unix": round(self._last_unix, 3),
            "records_per_second": _values(series.rate),
            "lag_offsets": _values(series.lag),
            "lag_seconds": _values(series.lag_seconds),
            "latency_seconds": _values(series.latency),
        }


def _values(points: array[float]) -> list[float | None]:
    return [None if value != value else round(value, 3) for value in points]  # noqa: PLR0124 - nan differs from itself
