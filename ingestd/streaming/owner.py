"""Restricts a connection to its own process and thread, and closes it at the end of a `with` block.

Invariant: a forked child never touches the transactions, files and sockets of its parent.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from ingestd.streaming.errors import StreamingException

_log = logging.getLogger(__name__)


class _Process:
    """Caches the id of this process, because a system call for each record would cost more than the rest of `write`."""

    def __init__(self) -> None:
        self.read()
        os.register_at_fork(after_in_child=self.read)

    def read(self) -> None:
        """Read the id from the operating system."""
        self.id = os.getpid()


_this = _Process()


class Owner:
    """The process and thread that created this object; after `release`, the next thread that calls `check`."""

    def __init__(self) -> None:
        self._process = _this.id
        self._thread = threading.get_ident()
        self._guard = threading.Lock()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child of the owner."""
        return self._process != _this.id

    def release(self) -> None:
        """Let the next thread that calls `check` become the owner."""
        self._thread = 0

    def check_process(self) -> None:
        """Raise StreamingException in a forked child of the owner."""
        if self._process != _this.id:
            raise StreamingException(
                "a forked child cannot use a connection of its parent process",
                where=f"process {os.getpid()}, parent {self._process}",
                hint="open a new connection in the child",
            )

    def check(self) -> None:
        """Raise StreamingException in a forked child of the owner and in any other thread."""
        if self._process != _this.id:  # repeated from `check_process`: this method runs once per record
            self.check_process()
        if not self._thread:
            with self._guard:
                self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            raise StreamingException(
                "a connection belongs to one thread", hint="open one per thread, or call hand_over() first"
            )


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Call `close` at the end of a `with` block. If the block raised `error`, a failure of `close` is only logged."""
    try:
        close()
    except StreamingException as failure:
        if error is None:
            raise
        _log.warning("could not clean up after another error; open transactions are left to time out: %s", failure)
