"""The steps of a transaction, and the observer that they are reported to.

Invariant: a step is reported after its effects, in the thread that took it. An observer that raises an IngestdError
makes the transaction fail after that step; one that blocks delays it.
"""

from __future__ import annotations

from collections.abc import Callable

from ingestd.clock import Stopwatch

# In order. `planned` is reported before there is a transaction; `queued` is the wait for the previous commit.
STEPS = (
    *("planned", "opened", "staged", "queued", "locked", "registered"),
    *("placed", "announced", "counted", "committed", "mirrored"),
)

# Called with the name of each step that a mapping has completed.
Observe = Callable[[str], None]


def ignore(_step: str) -> None:
    """The observer that does nothing."""


class StepWatch(Stopwatch):
    """Measures the steps of one transaction and reports each to an observer."""

    def __init__(self, observe: Observe) -> None:
        super().__init__()
        self._observe = observe

    def lap(self, step: str) -> None:
        """Complete `step`: it took the time since the previous one."""
        super().lap(step)
        self._observe(step)
