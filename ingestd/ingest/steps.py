"""The steps of a transaction, and the observer that is notified of them.

Invariant: the observer is called after the effects of a step, in the thread that performed the step. If it raises an
IngestdError, the transaction fails after that step. While it blocks, the transaction waits.
"""

from __future__ import annotations

from collections.abc import Callable

from ingestd.clock import Stopwatch

# In order. `planned` is reported before the transaction is opened; `queued` is the wait for the previous commit.
STEPS = (
    *("planned", "opened", "staged", "queued", "locked", "registered"),
    *("placed", "announced", "counted", "committed", "mirrored"),
)

# Called with the name of each step that a mapping has completed.
Observe = Callable[[str], None]


def ignore(_step: str) -> None:
    """Ignore a step. This is the default observer."""


class StepWatch(Stopwatch):
    """Measures the duration of each step of one transaction and reports the step to an observer."""

    def __init__(self, observe: Observe) -> None:
        super().__init__()
        self._observe = observe

    def lap(self, step: str) -> None:
        """Record the time since the previous step as the duration of `step`, and report `step`."""
        super().lap(step)
        self._observe(step)
