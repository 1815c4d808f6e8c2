"""Protobuf records reach a table exactly once, with nested and new columns, and damaged ones become dead letters."""

from __future__ import annotations

import base64
import struct
from decimal import Decimal

from confluent_kafka import Consumer, TopicPartition

from tests.support.patience import LIMIT
from tests.support.protobuf import Field, class_of, file_of, message
from tests.support.registry import registry_server
from tests.support.stack import Stack

COLUMNS = "id int, kind string, tags array<string>, place struct<city:string,visits:array<struct<at:timestamp>>>"
VISIT = message("Visit", [Field("n", 1, "sint32"), Field("at", 2, ".google.protobuf.Timestamp")])
PLACE = message("Place", [Field("city", 1, "string", "optional"), Field("visits", 2, ".shop.Visit", "repeated")])
ROW = message(
    "Row",
    [
        Field("id", 1, "int64"),
        Field("kind", 2, ".shop.Kind", is_enum=True),
        Field("tags", 3, "string", "repeated"),
        Field("attributes", 4, "int32", key="string"),
        Field("place", 5, ".shop.Place"),
        Field("total", 6, ".google.protobuf.UInt64Value"),
    ],
)
FILE = file_of(VISIT, PLACE, ROW, Kind={"NEW": 0, "SOLD": 1})


def test_protobuf_when_fields_are_nested_and_new_then_rows_are_exact_and_damaged_records_are_dead_letters(
    stack: Stack,
) -> None:
    kind = class_of(FILE)
    visits = [{"n": -n, "at": {"seconds": 1_763_719_200, "nanos": n}} for n in range(2)]
    values = [kind(id=n, kind=n % 2, place={} if n % 2 else None) for n in range(2000)]
    values[2] = kind(id=2, tags=["a", ""], attributes={"x": 7}, place={"city": "", "visits": visits})
    values[3] = kind(id=3, total={"value": 2**64 - 1})
    with registry_server() as server:
        descriptor = base64.b64encode(FILE.SerializeToString()).decode()
        identifier = server.register("t-value", {"schema": descriptor, "schemaType": "PROTOBUF"})
        header = struct.pack(">BIBB", 0, identifier, 2, 4)  # the message with the index 2
        records = [header + value.SerializeToString() for value in values]
        records[1000] += b"\x2a\x7f"
        stack.topic(2)
        dead = stack.topic(1, f"{stack.name}.dead")
        stack.table(COLUMNS)
        stack.produce(records)
        mapping = {
            "format": {"type": "protobuf"},
            "schema_evolution": "widen",
            "on_error": "dead_letter",
            "dead_letter": {"topic": dead},
        }

        daemon = stack.drain(stack.config(mapping, registry={"url": server.url}))

    statements = [text for event in daemon.events("table_altered") for text in event["statements"]]
    assert [text.partition(f"`{stack.name}` ")[2] for text in statements] == [
        "CHANGE COLUMN `id` `id` bigint",
        "CHANGE COLUMN `place` `place` struct<`city`:string,`visits`:array<struct<`at`:timestamp,`n`:int>>>",
        "ADD COLUMNS (`attributes` map<string,int>, `total` decimal(20,0))",
    ]
    assert stack.ids() == [n for n in range(2000) if n != 1000]
    assert stack.sql(f"SELECT kind, count(*), count(place) FROM {stack.name} GROUP BY kind ORDER BY kind") == [
        ("NEW", 1000, 1),
        ("SOLD", 999, 999),
    ]
    query = (
        "SELECT size(tags), tags[1], attributes['x'], place.city, size(place.visits), place.visits[1].n, "
        f"CAST(place.visits[1].at AS string), total FROM {stack.name} WHERE id BETWEEN 2 AND 4 ORDER BY id"
    )
    assert stack.sql(query) == [
        (2, "", 7, "", 2, -1, "2025-11-21 10:00:00.000000001", None),
        (0, None, None, None, -1, None, None, Decimal(2**64 - 1)),
        (0, None, None, None, -1, None, None, None),
    ]
    [(value, headers)] = _letters(stack, dead)
    assert value == records[1000]
    assert "the message ends" in headers["__connect.errors.exception.message"]


def _letters(stack: Stack, topic: str) -> list[tuple[bytes, dict[str, str]]]:
    """Return the values and the headers of the records of a topic with one partition."""
    consumer = Consumer({"bootstrap.servers": stack.addresses.kafka, "group.id": topic, "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LIMIT)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = consumer.consume(end, LIMIT)
        return [(one.value(), {name: (text or b"").decode() for name, text in one.headers()}) for one in found]
    finally:
        consumer.close()
