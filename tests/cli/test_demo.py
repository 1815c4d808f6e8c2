"""`ingestd demo` as a new user runs it, on each storage."""

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
    folder, temporary = tmp_path / "empty", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "ingestd", "demo", "--storage", storage, "--records", str(_RECORDS)]
    environment = os.environ | {"TMPDIR": str(temporary), "COLUMNS": "200"}
    # `-m` finds an installed package in any folder, and this one only by its path.
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(rf"\b{_RECORDS}\s+│ {_RECORDS}\b", done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    assert "Stopped all services and removed all files" in done.stdout
    assert [*folder.iterdir(), *temporary.glob("ingestd-*")] == []
    assert not [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(temporary) in str(process.info["cmdline"])
    ]
