"""What the tests themselves rely on: waiting fails as soon as it is pointless."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemon import DaemonProcess
from tests.support.stack import eventually


@pytest.mark.parametrize(
    "check", [partial(DaemonProcess.events, name="owner"), lambda _daemon: False], ids=["output", "other"]
)
def test_eventually_when_the_daemon_has_failed_then_fails_at_once_with_its_output(
    check: Callable[[DaemonProcess], object], tmp_path: Path
) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("mappings: 3\n", encoding="utf-8")
    daemon = DaemonProcess(config, tmp_path / "log", [], {})
    with pytest.raises(AssertionError, match="exit code 78") as failed:
        eventually("the owner", partial(check, daemon), 3_600)
    assert "mappings" in str(failed.value)
    daemon.kill()


def test_eventually_when_the_test_has_waited_for_the_end_then_continues_to_check(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("mappings: 3\n", encoding="utf-8")
    daemon = DaemonProcess(config, tmp_path / "log", [], {})
    assert daemon.wait() == 78
    answers = iter([False, True])
    assert eventually("the second answer", partial(next, answers))
