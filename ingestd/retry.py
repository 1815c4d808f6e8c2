"""The one loop that tries again: exponential, jittered, capped, and only where the error's class says so.

Invariant: an error whose reaction is to stop passes through at the first time, untouched.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import tenacity
from tenacity.wait import wait_base

from ingestd.errors import AGAIN, IngestdError

T = TypeVar("T")


class Backoff(wait_base):
    """Seconds to wait: doubling from `first_seconds` to `cap_seconds`, ± 25 %; `reset` after a success.

    Each class of errors has a count of its own: a long outage does not delay the retry of what fails after it.
    """

    def __init__(self, first_seconds: float = 0.2, cap_seconds: float = 10.0) -> None:
        self._first = first_seconds
        self._cap = cap_seconds
        self._failures: Counter[type[BaseException] | None] = Counter()

    def reset(self) -> None:
        """Begin again with the shortest wait."""
        self._failures.clear()

    def seconds(self, error: BaseException | None = None) -> float:
        """Seconds before the next try after `error`."""
        kind = None if error is None else type(error)
        seconds = min(self._cap, self._first * float(2 ** self._failures[kind]))
        self._failures[kind] = min(self._failures[kind] + 1, 30)
        return seconds * random.uniform(0.75, 1.25)

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """The same, as tenacity asks for it."""
        return self.seconds(retry_state.outcome.exception() if retry_state.outcome else None)


def call(
    function: Callable[[], T],
    *,
    stop: threading.Event,
    on_wait: Callable[[IngestdError, float], None],
    backoff: Backoff | None = None,
) -> T:
    """Call `function` until it answers; `on_wait(error, seconds)` is told before each wait.

    Raises the last error once `stop` is set, and an error that must stop the caller at once.
    """

    def before_sleep(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, IngestdError):
            on_wait(error, state.upcoming_sleep)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_worth_trying_again),
        wait=backoff or Backoff(),
        stop=tenacity.stop_when_event_set(stop),
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=before_sleep,
        reraise=True,
    )
    return retrying(function)


def _worth_trying_again(error: BaseException) -> bool:
    return isinstance(error, IngestdError) and error.reaction in AGAIN
