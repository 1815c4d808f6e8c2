"""`ingestd status` and `ingestd offsets show` on the real services, with and without a daemon."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ingestd.config.document import Scope
from ingestd.daemon import log
from ingestd.hive.control import find_control_table
from ingestd.hive.tables import TableName
from tests.support.command import Run
from tests.support.flow import wait_for_rows
from tests.support.http import StaticFleet, serving
from tests.support.metastore import free_port
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually


def _rows(first: int, last: int) -> list[dict[str, int]]:
    return [{"id": i} for i in range(first, last)]


def test_status_when_no_daemon_runs_then_reads_hive_and_kafka_and_changes_nothing(run: Run, stack: Stack) -> None:
    stack.topic(2)
    stack.table("id bigint")
    config = stack.config()
    name = stack.name[-40:]
    # Before the first run.
    [fresh] = run("status", "--output", "json", "--config", config).json["mappings"]
    assert (fresh["state"], fresh["owner"], fresh["last_commit"], fresh["lag_offsets"]) == ("unowned", "", None, 0)
    assert find_control_table(stack.metastore, TableName("ingestd", f"mapping_{name}")) is None
    # While a daemon owns the mapping, and its HTTP server is not used.
    stack.produce(_rows(0, 10), partition=0)
    daemon = stack.start(config)
    eventually("the commit", lambda: stack.count() == 10)
    [owned] = run("status", "--output", "json", "--config", config).json["mappings"]
    assert (owned["name"], owned["table"], owned["topics"]) == (name, f"default.{stack.name}", [stack.name])
    assert (owned["state"], owned["lag_offsets"], owned["rows"]) == ("owned", 0, 10)
    assert owned["owner"].startswith(f"ingestd/ingestd/{name}/")
    assert owned["last_commit"]["owner"] == owned["owner"]

    def has_another_heartbeat() -> bool:
        [later] = run("status", "--output", "json", "--config", config).json["mappings"]
        return bool(later["owner_heartbeat_unix"] > owned["owner_heartbeat_unix"])

    eventually("a heartbeat of the owner", has_another_heartbeat)
    # After its end, with records that are not committed.
    daemon.terminate()
    assert daemon.wait() == 0
    stack.produce(_rows(10, 15), partition=1)
    result = run("status", "--output", "json", "--config", config)
    document = result.json
    assert (result.code, document["source"], document["exit_code"]) == (0, "services", 0)
    [ended] = document["mappings"]
    assert (ended["state"], ended["owner"], ended["lag_offsets"]) == ("unowned", "", 5)
    keys = ("partition", "earliest", "position", "end", "lag_offsets")
    assert [[p[key] for key in keys] for p in ended["partitions"]] == [[0, 0, 10, 10, 0], [1, 0, 0, 5, 5]]
    table = run("status", "--config", config)
    assert table.code == 0
    assert "read from Hive and Kafka: 1 mapping" in table.out
    assert name in table.out
    assert "unowned" in table.out


def test_offsets_show_then_shows_committed_and_available_offsets(run: Run, stack: Stack) -> None:
    stack.topic(2)
    stack.table("id bigint")
    config = stack.config()
    name = stack.name[-40:]
    before = run("offsets", "show", name, "--output", "json", "--config", config).json
    assert before["last_commit"] is None
    assert [offset["committed"] for offset in before["offsets"]] == [None, None]
    stack.produce(_rows(0, 10), partition=0)
    stack.drain(config)
    stack.produce(_rows(10, 13), partition=1)
    after = run("offsets", "show", name, "--output", "json", "--config", config).json
    keys = ("topic", "partition", "earliest", "committed", "end", "lag")
    expected = [[stack.name, 0, 0, 10, 10, 0], [stack.name, 1, 0, 0, 3, 3]]
    assert [[offset[key] for key in keys] for offset in after["offsets"]] == expected
    assert after["last_commit"]["txn"] > 0
    table = run("offsets", "show", name, "--config", config).out.splitlines()
    assert table[0].split() == list(keys)
    assert [line.split() for line in table[1:]] == [[str(value) for value in row] for row in expected]
    unknown = run("offsets", "show", "nothing", "--config", config)
    assert (unknown.code, unknown.out) == (78, "")
    assert f"no mapping is named nothing → the mappings are {name}" in unknown.err


def _without_services(directory: Path, listen: str) -> Path:
    """Write a configuration whose metastore and Kafka do not answer, and return its path."""
    config = directory / "a.yaml"
    config.write_text(
        "{metastore: {uri: 'thrift://127.0.0.1:1', timeout: 2s}, kafka: {bootstrap.servers: '127.0.0.1:1'}, "
        f"http: {{listen: '{listen}'}}, mappings: [{{name: orders, topics: [orders], table: shop.orders}}]}}"
    )
    return config


def test_status_when_no_service_answers_then_shows_the_problem_and_exit_code_is_69(run: Run, tmp_path: Path) -> None:
    config = _without_services(tmp_path, "off")
    result = run("status", "--output", "json", "--config", config)
    assert result.code == 69
    [mapping] = result.json["mappings"]
    assert mapping["state"] == "unknown"
    assert mapping["problem"]["reason"] == "MetastoreUnavailable"
    problem = mapping["problem"]
    shown = run("status", "--config", config).out
    assert f"orders: {problem['where']}: {problem['error']} → {problem['hint']}\n" in shown
    assert "check that the metastore is running" in shown


def test_status_when_the_daemon_of_a_url_does_not_answer_then_exit_code_is_69(run: Run) -> None:
    result = run("status", "--url", "http://127.0.0.1:1")
    assert (result.code, result.out) == (69, "")
    assert "daemon http://127.0.0.1:1: " in result.err
    assert run("status", "--url", "ftp://x").code == 78
    assert run("status", "--watch", "--output", "json", "--url", "http://127.0.0.1:1").code == 2


@pytest.mark.parametrize(
    ("scope", "mapping", "problem"),
    [
        (Scope(("127.0.0.1:1", "other:9083"), "ingestd"), "orders", ""),
        (Scope(("127.0.0.1:1",), "other"), "orders", "another configuration answers there (metastore 127.0.0.1:1, "),
        (Scope(("127.0.0.1:2",), "ingestd"), "orders", "control database ingestd)"),
        (Scope(("127.0.0.1:1",), "ingestd"), "clicks", "it runs no mapping of this one"),
    ],
)
def test_status_when_a_daemon_answers_then_it_is_used_only_if_it_has_the_configuration(
    run: Run, tmp_path: Path, scope: Scope, mapping: str, problem: str
) -> None:
    log.configure("json", "error")
    fleet = StaticFleet(scope=scope)
    fleet.run(mapping)
    with serving(fleet) as client:
        config = _without_services(tmp_path, str(client.address))
        result = run("status", "--output", "json", "--config", config)
        assert result.json["source"] == ("services" if problem else "daemon")
        assert result.code == (69 if problem else 0)
        assert problem in result.err
        assert bool(problem) == bool(result.err)
        if problem:
            flushed = run("mappings", "flush", "orders", "--config", config)
            assert flushed.code == 69
            assert problem in flushed.err
            assert "no daemon answers that could flush it" in flushed.err
        # An operator who names the daemon gets its answer.
        named = run("status", "--output", "json", "--config", config, "--url", f"http://{client.address}")
        assert named.json["daemon"]["metastore"] == list(scope.metastore)
        assert named.json["daemon"]["control_database"] == scope.control_database


def _shown_on_a_terminal(command: list[str]) -> bytes:
    """Run a command on a terminal, end it with Ctrl-C after its first table, and return what it has written."""
    terminal, inner = pty.openpty()
    shown = b""
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner) as watch:
        os.close(inner)
        while b" mapping" not in shown:
            shown += os.read(terminal, 65536)
        watch.send_signal(signal.SIGINT)
        with suppress(OSError):  # the end of the terminal
            while part := os.read(terminal, 65536):
                shown += part
        assert watch.wait(LIMIT) == 0
    os.close(terminal)
    return shown


def test_status_when_a_daemon_answers_then_shows_what_it_reports(run: Run, stack: Stack, tmp_path: Path) -> None:
    stack.topic(1)
    stack.table("id bigint")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef", encoding="ascii")
    config = stack.config(http={"listen": f"127.0.0.1:{free_port()}", "token_file": str(token)})
    stack.produce(_rows(0, 7))
    daemon = stack.start(config)
    wait_for_rows(daemon, stack.name[-40:], 7)

    def reported() -> Any:
        shown = run("status", "--output", "json", "--config", config).json
        [mapping] = shown["mappings"]
        has_commit = mapping["lag_offsets"] == 0 and mapping.get("totals", {}).get("rows")
        return shown if has_commit else None

    document = eventually("the commit to be reported", reported)
    assert (document["source"], document["version"], document["daemon"]["pid"]) == ("daemon", 1, os.getpid())
    [mapping] = document["mappings"]
    assert (mapping["state"], mapping["totals"]["rows"], mapping["lag_offsets"]) == ("running", 7, 0)
    table = run("status", "--config", config).out.splitlines()
    assert table[0].startswith(f"daemon {document['daemon']['release']} on ")
    assert table[2].split()[:4] == [mapping["name"], mapping["table"], "running", "0"]
    assert daemon.http
    [listed] = run("mappings", "list", "--output", "json", "--url", daemon.http.url).json
    assert listed == {key: mapping[key] for key in ("name", "topics", "table", "state", "owner")}
    watching = [sys.executable, "-m", "ingestd", "status", "--watch", "--url", daemon.http.url]
    with subprocess.Popen(watching, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watch:
        assert watch.stdout
        assert watch.stdout.readline().startswith("daemon ")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(LIMIT) == 0
    shown = _shown_on_a_terminal(watching)
    assert b"1 mapping" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")  # the cursor is visible again
    wrong = tmp_path / "wrong"
    wrong.write_text("fedcba9876543210", encoding="ascii")
    refused = run("mappings", "flush", mapping["name"], "--config", config, "--token-file", wrong)
    assert refused.code == 77
    assert "the token is missing or wrong → use --token-file" in refused.err
    unknown = run("mappings", "flush", "nothing", "--config", config)
    assert (unknown.code, unknown.out) == (1, "")
    assert "no mapping has this name" in unknown.err
