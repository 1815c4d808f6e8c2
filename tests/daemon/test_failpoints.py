"""Failpoints: which observer the environment defines, and when it acts."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ingestd.daemon.failpoints import Failpoint, from_environment
from ingestd.errors import ConfigError, TransactionAborted
from ingestd.ingest.steps import STEPS, ignore
from tests.support.patience import LIMIT
from tests.support.stack import eventually


def test_environment_when_it_has_no_failpoint_then_steps_are_ignored() -> None:
    assert from_environment({})("orders") is ignore
    assert from_environment({"INGESTD_TESTING": "1"})("orders") is ignore


def test_environment_when_it_is_not_for_tests_then_the_failpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="for tests only"):
        from_environment({"INGESTD_FAILPOINT": "opened=kill"})


@pytest.mark.parametrize("text", ["", "opened", "opend=kill", "opened=stop", "opened@x=kill", "opened=hold:"])
def test_failpoint_when_its_text_is_malformed_then_the_error_names_the_steps(text: str) -> None:
    with pytest.raises(ConfigError, match=r"not \[MAPPING:\]STEP\[@N\]=ACTION → .* STEP is one of planned, opened"):
        from_environment({"INGESTD_TESTING": "1", "INGESTD_FAILPOINT": text})


def test_failpoint_when_it_has_a_count_then_acts_at_that_completion_only() -> None:
    failpoint = Failpoint("staged@2=abort")
    for step in STEPS:
        failpoint(step)
    with pytest.raises(TransactionAborted, match="staged: aborted by a failpoint"):
        failpoint("staged")
    failpoint("staged")


def test_failpoints_when_several_then_each_acts(tmp_path: Path) -> None:
    environment = {"INGESTD_TESTING": "1", "INGESTD_FAILPOINT": f"opened=hold:{tmp_path},staged=abort,locked=abort"}
    observe = from_environment(environment)("orders")
    observe("opened")  # the file exists
    for step in ("staged", "locked"):
        with pytest.raises(TransactionAborted, match=step):
            observe(step)
    assert Path(f"{tmp_path}.held").exists()


def test_failpoint_when_it_names_a_mapping_then_acts_in_that_mapping_only() -> None:
    failpoint = "orders:staged@2=abort,locked=abort"
    observer_of = from_environment({"INGESTD_TESTING": "1", "INGESTD_FAILPOINT": failpoint})
    orders, clicks = map(observer_of, ("orders", "clicks"))
    for observe in (orders, clicks, clicks):
        observe("staged")
    with pytest.raises(TransactionAborted, match="staged"):
        orders("staged")
    with pytest.raises(TransactionAborted, match="locked"):
        clicks("locked")
    orders("locked")  # the failpoint has acted


def test_failpoint_when_its_action_is_kill_then_the_process_ends_at_once() -> None:
    program = "from ingestd.daemon.failpoints import Failpoint; Failpoint('opened=kill')('opened'); print('alive')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")


def test_failpoint_when_its_action_is_hold_then_blocks_until_the_file_exists(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    thread = threading.Thread(target=Failpoint(f"opened=hold:{gate}"), args=("opened",))
    thread.start()
    eventually("the thread is held", Path(f"{gate}.held").exists)
    assert thread.is_alive()
    gate.touch()
    thread.join(LIMIT)
    assert not thread.is_alive()
