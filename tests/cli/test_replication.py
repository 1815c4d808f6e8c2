"""`ingestd policy` and `ingestd repl` on two metastores: policies from statements and options, and steps by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestd.clock import now
from ingestd.daemon import log
from ingestd.hive.tables import TableName
from ingestd.replication.cycle import Step
from ingestd.replication.statements.grammar import CreatePolicy
from tests.support.command import Result, Run, in_terminal
from tests.support.replica import Side
from tests.support.replica_policies import NEVER, Pair, add_large_table
from tests.support.replica_tables import EXTERNAL, make_table, move_table
from tests.support.spark_events import SparkEvents


@pytest.fixture
def config(pair: Pair, tmp_path: Path) -> dict[str, Path]:
    """Return the configuration file of each side."""
    files = {}
    for side in (pair.replica.source, pair.replica.target):
        document = {
            "metastore": {"uri": side.uri},
            "control": {"database": pair.namespace},
            "http": {"listen": "off"},
            "replication": {"namespace": pair.namespace},
        }
        files[side.name] = tmp_path / f"{side.name}.yaml"
        files[side.name].write_text(yaml.safe_dump(document))
    return files


def _json(result: Result) -> Any:
    assert result.code == 0, result.text
    return json.loads(result.out)


def test_policy_when_created_and_changed_by_statements_then_is_listed(
    run: Run, pair: Pair, config: dict[str, Path]
) -> None:
    where = ("--config", config["source"])
    text = f"CREATE SCHEDULED QUERY dump EVERY 30 MINUTES AS {pair.dump_statement}"
    made = _json(run("policy", "create", text, *where, "--output", "json"))
    assert (made["name"], made["state"], made["schedule"]) == ("dump", "idle", "EVERY 30 MINUTES")
    assert (made["statement"], made["user"], made["enabled"]) == (str(pair.dump_statement), None, True)
    assert made["next_execution_unix"] % 1800 == 0
    assert run("policy", "create", text, *where).code == 78
    altered = run("policy", "alter", "ALTER SCHEDULED QUERY dump EVERY DAY AT ‘11:35:30’", *where)
    assert "schedule:       EVERY DAY AT '11:35:30'" in altered.out
    assert "state:          disabled" in run("policy", "disable", "dump", *where).out
    refused = run("policy", "execute", "dump", *where)
    assert refused.code == 78
    assert "the policy is disabled → enable it first: `ingestd policy enable dump`" in refused.err
    assert "state:          idle" in run("policy", "enable", "dump", *where).out
    for command, word, state in (("disable", "DISABLED", "disabled"), ("enable", "ENABLE", "idle")):
        switched = _json(run("policy", command, f"ALTER SCHEDULED QUERY dump {word}", *where, "--output", "json"))
        assert switched["state"] == state
    for command in ("execute", "alter"):
        executed = _json(run("policy", command, "ALTER SCHEDULED QUERY dump EXECUTE", *where, "--output", "json"))
        assert executed["next_execution_unix"] <= now()
    (listed,) = _json(run("policy", "list", *where, "--output", "json"))
    assert listed["name"] == "dump"
    row = run("policy", "list", *where).out.splitlines()[1].split()
    assert row[:3] == ["dump", "DUMP", pair.database]
    assert run("policy", "drop", "DROP SCHEDULED QUERY dump;", *where).out == "policy dump: dropped\n"
    assert _json(run("policy", "list", *where, "--output", "json")) == []
    assert "policy dump: the policy does not exist" in run("policy", "show", "dump", *where).err


def test_policy_when_dropped_without_its_storage_then_says_what_remains(
    run: Run, pair: Pair, config: dict[str, Path]
) -> None:
    where = ("--config", config["source"])
    statement = f"REPL DUMP {pair.database} WITH (‘hive.repl.rootdir’=’hdfs://<NameNodeHost:port>/user/hive/repl’)"
    run("policy", "create", f"CREATE SCHEDULED QUERY dump EVERY DAY AS {statement}", *where)
    dropped = run("policy", "drop", "dump", *where)
    assert dropped.code == 69
    assert "the policy dump is dropped, but its directory of dumps is not released" in dropped.err
    assert "remove the file _source there" in dropped.err
    assert "the policy does not exist" in run("policy", "show", "dump", *where).err


def test_policy_when_created_from_options_then_is_the_same(run: Run, pair: Pair, config: dict[str, Path]) -> None:
    where = ("--config", config["target"], "--output", "json")
    options = ("--schedule", "EVERY 45 MINUTES", "--run", str(pair.load_statement), "--user", "joe", "--disabled")
    made = _json(run("policy", "create", "load", *options, *where))
    assert (made["statement"], made["user"], made["enabled"]) == (str(pair.load_statement), "joe", False)
    assert (made["schedule"], made["cron"]) == ("EVERY 45 MINUTES", "0 0/45 * * * ? *")
    altered = _json(run("policy", "alter", "load", "--schedule", "CRON '0 0 12 * * ?'", *where))
    assert (altered["schedule"], altered["user"]) == ("CRON '0 0 12 * * ?'", "joe")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "p"), "write a statement CREATE SCHEDULED QUERY …, or the name with --schedule and --run"),
        (("create", "DROP SCHEDULED QUERY p"), "write a statement CREATE SCHEDULED QUERY for this command"),
        (("create", "CREATE SCHEDULED QUERY p", "--user", "me"), "cannot be combined with options"),
        (("create", "p", "--schedule", "EVERY DAY", "--run", "REPL STATUS x"), "--run must be a statement REPL DUMP"),
        (("alter", "p"), "write a statement ALTER SCHEDULED QUERY"),
        (("enable", "ALTER SCHEDULED QUERY p DISABLE"), "write a statement ALTER SCHEDULED QUERY … ENABLE for this"),
        (("disable", "DROP SCHEDULED QUERY p"), "write a statement ALTER SCHEDULED QUERY for this command"),
    ],
)
def test_policy_when_the_command_is_incomplete_then_says_what_to_write(
    run: Run, config: dict[str, Path], arguments: tuple[str, ...], message: str
) -> None:
    result = run("policy", *arguments, "--config", config["source"])
    assert result.code == 2
    assert message in result.err


def test_policy_when_a_statement_is_wrong_then_error_has_the_position(run: Run, config: dict[str, Path]) -> None:
    text = "CREATE SCHEDULED QUERY p EVERY DAY AS REPL DUMP a WITH ('hive.repl.rotdir'='x')"
    result = run("policy", "create", text, "--config", config["source"])
    assert result.code == 78
    assert "line 1, column 57 of the statement: hive.repl.rotdir: REPL DUMP has no setting" in result.err
    assert "did you mean hive.repl.rootdir?" in result.err


def test_cycle_when_run_by_hand_then_copies_and_reports(run: Run, pair: Pair, config: dict[str, Path]) -> None:
    source, target = ("--config", config["source"]), ("--config", config["target"])
    pair.insert([(1, "a")])
    assert run("repl", "load", str(pair.load_statement), *target).out == "load: skipped: there is no dump yet\n"
    dumped = run("repl", "dump", str(pair.dump_statement), *source)
    assert dumped.code == 0, dumped.text
    assert dumped.out.startswith("dump: bootstrap complete up to event ")
    assert ": 1 tables\n" in dumped.out
    missing = run("repl", "status", pair.target, *target)
    assert (missing.code, f"database {pair.target}: the database does not exist" in missing.err) == (78, True)
    loaded = _json(run("repl", "load", str(pair.load_statement), *target, "--output", "json"))
    assert (loaded["phase"], loaded["skipped"], loaded["counts"]["tables"]) == ("BOOTSTRAP", None, 1)
    assert loaded["counts"]["files"] > 0
    state = _json(run("repl", "status", f"REPL STATUS {pair.target}", *target, "--output", "json"))
    expected = {"database": pair.target, "last_event": loaded["last_event"], "consistent": False, "unreadable": []}
    assert state == expected
    pair.insert([(2, "b")])
    assert "incremental complete" in run("repl", "dump", str(pair.dump_statement), *source).out
    assert "incremental complete" in run("repl", "load", str(pair.load_statement), *target).out
    assert f"database {pair.target}: last event " in run("repl", "status", pair.target, *target).out
    assert pair.rows() == [(1, "a"), (2, "b")]
    again = _json(run("repl", "dump", str(pair.dump_statement), "--bootstrap", *source, "--output", "json"))
    assert again["phase"] == "BOOTSTRAP"


def test_load_when_run_by_hand_with_spark_then_lists_and_copies_by_spark_jobs(
    pair: Pair, config: dict[str, Path], tmp_path: Path
) -> None:
    events = SparkEvents(tmp_path / "events")
    document = yaml.safe_load(config["target"].read_text())
    config["target"].write_text(yaml.safe_dump({**document, "spark": {"master": "local[1]", "conf": events.conf}}))
    files = add_large_table(pair, tmp_path / "large")
    pair.dump()
    command = [sys.executable, "-m", "ingestd", "repl", "load", str(pair.load_statement), "--spark"]
    where = ["--config", str(config["target"]), "--output", "json"]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["counts"]["files"] == files
    assert events.jobs("list") > 0
    assert events.jobs("copy") > 0


def test_load_when_run_by_hand_on_a_terminal_then_shows_its_progress(
    pair: Pair, config: dict[str, Path], tmp_path: Path
) -> None:
    pair.insert([(1, "a")])
    make_table(pair.replica.source.metastore, TableName(pair.database, "u"))
    pair.dump()
    command = [sys.executable, "-m", "ingestd", "repl", "load", str(pair.load_statement)]
    code, shown = in_terminal([*command, "--config", str(config["target"])])
    assert code == 0, shown
    result = shown.index("load: bootstrap complete up to event ")
    for bar in (r"tables .*2/2", r"files .*1/1"):
        assert re.search(bar, shown[:result]), shown


def test_table_when_its_storage_is_not_supported_then_status_and_policy_name_it(
    run: Run, pair: Pair, config: dict[str, Path]
) -> None:
    source, target = ("--config", config["source"]), ("--config", config["target"])
    pair.create()
    name, place = TableName(pair.database, "ext"), pair.replica.source.external / pair.database
    make_table(pair.replica.source.metastore, name, parameters=EXTERNAL, location=f"file:{place}")
    move_table(pair.replica.source.metastore, name, "abfs://container@account/t")
    assert "bootstrap complete" in run("repl", "dump", "dump", *source).out
    loaded = _json(run("repl", "load", "load", *target, "--output", "json"))
    assert (loaded["unreadable"], loaded["lost"]) == (["ext"], [])
    assert "incremental complete" in run("repl", "dump", "dump", *source).out
    left = run("repl", "load", "load", *target)
    assert "table ext: it is not copied, because its files cannot be read" in left.err
    problem = "the table ext is not copied: abfs://container@account/t: locations with the scheme abfs"
    for command in (("policy", "show", "dump", *source), ("policy", "show", "load", *target)):
        assert problem in run(*command).out
    state = _json(run("repl", "status", pair.target, *target, "--output", "json"))
    assert state["unreadable"] == ["ext"]
    (damaged,) = pair.root.rglob("_state")
    damaged.write_text("")
    left = run("repl", "status", pair.target, *target)
    assert (left.code, "the directory of dumps cannot be read: " in left.err) == (0, True), left.text


def test_copy_when_verified_then_exit_code_says_whether_it_is_equal(
    run: Run, pair: Pair, config: dict[str, Path]
) -> None:
    pair.insert([(1, "a")])
    for step in (pair.dump, pair.load, pair.dump, pair.load):
        step()
    options = ("--source-config", config["source"], "--config", config["target"])
    equal = run("repl", "verify", str(pair.load_statement), *options)
    assert equal.code == 0, equal.text
    assert equal.out.splitlines()[1].split()[:2] == ["t", "equal"]
    make_table(pair.replica.source.metastore, TableName(pair.database, "u"))
    behind = run("repl", "verify", str(pair.load_statement), *options)
    assert behind.code == 75, behind.text
    assert "u: not comparable: " in behind.err
    for step in (pair.dump, pair.load):
        step()
    for file in pair.replica.target.warehouse.rglob(f"{pair.target}.db/t/**/bucket_*"):
        file.unlink()
    different = run("repl", "verify", str(pair.load_statement), *options, "--output", "json")
    assert different.code == 65
    report, other = json.loads(different.out)
    assert (report["table"], report["verdict"], other["verdict"]) == ("t", "different", "equal")
    assert report["findings"]


def test_policy_when_run_by_hand_then_its_directory_is_used_and_executions_are_shown(
    run: Run, pair: Pair, config: dict[str, Path]
) -> None:
    log.configure("text", "error")
    where = ("--config", config["source"])
    pair.create()
    _json(run("repl", "dump", "dump", *where, "--output", "json"))
    _json(run("repl", "load", "load", "--config", config["target"], "--output", "json"))
    assert run("repl", "load", "dump", *where).code == 2
    assert _json(run("policy", "executions", "dump", *where, "--output", "json")) == []
    with pair.worker(pair.replica.source):
        pair.policies(pair.replica.source).execute("dump")
        pair.ended(pair.replica.source)
    (execution,) = _json(run("policy", "executions", "dump", *where, "--output", "json"))
    assert (execution["status"], execution["phase"]) == ("SUCCESS", "INCREMENTAL")
    line = run("policy", "executions", "dump", *where).out.splitlines()[1]
    assert f"{execution['id']:,}" in line
    assert "success" in line
    (metric,) = _json(run("policy", "metrics", "dump", *where, "--output", "json"))
    assert metric["scheduled_execution_id"] == execution["id"]
    assert json.loads(metric["metadata"])["dbName"] == pair.database
    assert metric["metadata"] in run("policy", "metrics", "dump", *where).out


def test_policy_when_it_had_stopped_then_resume_continues_both_sides(
    run: Run, pair: Pair, config: dict[str, Path]
) -> None:
    where = ("--config", config["source"])
    pair.create()
    pair.dump(Step("dump"))
    directory = next(path for path in pair.root.glob("*/*") if path.is_dir())
    (directory / "_non_recoverable").write_text("TargetChanged: table x: changed → undo it")
    shown = _json(run("policy", "show", "dump", *where, "--output", "json"))
    assert (shown["state"], shown["problem"]) == ("needs_resume", "TargetChanged: table x: changed → undo it")
    refused = run("repl", "load", "load", "--config", config["target"])
    assert refused.code == 65
    assert "an earlier run has failed: TargetChanged: table x: changed → undo it" in refused.err
    assert "then run `ingestd policy resume`" in refused.err
    resumed = run("policy", "resume", "dump", *where)
    assert "policy dump: had stopped: TargetChanged" in resumed.out
    assert run("policy", "resume", "dump", *where).out == "policy dump: was not stopped\n"
    assert run("repl", "load", "load", "--config", config["target"]).code == 0
    again = run("policy", "resume", "dump", "--bootstrap", *where)
    assert again.out == "policy dump: the next dump copies the whole database\n"
    assert _json(run("repl", "dump", "dump", *where, "--output", "json"))["phase"] == "BOOTSTRAP"


def test_policy_when_a_daemon_runs_it_then_is_not_run_by_hand(run: Run, pair: Pair, config: dict[str, Path]) -> None:
    source: Side = pair.replica.source
    pair.policies(source).create(CreatePolicy("dump", NEVER, pair.dump_statement))
    hidden = pair.root.with_name("hidden")
    pair.root.rename(hidden)
    with pair.worker(source):
        pair.policies(source).execute("dump")
        pair.running(source)
        refused = run("repl", "dump", "dump", "--config", config["source"])
        assert refused.code == 78
        assert "a daemon runs its execution" in refused.err
        hidden.rename(pair.root)
        pair.ended(source)


def test_status_and_check_when_only_policies_are_configured_then_show_them(
    run: Run, pair: Pair, config: dict[str, Path]
) -> None:
    where = ("--config", config["source"])
    assert "configuration: replication with 0 policies" in run("check", *where, "--online").out
    pair.create()
    pair.dump(Step("dump"))
    document = _json(run("status", *where, "--output", "json"))
    assert (document["source"], document["mappings"]) == ("services", [])
    assert [(policy["name"], policy["state"]) for policy in document["policies"]] == [("dump", "idle")]
    lines = run("status", *where).out.splitlines()
    assert lines[0] == "read from Hive and Kafka: 1 policy"
    assert lines[2].split()[:3] == ["dump", "DUMP", pair.database]
