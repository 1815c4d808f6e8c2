"""Records of several JSON objects, from Kafka to the rows that HiveServer2 returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingestd.config.document import load
from ingestd.ingest.inspection.preview import preview
from ingestd.sandbox import Addresses
from tests.support.daemon import DaemonThread, shared_engine
from tests.support.records import read_all
from tests.support.stack import Stack

BAD_ARRAY = b'[{"id": 5}, {"id": "six"}, {"id": null}]'
ARRAYS = [b'[{"id": 1, "dt": "a"}, {"ID": 2, "dt": "b"}]', b"[]", BAD_ARRAY, None, b'[{"id": 3, "dt": "b"}]']
LINES = [b'{"id": 1}\n{"id": 2}\r\n\n', b'{"id": 3}\n{"id": 4} x', b'{"id": 5}']


@dataclass(frozen=True)
class _Loaded:
    """The mappings that a daemon has run; each has a topic and a table of its own name."""

    stack: Stack
    config: Path
    arrays: str
    lines: str
    daemon: DaemonThread

    def events(self, event: str, mapping: str) -> list[dict[str, Any]]:
        return [logged for logged in self.daemon.events(event) if logged["mapping"] == mapping]


@pytest.fixture(scope="module")
def loaded(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Loaded]:
    with Stack(addresses, "json_records", Path(tmp_path_factory.mktemp("json_records"))) as stack:
        arrays, lines = f"{stack.name}_arrays", f"{stack.name}_lines"
        for name, records in ((arrays, ARRAYS), (lines, LINES)):
            stack.produce(records, stack.topic(1, name))
        stack.topic(1, f"{arrays}.dead")
        stack.table("id int, k string, o bigint", "dt string", name=f"default.{arrays}")
        stack.table("id int", name=f"default.{lines}")
        config = stack.config(
            {
                **_mapping(arrays, records="array", tombstones="skip"),
                "columns": {"k": "key", "o": "offset"},
                "on_error": "dead_letter",
                "dead_letter": {"topic": f"{arrays}.dead"},
            },
            {**_mapping(lines, records="lines"), "on_error": "skip"},
        )
        yield _Loaded(stack, config, arrays, lines, stack.drain(config))


def _mapping(name: str, **options: str) -> dict[str, Any]:
    return {"name": name, "topics": [name], "table": f"default.{name}", "format": {"type": "json", **options}}


def test_arrays_when_a_daemon_has_run_then_rows_have_the_key_and_the_offset_of_their_record(loaded: _Loaded) -> None:
    rows = loaded.stack.sql(f"SELECT id, k, o, dt FROM {loaded.arrays} ORDER BY id")
    assert rows == [(1, "1", 0, "a"), (2, "1", 0, "b"), (3, "5", 4, "b")]
    assert loaded.stack.count(name=loaded.arrays) == 3
    committed = loaded.events("committed", loaded.arrays)
    assert [sum(commit[what] for commit in committed) for what in ("rows", "records")] == [3, 5]


def test_array_when_one_element_does_not_fit_then_the_record_is_one_dead_letter(loaded: _Loaded) -> None:
    (letter,) = read_all(loaded.stack, f"{loaded.arrays}.dead")
    headers = {name: value.decode() for name, value in letter.headers() or []}
    assert letter.value() == BAD_ARRAY
    assert headers["ingestd.column"] == "id"
    assert headers["ingestd.reason"] == "element [1]: 'six' is not a number, but the type is int"


def test_lines_when_a_daemon_has_run_then_each_line_is_a_row_and_a_bad_one_rejects_its_record(loaded: _Loaded) -> None:
    assert loaded.stack.ids(loaded.lines) == [1, 2, 5]
    (skipped,) = loaded.events("rejects_skipped", loaded.lines)
    (reject,) = skipped["first"]
    assert reject["offset"] == 1
    assert reject["reason"].startswith("line 2: record is not JSON")


def test_preview_when_records_are_arrays_then_shows_the_rows_of_each_record(loaded: _Loaded) -> None:
    found = preview(loaded.stack.metastore, load([loaded.config]).mappings[0], 5, None, shared_engine)
    assert [(row.origin.offset, row.partition, row.values) for row in found.rows] == [
        (0, "dt=a", ("1", "1", "0")),
        (0, "dt=b", ("2", "1", "0")),
        (4, "dt=b", ("3", "5", "4")),
    ]
    assert (found.records, found.skipped, [reject.origin.offset for reject in found.rejects]) == (5, 1, [2])
