"""`ingestd init` writes a configuration that `check --online` accepts, and says how the topic fits the table."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestd.acid.encoding import Encoding
from ingestd.acid.routing import Shape
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.registry import Registry, RegistryOptions
from ingestd.hive.tables import TableName
from ingestd.ingest.inspection.sample import Match, Proposal, match, propose
from ingestd.schema import Column, HiveType
from tests.support.command import Result, Run
from tests.support.patience import LIMIT
from tests.support.registry import registry_server
from tests.support.stack import Stack
from tests.support.tables import make_table

ACID = "TBLPROPERTIES ('transactional'='true')"
CANARY = "hunter2canary"
RECORDS = [
    {"id": number, "Note": f"n{number}", "at": "2026-11-22 10:00:00", "odd\n- injected: 1": True, "price": number / 4}
    | {"nest": {"order": [number], "date": "x"}}
    for number in range(20)
]


def _init(run: Run, stack: Stack, *arguments: object) -> Result:
    addresses = ("--metastore", stack.addresses.metastore, "--bootstrap-servers", stack.addresses.kafka)
    return run("init", *addresses, *arguments)


def test_init_when_the_table_exists_then_the_file_passes_check_and_says_what_fits(
    run: Run, stack: Stack, tmp_path: Path
) -> None:
    stack.topic(2)
    stack.produce([*RECORDS, b"not json"])
    make_table(stack.metastore, TableName("default", stack.name), partitioned=True)
    file = tmp_path / "first.yaml"
    chosen = ("--topic", stack.name, "--table", f"default.{stack.name}", "--output-file", file)
    result = _init(run, stack, *chosen, "--set", "kafka.client.id=me", "--set", "metastore.timeout=20s")
    assert result.code == 0
    text = file.read_text(encoding="utf-8")
    for said in (text, result.err):
        assert "fields that are stored: id, note" in said
        assert "columns without a field, which become NULL: day" in said
        assert r'at, nest, "odd\n- injected: 1", price' in said
        assert "Records that do not fit the table: 1" in said
    assert "The first that does not fit: the record: record is not JSON" in result.err
    document = yaml.safe_load(text)
    assert document["kafka"] == {"bootstrap.servers": stack.addresses.kafka, "client.id": "me"}
    [mapping] = document["mappings"]
    assert mapping == {"name": stack.name[:40], "topics": [stack.name], "table": f"default.{stack.name}"}
    assert run("check", "--online", "--config", file).code == 0
    again = _init(run, stack, *chosen)
    assert (again.code, "--force" in again.err) == (78, True)
    assert file.read_text(encoding="utf-8") == text
    assert _init(run, stack, *chosen, "--force").code == 0
    assert "client.id" not in file.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["first.yaml"]
    stack.sql(f"CREATE TABLE {stack.name}_b (id binary) CLUSTERED BY (id) INTO 2 BUCKETS STORED AS ORC {ACID}")
    refused = _init(
        run, stack, "--topic", stack.name, "--table", f"default.{stack.name}_b", "--output-file", file, "--force"
    )
    assert (refused.code, "binary cannot be a bucket column" in refused.err) == (65, True)


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [("'repl.target.for'='p1'", "is a target of replication (repl.target.for)"), ("'readonly'='true'", "is read-only")],
)
def test_commands_when_hive_refuses_to_write_the_table_then_say_why_and_init_writes_no_file(
    run: Run, stack: Stack, tmp_path: Path, properties: str, sentence: str
) -> None:
    database = f"{stack.name}_db"
    stack.topic(1)
    stack.produce(RECORDS)
    stack.sql(f"CREATE DATABASE {database} WITH DBPROPERTIES ({properties})")
    stack.table("id int", name=f"{database}.t")
    file = tmp_path / "first.yaml"
    for table in ("t", "missing"):
        result = _init(run, stack, "--topic", stack.name, "--table", f"{database}.{table}", "--output-file", file)
        assert result.code == 65
        assert f"table {database}.{table}: database {database} {sentence}" in result.err
        assert "CREATE TABLE" not in result.err
        assert not file.exists()
        created = {"create_table": {"columns": {"id": "int"}}} if table == "missing" else {}
        name = f"m_{stack.name[-30:]}"
        config = stack.config({"name": name, "table": f"{database}.{table}", **created})
        for command in (("check", "--online", "--config", config), ("preview", name, "--config", config)):
            refused = run(*command)
            assert refused.code == 65, command
            assert f"database {database} {sentence}" in refused.text


def test_init_when_the_table_is_missing_then_the_proposed_statement_creates_one_that_fits(
    run: Run, stack: Stack, tmp_path: Path
) -> None:
    stack.topic(1)
    stack.produce(RECORDS)
    file = tmp_path / "first.yaml"
    result = _init(run, stack, "--topic", stack.name, "--table", f"default.{stack.name}", "--output-file", file)
    assert result.code == 0
    statement = result.err.partition("CREATE TABLE")[1] + result.err.partition("CREATE TABLE")[2].partition(";")[0]
    assert "`id` bigint" in statement
    assert "`at` timestamp" in statement
    assert "`price` double" in statement
    assert "`nest` struct<`order`:array<bigint>,`date`:string>" in statement
    assert run("check", "--online", "--config", file).code == 65
    stack.sql(statement)
    assert run("check", "--online", "--config", file).code == 0
    stack.drain(stack.config())
    assert stack.count() == len(RECORDS)


def test_init_when_topic_or_table_is_not_given_then_asks_on_a_terminal_only(
    run: Run, stack: Stack, tmp_path: Path
) -> None:
    topic = stack.topic(1)
    make_table(stack.metastore, TableName("default", stack.name))
    file = tmp_path / "first.yaml"
    result = _init(run, stack, "--topic", topic, "--output-file", file)
    assert result.code == 2
    assert "--table is required without a terminal: there are default." in result.err
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ingestd", "init", "--metastore", stack.addresses.metastore]
    command += ["--bootstrap-servers", stack.addresses.kafka, "--output-file", str(file)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.write(ours, f"{topic}\n\n".encode())  # the default is the table whose name is closest to the topic's
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["mappings"][0]["table"] == f"default.{stack.name}"
    assert "has no records" in said


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--set", f"kafka.sasl.password={CANARY}"), 78, "kafka.sasl.password: a secret must not be written"),
        (("--set", f"metastore.plain.password={CANARY}"), 78, "metastore.plain.password"),
        (("--set", f"kafka.sasl.password=${{ENV:NO_SUCH:-{CANARY}}}"), 78, "kafka.sasl.password: a secret must not"),
        (("--set", CANARY), 2, "--set requires KEY=VALUE"),
        (("--set", "spark.master=local"), 78, "spark.master is not a key of metastore, kafka or registry"),
        (("--set", "kafka.no.such=1"), 78, "no such property"),
        (("--table", "a b.c`d"), 78, "must be database.table"),
        (("--metastore", "nowhere"), 78, "is not a metastore address"),
    ],
)
def test_init_when_an_argument_is_invalid_then_writes_nothing_and_prints_no_secret(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    file = tmp_path / "first.yaml"
    base: tuple[str, ...] = (
        "--metastore",
        "thrift://127.0.0.1:1",
        "--bootstrap-servers",
        "127.0.0.1:1",
        "--topic",
        "a",
        "--table",
        "a.b",
    )
    result = run("init", *base, *arguments, "--output-file", file)
    assert result.code == code
    assert words in result.err
    assert CANARY not in result.text
    assert not file.exists()


def _records(*records: object) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def _proposed(*sample: bytes, table: str | None = None) -> Proposal:
    columns = None if table is None else [Column(name, HiveType.parse("int")) for name in table.split()]
    return propose(sample, columns, None, "topic")


def _matched(sample: list[bytes], proposal: Proposal) -> Match:
    """Compare a sample of JSON with the table that is proposed."""
    assert proposal.format is not None
    shape = Shape(proposal.columns, (), None, Encoding())
    return match(sample, shape, JsonOptions(**proposal.format))  # type: ignore[arg-type]  # the keys of the format


def _types(proposal: Proposal) -> dict[str, str]:
    return {column.name: str(column.type) for column in proposal.columns}


def test_proposed_columns_then_have_the_narrowest_type_that_stores_every_value() -> None:
    sample = _records(
        {"a": 1, "b": 1, "c": True, "d": "2026-01-01", "e": "2026-01-01T10:00:00Z", "f": {"x": 1}, "g": None, "H": "1"},
        {"a": 2, "b": 1.5, "c": False, "d": "2026-01-02", "e": "2026-01-01", "f": [1], "bad name": 1, "no field": 1},
        {"a": None, "b": 2**70, "i": "x", "j": 1, "k": ["x", None], "l": {"date": 1, "m": [{"N": 1.5}]}, "o": {}},
        {"i": 5, "j": "1", "k": [], "l": {"m": [{"p": "2026-01-01"}]}, "q": {"a b": 1}, "r": [[1], ["x"]]},
    )
    found = _proposed(*sample)
    assert _types(found) == {
        "a": "bigint",
        "b": "string",
        "c": "boolean",
        "d": "date",
        "e": "timestamp",
        "f": "string",
        "g": "string",
        "h": "string",
        "i": "string",
        "j": "string",
        "k": "array<string>",
        "l": "struct<date:bigint,m:array<struct<n:double,p:string>>>",
        "o": "string",
        "q": "string",
        "r": "array<array<string>>",
    }
    assert _matched(sample, found).misfits == 0


@pytest.mark.parametrize(
    ("sample", "expected", "columns"),
    [
        ([b'{"a": 1}', b"{"], {}, "a bigint"),  # one is damaged
        (["\ufeff{\"a\": 1}".encode()], {}, "a bigint"),
        (_records([{"a": 1}], []), {"type": "json", "records": "array"}, "a bigint"),
        ([b'{"a": 1}\n{"b": 2}\n'], {"type": "json", "records": "lines"}, "a bigint, b bigint"),
        (
            _records({"op": "c", "after": {"a": 1}}, {"schema": {}, "payload": {"op": "d", "before": {"a": 2}}}),
            {"type": "json", "envelope": "debezium"},
            "a bigint",
        ),
        (_records({"schema": {}, "payload": {"a": [1]}}), {"type": "json", "envelope": "connect"}, "a array<bigint>"),
        ([b'\0\0\0\0\1{"a": 1}', b"x"], {"type": "json", "framing": "confluent"}, "a bigint"),
        (
            [b'\0\0\0\0\1[{"a": "2026-01-01"}]'],
            {"type": "json", "framing": "confluent", "records": "array"},
            "a date",
        ),
        ([b'1,"a,b"', b"2.5,"], {"type": "csv", "field_delimiter": ",", "fields": ["c1", "c2"]}, "c1 double, "),
        ([b"7\x01true"], {"type": "delimited", "field_delimiter": "1", "fields": ["c1", "c2"]}, "c1 bigint, "),
        ([b"started", b"ready; 1 worker"], {"type": "text"}, "line string"),
        ([b"\xff\xfe", b"ab"], {"type": "binary"}, "value binary"),
    ],
)  # fmt: skip
def test_proposal_when_most_records_have_a_format_then_names_it_and_the_columns(
    sample: list[bytes], expected: dict[str, object], columns: str
) -> None:
    found = _proposed(*sample)
    assert found.format == expected
    assert ", ".join(f"{column.name} {column.type}" for column in found.columns).startswith(columns)


def test_proposal_when_only_the_user_can_decide_then_says_what() -> None:
    assert _proposed(b"1;2", table="a b").format == {"type": "csv", "field_delimiter": ";", "fields": ["a", "b"]}
    undecided = {
        "2 fields between ';', but the table has 3 columns": _proposed(b"1;2", table="a b c"),
        "set format.type: text": _proposed(b"a text", table="a"),
        "--set registry.url=URL": _proposed(b"\0\0\0\0\1\2"),
        "framing: single_object": _proposed(b"\xc3\x01" + bytes(9)),
    }
    for note, found in undecided.items():
        assert (found.format, found.columns, note in found.note) == (None, (), True), found


def test_proposal_when_records_name_a_schema_then_the_registry_tells_the_format_and_the_columns() -> None:
    with registry_server() as server:
        registry = Registry(RegistryOptions(url=server.url, lag=0.0))
        avro = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
        identifier = server.register("topic-value", {"schema": json.dumps(avro)})
        found = propose([b"\0" + identifier.to_bytes(4, "big") + b"\2"], None, registry, "topic")
        assert (found.format, [str(column.type) for column in found.columns]) == ({"type": "avro"}, ["bigint"])
        found = propose([b"\0" + identifier.to_bytes(8, "big") + b"\2"], None, registry, "topic")
        assert found.format == {"type": "avro", "framing": "apicurio"}
        assert [column.name for column in found.columns] == ["id"]
        assert "make sure that they are content ids" in found.note
        found = propose([b"\0" + bytes(6) + b"\1\2\3"], None, registry, "topic")
        assert (found.format, "no Avro schema 258." in found.note) == (None, True)
        found = propose([b"\0\0\0\1\2\3"], None, registry, "topic")
        assert (found.format, "no Avro or Protobuf schema 258." in found.note) == (None, True)
        deep: Any = "long"
        for level in range(9):
            deep = {"type": "record", "name": f"r{level}", "fields": [{"name": "a", "type": deep}]}
        server.register("deep-value", {"schema": json.dumps({**avro, "fields": [{"name": "x", "type": deep}]})})
        found = propose([b"\0" + identifier.to_bytes(4, "big") + b"\2"], None, registry, "deep")
        assert (found.format, found.columns) == ({"type": "avro"}, ())
        assert "more than 8 structs would be inside each other" in found.note


def test_proposal_when_objects_are_deep_then_those_below_eight_structs_are_text() -> None:
    deep = b'{"x": %s1%s}' % (b'[{"a":' * 12, b"}]" * 12)
    [column] = _proposed(deep).columns
    assert str(column.type) == "array<struct<a:" * 8 + "array<string>" + ">>" * 8


def test_proposal_when_hive_has_a_virtual_column_of_a_name_then_leaves_the_field_out_and_says_so() -> None:
    fields = [{"name": name, "type": "long"} for name in ("id", "ROW__ID", "input__file__name")]
    with registry_server() as server:
        registry = Registry(RegistryOptions(url=server.url))
        avro = {"type": "record", "name": "r", "fields": fields}
        identifier = server.register("topic-value", {"schema": json.dumps(avro)})
        of_avro = propose([b"\0" + identifier.to_bytes(4, "big") + b"\2\4\6"], None, registry, "topic")
    of_json = propose([b'{"id": 1, "ROW__ID": 2, "input__file__name": 3}'], None, None, "topic")
    for proposal in (of_avro, of_json):
        assert [column.name for column in proposal.columns] == ["id"]
        assert proposal.note.startswith("Hive has virtual columns with the names of the fields row__id, input__file__n")


def test_match_when_the_sample_has_records_that_stop_a_mapping_then_counts_misfits() -> None:
    shape = Shape((Column("a", HiveType("bigint")),), (), None, Encoding(), not_null=frozenset({"a"}))
    half = b'{"\\ud800": 1, "a": 1}'  # the file with what is ignored cannot contain an unpaired surrogate
    found = match([b"[1]", b"{", b'{"a": "x"}', b'{"a": 1}', None, b'{"b": 1}', half], shape, JsonOptions())
    assert (found.records, found.misfits, found.stored, found.ignored) == (7, 5, ("a",), ("\\ud800", "b"))


CHANGES = [
    {"before": None, "after": {"id": 1, "name": "a"}, "op": "c", "source": {"ts_ms": 1}},
    {"schema": {}, "payload": {"before": {"id": 1}, "after": {"id": 2, "name": "b"}, "op": "u"}},
]


def test_proposal_when_most_records_are_in_an_envelope_then_its_rows_are_compared() -> None:
    wrapped: list[object] = [{"schema": {"type": "struct"}, "payload": {"id": 1, "day": "2026-01-01"}}] * 2
    plain = {"schema": "struct<type:string>", "payload": "struct<id:bigint,day:string>", "id": "bigint"}
    for records, envelope, columns, misfits in (
        (CHANGES, "debezium", {"id": "bigint", "name": "string"}, 1),  # an update, which is a reject by default
        ([*wrapped, {"id": 7}], "connect", {"id": "bigint", "day": "date"}, 1),
        ([*wrapped[:1], {"id": 7}], None, plain, 0),
        ([{"op": "c", "id": 1}], None, {"op": "string", "id": "bigint"}, 0),
        ([], None, {}, 0),
    ):
        sample = _records(*records)
        found = _proposed(*sample)
        assert found.format == ({"type": "json", "envelope": envelope} if envelope else {})
        assert _types(found) == columns
        if columns:
            compared = _matched(sample, found)
            assert (compared.stored, compared.ignored, compared.misfits) == (tuple(sorted(columns)), (), misfits)
    assert _proposed(*_records(*CHANGES), table="id op").format == {"type": "json", "envelope": "debezium"}
    assert _proposed(*_records(*CHANGES), table="id").format == {"type": "json", "envelope": "debezium"}
    assert _proposed(*_records(*CHANGES), table="after").format == {}  # a field of the table


def test_init_when_the_records_are_in_an_envelope_then_the_file_unwraps_them(
    run: Run, stack: Stack, tmp_path: Path
) -> None:
    stack.topic(1)
    stack.produce(CHANGES[:1] * 3)
    file = tmp_path / "first.yaml"
    chosen = ("--topic", stack.name, "--table", f"default.{stack.name}", "--output-file", file)
    result = _init(run, stack, *chosen)
    assert result.code == 0
    text = file.read_text(encoding="utf-8")
    for said in (text, result.err):
        assert "The records are changes of Debezium; format.envelope unwraps their rows." in said
        assert "fields that are stored: id, name" in said
    assert yaml.safe_load(text)["mappings"][0]["format"] == {"type": "json", "envelope": "debezium"}
    statement = result.err.partition("CREATE TABLE")[1] + result.err.partition("CREATE TABLE")[2].partition(";")[0]
    stack.sql(statement)
    assert _init(run, stack, *chosen, "--force").code == 0
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == yaml.safe_load(text)
    assert run("check", "--online", "--config", file).code == 0
