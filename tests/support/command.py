"""Commands that tests run in their own process, and their results."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
