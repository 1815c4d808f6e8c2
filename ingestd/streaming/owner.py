"""The process and the thread that a connection belongs to, and how the end of a `with` block treats its errors.

Invariant: a forked child never touches what belongs to its parent: transactions, files and sockets.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from ingestd.streaming.errors import StreamingException

_log = logging.getLogger(__name__)


class _Process:
    """The id of this process. A system call for each record would take longer than all the rest of `write`."""

    def __init__(self) -> None:
        self.read()
        os.register_at_fork(after_in_child=self.read)

    def read(self) -> None:
        """Ask the system."""
        self.id = os.getpid()


_this = _Process()


class Owner:
    """The process and thread that create this object; after `release` the thread that is checked next."""

    def __init__(self) -> None:
        self._process = _this.id
        self._thread = threading.get_ident()
        self._guard = threading.Lock()

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child of the owner."""
        return self._process != _this.id

    def release(self) -> None:
        """Let the next thread that is checked become the owner."""
        self._thread = 0

    def check_process(self) -> None:
        """Raise StreamingException in a forked child of the owner."""
        if self._process != _this.id:
            raise StreamingException(
                "this is a forked child, and the connection belongs to the process that made it",
                where=f"process {os.getpid()}, not {self._process}",
                hint="make a new connection in the child",
            )

    def check(self) -> None:
        """Raise StreamingException in a forked child of the owner, and in another thread than the owner's."""
        if self._process != _this.id:  # compared here, too: this is called for each record
            self.check_process()
        if not self._thread:
            with self._guard:
                self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            raise StreamingException(
                "a connection belongs to one thread", hint="make one for each thread, or hand it over"
            )


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Call `close` at the end of a `with` block. If the block raised `error`, a failure of `close` is only logged."""
    try:
        close()
    except StreamingException as failure:
        if error is None:
            raise
        _log.warning("not closed as it should be, after another error: %s", failure)
