"""Runs `ingestd doctor` in the test process and parses its document."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingestd.cli.main import main
from tests.support.command import restored_log
from tests.support.patience import LIMIT


@dataclass(frozen=True)
class Report:
    """The document of one examination, the exit code of the command, and everything that it printed."""

    document: dict[str, Any]
    code: int
    text: str

    def all(self, check: str, subject: str = "") -> list[dict[str, Any]]:
        """Return the findings of a check whose subject ends with `subject`."""
        found = [
            finding
            for finding in self.document["findings"]
            if finding["check"] == check and finding["subject"].endswith(subject)
        ]
        assert found, f"{check} of {subject or 'any'} is missing in {self.text}"
        return found

    def one(self, check: str, subject: str = "") -> dict[str, Any]:
        """Return the only finding of a check."""
        [found] = self.all(check, subject)
        return found

    @property
    def bad(self) -> set[str]:
        """The checks with a warning or a fault."""
        return {finding["check"] for finding in self.document["findings"] if finding["status"] in ("warning", "fault")}


Examine = Callable[..., Report]


@pytest.fixture
def examine(processes: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Return a function that runs the command with a configuration and `--output json`. It starts `java -version`.

    Without `--timeout`, a check may take as long as a busy machine needs.
    """

    def call(config: Path, *arguments: str) -> Report:
        limit = () if "--timeout" in arguments else ("--timeout", str(int(LIMIT)))
        command = ["ingestd", "doctor", "--config", str(config), "--output", "json", *limit, *arguments]
        monkeypatch.setattr(sys, "argv", command)
        with restored_log(), pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        code = ended.value.code
        assert isinstance(code, int)
        document = json.loads(printed.out)
        assert document["exit_code"] == code
        return Report(document, code, printed.out + printed.err)

    return call
