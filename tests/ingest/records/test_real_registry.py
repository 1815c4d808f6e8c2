"""A real schema registry that is not Confluent's: records of Confluent's serializers, and an outage of the registry."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from ingestd.errors import ConfigError
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions
from ingestd.formats.protobuf.known_files import KNOWN_FILES
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.registry import Registry, RegistryOptions
from ingestd.hive.tables import TableName
from ingestd.ingest.inspection.checks import Finding, check_registry
from ingestd.ingest.inspection.sample import propose
from ingestd.ingest.options import MappingOptions
from ingestd.schema import Column
from tests.support.apicurio.server import Apicurio, apicurio
from tests.support.avro import logical, schema_of
from tests.support.daemon import Daemon
from tests.support.decoding import columns_of, reasons, rows_of
from tests.support.protobuf import Field, message, set_of
from tests.support.registry import serialize
from tests.support.stack import Stack, eventually

with warnings.catch_warnings(record=True):  # a library that the client imports warns of its next release
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

UNKNOWN = 77_777
# A subject of each topic, as Confluent's serializers name it without a registry of associations.
BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}
UNIT = json.dumps({"type": "enum", "name": "shop.unit", "symbols": ["PIECE", "KG"]})
AMOUNT = logical("bytes", "decimal", precision=9, scale=2)
ORDER = schema_of({"id": "long", "unit": "shop.unit", "amount": ["null", AMOUNT], "day": logical("int", "date")})


@pytest.fixture(scope="module", params=["2", pytest.param("3", marks=pytest.mark.soak)])
def server(
    processes: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Apicurio]:
    with apicurio(request.param, tmp_path_factory.mktemp("apicurio")) as made:
        yield made


@pytest.fixture
def client(server: Apicurio) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": server.url}) as made:
        yield made


def _registry(server: Apicurio) -> Registry:
    return Registry(RegistryOptions(server.url, lag=0.0))


def _check(server: Apicurio, options: FormatOptions, *topics: str) -> Finding:
    mapping = MappingOptions(
        "m", topics, TableName("default", "m"), format=options, registry=RegistryOptions(server.url, lag=0.0)
    )
    [found] = check_registry(mapping)
    return found


def _types(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def _identifier(record: bytes) -> int:
    return int.from_bytes(record[1:5], "big")


def _orders(client: SchemaRegistryClient) -> list[bytes]:
    """Return records of an Avro schema that refers to another one, which are registered."""
    client.register_schema("unit", Schema(UNIT, "AVRO"))
    schema = Schema(ORDER, "AVRO", [SchemaReference("shop.unit", "unit", 1)])
    serializer = AvroSerializer(client, schema, conf=BY_TOPIC)
    days = [date(2026, 11, 28), date(1, 1, 1)]
    rows = [{"id": n, "unit": "KG", "amount": None if n else Decimal("-1.25"), "day": days[n]} for n in range(2)]
    return [serialize(serializer, "orders", row) for row in rows]


def test_avro_when_schemas_are_registered_by_confluents_serializer_then_rows_and_columns_are_exact(
    server: Apicurio, client: SchemaRegistryClient
) -> None:
    records = _orders(client)
    identifier = _identifier(records[0])
    unknown = struct.pack(">BI", 0, UNKNOWN) + records[0][5:]
    columns = columns_of(id="bigint", unit="string", amount="decimal(9,2)", day="date")

    decoded = AvroOptions().decoder(columns, _registry(server)).decode([records[0], unknown, records[1], b"\1"])

    rows = [
        {"id": 0, "unit": "KG", "amount": Decimal("-1.25"), "day": date(2026, 11, 28)},
        {"id": 1, "unit": "KG", "amount": None, "day": date(1, 1, 1)},
    ]
    assert rows_of(decoded) == rows
    assert reasons(decoded) == [
        (1, "", f"the registry has no schema {UNKNOWN}"),
        (3, "", "record does not begin with the header of the framing confluent"),
    ]
    long = [struct.pack(">BQ", 0, identifier) + record[5:] for record in records]
    assert rows_of(AvroOptions(framing="apicurio").decoder(columns, _registry(server)).decode(long)) == rows
    expected = "id bigint, unit string, amount decimal(9,2), day date"
    assert _types(AvroOptions().columns(_registry(server), ["orders"])) == expected
    proposal = propose(records, None, _registry(server), "orders")
    assert (proposal.format, _types(proposal.columns)) == ({"type": "avro"}, expected)
    found = _check(server, AvroOptions(), "orders", "clicks")
    assert found.error is None
    assert found.detail.startswith("answers; 1 of 2 topics have a schema")
    assert "no subject clicks-value" in found.detail


def test_json_when_schemas_are_registered_by_confluents_serializer_then_rows_are_exact(
    server: Apicurio, client: SchemaRegistryClient
) -> None:
    item = {"title": "Item", "type": "object", "properties": {"name": {"type": "string"}}}
    client.register_schema("item", Schema(json.dumps(item), "JSON"))
    order = {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "item": {"$ref": "item.json"}},
    }
    schema = Schema(json.dumps(order), "JSON", [SchemaReference("item.json", "item", 1)])
    serializer = JSONSerializer(schema, client, conf=BY_TOPIC)
    rows = [{"id": n, "item": {"name": f"é{n}"}} for n in range(3)]
    records = [serialize(serializer, "items", row) for row in rows]

    decoder = JsonOptions(framing="confluent").decoder(columns_of(id="bigint", item="struct<name:string>"))

    assert rows_of(decoder.decode(records)) == rows
    proposal = propose(records, None, _registry(server), "items")
    assert proposal.format == {"type": "json", "framing": "confluent"}
    wrong = AvroOptions().decoder(columns_of(id="bigint"), _registry(server)).decode(records[:1])
    expected = f"schema {_identifier(records[0])} of the registry has the type JSON, not AVRO"
    assert reasons(wrong) == [(0, "", expected)]
    assert "has the type JSON, not AVRO" in _check(server, AvroOptions(), "items").detail


UNIT_FILE = FileDescriptorProto(name="shop/unit.proto", package="shop", syntax="proto3")
UNIT_FILE.enum_type.add(name="Unit").value.add(name="PIECE", number=0)
UNIT_FILE.enum_type[0].value.add(name="KG", number=1)
KNOWN = ("google/protobuf/timestamp.proto", "google/type/date.proto")
ORDER_FILE = FileDescriptorProto(
    name="shop/order.proto",
    package="shop",
    syntax="proto3",
    dependency=[*KNOWN, UNIT_FILE.name],
    message_type=[
        message(
            "Order",
            [
                Field("id", 1, "int64"),
                Field("day", 2, ".google.type.Date"),
                Field("at", 3, ".google.protobuf.Timestamp"),
                Field("line", 4, ".shop.Order.Line"),
                Field("unit", 5, ".shop.Unit", is_enum=True),
            ],
            message("Line", [Field("item", 1, "string")]),
        )
    ],
)
# The sources of both files, which serializers of Java register; Confluent's of Python registers the descriptors.
UNIT_SOURCE = 'syntax = "proto3"; package shop; enum Unit { PIECE = 0; KG = 1; }'
ORDER_SOURCE = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";
import "shop/unit.proto";
message Order {
  int64 id = 1;
  google.type.Date day = 2;
  google.protobuf.Timestamp at = 3;
  Line line = 4;
  Unit unit = 5;
  message Line { string item = 1; }
}
"""
ORDER_TYPES = {
    "id": "bigint", "day": "date", "at": "timestamp", "line": "struct<item:string>", "unit": "string"
}  # fmt: skip
ORDER_ROWS: list[dict[str, Any]] = [
    {"id": 1, "day": date(2026, 11, 28), "at": datetime(2025, 11, 21, 10), "line": {"item": "pen"}, "unit": "KG"},
    {"id": 2, "day": None, "at": None, "line": None, "unit": "PIECE"},
]


def _messages(client: SchemaRegistryClient, topic: str) -> list[bytes]:
    """Return the records of ORDER_ROWS and of a message in that of another; the descriptors are registered."""
    pool = DescriptorPool()
    for file in (*(KNOWN_FILES[name] for name in KNOWN), UNIT_FILE, ORDER_FILE):
        pool.Add(file)
    orders, lines = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("shop.Order", "shop.Order.Line")
    )
    day, at = {"year": 2026, "month": 11, "day": 28}, {"seconds": 1_763_719_200}
    full: dict[str, Any] = {"id": 1, "day": day, "at": at, "line": {"item": "pen"}, "unit": 1}
    return [
        serialize(ProtobufSerializer(type(value), client, conf=BY_TOPIC), topic, value)
        for value in (orders(**full), orders(id=2), lines(item="ink"))
    ]


def test_protobuf_when_descriptors_are_registered_by_confluents_serializer_then_rows_and_columns_are_exact(
    server: Apicurio, client: SchemaRegistryClient
) -> None:
    records = _messages(client, "shop")
    options, columns = ProtobufOptions(), columns_of(**ORDER_TYPES)

    decoded = options.decoder(columns, _registry(server)).decode(records)

    assert rows_of(decoded) == ORDER_ROWS
    unmatched = "no field of the record is a column (fields: item; columns: id, day, at, line, unit)"
    assert reasons(decoded) == [(2, "", unmatched)]
    of_lines = options.decoder(columns_of(item="string"), _registry(server))
    assert rows_of(of_lines.decode(records[2:])) == [{"item": "ink"}]
    assert options.columns(_registry(server), ["shop"]) == columns
    proposal = propose(records[:2], None, _registry(server), "shop")
    assert (proposal.format, proposal.columns) == ({"type": "protobuf"}, columns)
    assert _check(server, options, "shop").error is None


def test_protobuf_when_a_source_is_registered_then_the_descriptors_of_the_configuration_are_needed_and_used(
    server: Apicurio, client: SchemaRegistryClient
) -> None:
    client.register_schema("unit.proto", Schema(UNIT_SOURCE, "PROTOBUF"))
    unit = SchemaReference(UNIT_FILE.name, "unit.proto", 1)
    identifier = client.register_schema("source-value", Schema(ORDER_SOURCE, "PROTOBUF", [unit]))
    records = [struct.pack(">BI", 0, identifier) + record[5:] for record in _messages(client, "other")]
    columns = columns_of(**ORDER_TYPES)

    with pytest.raises(ConfigError, match="descriptors") as caught:
        ProtobufOptions().decoder(columns, _registry(server)).decode(records)
    assert "format.descriptor_set" in str(caught.value.hint)
    assert type(_check(server, ProtobufOptions(), "source").error) is ConfigError
    proposal = propose(records, None, _registry(server), "source")
    assert (proposal.format, proposal.columns) == ({"type": "protobuf"}, ())

    text = set_of(UNIT_FILE, ORDER_FILE)
    decoded = ProtobufOptions(descriptor_set=text, message="shop.Order").decoder(columns).decode(records)

    assert rows_of(decoded) == ORDER_ROWS
    path = "the record has a message of the index path 0, 0, but that of shop.Order is 0"
    assert reasons(decoded) == [(2, "", path)]
    of_lines = ProtobufOptions(descriptor_set=text, message="shop.Order.Line").decoder(columns_of(item="string"))
    assert rows_of(of_lines.decode(records[2:])) == [{"item": "ink"}]


def test_mapping_when_the_registry_is_restarted_then_it_waits_and_loses_no_record(
    server: Apicurio, client: SchemaRegistryClient, stack: Stack
) -> None:
    schemas = [schema_of({"id": "int"}), schema_of({"id": "long", "name": "string"})]
    old, new = (AvroSerializer(client, schema, conf=BY_TOPIC) for schema in schemas)
    stack.topic(2)
    stack.table("id bigint, name string")
    first = [serialize(old, stack.name, {"id": n}) for n in range(100)]
    later = [serialize(new, stack.name, {"id": n, "name": "x"}) for n in range(100, 200)]
    stack.produce(first)

    daemon = stack.start(stack.config({"format": {"type": "avro"}}, registry={"url": server.url}))
    eventually("the first rows", lambda: stack.count() == len(first))
    server.stop()
    stack.produce(later)
    eventually("the mapping to wait", lambda: _waits_for_registry(daemon))
    server.start()
    eventually("the other rows", lambda: stack.count() == len(first) + len(later))

    assert stack.ids() == list(range(200))
    assert stack.sql(f"SELECT count(name) FROM {stack.name}") == [(len(later),)]


def _waits_for_registry(daemon: Daemon) -> bool:
    return "RegistryUnavailable" in [event["reason"] for event in daemon.events("waiting")]
