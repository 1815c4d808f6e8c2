"""Commands that tests run in their own process, and their results."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog


@dataclass(frozen=True)
class Result:
    """Output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Everything that the command printed."""
        return self.out + self.err

    @property
    def json(self) -> Any:
        """The JSON document that the command printed with `--output json`."""
        return json.loads(self.out)


Run = Callable[..., Result]


def in_terminal(command: Sequence[str]) -> tuple[int, str]:
    """Run a program in a terminal with 120 columns; return its exit code, and all that it has written there."""
    ours, theirs = os.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    parts = []
    # Linux reports that the last process has closed its side as an error.
    with closing(os.fdopen(ours, "rb", buffering=0)) as screen, suppress(OSError):
        while part := screen.read(4096):
            parts.append(part)
    return process.wait(), b"".join(parts).decode()


@contextmanager
def restored_log() -> Iterator[None]:
    """Restore the configuration of the log, which a command replaces, at the end of the `with` block.

    Daemons in threads of this process use it, too: without it, their events would be missing, or printed to stdout.
    """
    logger = logging.getLogger("ingestd")
    before, level = structlog.get_config(), logger.level
    try:
        yield
    finally:
        structlog.configure(**before)
        logger.setLevel(level)
