"""A number of things and their bytes that the tasks of a running job count.

Invariant: a task counts once, when it ends successfully, although it may have been repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import Accumulator


class Count(NamedTuple):
    """How many, and their bytes."""

    number: int
    bytes: int


class Counter:
    """Counts in the functions of `Engine.run`. `Engine.counter` creates it; only the driver can read `value`."""

    def __init__(self, accumulator: Accumulator[Count]) -> None:
        self._accumulator = accumulator

    def add(self, count: Count) -> None:
        """Count in a task."""
        self._accumulator.add(count)

    @property
    def value(self) -> Count:
        """What the tasks that have ended counted."""
        return self._accumulator.value


class Sum(AccumulatorParam[Count]):
    """Adds counts."""

    def zero(self, value: Count) -> Count:
        """Return the count of nothing."""
        return Count(0, 0)

    def addInPlace(self, value1: Count, value2: Count) -> Count:  # noqa: N802  # a method of Spark
        """Return the sum of two counts."""
        return Count(value1.number + value2.number, value1.bytes + value2.bytes)
