"""The timestamps of rejected records, which a dead letter in a topic and a replay have, even if Kafka cannot."""

from __future__ import annotations

from ingestd.clock import now
from ingestd.config.document import load
from ingestd.hive.client import Metastore
from ingestd.ingest.letters.reader import Selection
from ingestd.ingest.letters.writer import parse_letter
from ingestd.ingest.offline.replay import replay
from ingestd.kafka.record import Record
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.storages import Storages
from tests.support.daemon import shared_engine
from tests.support.records import produce_all, read_all
from tests.support.segments import set_timestamp
from tests.support.stack import Stack

AN_HOUR_AGO = int(now() * 1000) - 3_600_000
NONE = -1


def test_letter_when_its_record_has_the_timestamp_0_or_none_then_headers_and_replay_have_it(stack: Stack) -> None:
    """The values are no JSON objects, so they are rejects until the format of the mapping is CSV."""
    stack.topic(1)
    for offset in range(3):  # a batch each
        produce_all(stack, stack.name, [Record(None, b"%d" % offset, (), AN_HOUR_AGO)])
    for offset, milliseconds in enumerate((0, NONE)):  # not before: the broker begins a new segment behind old records
        set_timestamp(stack, stack.name, 0, offset, milliseconds)
    appended = stack.topic(1, f"{stack.name}_appended", **{"message.timestamp.type": "LogAppendTime"})
    produce_all(stack, appended, [Record(None, b"3")])
    [(_, stored_ms)] = [message.timestamp() for message in read_all(stack, appended)]
    letters = stack.topic(1, f"{stack.name}.dead")
    stack.table("id bigint, ms bigint")
    mapping = {
        "topics": [stack.name, appended],
        "columns": {"ms": "timestamp"},
        "on_error": "dead_letter",
        "dead_letter": {"topic": letters, "table": f"default.{stack.name}_dead"},
    }
    stack.drain(stack.config(mapping))

    records = [parse_letter(Record.of(message)) for message in read_all(stack, letters)]
    assert {
        letter.record.value: (letter.record.timestamp_ms, letter.record.timestamp_type) for letter in records if letter
    } == {
        b"0": (0, "CreateTime"),
        b"1": (None, "CreateTime"),
        b"2": (AN_HOUR_AGO, "CreateTime"),
        b"3": (stored_ms, "LogAppendTime"),
    }

    config = load([stack.config(mapping | {"format": {"type": "csv", "fields": ["id"]}})])
    metastore = Metastore(stack.addresses.metastore)
    try:
        warehouse = Warehouse(metastore, Storages(config.storage))
        assert replay(warehouse, config.mappings[0], Selection(), shared_engine).replayed == 4
    finally:
        metastore.close()
    assert sorted(stack.sql(f"SELECT id, ms FROM {stack.name}")) == [
        (0, 0),
        (1, None),
        (2, AN_HOUR_AGO),
        (3, stored_ms),
    ]
