"""The files of replication are run by half of the workers, each of which starts its clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_CONFTEST = """
from tests.support.distribution import Distribution

def pytest_xdist_make_scheduler(config, log):
    return Distribution(config, log)
"""
_TEST = """
import os
from pathlib import Path

def test_it():
    with Path(os.environ["PYTEST_XDIST_WORKER"]).open("a") as file:
        file.write("{name} ")
"""
_REPLICATION = '"""\nfrom tests.support.replica import Replica\n"""\n'


def test_files_of_replication_when_there_are_others_then_only_half_of_the_workers_begin_with_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    names = [f"{kind}{number}" for kind in ("other", "replication") for number in range(6)]
    for name in names:
        imports = _REPLICATION if name.startswith("replication") else ""
        (tmp_path / f"test_{name}.py").write_text(imports + _TEST.format(name=name), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-n2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(_ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    first, second = ((tmp_path / f"gw{number}").read_text(encoding="utf-8").split() for number in range(2))
    assert {first[0], second[0]} == {"other0", "replication0"}
    assert sorted(first + second) == names
