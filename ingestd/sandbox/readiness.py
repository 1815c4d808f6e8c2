"""Waits until a started service answers.

Invariant: the wait fails at once when the service ends or logs a fatal error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingestd.clock import Deadline, pause
from ingestd.errors import SandboxError
from ingestd.sandbox import process
from ingestd.sandbox.options import program
from ingestd.sandbox.services import COMPLETE, FATAL, PROBES
from ingestd.sandbox.state import Child

_SECONDS = 120.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Started:
    """A service that has just been started."""

    name: str
    child: Child
    port: int
    log: Path

    def wait_until_it_answers(self) -> None:
        """Wait until the service answers. Raises SandboxError when it ends, when it fails, or after two minutes."""
        self._wait(lambda: PROBES[program(self.name)](self.port), "answer")

    def wait_until_it_works(self) -> None:
        """Wait until the service answers and its background threads are running.

        Raises the errors of `wait_until_it_answers`.
        """
        self.wait_until_it_answers()
        self._wait(
            lambda: all(mark in self._output() for mark in COMPLETE[program(self.name)]), "start its background threads"
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = Deadline.after(_SECONDS)
        while True:
            self._raise_if_failed()
            if condition():
                return
            if deadline.passed:
                raise SandboxError(f"{self.name} did not {what} within {_SECONDS:.0f} s", where=str(self.log))
            pause(_LOOK_SECONDS)

    def _raise_if_failed(self) -> None:
        if not process.find(self.child):
            raise SandboxError(
                f"{self.name} exited during startup: {_first_error(self._output())}", where=str(self.log)
            )
        if FATAL[program(self.name)].search(self._output()):
            raise SandboxError(f"{self.name} could not start: {_first_error(self._output())}", where=str(self.log))

    def _output(self) -> str:
        return self.log.read_text(errors="replace")


def _first_error(output: str) -> str:
    """Return the first line that names an error, or the last line when there is none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "Exception" in line or "Error:" in line]
    return next(iter(errors or lines[-1:]), "it printed nothing")[:300]
