"""The file object to which pyarrow and pyorc write.

Invariant: no call from the library raises. The first error is kept until `check` raises it, so a file must not be used
before `check`. Otherwise a full disk would terminate the process: liborc throws C++ exceptions that nothing catches, in
`close` under pyarrow 26 and in a destructor under pyorc. A forked child never writes to a file that its parent opened:
nothing is buffered here, and what the destructors of the child's copies write is dropped.
"""

from __future__ import annotations

import os
from pathlib import Path


class OrcSink:
    """A new file. The library calls `write`, `flush`, `closed` and `close`."""

    def __init__(self, path: Path) -> None:
        """Create or truncate the file. Raises OSError."""
        self._file = path.open("wb", buffering=0)
        self._process = os.getpid()
        self._error: BaseException | None = None
        self.name = str(path)

    def write(self, data: bytes) -> int:
        """Append; after an error, and in a forked child, the bytes are dropped."""
        if self._error is None and self._process == os.getpid():
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except BaseException as error:  # noqa: BLE001 - also what a signal handler raises
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing; `sync` and `seal` write the file to disk."""

    @property
    def closed(self) -> bool:
        """Return whether the file is closed."""
        return self._file.closed

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except BaseException as error:  # noqa: BLE001 - as in `write`
            self._error = self._error or error

    def is_at(self, path: Path) -> bool:
        """Return whether `path` leads to this file. Raises OSError, except if there is no file at `path`."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Raise the first error, if there was one: an OSError, or what a signal handler raised."""
        if self._error is not None:
            raise self._error

    def sync(self) -> None:
        """Fsync the file. Raises OSError."""
        self.check()
        os.fsync(self._file.fileno())
