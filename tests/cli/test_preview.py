"""`ingestd preview`: what a mapping would make of records, without changing anything."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ingestd.config.document import load
from ingestd.errors import IngestdError, RecordError
from ingestd.hive.control import find_control_table
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.ingest.control import Request
from ingestd.ingest.inspection.excerpt import ExcerptLimits, read_excerpt
from ingestd.ingest.inspection.preview import preview
from ingestd.ingest.offline.change import change_stored
from ingestd.kafka.ranges import OffsetRange
from ingestd.publish.warehouse import Warehouse
from ingestd.sandbox import Addresses
from ingestd.spark.errors import QueryFailed
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.avro import encode, schema_of, single_object
from tests.support.command import Result, Run
from tests.support.daemon import shared_engine
from tests.support.patience import LIMIT
from tests.support.records import wait_for_ends
from tests.support.segments import flip_last_bits
from tests.support.stack import Stack

_PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


@dataclass(frozen=True)
class Topic:
    """A mapping that has never run. Partition 0 has 6 records: 4 rows, a tombstone and a reject. Partition 1 has 20."""

    stack: Stack
    config: Path

    def preview(self, run: Run, *arguments: object) -> Result:
        """Run `ingestd preview` with JSON."""
        return run("preview", self.stack.name[-40:], *arguments, "--output", "json", "--config", self.config)


@pytest.fixture(scope="module")
def topic(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with Stack(addresses, "preview", tmp_path_factory.mktemp("preview")) as stack:
        stack.topic(2)
        stack.table("id int, note string NOT NULL ENABLE, tags array<string>", partitioned="day string")
        rows = [{"id": i, "note": f"n{i}", "day": f"d{i % 2}", "tags": ["a", None]} for i in range(3)]
        stack.produce([*rows, None, {"id": 3, "day": "d0"}, {"note": "", "day": "d1"}], partition=0)
        stack.produce([{"id": i, "note": "x" * 100, "day": "d0"} for i in range(100, 120)], partition=1)
        yield Topic(stack, stack.config({"format": {"type": "json", "tombstones": "skip"}}))


def _places(result: Result) -> list[tuple[int, int]]:
    assert result.code == 0, result.text
    return [(one["partition"], one["offset"]) for one in result.json["rows"]]


def test_preview_then_shows_rows_rejects_and_an_estimate(run: Run, topic: Topic) -> None:
    document = topic.preview(run, "--limit", 12).json
    name = topic.stack.name
    assert (document["records"], document["skipped"], document["table"]) == (12, 1, f"default.{name}")
    assert document["rejects"] == [
        {"topic": name, "partition": 0, "offset": 4, "column": "note", "reason": "is NULL, but the column is NOT NULL"}
    ]
    rows: list[dict[str, Any]] = document["rows"]
    assert [(row["partition"], row["offset"]) for row in rows] == [
        *((0, offset) for offset in (0, 1, 2, 5)),
        *((1, offset) for offset in range(14, 20)),
    ]
    assert rows[1] == {
        "topic": name,
        "partition": 0,
        "offset": 1,
        "table_partition": "day=d1",
        "bucket": None,
        "values": {"id": "1", "note": "n1", "tags": '["a",null]'},
    }
    assert rows[3]["values"] == {"id": None, "note": "", "tags": None}
    assert document["estimate"]["records"] == 1_000_000
    assert document["estimate"]["partitions"] == 2
    assert document["estimate"]["bytes"] > 0


def test_preview_when_no_record_has_a_field_for_a_column_then_names_the_column(run: Run, topic: Topic) -> None:
    at_second = ("--at", f"{topic.stack.name}:1:0", "--limit", 20)
    assert topic.preview(run, *at_second).json["unfilled"] == ["tags"]
    shown = run("preview", topic.stack.name[-40:], *at_second, "--config", topic.config)
    assert "NULL in all rows, because no record has a field for them: tags" in shown.out
    assert topic.preview(run, "--at", f"{topic.stack.name}:0:0", "--limit", 20).json["unfilled"] == []


def test_preview_when_fields_have_no_column_then_names_them(run: Run, stack: Stack) -> None:
    schema = schema_of({"id": "int", "Note": "string", "day": "int"})
    stack.topic(1)
    stack.table("id int, s struct<x:int>", partitioned="day string")
    stack.produce([{"id": 1, "s": {"x": 1, "zip": 2}, "Note": "a", "day": "d"}, {"id": 2, "day": "d", "other": None}])
    of_json = {"name": f"{stack.name}_j"[-40:]}
    evolving = {"name": f"{stack.name}_e"[-40:], "schema_evolution": "add_columns"}
    topic = stack.topic(1, f"{stack.name}_avro")
    stack.produce([single_object(schema, encode(schema, {"id": 1, "Note": "a", "day": 1}))], topic)
    options = {"type": "avro", "framing": "single_object", "schemas": [schema]}
    of_avro = {"name": f"{stack.name}_a"[-40:], "topics": [topic], "format": options, "partition": {"day": "d"}}
    config = stack.config(of_json, evolving, of_avro)

    def preview(mapping: dict[str, Any]) -> Any:
        return run("preview", mapping["name"], "--output", "json", "--config", config).json

    assert preview(of_json)["unstored"] == ["s.zip", "note", "other"]
    assert preview(of_avro)["unstored"] == ["Note"]
    shown = preview(evolving)
    place = f"ALTER TABLE `default`.`{stack.name}`"
    assert shown["statements"] == [
        f"{place} CHANGE COLUMN `s` `s` struct<`x`:int,`zip`:bigint>",
        f"{place} ADD COLUMNS (`note` string)",
    ]
    assert shown["unstored"] == ["other"]
    assert shown["rows"][0]["values"] == {"id": "1", "s": '{"x":1,"zip":2}', "note": "a"}
    text = run("preview", of_json["name"], "--config", config).out
    assert "Fields that are not stored, because they have no column: s.zip, note, other" in text


def test_preview_when_unreadable_records_are_rejects_then_shows_them_as_do_check_and_doctor(
    run: Run, stack: Stack, tmp_path: Path
) -> None:
    topic = stack.topic(2, **{"max.message.bytes": "9000000"})
    stack.table("id int, text string")
    servers = {"bootstrap.servers": stack.addresses.kafka}
    producer = Producer(servers | {"linger.ms": 5_000, "message.max.bytes": 9_000_000})
    # A batch each, of which that with the offsets 1 and 2 is corrupt, and that with 4 is too large.
    for partition, ids in ((0, (1,)), (0, (2, 3)), (0, (4,)), (0, (5,)), (1, (11,))):
        for number in ids:
            text = "x" * (2_500_000 if number == 5 else 1)
            producer.produce(topic, json.dumps({"id": number, "text": text}), partition=partition)
        assert producer.flush(LIMIT) == 0
    flip_last_bits(stack, topic, 0, 1)
    name = stack.name[-40:]
    limited = servers | {"receive.message.max.bytes": 2_000_000}
    config = stack.config({"kafka": limited, "on_unreadable": "reject", "on_error": "skip"})
    for limit, at, rows, rejects in (
        (20, (), [(0, 0), (0, 3), (1, 0)], [(0, 1), (0, 2), (0, 4)]),
        (2, (), [(1, 0)], [(0, 4)]),
        (2, ("--at", f"{topic}:0:1"), [], [(0, 1), (0, 2)]),
        (2, ("--at", f"{topic}:0:2"), [(0, 3)], [(0, 2)]),
    ):
        result = run("preview", name, "--limit", limit, *at, "--output", "json", "--config", config)
        assert _places(result) == rows
        found = result.json["rejects"]
        assert [(reject["partition"], reject["offset"]) for reject in found] == rejects
        assert all(reject["reason"].startswith("the records of the offsets ") for reject in found)
        assert result.json["records"] == len(rows) + len(rejects)
    services = ("--metastore", stack.addresses.metastore, "--bootstrap-servers", stack.addresses.kafka)
    small = ("--set", "kafka.receive.message.max.bytes=2000000", "--output-file", tmp_path / "first.yaml")
    proposed = run("init", *services, *small, "--topic", topic, "--table", f"default.{stack.name}")
    assert proposed.code == 0, proposed.text
    assert "Of the last 6 records, 3 cannot be read" in proposed.err
    assert "Compared with the last 3 records" in proposed.err
    checked = run("check", "--online", "--config", config)
    assert checked.code == 0, checked.text
    assert "the records of the offsets 4 to 4 are too large" in checked.text
    findings = run("doctor", "--config", config, "--output", "json").json["findings"]
    evidence = {finding["check"]: finding["evidence"] for finding in findings if finding["subject"].endswith(name)}
    assert evidence["mapping.columns"] == "3 rows of the last 6 records examined; 3 cannot be read, and are rejects"
    assert f"rejects in {topic}[0]" in evidence["kafka.topic"]


def test_preview_then_prints_a_table_and_changes_nothing(run: Run, topic: Topic) -> None:
    stack = topic.stack
    mapping = stack.name[-40:]
    result = run("preview", mapping, "--at", "2020-01-01", "--limit", 10, "--config", topic.config)
    assert result.code == 0, result.text
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["topic", "partition", "offset", "table", "partition", "id", "note", "tags"]
    assert [stack.name, "0", "0", "day=d0", "0", "n0", '["a",null]'] in lines
    assert [stack.name, "1", "0", "day=d0", "100", "x" * 60 + "…", "NULL"] in lines
    assert "10 records: 8 rows, 1 reject, 1 skipped tombstone" in result.out
    assert "Estimate from 8 rows" in result.out
    assert find_control_table(stack.metastore, TableName("ingestd", f"mapping_{mapping}")) is None
    assert f"ingestd-{mapping}" not in [one.group_id for one in stack.admin.list_consumer_groups().result(LIMIT).valid]
    assert stack.count() == 0


def test_preview_when_the_table_is_bucketed_then_shows_the_bucket_of_each_row(run: Run, topic: Topic) -> None:
    stack = topic.stack
    table = f"{stack.name}_bucketed"
    acid = "STORED AS ORC TBLPROPERTIES ('transactional'='true', 'bucketing_version'='2')"
    stack.sql(f"CREATE TABLE {table} (id int) CLUSTERED BY (id) INTO 4 BUCKETS {acid}")
    config = stack.config({"table": f"default.{table}", "format": {"type": "json", "tombstones": "skip"}})
    result = Topic(stack, config).preview(run, "--at", f"{stack.name}:1:0", "--limit", 20)
    assert result.code == 0, result.text
    found = {int(row["values"]["id"]): row["bucket"] for row in result.json["rows"]}
    assert len(set(found.values())) > 1
    stack.sql(f"INSERT INTO {table} VALUES {', '.join(f'({number})' for number in found)}")
    files = stack.sql(f"SELECT id, regexp_extract(INPUT__FILE__NAME, 'bucket_([0-9]+)', 1) FROM {table}")
    assert found == {number: int(bucket) for number, bucket in files}


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        (("--limit", 2), [(0, 5), (1, 19)]),
        (("--at", "1970-01-01T00:00:00Z", "--limit", 3), [(0, 0), (1, 0), (1, 1)]),
        (("--at", "TOPIC:0:1", "--limit", 2), [(0, 1), (0, 2)]),
        (("--at", "TOPIC:1:18"), [(1, 18), (1, 19)]),
    ],
)
def test_preview_then_starts_where_it_should_and_reads_no_more_than_the_limit(
    run: Run, topic: Topic, arguments: tuple[object, ...], places: list[tuple[int, int]]
) -> None:
    given = (str(word).replace("TOPIC", topic.stack.name) for word in arguments)
    assert _places(topic.preview(run, *given)) == places


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--at", "5"), 65, "the mapping reads 2 partitions → name one, as TOPIC:PARTITION:OFFSET"),
        (("--at", "TOPIC:0:7"), 65, "Kafka does not have the offset 7: the partition has 0..6"),
        (("--at", "TOPIC:0:6"), 65, "no records were found at or after the start"),
        (("--at", "2100-01-01"), 65, "no records were found at or after the start"),
        (("--at", "other:0:1"), 65, "the mapping does not read other[0]"),
        (("--at", "soon"), 2, "is neither a time"),
        (("--limit", "0"), 2, "--limit"),
    ],
)
def test_preview_when_the_start_is_invalid_then_says_why(
    run: Run, topic: Topic, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = topic.preview(run, *(word.replace("TOPIC", topic.stack.name) for word in arguments))
    assert (result.code, result.out) == (code, ""), result.text
    assert words in result.err


def test_preview_when_something_is_missing_then_says_what(run: Run, stack: Stack) -> None:
    name = stack.topic(1)
    config = stack.config(
        {"name": "lost_table", "table": "default.no_such"},
        {"name": "lost_topic", "topics": ["no.such"]},
        {"name": "empty"},
        {"name": "no_broker", "kafka": {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000}},
    )
    stack.table("id int")
    errors = {
        "lost_table": (65, "the table does not exist"),
        "lost_topic": (65, "topic no.such: the topic does not exist"),
        "empty": (65, f"topics {name}: no records were found → produce a record first"),
        "no_broker": (69, "127.0.0.1:1"),
        "other": (78, "no mapping is named other"),
    }
    for mapping, (code, words) in errors.items():
        result = run("preview", mapping, "--config", config)
        assert (result.code, result.out) == (code, ""), result.text
        assert words in result.err


def test_preview_when_the_control_database_is_a_target_of_replication_then_refuses_as_the_mapping_does(
    run: Run, stack: Stack
) -> None:
    control = f"{stack.name}_control"
    stack.topic(1)
    stack.table("id int")
    stack.produce([{"id": 1}])
    stack.sql(f"CREATE DATABASE {control} WITH DBPROPERTIES ('repl.target.for'='p1')")
    topic = Topic(stack, stack.config(control={"database": control}))
    refused = topic.preview(run)
    assert (refused.code, refused.out) == (65, "")
    assert f"database {control} is a target of replication (repl.target.for)" in refused.err
    stack.sql(f"ALTER DATABASE {control} SET DBPROPERTIES ('repl.target.for'='')")
    assert len(topic.preview(run).json["rows"]) == 1


def test_preview_when_offsets_have_gaps_then_shows_as_many_records_as_requested(run: Run, stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int")
    producer = Producer({"bootstrap.servers": stack.addresses.kafka, "transactional.id": stack.name})
    producer.init_transactions(LIMIT)
    for number in range(8):  # each transaction ends with a record of the broker, which has an offset
        producer.begin_transaction()
        producer.produce(stack.name, b'{"id":%d}' % number)
        producer.commit_transaction(LIMIT)
    wait_for_ends(stack, {0: 16})
    topic = Topic(stack, stack.config())
    assert _places(topic.preview(run, "--limit", 3)) == [(0, 10), (0, 12), (0, 14)]
    assert _places(topic.preview(run, "--at", 1, "--limit", 3)) == [(0, 2), (0, 4), (0, 6)]
    assert len(_places(topic.preview(run))) == 8


def test_preview_when_a_topic_has_many_partitions_then_each_read_returns_the_same_excerpt(stack: Stack) -> None:
    stack.topic(8)
    for partition in range(8):
        stack.produce([{"id": partition}] * 40, partition=partition)
    ranges = [OffsetRange(stack.name, partition, 0, 40) for partition in range(8)]
    settings = {"bootstrap.servers": stack.addresses.kafka}
    for _ in range(5):
        [batch] = read_excerpt(settings, ranges, ExcerptLimits(80), "last").batches
        assert batch.partitions.tolist() == [partition for partition in range(8) for _ in range(10)]
        assert batch.offsets.tolist() == [*range(30, 40)] * 8
        assert batch.values == [b'{"id": %d}' % partition for partition in batch.partitions]
        assert [message.offset() for message in batch.messages] == batch.offsets.tolist()
        assert batch.size == 80 * len(b'{"id": 1}')


# A field, its type, and its value in the record.
_VALUES = [
    ("a", "decimal(10,3)", "1.5"),
    ("b", "double", "12345678.5"),
    ("c", "timestamp", '"2026-11-01 10:00:00.250"'),
    ("d", "date", '"1999-01-31"'),
    ("e", "char(4)", '"ab"'),
    ("f", "boolean", "true"),
    ("g", "array<decimal(10,3)>", "[1.5, null]"),
    ("h", "map<int,string>", '{"1": "x\\"y\\n"}'),
    ("i", "struct<t:timestamp,d:date,f:float,e:char(3)>", '{"t":"2026-11-01 10:00:00","d":"1999-01-31","f":0.1}'),
    ("j", "string", '"zażółć"'),
    ("k", "bigint", "null"),
    ("l", "array<binary>", '["YQ=="]'),
]


def test_preview_then_shows_values_and_places_as_hive_does(run: Run, stack: Stack) -> None:
    stack.topic(1)
    stack.table(", ".join(f"{name} {kind}" for name, kind, _ in _VALUES), partitioned="p decimal(4,2), q string")
    fields = ", ".join(f'"{name}": {value}' for name, _, value in _VALUES)
    stack.produce([f'{{{fields}, "p": 7.50, "q": "a/b"}}'.encode()])
    config = stack.config()
    [row] = Topic(stack, config).preview(run).json["rows"]
    stack.drain(config)
    # The client of the tests converts these values, but not those of other types.
    converted = {"double", "timestamp"}
    names = [f"CAST({name} AS string)" if kind in converted else name for name, kind, _ in _VALUES]
    [hive] = stack.sql(f"SELECT {', '.join(names)} FROM {stack.name}")
    shown = [value if value is None else str(value).lower() if value is True else str(value) for value in hive]
    assert list(row["values"].values()) == shown
    assert stack.sql(f"SHOW PARTITIONS {stack.name}") == [(row["table_partition"],)]


def test_preview_when_the_table_will_be_created_then_shows_the_statement_and_the_rows(run: Run, topic: Topic) -> None:
    stack = topic.stack
    new = {"columns": {"id": "int", "note": "string"}, "partitioned_by": {"day": "string"}}
    mapping = {"name": f"{stack.name[-36:]}_new", "table": f"default.{stack.name}_new", "create_table": new}
    mapping |= {"on_error": "dead_letter", "dead_letter": {"table": f"default.{stack.name}_dead"}}
    config = stack.config(mapping | {"format": {"type": "json", "tombstones": "skip"}})
    arguments = ["preview", mapping["name"], "--limit", 12, "--config", config]
    document = run(*arguments, "--output", "json").json
    columns = "(\n  `id` int,\n  `note` string\n)\nPARTITIONED BY (\n  `day` string\n)"
    statement = f"CREATE TABLE `default`.`{stack.name}_new` {columns}"
    shown, letters = document["statements"]
    assert shown[: len(statement)] == statement
    assert letters.startswith(f"CREATE TABLE `default`.`{stack.name}_dead` (\n  `id` string,")
    assert document["rows"][0]["values"] == {"id": "0", "note": "n0"}
    assert document["rows"][0]["table_partition"] == "day=d0"
    assert statement in run(*arguments).out
    assert stack.sql(f"SHOW TABLES LIKE '{stack.name}_new'") == []
    checked = run("check", "--online", "--config", config)
    assert checked.code == 0, checked.text
    assert "does not exist; the mapping creates it: CREATE TABLE" in checked.text


def test_preview_when_the_table_will_be_altered_then_shows_all_fields_and_statements_that_hive_executes(
    run: Run, stack: Stack
) -> None:
    def nested(kind: str, *more: dict[str, str]) -> dict[str, Any]:
        return {"type": "record", "name": kind, "fields": [{"name": "order", "type": kind}, *more]}

    # Reserved words, which HiveQL accepts only as quoted identifiers.
    fields = {"id": "long", "s": nested("long", {"name": "group", "type": "string"}), "table": nested("int")}
    schema, values = schema_of(fields), {"id": 2**40, "s": {"order": 1, "group": "g"}, "table": {"order": 2}}
    stack.topic(1)
    for name in (stack.name, f"{stack.name}_by_hive"):
        stack.table("id int, s struct<`order`:int>", name=f"default.{name}")
    stack.produce([single_object(schema, encode(schema, values))])
    options = {"type": "avro", "framing": "single_object", "schemas": [schema]}
    config = stack.config({"format": options, "schema_evolution": "widen"})
    shown = Topic(stack, config).preview(run).json
    place = f"ALTER TABLE `default`.`{stack.name}`"
    assert shown["statements"] == [
        f"{place} CHANGE COLUMN `id` `id` bigint",
        f"{place} CHANGE COLUMN `s` `s` struct<`order`:bigint,`group`:string>",
        f"{place} ADD COLUMNS (`table` struct<`order`:int>)",
    ]
    expected = {"id": str(2**40), "s": '{"order":1,"group":"g"}', "table": '{"order":2}'}
    assert [row["values"] for row in shown["rows"]] == [expected]
    assert stack.sql(f"DESCRIBE {stack.name}")[0] == ("id", "int", "")

    [altered] = stack.drain(config).events("table_altered")
    assert altered["statements"] == shown["statements"]
    for statement in shown["statements"]:
        stack.sql(statement.replace(f"`{stack.name}`", f"`{stack.name}_by_hive`"))
    assert stack.sql(f"DESCRIBE {stack.name}") == stack.sql(f"DESCRIBE {stack.name}_by_hive")


def test_preview_when_the_table_lost_a_column_since_the_last_commit_then_refuses_as_the_mapping_does(
    run: Run, stack: Stack
) -> None:
    stack.topic(1)
    stack.table("id int, note string")
    stack.produce([{"id": 1, "note": "a"}])
    config = stack.config({"schema_evolution": "add_columns"})
    stack.drain(config)
    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN note title string")
    stack.produce([{"id": 2, "note": "b"}])

    topic = Topic(stack, config)
    refused, checked = topic.preview(run), run("check", "--online", "--config", config)
    assert (refused.code, refused.out) == (65, "")
    [failed] = stack.drain(config, expect=65).events("failed")
    assert checked.code == 65
    for text in (failed["error"], refused.err, checked.text):
        assert "no longer fit those of the last commit: note string was removed or renamed" in text

    options = load([config]).mappings[0]
    change_stored(Warehouse(stack.metastore, Storages()), options, Request("resume", "test"))
    shown = topic.preview(run).json
    assert shown["statements"] == [f"ALTER TABLE `default`.`{stack.name}` ADD COLUMNS (`note` string)"]
    assert [event["statements"] for event in stack.drain(config).events("table_altered")] == [shown["statements"]]

    other = stack.table("id int", name=f"default.{stack.name}_other")
    moved = Topic(stack, stack.config({"table": other})).preview(run)
    assert (moved.code, moved.out) == (65, "")
    assert f"the table of the mapping changed from default.{stack.name} to {other}" in moved.err


def test_preview_when_new_columns_make_rows_of_more_records_then_shows_all_that_the_mapping_alters(
    run: Run, stack: Stack
) -> None:
    stack.topic(1)
    stack.table("id int")
    # The second record is a row only of a table with b, and then needs c.
    stack.produce([{"id": 1, "b": 1}, {"b": 2, "c": 3}])
    config = stack.config({"schema_evolution": "add_columns"})
    shown = Topic(stack, config).preview(run).json
    altered = stack.drain(config).events("table_altered")
    assert [event["statements"] for event in altered] == [[statement] for statement in shown["statements"]]
    assert len(altered) == 2
    rows = [tuple(row["values"].values()) for row in shown["rows"]]
    assert rows == [("1", "1", None), (None, "2", "3")]
    assert stack.sql(f"SELECT id, b, c FROM {stack.name} ORDER BY b") == [(1, 1, None), (None, 2, 3)]
    assert shown["unstored"] == []


def test_preview_when_the_mapping_then_runs_then_all_that_it_has_shown_happens(run: Run, stack: Stack) -> None:
    stack.topic(1)
    stack.sql(
        f"CREATE TABLE {stack.name} (id int, note string, place bigint) PARTITIONED BY (day string)"
        " CLUSTERED BY (id) INTO 3 BUCKETS STORED AS ORC TBLPROPERTIES ('transactional'='true')"
    )
    count = 2_000
    # ORC cannot compress the texts, so that headers and footers are a small part of the files.
    stack.produce(
        {
            "id": "x" if n % 100 == 7 else n,
            "note": hashlib.sha512(b"%d" % n).hexdigest(),
            "day": f"d{n % 2}",
            "price": n / 2,
            "later": None,
        }
        for n in range(count)
    )
    letters = f"default.{stack.name}_dead"
    mapping = {
        "schema_evolution": "add_columns",
        "columns": {"place": "offset"},
        "on_error": "dead_letter",
        "dead_letter": {"table": letters},
        "commit": {"rows": count, "bytes": "1GiB", "interval": "10m"},
    }
    config = stack.config(mapping)
    shown = Topic(stack, config).preview(run, "--at", 0, "--limit", count).json
    daemon = stack.drain(config)

    bucket = "CAST(regexp_extract(INPUT__FILE__NAME, 'bucket_([0-9]+)', 1) AS int)"
    stored = stack.sql(f"SELECT place, concat('day=', day), {bucket}, id, note, price FROM {stack.name} ORDER BY place")
    names = ("id", "note", "price")
    assert [
        (row["offset"], row["table_partition"], row["bucket"], *(row["values"][name] for name in names))
        for row in shown["rows"]
    ] == [(*places, str(number), note, str(price)) for *places, number, note, price in stored]
    assert len(stored) == count - count // 100
    rejects = [(reject["offset"], reject["column"], reject["reason"]) for reject in shown["rejects"]]
    assert rejects == stack.sql(
        f"SELECT record_offset, error_column, error_reason FROM {letters} ORDER BY record_offset"
    )
    ran = [event["statement"] for event in daemon.events("table_created")]
    ran += [statement for event in daemon.events("table_altered") for statement in event["statements"]]
    assert shown["statements"] == ran
    assert len(ran) == 2
    assert shown["unstored"] == ["later"]
    [commit] = [event for event in daemon.events("committed") if event["rows"]]
    estimate = shown["estimate"]
    assert (estimate["records"], estimate["rows"]) == (commit["records"], commit["rows"])
    assert estimate["partitions"] == len(stack.sql(f"SHOW PARTITIONS {stack.name}"))
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    size = sum(file.stat().st_size for file in local_path(table.location).glob("day=*/delta_*/bucket_*"))
    assert 0.5 < estimate["bytes"] / size < 2


def test_preview_then_prints_the_example_of_the_page(run: Run, stack: Stack) -> None:
    section = _PAGE.read_text(encoding="utf-8").partition("## `ingestd preview`")[2]
    example = re.search(r"^```console\n\$ ingestd (.+) ingestd\.yaml\n((?:.*\n)+?)```", section, re.MULTILINE)
    assert example
    stack.topic(2)
    stack.table("id int, amount decimal(10,2), note string", "dt string")
    row = {"id": 7, "amount": 1.5, "note": "first", "dt": "2026-11-01"}
    reject = {"id": 9, "amount": "abc", "note": "", "dt": "2026-11-02"}
    stack.produce([*[b"{}"] * 1040, row, reject], partition=0)
    stack.produce([*[b"{}"] * 998, {"id": 8, "amount": None, "note": "", "dt": "2026-11-02"}], partition=1)
    arguments = example[1].replace("clicks", stack.name[-40:]).split()

    printed = run(*arguments, stack.config()).out.replace(stack.name, "clicks")

    # Columns are as wide as the name of the topic, and sizes depend on the compression.
    assert [_words(line) for line in printed.splitlines()] == [_words(line) for line in example[2].splitlines()]


def _words(line: str) -> list[str]:
    return re.sub(r"[\d.]+ [kM]B", "SIZE", line).split()


def test_preview_when_the_mapping_has_sql_then_shows_the_result_and_check_examines_it(stack: Stack) -> None:
    stack.topic(1)
    table = stack.table("id int, tag string")
    stack.produce([{"id": 1, "tags": ["a", "b"]}, b"{", {"id": 2, "tags": ["c"]}, {"id": 3, "tags": []}])
    transform = {
        "columns": {"id": "int", "tags": "array<string>"},
        "select": "SELECT id, tag FROM records LATERAL VIEW explode(tags) AS tag",
    }
    other = {"name": f"{stack.name}_o"[-40:], "where": "id > (SELECT 1)"}
    config = stack.config({"where": "id <> 2", "transform": transform}, other)
    with ThreadPoolExecutor(2) as threads:
        previewing = threads.submit(_command, "preview", stack.name[-40:], "--output", "json", "--config", config)
        checking = threads.submit(_command, "check", "--online", "--output", "json", "--config", config)
    shown = previewing.result()
    rows = [(row["offset"], row["values"]) for row in shown["rows"]]
    assert rows == [(0, {"id": "1", "tag": "a"}), (0, {"id": "1", "tag": "b"})]
    assert [reject["offset"] for reject in shown["rejects"]] == [1]
    findings = {one["subject"]: one for one in checking.result()}
    assert findings[f"mapping {stack.name[-40:]}, transform"]["problem"] is None
    problem = findings[f"mapping {other['name']}, where"]["problem"]
    assert (problem["reason"], problem["error"]) == ("ConfigError", "a subquery is not allowed")
    assert stack.count(name=table) == 0

    stack.drain(stack.config({"where": "id <> 2", "transform": transform, "on_error": "skip"}))
    columns = list(rows[0][1])
    assert sorted(stack.sql(f"SELECT CAST(id AS string), tag FROM {stack.name}")) == [
        tuple(values[column] for column in columns) for _, values in rows
    ]


@pytest.mark.parametrize(
    ("select", "kind", "text"),
    [
        ("SELECT str_to_map(IF(id = 4, 'a:1,a:2', 'a:1'))['a'] AS t FROM records", QueryFailed, "DUPLICATED_MAP_KEY"),
        ("SELECT IF(id = 4, 'long', 'a') AS t FROM records", RecordError, "column t: a row of the result cannot be"),
    ],
)
def test_preview_when_its_sql_fails_for_a_record_then_the_error_names_it(
    stack: Stack, select: str, kind: type[IngestdError], text: str
) -> None:
    stack.topic(2)
    stack.table("t varchar(3)")
    for partition in range(2):
        numbers = range(partition, 8, 2)
        stack.produce([b"{", *({"id": n, "ids": [n, n]} for n in numbers)], partition=partition)
    columns = {"id": "int", "ids": "array<int>"}
    [options] = load([stack.config({"transform": {"columns": columns, "select": select}})]).mappings
    with pytest.raises(kind, match=rf"^{stack.name}\[0\] offset 3, .*{text}"):
        preview(stack.metastore, options, 20, None, shared_engine)


def _command(*arguments: object) -> Any:
    """Return the JSON document of a command in a process of its own, because it starts and ends Spark."""
    command = [sys.executable, "-m", "ingestd", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)
