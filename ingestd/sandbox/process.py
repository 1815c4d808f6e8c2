"""Finds and ends the sandbox's processes.

Invariant: a signal is sent only to a process whose command line contains the token it was started with, so a program
that reuses a pid is never affected.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from ingestd.clock import Deadline, pause
from ingestd.sandbox.state import Child

_KILLED_SECONDS = 10.0
_EXEC_SECONDS = 1.0
_STOP_SECONDS = 10.0
_CHECK_SECONDS = 0.005
_adopted: list[GuardedProcess] = []


class GuardedProcess(subprocess.Popen[bytes]):
    """A child that the guard knows, and that may outlive this program."""

    def __del__(self) -> None:
        """Do nothing: `Popen` would warn at the end of this program that the child is still running."""


def adopt(started: GuardedProcess) -> None:
    """Register a direct child, so that it is reaped when it ends before this program."""
    _adopted.append(started)


def find(child: Child) -> psutil.Process | None:
    """Return the process of `child`, or None when it has ended, is a zombie, or its pid was reused."""
    _reap()
    try:
        process = psutil.Process(child.pid)
        words = process.cmdline()
        limit = Deadline.after(_EXEC_SECONDS)
        while not words and not limit.passed:
            # The command line is empty for a moment during exec. Reading that of a zombie raises.
            pause(0.005)
            words = process.cmdline()
        return process if child.token in words else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def resident_mb(child: Child) -> int:
    """Return the resident memory in MiB, or 0 when the process has ended."""
    process = find(child)
    try:
        return int(process.memory_info().rss) >> 20 if process else 0
    except psutil.NoSuchProcess:
        return 0


def suspend(child: Child) -> bool:
    """Send SIGSTOP, and wait until every thread has stopped. Return False when the process has ended."""
    process = find(child)
    if process is None or not _send(process, psutil.Process.suspend):
        return False
    limit = Deadline.after(_STOP_SECONDS)
    while not (_has_stopped(process) or limit.passed):
        pause(_CHECK_SECONDS)
    return process.is_running()


def resume(child: Child) -> bool:
    """Send SIGCONT. Return False when the process has ended."""
    process = find(child)
    return bool(process and _send(process, psutil.Process.resume))


def end(children: Iterable[Child], *, grace_seconds: float) -> None:
    """End the processes with SIGTERM, or after `grace_seconds` with SIGKILL. Suspended processes are resumed."""
    ours = [process for process in map(find, children) if process]
    for process in ours:
        _send(process, psutil.Process.terminate)
        _send(process, psutil.Process.resume)
    _kill(_wait(ours, grace_seconds))


def crash(child: Child) -> None:
    """Send SIGKILL and wait until the process has ended."""
    process = find(child)
    _kill([process] if process else [])


def _kill(ours: list[psutil.Process]) -> None:
    for process in ours:
        _send(process, psutil.Process.kill)
    _wait(ours, _KILLED_SECONDS)


def _wait(ours: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait at most `seconds` and return the processes that have not ended."""
    deadline = Deadline.after(seconds)
    while (ours := [process for process in ours if not _has_ended(process)]) and not deadline.passed:
        pause(0.05)
    return ours


def _has_ended(process: psutil.Process) -> bool:
    """Return whether the process has closed its ports and files, which happens after its command line disappears."""
    _reap()
    try:
        if not process.is_running():
            return True
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def _has_stopped(process: psutil.Process) -> bool:
    """Return whether no thread of the process runs: a loaded machine may stop them much later than it is asked."""
    try:
        states = [stat.read_text(encoding="ascii").rpartition(")")[2] for stat in _threads(process)]
    except (FileNotFoundError, ProcessLookupError):  # a thread, or the process, has ended
        return not process.is_running()
    return all(state.split()[0] == "T" for state in states)


def _threads(process: psutil.Process) -> list[Path]:
    return list(Path(f"/proc/{process.pid}/task").glob("*/stat"))


def _send(process: psutil.Process, signal: Callable[[psutil.Process], None]) -> bool:
    """Send a signal. Return False when the process has ended. psutil checks first that the pid was not reused."""
    try:
        signal(process)
    except psutil.NoSuchProcess:
        return False
    return True


def _reap() -> None:
    _adopted[:] = [started for started in _adopted if started.poll() is None]
