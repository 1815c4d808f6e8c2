"""Time, as the only module that reads clocks or sleeps.

Invariant: a `Deadline` is one budget shared by any number of blocking calls, measured on the monotonic clock.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


def monotonic() -> float:
    """Seconds on a clock that never goes back."""
    return time.monotonic()


def now() -> float:
    """Seconds since 1970, by the wall clock; only for what people and other systems read."""
    return time.time()


def pause(seconds: float, stop: threading.Event | None = None) -> bool:
    """Wait `seconds`, or less when `stop` is set; True when it was."""
    return (stop or threading.Event()).wait(max(0.0, seconds))


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline `seconds` from now."""
        return cls(monotonic() + seconds)

    def capped(self, seconds: float) -> Deadline:
        """This deadline, or the one `seconds` from now if that comes first."""
        return Deadline(min(self.at, monotonic() + seconds))

    @property
    def left(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at - monotonic())

    @property
    def passed(self) -> bool:
        """True once no time is left."""
        return monotonic() >= self.at


class Stopwatch:
    """Milliseconds per named step, in the order of the steps."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self._last = monotonic()

    def lap(self, step: str) -> None:
        """Close `step`: it took the time since the previous lap."""
        at = monotonic()
        self.steps[step] = self.steps.get(step, 0) + round((at - self._last) * 1000)
        self._last = at
