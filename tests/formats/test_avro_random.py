"""Avro records of random schemas are decoded exactly, and damaged records never end the decoder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.row_batches import RowBatches
from tests.support.avro import SCALED_DECIMAL, ZONED_TIMESTAMP, decoder_of, encode, logical, schema_of
from tests.support.decoding import columns_of, reasons, rows_of


@dataclass(frozen=True)
class Pair:
    """An Avro type, a Hive type that can store it, values of the former and what they are in the latter."""

    avro: Any
    hive: str
    values: st.SearchStrategy[Any]
    expected: Callable[[Any], Any] = lambda value: value


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def scaled(unit: int) -> Callable[[int], int]:
    return lambda value: value * unit


DECIMAL = {"precision": 20, "scale": 3}
DECIMALS = st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-3))
TIMES = st.integers(-(2**62) // 10**6, 2**62 // 10**6)  # milliseconds
WALL_TIMES = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(datetime.isoformat)
SCALED = st.tuples(st.integers(-(10**19), 10**19), st.integers(-5, 3)).map(
    lambda pair: {"value": pair[0].to_bytes(9, "big", signed=True), "scale": pair[1]}
)


def unscaled(value: dict[str, Any]) -> Decimal:
    return Decimal(int.from_bytes(value["value"], "big", signed=True)).scaleb(-value["scale"])


def nanos(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000


LEAVES = (
    Pair("long", "bigint", integers(64)),
    Pair("int", "int", integers(32)),
    Pair("int", "bigint", integers(32)),
    Pair("long", "tinyint", integers(8)),
    Pair("long", "double", integers(64), float),
    Pair("int", "decimal(12,2)", integers(32), Decimal),
    Pair("float", "float", st.floats(width=32, allow_nan=False)),
    Pair("float", "double", st.floats(width=32, allow_nan=False)),
    Pair("double", "double", st.floats(allow_nan=False)),
    Pair("boolean", "boolean", st.booleans()),
    Pair("string", "string", st.text()),
    Pair("string", "varchar(5)", st.text(max_size=5)),
    Pair("string", "char(5)", st.text("ab ", max_size=5), lambda text: text.rstrip(" ")),
    Pair("string", "binary", st.text(), str.encode),
    Pair("bytes", "binary", st.binary()),
    Pair("bytes", "string", st.text().map(str.encode), bytes.decode),
    Pair({"type": "enum", "symbols": ["A", "B", "C"]}, "string", st.sampled_from("ABC")),
    Pair({"type": "fixed", "size": 5}, "binary", st.binary(min_size=5, max_size=5)),
    Pair(logical("bytes", "decimal", **DECIMAL), "decimal(22,4)", DECIMALS),
    Pair(logical("fixed", "decimal", size=19, **DECIMAL), "decimal(38,3)", DECIMALS),
    Pair(logical("int", "date"), "date", st.integers(-100_000, 100_000)),
    Pair(logical("int", "date"), "int", integers(32)),
    Pair(logical("long", "timestamp-millis"), "timestamp", TIMES, scaled(10**6)),
    Pair(logical("long", "local-timestamp-micros"), "timestamp", TIMES.map(scaled(1000)), scaled(1000)),
    Pair(logical("long", "timestamp-nanos"), "timestamp", TIMES.map(scaled(10**6))),
    Pair(logical("long", "timestamp-millis"), "bigint", TIMES),
    Pair(logical("string", "uuid"), "string", st.uuids().map(str)),
    Pair(logical("long", "unknown"), "bigint", integers(64)),
    Pair(SCALED_DECIMAL, "decimal(30,3)", SCALED, unscaled),
    Pair(ZONED_TIMESTAMP, "timestamp", WALL_TIMES.map(lambda text: f"{text}Z"), lambda text: nanos(text[:-1])),
)


def optional(pair: Pair) -> Pair:
    if isinstance(pair.avro, list):
        return pair
    return Pair(
        ["null", pair.avro],
        pair.hive,
        st.none() | pair.values,
        lambda value: None if value is None else pair.expected(value),
    )


def array(pair: Pair) -> Pair:
    return Pair(
        {"type": "array", "items": pair.avro},
        f"array<{pair.hive}>",
        st.lists(pair.values, max_size=4),
        lambda items: [pair.expected(item) for item in items],
    )


def mapping(pair: Pair) -> Pair:
    return Pair(
        {"type": "map", "values": pair.avro},
        f"map<string,{pair.hive}>",
        st.dictionaries(st.text(max_size=3), pair.values, max_size=4),
        lambda items: [(key, pair.expected(item)) for key, item in items.items()],
    )


def record(pairs: list[Pair]) -> Pair:
    """Return a record with a field for each pair; every second field has no column."""
    stored = {f"f{index}": pair for index, pair in enumerate(pairs) if index % 2 == 0}
    return Pair(
        {"type": "record", "fields": [{"name": f"f{i}", "type": pair.avro} for i, pair in enumerate(pairs)]},
        f"struct<{','.join(f'{name}:{pair.hive}' for name, pair in stored.items())},missing:int>",
        st.fixed_dictionaries({f"f{index}": pair.values for index, pair in enumerate(pairs)}),
        lambda fields: (*(pair.expected(fields[name]) for name, pair in stored.items()), None),
    )


PAIRS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        inner.map(optional)
        | inner.map(array)
        | inner.map(mapping)
        | st.lists(inner, min_size=1, max_size=3).map(record)
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), pairs=st.lists(PAIRS, min_size=1, max_size=4), repeated=st.sampled_from([1, 1, 20]))
def test_decode_when_schema_is_random_then_rows_equal_the_written_values(
    data: st.DataObject, pairs: list[Pair], repeated: int
) -> None:
    named_pairs = {f"c{index}": pair for index, pair in enumerate(pairs)}
    schema = schema_of({name: pair.avro for name, pair in named_pairs.items()})
    written = data.draw(
        st.lists(
            st.fixed_dictionaries({name: pair.values for name, pair in named_pairs.items()}), min_size=1, max_size=4
        )
    )
    columns = columns_of(**{name: pair.hive for name, pair in named_pairs.items()})

    decoded = decoder_of(schema, columns).decode([encode(schema, value) for value in written * repeated])

    assert decoded.rejects == []
    expected = RowBatches(columns)
    for value in written * repeated:
        expected.add_row([pair.expected(value[name]) for name, pair in named_pairs.items()])
    assert decoded.batches == expected.close()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), pairs=st.lists(PAIRS, min_size=1, max_size=3))
def test_decode_when_records_are_damaged_then_each_becomes_a_row_or_a_reject_by_itself(
    data: st.DataObject, pairs: list[Pair]
) -> None:
    named_pairs = {f"c{index}": pair for index, pair in enumerate(pairs)}
    schema = schema_of({name: pair.avro for name, pair in named_pairs.items()})
    value = data.draw(st.fixed_dictionaries({name: pair.values for name, pair in named_pairs.items()}))
    intact = encode(schema, value)
    records = [
        data.draw(st.binary(max_size=30)),
        intact[: data.draw(st.integers(0, len(intact)))],
        intact + data.draw(st.binary(max_size=3)),
        *(_with_byte(intact, data.draw(st.integers(0, 10_000)), data.draw(st.integers(0, 255))) for _ in range(4)),
        intact,
    ] * 3
    decoder = decoder_of(schema, columns_of(**{name: pair.hive for name, pair in named_pairs.items()}))

    decoded = decoder.decode(records)

    alone = [decoder.decode([each]) for each in records]
    assert repr(rows_of(decoded)) == repr([row for each in alone for row in rows_of(each)])
    assert reasons(decoded) == [
        (row, reject.column, reject.reason) for row, each in enumerate(alone) for reject in each.rejects
    ]
    for record_bytes, each in zip(records, alone, strict=True):
        if not each.rejects:
            _assert_readable(schema, record_bytes)


def _with_byte(intact: bytes, place: int, byte: int) -> bytes:
    place %= max(1, len(intact))
    return intact[:place] + bytes([byte]) + intact[place + 1 :]


def _assert_readable(schema: str, value: bytes) -> None:
    """Assert that fastavro reads exactly one record; it checks the ranges of logical types and UTF-8 differently."""
    plain = json.loads(schema.replace("logicalType", "notLogical"))
    source = io.BytesIO(value)
    fastavro.schemaless_reader(source, fastavro.parse_schema(plain), None, handle_unicode_errors="replace")
    assert source.tell() == len(value)
