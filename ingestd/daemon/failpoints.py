"""Failpoints for tests: observers that kill the daemon, block it or abort a transaction after a chosen step.

Invariant: a daemon in production has no failpoint. INGESTD_FAILPOINT is refused unless INGESTD_TESTING=1 is also set.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ingestd.clock import pause
from ingestd.errors import ConfigError, TransactionAborted
from ingestd.ingest.steps import STEPS, Observe, ignore

_FORM = re.compile(rf"(?:(\w+):)?({'|'.join(STEPS)})(?:@(\d+))?=(kill|abort|hold:.+)")


def from_environment(environment: Mapping[str, str] = os.environ) -> Callable[[str], Observe]:
    """Return a function that returns the observer of a mapping, by its name, as INGESTD_FAILPOINT defines it.

    The variable contains one failpoint or several separated by commas. Those without a mapping are those of all. Raises
    ConfigError outside tests or for an invalid value.
    """
    text = environment.get("INGESTD_FAILPOINT")
    if text is None:
        return lambda _mapping: ignore
    if environment.get("INGESTD_TESTING") != "1":
        raise ConfigError("failpoints are for tests only", where="INGESTD_FAILPOINT", hint="unset the variable")
    failpoints = [Failpoint(part) for part in text.split(",")]

    def observer_of(mapping: str) -> Observe:
        chosen = [failpoint for failpoint in failpoints if failpoint.mapping in ("", mapping)]

        def observe(step: str) -> None:
            for failpoint in chosen:
                failpoint(step)

        return observe

    return observer_of


class Failpoint:
    """An observer that acts once.

    `text` is `[MAPPING:]STEP[@N]=ACTION`: act when STEP completes for the N-th time (default 1). `mapping` is empty for
    a failpoint of all mappings, whose completions count together. The action `kill` sends SIGKILL to this process,
    `abort` raises TransactionAborted, and `hold:FILE` creates FILE.held and blocks until FILE exists. Raises
    ConfigError if `text` has another form.
    """

    def __init__(self, text: str) -> None:
        match = _FORM.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} is not [MAPPING:]STEP[@N]=ACTION",
                where="INGESTD_FAILPOINT",
                hint=f"ACTION is kill, abort or hold:FILE; STEP is one of {', '.join(STEPS)}",
            )
        self.mapping = match[1] or ""
        self._step, self._action = match[2], match[4]
        self._before = int(match[3] or 1)
        self._guard = threading.Lock()

    def __call__(self, step: str) -> None:
        """Act if this is the chosen completion of the chosen step."""
        if step != self._step:
            return
        with self._guard:
            self._before -= 1
            is_chosen = self._before == 0
        if is_chosen:
            self._act()

    def _act(self) -> None:
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._action == "abort":
            raise TransactionAborted("aborted by a failpoint", where=self._step)
        gate = Path(self._action.removeprefix("hold:"))
        Path(f"{gate}.held").touch()
        while not gate.exists():
            pause(0.02)
