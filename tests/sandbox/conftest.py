"""Fixtures for tests of the sandbox: a state folder whose services end with the test, and a copy of the jar cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ingestd import java
from ingestd.sandbox import KAFKA, METASTORE, Sandbox, SandboxOptions, jars
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.state import locked
from tests.support.patience import LIMIT
from tests.support.stack import eventually

COMMAND = (sys.executable, "-m", "ingestd", "sandbox")
# Every JVM, including Ivy's, reads these properties and then cannot reach any host.
NO_NETWORK = {
    "JAVA_TOOL_OPTIONS": " ".join(
        f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https")
    )
}


class Cli:
    """Runs the command `ingestd sandbox` on one state folder."""

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
        """Run the command and return its result. Fails after five minutes."""
        with self.start(*arguments, **env) as started:
            out, err = started.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess(started.args, started.returncode, out, err)

    def processes(self) -> list[psutil.Process]:
        """Return the running JVMs of this state folder."""
        marks = (f"{self.state_dir}/", "ingestd.sandbox=")
        return [found for found in psutil.process_iter() if all(mark in _command_line(found) for mark in marks)]

    def wait_until_nothing_runs(self) -> None:
        """Wait until no JVM of this state folder is running."""
        eventually("all JVMs to end", lambda: not self.processes())


def _command_line(found: psutil.Process) -> str:
    try:
        return " ".join(found.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def cli(processes: None, tmp_path: Path) -> Iterator[Cli]:
    """Yield a command on an empty state folder. Services that the test leaves running are stopped."""
    made = Cli(tmp_path / "state")
    yield made
    Sandbox(SandboxOptions(made.state_dir)).down()


@pytest.fixture
def private_cache(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a copy of the jar cache from hard links. Tests may replace its files, but must not modify them."""
    with locked(tmp_path / "fill", "the test") as handle, Guard(handle) as guard:
        jars.ensure(jars.groups_for((KAFKA, METASTORE)), java.find_java(), guard, no_progress)
    shared, private = java.cache_folder() / "sandbox", tmp_path / "cache"
    for folder in (shared / "ivy", *shared.glob("jars-*")):
        shutil.copytree(folder, private / "sandbox" / folder.name, copy_function=os.link)
    monkeypatch.setenv("INGESTD_CACHE", str(private))
    return private
