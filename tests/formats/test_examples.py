"""A daemon writes the rows that docs/formats.md shows for its examples, and the page describes each format."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from ingestd.config.document import load
from ingestd.config.validation import type_name
from ingestd.errors import InvalidTable
from ingestd.formats.options import FormatOptions
from ingestd.ingest.target import load_target
from tests.support.format_examples import PAGE, Example, examples
from tests.support.stack import Stack


def test_page_then_has_a_section_for_each_format() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert not [name for name in map(type_name, get_args(FormatOptions)) if f"\n## {name}\n" not in page]


def test_examples_when_a_daemon_runs_them_then_the_tables_have_the_rows_of_the_page(stack: Stack) -> None:
    found = examples()
    mappings = [_prepared(stack, example) for example in found]

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


def _prepared(stack: Stack, example: Example) -> dict[str, Any]:
    """Create the table and the topic, produce the records, and return the mapping."""
    name = f"{stack.name}_{example.mapping['name']}"
    table = stack.table(example.columns, example.partitioned, name=f"default.{name}")
    assert stack.produce(example.records, stack.topic(2, name)) == len(example.records) > 0
    return {**example.mapping, "name": name[-40:], "topics": [name], "table": table}


def _rows(stack: Stack, example: Example, table: str) -> list[tuple[str, ...]]:
    """Return the rows of the table as the page shows them.

    PyHive cannot read binary columns, and returns other types than text for timestamps.
    """
    cast = [column.split()[0] for column in example.columns.split(", ") if column.endswith((" binary", " timestamp"))]
    select = ", ".join(f"cast({name} as string)" if name in cast else name for name in example.names)
    rows = stack.sql(f"SELECT {select} FROM {table}")
    return sorted(tuple("NULL" if value is None else str(value) for value in row) for row in rows)
