"""A mapping creates its table before its first commit, once, and never again."""

from __future__ import annotations

import base64
import struct
from decimal import Decimal
from typing import Any

from ingestd.config.document import load
from ingestd.ingest.table.creation import find_target
from tests.support.avro import logical, schema_of
from tests.support.protobuf import Field, class_of, file_of, message
from tests.support.registry import RegistryServer, registry_server, serialize
from tests.support.stack import Stack, eventually

AMOUNT = logical("bytes", "decimal", precision=9, scale=2)
TAGS = {"type": "array", "items": "string"}
FIELDS = {
    "Id": "long",
    "amount": ["null", AMOUNT],
    "at": logical("long", "timestamp-millis"),
    "tags": TAGS,
    "dt": "string",
}


def _described(stack: Stack, table: str) -> list[tuple[Any, ...]]:
    return [row[:2] for row in stack.sql(f"DESCRIBE {table}")]


def _protobuf(stack: Stack, server: RegistryServer) -> dict[str, Any]:
    """Return a mapping that creates its table for the Protobuf record of a topic."""
    name = f"{stack.name}_p"
    at = Field("at", 3, ".google.protobuf.Timestamp")
    file = file_of(message("Row", [Field("Id", 1, "int64"), Field("tags", 2, "string", "repeated"), at]))
    text = base64.b64encode(file.SerializeToString()).decode()
    identifier = server.register(f"{name}-value", {"schema": text, "schemaType": "PROTOBUF"})
    record = class_of(file)(Id=7, tags=["a", "b"]).SerializeToString()
    stack.produce([struct.pack(">BIB", 0, identifier, 0) + record], stack.topic(1, name))
    table = {"table": f"default.{name}", "create_table": True}
    return {"name": name[-40:], "topics": [name], "format": {"type": "protobuf"}, **table}


def test_table_when_missing_for_two_mappings_then_created_once_from_the_registry(stack: Stack) -> None:
    topics = [stack.topic(1, f"{stack.name}_{side}") for side in "ab"]
    with registry_server() as server:
        serializer = server.serializer(schema_of(FIELDS))
        for side, topic in enumerate(topics):
            values = [
                {"Id": 10 * side + n, "amount": Decimal(n), "at": 0, "tags": ["a"], "dt": f"d{n % 2}"} for n in range(5)
            ]
            stack.produce([serialize(serializer, topic, value) for value in values], topic)
        mapping = {"format": {"type": "avro"}, "create_table": {"partitioned_by": {"dt": "string"}}}
        mappings = [{"name": topic[-40:], "topics": [topic], **mapping} for topic in topics]
        mappings.append(_protobuf(stack, server))
        config = stack.config(*mappings, registry={"url": server.url})
        _, statement = find_target(stack.metastore, load([config]).mappings[0])
        daemon = stack.drain(config)

    first, second = (event["statement"] for event in daemon.events("table_created"))
    assert statement in (first, second)
    assert stack.sql(f"SELECT id, tags[1], at FROM {stack.name}_p") == [(7, "b", None)]
    assert stack.sql(f"SELECT id, amount, tags[0], dt FROM {stack.name} WHERE id > 11 ORDER BY id") == [
        (12, Decimal("2.00"), "a", "d0"),
        (13, Decimal("3.00"), "a", "d1"),
        (14, Decimal("4.00"), "a", "d0"),
    ]
    assert stack.count() == 10
    stack.sql(statement.replace(f"`{stack.name}`", f"`{stack.name}_by_hive`"))
    assert _described(stack, stack.name) == _described(stack, f"{stack.name}_by_hive")
    assert _described(stack, stack.name)[:4] == [
        ("id", "bigint"),
        ("amount", "decimal(9,2)"),
        ("at", "timestamp"),
        ("tags", "array<string>"),
    ]


def test_table_when_created_from_the_configuration_then_hive_writes_and_counts_it_and_it_is_not_replaced(
    stack: Stack,
) -> None:
    stack.topic(1)
    columns = {"id": "bigint", "Note": "varchar(20)"}
    new = {"columns": columns, "properties": {"orc.compress": "SNAPPY", "no_auto_compaction": "true"}}
    config = stack.config({"create_table": new})
    daemon = stack.start(config)
    eventually("the table", lambda: daemon.events("table_created"))
    stack.produce([{"id": n, "note": "ours"} for n in range(3)])
    eventually("the rows", lambda: sum(event["rows"] for event in daemon.events("committed")) == 3)

    assert stack.count() == 3
    stack.sql(f"INSERT INTO {stack.name} (id, note) VALUES (3, 'hive')")
    assert stack.count() == 4
    stack.sql(f"UPDATE {stack.name} SET note = 'both' WHERE id = 0")
    assert stack.sql(f"SELECT note FROM {stack.name} ORDER BY id") == [("both",), ("ours",), ("ours",), ("hive",)]
    properties = {row[0]: row[1] for row in stack.sql(f"SHOW TBLPROPERTIES {stack.name}")}
    assert (properties["transactional"], properties["orc.compress"]) == ("true", "SNAPPY")

    stack.sql(f"DROP TABLE {stack.name}")
    stack.produce([{"id": 9}])
    assert daemon.wait() == 65
    again = stack.drain(config, expect=65)
    assert "the table does not exist" in again.events("failed")[0]["error"]
