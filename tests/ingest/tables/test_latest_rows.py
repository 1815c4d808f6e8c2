"""The view of docs/limits.md shows the latest row of each key, as an upsert would."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.support.stack import Stack

PAGE = Path(__file__).parents[3] / "docs" / "limits.md"


def test_view_when_rows_have_been_updated_and_deleted_then_shows_only_the_latest(stack: Stack) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("### Updates of rows")[2]
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    [mapping] = yaml.safe_load(blocks["yaml"])
    [columns] = re.findall(r"# (.*)", blocks["yaml"])
    stack.topic(1)
    stack.table(columns)
    states = [(1, "new"), (2, "new"), (1, "paid"), (3, "new"), (2, None), (1, "sent")]
    stack.produce([{"id": key, "state": state, "is_deleted": state is None or None} for key, state in states])
    stack.drain(stack.config({"columns": mapping["columns"]}))
    statement = blocks["sql"].replace("shop.current", f"{stack.name}_current").replace("shop.changes", stack.name)
    stack.sql(statement)
    assert stack.sql(f"SELECT * FROM {stack.name}_current ORDER BY id") == [(1, "sent"), (3, "new")]
    stack.sql(f"DROP VIEW {stack.name}_current")
