"""What the driver's JVM prints: kept back while Spark starts, and afterwards written to stderr.

Invariant: the JVM never waits for the start, because everything that it prints is read at once. The output of a start
that fails appears only in the message of its error.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO

from ingestd.java import failure_cause

# How long the output may take to end after the JVM has ended.
_END_SECONDS = 1.0
_MAX_LINES = 500
_MAX_BYTES = 8192
# Java prints it at each start, because Spark requests this module.
_NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"
# A Python worker whose task was cancelled, or whose JVM has ended, prints a traceback of only these lines. Lines of
# several workers may be mixed.
_HEADER = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "[^"]*pyspark/daemon\.py", line \d+, in (manager|worker)\n')
_END = "BrokenPipeError: [Errno 32] Broken pipe\n"


class Output:
    """Reads `stream`, the output of a JVM. With `is_held`, nothing of it is written to stderr before `release`."""

    def __init__(self, stream: IO[bytes], *, is_held: bool) -> None:
        self._stream = stream
        self._is_held = is_held
        self._guard = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._reader = threading.Thread(target=self._read, name="spark-output", daemon=True)
        self._reader.start()

    def release(self) -> None:
        """Write what was kept back to stderr, and from now on each line at once."""
        with self._guard:
            if self._is_held:
                self._is_held = False
                sys.stderr.write("".join(self._lines))

    def cause(self) -> str:
        """Return why a JVM that has ended did not start, as far as it has printed it; '' if it has not."""
        self.wait()
        with self._guard:
            return failure_cause("".join(self._lines))

    def wait(self) -> None:
        """Wait a moment for the end of the output of a JVM that has ended. Never raises."""
        self._reader.join(_END_SECONDS)

    def _read(self) -> None:
        with self._stream:
            for line in without_noise(iter(lambda: self._stream.readline(_MAX_BYTES).decode(errors="replace"), "")):
                with self._guard:
                    self._lines.append(line)
                    if not self._is_held:
                        sys.stderr.write(line)


def without_noise(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, without those that each start prints and without tracebacks of workers that nobody needs."""
    headers = 0
    for line in lines:
        if line == _HEADER:
            headers += 1
        elif line == _END and headers:
            headers -= 1
        elif not line.startswith(_NOISE) and not (headers and _FRAME.fullmatch(line)):
            yield from [_HEADER] * headers
            headers = 0
            yield line
    yield from [_HEADER] * headers
