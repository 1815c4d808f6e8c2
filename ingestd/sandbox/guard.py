"""Starts processes so that none outlives an `up` that did not finish, however that `up` ended.

Invariant: a process runs its program only after the guard knows it, and the guard ends every one that it knows
unless it was told `release`.

The guard is one small process in a session of its own that reads a pipe. Each program is started as a shell that
blocks on reading one word and then becomes the program (same pid). `up` records that pid, tells the guard, and only
then says the word. When `up` dies, even by SIGKILL, the kernel closes both pipes: a shell that was not told ends by
itself, and the guard ends what it was told about. The guard also holds the lock of the state folder, so the next
command waits until it is done.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from ingestd.sandbox import process
from ingestd.sandbox.state import Child

_WAIT_FOR_THE_WORD = 'read -r word && [ "$word" = go ] && exec "$@" </dev/null'
_GUARD = "import sys; from ingestd.sandbox.guard import watch; watch(sys.stdin)"
_GRACE_SECONDS = 10.0


class Guard:
    """Use as a context manager; what was started inside lives on only after `release`."""

    def __init__(self, lock: int) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=(lock,),
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe.close()
        self._guard.wait()

    @property
    def _pipe(self) -> IO[str]:
        assert self._guard.stdin is not None
        return self._guard.stdin

    def release(self) -> None:
        """Everything started so far may outlive this process."""
        self._say("release")

    def start(
        self, argv: Sequence[str], *, log: Path, cwd: Path, record: Callable[[Child], None] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `argv` (a java command) with its output in `log`; `record` is told the process before it runs."""
        token = f"-Dingestd.sandbox={uuid.uuid4().hex}"
        shell = ["/bin/sh", "-c", _WAIT_FOR_THE_WORD, "ingestd-sandbox", argv[0], token, *argv[1:]]
        _set_aside(log)
        cwd.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            started = subprocess.Popen(
                shell, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True
            )
        process.adopt(started)
        child = Child(started.pid, token)
        self._say(f"{child.pid} {child.token}")
        if record:
            record(child)
        assert started.stdin is not None
        started.stdin.write(b"go\n")
        started.stdin.close()
        return started

    def _say(self, line: str) -> None:
        self._pipe.write(line + "\n")
        self._pipe.flush()


def _set_aside(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))


def watch(orders: IO[str]) -> None:
    """The guard's whole life: collect processes until the pipe closes; end them unless `release` came."""
    known: list[Child] = []
    for line in orders:
        if line.strip() == "release":
            return
        pid, token = line.split()
        known.append(Child(int(pid), token))
    process.end(known, grace_seconds=_GRACE_SECONDS)
