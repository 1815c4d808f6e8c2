"""Standard streams that a command can write any text to, and a daemon its log.

Invariant: no text fails because the terminal's encoding lacks a character. What cannot be written to standard error, on
a full disk, to a closed pipe or to a reader that does not read, is dropped: a daemon must not fail or hang because of
its log.
"""

from __future__ import annotations

import io
import os
import select
import sys

# A pipe that polls as writable has room for at least this many bytes.
_CHUNK = select.PIPE_BUF
_STDERR = 2


class _LossyFile(io.FileIO):
    """A file whose writes never fail: it waits for a stuck reader, then drops output until the reader continues."""

    def __init__(self, descriptor: int, stuck_ms: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._stuck_ms = self._wait_ms = stuck_ms

    def write(self, data: object) -> int:
        """Write or drop bytes and return their number (see `io.RawIOBase`). Dropped bytes count as written."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        ready = select.poll()
        ready.register(self.fileno(), select.POLLOUT)
        try:
            is_ready = bool(ready.poll(self._wait_ms))
            self._wait_ms = self._stuck_ms if is_ready else 0
            if is_ready:
                return super().write(view[:_CHUNK]) or len(view)
        except OSError:
            pass
        return len(view)


def protect_stderr(*, stuck_seconds: float = 5.0) -> None:
    """Replace `sys.stderr` with a stream whose writes never fail. Open closed standard descriptors as /dev/null.

    A write waits at most `stuck_seconds` for a reader that does not read.
    """
    free = os.open(os.devnull, os.O_RDWR)
    while free <= _STDERR:  # otherwise a socket could get descriptor 2 and receive the log
        free = os.open(os.devnull, os.O_RDWR)
    os.close(free)
    if sys.stderr is sys.__stderr__:
        buffer = io.BufferedWriter(_LossyFile(_STDERR, round(stuck_seconds * 1000)))
        sys.stderr = io.TextIOWrapper(buffer, "utf-8", "backslashreplace", line_buffering=True)


def escape_stdout() -> None:
    """Let `sys.stdout` write characters that its encoding lacks as escapes, such as `\\u2713`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
