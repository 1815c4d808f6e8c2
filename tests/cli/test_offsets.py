"""`ingestd offsets set` and `rewind`: the preview, and what they refuse before they change anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ingestd.config.document import load
from ingestd.ingest.inspection.positions import NewPosition, preview
from ingestd.ingest.inspection.stored import read_mapping
from ingestd.sandbox import Addresses
from tests.support.command import Result, Run
from tests.support.stack import Stack


@dataclass(frozen=True)
class Ingested:
    """A mapping that has committed 10 records in partition 0 and 5 in partition 1; partition 1 has 3 more records."""

    stack: Stack
    config: Path
    mapping: str

    def preview(self, run: Run, *arguments: object) -> Result:
        """Run `ingestd offsets COMMAND MAPPING ...` with --dry-run and JSON."""
        command, *others = arguments
        more = ("--dry-run", "--output", "json", "--config", self.config)
        return run("offsets", command, self.mapping, *others, *more)


@pytest.fixture(scope="module")
def ingested(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingested]:
    with Stack(addresses, "offsets", tmp_path_factory.mktemp("offsets")) as stack:
        stack.topic(2)
        stack.table("id bigint")
        stack.produce([{"id": i} for i in range(10)], partition=0)
        stack.produce([{"id": i} for i in range(10, 15)], partition=1)
        config = stack.config()
        stack.drain(config)
        stack.produce([{"id": i} for i in range(15, 18)], partition=1)
        yield Ingested(stack, config, stack.name[-40:])


def _moves(result: Result) -> list[list[Any]]:
    assert result.code == 0, result.text
    document = result.json
    assert document["result"] == "unchanged"
    keys = ("partition", "committed", "new", "read_again", "skipped")
    return [[move[key] for key in keys] for move in document["moves"]]


@pytest.mark.parametrize(
    ("arguments", "moves"),
    [
        (["rewind", "--to-earliest"], [[0, 10, 0, 10, 0], [1, 5, 0, 5, 0]]),
        (["rewind", "--to-latest"], [[1, 5, 8, 0, 3]]),
        (["rewind", "--to-offset", "4"], [[0, 10, 4, 6, 0], [1, 5, 4, 1, 0]]),
        (["rewind", "--to-timestamp", "2020-01-01T00:00:00Z"], [[0, 10, 0, 10, 0], [1, 5, 0, 5, 0]]),
        (["rewind", "--to-timestamp", "2100-01-01"], [[1, 5, 8, 0, 3]]),
        (["rewind", "--to-earliest", "--partition", "TOPIC:1"], [[1, 5, 0, 5, 0]]),
        (["set", "TOPIC:0=3", "TOPIC:1=6"], [[0, 10, 3, 7, 0], [1, 5, 6, 0, 1]]),
        (["set", "TOPIC:0=10"], []),
    ],
)
def test_preview_then_says_what_is_read_again_and_skipped(
    run: Run, ingested: Ingested, arguments: list[str], moves: list[list[int]]
) -> None:
    words = [word.replace("TOPIC", ingested.stack.name) for word in arguments]
    assert _moves(ingested.preview(run, *words)) == moves


def test_preview_when_the_file_is_what_show_printed_then_restores_that_position(
    run: Run, ingested: Ingested, tmp_path: Path
) -> None:
    file = tmp_path / "offsets.json"
    shown = run("offsets", "show", ingested.mapping, "--output", "json", "--config", ingested.config).out
    file.write_text(shown, encoding="utf-8")
    assert _moves(ingested.preview(run, "set", "--file", file)) == []
    document = json.loads(shown)
    document["offsets"][0]["committed"] = 2
    file.write_text(json.dumps(document), encoding="utf-8")
    assert _moves(ingested.preview(run, "set", "--file", file)) == [[0, 10, 2, 8, 0]]


@pytest.mark.parametrize("content", ["[", "{}", '{"offsets": [{"topic": "a", "partition": "0", "committed": 1}]}'])
def test_preview_when_the_file_has_another_form_then_names_it(
    run: Run, ingested: Ingested, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(content, encoding="utf-8")
    result = ingested.preview(run, "set", "--file", file)
    assert (result.code, result.out) == (78, "")
    assert f"{file}: contains no offsets" in result.err


def test_preview_then_the_table_warns_about_rows_that_appear_twice(run: Run, ingested: Ingested) -> None:
    arguments = ("--to-offset", 7, "--dry-run", "--config", ingested.config)
    lines = run("offsets", "rewind", ingested.mapping, *arguments).out.splitlines()
    assert [line.split()[1:] for line in lines[1:3]] == [["0", "10", "7", "3", "0"], ["1", "5", "7", "0", "2"]]
    assert lines[3:5] == [
        "3 offsets are read again: the table gets their rows a second time.",
        "2 offsets are skipped: their records are never read.",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["rewind"], 2, "use one of --to-timestamp"),
        (["rewind", "--to-earliest", "--to-latest"], 2, "use one of --to-timestamp"),
        (["rewind", "--to-timestamp", "soon"], 2, "is not a time"),
        (["rewind", "--to-offset", "9"], 65, "Kafka does not have the offset 9: the partition has 0..8"),
        (["set"], 2, "name offsets as TOPIC:PARTITION=OFFSET"),
        (["set", "TOPIC=3"], 2, "is not TOPIC:PARTITION"),
        (["set", "TOPIC:0=x"], 2, "is not TOPIC:PARTITION=OFFSET"),
        (["set", "TOPIC:0=1", "TOPIC:0=2"], 2, "a partition is named twice"),
        (["set", "TOPIC:7=0"], 65, "does not read"),
        (["set", "other:0=0"], 65, "does not read other[0]"),
    ],
)
def test_change_when_invalid_then_is_refused(
    run: Run, ingested: Ingested, arguments: list[str], code: int, words: str
) -> None:
    result = ingested.preview(run, *(word.replace("TOPIC", ingested.stack.name) for word in arguments))
    assert (result.code, result.out) == (code, "")
    assert words in result.err


def test_target_when_records_arrive_after_the_position_was_read_then_is_at_most_the_end_that_was_read(
    ingested: Ingested,
) -> None:
    stored = read_mapping(ingested.stack.metastore, load([ingested.config]).mappings[0])
    # As if the last record of each partition had arrived after `stored` was read.
    earlier = replace(stored, offsets=tuple(replace(offset, end=offset.end - 1) for offset in stored.offsets))
    partitions = [offset.partition for offset in stored.offsets]
    for target in (NewPosition("latest"), NewPosition("timestamp", 4102444800000)):
        offsets = target.offsets(earlier, partitions)
        assert [move.after for move in preview(earlier, offsets)] == [9, 7]


def test_preview_when_the_position_is_after_the_end_then_counts_only_offsets_that_exist(ingested: Ingested) -> None:
    stored = read_mapping(ingested.stack.metastore, load([ingested.config]).mappings[0])
    truncated = replace(stored, offsets=tuple(replace(offset, end=4) for offset in stored.offsets))
    moves = preview(truncated, {offset.partition: 3 for offset in stored.offsets})
    assert [(move.before, move.read_again, move.skipped) for move in moves] == [(10, 1, 0), (5, 1, 0)]


def test_change_when_there_is_no_terminal_then_needs_yes(run: Run, ingested: Ingested) -> None:
    result = run("offsets", "rewind", ingested.mapping, "--to-earliest", "--config", ingested.config)
    assert result.code == 2
    assert "--yes is required" in result.err


def test_change_when_the_mapping_has_never_run_then_is_refused(run: Run, stack: Stack) -> None:
    stack.topic(1)
    result = run("offsets", "rewind", stack.name[-40:], "--to-earliest", "--config", stack.config())
    assert result.code == 65
    assert "no committed position yet → the first run starts where the key `start`" in result.err
