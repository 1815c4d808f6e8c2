"""Avro records reach a table exactly once, with the schema of each record."""

from __future__ import annotations

from decimal import Decimal

from tests.support.avro import encode, logical, schema_of, single_object
from tests.support.registry import registry_server, serialize
from tests.support.stack import Stack, eventually

AMOUNT = logical("bytes", "decimal", precision=9, scale=2)
TIME = logical("long", "timestamp-millis")
TAGS = {"type": "array", "items": "string"}
OLD = schema_of({"id": "int", "amount": AMOUNT})
NEW = schema_of({"at": TIME, "Tags": TAGS, "amount": ["null", AMOUNT], "id": "long"})
COLUMNS = "id bigint, amount decimal(10,2), at timestamp, tags array<string>"


def test_avro_when_records_of_two_schemas_are_interleaved_then_all_rows_are_exact(stack: Stack) -> None:
    old = [(OLD, {"id": n, "amount": Decimal(n).scaleb(-2)}) for n in range(0, 2000, 2)]
    new = [
        (NEW, {"id": n, "amount": None if n % 3 else Decimal(n), "at": n * 1000, "Tags": ["a"] * (n % 2)})
        for n in range(1, 2000, 2)
    ]
    written = [pair for both in zip(old, new, strict=True) for pair in both]
    stack.topic(2)
    stack.table(COLUMNS)
    stack.produce(single_object(schema, encode(schema, value)) for schema, value in written)
    options = {"type": "avro", "framing": "single_object", "schemas": [OLD, NEW]}

    stack.drain(stack.config({"format": options}))

    assert stack.ids() == list(range(2000))
    query = f"SELECT id, amount, CAST(at AS string), size(tags), tags[0] FROM {stack.name} WHERE id < 4 ORDER BY id"
    assert stack.sql(query) == [
        (0, Decimal("0.00"), None, -1, None),
        (1, None, "1970-01-01 00:00:01", 1, "a"),
        (2, Decimal("0.02"), None, -1, None),
        (3, Decimal("3.00"), "1970-01-01 00:00:03", 1, "a"),
    ]
    total = Decimal(sum(range(0, 2000, 2))).scaleb(-2) + sum(range(3, 2000, 6))
    assert stack.sql(f"SELECT sum(amount), count(at), count(tags) FROM {stack.name}") == [(total, 1000, 1000)]


def test_avro_when_the_registry_is_down_then_the_mapping_waits_and_loses_no_record(stack: Stack) -> None:
    with registry_server(login="reader:s3cret") as server:
        old, new = server.serializer(OLD), server.serializer(NEW)
        values = [{"id": n, "amount": Decimal(n)} for n in range(100)]
        records = [
            serialize(new, stack.name, {**value, "at": 0, "Tags": []}) if n % 2 else serialize(old, stack.name, value)
            for n, value in enumerate(values)
        ]
        stack.topic(2)
        stack.table(COLUMNS)
        stack.produce(records)
        registry = {"url": server.url, "username": "reader", "password": "s3cret"}
        server.status = 503

        daemon = stack.start(stack.config({"format": {"type": "avro"}}, registry=registry), "--until-caught-up")
        eventually("the mapping to wait", lambda: daemon.events("waiting"))
        server.status = None

        assert daemon.wait() == 0
    assert {event["reason"] for event in daemon.events("waiting")} == {"RegistryUnavailable"}
    assert stack.ids() == list(range(100))
    assert stack.sql(f"SELECT sum(amount), count(at) FROM {stack.name}") == [(Decimal(4950), 50)]
    assert "s3cret" not in daemon.text()
