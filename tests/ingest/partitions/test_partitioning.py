"""Partition columns have a static value, an expression, or the value of a record."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from ingestd.acid.encoding import STANDARD
from ingestd.acid.partitions import DEFAULT_PARTITION
from ingestd.acid.routing import Shape, route
from ingestd.errors import InvalidTable
from ingestd.formats.decoder import DecodeResult
from ingestd.formats.json.options import JsonOptions
from ingestd.ingest.rows.decoding import KafkaColumns, RowDecoder
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.kafka.reader import Batch
from ingestd.schema import Column, HiveType


def _columns(text: str) -> tuple[Column, ...]:
    pairs = (pair.split(" ") for pair in text.split(", "))
    return tuple(Column(name, HiveType.parse(kind)) for name, kind in pairs)


SHAPE = Shape(_columns("ts timestamp, n int"), _columns("region string, day string, h int, kept int"), None, STANDARD)
TIMES = [datetime(2026, 1, 2, 3), None, datetime(2026, 1, 2, 4)]


def test_partitioning_when_sources_are_mixed_then_rows_have_the_values_of_each() -> None:
    partitioning = Partitioning.of(SHAPE, {"Region": "é", "h": "hour(TS)", "day": "date_format(ts, 'yyyy-MM-dd')"})
    assert [column.name for column in partitioning.record_columns(SHAPE)] == ["ts", "n", "kept"]
    batch = pa.record_batch(
        {
            "ts": pa.array(TIMES * 2, pa.timestamp("us")),
            "n": pa.array(range(6), pa.int32()),
            "kept": pa.array([7, 7, 7, None, 7, 7], pa.int32()),
        }
    )
    [filled] = partitioning.fill(DecodeResult([batch], [], 0)).batches
    parts = {part.partition: part.rows for part in route(filled, SHAPE, partitioning.static)}
    assert {partition: rows.column("n").to_pylist() for partition, rows in parts.items()} == {
        ("é", "2026-01-02", "3", "7"): [0],
        ("é", "2026-01-02", "3", DEFAULT_PARTITION): [3],
        ("é", "2026-01-02", "4", "7"): [2, 5],
        ("é", DEFAULT_PARTITION, DEFAULT_PARTITION, "7"): [1, 4],
    }
    assert all(rows.schema.names == ["ts", "n"] for rows in parts.values())


def test_partitioning_when_an_expression_uses_the_kafka_timestamp_then_a_column_of_its_own_is_filled() -> None:
    partitioning = Partitioning.of(SHAPE, {"region": "DE", "h": "hour(Kafka.Timestamp)", "day": "to_date(ts)"})
    columns = KafkaColumns.of(partitioning.record_columns(SHAPE), partitioning.kafka_fields)
    assert [column.name for column in columns.value_columns] == ["ts", "n", "kept"]
    assert columns.need_messages
    decoder = RowDecoder(JsonOptions(), columns, partitioning, SHAPE, None)
    times = [1_767_322_800_000, -1, 10**15]
    messages = [Message("t", value=b'{"n": 1, "kept": 7}', timestamp=(TIMESTAMP_CREATE_TIME, time)) for time in times]
    values = [message.value() for message in messages]
    decoded = decoder.decode(Batch("t", values, np.zeros(3, np.int32), np.arange(3), 0, messages=messages))
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(2, "kafka.timestamp")]
    parts = [part for batch in decoded.batches for part in route(batch, SHAPE, partitioning.static)]
    assert {part.partition[2]: part.rows.column("n").to_pylist() for part in parts} == {
        "3": [1],
        DEFAULT_PARTITION: [1],
    }
    assert all(part.rows.schema.names == ["ts", "n"] for part in parts)


def test_partitioning_when_an_expression_is_a_header_then_its_last_value_is_the_partition() -> None:
    given = {"region": "header('X-Region')", "day": 'header("x-region")', "h": "7", "kept": "1"}
    partitioning = Partitioning.of(SHAPE, given)
    columns = KafkaColumns.of(partitioning.record_columns(SHAPE), partitioning.kafka_fields)
    assert [column.name for column in columns.value_columns] == ["ts", "n"]
    assert columns.need_messages
    decoder = RowDecoder(JsonOptions(), columns, partitioning, SHAPE, None)
    headers: list[list[tuple[str, bytes | None]] | None] = [
        [("X-Region", b"no"), ("x-region", b"1"), ("X-Region", "é/".encode())],
        None,
        [("X-Region", None), ("bytes", b"\xff")],
        [("X-Region", b"a\xff")],
        [("X-Region", b"x" * 300)],
        [("X-Region", b"")],
    ]
    messages = [Message("t", value=b'{"n": 1}', headers=header) for header in headers]
    values = [message.value() for message in messages]
    count = len(values)
    decoded = decoder.decode(Batch("t", values, np.zeros(count, np.int32), np.arange(count), 0, messages=messages))
    rejects = {reject.row: (reject.column, reject.reason) for reject in decoded.rejects}
    assert rejects[3] == ("kafka.header.X-Region", "the header 'X-Region' is not UTF-8")
    assert rejects[4][0] == "region"
    assert sorted(rejects) == [3, 4]
    parts = [part for batch in decoded.batches for part in route(batch, SHAPE, partitioning.static)]
    assert {part.partition: part.rows.num_rows for part in parts} == {
        ("é/", "1", "7", "1"): 1,
        (DEFAULT_PARTITION, DEFAULT_PARTITION, "7", "1"): 3,
    }
    assert all(part.rows.schema.names == ["ts", "n"] for part in parts)


def test_partitioning_when_nothing_is_given_then_all_columns_are_those_of_the_record() -> None:
    partitioning = Partitioning.of(SHAPE, {})
    assert partitioning.record_columns(SHAPE) == (*SHAPE.columns, *SHAPE.partition_columns)
    assert partitioning.static == (None,) * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"month": "1"}, "names month, but the table is partitioned by region, day, h, kept"),
        ({"h": "1", "H": "2"}, "names h, H, but"),
        ({"h": "x"}, "'x' is not a value of type int"),
        ({"h": "hour(kept)"}, "hour uses kept, which is not a column of the table or is a partition column"),
        ({"h": "header('h')"}, "the value of header may not fit the type int"),
        ({"h": "hour(n)"}, "hour cannot be applied to the column n of type int"),
    ],
)
def test_partitioning_when_it_does_not_fit_the_table_then_invalid_table(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidTable) as caught:
        Partitioning.of(SHAPE, given)
    assert message in caught.value.what
    with pytest.raises(InvalidTable, match="the table is not partitioned"):
        Partitioning.of(Shape(SHAPE.columns, (), None, STANDARD), given)
