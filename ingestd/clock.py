"""The only module that reads clocks or sleeps.

Invariant: a `Deadline` is a point on the monotonic clock; several blocking calls can share it as one time budget.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


def monotonic() -> float:
    """Return the time of the monotonic clock in seconds."""
    return time.monotonic()


def now() -> float:
    """Return the Unix time in seconds, for output to people and other systems only."""
    return time.time()


def pause(seconds: float, stop: threading.Event | None = None) -> bool:
    """Wait for `seconds` or until `stop` is set; return whether it is set."""
    return (stop or threading.Event()).wait(max(0.0, seconds))


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(monotonic() + seconds)

    def capped(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and the deadline `seconds` from now."""
        return Deadline(min(self.at, monotonic() + seconds))

    @property
    def left(self) -> float:
        """The seconds until the deadline, at least 0."""
        return max(0.0, self.at - monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return monotonic() >= self.at


class Stopwatch:
    """Measures named steps; `steps` contains their durations in milliseconds, in the order in which they ran."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self._last = monotonic()

    def lap(self, step: str) -> None:
        """Add the time since the previous lap to `step`."""
        at = monotonic()
        self.steps[step] = self.steps.get(step, 0) + round((at - self._last) * 1000)
        self._last = at
