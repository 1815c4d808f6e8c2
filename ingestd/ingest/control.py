"""What operators ask of a running mapping: pause, resume, flush, or another position.

Invariant: a request only wakes the mapping. The main loop carries it out between two transactions, and then its future
has a result. A request is carried out completely or not at all; a mapping that ends first fails it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from ingestd.errors import IngestdError
from ingestd.kafka.ranges import Offsets


class RequestFailed(IngestdError):
    """A request was not carried out, because the mapping ended, lost its lease, or changed its position meanwhile."""

    exit_code = 69


@dataclass(frozen=True, slots=True)
class PositionChange:
    """A new committed position: `offsets` replaces the next offsets of the partitions that it names.

    The change is refused if the committed offsets of these partitions are not `expected`, those that its author saw.
    """

    expected: Offsets
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `by` names its author (`user@host` or an address); `change` belongs to the action `set_position`."""

    action: Literal["pause", "resume", "flush", "set_position"]
    by: str
    change: PositionChange | None = None
    done: Future[None] = field(default_factory=Future, compare=False, repr=False)


class Control:
    """The requests to one mapping. Safe for use from any thread.

    `changed` is set while a request waits; the main loop waits for it together with its other reasons to wake up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._closed: IngestdError | None = None
        self.changed = threading.Event()

    def submit(self, request: Request) -> Future[None]:
        """Queue a request and return its future, which ends when it was carried out or raises what prevented it."""
        with self._lock:
            if self._closed is not None:
                request.done.set_exception(self._closed)
            else:
                self._requests.append(request)
                self.changed.set()
        return request.done

    def take(self) -> list[Request]:
        """Return and remove the requests that wait, in their order. The caller must finish each of them."""
        with self._lock:
            requests, self._requests = self._requests, []
            self.changed.clear()
            return requests

    def close(self, error: IngestdError) -> None:
        """Fail the requests that wait, and every later one, with `error`."""
        with self._lock:
            self._closed = error
            requests, self._requests = self._requests, []
        for request in requests:
            request.done.set_exception(error)
