"""Requests to a mapping: pause, resume, flush and another position, with a daemon and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ingestd.config.document import load
from ingestd.hive import leases
from ingestd.hive.control import ensure_control_table, read_state
from ingestd.ingest.control import PositionChange, Request, RequestFailed
from ingestd.ingest.offline.change import change_stored
from ingestd.ingest.ownership.owner import OwnerAlive
from ingestd.ingest.state import MappingState
from ingestd.kafka.ranges import TopicPartition
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.storages import Storages
from tests.support.daemon import DaemonThread, Hold
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually

BY = "tester@here"
# Changes the stored state in a process, which a test can suspend and kill.
COMMAND = """
import sys
from pathlib import Path
from ingestd.config.document import load
from ingestd.daemon.failpoints import from_environment
from ingestd.ingest.control import Request
from ingestd.ingest.offline.change import change_stored
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.storages import Storages
document = load([Path(sys.argv[1])])
warehouse = Warehouse(document.metastore.connect(), Storages(document.storage))
options = document.mappings[0]
change_stored(warehouse, options, Request("pause", "command"), from_environment()(options.name))
"""


def _ask(daemon: DaemonThread, request: Request, mapping: str) -> None:
    daemon.supervisor.controls[mapping].submit(request).result(LIMIT)


def _warehouse(stack: Stack) -> Warehouse:
    return Warehouse(stack.metastore, Storages())


def _state(stack: Stack, config: Path) -> MappingState:
    options = load([config]).mappings[0]
    control = ensure_control_table(stack.metastore, options.control)
    state = MappingState.parse(read_state(stack.metastore, control))
    assert state is not None
    return state


def _reaches(daemon: DaemonThread, mapping: str, state: str) -> None:
    eventually(f"the state {state}", lambda: daemon.supervisor.monitors[mapping].snapshot().state == state)


def _rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": n} for n in ids]


def _set(topic: str, before: int, after: int) -> Request:
    partition = TopicPartition(topic, 0)
    return Request("set_position", BY, PositionChange({partition: before}, {partition: after}))


def test_pause_when_restarted_then_stays_paused_until_resume_and_flush_does_not_wait(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    config = stack.config({"commit": {"interval": "1h"}})
    first = stack.start(config)
    _reaches(first, stack.name, "running")
    _ask(first, Request("flush", BY), stack.name)  # nothing waits
    stack.produce(_rows(*range(10)))
    _ask(first, Request("flush", BY), stack.name)  # commits long before the interval has passed
    stack.produce(_rows(10, 11))
    _ask(first, Request("flush", BY), stack.name)
    assert stack.ids() == list(range(12))
    _ask(first, Request("pause", BY), stack.name)
    _ask(first, Request("pause", BY), stack.name)  # no further change
    _reaches(first, stack.name, "paused")
    stack.produce(_rows(12))
    eventually("the lag", lambda: first.supervisor.monitors[stack.name].snapshot().lag == 1)
    with pytest.raises(RequestFailed, match="paused"):
        _ask(first, Request("flush", BY), stack.name)
    first.terminate()
    assert first.wait() == 0
    assert len(first.events("changed")) == 1
    stored = _state(stack, config)
    assert (stored.paused, stored.changed_by, stored.change) == (True, BY, "pause")
    assert stored.changed_at
    stack.drain(config)  # ends although a record is left
    second = stack.start(config)
    _reaches(second, stack.name, "paused")
    paused = eventually("the pause to be logged", lambda: second.events("paused"))
    assert {e["by"] for e in paused} == {BY}
    assert stack.ids() == list(range(12))
    _ask(second, Request("resume", BY), stack.name)
    _ask(second, Request("flush", BY), stack.name)
    assert stack.ids() == list(range(13))
    second.terminate()
    assert second.wait() == 0
    with pytest.raises(RequestFailed, match="stopped"):
        _ask(second, Request("pause", BY), stack.name)


def test_position_when_set_then_exactly_the_named_range_is_read_again_and_a_stale_request_fails(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce(_rows(*range(100)))
    config = stack.config()
    daemon = stack.start(config)
    eventually("all rows", lambda: daemon.supervisor.monitors[stack.name].snapshot().totals.rows == 100)
    with pytest.raises(RequestFailed, match="but the request expects"):
        _ask(daemon, _set(stack.name, 99, 60), stack.name)
    with pytest.raises(RequestFailed, match="does not have the offset 101"):
        _ask(daemon, _set(stack.name, 100, 101), stack.name)
    for other in ("missing", stack.topic(1, f"{stack.name}_other")):
        change = PositionChange({}, {TopicPartition(other, 0): 0})
        with pytest.raises(RequestFailed, match=f"does not read the topics {other}"):
            _ask(daemon, Request("set_position", BY, change), stack.name)
    _ask(daemon, _set(stack.name, 100, 60), stack.name)
    eventually("the rows again", lambda: daemon.supervisor.monitors[stack.name].snapshot().totals.rows == 140)
    assert stack.ids() == sorted([*range(100), *range(60, 100)])
    stored = _state(stack, config)
    assert stored.change == f"set_position {stack.name}[0] 100 -> 60"
    assert stored.position.offsets == {TopicPartition(stack.name, 0): 100}
    assert not stored.paused


@pytest.mark.soak
def test_position_when_the_answer_is_lost_and_another_owner_has_read_the_range_then_is_not_set_again(
    stack: Stack,
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce(_rows(*range(10)))
    stack.drain()
    with proxy(stack.addresses.metastore) as between:
        hold = Hold("counted")
        config = stack.config(metastore={"uri": between.uri, "timeout": "2s"})
        daemon = stack.start(config, hold=hold)
        _reaches(daemon, stack.name, "running")
        request = daemon.supervisor.controls[stack.name].submit(_set(stack.name, 10, 4))
        hold.wait()
        between.lose_answer("commit_txn")
        between.hold("get_table_req")
        hold.release()
        options = load([config]).mappings[0]
        eventually("the commit", lambda: "10 -> 4" in _state(stack, config).change)
        # As if the daemon had been suspended for so long that its lease has ended.
        for claim in leases.claims(stack.metastore, options.owner_lease):
            leases.release(stack.metastore, claim.lock_id)
        stack.drain()
        assert stack.ids() == sorted([*range(10), *range(4, 10)])
        between.forward("get_table_req")
        with pytest.raises(RequestFailed, match="may have been carried out"):
            request.result(LIMIT)
        stack.produce(_rows(10))
        eventually("the next record", lambda: daemon.supervisor.monitors[stack.name].snapshot().totals.rows == 1)
        assert stack.ids() == sorted([*range(11), *range(4, 10)])


def test_request_when_the_mapping_has_failed_then_restarts_it(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    other = f"{stack.name}_other"[-40:]
    stack.topic(1, other)
    stack.table("id bigint", name=f"default.{other}")
    stack.produce([{"id": 0}, {"id": "many"}, {"id": 2}])
    config = stack.config({"commit": {"rows": 1}}, {"name": other, "topics": [other], "table": f"default.{other}"})
    daemon = stack.start(config)
    _reaches(daemon, stack.name, "failed")
    with pytest.raises(RequestFailed, match="is not a number"):
        _ask(daemon, Request("flush", BY), stack.name)
    _ask(daemon, Request("resume", BY), stack.name)  # runs into the same record
    eventually("the second failure", lambda: len(daemon.events("failed")) == 2)
    _ask(daemon, _set(stack.name, 1, 2), stack.name)
    eventually("the record after it", lambda: stack.ids() == [0, 2])
    daemon.terminate()
    assert daemon.wait() == 0


class _ResumesAtOnce(DaemonThread):
    """Resumes a mapping when the log says for the first time that it has failed."""

    resumed: Future[None] | None = None

    def write(self, line: str) -> None:
        super().write(line)
        event = json.loads(line)
        if event["event"] == "failed" and self.resumed is None:
            self.resumed = self.supervisor.controls[event["mapping"]].submit(Request("resume", BY))


def test_request_when_sent_at_once_after_the_log_of_a_failure_then_restarts_the_mapping(stack: Stack) -> None:
    other = f"{stack.name}_other"[-40:]
    for topic in (stack.name, other):
        stack.topic(1, topic)
        stack.table("id bigint", name=f"default.{topic}")
    stack.produce([{"id": "many"}])
    config = stack.config({}, {"name": other, "topics": [other], "table": f"default.{other}"})
    daemon = _ResumesAtOnce(config, (), None)
    try:
        resumed = eventually("the failure", lambda: daemon.resumed)
        resumed.result(LIMIT)
        eventually("the second failure", lambda: len(daemon.events("failed")) == 2)
    finally:
        daemon.kill()


def test_requests_when_the_mapping_is_standby_or_stopping_then_fail_and_an_accepted_pause_is_stored(
    stack: Stack,
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    config = stack.config()
    stack.produce(_rows(*range(10)))
    hold = Hold("staged")
    owner = stack.start(config, hold=hold)
    hold.wait()
    standby = stack.start(config)
    _reaches(standby, stack.name, "standby")
    with pytest.raises(RequestFailed, match="another daemon owns the mapping"):
        _ask(standby, Request("pause", BY), stack.name)
    pause = owner.supervisor.controls[stack.name].submit(Request("pause", BY))
    owner.terminate()
    hold.release()
    pause.result(LIMIT)
    assert _state(stack, config).paused
    assert owner.wait() == 0
    eventually("the takeover", lambda: standby.supervisor.monitors[stack.name].snapshot().is_owner)
    _reaches(standby, stack.name, "paused")
    assert stack.ids() == list(range(10))


def test_offline_change_when_a_daemon_runs_then_is_refused_and_otherwise_the_next_daemon_obeys(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce(_rows(*range(10)))
    config = stack.config({"start": "latest"})
    options = load([config]).mappings[0]
    stored = change_stored(_warehouse(stack), options, Request("pause", BY))  # before the first run
    assert stored.paused
    assert stored.position.offsets == {TopicPartition(stack.name, 0): 10}
    stack.produce(_rows(10, 11))
    stack.drain(config)
    assert stack.ids() == []
    change_stored(_warehouse(stack), options, _set(stack.name, 10, 5))
    change_stored(_warehouse(stack), options, Request("resume", BY))
    stack.drain(config)
    assert stack.ids() == list(range(5, 12))
    with pytest.raises(RequestFailed, match="flush"):
        change_stored(_warehouse(stack), options, Request("flush", BY))
    daemon = stack.start(config)
    _reaches(daemon, stack.name, "running")
    with pytest.raises(OwnerAlive, match=f"ingestd/ingestd/{stack.name[-40:]}/"):
        change_stored(_warehouse(stack), options, Request("pause", BY))
    assert not _state(stack, config).paused


@pytest.mark.soak
def test_offline_change_when_suspended_or_killed_then_changes_nothing_after_a_takeover(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    config = stack.config()
    stack.drain(config)
    for step in ("planned", "opened", "placed"):
        gate = stack.directory / step
        command = _start_command(config, f"{step}=hold:{gate}")
        eventually("the command to be blocked", lambda gate=gate: Path(f"{gate}.held").exists())  # type: ignore[misc]
        os.kill(command.pid, signal.SIGSTOP)
        daemon = stack.start(config)
        eventually("the takeover", lambda daemon=daemon: daemon.events("owner"))  # type: ignore[misc]
        gate.touch()
        os.kill(command.pid, signal.SIGCONT)
        assert command.wait(LIMIT) != 0
        assert not _state(stack, config).paused
        daemon.terminate()
        assert daemon.wait() == 0
    assert _start_command(config, "opened=kill").wait(LIMIT) == -signal.SIGKILL
    stack.drain(config)
    assert not _state(stack, config).paused
    assert _start_command(config, "committed=kill").wait(LIMIT) == -signal.SIGKILL
    stack.drain(config)
    assert _state(stack, config).paused


def test_pause_when_the_owner_is_suspended_meanwhile_then_it_commits_nothing_after_it_resumes(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    config = stack.config({"commit": {"interval": "100ms"}})
    daemon = stack.start_process(config)
    eventually("the owner", lambda: daemon.events("owner"))
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        stack.produce(_rows(*range(10)))
        assert change_stored(_warehouse(stack), load([config]).mappings[0], Request("pause", BY)).paused
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    eventually("the pause", lambda: daemon.events("paused"))
    assert _state(stack, config).paused
    assert stack.ids() == []


def _start_command(config: Path, failpoint: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "INGESTD_TESTING": "1", "INGESTD_FAILPOINT": failpoint}
    return subprocess.Popen([sys.executable, "-c", COMMAND, str(config)], env=environment)
