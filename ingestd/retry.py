"""Retries: exponential backoff, jittered and capped, after errors whose class is retriable.

Invariant: an error that is not retriable is re-raised immediately and unchanged.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import tenacity
from tenacity.wait import wait_base

from ingestd.errors import IngestdError

T = TypeVar("T")


class Backoff(wait_base):
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

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """Return `seconds` of the last error; tenacity calls this method."""
        return self.seconds(retry_state.outcome.exception() if retry_state.outcome else None)


async def call(
    function: Callable[[], Awaitable[T]],
    *,
    stop: threading.Event,
    sleep: Callable[[float], Awaitable[None]],
    on_wait: Callable[[IngestdError, float], None],
    backoff: Backoff | None = None,
) -> T:
    """Call `function` until it succeeds, waiting after each retriable error, and return its result.

    `on_wait(error, seconds)` is called before each wait, and then `sleep(seconds)`, which must return when `stop` is
    set. Raises an error that is not retriable immediately, and the last error once `stop` is set.
    """
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_is_retriable),
        wait=backoff or Backoff(),
        stop=tenacity.stop_when_event_set(stop),
        sleep=sleep,
        before_sleep=partial(_before_sleep, on_wait),
        reraise=True,
    )
    return await retrying(function)


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, IngestdError) and error.is_retriable


def _before_sleep(on_wait: Callable[[IngestdError, float], None], state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, IngestdError):
        on_wait(error, state.upcoming_sleep)
