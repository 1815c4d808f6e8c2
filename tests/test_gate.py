"""The second pass of CI repeats what may have failed by chance, and nothing else (`.ci/passes.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_PASSES = Path(__file__).parents[1] / ".ci"


_Run = subprocess.CompletedProcess[str]


def _pass(folder: Path, option: str, *options: str) -> _Run:
    """Run pytest in `folder` as `.ci/run` does, with the list of failed tests in the folder beside it."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-p", "passes", f"{option}={_failed(folder)}", *options],
        cwd=folder,
        # Other plugins, such as hypothesis, take most of the time of such a short run.
        env=os.environ | {"PYTHONPATH": str(_PASSES), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _failed(folder: Path) -> Path:
    return folder.parent / f"{folder.name}-failed" / "failed.json"


def _both(folder: Path, module: str) -> tuple[_Run, _Run | None]:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nmarkers = soak\n", encoding="utf-8")
    _failed(folder).parent.mkdir()
    (folder / "test_module.py").write_text(module, encoding="utf-8")
    first = _pass(folder, "--first-pass", "-n1")
    return first, _pass(folder, "--second-pass", "-n0") if _failed(folder).exists() else None


_ONCE = """
from pathlib import Path

def test_once():
    marker = Path("marker")
    existed = marker.exists()
    marker.touch()
    {action}

def test_right(): ...
"""


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("assert existed, 'by chance'", "call: {folder}/test_module.py:8: AssertionError: by chance"),
        ("import os; existed or os._exit(3)", "crashed while running 'test_module.py::test_once'"),
    ],
    ids=["test", "worker"],
)
def test_second_pass_when_a_test_fails_once_then_it_is_flaky_and_the_pass_is_green(
    tmp_path: Path, action: str, error: str
) -> None:
    first, second = _both(tmp_path, _ONCE.format(action=action))
    assert first.returncode == 1
    assert second is not None
    assert second.returncode == 0
    *_, flaky, told = second.stdout.split("FLAKY")
    assert "failed in the first pass, passed in the second" in flaky
    assert "test_module.py::test_once" in told
    assert error.format(folder=tmp_path) in told
    assert "1 passed, 1 deselected" in told.splitlines()[-1]


def test_second_pass_when_a_test_always_fails_then_it_is_red(tmp_path: Path) -> None:
    module = "import pytest\n@pytest.mark.soak\ndef test_wrong(): assert False\ndef test_right(): ...\n"
    _, second = _both(tmp_path, module)
    assert second is not None
    assert second.returncode == 1
    assert "FLAKY" not in second.stdout
    assert "1 failed, 1 deselected" in second.stdout


_FIXTURE = "import pytest\n@pytest.fixture\ndef service():\n    {code}\n\ndef test_service(service): ...\n"


@pytest.mark.parametrize("code", ["assert False", "yield; assert False"], ids=["setup", "teardown"])
def test_second_pass_when_a_fixture_always_fails_then_it_is_red(tmp_path: Path, code: str) -> None:
    _, second = _both(tmp_path, _FIXTURE.format(code=code))
    assert second is not None
    assert second.returncode == 1
    assert "FLAKY" not in second.stdout


@pytest.mark.parametrize(
    ("module", "exit_code"),
    [
        ("def test_right(): ...\n", 0),
        ("import nothing_of_this_name\n", 1),
        ("import pytest\n@pytest.mark.parametrize('i', range(16))\ndef test_wrong(i): assert False\n", 1),
        ("", 5),
    ],
    ids=["green", "collection", "too many", "no tests"],
)
def test_first_pass_when_a_repetition_could_hide_an_error_then_there_is_none(
    tmp_path: Path, module: str, exit_code: int
) -> None:
    first, second = _both(tmp_path, module)
    assert (first.returncode, second) == (exit_code, None), first.stdout


def test_first_pass_when_it_is_interrupted_then_there_is_no_second(tmp_path: Path) -> None:
    module = "import pytest\ndef test_wrong(): assert False\ndef test_interrupted(): raise KeyboardInterrupt\n"
    _failed(tmp_path).parent.mkdir()
    (tmp_path / "test_module.py").write_text(module, encoding="utf-8")
    assert _pass(tmp_path, "--first-pass", "-n0").returncode == pytest.ExitCode.INTERRUPTED
    assert not _failed(tmp_path).exists()


def test_second_pass_when_a_test_is_gone_then_it_is_red(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text("def test_right(): ...\n", encoding="utf-8")
    _failed(tmp_path).parent.mkdir()
    _failed(tmp_path).write_text(json.dumps({"test_module.py::test_gone": ""}), encoding="utf-8")
    second = _pass(tmp_path, "--second-pass", "-n0")
    assert second.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_module.py::test_gone" in second.stderr
