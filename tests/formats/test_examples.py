"""A daemon writes the rows that docs/formats.md shows for its examples, and the page describes each format."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

import ingestd
from ingestd.config.document import load
from ingestd.config.validation import type_name
from ingestd.errors import InvalidTable
from ingestd.formats.options import FormatOptions
from ingestd.ingest.table.target import load_target
from tests.support.format_examples import PAGE, Example, changed, examples, new_format
from tests.support.stack import Stack


def test_page_then_has_a_section_for_each_format() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert not [name for name in map(type_name, get_args(FormatOptions)) if f"\n## {name}\n" not in page]


def test_examples_when_a_daemon_runs_them_then_the_tables_have_the_rows_of_the_page(stack: Stack) -> None:
    found = examples()
    topics: dict[str, str] = {}
    mappings = [_prepared(stack, example, topics) for example in found]

    stack.drain(stack.config(*mappings))

    for example, mapping in zip(found, mappings, strict=True):
        assert _rows(stack, example, mapping["table"]) == sorted(example.rows), example.section


def test_format_when_it_does_not_fit_the_table_then_load_target_names_the_mapping_and_the_key(stack: Stack) -> None:
    table = stack.table("id int", "day date")
    by_position = {"type": "csv", "fields": ["id", "day", "price"]}
    faults = []
    for partition, keys in (({}, by_position), ({"day": "2026-11-21"}, {"type": "text"})):
        options = load([stack.config({"partition": partition, "format": keys})]).mappings[0]
        with pytest.raises(InvalidTable) as caught:
            load_target(stack.metastore, options)
        faults.append(str(caught.value).removeprefix(f"mapping {options.name}, table {table}, "))
    assert faults[0].startswith("format.fields: there is no column price; the columns of the records are id, day →")
    assert faults[1].startswith("format.column: column id has the type int, which cannot store the whole value →")


# Prints the rows of the records in the standard input, by the mapping of a configuration.
DECODE = """
import json, pathlib, sys
from ingestd.config.document import load
from ingestd.schema import Column, HiveType
columns = [Column(name, HiveType.parse(kind)) for name, kind in json.loads(sys.argv[2])]
decoder = load([pathlib.Path(sys.argv[1])]).mappings[0].format.decoder(columns)
result = decoder.decode(sys.stdin.buffer.read().splitlines())
rows = [list(row.values()) for batch in result.batches for row in batch.to_pylist()]
print(json.dumps([len(result.rejects), [["NULL" if value is None else str(value) for value in row] for row in rows]]))
"""


def test_page_when_a_copy_of_ingestd_has_its_new_format_then_the_format_has_the_rows_of_the_page(
    tmp_path: Path,
) -> None:
    found = new_format()
    package = tmp_path / "ingestd"
    shutil.copytree(Path(ingestd.__file__).parent, package)
    options, config = package / "formats" / "options.py", tmp_path / "a.yaml"
    options.write_text(changed(options.read_text(encoding="utf-8"), found.change), encoding="utf-8")
    (package / "formats" / f"{found.example.mapping['format']['type']}.py").write_text(found.module, encoding="utf-8")
    services = {"metastore": {"uri": "thrift://hms:9083"}, "kafka": {"bootstrap.servers": "broker:9092"}}
    config.write_text(json.dumps({**services, "mappings": [found.example.mapping]}), encoding="utf-8")
    columns = json.dumps([column.split(" ") for column in found.example.columns.split(", ")])
    done = subprocess.run(
        [sys.executable, "-c", DECODE, config, columns],
        input=b"\n".join(found.example.records),
        cwd=tmp_path,  # the first place of modules
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    rejects, rows = json.loads(done.stdout)
    assert [tuple(row) for row in rows] == list(found.example.rows)
    assert rejects == len(found.example.records) - len(rows)


def _prepared(stack: Stack, example: Example, topics: dict[str, str]) -> dict[str, Any]:
    """Create the table, and the topic of the section unless it exists; produce the records, and return the mapping."""
    name = f"{stack.name}_{example.mapping['name']}"
    table = stack.table(example.columns, example.partitioned, name=f"default.{name}")
    if example.section not in topics:
        topics[example.section] = stack.topic(2, name)
        assert stack.produce(example.records, name) == len(example.records) > 0
    return {**example.mapping, "name": name[-40:], "topics": [topics[example.section]], "table": table}


def _rows(stack: Stack, example: Example, table: str) -> list[tuple[str, ...]]:
    """Return the rows of the table as the page shows them.

    PyHive cannot read binary columns, and returns other types than text for timestamps.
    """
    cast = [column.split()[0] for column in example.columns.split(", ") if column.endswith((" binary", " timestamp"))]
    select = ", ".join(f"cast({name} as string)" if name in cast else name for name in example.names)
    rows = stack.sql(f"SELECT {select} FROM {table}")
    return sorted(tuple("NULL" if value is None else str(value) for value in row) for row in rows)
