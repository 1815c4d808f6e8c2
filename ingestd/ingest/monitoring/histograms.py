"""Counts the durations of the steps of transactions in buckets, for the histograms of the metrics.

Invariant: memory does not grow with the number of transactions. The buckets are the same for every step and mapping, so
that histograms can be added up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

# Upper limits of the buckets in seconds; one more bucket counts longer durations.
LIMITS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """The durations of one step: `counts[i]` of them were in bucket i, and `seconds` is their sum."""

    counts: tuple[int, ...]
    seconds: float


class StepDurations:
    """Counts durations by step. The caller ensures that only one thread at a time uses it."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._ms: dict[str, int] = {}

    def add(self, steps: Mapping[str, int]) -> None:
        """Count the steps of one transaction, given in milliseconds."""
        for step, ms in steps.items():
            self._counts.setdefault(step, [0] * (len(LIMITS) + 1))[bisect_left(LIMITS, ms / 1000)] += 1
            self._ms[step] = self._ms.get(step, 0) + ms

    def read(self) -> dict[str, Durations]:
        """Return a copy, in the order in which the steps were first counted."""
        return {step: Durations(tuple(counts), self._ms[step] / 1000) for step, counts in self._counts.items()}
