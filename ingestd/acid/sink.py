"""The file under an ORC library.

Invariant: no call that the library makes fails; what failed is kept, and `check` raises it, so nobody may trust a file
before its `check`. liborc throws where nobody catches: from `close` under pyarrow (26), from a destructor under pyorc;
a full disk would end the process. A forked child never writes to a file that its parent opened: nothing is buffered
here, and what the destructors of its copies write is dropped.
"""

from __future__ import annotations

import os
from pathlib import Path


class OrcSink:
    """A new file; `write`, `flush` and `close` are for the library."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = path.open("wb", buffering=0)
        self._process = os.getpid()
        self._error: BaseException | None = None
        self.name = str(path)

    def write(self, data: bytes) -> int:
        """Append; after a failure, and in a forked child, the bytes go nowhere."""
        if self._error is None and self._process == os.getpid():
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except BaseException as error:  # noqa: BLE001 - Ctrl-C comes here, too
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Nothing to do: `sync` and `seal` bring the file to the disk."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.closed

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except BaseException as error:  # noqa: BLE001 - as in `write`
            self._error = self._error or error

    def is_at(self, path: Path) -> bool:
        """Whether the file lies at `path`. Raises OSError other than that there is none."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Raise what came first, if anything did: an OSError, or what a signal handler raised."""
        if self._error is not None:
            raise self._error

    def sync(self) -> None:
        """Bring what was written so far to the disk. Raises OSError."""
        self.check()
        os.fsync(self._file.fileno())
