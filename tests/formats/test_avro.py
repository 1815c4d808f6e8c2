"""Avro records: names, logical types, unions, nested values and hostile input become rows, or rejects with a reason."""

from __future__ import annotations

import json
import struct
from datetime import date
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas import Timestamp

from ingestd.formats.avro.columns import columns_of as columns_of_schemas
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.avro.schema import read_schema
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.registry import InvalidSchema
from tests.support.avro import (
    ISO_DATE,
    ISO_TIME,
    ISO_TIMESTAMP,
    SCALED_DECIMAL,
    ZONED_TIMESTAMP,
    decoded_rows,
    decoder_of,
    encode,
    logical,
    schema_of,
    single_object,
)
from tests.support.decoding import columns_of, in_order, reasons, rows_of, values_of


def test_decode_when_arrays_are_long_then_all_items_are_read() -> None:
    fields = {
        "a": {"type": "array", "items": "string"},
        "b": {"type": "array", "items": {"type": "array", "items": "long"}},
        "c": {"type": "array", "items": "double"},
    }
    value = {"a": ["x" * (i % 7) for i in range(5000)], "b": [[i] * (i % 3) for i in range(3000)], "c": [0.5] * 4000}
    short = {"a": ["y"], "b": [], "c": []}

    decoded = decoded_rows(
        {"a": "array<string>", "b": "array<array<bigint>>", "c": "array<double>"}, fields, value, *[short] * 40, value
    )

    assert rows_of(decoded) == [value, *[short] * 40, value]


def test_decode_when_blocks_have_sizes_then_items_are_read() -> None:
    schema = schema_of({"a": {"type": "array", "items": "string"}, "n": "int"})
    # Two items in a block of 4 bytes, one in a block without a size, and the end.
    record_bytes = bytes([3, 8, 2, ord("x"), 2, ord("y"), 2, 2, ord("z"), 0, 14])

    decoded = decoder_of(schema, columns_of(a="array<string>", n="int")).decode([record_bytes] * 20)

    assert rows_of(decoded) == [{"a": ["x", "y", "z"], "n": 7}] * 20


def test_decode_when_count_is_hostile_then_record_is_rejected_without_memory() -> None:
    schema = schema_of({"a": {"type": "array", "items": "string"}})
    huge = bytes([0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01])
    least = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 0])

    decoded = decoder_of(schema, columns_of(a="array<string>")).decode([huge, least])

    assert reasons(decoded) == [
        (0, "", "record does not match its Avro schema: a block has more items than the record can contain in a"),
        (1, "", "record does not match its Avro schema: a block has more items than the record can contain in a"),
    ]


def test_decode_when_small_items_would_be_many_values_then_record_is_rejected_and_items_are_not_read() -> None:
    item = {"type": "record", "name": "i", "fields": [{"name": "x0", "type": ["null", "long"]}]}
    schema = schema_of({"a": {"type": "array", "items": item}, "m": {"type": "map", "values": item}})
    wide = f"struct<{','.join(f'x{n}:bigint' for n in range(2_000))}>"
    few = encode(schema, {"a": [{"x0": 1}], "m": {"k": {"x0": None}}})
    many = encode(schema, {"a": [{"x0": None}] * 10_000, "m": {}})
    entries = encode(schema, {"a": [], "m": {str(n): {"x0": None} for n in range(10_000)}})
    decoder = decoder_of(schema, columns_of(a=f"array<{wide}>", m=f"map<string,{wide}>"))

    decoded = decoder.decode([few, many, few, entries])

    reason = "arrays and maps of the record have more than 16,777,216 values, most of which are empty"
    assert reasons(decoded) == [(1, "a", reason), (3, "m", reason)]
    assert [row["a"][0]["x0"] for row in rows_of(decoded)] == [1, 1]


def test_decode_when_a_default_is_an_array_then_items_of_other_fields_are_limited_as_without_it() -> None:
    # Two values for each byte, and more than a small record may have.
    item = {"type": "record", "name": "i", "fields": [{"name": "x0", "type": "string"}]}
    items = {"name": "a", "type": {"type": "array", "items": item}}
    default = {"name": "d", "type": {"type": "array", "items": "int"}, "default": [7]}
    schema, reader = (json.dumps({"type": "record", "name": "r", "fields": f}) for f in ([items], [items, default]))
    wide = f"struct<{','.join(f'x{n}:string' for n in range(2_000))}>"
    options = AvroOptions(framing="none", schemas=(schema,), reader_schema=reader)
    decoder = options.decoder(columns_of(a=f"array<{wide}>", d="array<int>"), None)

    decoded = decoder.decode([encode(schema, {"a": [{"x0": "x" * 1_000}] * 8_400})])

    assert reasons(decoded) == []
    [batch] = decoded.batches
    assert (len(batch["a"][0]), batch["d"].to_pylist()) == (8_400, [[7]])


@pytest.mark.parametrize("count", [1, 40])
def test_decode_when_record_contains_itself_then_depth_is_limited(count: int) -> None:
    node = {"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}
    fields = [{"name": "head", "type": node}, {"name": "n", "type": "int"}]
    schema = json.dumps({"type": "record", "name": "row", "fields": fields})
    shallow, deep = bytes([2] * 150 + [0, 10]), bytes([2] * 5000 + [0, 10])

    decoded = decoder_of(schema, columns_of(n="int")).decode([shallow, deep] * count)

    assert rows_of(decoded) == [{"n": 5}] * count
    assert reasons(decoded) == [
        (2 * index + 1, "", "record does not match its Avro schema: values nest deeper than 200 levels in head")
        for index in range(count)
    ]


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("last", [["null", "r0"], {"type": "array", "items": "r0"}, {"type": "map", "values": "r0"}])
def test_decode_when_record_contains_itself_through_others_then_depth_is_limited(last: Any, count: int) -> None:
    node = last
    for level in reversed(range(20)):
        node = {"type": "record", "name": f"r{level}", "fields": [{"name": "next", "type": node}]}
    schema = json.dumps({"type": "record", "name": "row", "fields": [{"name": "head", "type": node}]})
    step = b"\x02\0" if isinstance(last, dict) and last["type"] == "map" else b"\x02"

    decoded = decoder_of(schema, columns_of(n="int")).decode([step * 5000] * count)

    assert reasons(decoded) == [
        (index, "", "record does not match its Avro schema: values nest deeper than 200 levels in head")
        for index in range(count)
    ]


@pytest.mark.parametrize("count", [1, 40])
def test_decode_when_tree_is_damaged_then_is_rejected_whatever_follows(count: int) -> None:
    fields = [{"name": name, "type": ["null", "node"]} for name in ("left", "right")]
    schema = json.dumps({"type": "record", "name": "node", "fields": fields})
    # The second record begins with the branch of another node, and it follows the end of the first one.
    damaged, sound = bytes([2]), bytes([2, 0, 0, 0])

    decoded = decoder_of(schema, columns_of(n="int")).decode([damaged, sound] * count)

    assert decoded.rows == count
    assert reasons(decoded) == [
        (2 * index, "", "record does not match its Avro schema: the record ends in left") for index in range(count)
    ]


def test_decode_when_record_is_a_large_tree_then_is_a_row() -> None:
    fields = [{"name": name, "type": ["null", "node"]} for name in ("left", "right")]
    schema = json.dumps({"type": "record", "name": "node", "fields": fields})
    tree = bytes([0, 0])
    for _ in range(16):
        tree = bytes([2, *tree, 2, *tree])

    decoded = decoder_of(schema, columns_of(n="int")).decode([tree])

    assert decoded.rows == 1


def test_decode_when_schema_repeats_its_records_then_empty_arrays_are_read() -> None:
    kind: Any = "null"
    for level in range(24):
        pair = [{"name": "a", "type": kind}, {"name": "b", "type": f"r{level - 1}" if level else "null"}]
        kind = {"type": "record", "name": f"r{level}", "fields": pair}
    fields = [{"name": "a", "type": kind}, {"name": "b", "type": {"type": "array", "items": "r23"}}]
    schema = json.dumps({"type": "record", "name": "row", "fields": fields})

    decoded = decoder_of(schema, columns_of(n="int")).decode([b"\0"])

    assert decoded.rows == 1


def test_decode_when_the_first_of_many_items_is_malformed_then_record_is_rejected() -> None:
    fields = [{"name": "d", "type": logical("bytes", "decimal", precision=5, scale=2)}, {"name": "s", "type": "string"}]
    schema = schema_of({"a": {"type": "array", "items": {"type": "record", "fields": fields}}})
    record_bytes = bytes([4, 0, 2, ord("x"), 2, 1, 2, ord("y"), 0])  # the decimal of the first item has no bytes

    decoded = decoder_of(schema, columns_of(a="array<struct<d:decimal(5,2),s:string>>")).decode([record_bytes])

    assert reasons(decoded) == [(0, "", "record does not match its Avro schema: a decimal has no digits in a[0].d")]


@pytest.mark.parametrize("count", [1, 40])
def test_decode_when_a_skipped_integer_is_too_long_then_the_reason_is_the_same_for_one_record_and_for_many(
    count: int,
) -> None:
    schema = schema_of({"id": "int", "x": ["null", "long"]})
    endings = [b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\xff" * 11, b"\xff" * 9, b"\xff" * 9 + b"\x01"]

    decoded = decoder_of(schema, columns_of(id="int")).decode([b"\x0e\x02" + ending for ending in endings] * count)

    long, ends = (f"record does not match its Avro schema: {what} in x" for what in (_LONG, "the record ends"))
    assert reasons(decoded) == [
        (5 * number + index, "", reason) for number in range(count) for index, reason in enumerate([long] * 3 + [ends])
    ]
    assert rows_of(decoded) == [{"id": 7}] * count


_LONG = "an integer has more than 10 bytes"


def test_decode_when_names_differ_in_case_or_are_aliases_then_fields_are_found() -> None:
    fields = [
        {"name": "UserId", "type": "long"},
        {"name": "amount", "type": "int", "aliases": ["Price"]},
        {"name": "price2", "type": "int", "aliases": ["userid"]},
    ]
    schema = json.dumps({"type": "record", "name": "row", "fields": fields})
    columns = columns_of(userid="bigint", price="int", amount="int", other="string")

    decoded = decoder_of(schema, columns).decode([encode(schema, {"UserId": 1, "amount": 2, "price2": 3})])

    assert rows_of(decoded) == [{"userid": 1, "price": 2, "amount": 2, "other": None}]


def test_decode_when_value_does_not_fit_then_reason_has_its_path() -> None:
    fields = {
        "n": "long",
        "t": {"type": "array", "items": {"type": "record", "fields": [{"name": "q", "type": "int"}]}},
        "u": ["null", "string", "int"],
        "d": logical("bytes", "decimal", precision=9, scale=4),
    }
    types = {"n": "tinyint", "t": "array<struct<q:smallint>>", "u": "varchar(3)", "d": "decimal(5,2)"}
    good = {"n": 1, "t": [{"q": 2}], "u": None, "d": Decimal("1.5")}

    decoded = decoded_rows(
        types,
        fields,
        {**good, "n": 128},
        good,
        {**good, "t": [{"q": 1}, {"q": 40_000}]},
        {**good, "u": "four"},
        {**good, "u": 5},
        {**good, "d": Decimal("1.005")},
        {**good, "d": Decimal(-1000)},
    )

    assert len(rows_of(decoded)) == 1
    assert reasons(decoded) == [
        (0, "n", "128 is out of range for tinyint"),
        (2, "t", "[1].q: 40000 is out of range for smallint"),
        (3, "u", "text of 4 characters is longer than varchar(3)"),
        (4, "u", "a value of the Avro type int cannot be stored in varchar(3)"),
        (5, "d", "1.0050 does not fit decimal(5,2) exactly"),
        (6, "d", "-1000.0000 does not fit decimal(5,2) exactly"),
    ]


def test_decode_when_text_is_not_utf8_then_only_its_record_is_rejected() -> None:
    schema = schema_of({"s": "string"})
    records = [b"\x02a", b"\x02\xff", b"\x04\xc3\xa9", b"\x02\xc3"]

    decoded = decoder_of(schema, columns_of(s="string")).decode(records)

    assert rows_of(decoded) == [{"s": "a"}, {"s": "é"}]
    assert reasons(decoded) == [(1, "s", "the text is not UTF-8"), (3, "s", "the text is not UTF-8")]


def test_decode_when_map_repeats_a_key_then_the_last_value_wins() -> None:
    schema = schema_of({"m": {"type": "map", "values": "int"}})
    entries = bytes([6, 2, ord("a"), 2, 2, ord("b"), 4, 2, ord("a"), 6, 0])

    decoded = decoder_of(schema, columns_of(m="map<string,int>")).decode([entries])

    assert rows_of(decoded) == [{"m": [("b", 2), ("a", 3)]}]


def test_decode_when_decimal_is_long_then_others_are_read() -> None:
    schema = schema_of({"a": logical("bytes", "decimal", precision=20, scale=2)})
    size = 2_000_000
    positive, negative, large = b"\0" * size + b"\x07", b"\xff" * size, b"\x01" + b"\0" * size
    raw = schema_of({"a": "bytes"})
    records = [encode(raw, {"a": digits}) for digits in (positive, negative, large, *[b"\x01"] * 1000)]

    decoded = decoder_of(schema, columns_of(a="decimal(20,2)")).decode(records)

    assert [row["a"] for row in rows_of(decoded)] == [Decimal("0.07"), Decimal("-0.01"), *[Decimal("0.01")] * 1000]
    assert reasons(decoded) == [(2, "a", "a decimal of more than 64 bytes is not supported")]


def test_decode_when_scale_of_decimal_is_above_76_then_record_is_rejected() -> None:
    schema = schema_of({"a": logical("bytes", "decimal", precision=200, scale=200)})

    decoded = decoder_of(schema, columns_of(a="decimal(38,38)")).decode([b"\x02\x01", b"\x02\x05"])

    reason = "a value of the Avro type bytes (decimal) cannot be stored in decimal(38,38)"
    assert reasons(decoded) == [(0, "a", reason), (1, "a", reason)]


def test_decode_when_uuid_is_fixed_then_text_has_hyphens() -> None:
    fields = {"u": ["null", logical("fixed", "uuid", size=16)]}
    schema = schema_of(fields)
    number = bytes(range(0xF0, 0x100))

    decoded = decoder_of(schema, columns_of(u="string")).decode([b"\x02" + number, b"\x00", b"\x02\x01"])

    assert rows_of(decoded) == [{"u": "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"}, {"u": None}]
    assert len(decoded.rejects) == 1


def test_decode_when_a_type_has_a_name_of_connect_then_it_is_its_logical_type() -> None:
    names: dict[Any, tuple[str, int, str, Any]] = {
        "io.debezium.time.Date": ("int", 1, "date", date(1970, 1, 2)),
        "io.debezium.time.Timestamp": ("long", -1, "timestamp", Timestamp(-1_000_000)),
        "io.debezium.time.MicroTimestamp": ("long", 1_000_001, "timestamp", Timestamp(1_000_001_000)),
        "io.debezium.time.NanoTimestamp": ("long", 5, "timestamp", Timestamp(5)),
        "org.apache.kafka.connect.data.Date": ("int", -1, "date", date(1969, 12, 31)),
        "org.apache.kafka.connect.data.Timestamp": ("long", 2, "timestamp", Timestamp(2_000_000)),
        "io.debezium.time.MicroTime": ("long", 7, "bigint", 7),
        ("io.debezium.time.Timestamp",): ("int", 8, "int", 8),  # not a name
    }
    fields = {
        f"c{n}": ["null", {"type": kind, "connect.name": name}] for n, (name, (kind, *_)) in enumerate(names.items())
    }
    fields["c8"] = [{"type": "int", "connect.name": "io.debezium.time.Timestamp"}]  # not of this type
    types = {name: kind for name, (_, _, kind, _) in zip(fields, names.values(), strict=False)} | {"c8": "int"}
    numbers = {name: number for name, (_, number, _, _) in zip(fields, names.values(), strict=False)} | {"c8": 9}
    decoded = decoded_rows(types, fields, numbers)
    assert decoded.rejects == []
    assert values_of(decoded) == [(*[value for *_, value in names.values()], 9)]
    assert values_of(decoded_rows(dict.fromkeys(fields, "bigint"), fields, numbers)) == [tuple(numbers.values())]
    assert columns_of_schemas([read_schema(schema_of(fields)).record]) == columns_of(**types)


def _scaled(text: str, *, size: int = 16) -> dict[str, Any]:
    sign, digits, exponent = Decimal(text).as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    return {"scale": -int(exponent), "value": number.to_bytes(size, "big", signed=True)}


def test_decode_when_decimals_of_debezium_have_a_scale_each_then_they_are_exact_or_rejects() -> None:
    fine = ["0", "1.50", "-7", "12e2", "-1234567.1234", "0e-90", "0e9", "9999999e0", "-99e5", "1.2000000000000000000"]
    bad = ["12e6", "1e7", "0.00001", "1e37", "-1e-76", "1e2147483647", "1e-2147483647", "1e38", "1e-70"]
    fields = {
        "before": "string",
        "price": ["null", SCALED_DECIMAL],
        "after": {"type": "array", "items": SCALED_DECIMAL},
    }
    values: list[dict[str, Any]] = [{"before": "x", "price": _scaled(text), "after": []} for text in (*fine, *bad)]
    values += [{"before": "", "price": None, "after": [_scaled("1.5"), _scaled("2e1")]}]
    values += [{"before": "", "price": None, "after": [_scaled("1"), _scaled("0.5", size=1), _scaled("5e9", size=40)]}]

    decoded = decoded_rows({"price": "decimal(11,4)", "after": "array<decimal(3,1)>"}, fields, *values)

    rows: list[tuple[Any, ...]] = [(Decimal(text), []) for text in fine]
    assert values_of(decoded) == [*rows, (None, [Decimal("1.5"), Decimal("20.0")])]
    assert [reason[:2] for reason in reasons(decoded)] == [
        *((len(fine) + n, "price") for n in range(len(bad))),
        (len(values) - 1, "after"),
    ]
    assert decoded.rejects[0].reason == "1.2E+7 does not fit decimal(11,4) exactly"
    assert decoded.rejects[5].reason == "a decimal of the scale -2147483647 does not fit decimal(11,4) exactly"
    assert decoded.rejects[-1].reason == "[2]: 5E+9 does not fit decimal(3,1) exactly"


_NUMBERS = st.builds(
    lambda number, zeros: number * 10**zeros, st.integers(-(10**39), 10**39) | st.integers(-9, 9), st.integers(0, 110)
)


@pytest.mark.parametrize(("precision", "scale"), [(38, 0), (38, 38), (10, 0), (12, 4)])
@given(pairs=st.lists(st.tuples(_NUMBERS, st.integers(-5, 120)), min_size=1, max_size=5), spare=st.integers(0, 70))
def test_decode_when_decimals_have_up_to_64_bytes_then_they_are_exact_or_rejects(
    precision: int, scale: int, pairs: list[tuple[int, int]], spare: int
) -> None:
    hive = f"decimal({precision},{scale})"
    plain = logical("bytes", "decimal", precision=150, scale=40)

    def stored(number: int, behind: int) -> Decimal | None:
        whole, rest = divmod(number * 10 ** (scale + 5), 10 ** (behind + 5))
        return None if rest or abs(whole) >= 10**precision else Decimal(whole).scaleb(-scale, Context(prec=38))

    values = [
        {"scale": behind, "value": number.to_bytes(number.bit_length() // 8 + 1 + spare, "big", signed=True)}
        for number, behind in pairs
    ]
    scaled = decoded_rows({"d": hive}, {"d": SCALED_DECIMAL}, *({"d": value} for value in values))
    data = [encode(schema_of({"d": "bytes"}), {"d": value["value"]}) for value in values]
    unscaled = decoder_of(schema_of({"d": plain}), columns_of(d=hive)).decode(data)

    for decoded, expected in (
        (scaled, [stored(number, behind) for number, behind in pairs]),
        (unscaled, [stored(number, 40) for number, _ in pairs]),
    ):
        assert [value for (value,) in values_of(decoded)] == [value for value in expected if value is not None]
        assert [row for row, _, _ in reasons(decoded)] == [row for row, value in enumerate(expected) if value is None]


def test_decode_when_a_decimal_of_debezium_has_17_or_more_bytes_then_it_is_exact_or_a_reject_with_the_reason() -> None:
    fine = {(10**45, 40): 100_000, (-(10**39), 39): -1, (10**153, 153): 1}
    bad = {(10**45 + 1, 40): 16, (10**50, 40): 16, (10**45, -3): 16, (10**45, 2**31 - 1): 16, (10**160, 160): 64}
    values = [
        {"scale": behind, "value": number.to_bytes(80 if number > 10**153 else 64, "big", signed=True)}
        for number, behind in (*fine, *bad)
    ]
    values.append({"scale": 0, "value": b"\x01" + bytes(10_000_000)})

    decoded = decoded_rows({"d": "decimal(10,0)"}, {"d": SCALED_DECIMAL}, *({"d": value} for value in values))

    assert values_of(decoded) == [(Decimal(value),) for value in fine.values()]
    why = {16: "does not fit decimal(10,0) exactly", 64: "is not supported"}
    assert [reject.reason for reject in decoded.rejects] == [
        f"a decimal of more than {limit} bytes {why[limit]}" for limit in (*bad.values(), 64)
    ]


def test_decode_when_a_record_is_a_decimal_of_debezium_then_it_can_be_a_struct_too() -> None:
    decoded = decoded_rows(
        {"d": "struct<value:binary,scale:int>"}, {"d": SCALED_DECIMAL}, {"d": _scaled("1.5", size=1)}
    )
    assert values_of(decoded) == [({"value": b"\x0f", "scale": 1},)]
    [reject] = decoded_rows({"d": "double"}, {"d": SCALED_DECIMAL}, {"d": _scaled("1.5")}).rejects
    assert reject.reason == "a value of the Avro type record (decimal with a scale) cannot be stored in double"
    other: dict[str, Any] = SCALED_DECIMAL | {"fields": [*SCALED_DECIMAL["fields"], {"name": "more", "type": "int"}]}
    [reject] = decoded_rows({"d": "decimal(3,1)"}, {"d": other}, {"d": {**_scaled("1.5"), "more": 1}}).rejects
    assert reject.reason == "a value of the Avro type record cannot be stored in decimal(3,1)"
    [record] = columns_of_schemas([read_schema(schema_of({"d": SCALED_DECIMAL, "at": ZONED_TIMESTAMP})).record])[:1]
    assert str(record.type) == "struct<scale:int,value:binary>"


def test_decode_when_timestamps_of_debezium_are_texts_with_a_zone_then_they_are_in_utc_or_rejects() -> None:
    seconds = 1_700_000_000
    fine = {
        "2023-11-14T22:13:20Z": seconds * 10**9,
        "2023-11-14T23:13:20.123456789+01:00": seconds * 10**9 + 123_456_789,
        "2023-11-14T16:43:20.5-05:30": seconds * 10**9 + 500_000_000,
        "1969-12-31T23:59:59.999999999Z": -1,
        "2024-02-29": 1_709_164_800 * 10**9,
        "2024-02-29 00:00": 1_709_164_800 * 10**9,
    }
    bad = ("infinity", "", "2023-02-29T00:00:00Z", "2023-11-14T22:13:20Z ", "0001-01-01T00:00:00+00:01", "x" * 99)
    values = [{"at": text} for text in (*fine, *bad)]
    decoded = decoded_rows({"at": "timestamp"}, {"at": ["null", ZONED_TIMESTAMP]}, *values)
    assert values_of(decoded) == [(Timestamp(nanos),) for nanos in fine.values()]
    assert reasons(decoded) == [
        (
            len(fine) + index,
            "at",
            f"{text!r:.37}{'...' * (len(text) > 40)} is not a timestamp in the years 0001 to 9999",
        )
        for index, text in enumerate(bad)
    ]
    assert values_of(decoded_rows({"at": "string"}, {"at": ZONED_TIMESTAMP}, *values)) == [
        (text,) for text in (*fine, *bad)
    ]


def test_decode_when_dates_and_times_of_debezium_are_texts_of_iso_8601_then_they_are_values_or_rejects() -> None:
    fine = {
        "2026-11-28Z": date(2026, 11, 28),
        "0001-01-01+14:00": date(1, 1, 1),
        "9999-12-31-05": date(9999, 12, 31),
        "2024-02-29": date(2024, 2, 29),
    }
    bad = ("2023-02-29Z", "", "2026-11-28T00:00:00Z", "2026-11-28 Z", "2026-11-28+24:00", "10000-01-01Z", "x" * 99)
    values = [{"day": text} for text in (*fine, *bad)]
    decoded = decoded_rows({"day": "date"}, {"day": ["null", ISO_DATE]}, *values, {"day": None})
    assert values_of(decoded) == [(day,) for day in (*fine.values(), None)]
    assert reasons(decoded) == [
        (len(fine) + index, "day", f"{text!r:.37}{'...' * (len(text) > 40)} is not a date in the years 0001 to 9999")
        for index, text in enumerate(bad)
    ]
    fields = {"at": ISO_TIMESTAMP, "clock": ISO_TIME, "day": ISO_DATE}
    value = {"at": "2026-11-28T01:02:03.000000004Z", "clock": "01:02:03Z", "day": "2026-11-28Z"}
    [(at, clock, day)] = values_of(decoded_rows({"at": "timestamp", "clock": "string", "day": "string"}, fields, value))
    assert (at, clock, day) == (Timestamp(1_795_827_723_000_000_004), "01:02:03Z", "2026-11-28Z")


DAYS = st.dates().map(date.isoformat) | st.sampled_from(["0000-01-01", "2023-02-29", "10000-01-01", "2023-1-1", ""])
CLOCKS = [
    "",
    "T07",
    " 23:59",
    "T07:08:59",
    "T24:00:00",
    "T23:59:60",
    "T00:00:00.",
    " 00:00:00.1",
    "T12:34:56.123456789",
]
CLOCKS += ["T12:34:56.1234567890", "x", "T1:02:03"]
ZONES = ["", "Z", "+00:00", "+23:59", "-14:00", "-0130", "+05", "+24:00", "-12:60", " Z", "z"]


@settings(deadline=None)
@given(texts=st.lists(st.builds("{}{}{}".format, DAYS, st.sampled_from(CLOCKS), st.sampled_from(ZONES)), max_size=9))
def test_decode_when_texts_are_arbitrary_then_timestamps_and_rejects_are_those_of_json(texts: list[str]) -> None:
    columns = columns_of(at="timestamp")
    by_json = JsonOptions().decoder(columns).decode([json.dumps({"at": text}).encode() for text in texts])
    decoded = decoded_rows({"at": "timestamp"}, {"at": ZONED_TIMESTAMP}, *({"at": text} for text in texts))
    assert in_order(decoded, values_of(decoded)) == in_order(by_json, values_of(by_json))
    assert reasons(decoded) == reasons(by_json)


def test_decode_when_timestamps_need_both_units_then_records_are_in_batches_of_each() -> None:
    fields = {"a": logical("long", "timestamp-nanos"), "b": logical("long", "timestamp-millis")}
    year_9000 = 221_845_392_000_000
    values = [{"a": 1, "b": 2}, {"a": 1000, "b": year_9000}, {"a": 1, "b": year_9000}, {"a": 0, "b": 2**60}]

    decoded = decoded_rows({"a": "timestamp", "b": "timestamp"}, fields, *values)

    stored = [batch.column(0).to_numpy(zero_copy_only=False).astype("M8[ns]").tolist() for batch in decoded.batches]
    assert stored == [[1], [1000]]
    assert [str(batch.schema.field("b").type) for batch in decoded.batches] == ["timestamp[ns]", "timestamp[us]"]
    assert [reason[:2] for reason in reasons(decoded)] == [(2, "a"), (3, "b")]
    assert "is not a timestamp in the years 0001 to 9999" in decoded.rejects[1].reason


def test_decode_when_schemas_are_interleaved_then_rows_keep_their_order() -> None:
    old, new = schema_of({"id": "int"}), schema_of({"name": ["null", "string"], "id": "long"})
    written = [(old, {"id": n}) if n % 3 else (new, {"id": n, "name": f"n{n}"}) for n in range(50)]
    records = [single_object(schema, encode(schema, value)) for schema, value in written]
    records[10:12] = [b"\xc3\x01" + bytes(8), b"\xc3"]
    options = AvroOptions(framing="single_object", schemas=(old, new))

    decoded = options.decoder(columns_of(id="bigint", name="string")).decode(records)

    assert rows_of(decoded) == [{"id": n, "name": None if n % 3 else f"n{n}"} for n in range(50) if n not in (10, 11)]
    assert reasons(decoded) == [
        (10, "", "format.schemas has no schema with the fingerprint 0000000000000000"),
        (11, "", "record does not begin with the header of the framing single_object"),
    ]


def test_single_object_when_schema_is_canonical_then_fingerprint_is_its_checksum() -> None:
    schema = '{"name":"r","type":"record","fields":[{"name":"a","type":"int"}]}'
    assert single_object(schema, b"").hex() == "c301" + struct.pack("<Q", read_schema(schema).fingerprint).hex()
    assert read_schema(schema).fingerprint == crc64(schema.encode())


def crc64(data: bytes) -> int:
    """The function of the Avro specification, section Schema Fingerprints, bit by bit."""
    found = empty = 0xC15D213AA4D7A795
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (empty if found & 1 else 0)
    return found


def schema_with(field: str) -> str:
    return f'{{"type":"record","name":"r","fields":[{field}]}}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not JSON: "),
        (schema_with('{"name":"a","type":"r"}'), "it is not an Avro schema: a record always contains itself"),
        (
            schema_with('{"name":"a","type":{"type":"record","name":"s","fields":[{"name":"b","type":"r"}]}}'),
            "it is not an Avro schema: a record always contains itself",
        ),
        (schema_with('{"name":"a","type":"int"},{"name":"a","type":"int"}'), "it is not an Avro schema: r has two"),
        (schema_with('{"name":5,"type":"int"}'), "it is not an Avro schema: a name is 5"),
        (schema_with('{"name":"a","type":"int","aliases":[5]}'), "it is not an Avro schema: a name is 5"),
        *(
            (
                schema_with(f'{{"name":"a","type":{{"type":"fixed","name":"f","size":{size}}}}}'),
                "it is not an Avro schema: the size of a fixed is ",
            )
            for size in ("-5", '"5"', "5.5", "1" + "0" * 30)
        ),
        (
            schema_with('{"name":"a","type":' + '{"type":"array","items":' * 2000 + '"int"' + "}" * 2001),
            "its types nest too deeply",
        ),
        ('{"type":"record"}', "it is not an Avro schema: "),
        ('{"type":"record","name":"r","fields":[{"name":"a","type":"x"}]}', "it is not an Avro schema: "),
        ('"string"', "its values are not records"),
        ('["null",{"type":"record","name":"r","fields":[]}]', "its values are not records"),
    ],
)
def test_schema_when_it_is_unusable_then_error_tells_why(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=f"^{reason}"):
        read_schema(text)


_ODD_NAMES = ("a\nb", "a b", "\x1b[31m", "a`b", "", "\ud800", "\u202e", "x" * 1_000 + "\t")


@pytest.mark.parametrize("name", _ODD_NAMES)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "r", "fields": [{"name": "?", "type": "int"}]},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "aliases": ["?"]}]},
        {"type": "record", "name": "?", "fields": [{"name": "a", "type": "int"}]},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": "?"}]},
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "a", "type": {"type": "enum", "name": "e", "symbols": ["?"]}}],
        },
    ],
    ids=["field", "alias", "record", "unknown", "symbol"],
)
def test_schema_when_a_name_has_odd_characters_then_refused_with_a_text_that_can_be_printed(
    schema: dict[str, Any], name: str
) -> None:
    text = json.dumps(schema).replace('"?"', json.dumps(name))
    with pytest.raises(InvalidSchema, match=r"^it is not an Avro schema: ") as caught:
        read_schema(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_schema_when_names_have_characters_that_do_no_harm_then_it_is_read() -> None:
    fields = [{"name": "user-id", "type": "int"}, {"name": "größe", "type": "int"}]
    record = read_schema(json.dumps({"type": "record", "name": "Outer$Inner", "namespace": "a.b$", "fields": fields}))
    assert [field.name for field in record.record.fields] == ["user-id", "größe"]


@pytest.mark.parametrize(
    ("kind", "default", "hive"),
    [
        ({"type": "double"}, 0, "double"),  # valid by the specification
        ("string", None, "string"),
        ({"type": "array", "items": "double"}, None, "array<double>"),
        ({"type": "double"}, "NaN", "double"),
    ],
)
def test_decode_when_default_of_the_schema_is_unusual_then_records_are_read(kind: Any, default: Any, hive: str) -> None:
    fields = [{"name": "a", "type": kind, "default": default}, {"name": "n", "type": "int"}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    plain = schema_of({"a": kind, "n": "int"})
    value = {"a": {"double": 1.5, "string": "x"}.get(hive, [2.5]), "n": 7}

    decoded = decoder_of(schema, columns_of(a=hive, n="int")).decode([encode(plain, value)])

    assert rows_of(decoded) == [value]


@pytest.mark.parametrize(
    "invalid",
    [
        {"type": "bytes", "precision": 4, "scale": 6},
        {"type": "bytes", "precision": "4"},
        {"type": "bytes", "precision": -1},
        {"type": "fixed", "name": "f", "size": 2, "precision": 9},
    ],
)
def test_decode_when_decimal_is_not_valid_then_is_its_underlying_type(invalid: dict[str, Any]) -> None:
    fields = [{"name": "a", "type": {**invalid, "logicalType": "decimal"}}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    plain = schema_of({"a": {key: invalid[key] for key in ("type", "size") if key in invalid}})

    decoded = decoder_of(schema, columns_of(a="binary")).decode([encode(plain, {"a": b"xy"})])

    assert rows_of(decoded) == [{"a": b"xy"}]


@pytest.mark.parametrize("kind", ["int", "double", "null"])
def test_decode_when_a_short_schema_has_more_fields_than_any_record_then_records_end_at_once(kind: str) -> None:
    nested: object = {"type": "record", "name": "r0", "fields": [{"name": "v", "type": kind}]}
    for level in range(1, 70):
        fields = [{"name": "a", "type": nested}, {"name": "b", "type": f"r{level - 1}"}]
        nested = {"type": "record", "name": f"r{level}", "fields": fields}
    fields = [{"name": "id", "type": "int"}, {"name": "wide", "type": nested}]
    schema = json.dumps({"type": "record", "name": "row", "fields": fields})
    for columns in (columns_of(id="int"), columns_of(id="int", wide="struct<a:struct<v:int>>")):
        decoded = decoder_of(schema, columns).decode([b"\x0a", b"\x0a" + bytes(99)] * 20)
        ends = {reason.partition(" in wide")[0] for _, _, reason in reasons(decoded)}
        if kind == "null":
            assert ends == {"record does not match its Avro schema: there is data after the record"}
            assert decoded.rows == 20
        else:
            assert ends == {"record does not match its Avro schema: the record ends"}
