"""Columns that are filled from the key, headers, timestamp and place of a record, and not from its value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message, Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.acid.encoding import STANDARD
from ingestd.acid.routing import Shape
from ingestd.config.document import load
from ingestd.errors import ConfigError, InvalidTable
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.decoder import DecodeResult
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.record_decoder import Tombstones
from ingestd.ingest.inspection.preview import preview
from ingestd.ingest.options import KafkaField
from ingestd.ingest.rows.decoding import KafkaColumns, RowDecoder
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.table.evolution import evolved_columns
from ingestd.ingest.table.target import load_target
from ingestd.kafka.reader import Batch
from ingestd.kafka.record import Record
from ingestd.sandbox import Addresses
from tests.support.avro import encode, schema_of
from tests.support.daemon import DaemonThread, shared_engine
from tests.support.decoding import columns_of
from tests.support.raw_headers import produce_with_header
from tests.support.stack import Stack

FIELDS: Mapping[str, KafkaField] = {
    "k": "key",
    "h": "headers",
    "p": "partition",
    "o": "offset",
    "t": "timestamp",
    "topic": "topic",
}
FIRST_MS, LAST_MS = -9_223_372_036_854, 9_223_372_036_854
EPOCH = datetime(1970, 1, 1)


TEXTS = columns_of(
    id="int", k="string", h="map<string,string>", p="int", o="bigint", t="timestamp", topic="string", at="timestamp"
)
BYTES = columns_of(
    id="int",
    k="binary",
    h="array<struct<key:string,value:binary>>",
    p="bigint",
    o="bigint",
    t="bigint",
    topic="string",
    at="timestamp",
)


def batch_of(records: Sequence[Record]) -> Batch:
    """Return the records as offsets 100, 101 … of the partitions 0, 1, 2, 0 …"""
    messages = [
        Message(
            topic="clicks",
            key=record.key,
            value=record.value,
            headers=list(record.headers) or None,
            timestamp=(TIMESTAMP_NOT_AVAILABLE, 0)
            if record.timestamp_ms is None
            else (TIMESTAMP_CREATE_TIME, record.timestamp_ms),
        )
        for record in records
    ]
    count = len(records)
    values = [record.value for record in records]
    size = sum(map(len, filter(None, values)))
    return Batch(
        "clicks", values, np.arange(count, dtype=np.int32) % 3, np.arange(count) + 100, size, messages=messages
    )


def is_utf8(value: bytes | None) -> bool:
    return value is None or b"\xff" not in value


def expected(record: Record, index: int, *, is_text: bool, tombstones: Tombstones) -> dict[str, Any] | str | None:
    """Return the row of a record, or the column of its reject, or None if it is skipped."""
    if record.value is None and tombstones != "null_row":
        return None if tombstones == "skip" else ""
    if record.value == b"{":
        return ""
    if is_text and not is_utf8(record.key):
        return "k"
    last = dict(record.headers)
    if is_text and not all(map(is_utf8, last.values())):
        return "h"
    if is_text and record.timestamp_ms not in (None, -1) and not FIRST_MS <= (record.timestamp_ms or 0) <= LAST_MS:
        return "t"
    value = json.loads(record.value or b"{}")
    at = value.get("at")
    time = None if record.timestamp_ms == -1 else record.timestamp_ms
    texts = [(name, None if one is None else one.decode()) for name, one in last.items()] if is_text else []
    pairs = [{"key": name, "value": header} for name, header in record.headers]
    return {
        "id": value.get("id"),
        "at": None if at is None else datetime.fromisoformat(at),
        "k": record.key.decode() if is_text and record.key is not None else record.key,
        "h": texts if is_text else pairs,
        "p": index % 3,
        "o": index + 100,
        "t": time if time is None or not is_text else EPOCH + timedelta(milliseconds=time),
        "topic": "clicks",
    }


RECORDS = st.builds(
    Record,
    key=st.sampled_from([None, b"", b"k", "é".encode(), b"\xff"]),
    value=st.sampled_from(
        [None, b"{", b'{"id": 7}', b'{"at": "1500-01-01"}', b'{"id": 8, "at": "2026-11-21 10:00:00"}']
    ),
    headers=st.lists(
        st.tuples(st.sampled_from(["a", "é", ""]), st.sampled_from([None, b"", b"1", b"\xff"])), max_size=3
    ).map(tuple),
    timestamp_ms=st.sampled_from([None, -1, 0, 1_763_719_200_123, FIRST_MS, FIRST_MS - 1, LAST_MS, LAST_MS + 1, 2**62]),
)


@settings(deadline=None)
@given(
    records=st.lists(RECORDS, max_size=12),
    is_text=st.booleans(),
    tombstones=st.sampled_from(["stop", "skip", "null_row"]),
)
def test_decode_when_records_are_arbitrary_then_each_row_has_the_fields_of_its_record(
    records: list[Record], is_text: bool, tombstones: Tombstones
) -> None:
    columns, batch = TEXTS if is_text else BYTES, batch_of(records)
    options, shape = JsonOptions(tombstones=tombstones), Shape(columns, (), None, STANDARD)
    decoder = RowDecoder(options, KafkaColumns.of(columns, FIELDS), Partitioning.of(shape, {}), shape, None)

    decoded = decoder.decode(batch)

    outcomes = [expected(record, index, is_text=is_text, tombstones=tombstones) for index, record in enumerate(records)]
    rows = [row for found in decoded.batches for row in pa.Table.from_batches([found]).to_pylist()]
    assert dict(zip(decoded.records_of_rows(batch.values).tolist(), rows, strict=True)) == {
        index: outcome for index, outcome in enumerate(outcomes) if isinstance(outcome, dict)
    }
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [
        (index, outcome) for index, outcome in enumerate(outcomes) if isinstance(outcome, str)
    ]
    assert decoded.skipped == outcomes.count(None)


def test_fill_when_records_have_several_rows_then_all_rows_of_a_reject_are_dropped() -> None:
    columns = columns_of(id="int", k="string", o="bigint")
    batch = batch_of([Record(b"a", b"x"), Record(b"\xff", b"y"), Record(b"c", b"z"), Record(b"\xfe", b"")])
    rows = [pa.record_batch({"id": pa.array(ids, pa.int32())}) for ids in ([0, 10, 11], [20, 1])]
    decoded = DecodeResult(rows, [], 1, np.array([0, 1, 1, 2, 0]))

    filled = KafkaColumns.of(columns, {"K": "key", "o": "offset"}).fill(batch, decoded)

    assert pa.Table.from_batches(filled.batches).to_pylist() == [
        {"id": 0, "k": "a", "o": 100},
        {"id": 20, "k": "c", "o": 102},
        {"id": 1, "k": "a", "o": 100},
    ]
    assert [(reject.row, reject.column, reject.reason) for reject in filled.rejects] == [
        (1, "k", "the key of the record is not UTF-8")
    ]
    assert filled.records_of_rows(batch.values).tolist() == [0, 2, 0]


def test_needed_columns_when_a_field_has_the_name_of_a_kafka_column_then_it_needs_none() -> None:
    columns = columns_of(id="int", k="string")
    schema = schema_of({"id": "long", "k": "long", "new": "string"})
    options = AvroOptions(framing="none", schemas=(schema,))
    shape = Shape(columns, (), None, STANDARD)
    decoder = RowDecoder(options, KafkaColumns.of(columns, {"k": "key"}), Partitioning.of(shape, {}), shape, None)

    batch = batch_of([Record(b"a", encode(schema, {"id": 1, "k": 2, "new": "x"}))])
    decoder.decode(batch)

    assert evolved_columns("widen", Shape(columns, (), None, STANDARD), decoder.needed_columns(batch)) == columns_of(
        id="bigint", k="string", new="string"
    )


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"x": "key"}, "columns.x: there is no such column in the records → name one of id, k"),
        ({"k": "key", "K": "topic"}, "columns.K: the column is named twice"),
        (
            {"id": "offset"},
            "columns.id: the column has the type int, which cannot store the offset of a record → the co",
        ),
        ({"k": "headers"}, "columns.k: .* needs the type map<string,string> or array<struct<key:string,value:binary>>"),
        ({"k": "topic", "id": "partition"}, "columns: all columns of the table are filled from Kafka"),
    ],
)
def test_columns_when_they_do_not_fit_then_the_error_names_the_column(
    fields: dict[str, KafkaField], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        KafkaColumns.of(columns_of(id="int", k="string"), fields)


NOW = datetime(2026, 11, 21, 10, 0, 0, 123000, tzinfo=timezone.utc)
NOW_MS = int(NOW.timestamp() * 1000)
# Key, value, headers and partition of the records of one topic; the timestamp of each is a second after the last one.
PRODUCED: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = [
    (b"k0", b'{"id": 0}', [("a", b"1"), ("b", None), ("a", b"2")], 0),
    (None, b'{"id": 1}', [], 1),
    (b"gone", None, [("op", b"delete")], 1),
    (b"\xff", b'{"id": 3}', [], 2),
    (b"k4", b'{"id": 4}', [("a", b"\xff")], 2),
    ("é".encode(), b'{"id": 5, "k": "of the value"}', [("x", b"")], 2),
]


class _Loaded:
    """Two mappings of one topic, which a daemon has run: `texts` skips rejects, and `bytes` stores any bytes."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.topic = stack.topic(3)
        self.texts, self.bytes = (f"{stack.name}_{kind}"[-40:] for kind in ("texts", "bytes"))
        texts = "id int, k string, h map<string,string>, o bigint, t timestamp, topic string"
        stack.table(texts, "p int", name=f"default.{self.texts}")
        pairs = "id string, k binary, h array<struct<key:string,value:binary>>, p bigint, o bigint, t bigint"
        stack.table(pairs, name=f"default.{self.bytes}")
        producer = Producer({"bootstrap.servers": stack.addresses.kafka})
        for place, (key, value, headers, partition) in enumerate(PRODUCED):
            at = NOW_MS + 1000 * place
            producer.produce(self.topic, value, key, partition=partition, timestamp=at, headers=headers)
            producer.flush()
        produce_with_header(stack.addresses.kafka, self.topic, 2, b'{"id": 6}', b"\xff")
        self.config: Path = stack.config(
            {
                "name": self.texts,
                "topics": [self.topic],
                "table": f"default.{self.texts}",
                "format": {"type": "json", "tombstones": "null_row"},
                "columns": dict(FIELDS),
                "on_error": "skip",
            },
            {
                "name": self.bytes,
                "topics": [self.topic],
                "table": f"default.{self.bytes}",
                "format": {"type": "text", "tombstones": "null_row"},
                "columns": {name: field for name, field in FIELDS.items() if name != "topic"},
                "on_error": "skip",
            },
        )
        self.daemon: DaemonThread = stack.drain(self.config)

    def skipped(self, mapping: str) -> list[tuple[int, str, str]]:
        """Return the offset, the column and the reason of each reject of a mapping. All are in partition 2."""
        rejects = [
            reject
            for event in self.daemon.events("rejects_skipped")
            if event["mapping"] == mapping
            for reject in event["first"]
        ]
        return sorted((reject["offset"], reject["column"], reject["reason"]) for reject in rejects)


@pytest.fixture(scope="module")
def loaded(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Loaded]:
    with Stack(addresses, "kafka_columns", tmp_path_factory.mktemp("kafka_columns")) as stack:
        yield _Loaded(stack)


def _time(place: int) -> str:
    return f"2026-11-21 10:00:{place:02}.123"


def test_kafka_columns_when_loaded_then_hive_reads_the_fields_of_each_record(loaded: _Loaded) -> None:
    stack = loaded.stack
    select = "id, k, h['a'], map_keys(h), size(h), p, o, cast(t AS string), topic"
    assert stack.sql(f"SELECT {select} FROM {loaded.texts} ORDER BY p, o") == [
        (0, "k0", "2", '["a","b"]', 2, 0, 0, _time(0), loaded.topic),
        (1, None, None, "[]", 0, 1, 0, _time(1), loaded.topic),
        (None, "gone", None, '["op"]', 1, 1, 1, _time(2), loaded.topic),
        (5, "é", None, '["x"]', 1, 2, 2, _time(5), loaded.topic),
    ]
    assert stack.sql(f"SHOW PARTITIONS {loaded.texts}") == [("p=0",), ("p=1",), ("p=2",)]
    assert stack.sql(f"SELECT id FROM {loaded.texts} WHERE p = 1 AND h['op'] = 'delete'") == [(None,)]
    assert loaded.skipped(loaded.texts) == [
        (0, "k", "the key of the record is not UTF-8"),
        (1, "h", "the header 'a' is not UTF-8"),
        (3, "h", "the name of a header is not UTF-8"),
    ]


def test_kafka_columns_when_columns_are_binary_then_hive_reads_the_same_bytes(loaded: _Loaded) -> None:
    select = "id, hex(k), size(h), h[0].key, hex(h[0].value), hex(h[2].value), p, o, t"
    assert loaded.stack.sql(f"SELECT {select} FROM {loaded.bytes} ORDER BY t") == [
        ('{"id": 0}', "6B30", 3, "a", "31", "32", 0, 0, NOW_MS),
        ('{"id": 1}', None, 0, None, None, None, 1, 0, NOW_MS + 1000),
        (None, "676F6E65", 1, "op", "64656C657465", None, 1, 1, NOW_MS + 2000),
        ('{"id": 3}', "FF", 0, None, None, None, 2, 0, NOW_MS + 3000),
        ('{"id": 4}', "6B34", 1, "a", "FF", None, 2, 1, NOW_MS + 4000),
        ('{"id": 5, "k": "of the value"}', "C3A9", 1, "x", "", None, 2, 2, NOW_MS + 5000),
    ]
    assert loaded.skipped(loaded.bytes) == [(3, "h", "the name of a header is not UTF-8")]


def test_preview_when_columns_are_of_kafka_then_shows_them(loaded: _Loaded) -> None:
    options = load([loaded.config]).mappings[0]
    found = preview(loaded.stack.metastore, options, 7, None, shared_engine)
    assert [(row.origin.partition, row.origin.offset, row.partition) for row in found.rows] == [
        (0, 0, "p=0"),
        (1, 0, "p=1"),
        (1, 1, "p=1"),
        (2, 2, "p=2"),
    ]
    assert found.rows[2].values == (None, "gone", '{"op":"delete"}', "1", _time(2), loaded.topic)
    assert [(reject.origin.offset, reject.column) for reject in found.rejects] == [(0, "k"), (1, "h"), (3, "h")]


def test_kafka_columns_when_they_do_not_fit_the_table_then_load_target_names_the_mapping(loaded: _Loaded) -> None:
    faults = []
    for keys in ({"columns": {"topic": "partition"}}, {"columns": {"p": "partition"}, "partition": {"p": 1}}):
        options = load([loaded.stack.config({"table": f"default.{loaded.texts}", **keys})]).mappings[0]
        with pytest.raises(InvalidTable) as caught:
            load_target(loaded.stack.metastore, options)
        faults.append(str(caught.value).removeprefix(f"mapping {options.name}, table default.{loaded.texts}, "))
    assert faults[0].startswith("columns.topic: the column has the type string, which cannot store the partition")
    assert faults[1].startswith("columns.p: there is no such column in the records")
