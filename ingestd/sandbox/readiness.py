"""Waits until a started service answers.

Invariant: the wait ends early when the service ended or logged that it will never work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingestd.clock import Deadline, pause
from ingestd.errors import SandboxError
from ingestd.sandbox import process
from ingestd.sandbox.services import COMPLETE, FATAL, PROBES
from ingestd.sandbox.state import Child

_SECONDS = 120.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Started:
    """A service that was just started."""

    name: str
    child: Child
    port: int
    log: Path

    def wait_until_it_answers(self) -> None:
        """Return when its port answers. Raises SandboxError when it ends, fails, or two minutes pass."""
        self._wait(lambda: PROBES[self.name](self.port), "answer")

    def wait_until_it_works(self) -> None:
        """Return when its background threads run too. Raises as `wait_until_it_answers`."""
        self.wait_until_it_answers()
        self._wait(lambda: all(mark in self._said() for mark in COMPLETE[self.name]), "start its background threads")

    def _wait(self, condition: Callable[[], bool], deed: str) -> None:
        deadline = Deadline.after(_SECONDS)
        while True:
            self._raise_if_failed()
            if condition():
                return
            if deadline.passed:
                raise SandboxError(f"{self.name} did not {deed} within {_SECONDS:.0f} s", where=str(self.log))
            pause(_LOOK_SECONDS)

    def _raise_if_failed(self) -> None:
        if not process.find(self.child):
            raise SandboxError(f"{self.name} ended while it started: {_last_words(self._said())}", where=str(self.log))
        if FATAL[self.name].search(self._said()):
            raise SandboxError(f"{self.name} could not start: {_last_words(self._said())}", where=str(self.log))

    def _said(self) -> str:
        return self.log.read_text(errors="replace")


def _last_words(said: str) -> str:
    """The first line that names an error, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "Exception" in line or "Error:" in line]
    return next(iter(errors or lines[-1:]), "it said nothing")[:300]
