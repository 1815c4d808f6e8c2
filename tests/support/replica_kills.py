"""A process that dumps or loads, and kills or suspends itself after a step or a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any


class ProcessStep(Enum):
    """Steps beside those that an observer is informed of."""

    BEGUN = "begun"
    """The state of the dump is stored, and nothing else."""
    FILES = "files"
    """Some files have been copied."""
    FINISHED = "finished"
    """The dump, or the load, is marked as complete."""


@dataclass
class Ending:
    """Sends `signal` to this process at the step `step` when it has been completed `count` times.

    A call of the metastore is a step of its name.
    """

    step: str
    count: int
    signal: int

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Ending:
        """Read the ending from the arguments of a process."""
        return cls(given["step"], given["count"], given["signal"])

    def observe(self, step: Enum) -> None:
        """Note that a step is complete."""
        self._note(step.value)

    def on_call(self, method: str, _seconds: float, _outcome: str) -> None:
        """Note that a call is answered."""
        self._note(method)

    def _note(self, step: str) -> None:
        self.count -= step == self.step
        if self.count == 0:
            self.count = -1
            os.kill(os.getpid(), self.signal)

    def on_files(self, done: int, _all: int) -> None:
        """Note how many files have been copied."""
        if self.step == ProcessStep.FILES.value and done >= self.count > 0:
            self.count = 1
            self.observe(ProcessStep.FILES)


@contextmanager
def process(module: str, side: str, given: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of `tests.replication` with its arguments; kill it at the end of the `with` block."""
    command = [sys.executable, "-m", f"tests.replication.{module}", side, json.dumps(given)]
    with subprocess.Popen(command) as made:
        try:
            yield made
        finally:
            made.kill()
