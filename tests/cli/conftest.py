"""Runs the console script in the test process, and resets the global state that a command changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ingestd.cli.main import main
from tests.support.command import Result, Run, restored_log


@pytest.fixture(autouse=True)
def _default_logging() -> Iterator[None]:
    """Restore the log after a test: its configuration refers to the stderr of that test, which is then closed."""
    with restored_log():
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the console script in this process, because a new process takes seconds."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["ingestd", *map(str, arguments)])
        with restored_log(), pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        result = Result(code if isinstance(code, int) else 0 if code is None else 1, printed.out, printed.err)
        assert "Traceback" not in result.text
        return result

    return call
