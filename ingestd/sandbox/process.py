"""Finds and ends the sandbox's processes.

Invariant: a signal is sent only to a process whose command line contains the token it was started with, so a program
that reuses a pid is never affected.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable

import psutil

from ingestd.clock import Deadline, pause
from ingestd.sandbox.state import Child

_KILLED_SECONDS = 10.0
_EXEC_SECONDS = 1.0
_adopted: list[subprocess.Popen[bytes]] = []


def adopt(started: subprocess.Popen[bytes]) -> None:
    """Register a direct child, so that it is reaped when it ends before this program."""
    _adopted.append(started)


def find(child: Child) -> psutil.Process | None:
    """The running process of `child`; None when it ended, is a zombie, or its pid now belongs to another program."""
    _reap()
    try:
        found = psutil.Process(child.pid)
        words = found.cmdline()
        limit = Deadline.after(_EXEC_SECONDS)
        while not words and not limit.passed:
            # Empty for a moment during exec. A zombie's command line raises.
            pause(0.005)
            words = found.cmdline()
        return found if child.token in words else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def resident_mb(child: Child) -> int:
    """Resident memory in MiB; 0 when the process has ended."""
    found = find(child)
    try:
        return int(found.memory_info().rss) >> 20 if found else 0
    except psutil.NoSuchProcess:
        return 0


def suspend(child: Child) -> bool:
    """SIGSTOP; False when there is no such process."""
    found = find(child)
    return bool(found and _send(found, psutil.Process.suspend))


def resume(child: Child) -> bool:
    """SIGCONT; False when there is no such process."""
    found = find(child)
    return bool(found and _send(found, psutil.Process.resume))


def end(children: Iterable[Child], *, grace_seconds: float) -> None:
    """SIGTERM to all, and SIGKILL after `grace_seconds`. Suspended processes are resumed so that they receive it."""
    ours = [found for found in map(find, children) if found]
    for found in ours:
        _send(found, psutil.Process.terminate)
        _send(found, psutil.Process.resume)
    _kill(_wait(ours, grace_seconds))


def crash(child: Child) -> None:
    """SIGKILL, and wait for the end of the process."""
    found = find(child)
    _kill([found] if found else [])


def _kill(ours: list[psutil.Process]) -> None:
    for found in ours:
        _send(found, psutil.Process.kill)
    _wait(ours, _KILLED_SECONDS)


def _wait(ours: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait at most `seconds`; returns the processes that have not ended."""
    deadline = Deadline.after(seconds)
    while (ours := [found for found in ours if not _has_ended(found)]) and not deadline.passed:
        pause(0.05)
    return ours


def _has_ended(found: psutil.Process) -> bool:
    """Whether its ports and files are closed: an ending process loses its command line before them."""
    _reap()
    try:
        if not found.is_running():
            return True
        return bool(found.status() == psutil.STATUS_ZOMBIE and found.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def _send(found: psutil.Process, signal: Callable[[psutil.Process], None]) -> bool:
    """Send a signal; False when the process has ended. psutil first checks that the pid is still the same process."""
    try:
        signal(found)
    except psutil.NoSuchProcess:
        return False
    return True


def _reap() -> None:
    _adopted[:] = [started for started in _adopted if started.poll() is None]
