"""Records that the client of Kafka cannot read are rejects, if the user says so, and all others become rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from ingestd.config.document import load
from ingestd.ingest.letters.reader import Selection
from ingestd.ingest.offline.replay import try_replay
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.storages import Storages
from tests.support.daemon import shared_engine
from tests.support.patience import LIMIT
from tests.support.records import read_all
from tests.support.segments import flip_last_bits
from tests.support.stack import Stack

_LARGE = '{"id": 99, "text": "%s"}' % ("x" * 2_500_000)
_OFFSETS = re.compile(r"the records of the offsets (\d+) to (\d+) ")


def _send(stack: Stack, topic: str, partition: int, *ids: int, abort: bool = False, **properties: Any) -> None:
    """Send the records of `ids` as one batch. An id of 99 is larger than the readers' limit."""
    servers = {"bootstrap.servers": stack.addresses.kafka, "message.max.bytes": 9_000_000, "linger.ms": 5_000}
    producer = Producer(servers | ({"transactional.id": topic} if abort else {}) | properties)
    if abort:
        producer.init_transactions(LIMIT)
        producer.begin_transaction()
    for number in ids:
        producer.produce(topic, _LARGE if number == 99 else json.dumps({"id": number}), partition=partition)
    assert producer.flush(LIMIT) == 0
    if abort:
        producer.abort_transaction(LIMIT)


def _config(stack: Stack, *mappings: dict[str, Any], **more: Any) -> Path:
    limited = {"bootstrap.servers": stack.addresses.kafka, "receive.message.max.bytes": 2_000_000}
    common = {"kafka": limited, "on_unreadable": "reject"} | more
    return stack.config(*(common | mapping for mapping in mappings))


def _lost(stack: Stack, letters: str, mapping: str) -> list[tuple[int, int]]:
    """Return the partitions and offsets that the letters of a mapping name, sorted; each is in one letter."""
    found = stack.sql(
        f"SELECT record_partition, record_offset, error_reason FROM {letters} WHERE mapping = '{mapping}'"
        " AND error_stage = 'KAFKA_CONSUME' AND record_value IS NULL"
    )
    offsets = []
    for partition, offset, reason in found:
        named = _OFFSETS.match(reason)
        assert named, reason
        assert int(named[1]) == offset
        offsets += [(partition, number) for number in range(offset, int(named[2]) + 1)]
    assert len(offsets) == len(set(offsets))
    return sorted(offsets)


def test_mapping_when_unreadable_records_are_rejects_then_all_others_become_rows(stack: Stack) -> None:
    topic = stack.topic(3, **{"max.message.bytes": "9000000"})
    dead, letters = stack.topic(1, f"{topic}.dead"), f"default.{stack.name}_dead"
    _send(stack, topic, 0, 1)
    _send(stack, topic, 0, 2, 3, 4, 5, 6)  # offsets 1 to 5, corrupt
    _send(stack, topic, 0, 7, 8)
    for batch in ((11,), (99,), (99,), (12,), (99,), (13, 14)):  # offsets 1, 2 and 4 are too large
        _send(stack, topic, 1, *batch)
    _send(stack, topic, 2, 21)
    _send(stack, topic, 2, 22, 23, abort=True)  # offsets 1 and 2, and 3 for the marker
    _send(stack, topic, 2, 25, 26, abort=True)  # offsets 4 and 5, corrupt
    _send(stack, topic, 2, 27)
    flip_last_bits(stack, topic, 0, 1)
    flip_last_bits(stack, topic, 2, 4)
    unreadable = [(0, n) for n in range(1, 6)] + [(1, 1), (1, 2), (1, 4), (2, 4), (2, 5)]
    expected = [1, 7, 8, 11, 12, 13, 14, 21, 27]
    names = [f"{stack.name}_{case}"[-40:] for case in ("whole", "parts", "skip", "limit")]
    for name in names:
        stack.table("id int", name=f"default.{name}")
    both = {"on_error": "dead_letter", "dead_letter": {"table": letters, "topic": dead}}
    mappings = [{"name": name, "table": f"default.{name}", "topics": [topic]} for name in names]
    config = _config(
        stack,
        mappings[0] | both | {"format": {"tombstones": "skip"}},
        mappings[1] | both | {"commit": {"rows": 3}},
        mappings[2] | {"on_error": "skip"},
        mappings[3] | {"on_error": "skip", "max_rejects": 9},
    )
    daemon = stack.drain(config, expect=65)
    for name in names[:3]:
        assert stack.ids(name) == expected, name
    assert _lost(stack, letters, names[0]) == _lost(stack, letters, names[1]) == unreadable
    ids = [row[0] for row in stack.sql(f"SELECT id FROM {letters}")]
    written = [dict(letter.headers() or []) for letter in read_all(stack, dead)]
    assert sorted({letter["ingestd.id"].decode() for letter in written}) == sorted(ids)
    assert {letter["__connect.errors.stage"] for letter in written} == {b"KAFKA_CONSUME"}
    assert any(identity.endswith(":0:1-5") for identity in ids)
    [skipped] = daemon.events("rejects_skipped")
    assert (skipped["rejects"], skipped["records"]) == (10, 19)
    [failed] = daemon.events("failed")
    assert failed["reason"] == "RecordError"
    assert "max_rejects is 9" in failed["error"]
    assert stack.ids(names[3]) == []
    document = load([config])
    warehouse = Warehouse(stack.metastore, Storages(document.storage))
    replayed = try_replay(warehouse, document.mappings[0], Selection(), shared_engine)
    assert (replayed.replayed, sum(group.count for group in replayed.remaining)) == (0, 5)


def test_kill_after_a_step_when_restarted_then_unreadable_records_have_one_letter(stack: Stack) -> None:
    topic = stack.topic(1)
    letters = f"default.{stack.name}_dead"
    steps = ("staged", "placed", "committed")
    names = [f"{stack.name}_{step}"[-40:] for step in steps]
    for name in names:
        stack.table("id int", name=f"default.{name}")
    config = _config(
        stack,
        *({"name": name, "table": f"default.{name}", "topics": [topic]} for name in names),
        on_error="dead_letter",
        dead_letter={"table": letters},
    )
    stack.drain(config)  # stores the start positions and creates the table
    for number in (1, 2, 3):
        _send(stack, topic, 0, number)
    flip_last_bits(stack, topic, 0, 1)
    killed, _ = stack.start_held(config, steps)
    killed.kill()
    assert killed.wait() == -9, killed.text()
    stack.drain(config)
    for name in names:
        assert stack.ids(name) == [1, 3]
        assert _lost(stack, letters, name) == [(0, 1)]
