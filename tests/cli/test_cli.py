"""Exit codes and output of the commands. A user's mistake never causes a stack trace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestd import __version__
from ingestd.sandbox import Addresses
from tests.support.command import Run
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

NOWHERE = "127.0.0.1:1"


def _config(directory: Path, mapping: dict[str, Any] | None = None, **sections: Any) -> Path:
    document = {
        "metastore": {"uri": f"thrift://{NOWHERE}", "timeout": "2s"},
        "kafka": {"bootstrap.servers": NOWHERE, "socket.timeout.ms": 100},
        "mappings": [{"name": "orders", "topics": ["orders"], "table": "shop.orders"} | (mapping or {})],
    } | sections
    path = directory / "ingestd.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_version_then_prints_the_version_of_the_package(run: Run) -> None:
    result = run("--version")
    assert (result.code, result.out.strip()) == (0, f"ingestd, version {__version__}")


@pytest.mark.parametrize("arguments", [[], ["run"], ["check"], ["demo"], ["sandbox"], ["sandbox", "up"]])
def test_help_then_shows_the_usage(run: Run, arguments: list[str]) -> None:
    result = run(*arguments, "--help")
    assert result.code == 0
    assert f"Usage: {' '.join(['ingestd', *arguments])}" in result.out


@pytest.mark.parametrize("arguments", [["fly"], ["run", "--configg", "x"], ["run", "--log-format", "xml"]])
def test_arguments_when_invalid_then_exit_code_is_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).code == 2


def test_option_when_its_variable_is_set_then_it_has_that_value(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTD_CONFIG_SHOW_CONFIG", str(_config(tmp_path)))
    monkeypatch.setenv("INGESTD_CONFIG_SHOW_OUTPUT", "json")
    assert run("config", "show").json[0]["key"] == "metastore.uri"
    monkeypatch.setenv("INGESTD_COMPACTION_REQUEST_MAJOR", "no")
    assert run("compaction", "request", "orders").code == 2


def test_output_when_its_encoding_lacks_characters_then_they_are_escaped(tmp_path: Path) -> None:
    place = tmp_path / "größe"
    place.mkdir()
    command = [sys.executable, "-m", "ingestd", "config", "show", "--config", str(_config(place))]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for form, shown in (("json", json.dumps(str(place))[1:-1]), ("table", "gr\\xf6\\xdfe")):
        result = subprocess.run(
            [*command, "--output", form], env=environment, capture_output=True, text=True, check=True
        )
        assert shown in result.stdout


def test_check_when_valid_then_exit_code_is_0(run: Run, tmp_path: Path) -> None:
    result = run("check", "--config", _config(tmp_path))
    assert (result.code, result.out.strip()) == (0, "✓ configuration: 1 mapping")


def test_check_when_mappings_are_in_a_directory_then_counts_them(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mappings.d"
    folder.mkdir()
    (folder / "clicks.yaml").write_text("{name: clicks, topics: [clicks], table: web.clicks}", encoding="utf-8")
    result = run("check", "--config", _config(tmp_path), "--config-dir", folder)
    assert (result.code, result.out.strip()) == (0, "✓ configuration: 2 mappings")


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize(
    ("mapping", "sections", "words"),
    [
        ({"commmit": {}}, {}, "mappings[0].commmit: unknown key, did you mean commit?"),
        ({"commit": {"interval": "soon"}}, {}, "mappings[0].commit.interval"),
        ({}, {"kafka": {"bootstrap.servers": NOWHERE, "group.id": "mine"}}, "kafka.group.id: group.id cannot be set"),
        ({}, {"kafka": {"bootstrap.servers": NOWHERE, "sasl.foo": 1}}, "sasl.foo"),
        ({}, {"kafka": {"bootstrap.servers": NOWHERE, "fetch.wait.max.ms": "long"}}, "fetch.wait.max.ms"),
        (
            {"kafka": {"security.protocol": "ssl", "ssl.ca.location": "/no/such/file"}},
            {},
            "mappings[0].kafka.ssl.ca.location",
        ),
        ({}, {"metastore": {"uri": "localhost:9083"}}, "metastore.uri"),
        ({}, {"metastore": {"uri": "thrift://host:port"}}, "metastore.uri"),
        ({}, {"mappings": []}, "mappings"),
    ],
    ids=["key", "unit", "refused", "no-kafka-key", "kafka-value", "kafka-file", "uri", "port", "no-mapping"],
)
def test_configuration_when_invalid_then_prints_one_line_and_exit_code_is_78(
    run: Run, tmp_path: Path, command: str, mapping: dict[str, Any], sections: dict[str, Any], words: str
) -> None:
    result = run(command, "--config", _config(tmp_path, mapping, **sections))
    assert result.code == 78
    assert words in result.err
    assert re.match(rf"{tmp_path}/ingestd.yaml:\d+: ", result.err)
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [("a: [1, 2\nb: 3\n", "malformed.yaml:2:"), ("- a\n", "must contain keys"), ("a: ${ENV:NO_SUCH}", "NO_SUCH")],
)
def test_file_when_malformed_then_error_names_it_and_exit_code_is_78(
    run: Run, tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "malformed.yaml"
    file.write_text(content, encoding="utf-8")
    result = run("check", "--config", file)
    assert result.code == 78
    assert str(file) in result.err
    assert words in result.err


def test_configuration_when_none_is_given_then_exit_code_is_78(run: Run) -> None:
    assert run("check").code == 78
    assert run("run").code == 78
    assert run("check", "--config", "/no/such/file.yaml").code in (2, 78)


def test_check_online_when_no_service_answers_then_names_each_and_exit_code_is_69(run: Run, tmp_path: Path) -> None:
    result = run("check", "--online", "--config", _config(tmp_path))
    assert result.code == 69
    assert "✗ metastore: " in result.out
    assert "check that the metastore is running and that metastore.uri is correct" in result.out
    assert "✗ mapping orders, topic orders: " in result.out
    assert "check that the broker is running and that bootstrap.servers is correct" in result.out
    assert "schema registry" not in result.out
    assert result.err == ""
    avro = _config(tmp_path, {"format": {"type": "avro"}}, registry={"url": "http://127.0.0.1:1"})
    json_result = run("check", "--online", "--output", "json", "--config", avro)
    assert json_result.code == 69
    problems = {check["subject"]: check["problem"] for check in json_result.json}
    assert problems["configuration"] is None
    assert problems["metastore"]["reason"] == "MetastoreUnavailable"
    assert "bootstrap.servers" in problems["mapping orders, topic orders"]["hint"]
    assert problems["mapping orders, schema registry"]["reason"] == "RegistryUnavailable"


class _Online:
    """Topics and tables of every kind on the real stack, all checked by one command."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        name = stack.name
        stack.topic(2)
        stack.produce([{"id": 1}])
        stack.table("id int")
        stack.table("id int", "dt string", name=f"default.{name}_parts")
        acid = "STORED AS ORC TBLPROPERTIES ('transactional'='true')"
        stack.sql(f"CREATE TABLE {name}_bucketed (id int) CLUSTERED BY (id) INTO 2 BUCKETS {acid}")
        stack.sql(f"CREATE TABLE {name}_bytes (id binary) CLUSTERED BY (id) INTO 2 BUCKETS {acid}")
        stack.sql(f"CREATE TABLE {name}_union (id int, either uniontype<int,string>) {acid}")
        stack.sql(
            f"CREATE TABLE {name}_insert_only (id int) TBLPROPERTIES "
            "('transactional'='true', 'transactional_properties'='insert_only')"
        )
        stack.sql(
            f"CREATE TABLE {name}_sorted (id int) CLUSTERED BY (id) SORTED BY (id) INTO 2 BUCKETS STORED AS ORC"
            " TBLPROPERTIES ('transactional'='true', 'transactional_properties'='insert_only')"
        )
        stack.sql(f"CREATE EXTERNAL TABLE {name}_external (id int) STORED AS ORC")
        stack.sql(f"CREATE VIEW {name}_view AS SELECT id FROM {name}")
        stack.sql(f"CREATE MATERIALIZED VIEW {name}_materialized DISABLE REWRITE {acid} AS SELECT id FROM {name}")
        for database, properties in (("replica", "'repl.target.for'='p1'"), ("readonly", "'readonly'='true'")):
            stack.sql(f"CREATE DATABASE {name}_{database} WITH DBPROPERTIES ({properties})")
            stack.table("id int", name=f"{name}_{database}.t")

    def mapping(self, case: str, **more: Any) -> dict[str, Any]:
        table = f"default.{self.stack.name}_{case}" if case != "fine" else f"default.{self.stack.name}"
        return {"name": case, "table": table} | more

    def config(self) -> Path:
        cases = [
            self.mapping("fine"),
            self.mapping("parts", partition={"dt": "2026-11-21"}),
            self.mapping("lost", table=f"default.{self.stack.name}", topics=[f"{self.stack.name}-none"]),
            self.mapping("nowhere"),
            *(
                self.mapping(case)
                for case in ("bucketed", "bytes", "union", "insert_only", "sorted", "external", "view", "materialized")
            ),
            self.mapping("replica", table=f"{self.stack.name}_replica.t"),
            self.mapping("readonly", table=f"{self.stack.name}_readonly.t"),
            self.mapping("new", table=f"{self.stack.name}_readonly.new", create_table={"columns": {"id": "int"}}),
            self.mapping(
                "letters",
                table=f"default.{self.stack.name}",
                on_error="dead_letter",
                dead_letter={"table": f"{self.stack.name}_replica.dead"},
            ),
            self.mapping("wrong", table=f"default.{self.stack.name}_parts", partition={"day": "x"}),
        ]
        return self.stack.config(*cases)


@pytest.fixture(scope="module")
def online(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Online]:
    with Stack(addresses, "check", Path(tmp_path_factory.mktemp("check"))) as stack:
        yield _Online(stack)


def test_check_online_then_confirms_each_item_or_says_how_to_fix_it(run: Run, online: _Online) -> None:
    result = run("check", "--online", "--config", online.config())
    assert result.code == 65
    lines = result.out.splitlines()

    def line(start: str) -> str:
        found = [text for text in lines if text[2:].startswith(start)]
        assert len(found) == 1, (start, result.out)
        return found[0]

    name = online.stack.name
    for start in ("metastore: answers", "metastore locks: granted", f"mapping fine, topic {name}: 2 partitions"):
        assert line(start).startswith("✓ ")
    assert line(f"mapping fine, table default.{name}").endswith("full ACID ORC, 1 column")
    assert line("mapping bucketed, table").endswith("full ACID ORC, 1 column, 2 buckets")
    assert "partitioned by dt = 2026-11-21" in line("mapping parts, table")
    assert "is writable" in line("mapping fine, storage")
    for start, words, hint in (
        (f"mapping lost, topic {name}-none", "does not exist", "create the topic"),
        ("mapping nowhere, table", "does not exist", "create the table"),
        ("mapping bytes, table", "binary cannot be a bucket column", "CLUSTERED BY columns of another type"),
        ("mapping union, table", "uniontype<int,string> is not supported: except in Avro", "use "),
        ("mapping insert_only, table", "has the input format", "create it STORED AS ORC"),
        ("mapping sorted, table", "is SORTED BY columns", "recreate it without"),
        ("mapping external, table", "is not a transactional table", "transactional"),
        ("mapping view, table", "is a view: a view cannot be used as target table", "use a table"),
        ("mapping materialized, table", "is a materialized view: a view cannot be used as target table", "use a table"),
        ("mapping replica, table", f"database {name}_replica is a target of replication", "write to the source"),
        ("mapping readonly, table", f"database {name}_readonly is read-only", "SET DBPROPERTIES ('readonly'='false')"),
        ("mapping new, table", f"database {name}_readonly is read-only", "SET DBPROPERTIES ('readonly'='false')"),
        ("mapping letters, dead letters in table", f"database {name}_replica is a target of", "write to the source"),
        ("mapping wrong, table", "`partition` names day", "name each partition column at most once"),
    ):
        assert line(start).startswith("✗ ")
        assert words in line(start)
        assert hint in line(start)


def test_check_online_then_leaves_no_locks_or_files(run: Run, online: _Online) -> None:
    run("check", "--online", "--config", online.config())
    left = _locks_of_checks(online.stack)
    # They may be locks of checks in other tests, which release them.
    eventually("the release of the locks", lambda: not left & _locks_of_checks(online.stack))
    warehouse = Path(online.stack.addresses.warehouse.removeprefix("file://"))
    assert not list(warehouse.glob(f"{online.stack.name}*/.ingestd-*"))


def _locks_of_checks(stack: Stack) -> set[object]:
    return {row[0] for row in stack.sql("SHOW LOCKS") if "ingestd/check" in str(row)}


def test_run_when_the_table_is_missing_then_prints_one_line_and_exit_code_is_65(online: _Online) -> None:
    config = online.stack.config(online.mapping("nowhere"))
    daemon = online.stack.drain(config, expect=65)
    assert "ingestd: " in daemon.text()
    assert "the table does not exist" in daemon.text()
    assert "Traceback" not in daemon.text()


def test_python_m_ingestd_then_runs_the_console_script() -> None:
    result = subprocess.run([sys.executable, "-m", "ingestd", "check"], capture_output=True, text=True, check=False)
    assert result.returncode == 78
    assert result.stderr.startswith("ingestd: no configuration was given")


_SAYS = """
import logging
from ingestd.daemon import log
log.configure("json", "info")
for name in ("ingestd.publish.row_counts", "py4j", "thrift"):
    logging.getLogger(name).warning("said by %s", name)
"""


def test_warning_when_a_library_and_ingestd_log_it_then_only_that_of_ingestd_is_written() -> None:
    result = subprocess.run([sys.executable, "-c", _SAYS], capture_output=True, text=True, check=True)
    (line,) = map(json.loads, result.stderr.splitlines())
    assert (line["level"], line["event"], line["text"]) == ("warning", "note", "said by ingestd.publish.row_counts")


@pytest.mark.parametrize("redirect", ["2>/dev/full", "2>&-", "2>&1 >/dev/null | true"])
def test_stderr_when_it_cannot_be_written_then_the_exit_code_is_unchanged(redirect: str, tmp_path: Path) -> None:
    wrong = tmp_path / "a.yaml"
    wrong.write_text("mappings: 3")
    command = f"{sys.executable} -m ingestd run --config {wrong} {redirect}"
    assert subprocess.run(["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], check=False).returncode == 78


_WRITES = """
import sys
from ingestd.cli.output import protect_stderr
protect_stderr(stuck_seconds=float(sys.argv[1]))
for letter in "abcd":
    print(letter * 100_000, file=sys.stderr)
"""


def test_stderr_when_its_reader_is_stuck_then_drops_output_and_otherwise_writes_all() -> None:
    command = [sys.executable, "-c", _WRITES]
    with subprocess.Popen([*command, "0.1"], stderr=subprocess.PIPE) as stuck:
        assert stuck.wait(LIMIT) == 0  # the pipe is full after 64 KiB
    result = subprocess.run([*command, "60"], capture_output=True, text=True, check=True).stderr
    assert result.split() == [letter * 100_000 for letter in "abcd"]
