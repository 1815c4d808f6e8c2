"""What the tests themselves rely on: waiting fails as soon as it is pointless, and commands leave the log alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import structlog

from ingestd.daemon import log
from tests.support.command import restored_log
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


def test_log_when_a_command_in_this_process_has_ended_then_events_of_daemons_go_where_they_went() -> None:
    with restored_log():
        structlog.reset_defaults()  # a test before this one may have set a level
        with structlog.testing.capture_logs() as events:
            with restored_log():
                log.configure("text", "error")
            structlog.get_logger("ingestd").info("owner", mapping="a")
    assert [event["mapping"] for event in events] == ["a"]
