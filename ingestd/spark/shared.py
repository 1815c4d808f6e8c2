"""Values that the tasks of many jobs share. Spark sends them to each executor once, and not in every task.

Invariant: a job contains only a reference, so a shared value appears neither in Spark's event log nor in its user
interface. On disk, it is only in directories of Spark that no other user can read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from ingestd.spark.errors import GATEWAY_ERRORS

if TYPE_CHECKING:
    from pyspark import Broadcast

T = TypeVar("T")


class Reference(Generic[T]):
    """Stands for a shared value in a function that a job applies."""

    def __init__(self, broadcast: Broadcast[T]) -> None:
        self._broadcast = broadcast

    @property
    def value(self) -> T:
        """The value. The first task of a Python worker reads it from a local file."""
        return self._broadcast.value


class Shared(Generic[T]):
    """A value of the driver that `Engine.share` has prepared. Spark receives it with the first `reference`."""

    def __init__(self, broadcast: Callable[[T], Broadcast[T]], value: T) -> None:
        self._send = broadcast
        self._value = value
        self._guard = threading.Lock()
        self._broadcast: Broadcast[T] | None = None

    def reference(self) -> Reference[T]:
        """Return what functions of `Engine.run` can contain. Waits until Spark has started. Raises EngineLost."""
        with self._guard:
            if self._broadcast is None:
                self._broadcast = self._send(self._value)
            return Reference(self._broadcast)

    def release(self) -> None:
        """Remove the value from the driver and the executors. References become invalid. Never raises."""
        with self._guard:
            broadcast, self._broadcast = self._broadcast, None
        if broadcast is not None:
            with suppress(*GATEWAY_ERRORS):  # the JVM has ended, and its files are removed with it
                broadcast.destroy()
