"""The examples of docs/formats.md: a table, a mapping, the values of its records, and the rows of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


@dataclass(frozen=True)
class Example:
    """One example. Several of a section have the same records.

    `columns` and `partitioned` are the parts of the CREATE TABLE statement, and `names` the columns of the rows. The
    values of rows are text.
    """

    section: str
    columns: str
    partitioned: str
    mapping: dict[str, Any]
    records: tuple[bytes, ...]
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class NewFormat:
    """The format that the page adds: the text of its module, the change of another one as a diff, and its example."""

    module: str
    change: str
    example: Example


def examples() -> list[Example]:
    """Return the examples of the formats in the order of the page."""
    sections = [section for section in _sections() if "```sql" in section and "```diff" not in section]
    return [example for section in sections for example in _examples(section)]


def new_format() -> NewFormat:
    """Return the format that the page adds."""
    [section] = [section for section in _sections() if "```diff" in section]
    blocks = _blocks(section)
    [example] = _examples(section)
    return NewFormat(blocks["python"], blocks["diff"], example)


def changed(text: str, diff: str) -> str:
    """Return a text after a change, whose parts are separated by lines with `@@`."""
    for part in diff.split("@@\n"):
        old, new = ("".join(line[1:] for line in part.splitlines(True) if line[0] != sign) for sign in "+-")
        assert text.count(old) == 1, part
        text = text.replace(old, new)
    return text


def _sections() -> list[str]:
    return re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def _blocks(section: str) -> dict[str, str]:
    return dict(re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL))


def _examples(section: str) -> list[Example]:
    """Return an example for each mapping of a section, which has a table for each, and as many tables of rows."""
    blocks = _blocks(section)
    mappings = yaml.safe_load(blocks["yaml"])
    tables = re.findall(r"CREATE TABLE \S+ \((.*?)\)(?: PARTITIONED BY \((.*)\))?$", blocks["sql"], re.MULTILINE)
    results = re.findall(r"(?:^\|.*\n)+", section.rpartition("```")[2], re.MULTILINE)
    assert len(mappings) == len(tables) <= len(results), section
    return [
        _example(section.splitlines()[0], columns, partitioned, mapping, _records(blocks), result)
        for mapping, (columns, partitioned), result in zip(mappings, tables, results, strict=False)
    ]


def _example(
    section: str, columns: str, partitioned: str, mapping: dict[str, Any], records: tuple[bytes, ...], result: str
) -> Example:
    names, _, *rows = (tuple(cell.strip() for cell in line[1:-1].split(" | ")) for line in result.splitlines())
    return Example(section, columns, partitioned, mapping, records, names, tuple(rows))


def _records(blocks: dict[str, str]) -> tuple[bytes, ...]:
    """Return the values of records, one per line: text, or the hexadecimal digits of binary values."""
    if "hex" in blocks:
        return tuple(map(bytes.fromhex, blocks["hex"].splitlines()))
    return tuple(line.encode() for line in blocks["text"].splitlines())
