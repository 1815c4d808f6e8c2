"""Which daemons a test is waiting for, so that it does not wait for one that has failed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Observable(Protocol):
    """A daemon that a test has started."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the daemon runs; negative if a signal ended it."""
        ...

    def text(self) -> str:
        """Return everything that the daemon has printed so far."""
        ...


class _Reads(threading.local):
    """The daemons whose output this thread has read in the block of `observed`; None outside of a block."""

    found: dict[Observable, bool] | None = None


_reads = _Reads()
# The daemons that tests have started, and have neither ended nor waited for.
_unattended: list[Observable] = []


@contextmanager
def observed() -> Iterator[dict[Observable, bool]]:
    """Yield the daemons whose output is read in the `with` block, and whether each had failed before.

    If no output is read, these are the daemons that tests have neither ended nor waited for.
    """
    others = {daemon: _has_failed(daemon) for daemon in list(_unattended)}
    outer = _reads.found
    found: dict[Observable, bool] = {}
    _reads.found = found
    try:
        yield found
    finally:
        _reads.found = outer
        found.update(found or others)


def started(daemon: Observable) -> None:
    """Note that a test has started a daemon."""
    _unattended.append(daemon)


def read(daemon: Observable) -> None:
    """Note that the output of a daemon is read next. That of a daemon that has already failed is complete."""
    if _reads.found is not None:
        _reads.found[daemon] = _has_failed(daemon)


def expect_end(daemon: Observable) -> None:
    """Note that the test ends a daemon, or waits for its end."""
    if daemon in _unattended:
        _unattended.remove(daemon)


def summary(daemon: Observable) -> str:
    """Return the exit code and the last lines of a daemon."""
    code = daemon.exit_code
    state = "is running" if code is None else f"has ended with exit code {code}"
    return f"the daemon {state}:\n{daemon.text()[-3000:]}"


def _has_failed(daemon: Observable) -> bool:
    """Return whether a daemon has ended with an error. A signal is not one: tests kill daemons."""
    return (daemon.exit_code or 0) > 0
