"""The keys of a mapping that say what happens to rejects: on_error, max_rejects, dead_letter and format.tombstones."""

from __future__ import annotations

from typing import Any

import pytest

from ingestd.config.document import validate
from ingestd.config.files import Settings
from ingestd.errors import ConfigError
from ingestd.hive.tables import TableName
from ingestd.ingest.options import DeadLetterOptions, MappingOptions


def _options(mapping: dict[str, Any]) -> MappingOptions:
    document = {
        "metastore": {"uri": "thrift://m:9083"},
        "kafka": {"bootstrap.servers": "b:9092"},
        "mappings": [{"name": "clicks", "topics": ["clicks"], "table": "web.clicks"} | mapping],
    }
    return validate(Settings(document)).mappings[0]


def _fault(mapping: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        _options(mapping)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "records", "allowed"),
    [(100, 10**9, 100), ("100", 10, 100), ("1%", 100, 1), ("1%", 101, 2), ("1%", 20, 1), ("0.07 %", 10_000, 7)],
)
def test_max_rejects_when_a_number_or_a_percentage_then_limits_the_rejects_of_a_transaction(
    value: object, records: int, allowed: int
) -> None:
    limit = _options({"on_error": "skip", "max_rejects": value}).max_rejects
    assert limit
    assert limit.of(records) == allowed


@pytest.mark.parametrize("value", [0, -1, "0%", "101%", "1.5", "many", True, []])
def test_max_rejects_when_invalid_then_error_says_what_it_must_be(value: object) -> None:
    text = _fault({"on_error": "skip", "max_rejects": value})
    assert "mappings[0].max_rejects: must be a number of records such as 100, or a percentage such as 1%" in text


def test_dead_letter_when_its_keys_contradict_each_other_then_each_fault_is_named() -> None:
    assert _fault({"dead_letter": {"topic": "dead"}}).startswith("mappings[0].dead_letter: has no effect")
    text = _fault({"on_error": "dead_letter", "dead_letter": {"topic": "clicks"}})
    assert text.startswith("mappings[0].dead_letter.topic: must not be a topic of the mapping")
    text = _fault({"format": {"tombstones": "dead_letter"}})
    assert text.startswith("mappings[0].format.tombstones: dead_letter needs on_error: dead_letter")
    assert "dead_letter: must name a topic or a table" in _fault({"on_error": "dead_letter", "dead_letter": {}})
    text = _fault({"on_error": "dead_letter", "dead_letter": {"table": "web.clicks"}})
    assert text.startswith("mappings[0].dead_letter.table: must not be the table of the mapping clicks")
    options = _options({"on_error": "dead_letter", "dead_letter": {"topic": "dead"}, "max_rejects": "1%"})
    assert options.dead_letter == DeadLetterOptions("dead")
    options = _options({"on_error": "dead_letter", "dead_letter": {"topic": "dead", "table": "Web.Dead"}})
    assert options.dead_letter == DeadLetterOptions("dead", TableName("web", "dead"))


def test_dead_letter_when_mappings_read_the_letters_of_each_other_then_each_loop_is_refused() -> None:
    def mapping(name: str, topic: str, dead: str, **keys: Any) -> dict[str, Any]:
        letters = {"on_error": "dead_letter", "dead_letter": {"topic": dead}}
        return {"name": name, "topics": [topic], "table": f"web.{name}", **letters, **keys}

    def validated(*mappings: dict[str, Any]) -> None:
        kafka = {"bootstrap.servers": "b:9092"}
        validate(Settings({"metastore": {"uri": "thrift://m:9083"}, "kafka": kafka, "mappings": list(mappings)}))

    chain = mapping("a", "x", "y"), mapping("b", "y", "z")
    validated(*chain, mapping("c", "z", "end"))
    validated(*chain, mapping("c", "z", "x", kafka={"bootstrap.servers": "other:9092"}))
    with pytest.raises(ConfigError) as caught:
        validated(*chain, mapping("c", "z", "x"), mapping("d", "v", "x"))
    text = str(caught.value)
    assert "mappings[0].dead_letter.topic: closes a loop: a dead letter that is rejected again returns through" in text
    assert "through the mappings a, b, c" in text
    assert "mappings[3]" not in text


def test_dead_letter_when_missing_then_is_a_table_beside_that_of_the_mapping() -> None:
    letters = _options({"on_error": "dead_letter", "format": {"tombstones": "dead_letter"}}).dead_letter
    assert letters == DeadLetterOptions(table=TableName("web", "clicks_rejects"))
    assert _options({"on_error": "skip"}).dead_letter is None


def test_on_unreadable_when_rejects_stop_the_mapping_then_only_stop_is_accepted() -> None:
    assert _options({"on_error": "skip", "on_unreadable": "reject"}).on_unreadable == "reject"
    assert _options({"on_unreadable": "stop"}).on_unreadable == _options({}).on_unreadable == "stop"
    assert _fault({"on_unreadable": "reject"}).startswith("mappings[0].on_unreadable: reject has no effect")


def test_max_rejects_when_the_first_reject_stops_the_mapping_then_is_refused() -> None:
    assert _fault({"max_rejects": 5}).startswith("mappings[0].max_rejects: has no effect")
