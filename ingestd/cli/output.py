"""Standard error whose failures are harmless: a full disk, a reader that is gone or one that is stuck.

Invariant: what cannot be written is dropped; a daemon must not end, or wait for long, because of its log.
"""

from __future__ import annotations

import io
import os
import select
import sys

# POLLOUT of a pipe promises room for so many bytes.
_CHUNK = select.PIPE_BUF
_STUCK_MS = 5_000
_ERRORS = 2


class _Patient(io.FileIO):
    """A file whose writes never fail; a reader that is stuck is waited for once, for some seconds."""

    _wait_ms = _STUCK_MS

    def write(self, data: object) -> int:
        """See `io.RawIOBase`; what is dropped counts as written."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        ready = select.poll()
        ready.register(self.fileno(), select.POLLOUT)
        try:
            is_ready = bool(ready.poll(self._wait_ms))
            self._wait_ms = _STUCK_MS if is_ready else 0
            if is_ready:
                return super().write(view[:_CHUNK]) or len(view)
        except OSError:
            pass
        return len(view)


def protect_stderr() -> None:
    """Make the process's own standard error such a file; closed standard files become /dev/null."""
    free = os.open(os.devnull, os.O_RDWR)
    while free <= _ERRORS:  # the lowest free number is taken, so that no connection gets it
        free = os.open(os.devnull, os.O_RDWR)
    os.close(free)
    if sys.stderr is sys.__stderr__:
        buffer = io.BufferedWriter(_Patient(_ERRORS, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(buffer, "utf-8", "backslashreplace", line_buffering=True)
