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
    """One example.

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


def examples() -> list[Example]:
    """Return the examples of the page in their order."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [_example(section) for section in sections if "```sql" in section]


def _example(section: str) -> Example:
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    table = re.search(r"CREATE TABLE \S+ \((.*?)\)(?: PARTITIONED BY \((.*)\))?$", blocks["sql"], re.MULTILINE)
    assert table, section
    result = re.search(r"(?:^\|.*\n)+", section.rpartition("```")[2], re.MULTILINE)
    assert result, section
    names, _, *rows = (tuple(cell.strip() for cell in line[1:-1].split(" | ")) for line in result[0].splitlines())
    [mapping] = yaml.safe_load(blocks["yaml"])
    return Example(
        section=section.splitlines()[0],
        columns=table[1],
        partitioned=table[2] or "",
        mapping=mapping,
        records=_records(blocks),
        names=names,
        rows=tuple(rows),
    )


def _records(blocks: dict[str, str]) -> tuple[bytes, ...]:
    """Return the values of records, one per line: text, or the hexadecimal digits of binary values."""
    if "hex" in blocks:
        return tuple(map(bytes.fromhex, blocks["hex"].splitlines()))
    return tuple(line.encode() for line in blocks["text"].splitlines())
