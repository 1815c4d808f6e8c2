"""Tells systemd the state of the daemon: ready, reloading, stopping, a status line, and progress for its watchdog.

Invariant: the watchdog is fed only from the supervising loop, and only while no mapping is stuck. systemd therefore
restarts a daemon whose supervising loop hangs or one of whose mappings is stuck. No message blocks. A daemon that
systemd did not start sends none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Protocol

from sdnotify import SystemdNotifier

from ingestd.clock import Deadline, monotonic
from ingestd.ingest.control import Signals
from ingestd.ingest.monitoring.monitor import Monitor, Snapshot

_REPORT_SECONDS = 2.0
# Reports per watchdog period.
_REPORTS_PER_PERIOD = 4
# How many problems the status line names.
_MAX_PROBLEMS = 3


class Fleet(Protocol):
    """The mappings of a daemon, as its supervisor knows them."""

    @property
    def monitors(self) -> Mapping[str, Monitor]:
        """What each mapping reports, by its name."""

    def stuck(self) -> Sequence[str]:
        """Return the names of the mappings that are stuck."""


class Notifier:
    """The connection to systemd, if it started this process: it then set NOTIFY_SOCKET and WATCHDOG_USEC."""

    def __init__(self) -> None:
        # The library leaves a socket open if there is nothing to connect to.
        made: Any = SystemdNotifier() if os.environ.get("NOTIFY_SOCKET") else None
        self._connection: Any = None if made is None or made.socket is None else made
        if self._connection is not None:
            self._connection.socket.settimeout(0)
            self._connection.debug = True  # so that it raises the errors of the socket
        period = int(os.environ.get("WATCHDOG_USEC") or 0) / 1e6
        self._interval = min(_REPORT_SECONDS, period / _REPORTS_PER_PERIOD or _REPORT_SECONDS)
        self._next = Deadline.after(0.0)
        self._is_ready = False
        self._prefix = ""

    def check(self, fleet: Fleet, signals: Signals, *, has_spark: bool = True) -> None:
        """Report the state of the mappings if a report is due. The supervising loop calls this ten times a second.

        Sends READY once Spark has started and every mapping has left the state `starting`: it is owner or standby, or
        waits for a service. Sends it again if systemd has read nothing for so long that its queue was full.
        """
        if signals.stop.is_set():
            self.stopping()
        if self._connection is None or not self._next.passed:
            return
        self._next = Deadline.after(self._interval)
        mappings = [monitor.snapshot() for monitor in fleet.monitors.values()]
        stuck = fleet.stuck()
        if not self._is_ready and has_spark and all(mapping.state != "starting" for mapping in mappings):
            self._is_ready = self._send("READY=1")
        if not stuck:
            self._send("WATCHDOG=1")
        self._send(f"STATUS={self._prefix}{status_line(mappings, stuck)}")

    def starting(self) -> None:
        """Report that Spark is starting."""
        self._send("STATUS=starting Spark")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Report that the configuration is read again inside the `with` block, and then that the daemon runs.

        Reports nothing before the daemon is ready: the end of the reload would be taken for the end of the start.
        """
        is_running = self._is_ready and not self._prefix
        if is_running:
            self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic() * 1e6)}")
        try:
            yield
        finally:
            if is_running:
                self._is_ready = self._send("READY=1")  # or the next check sends it

    def stopping(self) -> None:
        """Report that the mappings finish their open transactions and end. Only the first call has an effect."""
        if not self._prefix:
            self._prefix = "stopping: "
            self._send("STOPPING=1\nSTATUS=stopping")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.socket.close()

    def _send(self, message: str) -> bool:
        """Send a message, and return whether systemd has it in its queue, which may be full."""
        if self._connection is None:
            return False
        try:
            # The library encodes Latin-1 and fails if it cannot.
            self._connection.notify(message.encode("ascii", "replace").decode("ascii"))
        except OSError:
            return False
        return True


def status_line(mappings: Sequence[Snapshot], stuck: Sequence[str]) -> str:
    """Return one line: the number of mappings in each state, their lag, the last commit, and their problems."""
    states = Counter(mapping.state for mapping in mappings)
    parts = [", ".join(f"{count} {state}" for state, count in states.most_common())]
    parts.append(f"lag {sum(mapping.lag or 0 for mapping in mappings):,} offsets")
    commits = [mapping.commits[-1].at for mapping in mappings if mapping.commits]
    if commits:
        at = datetime.fromtimestamp(max(commits), timezone.utc)
        parts.append(f"last commit {at:%Y-%m-%dT%H:%M:%SZ}")
    if stuck:
        parts.append(f"stuck: {_some(stuck)}")
    problems = [f"{mapping.name} ({mapping.problem.reason})" for mapping in mappings if mapping.problem is not None]
    if problems:
        parts.append(f"problems: {_some(problems)}")
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MAX_PROBLEMS
    return ", ".join(names[:_MAX_PROBLEMS]) + (f" and {more} more" if more > 0 else "")
