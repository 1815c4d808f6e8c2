"""The life of a sandbox with real processes: `up`, `down`, restarts, failing services and a killed `up`."""

from __future__ import annotations

import gzip
import json
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ingestd.sandbox import HIVESERVER2, KAFKA, METASTORE, Addresses, Sandbox, SandboxOptions, process
from ingestd.sandbox.hiveserver2 import Session, query
from ingestd.sandbox.state import Child, State, load, save
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually, require_rows

from .conftest import COMMAND, NO_NETWORK, Cli

# Starts a process under the guard and leaves it running.
LEAVE_RUNNING = """
import sys
from pathlib import Path
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.state import locked
folder = Path(sys.argv[1])
with locked(folder / "lock", "the test") as handle, Guard(handle) as guard:
    guard.start(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        log=folder / "log",
        cwd=folder,
        record=lambda child: print(child.pid, child.token, flush=True),
    )
    guard.release()
"""


class Box(NamedTuple):
    """A running sandbox."""

    cli: Cli
    addresses: dict[str, Any]


@pytest.fixture(scope="module")
def boxes(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Box, Box]]:
    """Yield two running sandboxes that were started at once, the first with HiveServer2. Tests leave both running."""
    clis = [Cli(tmp_path_factory.mktemp("box") / "state") for _ in range(2)]
    try:
        started = [clis[0].start("up", "--hiveserver2", "--output", "json"), clis[1].start("up", "--output", "json")]
        answers = [up.communicate(timeout=LIMIT) for up in started]
        assert [up.returncode for up in started] == [0, 0], answers
        first, second = (Box(cli, json.loads(answer[0])) for cli, answer in zip(clis, answers, strict=True))
        yield first, second
    finally:
        for cli in clis:
            cli.run("down")
    assert not [process for cli in clis for process in cli.processes()]


def test_sandbox_when_stopped_and_started_without_network_then_data_and_addresses_are_the_same(
    boxes: tuple[Box, Box],
) -> None:
    (cli, addresses), (other, _) = boxes
    assert set(addresses) == {
        *("kafka", "metastore", "hiveserver2", "warehouse", "spark", "state_dir", "storage", "hadoop_conf_dir"),
        *("target_metastore", "target_hiveserver2", "target_warehouse"),
    }
    admin = AdminClient({"bootstrap.servers": addresses["kafka"]})
    admin.create_topics([NewTopic("kept", 3)])["kept"].result(LIMIT)
    with closing(Session(addresses["hiveserver2"])) as session:
        session.query("create table kept(i int) stored as orc tblproperties('transactional'='true')")
        session.query("insert into kept values (7)")

    assert "stopped hiveserver2, metastore, kafka" in cli.run("down").stdout
    assert not cli.processes()
    assert len(other.processes()) == 2

    second = cli.run("up", "--hiveserver2", "--json", **NO_NETWORK)
    assert json.loads(second.stdout) == addresses
    assert len(admin.list_topics("kept", timeout=LIMIT).topics["kept"].partitions) == 3
    assert query(addresses["hiveserver2"], "select i from kept") == (["i"], [(7,)])


def test_stack_when_a_job_has_failed_while_reading_then_refuses_hiveserver2(
    boxes: tuple[Box, Box], tmp_path: Path
) -> None:
    lines = gzip.compress(random.Random(1).randbytes(200_000).hex().encode())
    (tmp_path / "lines.gz").write_bytes(lines[:100_000] + bytes(10_000) + lines[110_000:])
    hiveserver2 = boxes[0].addresses["hiveserver2"]
    require_rows(hiveserver2)
    with closing(Stack(Addresses(**boxes[0].addresses), "refused", tmp_path)) as stack:
        stack.sql(f"CREATE EXTERNAL TABLE torn (line string) STORED AS TEXTFILE LOCATION 'file:{tmp_path}'")
        with pytest.raises(AssertionError, match="counts 0 rows in a table of one row"):
            stack.sql("SELECT count(*) FROM torn WHERE line LIKE 'a%'")


def test_two_state_folders_when_started_at_once_then_are_independent_and_services_restart(
    boxes: tuple[Box, Box],
) -> None:
    (_, mine), (other, theirs) = boxes
    assert not set(mine.values()) & set(theirs.values()) - {None, "local"}
    assert len({_cluster_id(up["kafka"]) for up in (mine, theirs)}) == 2
    _break_and_restart(Sandbox(SandboxOptions(other.state_dir)))


def _cluster_id(kafka: str) -> str:
    return str(AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=LIMIT).cluster_id)


def _break_and_restart(box: Sandbox) -> None:
    box.pause_service(KAFKA)
    box.resume_service(KAFKA)
    box.pause_service(METASTORE)
    words = {KAFKA: "running", METASTORE: "silent", HIVESERVER2: "stopped"}
    eventually("Kafka to answer again", lambda: {state.name: state.word for state in box.status()} == words)
    box.stop_service(METASTORE, kill=True)
    assert box.status()[1].word == "stopped"
    box.start_service(METASTORE)
    assert box.status()[1].word == "running"
    assert "AcidHouseKeeperService" in box.log_path(METASTORE).read_text()


def test_status_and_logs_when_up_then_show_each_service(boxes: tuple[Box, Box]) -> None:
    cli = boxes[1].cli
    states = {state["name"]: state for state in json.loads(cli.run("status", "--json").stdout)}
    assert list(states) == [state["name"] for state in json.loads(cli.run("status", "--output", "json").stdout)]
    assert states["kafka"]["state"] == states["metastore"]["state"] == "running"
    assert states["hiveserver2"]["state"] == "stopped"
    assert states["kafka"]["memory_mb"] > 50
    assert "\x1b" not in cli.run("status").stdout
    assert "AcidHouseKeeperService" in cli.run("logs", "metastore", "-n", "500").stdout
    assert len(cli.run("logs", "metastore", "-n", "3").stdout.splitlines()) == 3
    assert {line.partition(":")[0] for line in cli.run("logs").stdout.splitlines()} == {"kafka", "metastore"}


def test_status_and_down_when_never_started_then_create_no_state_folder(cli: Cli) -> None:
    assert all(state["state"] == "stopped" for state in json.loads(cli.run("status", "--output", "json").stdout))
    assert cli.run("down").stdout == "nothing was running\n"
    assert not cli.state_dir.exists()


@pytest.mark.parametrize(
    ("number", "step"),
    [(signal.SIGKILL, "preparing metastore"), (signal.SIGKILL, "waiting"), (signal.SIGTERM, "waiting")],
)
def test_up_when_it_is_killed_then_leaves_no_process(cli: Cli, number: signal.Signals, step: str) -> None:
    with cli.start("up") as up:
        assert up.stderr
        for line in up.stderr:
            if line.startswith(step):
                break
        eventually("a JVM", cli.processes)
        up.send_signal(number)
        assert up.wait(LIMIT) != 0
    cli.wait_until_nothing_runs()
    assert cli.run("down").stdout == "nothing was running\n"


def test_down_when_a_pid_was_reused_then_does_not_end_that_process(cli: Cli) -> None:
    cli.state_dir.mkdir()
    with subprocess.Popen(["sleep", "600"]) as other:
        save(cli.state_dir, State(ports={"kafka": 1}, children={"kafka": Child(other.pid, "-Dingestd.sandbox=x")}))
        assert cli.run("down").stdout == "nothing was running\n"
        assert other.poll() is None
        other.kill()
    assert not load(cli.state_dir).children


def test_process_when_it_ignores_sigterm_then_is_killed() -> None:
    ignoring = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", ignoring, "token-1"], stdout=subprocess.PIPE) as started:
        assert started.stdout
        assert started.stdout.readline() == b"ready\n"
        process.end([Child(started.pid, "token-1")], grace_seconds=0.2)
        assert started.wait(LIMIT) == -signal.SIGKILL


def test_program_when_its_process_outlives_it_then_ends_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", LEAVE_RUNNING, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    pid, token = answer.stdout.split()
    left = Child(int(pid), token)
    assert process.find(left)
    process.end([left], grace_seconds=10)
    assert answer.stderr == ""


def test_up_when_a_port_is_in_use_then_names_it(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = cli.run("up", "--kafka-port", str(port))
    _assert_one_sentence(answer, f"port {port} for kafka is in use")


def test_up_when_the_number_of_brokers_differs_then_says_so(cli: Cli) -> None:
    cli.state_dir.mkdir()
    save(cli.state_dir, State(ports={KAFKA: 20_001, "kafka-2": 20_002, "kafka-3": 20_003}))
    answer = cli.run("up")
    assert answer.returncode == 69
    assert "cannot change from 3 to 1" in answer.stderr


def test_up_when_memory_is_not_sufficient_then_says_so(cli: Cli) -> None:
    _assert_one_sentence(cli.run("up", "--kafka-heap-mb", "100000000"), "not enough memory")


def test_up_when_a_service_exits_at_once_then_fails_and_leaves_no_process(cli: Cli) -> None:
    # Classes of an archive need no space.
    answer = cli.run("up", JAVA_TOOL_OPTIONS="-Xshare:off -XX:MaxMetaspaceSize=12m")
    # Without a template in the cache, Kafka's format tool fails instead.
    _assert_one_sentence(answer, r"kafka exited during startup|Kafka's log folder could not be formatted")
    assert not cli.processes()


def test_up_when_the_database_cannot_be_used_then_says_so_without_the_password(cli: Cli) -> None:
    _assert_one_sentence(cli.run("up", "--metastore-db", "mysql://u:secret@h/d"), "not a PostgreSQL address")
    answer = cli.run("up", "--metastore-db", "postgresql://u:secret@127.0.0.1:9/d")
    _assert_one_sentence(answer, "database cannot be used")
    assert "secret" not in answer.stderr
    assert not cli.processes()


def _assert_one_sentence(answer: subprocess.CompletedProcess[str], words: str) -> None:
    assert answer.returncode == 69
    assert answer.stdout == ""
    assert re.search(words, answer.stderr.splitlines()[-1])
    assert "Traceback" not in answer.stderr


def test_up_when_a_file_cannot_be_written_then_names_the_folder_in_one_sentence(cli: Cli) -> None:
    command = ["/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *COMMAND, "up", "--state-dir", str(cli.state_dir)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 69
    assert said.stderr.splitlines()[-1] == f"ingestd: {cli.state_dir}: File too large"
    assert "Traceback" not in said.stderr
    assert f"no logs yet in {cli.state_dir}" in cli.run("logs").stderr
