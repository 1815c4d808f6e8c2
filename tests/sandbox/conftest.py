"""Fixtures of the sandbox's tests: state folders that end with the test, and a private copy of the jar cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ingestd import java
from ingestd.clock import Deadline, pause
from ingestd.sandbox import KAFKA, METASTORE, Sandbox, SandboxOptions, jars
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.state import locked

COMMAND = (sys.executable, "-m", "ingestd", "sandbox")
# Every JVM honours these properties, Ivy's included: no host can be reached.
NO_NETWORK = {
    "JAVA_TOOL_OPTIONS": " ".join(
        f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https")
    )
}


class Cli:
    """`ingestd sandbox` as a command, on one state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Start the command without waiting for it."""
        return subprocess.Popen(
            [*COMMAND, *arguments, "--state-dir", str(self.state_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command; fails after two minutes."""
        with self.start(*arguments, **env) as started:
            out, err = started.communicate(timeout=120)
        return subprocess.CompletedProcess(started.args, started.returncode, out, err)

    def processes(self) -> list[psutil.Process]:
        """The JVMs of this state folder."""
        marks = (f"{self.state_dir}/", "ingestd.sandbox=")
        return [found for found in psutil.process_iter() if all(mark in _command_line(found) for mark in marks)]

    def wait_until_nothing_runs(self, seconds: float) -> None:
        """Return when no JVM of this state folder runs; fail after `seconds`."""
        wait_for(lambda: not self.processes(), seconds)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Return when `condition` holds; fail after `seconds`."""
    deadline = Deadline.after(seconds)
    while not condition():
        assert not deadline.passed, f"not within {seconds} s"
        pause(0.05)


def _command_line(found: psutil.Process) -> str:
    try:
        return " ".join(found.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def cli(processes: None, tmp_path: Path) -> Iterator[Cli]:
    """An empty state folder. Services that a test leaves running there are stopped."""
    made = Cli(tmp_path / "state")
    yield made
    Sandbox(SandboxOptions(made.state_dir)).down()


@pytest.fixture
def private_cache(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the jar cache made of hard links: tests may replace files, but never write to them in place."""
    with locked(tmp_path / "fill", "the test") as handle, Guard(handle) as guard:
        jars.ensure(jars.groups_for((KAFKA, METASTORE)), java.find_java(), guard, no_progress)
    shared, private = java.cache_folder() / "sandbox", tmp_path / "cache"
    for folder in (shared / "ivy", *shared.glob("jars-*")):
        shutil.copytree(folder, private / "sandbox" / folder.name, copy_function=os.link)
    monkeypatch.setenv("INGESTD_CACHE", str(private))
    return private
