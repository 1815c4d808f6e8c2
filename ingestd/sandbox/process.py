"""Looks at and ends processes of ours.

Invariant: a signal goes only to a process whose command line holds the token it was started with, so a pid that was
given to another program since is never touched.
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
    """Remember a direct child, so that it is reaped when it ends while this program lives on."""
    _adopted.append(started)


def find(child: Child) -> psutil.Process | None:
    """The live process of `child`, or None when it ended, is a zombie, or its pid belongs to another program now."""
    _reap()
    try:
        found = psutil.Process(child.pid)
        words = found.cmdline()
        limit = Deadline.after(_EXEC_SECONDS)
        while not words and not limit.passed:
            # Empty for a moment while the process becomes another program; a zombie's raises.
            pause(0.005)
            words = found.cmdline()
        return found if child.token in words else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def resident_mb(child: Child) -> int:
    """Resident memory in MiB; 0 when the process is gone."""
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
    """SIGTERM to all, and SIGKILL to those still there after `grace_seconds`; a suspended one is woken to hear it."""
    ours = [found for found in map(find, children) if found]
    for found in ours:
        _send(found, psutil.Process.terminate)
        _send(found, psutil.Process.resume)
    _kill(_wait(ours, grace_seconds))


def crash(child: Child) -> None:
    """SIGKILL, and wait until it is gone."""
    found = find(child)
    _kill([found] if found else [])


def _kill(ours: list[psutil.Process]) -> None:
    for found in ours:
        _send(found, psutil.Process.kill)
    _wait(ours, _KILLED_SECONDS)


def _wait(ours: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those not yet gone when the time is over."""
    deadline = Deadline.after(seconds)
    while (ours := [found for found in ours if not _is_gone(found)]) and not deadline.passed:
        pause(0.05)
    return ours


def _is_gone(found: psutil.Process) -> bool:
    """True when its ports and files are closed: an ending process loses its command line earlier than those."""
    _reap()
    try:
        if not found.is_running():
            return True
        return bool(found.status() == psutil.STATUS_ZOMBIE and found.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def _send(found: psutil.Process, signal: Callable[[psutil.Process], None]) -> bool:
    """Send unless it is gone; psutil checks first that the pid is still the same process."""
    try:
        signal(found)
    except psutil.NoSuchProcess:
        return False
    return True


def _reap() -> None:
    _adopted[:] = [started for started in _adopted if started.poll() is None]
