"""What reaches a running mapping from outside: the signals that end it, and the requests of operators.

Invariant: `stop` and `abort` are never cleared. `abort` is set only after `stop`, by a second signal or after a time
limit. A request (pause, resume, flush, another position) only wakes the mapping. The main loop carries it out between
two transactions, and then its future has a result. A request is carried out completely or not at all. If the mapping
ends first, the request fails.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from ingestd.errors import IngestdError
from ingestd.kafka.ranges import Offsets


@dataclass(frozen=True, slots=True)
class Signals:
    """The events that end mappings: `stop` commits the open transactions first, `abort` aborts them.

    `reload` requests that the supervisor reads the configuration again; it is cleared when that begins.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    abort: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)


class RequestFailed(IngestdError):
    """A request was not carried out: the mapping ended, is a standby or paused, or has another position."""

    exit_code = 69


@dataclass(frozen=True, slots=True)
class PositionChange:
    """A new committed position: `offsets` replaces the next offsets of the partitions that it names.

    The change is refused if the committed offsets of these partitions differ from `expected`, which its author saw.
    `expected` omits partitions without a committed offset.
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
        """Queue a request and return its future, which raises the error if the request cannot be carried out.

        The future can be cancelled until the main loop takes the request.
        """
        with self._lock:
            if self._closed is None:
                self._requests.append(request)
                self.changed.set()
                return request.done
            error = self._closed
        _fail(request, error)
        return request.done

    def take(self) -> list[Request]:
        """Return and remove the waiting requests, in their order. The caller must finish each of them."""
        with self._lock:
            requests, self._requests = self._requests, []
            self.changed.clear()
        return [request for request in requests if _is_wanted(request)]

    def put_back(self, requests: Sequence[Request]) -> None:
        """Queue requests that were taken and not finished, before all others."""
        with self._lock:
            error = self._closed
            if error is None and requests:
                self._requests = [*requests, *self._requests]
                self.changed.set()
        if error is not None:
            for request in requests:
                _fail(request, error)

    def open(self) -> None:
        """Accept requests again after `close`."""
        with self._lock:
            self._closed = None

    def close(self, error: IngestdError) -> None:
        """Fail the waiting requests, and every later one until `open`, with `error`."""
        with self._lock:
            self._closed = error
            requests, self._requests = self._requests, []
            self.changed.clear()
        for request in requests:
            _fail(request, error)


def _is_wanted(request: Request) -> bool:
    """Return whether the future of a request was not cancelled. From now on, it cannot be cancelled."""
    return request.done.running() or request.done.set_running_or_notify_cancel()


def _fail(request: Request, error: IngestdError) -> None:
    if _is_wanted(request):
        request.done.set_exception(error)
