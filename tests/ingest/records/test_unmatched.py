"""Records none of whose fields is a column of the table, from Kafka to the rows that HiveServer2 returns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.avro import encode, schema_of
from tests.support.protobuf import Field, class_of, file_of, message, set_of
from tests.support.stack import Stack

CONNECT = (
    b'{"schema":{"type":"struct","fields":[{"field":"id","type":"int32"},{"field":"name","type":"string"}]},'
    b'"payload":{"id":1,"name":"a"}}'
)
CHANGE = b'{"before":null,"after":{"id":2,"name":"b"},"op":"c","ts_ms":1700000000000}'


@pytest.mark.parametrize(("record", "envelope"), [(CONNECT, "connect"), (CHANGE, "debezium")])
def test_mapping_when_records_are_in_an_envelope_then_it_stops_and_names_the_option_that_unwraps_them(
    stack: Stack, record: bytes, envelope: str
) -> None:
    stack.topic(1)
    table = stack.table("id int, name string")
    mapping = {"name": stack.name, "topics": [stack.name], "table": table}
    stack.produce([b'{"id":0,"name":null,"other":1}', record])

    daemon = stack.drain(stack.config(mapping), expect=65)

    (failed,) = daemon.events("failed")
    assert failed["reason"] == "RecordError"
    assert f"set format.envelope: {envelope}" in failed["error"]
    assert stack.ids() == []

    stack.drain(stack.config({**mapping, "format": {"type": "json", "unmatched": None}}))

    assert sorted(stack.sql(f"SELECT id, name FROM {stack.name}"), key=str) == [(0, None), (None, None)]


def test_mappings_when_records_belong_to_another_table_then_each_is_a_dead_letter_and_no_table_changes(
    stack: Stack,
) -> None:
    file = file_of(message("Row", [Field("id", 1, "int32")]))
    kinds = [json.loads(schema_of({field: "int"})) | {"name": field} for field in ("id", "x")]
    union = json.dumps(kinds)
    protobuf = {"type": "protobuf", "framing": "none", "descriptor_set": set_of(file), "message": "shop.Row"}
    avro = {"type": "avro", "framing": "none", "schemas": [union]}
    cases: dict[str, tuple[dict[str, Any], bytes, bytes]] = {
        "paths": ({"type": "json", "fields": {"id": "$.rows[0].id"}}, b'{"rows":[{"id":1}]}', b'{"rows":[{"x":1}]}'),
        "array": ({"type": "json", "records": "array"}, b'[{"id":1}]', b'[{"id":1},{"x":1}]'),
        "regex": ({"type": "regex", "pattern": "([0-9]+)|.*", "fields": ["id"]}, b"1", b"x"),
        "protobuf": (protobuf, class_of(file)(id=1).SerializeToString(), b"\x28\x01"),
        "avro": (avro, encode(union, ("id", {"id": 1})), encode(union, ("x", {"x": 1}))),
    }
    letters = {"on_error": "dead_letter", "dead_letter": {"table": f"default.{stack.name}_dead"}}
    mappings = []
    for case, (options, own, other) in cases.items():
        name = f"{stack.name}_{case}"[-40:]
        stack.topic(1, name)
        stack.produce([own, other, own], name)
        table = stack.table("id int", name=f"default.{name}")
        evolution = {"schema_evolution": "add_columns"} if case == "avro" else {}
        mappings.append({"name": name, "topics": [name], "table": table, "format": options} | letters | evolution)

    stack.drain(stack.config(*mappings))

    for mapping in mappings:
        assert stack.sql(f"SELECT * FROM {mapping['table']}") == [(1,), (1,)], mapping["name"]
    dead = stack.sql(f"SELECT mapping, record_offset FROM default.{stack.name}_dead ORDER BY mapping")
    assert dead == sorted((mapping["name"], 1) for mapping in mappings)
