"""Places where a test may kill or hold the daemon; nothing happens unless two environment variables say so.

Invariant: production never dies here: INGESTD_FAILPOINT is refused unless INGESTD_TESTING=1 stands beside it.
`INGESTD_FAILPOINT=STEP[@N]=ACTION`: at the N-th time (1 if left out) that STEP is reached, do ACTION:
`kill` (SIGKILL to oneself), `hold:FILE` (make FILE.held, wait until FILE exists), `abort` (raise TransactionAborted).
"""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

from ingestd.clock import pause
from ingestd.errors import ConfigError, TransactionAborted

STEPS = (
    *("planned", "opened", "staged", "locked", "registered", "placed"),
    *("announced", "counted", "committed", "mirrored"),
)
_FORM = re.compile(rf"({'|'.join(STEPS)})(?:@(\d+))?=(kill|abort|hold:.+)")
_lock = threading.Lock()
_reached: dict[str, int] = {}


def check() -> None:
    """Raise ConfigError when failpoints are asked for outside a test, or are misspelt."""
    text = os.environ.get("INGESTD_FAILPOINT")
    if text is None:
        return
    if os.environ.get("INGESTD_TESTING") != "1":
        raise ConfigError("failpoints are for tests only", where="INGESTD_FAILPOINT", hint="unset it")
    if not _FORM.fullmatch(text):
        raise ConfigError(f"{text!r} is not STEP[@N]=ACTION", where="INGESTD_FAILPOINT", hint=", ".join(STEPS))


def reach(step: str) -> None:
    """Say that `step` is done."""
    text = os.environ.get("INGESTD_FAILPOINT")
    match = _FORM.fullmatch(text) if text else None
    if match is None or match[1] != step:
        return
    with _lock:
        _reached[step] = _reached.get(step, 0) + 1
        if _reached[step] != int(match[2] or 1):
            return
    _act(step, match[3])


def _act(step: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "abort":
        raise TransactionAborted("aborted by a failpoint", where=step)
    gate = Path(action.removeprefix("hold:"))
    Path(f"{gate}.held").touch()
    while not gate.exists():
        pause(0.02)
