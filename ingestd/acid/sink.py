"""The file object that pyarrow and pyorc write to.

Invariant: no call from the library raises. The first error is stored until `check` raises it, so a file must not be
used before `check` has passed. Otherwise a full disk would terminate the process: liborc throws C++ exceptions that
nothing catches, in `close` under pyarrow 26 and in a destructor under pyorc. A forked child never writes to a file that
its parent opened: nothing is buffered here, and writes by destructors in the child are dropped.
"""

from __future__ import annotations

import os
from pathlib import Path


class OrcSink:
    """A new file; the library uses only `write`, `flush`, `closed` and `close`."""

    def __init__(self, path: Path) -> None:
        """Create or truncate the file. Raises OSError."""
        self._file = path.open("wb", buffering=0)
        self._process = os.getpid()
        self._error: BaseException | None = None
        self.name = str(path)
        self.written = 0  # bytes that the library has written

    def write(self, data: bytes) -> int:
        """Append bytes and return their number. After an error, and in a forked child, the bytes are dropped."""
        if self._error is None and self._process == os.getpid():
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except BaseException as error:  # noqa: BLE001 - includes exceptions of signal handlers
                self._error = error
        self.written += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing; `sync` writes the file to disk."""

    def end(self) -> int:
        """Return the length of the file, where the library's next bytes are written. Raises OSError."""
        return self._file.seek(0, os.SEEK_END)

    @property
    def closed(self) -> bool:
        """Return whether the file is closed."""
        return self._file.closed

    def close(self) -> None:
        """Close the file. If that fails, `check` raises the error."""
        try:
            self._file.close()
        except BaseException as error:  # noqa: BLE001 - as in `write`
            self._error = self._error or error

    def is_at(self, path: Path) -> bool:
        """Return whether `path` refers to this file; False if it does not exist. Raises other kinds of OSError."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Raise the first error, if any: an OSError or an exception of a signal handler."""
        if self._error is not None:
            raise self._error

    def sync(self) -> None:
        """Fsync the file. Raises OSError."""
        self.check()
        os.fsync(self._file.fileno())
