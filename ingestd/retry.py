"""Retries: exponential backoff, jittered and capped, after errors whose class is retriable.

Invariant: an error that is not retriable is re-raised immediately and unchanged. While a service does not answer, the
retries do not end. After refusals, that is answers that say no, they end when `Patience` does.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import tenacity

from ingestd.clock import Deadline
from ingestd.errors import IngestdError

T = TypeVar("T")
_log = logging.getLogger(__name__)

# Refusals that are further apart belong to different causes. A transaction takes less time.
_APART_SECONDS = 3600.0


class Backoff:
    """Computes the wait before each retry, which doubles from `first_seconds` to `cap_seconds`, ± 25 %.

    Each error class is counted separately, so that a long outage does not delay the first retry of a later failure.
    """

    def __init__(self, first_seconds: float = 0.2, cap_seconds: float = 10.0) -> None:
        self._first = first_seconds
        self._cap = cap_seconds
        self._failures: Counter[type[BaseException] | None] = Counter()

    def reset(self) -> None:
        """Restart with the shortest wait. Call this method after a success."""
        self._failures.clear()

    def seconds(self, error: BaseException | None = None) -> float:
        """Count the failure `error` and return the seconds to wait after it."""
        kind = None if error is None else type(error)
        seconds = min(self._cap, self._first * float(2 ** self._failures[kind]))
        self._failures[kind] = min(self._failures[kind] + 1, 30)
        return seconds * random.uniform(0.75, 1.25)


class Patience:
    """Limits the retries after refusals: at most `retries`, which take at least `seconds` in all, and then none.

    The waits double. All refusals since the last `reset` count, unless none has occurred for an hour.
    """

    def __init__(self, retries: int = 5, seconds: float = 30.0) -> None:
        self._retries = retries
        self._first = seconds / (2.0**retries - 1.0)
        self._refusals = 0
        self._forgotten_at = Deadline.after(0.0)

    def reset(self) -> None:
        """Forget the refusals. Call this method after a success."""
        self._refusals = 0

    def allows(self, error: IngestdError) -> bool:
        """Count `error` if it is a refusal, and return whether the call may be repeated after it."""
        if not error.is_refusal:
            return True
        if self._forgotten_at.passed:
            self._refusals = 0
        self._forgotten_at = Deadline.after(_APART_SECONDS)
        self._refusals += 1
        return self._refusals <= self._retries

    def seconds(self, error: BaseException | None) -> float:
        """Return the least number of seconds to wait after `error`, which `allows` has counted."""
        if not isinstance(error, IngestdError) or not error.is_refusal:
            return 0.0
        return self._first * 2.0 ** (self._refusals - 1) * random.uniform(1.0, 1.25)


def _log_wait(error: IngestdError, seconds: float) -> None:
    _log.warning("the next attempt is in %.1f s: %s", seconds, error)


async def call(
    function: Callable[[], Awaitable[T]],
    *,
    stop: threading.Event,
    sleep: Callable[[float], Awaitable[None]],
    on_wait: Callable[[IngestdError, float], None],
    backoff: Backoff | None = None,
    patience: Patience | None = None,
) -> T:
    """Call `function` until it succeeds, waiting after each retriable error, and return its result.

    `on_wait(error, seconds)` is called before each wait, and then `sleep(seconds)`, which must return when `stop` is
    set. Raises an error that is not retriable immediately, a refusal if `patience` has ended, and the last error once
    `stop` is set.
    """
    waits = _Waits(backoff or Backoff(), patience or Patience())
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(waits.allow),
        wait=waits.seconds,
        stop=tenacity.stop_when_event_set(stop),
        sleep=sleep,
        before_sleep=partial(_before_sleep, on_wait),
        reraise=True,
    )
    return await retrying(function)


def retry(
    function: Callable[[], T],
    *,
    limit_seconds: float | None = None,
    stop: threading.Event | None = None,
    on_wait: Callable[[IngestdError, float], None] = _log_wait,
    backoff: Backoff | None = None,
    patience: Patience | None = None,
) -> T:
    """Do the same as `call` in a program without an event loop, in the thread of the caller.

    No attempt begins later than `limit_seconds` after the first one; the last error is then raised, as when `stop` is
    set. None means no limit. Each wait is logged by default.
    """
    until = tenacity.stop_never if limit_seconds is None else tenacity.stop_before_delay(limit_seconds)
    stop = stop or threading.Event()
    waits = _Waits(backoff or Backoff(), patience or Patience())
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(waits.allow),
        wait=waits.seconds,
        stop=tenacity.stop_any(until, tenacity.stop_when_event_set(stop)),
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=partial(_before_sleep, on_wait),
        reraise=True,
    )
    return retrying(function)


class _Waits:
    """Whether and when tenacity repeats a call."""

    def __init__(self, backoff: Backoff, patience: Patience) -> None:
        self._backoff, self._patience = backoff, patience

    def allow(self, error: BaseException) -> bool:
        return isinstance(error, IngestdError) and error.is_retriable and self._patience.allows(error)

    def seconds(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        return max(self._backoff.seconds(error), self._patience.seconds(error))


def _before_sleep(on_wait: Callable[[IngestdError, float], None], state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, IngestdError):
        on_wait(error, state.upcoming_sleep)
