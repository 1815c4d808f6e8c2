"""`ingestd deadletters`: dead letters in a table and in a topic, by reason and one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingestd.kafka.record import Record
from ingestd.sandbox import Addresses
from tests.support.command import Result, Run
from tests.support.raw_headers import produce_with_header
from tests.support.records import produce_all
from tests.support.stack import Stack

MISFITS = [Record(b"k", b'{"id": "seven"}'), Record(b"k", b'{"id": "it\'s 8"}')]
MALFORMED = Record(b"\xff", b"{oops\x00", (("trace", b"a\n"), ("trace", b"\xfe"), ("none", None)), 1_790_000_000_123)


@dataclass(frozen=True)
class Letters:
    """Mappings with the same three dead letters in a table, in a topic, and in a topic with repetitions."""

    stack: Stack
    config: Path

    def name(self, target: str) -> str:
        return f"{self.stack.name}_{target}"[-40:]

    def run(self, run: Run, command: str, target: str, *arguments: object) -> Result:
        return run("deadletters", command, self.name(target), *arguments, "--config", self.config)

    def reasons(self, run: Run, target: str) -> list[dict[str, Any]]:
        result = self.run(run, "list", target, "--output", "json")
        assert result.code == 0, result.text
        assert result.json["letters"] == 3
        found: list[dict[str, Any]] = result.json["reasons"]
        return found


@pytest.fixture(scope="module")
def letters(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Letters]:
    with Stack(addresses, "letters", tmp_path_factory.mktemp("letters")) as stack:
        kept = {"retention.ms": "-1"}  # the timestamp of a record is months ago
        dead = stack.topic(2, f"{stack.name}.dead", **kept)
        places = {"table": {"table": f"default.{stack.name}_dead"}, "topic": {"topic": dead}}
        made = Letters(stack, stack.directory / "ingestd.yaml")
        mappings = []
        for target, place in places.items():
            name = made.name(target)
            stack.topic(1, name, **kept)
            stack.table("id int", name=f"default.{name}")
            produce_all(stack, name, [*MISFITS, Record(None, b'{"id": 1}'), MALFORMED])
            wanted = {"name": name, "topics": [name], "table": f"default.{name}"}
            mappings.append(wanted | {"on_error": "dead_letter", "dead_letter": place})
        plain = {"name": made.name("plain"), "topics": [stack.name], "table": f"default.{made.name('topic')}"}
        stack.drain(stack.config(*mappings))
        dead_table = places["table"]["table"]
        stack.sql(f"INSERT INTO {dead_table} SELECT * FROM {dead_table}")  # as after `offsets rewind`
        stack.produce([b"a record of another program"], topic=dead)
        produce_with_header(stack.addresses.kafka, dead, 0, b"one whose header has a name that is not UTF-8", b"\xff")
        stack.config(*mappings, plain).rename(made.config)
        yield made


@pytest.mark.parametrize("target", ["table", "topic"])
def test_list_then_counts_letters_by_reason(run: Run, letters: Letters, target: str) -> None:
    name = letters.name(target)
    misfits, malformed = letters.reasons(run, target)
    assert (misfits["topic"], misfits["column"], misfits["letters"]) == (name, "id", 2)
    assert misfits["id"].startswith(f"{name}:")
    assert misfits["id"].endswith(":0:0")
    assert misfits["first"] <= misfits["last"]
    assert (malformed["column"], malformed["letters"]) == ("", 1)
    text = letters.run(run, "list", target).out
    assert misfits["reason"] in text
    assert f"3 dead letters of the mapping {name}" in text


@pytest.mark.parametrize("target", ["table", "topic"])
def test_show_then_prints_the_record_and_its_value_on_request(run: Run, letters: Letters, target: str) -> None:
    malformed = letters.reasons(run, target)[1]
    shown = letters.run(run, "show", target, malformed["id"], "--output", "json").json
    assert (shown["topic"], shown["partition"], shown["offset"]) == (letters.name(target), 0, 3)
    assert (shown["timestamp"], shown["reason"]) == ("2026-09-21T14:13:20.123Z", malformed["reason"])
    assert shown["key"] == {"base64": "/w=="}
    trace = [{"key": "trace", "value": {"text": "a\n"}}, {"key": "trace", "value": {"base64": "/g=="}}]
    assert shown["headers"] == [*trace, {"key": "none", "value": None}]
    assert shown["value_bytes"] == 6
    assert "value" not in shown
    with_value = letters.run(run, "show", target, malformed["id"], "--value", "--output", "json").json
    assert with_value["value"] == {"text": "{oops\x00"}
    assert "{oops" not in letters.run(run, "show", target, malformed["id"]).out
    assert r"{oops\x00" in letters.run(run, "show", target, malformed["id"], "--value").out


def test_deadletters_when_something_is_missing_then_says_what(run: Run, letters: Letters) -> None:
    result = letters.run(run, "show", "table", "clicks:0:0:9")
    assert result.code == 65
    assert "id clicks:0:0:9: there is no such dead letter" in result.err
    result = letters.run(run, "list", "plain")
    assert result.code == 78
    assert "the mapping writes no dead letters" in result.err


def test_replay_when_no_record_fits_then_shows_the_present_reasons_and_changes_nothing(
    run: Run, letters: Letters
) -> None:
    for option in ((), ("--dry-run",)):
        result = letters.run(run, "replay", "table", *option)
        assert result.code == 0, result.text
        assert "0 dead letters of the mapping" in result.out
        assert "3 dead letters still do not fit" in result.out
    done = letters.run(run, "replay", "table", "--column", "id", "--since", "2020-01-01", "--output", "json").json
    assert (done["replayed"], done["rows"], done["txn"], done["remaining"]) == (0, 0, None, 2)
    assert [reason["letters"] for reason in done["reasons"]] == [2]
    unknown = letters.run(run, "replay", "table", "--id", "clicks:0:0:9")
    assert unknown.code == 0, unknown.text
    assert "has no such dead letter, or all were replayed before" in unknown.out


def test_replay_when_it_cannot_be_done_then_says_why(run: Run, letters: Letters) -> None:
    result = letters.run(run, "replay", "topic")
    assert result.code == 78
    assert "only dead letters in a table can be replayed" in result.err
    result = letters.run(run, "replay", "table", "--since", "yesterday")
    assert result.code == 2
    assert "'yesterday' is not a time" in result.err
