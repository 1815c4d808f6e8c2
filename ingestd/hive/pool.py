"""A bounded pool of connections, which threads borrow for one call at a time.

Invariant: at most `size` connections exist, borrowed or idle. A connection that is borrowed is used by one thread. The
connection that was used last is lent first, so those that a smaller load does not need become idle and are closed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ingestd.clock import Deadline, monotonic


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Close the connection. Closing again has no effect."""


C = TypeVar("C", bound=Closable)


@dataclass(slots=True, eq=False)  # two slots without a connection are not the same
class Slot(Generic[C]):
    """The place of one connection in the pool; `connection` is None until its borrower connects.

    `address` is the index of the address that the connection leads to, and `used` the time of its last return. The
    pool closes the connection if `generation` is not its own at that time.
    """

    connection: C | None = None
    address: int = 0
    used: float = 0.0
    generation: int = 0

    def close(self) -> None:
        """Close the connection, if there is one; the borrower may connect again."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class Pool(Generic[C]):
    """At most `size` connections; safe for use from any thread.

    The last one is lent to urgent borrowers only. A connection that has not been borrowed for `idle_seconds` is closed
    when another one is returned.
    """

    def __init__(self, size: int, idle_seconds: float = 60.0) -> None:
        self.size = size
        self._idle_seconds = idle_seconds
        self._idle: list[Slot[C]] = []  # the one that was used last is last
        self._borrowed = 0
        self._generation = 0
        self._changed = threading.Condition()

    @contextmanager
    def borrowed(self, seconds: float, *, is_urgent: bool = False) -> Iterator[Slot[C] | None]:
        """Borrow a slot for the block; yields None if none is free within `seconds`."""
        slot = self._take(Deadline.after(seconds), self.size if is_urgent else max(1, self.size - 1))
        try:
            yield slot
        finally:
            if slot is not None:
                self._give_back(slot)

    def close(self) -> None:
        """Close the idle connections now, and the borrowed ones when they are returned.

        The pool can still be used; it keeps connections that are borrowed from now on.
        """
        with self._changed:
            self._generation += 1
            dropped, self._idle = self._idle, []
        _close(dropped)

    def close_idle(self, address: int) -> None:
        """Close the idle connections to one address, because another connection to it has just failed."""
        with self._changed:
            dropped = [slot for slot in self._idle if slot.address == address]
            self._idle = [slot for slot in self._idle if slot.address != address]
        _close(dropped)

    def _take(self, limit: Deadline, most: int) -> Slot[C] | None:
        with self._changed:
            while self._borrowed >= most:
                if not self._changed.wait(limit.left) and limit.passed:
                    return None
            slot = self._idle.pop() if self._idle else Slot[C]()
            slot.generation = self._generation
            self._borrowed += 1
            return slot

    def _give_back(self, slot: Slot[C]) -> None:
        expired = []
        with self._changed:
            self._borrowed -= 1
            self._changed.notify_all()  # a borrower that is not urgent may have to wait on
            slot.used = monotonic()
            if slot.generation != self._generation:
                expired.append(slot)
            elif slot.connection is not None:
                self._idle.append(slot)
            while self._idle and self._idle[0].used < slot.used - self._idle_seconds:
                expired.append(self._idle.pop(0))
        _close(expired)


def _close(slots: Iterable[Slot[C]]) -> None:
    for slot in slots:
        slot.close()
