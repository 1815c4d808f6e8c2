"""pytest plugin of CI: decides whether failed tests get a second pass, and reports as FLAKY what then passes.

`--first-pass FILE` writes the failed tests and their errors to FILE. It writes nothing if a second pass could hide more
than an accident: the run was interrupted, a module could not be collected, or many tests failed.
`--second-pass FILE` runs exactly the tests that FILE names.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_MOST_FAILURES = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the two passes."""
    group = parser.getgroup("passes")
    group.addoption("--first-pass", type=Path, help="write the tests that failed, and their errors, to this file")
    group.addoption("--second-pass", type=Path, help="run the tests of this file, and report those that pass as FLAKY")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin of the pass that was chosen, in the main process only."""
    first, second = config.getoption("--first-pass"), config.getoption("--second-pass")
    if hasattr(config, "workerinput"):
        return
    if first:
        config.pluginmanager.register(_FirstPass(first))
    if second:
        config.pluginmanager.register(_SecondPass(json.loads(second.read_text(encoding="utf-8"))))


class _FirstPass:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._errors: dict[str, str] = {}
        self._repeatable = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._errors.setdefault(report.nodeid, _error(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._repeatable = self._repeatable and not report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        is_few = 0 < len(self._errors) <= _MOST_FAILURES
        if exitstatus == pytest.ExitCode.TESTS_FAILED and self._repeatable and is_few:
            self._file.write_text(json.dumps(self._errors), encoding="utf-8")


class _SecondPass:
    def __init__(self, errors: dict[str, str]) -> None:
        self._errors = errors
        self._passed: set[str] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        missing = set(self._errors) - {item.nodeid for item in items}
        if missing:
            raise pytest.UsageError(f"tests of the first pass that the second does not find: {sorted(missing)}")
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._errors])
        items[:] = [item for item in items if item.nodeid in self._errors]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        elif report.failed:
            self._passed.discard(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        flaky = [test for test in self._errors if test in self._passed]
        if flaky:
            terminalreporter.section("FLAKY: failed in the first pass, passed in the second")
        for test in flaky:
            terminalreporter.line(f"FLAKY {test}")
            for line in self._errors[test].splitlines():
                terminalreporter.line(f"    {line}")


def _error(report: pytest.TestReport) -> str:
    """Return where and why a test failed, without the source code that pytest prints around it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = f"{report.when}: {crash.path}:{crash.lineno}: {crash.message}" if crash else report.longreprtext
    return text if len(text) <= 2000 else text[:2000] + " […]"
