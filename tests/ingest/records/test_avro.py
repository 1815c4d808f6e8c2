"""Avro records reach a table exactly once, with the schema of each record."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

from tests.support.avro import SCALED_DECIMAL, ZONED_TIMESTAMP, encode, logical, schema_of, single_object
from tests.support.daemon import Daemon
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


def _has_waited(daemon: Daemon, reason: str) -> bool:
    return reason in [event["reason"] for event in daemon.events("waiting")]


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
        eventually("the mapping to wait", lambda: _has_waited(daemon, "RegistryUnavailable"))
        server.status = None

        assert daemon.wait() == 0
    assert stack.ids() == list(range(100))
    assert stack.sql(f"SELECT sum(amount), count(at) FROM {stack.name}") == [(Decimal(4950), 50)]
    assert "s3cret" not in daemon.text()


def test_changes_when_connect_describes_their_types_then_avro_and_json_become_the_same_rows(stack: Stack) -> None:
    decimal = "org.apache.kafka.connect.data.Decimal"
    times = {
        "day": "io.debezium.time.Date",
        "ms": "org.apache.kafka.connect.data.Timestamp",
        "us": "io.debezium.time.MicroTimestamp",
        "ns": "io.debezium.time.NanoTimestamp",
    }
    zoned = "2023-11-14T23:13:20.123456789+01:00"
    rows: list[tuple[Any, ...]] = [
        (1, 20_454, -1_001, 1_700_000_000_000_001, 1_700_000_000_123_456_789, zoned, Decimal("12.34"), (3, b"\x7f")),
        (2, -719_162, -62_135_596_800_000, 253_402_300_799_999_999, None, None, Decimal("-0.01"), (-2, b"\xff")),
        (3, None, None, None, 0, "1969-12-31T23:59:59Z", None, None),
    ]
    names = ("id", *times, "zoned", "price", "scaled")
    values = [dict(zip(names, row, strict=True)) for row in rows]
    price = logical("bytes", "decimal", precision=9, scale=2) | {"connect.name": decimal}
    avro: dict[str, Any] = {"id": "long", "price": ["null", price]}
    avro |= {"zoned": ["null", ZONED_TIMESTAMP], "scaled": ["null", SCALED_DECIMAL]}
    columns: list[dict[str, Any]] = [
        {"field": "price", "type": "bytes", "name": decimal, "parameters": {"scale": "2"}},
        {"field": "zoned", "type": "string", "name": ZONED_TIMESTAMP["connect.name"]},
        {"field": "scaled", "type": "struct", "name": SCALED_DECIMAL["connect.name"]},
    ]
    for name, connect in times.items():
        avro[name] = ["null", {"type": "int" if name == "day" else "long", "connect.name": connect}]
        columns.append({"field": name, "type": "int64", "name": connect})
    after = {"field": "after", "type": "struct", "fields": columns}

    def event(row: dict[str, Any]) -> dict[str, Any]:
        unscaled = row["price"] and int(row["price"].scaleb(2)).to_bytes(2, "big", signed=True)
        new = row | {"price": unscaled and base64.b64encode(unscaled).decode()}
        if row["scaled"]:
            scale, value = row["scaled"]
            new["scaled"] = {"scale": scale, "value": base64.b64encode(value).decode()}
        return {"schema": {"type": "struct", "fields": [after]}, "payload": {"op": "c", "after": new}}

    stack.topic(1)
    json_topic = stack.topic(1, f"{stack.name}_json")
    for table in (stack.name, json_topic):
        columns_of_row = "id bigint, day date, ms timestamp, us timestamp, ns timestamp, zoned timestamp"
        stack.table(f"{columns_of_row}, price decimal(9,2), scaled decimal(9,3)", name=table)
    stack.produce(map(event, values), json_topic)
    with registry_server() as server:
        serializer = server.serializer(schema_of(avro))
        for row in values:
            pair = row["scaled"] and dict(zip(("scale", "value"), row["scaled"], strict=True))
            stack.produce([serialize(serializer, stack.name, row | {"scaled": pair})])
        json: dict[str, Any] = {"name": json_topic, "topics": [json_topic], "table": f"default.{json_topic}"}
        json["format"] = {"type": "json", "envelope": "debezium"}
        stack.drain(stack.config({"format": {"type": "avro"}}, json, registry={"url": server.url}))

    texts = ", ".join(f"CAST({name} AS string)" for name in names[1:])
    for table in (stack.name, json_topic):
        assert stack.sql(f"SELECT id, {texts} FROM {table} ORDER BY id") == [
            (
                1, "2026-01-01", "1969-12-31 23:59:58.999", "2023-11-14 22:13:20.000001",
                "2023-11-14 22:13:20.123456789", "2023-11-14 22:13:20.123456789", "12.34", "0.127",
            ),
            (2, "0001-01-01", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", None, None, "-0.01", "-100.000"),
            (3, None, None, None, "1970-01-01 00:00:00", "1969-12-31 23:59:59", None, None),
        ]  # fmt: skip
