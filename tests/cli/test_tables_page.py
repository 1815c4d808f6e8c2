"""The examples of docs/tables.md, and that of docs/formats.md for columns from Kafka, give the results of the pages."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from tests.support.command import Run
from tests.support.registry import registry_server, serialize
from tests.support.stack import Stack

DOCS = Path(__file__).parents[2] / "docs"
# A row of the table of distributions, their files, and those of each shop.
_FILES = r"^\| (\w+) \| (\d+) \| (\d+) \|$"


def _blocks(language: str, page: str = "tables.md", heading: str = "") -> list[str]:
    """Return the blocks of a language of a page, from a heading on."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text[text.index(heading) :], re.MULTILINE | re.DOTALL)


def test_partition_when_its_values_are_those_of_the_example_then_rows_are_in_these_partitions(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, ts timestamp", "dt string, hour int, region string")
    stack.produce([{"id": 1, "ts": "2026-11-24 23:59:59"}, {"id": 2, "ts": "2026-11-25 07:00:00"}])
    stack.drain(stack.config(yaml.safe_load(_blocks("yaml")[0])))
    assert stack.sql(f"SELECT id, dt, hour, region FROM {stack.name} ORDER BY id") == [
        (1, "2026-11-24", 23, "DE"),
        (2, "2026-11-25", 7, "DE"),
    ]


def test_distribution_when_it_is_one_of_the_example_then_the_transaction_has_the_files_of_the_page(
    stack: Stack,
) -> None:
    heading = "## Many partitions and buckets"
    create, query = _blocks("sql", heading=heading)[:2]
    [mapping] = yaml.safe_load(_blocks("yaml", heading=heading)[0])
    section = (DOCS / "tables.md").read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    expected = {kind: (int(files), int(each)) for kind, files, each in re.findall(_FILES, section, re.MULTILINE)}
    assert list(expected) == ["none", "hash", "auto"]
    stack.topic(2)
    for partition, first in ((0, 0), (1, 30_000)):
        stack.produce(({"id": n, "shop": n % 100 + 1} for n in range(first, first + 30_000)), partition=partition)
    tables = {kind: f"default.{stack.name}_{kind}" for kind in expected}
    for table in tables.values():
        stack.sql(create.replace(mapping["table"], table))
    mappings = [
        {**mapping, "name": table.partition(".")[2][-40:], "topics": [stack.name], "table": table, "distribution": kind}
        for kind, table in tables.items()
    ]
    daemon = stack.drain(stack.config(*mappings))
    for kind, table in tables.items():
        [commit] = [event for event in daemon.events("committed") if event["mapping"].endswith(kind) and event["rows"]]
        shops = stack.sql(query.replace(mapping["table"], table))
        assert (commit["files"], commit["rows"]) == (expected[kind][0], 60_000)
        assert sorted(shops) == [(shop, expected[kind][1]) for shop in range(1, 101)]


def test_table_when_the_mapping_of_the_example_creates_it_then_hive_has_its_columns_and_properties(
    stack: Stack,
) -> None:
    stack.topic(1)
    stack.produce([{"id": 1, "note": "a", "dt": "2026-11-24"}])
    [example, *_] = _blocks("yaml", heading="## Tables that mappings create")
    daemon = stack.drain(stack.config(yaml.safe_load(example)))
    assert len(daemon.events("table_created")) == 1
    assert stack.sql(f"SELECT id, note, dt FROM {stack.name}") == [(1, "a", "2026-11-24")]
    assert ("orc.compress", "ZLIB") in stack.sql(f"SHOW TBLPROPERTIES {stack.name}")


def test_columns_when_the_mapping_of_the_example_fills_them_from_kafka_then_they_have_its_records(
    stack: Stack,
) -> None:
    [mapping] = yaml.safe_load(_blocks("yaml", "formats.md", "## Columns from Kafka")[0])
    stack.topic(1)
    stack.table("id string, source map<string,string>, p int, o bigint, changed timestamp, topic string, name string")
    stack.produce([{"name": "Ada"}, None])
    stack.drain(stack.config({key: mapping[key] for key in ("format", "columns")}))
    shown = stack.sql(f"SELECT id, size(source), p, o, changed IS NULL, topic, name FROM {stack.name} ORDER BY o")
    assert shown == [("1", 0, 0, 0, False, stack.name, "Ada"), ("2", 0, 0, 1, False, stack.name, None)]


def test_letters_when_the_commands_of_the_page_replay_them_then_output_and_queries_are_those_of_the_page(
    stack: Stack, run: Run
) -> None:
    name, letters = stack.name[-40:], f"default.{stack.name}_dead"
    stack.topic(1)
    stack.table("id int, amount int")
    stack.produce([{"id": 0, "amount": 1}, b"{oops", *({"id": n, "amount": 3_000_000_000} for n in range(1, 13))])
    config = stack.config({"on_error": "dead_letter", "dead_letter": {"table": letters}})
    stack.drain(config)
    counted, remaining = (
        text.replace("web.dead_letters", letters).replace("'clicks'", f"'{name}'").strip().rstrip(";")
        for text in _blocks("sql", heading="### Dead letters in a table")[:2]
    )
    assert sorted((column, number) for column, _, number in stack.sql(counted)) == [("", 1), ("amount", 12)]

    stack.sql(f"ALTER TABLE {stack.name} CHANGE amount amount bigint")
    [session] = [block for block in _blocks("console") if "deadletters replay" in block]
    for command, expected in re.findall(r"^\$ ingestd (.*)\n(.*)$", session, re.MULTILINE):
        arguments: list[Any] = [
            {"clicks": name, "ingestd.yaml": str(config)}.get(word, word) for word in shlex.split(command)
        ]
        result = run(*arguments)
        assert result.code == 0, result.text
        pattern = re.escape(expected.replace("clicks", name)).replace("4711", r"\d+")
        assert re.fullmatch(pattern, result.out.strip()), result.text
    assert stack.ids() == list(range(13))
    assert stack.sql(remaining.replace("SELECT *", "SELECT record_offset", 1)) == [(1,)]


def _table(heading: str) -> list[tuple[str, ...]]:
    """Return the rows of the last table of a section."""
    section = (DOCS / "tables.md").read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    _, _, *rows = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)[-1].splitlines()
    return [tuple(cell.strip() for cell in row[1:-1].split(" | ")) for row in rows]


def _rows(stack: Stack, query: str) -> list[tuple[str, ...]]:
    return [tuple("NULL" if value is None else str(value) for value in row) for row in stack.sql(query)]


def test_mapping_when_a_column_is_renamed_as_on_the_page_then_resume_accepts_it(stack: Stack, run: Run) -> None:
    heading, name = "## When the table changes", stack.name[-40:]

    def of_test(text: str) -> str:
        return text.strip().replace("shop.payments", f"default.{stack.name}").replace("payments", name)

    first, *others = _blocks("json", heading=heading)[0].encode().splitlines()
    stack.topic(1)
    stack.table("id int, amount int")
    config = stack.config()
    stack.produce([first])
    stack.drain(config)
    stack.sql(of_test(_blocks("sql", heading=heading)[0]).rstrip(";"))
    stack.produce(others)
    [failed] = stack.drain(config, expect=65).events("failed")
    assert of_test(_blocks("text", heading=heading)[0]) in failed["error"]

    command, printed = _blocks("console", heading=heading)[0].splitlines()
    arguments = of_test(command).removeprefix("$ ingestd ").replace("ingestd.yaml", str(config))
    assert run(*shlex.split(arguments)).out == f"{of_test(printed)}\n"
    stack.drain(config)
    assert _rows(stack, f"SELECT * FROM {stack.name} ORDER BY id") == _table(heading)


def test_schema_evolution_when_a_producer_has_the_schemas_of_the_page_then_the_table_is_that_of_the_page(
    stack: Stack,
) -> None:
    heading = "## Schema evolution"
    [mapping] = yaml.safe_load(_blocks("yaml", heading=heading)[0])
    schemas, records = (_blocks(language, heading=heading)[0].splitlines() for language in ("avsc", "json"))
    stack.topic(1)
    stack.table("id int, page string")
    with registry_server() as server:
        for schema, record in zip(schemas, records, strict=True):
            stack.produce([serialize(server.serializer(schema), stack.name, json.loads(record))])
        config = stack.config(
            {key: mapping[key] for key in ("format", "schema_evolution")}, registry={"url": server.url}
        )
        daemon = stack.drain(config)
    [altered] = daemon.events("table_altered")
    statements = _blocks("sql", heading=heading)[0].replace("`web`.`visits`", f"`default`.`{stack.name}`")
    assert "".join(f"{statement};\n" for statement in altered["statements"]) == statements
    assert [event["rows"] for event in daemon.events("committed") if event["rows"]] == [len(records)]
    assert _rows(stack, f"SELECT * FROM {stack.name} ORDER BY id") == _table(heading)
