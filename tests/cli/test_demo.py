"""`ingestd demo` as a new user runs it: on each storage, and of replication."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ingestd.sandbox import STORAGES

_RECORDS = 50_000


@pytest.mark.soak
@pytest.mark.parametrize("storage", STORAGES)
def test_demo_when_run_in_an_empty_folder_then_queries_every_record_and_leaves_nothing(
    processes: None, tmp_path: Path, storage: str
) -> None:
    shown = _run(tmp_path, "--storage", storage, "--records", str(_RECORDS))
    assert re.search(rf"\b{_RECORDS}\s+│ {_RECORDS}\b", shown)


@pytest.mark.soak
def test_demo_of_replication_when_run_in_an_empty_folder_then_both_sides_are_equal_and_it_leaves_nothing(
    processes: None, tmp_path: Path
) -> None:
    shown = _run(tmp_path, "--replication")
    assert "REPL LOAD bootstrap: " in shown
    assert "REPL LOAD incremental: " in shown
    assert shown.count("the same on both sides") == 3
    assert "Ada Lovelace" in shown


def _run(folder: Path, *arguments: str) -> str:
    """Run the demo in an empty folder, and return what it shows. Assert that it succeeds and leaves nothing."""
    empty, temporary = folder / "empty", folder / "tmp"
    empty.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "ingestd", "demo", *arguments]
    environment = os.environ | {"TMPDIR": str(temporary), "COLUMNS": "200"}
    # `-m` finds an installed package in any folder, and this one only by its path.
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stdout + done.stderr
    assert "Stopped all services and removed all files" in done.stdout
    assert [*empty.iterdir(), *temporary.glob("ingestd-*")] == []
    assert not [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(temporary) in str(process.info["cmdline"])
    ]
    return done.stdout
