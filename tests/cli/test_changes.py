"""Changes of a mapping by commands: exact, complete or not at all, and refused when they no longer apply."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from ingestd.hive import leases
from ingestd.hive.control import find_control_table, read_state
from ingestd.hive.tables import TableName, read_table
from ingestd.publish.staging import DAEMON
from ingestd.storage.local import local_path
from tests.support.command import Run
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually, wait_for_topic


def _rows(first: int, last: int) -> list[dict[str, int]]:
    return [{"id": i} for i in range(first, last)]


@dataclass
class Mapping:
    """A mapping with one topic partition, and the commands that change it."""

    stack: Stack
    config: Path
    run: Run

    @property
    def name(self) -> str:
        return self.stack.name[-40:]

    def shown(self) -> Any:
        """Return the document of `offsets show`."""
        return self.run("offsets", "show", self.name, "--output", "json", "--config", self.config).json

    def position(self) -> int:
        """Return the committed position of partition 0."""
        return int(self.shown()["offsets"][0]["committed"])

    def rewind(self, *arguments: object) -> Any:
        """Rewind with --yes and return the result."""
        return self.run("offsets", "rewind", self.name, *arguments, "--yes", "--config", self.config)

    def start_rewind(self, offset: int, failpoint: str) -> subprocess.Popen[str]:
        """Start a process that rewinds partition 0 and acts at a failpoint."""
        return self._start(failpoint, "offsets", "rewind", self.name, "--to-offset", str(offset))

    def start_retire(self, failpoint: str) -> subprocess.Popen[str]:
        """Start a process that retires the mapping and acts at a failpoint."""
        return self._start(failpoint, "mappings", "retire", self.name)

    def state(self) -> str:
        """Return the text of the stored state."""
        control = find_control_table(self.stack.metastore, TableName("ingestd", f"mapping_{self.name}"))
        assert control is not None
        return read_state(self.stack.metastore, control)

    def _start(self, failpoint: str, *command: str) -> subprocess.Popen[str]:
        arguments = [*command, "--yes", "--config", str(self.config)]
        environment = {**os.environ, "INGESTD_TESTING": "1", "INGESTD_FAILPOINT": failpoint}
        return subprocess.Popen(
            [sys.executable, "-m", "ingestd", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def mapping(stack: Stack, run: Run) -> Mapping:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce(_rows(0, 10))
    config = stack.config()
    stack.drain(config)
    return Mapping(stack, config, run)


def test_rewind_then_exactly_the_named_range_is_read_again_and_recorded(run: Run, mapping: Mapping) -> None:
    result = mapping.rewind("--to-offset", 4)
    assert result.code == 0, result.text
    assert "6 offsets are read again" in result.out
    assert "changed: the committed position" in result.out
    shown = mapping.shown()
    assert shown["offsets"][0]["committed"] == 4
    assert f"{mapping.stack.name}[0] 10 -> 4" in shown["last_change"]["change"]
    assert "@" in shown["last_change"]["by"]
    mapping.stack.drain(mapping.config)
    assert mapping.stack.ids() == sorted([*range(10), *range(4, 10)])
    assert mapping.position() == 10
    # Skipping is exact, too.
    mapping.stack.produce(_rows(10, 15))
    assignment = f"{mapping.stack.name}:0=13"
    assert run("offsets", "set", mapping.name, assignment, "--yes", "--config", mapping.config).code == 0
    mapping.stack.drain(mapping.config)
    assert mapping.stack.ids() == sorted([*range(10), *range(4, 10), 13, 14])


def test_rewind_when_killed_after_any_step_then_the_position_is_the_old_or_the_new_one(mapping: Mapping) -> None:
    for step, position in (("opened", 10), ("locked", 10), ("counted", 10), ("committed", 5)):
        with mapping.start_rewind(5, f"{step}=kill") as process:
            assert process.wait(LIMIT) == -signal.SIGKILL, process.communicate()
        assert mapping.position() == position, step
    mapping.stack.drain(mapping.config)
    assert mapping.stack.ids() == sorted([*range(10), *range(5, 10)])


def _assert_refused(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a command that was resumed, and check that it failed without a stack trace."""
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode not in (0, -signal.SIGKILL), output
    assert "Traceback" not in output


def test_rewind_when_suspended_until_a_daemon_took_over_then_changes_nothing(mapping: Mapping, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with mapping.start_rewind(5, f"counted=hold:{gate}") as process:
        try:
            eventually("the step", Path(f"{gate}.held").exists)
            process.send_signal(signal.SIGSTOP)
            mapping.stack.produce(_rows(10, 12))
            daemon = mapping.stack.start(mapping.config)
            eventually("the daemon to take over and commit", lambda: mapping.stack.count() == 12)
            gate.touch()
        finally:
            process.send_signal(signal.SIGCONT)
        _assert_refused(process)
    assert mapping.position() == 12
    # While the daemon owns the mapping, the command is refused.
    refused = mapping.rewind("--to-offset", 5)
    assert refused.code == 69
    assert "--hand-over" in refused.err
    assert daemon.events("owner")[0]["mapping"] == mapping.name
    assert mapping.stack.ids() == list(range(12))


def test_rewind_when_the_position_changes_before_the_answer_then_is_refused(mapping: Mapping) -> None:
    terminal, other_end = pty.openpty()
    command = ["offsets", "rewind", mapping.name, "--to-offset", "3", "--config", str(mapping.config)]
    with subprocess.Popen(
        [sys.executable, "-m", "ingestd", *command],
        stdin=other_end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        prompt = process.stderr.read(len("Change the committed position"))
        mapping.stack.produce(_rows(10, 11))
        mapping.stack.drain(mapping.config)
        os.write(terminal, b"y\n")
        said = process.stderr.read()
    os.close(terminal)
    os.close(other_end)
    assert prompt == "Change the committed position"
    assert process.returncode == 69, said
    assert "but the request expects" in said
    assert mapping.position() == 11


def _recreate(mapping: Mapping, partitions: int) -> None:
    for answer in mapping.stack.admin.delete_topics([mapping.stack.name]).values():
        answer.result(LIMIT)
    eventually("the deletion", lambda: mapping.stack.name not in mapping.stack.admin.list_topics(timeout=LIMIT).topics)
    mapping.stack.topic(partitions)


def test_position_when_the_topic_was_recreated_then_nothing_of_the_old_one_remains(run: Run, stack: Stack) -> None:
    stack.topic(2)
    stack.table("id bigint")
    stack.produce(_rows(0, 10), partition=1)
    config = stack.config()
    stack.drain(config)
    mapping = Mapping(stack, config, run)
    _recreate(mapping, 1)
    stack.produce(_rows(10, 13))
    result = mapping.rewind("--to-earliest")
    assert result.code == 0, result.text
    stack.drain(config)
    assert stack.ids() == list(range(13))
    # The new partition 1 starts at its first offset, although partition 1 of the old topic was read up to offset 10.
    for answer in stack.admin.create_partitions([NewPartitions(stack.name, 2)]).values():
        answer.result(LIMIT)
    wait_for_topic(stack.admin, stack.name, 2)
    stack.produce(_rows(13, 25), partition=1)
    stack.drain(config)
    assert stack.ids() == list(range(25))
    # An offset of the new topic is set, although the same offset of the old topic is committed.
    _recreate(mapping, 1)
    stack.produce(_rows(100, 105))
    assignment = f"{stack.name}:0=3"
    result = run("offsets", "set", mapping.name, assignment, "--yes", "--config", config)
    assert result.code == 0, result.text
    stack.drain(config)
    assert stack.ids() == [*range(25), 103, 104]


def test_requests_when_a_daemon_runs_then_it_carries_them_out(run: Run, stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    config = stack.config(http={"listen": "127.0.0.1:0"}, defaults={"commit": {"interval": "10m"}})
    daemon = stack.start(config)
    mapping = Mapping(stack, config, run)
    eventually("the daemon to become owner", lambda: daemon.events("owner"))
    assert daemon.http
    at = ("--url", daemon.http.url, "--config", config)
    stack.produce(_rows(0, 10))
    assert run("mappings", "flush", mapping.name, *at).out == f"mapping {mapping.name}: flush done\n"
    assert stack.ids() == list(range(10))
    moved = run("offsets", "rewind", mapping.name, "--to-offset", 8, "--hand-over", "--yes", "--output", "json", *at)
    assert moved.code == 0, moved.text
    assert (moved.json["result"], moved.json["moves"][0]["read_again"]) == ("changed", 2)
    run("mappings", "flush", mapping.name, *at)
    assert stack.ids() == sorted([*range(10), 8, 9])
    assert run("mappings", "pause", mapping.name, "--output", "json", *at).json["result"] == "done"
    assert mapping.shown()["paused"]
    assert run("mappings", "resume", mapping.name, *at).code == 0
    assert not mapping.shown()["paused"]
    refused = run("mappings", "retire", mapping.name, "--yes", "--config", config)
    assert refused.code == 69
    assert "a running daemon owns the mapping" in refused.err


def test_retire_when_the_owner_was_cut_off_then_it_does_not_read_everything_again(mapping: Mapping) -> None:
    run, stack = mapping.run, mapping.stack
    with proxy(stack.addresses.metastore) as between:
        # A second mapping keeps the daemon running.
        other = f"{stack.name}_other"[-40:]
        topic = stack.topic(1, other)
        stack.table("id bigint", name=f"default.{other}")
        config = stack.config(
            {},
            {"name": other, "topics": [topic], "table": f"default.{other}"},
            metastore={"uri": between.uri, "timeout": "5s"},
        )
        daemon = stack.start(config)
        both = {mapping.name, other}
        eventually("the daemon to own both", lambda: {event["mapping"] for event in daemon.events("owner")} == both)
        between.flowing.clear()
        retired = run("mappings", "retire", mapping.name, "--yes", "--config", mapping.config)
        assert retired.code == 0, retired.text
        between.flowing.set()
        monitor = daemon.supervisor.monitors[mapping.name]
        eventually("the end of the mapping", lambda: monitor.snapshot().state == "failed" or stack.count() > 10)
        problem = monitor.snapshot().problem
        assert problem is not None
        assert "the mapping was retired" in problem.what
        assert stack.ids() == list(range(10))
        daemon.terminate()
        assert daemon.wait() == 65


def test_retire_when_the_topic_was_deleted_then_removes_the_state(mapping: Mapping) -> None:
    run, stack = mapping.run, mapping.stack
    for answer in stack.admin.delete_topics([stack.name]).values():
        answer.result(LIMIT)
    eventually("the deletion", lambda: stack.name not in stack.admin.list_topics(timeout=LIMIT).topics)
    other = stack.config({"name": "other"})
    retired = run("mappings", "retire", mapping.name, "--yes", "--config", other)
    assert retired.code == 0, retired.text
    assert mapping.state() == ""


def test_retire_when_the_owner_was_killed_then_no_staged_file_remains(run: Run, stack: Stack) -> None:
    name = stack.name[-40:]
    stack.topic(1)
    stack.table("id bigint")
    letters = f"default.{stack.name}_dead"
    config = stack.config({"on_error": "dead_letter", "dead_letter": {"table": letters}})
    stack.drain(config)
    stack.produce([{"id": 1}, b"{"])
    failpoint = {"INGESTD_TESTING": "1", "INGESTD_FAILPOINT": "staged=kill"}
    assert stack.start_process(config, **failpoint).wait() == -signal.SIGKILL

    def staged() -> list[Path]:
        names = (TableName("default", stack.name), TableName.parse(letters))
        places = [local_path(read_table(stack.metastore, name).sd.location) for name in names]
        return [path for place in places for path in (place / DAEMON).glob("*")]

    assert len(staged()) == 2
    # The mapping has been removed from the configuration.
    retired = run("mappings", "retire", name, "--yes", "--config", stack.config({"name": "other"}))
    assert retired.code == 0, retired.text
    assert staged() == []


def test_retire_when_killed_suspended_or_unanswered_then_the_state_is_complete_or_removed(
    mapping: Mapping, tmp_path: Path
) -> None:
    stack = mapping.stack
    with mapping.start_retire("locked=kill") as process:
        assert process.wait(LIMIT) == -signal.SIGKILL, process.communicate()
    assert mapping.position() == 10
    gate = tmp_path / "gate"
    with mapping.start_retire(f"locked=hold:{gate}") as process:
        try:
            eventually("the step", Path(f"{gate}.held").exists)
            process.send_signal(signal.SIGSTOP)
            # As if it had been suspended for so long that its lease has ended.
            for claim in leases.claims(stack.metastore, TableName("ingestd", f"owner_{mapping.name}")):
                leases.release(stack.metastore, claim.lock_id)
            stack.produce(_rows(10, 12))
            stack.drain(mapping.config)
            gate.touch()
        finally:
            process.send_signal(signal.SIGCONT)
        _assert_refused(process)
    assert mapping.position() == 12
    assert stack.ids() == list(range(12))
    with proxy(stack.addresses.metastore) as between:
        between.lose_answer("commit_txn")
        config = stack.config(metastore={"uri": between.uri})
        retired = mapping.run("mappings", "retire", mapping.name, "--yes", "--config", config)
    assert retired.code == 0, retired.text
    assert mapping.state() == ""


def test_pause_when_no_daemon_runs_then_the_next_daemon_obeys_it_and_retire_removes_the_state(mapping: Mapping) -> None:
    run, stack = mapping.run, mapping.stack
    assert run("mappings", "pause", mapping.name, "--config", mapping.config).code == 0
    [entry] = run("status", "--output", "json", "--config", mapping.config).json["mappings"]
    assert entry["state"] == "paused"
    stack.produce(_rows(10, 12))
    daemon = stack.start(mapping.config)
    eventually("the pause", lambda: daemon.supervisor.monitors[mapping.name].snapshot().state == "paused")
    daemon.terminate()
    assert daemon.wait() == 0
    assert run("mappings", "resume", mapping.name, "--config", mapping.config).code == 0
    stack.drain(mapping.config)
    assert stack.ids() == list(range(12))
    assert stack.group_offsets(f"ingestd-{mapping.name}", stack.name, 1) == [12]
    # The mapping has been removed from the configuration.
    other = stack.config({"name": "other"})
    misspelled = run("mappings", "retire", mapping.name.upper(), "--yes", "--config", other)
    assert misspelled.code == 78, misspelled.text
    retired = run("mappings", "retire", mapping.name, "--yes", "--config", other)
    assert retired.code == 0, retired.text
    assert f"control table: ingestd.mapping_{mapping.name}, 1 partitions" in retired.out
    assert mapping.state() == ""
    assert stack.group_offsets(f"ingestd-{mapping.name}", stack.name, 1) == [-1001]
    assert stack.ids() == list(range(12))
    gone = run("mappings", "retire", mapping.name, "--yes", "--config", other)
    assert gone.code == 78
    assert f"no mapping is named {mapping.name}" in gone.err
