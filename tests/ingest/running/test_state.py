"""The stored state of a mapping: its text, and the texts of older and newer versions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ingestd.errors import InvalidTable
from ingestd.ingest.state import MappingState
from ingestd.kafka.ranges import Position, TopicIdentity, TopicPartition

COLUMNS = {"id": "int", "größe": "decimal(10,2)"}
STATE = MappingState(
    table="default.orders",
    position=Position(
        {TopicPartition("orders", 0): 7, TopicPartition("orders", 2): 9},
        {"orders": TopicIdentity("cluster", "id")},
        {TopicPartition("orders", 2): 4},
    ),
    rows=7,
    txn=12,
    write_id=3,
    owner="ingestd/ingestd/orders/here",
    at="2026-11-01T00:00:00+00:00",
)


def test_state_when_paused_then_its_text_is_ascii_and_parses_to_the_same_state() -> None:
    paused = replace(STATE, paused=True, changed_by="jürgen@host", changed_at=STATE.at, change="pause", columns=COLUMNS)
    paused = replace(paused, letters="default.dead")
    assert paused.text().isascii()
    assert MappingState.parse(paused.text()) == paused
    assert MappingState.parse("") is None


def test_state_when_an_older_version_stored_it_then_it_is_read_as_not_paused() -> None:
    document = json.loads(STATE.text())
    for key in ("paused", "changed_by", "changed_at", "change"):
        del document[key]
    assert MappingState.parse(json.dumps(document | {"v": 2})) == STATE
    del document["epochs"]
    without = MappingState.parse(json.dumps(document))
    assert without is not None
    assert without.position == Position(STATE.position.offsets, STATE.position.topics)
    del document["topics"]
    first = MappingState.parse(json.dumps(document | {"v": 1}))
    assert first is not None
    assert first.position == Position(STATE.position.offsets)


def test_state_when_a_newer_version_stored_it_then_is_refused() -> None:
    text = json.dumps(json.loads(STATE.text()) | {"v": 4})
    with pytest.raises(InvalidTable, match="version 4"):
        MappingState.parse(text)
