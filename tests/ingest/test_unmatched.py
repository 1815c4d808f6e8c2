"""Records none of whose fields is a column of the table, from Kafka to the rows that HiveServer2 returns."""

from __future__ import annotations

import pytest

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
