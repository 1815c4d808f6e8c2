"""The examples of docs/formats.md: a table, a mapping, the values of its records, and the rows of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
_RECORDS = ("text", "hex", "json")
_TABLE = re.compile(r"CREATE TABLE \S+ \((.*?)\)(?: PARTITIONED BY \((.*)\))?$", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """One example. Several of a section have the same records.

    `columns` and `partitioned` are the parts of the CREATE TABLE statement, and `names` the columns of the rows. The
    values of rows are text. `settings` are the keys beside `mappings` in the configuration. The records are shown as
    JSON, and must be encoded, if `is_json`. Then `schemas` are their schemas as JSON text, if the section has them.
    """

    section: str
    columns: str
    partitioned: str
    settings: dict[str, Any]
    mapping: dict[str, Any]
    records: tuple[bytes, ...]
    is_json: bool
    schemas: tuple[str, ...]
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
    return [example for section in _sections() if "```diff" not in section for example in _examples(section)]


def without_rows() -> list[str]:
    """Return the YAML blocks of the page without rows that follow them, and without a reason before them."""
    parts = [part for section in _sections() for part in _parts(section)]
    return [part.yaml for part in parts if not part.results and not part.reason]


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


@dataclass(frozen=True)
class _Part:
    """A YAML block and what belongs to it: the blocks since the previous one, the block of records and the rows."""

    yaml: str
    reason: str
    before: dict[str, str]
    language: str
    records: str
    results: tuple[str, ...]


def _parts(section: str) -> list[_Part]:
    """Return the YAML blocks of a section in their order. A block of SQL or of schemas counts until the next one."""
    parts: list[_Part] = []
    before: dict[str, str] = {}
    blocks = list(re.finditer(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    for index, block in enumerate(blocks):
        before[block[1]] = block[2]
        if block[1] != "yaml":
            continue
        reason = re.search(r"<!-- no rows: (.+) -->\n$", section[: block.start()])
        language = records = text = ""
        if index + 1 < len(blocks) and blocks[index + 1][1] in _RECORDS:
            language, records = blocks[index + 1].groups()
            text = section[blocks[index + 1].end() :].partition("\n```")[0]
        results = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        parts.append(_Part(block[2], reason[1] if reason else "", dict(before), language, records, tuple(results)))
    return parts


def _examples(section: str) -> list[Example]:
    """Return an example for each mapping of a section; its YAML blocks have as many tables, and as many of rows."""
    return [example for part in _parts(section) if part.results for example in _of_part(section.splitlines()[0], part)]


def _of_part(section: str, part: _Part) -> list[Example]:
    settings = yaml.safe_load(part.yaml)
    mappings = settings.pop("mappings") if isinstance(settings, dict) else settings
    tables = _TABLE.findall(part.before["sql"])
    assert len(mappings) == len(tables) <= len(part.results), section
    lines = part.records.splitlines()
    return [
        Example(
            section,
            columns,
            partitioned,
            settings if isinstance(settings, dict) else {},
            mapping,
            tuple(map(bytes.fromhex, lines) if part.language == "hex" else map(str.encode, lines)),
            part.language == "json",
            tuple(part.before.get("avsc", "").splitlines()),
            *_rows(result),
        )
        for mapping, (columns, partitioned), result in zip(mappings, tables, part.results, strict=False)
    ]


def _rows(result: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the names of the columns and the rows of a table of the page."""
    names, _, *rows = (tuple(cell.strip() for cell in line[1:-1].split(" | ")) for line in result.splitlines())
    return names, tuple(rows)
