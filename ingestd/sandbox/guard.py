"""Starts processes so that none survives an `up` that fails or is killed.

Invariant: a process runs its program only after the guard has received its pid, and the guard ends every process whose
pid it has received, except after `release`.

The guard is one small process in its own session that reads a pipe. Each program is started as a shell that blocks
until it reads one word and then executes the program with the same pid. `up` records that pid, sends it to the guard,
and only then sends the word. When `up` dies, even by SIGKILL, the kernel closes both pipes: a shell that did not
receive the word exits, and the guard ends the others. The guard also holds the lock of the state folder, so the
next command waits until the guard has finished.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from ingestd.sandbox import process
from ingestd.sandbox.state import Child

TOKEN = "{token}"  # noqa: S105
_WAIT_FOR_WORD = 'read -r word && [ "$word" = go ] && exec "$@" </dev/null'
_GUARD = "import sys; from ingestd.sandbox.guard import watch; watch(sys.stdin)"
_GRACE_SECONDS = 10.0


class Guard:
    """A context manager that ends the processes started inside it on exit, unless `release` was called."""

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
        """Let all processes that were started so far continue after this process ends."""
        self._say("release")

    def start(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        record: Callable[[Child], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> process.GuardedProcess:
        """Start the command `argv` and write its output to `log`.

        Java and Python get an option that contains the token of the process. The command of another program contains
        TOKEN in the place of an argument that has no effect. `record` is called before the program runs. `environment`
        is added to the environment of this process.
        """
        token = f"ingestd.sandbox={uuid.uuid4().hex}"
        if TOKEN in argv:
            words = [token if word == TOKEN else word for word in argv]
        else:
            token = f"{'-X' if argv[0] == sys.executable else '-D'}{token}"
            words = [argv[0], token, *argv[1:]]
        shell = ["/bin/sh", "-c", _WAIT_FOR_WORD, "ingestd-sandbox", *words]
        _rotate(log)
        cwd.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            started = process.GuardedProcess(
                shell,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
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


def _rotate(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))


def watch(messages: IO[str]) -> None:
    """Run the guard: collect processes until the pipe closes, then end them. On `release`, leave them running."""
    known: list[Child] = []
    for line in messages:
        if line.strip() == "release":
            return
        pid, token = line.split()
        known.append(Child(int(pid), token))
    process.end(known, grace_seconds=_GRACE_SECONDS)
