"""The result of a command that a test runs with the fixture `run` of tests/cli/."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
