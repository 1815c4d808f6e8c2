"""Protobuf messages: presence, oneofs, well-known types, groups and hostile input become rows or rejects."""

from __future__ import annotations

import json
import tracemalloc
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

from tests.support.decoding import columns_of, reasons, rows_of
from tests.support.protobuf import Field, class_of, decoder_of, file_of, message

WRONG = "record does not match its Protobuf schema:"


def row_file(*fields: Field, syntax: str = "proto3", **enums: dict[str, int]) -> FileDescriptorProto:
    return file_of(message("Row", fields, syntax=syntax), syntax=syntax, **enums)


def parsed(file: FileDescriptorProto, **values: Any) -> bytes:
    made: bytes = class_of(file)(**values).SerializeToString()
    return made


@pytest.mark.parametrize("count", [1, 40])
def test_decode_when_fields_are_absent_then_those_with_presence_are_null_and_others_have_defaults(count: int) -> None:
    file = row_file(
        Field("i", 1, "int32"),
        Field("s", 2, "string"),
        Field("o", 3, "int32", "optional"),
        Field("m", 4, ".google.protobuf.Int32Value"),
        Field("a", 5, "int32", oneof="x"),
        Field("b", 6, "string", oneof="x"),
        Field("r", 7, "int32", "repeated"),
        Field("k", 8, "int32", key="string"),
        Field("e", 9, ".shop.Size", is_enum=True),
        Size={"SMALL": 0, "LARGE": 5},
    )
    columns = columns_of(
        i="int",
        s="string",
        o="int",
        m="int",
        a="int",
        b="string",
        r="array<int>",
        k="map<string,int>",
        e="string",
        other="date",
    )
    full = parsed(file, i=1, s="x", o=0, m={"value": 0}, a=0, r=[1, -2], k={"q": 3}, e=5)

    decoded = decoder_of(file, columns).decode([b"", full] * count)

    none = {"o": None, "m": None, "a": None, "b": None, "other": None}
    empty: dict[str, Any] = {"i": 0, "s": "", **none, "r": [], "k": [], "e": "SMALL"}
    filled = {"i": 1, "s": "x", "o": 0, "m": 0, "a": 0, "b": None, "r": [1, -2], "k": [("q", 3)], "e": "LARGE"}
    assert rows_of(decoded) == [empty, {**filled, "other": None}] * count


def test_decode_when_schema_is_proto2_then_absent_fields_are_null_or_have_the_default_of_the_schema() -> None:
    file = row_file(
        Field("a", 1, "int32"),
        Field("b", 2, "int32", default="7"),
        Field("c", 3, "string", default="é"),
        Field("d", 4, ".shop.Size", default="LARGE", is_enum=True),
        Field("e", 5, ".shop.Size", is_enum=True),
        Field("f", 6, "double", "required"),
        syntax="proto2",
        Size={"SMALL": 0, "LARGE": 5},
    )
    columns = columns_of(a="int", b="tinyint", c="string", d="string", e="int", f="double")
    unknown_number = bytes([8, 1, 0x20, 9, 0x28, 9])

    decoded = decoder_of(file, columns).decode([b"", unknown_number])

    absent = {"a": None, "b": 7, "c": "é", "d": "LARGE", "e": None, "f": None}
    assert rows_of(decoded) == [absent, {**absent, "a": 1}]


def test_decode_when_fields_are_repeated_in_a_message_then_last_wins_and_messages_are_merged() -> None:
    inner = message("Inner", [Field("a", 1, "int32", "optional"), Field("r", 2, "int32", "repeated")])
    file = file_of(
        message(
            "Row",
            [
                Field("n", 1, "int32"),
                Field("m", 2, ".shop.Inner"),
                Field("x", 3, ".shop.Inner", oneof="o"),
                Field("y", 4, "int32", oneof="o"),
            ],
        ),
        inner,
    )
    columns = columns_of(n="int", m="struct<a:int,r:array<int>>", x="struct<a:int>", y="int")
    first, second = bytes([8, 1, 16, 5]), bytes([16, 6])

    def block(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    records = [
        bytes([8, 1]) + block(2, first) + bytes([8, 2]) + block(2, second),
        block(3, first) + bytes([0x20, 9]),
        block(3, first) + bytes([0x20, 9]) + block(3, second),
        block(3, first) + block(3, second),
    ]

    decoded = decoder_of(file, columns).decode(records * 20)

    none = {"n": 0, "m": None, "x": None, "y": None}
    assert (
        rows_of(decoded)
        == [
            {**none, "n": 2, "m": {"a": 1, "r": [5, 6]}},
            {**none, "y": 9},
            {**none, "x": {"a": None}},
            {**none, "x": {"a": 1}},
        ]
        * 20
    )


@pytest.mark.parametrize("count", [1, 100])
def test_decode_when_a_replaced_member_of_a_oneof_is_malformed_then_rejected_as_by_googles_parser(count: int) -> None:
    deep = message("Deep", [Field("a", 1, "int32"), Field("at", 2, ".google.protobuf.Timestamp")])
    inner = message("Inner", [Field("deep", 1, ".shop.Deep"), Field("deeps", 2, ".shop.Deep", "repeated")])
    members = [Field("x", 1, ".shop.Inner", oneof="o"), Field("y", 2, "int32", oneof="o")]
    file = file_of(message("Row", members), inner, deep)
    decoder = decoder_of(
        file, columns_of(x="struct<deep:struct<a:int,at:timestamp>,deeps:array<struct<a:int>>>", y="int")
    )
    # A valid member, and others that end inside a field: of Inner, of Deep, of an item, and of the timestamp.
    contents = [b"\x0a\x02\x08\x05", b"\x0a", b"\x0a\x01\x08", b"\x12\x01\x08", b"\x0a\x03\x12\x01\x08"]
    records = [bytes([0x0A, len(content)]) + content + b"\x10\x07" for content in contents]

    decoded = decoder.decode(records * count)

    assert rows_of(decoded) == [{"x": None, "y": 7}] * count
    ends = f"{WRONG} the message ends in x"
    places = ["", ".deep", ".deeps[0]", ".deep.at"]
    assert reasons(decoded) == [
        (5 * number + index, "", f"{ends}{place}") for number in range(count) for index, place in enumerate(places, 1)
    ]
    for record in records[1:]:
        with pytest.raises(DecodeError):
            class_of(file).FromString(record)


def test_decode_when_empty_messages_would_be_many_values_then_record_is_rejected_and_they_are_not_read() -> None:
    wide = [Field(f"x{number}", number, "int64") for number in range(1, 2_001)]
    fields = [Field("g", 1, ".shop.Wide", "repeated"), Field("m", 2, ".shop.Wide", key="int32")]
    file = file_of(message("Row", fields), message("Wide", wide))
    struct = f"struct<{','.join(f'{field.name}:bigint' for field in wide)}>"
    few = b"\x0a\x02\x08\x05\x12\x00"
    decoder = decoder_of(file, columns_of(g=f"array<{struct}>", m=f"map<int,{struct}>"))

    decoded = decoder.decode([few, b"\x0a\x00" * 10_000, few, b"\x12\x00" * 10_000])

    reason = "arrays and maps of the record have more than 16,777,216 values, most of which are empty"
    assert reasons(decoded) == [(1, "g", reason), (3, "m", reason)]
    assert [row["g"][0]["x1"] for row in rows_of(decoded)] == [5, 5]


@pytest.mark.parametrize("kind", ["int32", "sint64", "fixed32", "double", "bool"])
def test_decode_when_arrays_are_packed_or_not_then_items_are_equal(kind: str) -> None:
    file, unpacked = (row_file(Field("r", 1, kind, "repeated")) for _ in range(2))
    unpacked.message_type[0].field[0].options.packed = False
    hive = {"double": "double", "bool": "boolean"}.get(kind, "bigint")
    values = [1, 0] * 150 if kind == "bool" else list(range(300))
    records = [parsed(definition, r=values) for definition in (file, unpacked)]
    assert len(records[1]) > len(records[0])

    decoded = decoder_of(file, columns_of(r=f"array<{hive}>")).decode([*records, records[0] + records[1]] * 30)

    assert [row["r"] == values * (1 + place % 3 // 2) for place, row in enumerate(rows_of(decoded))] == [True] * 90


def test_decode_when_messages_are_well_known_then_values_have_their_meaning() -> None:
    names = {"t": "Timestamp", "d": "Duration", "s": "Struct", "v": "Value", "l": "ListValue", "w": "UInt64Value"}
    fields = [Field(name, place, f".google.protobuf.{kind}") for place, (name, kind) in enumerate(names.items(), 1)]
    file = row_file(*fields, Field("ws", 7, ".google.protobuf.StringValue", "repeated"))
    columns = columns_of(
        t="timestamp",
        d="string",
        s="string",
        v="string",
        l="varchar(20)",
        w="decimal(20,0)",
        ws="array<string>",
    )
    struct_value = {"a": 1, "b": [None, True, "é"]}
    full = class_of(file)(t={"seconds": -1, "nanos": 5}, d={"seconds": 3, "nanos": 500_000_000}, w={"value": 2**64 - 1})
    full.s.update(struct_value)
    full.v.null_value = 0
    full.l.extend([1.5, "x"])
    full.ws.add(value="a")
    full.ws.add()
    not_finite = class_of(file)()
    not_finite.v.number_value = float("nan")

    decoded = decoder_of(file, columns).decode([full.SerializeToString(), b"", not_finite.SerializeToString()])

    [batch] = decoded.batches
    assert batch.column("t").cast("int64").to_pylist() == [-999_999_995, None]
    [first, second] = rows_of_without(decoded.batches[0], "t")
    assert json.loads(first.pop("s")) == struct_value
    assert second.pop("s") is None
    assert first == {
        "d": "3.500s",
        "v": "null",
        "l": '[1.5,"x"]',
        "w": Decimal(2**64 - 1),
        "ws": ["a", ""],
    }
    assert second == dict.fromkeys(first) | {"ws": []}
    [(row, column, reason)] = reasons(decoded)
    assert (row, column) == (2, "v")
    assert reason.startswith("a google.protobuf.Value has no JSON text: ")


def rows_of_without(batch: Any, column: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.drop_columns([column]).to_pylist()
    return found


def test_decode_when_timestamps_need_both_units_then_records_are_in_batches_of_each() -> None:
    file = row_file(*(Field(name, place, ".google.protobuf.Timestamp") for name, place in (("a", 1), ("b", 2))))
    year_9000 = int(datetime(9000, 1, 1, tzinfo=timezone.utc).timestamp())
    last, first = {"seconds": 9_223_372_036, "nanos": 854_775_807}, {"seconds": -9_223_372_037, "nanos": 145_224_193}
    values: list[dict[str, Any]] = [
        {"a": last, "b": first},
        {"a": {"nanos": 1000}, "b": {"seconds": year_9000}},
        {"a": {"nanos": 1}, "b": {"seconds": year_9000}},
        {"a": {"nanos": -1}},
        {"a": {"seconds": 2**60}},
    ]

    decoded = decoder_of(file, columns_of(a="timestamp", b="timestamp")).decode([parsed(file, **v) for v in values])

    assert [str(batch.schema.field("b").type) for batch in decoded.batches] == ["timestamp[ns]", "timestamp[us]"]
    assert [batch.column("a").cast("int64").to_pylist() for batch in decoded.batches] == [[2**63 - 1], [1]]
    assert decoded.batches[0].column("b").cast("int64").to_pylist() == [-(2**63) + 1]
    assert [reject[:2] for reject in reasons(decoded)] == [(2, "a"), (3, "a"), (4, "a")]
    assert reasons(decoded)[1][2] == "0 s and -1 ns is not a timestamp in the years 0001 to 9999"


def test_decode_when_value_does_not_fit_then_reason_has_its_path() -> None:
    item = message("Item", [Field("q", 1, "int32"), Field("u", 2, "uint64"), Field("s", 3, "string")])
    file = file_of(
        message("Row", [Field("n", 1, "int64"), Field("items", 2, ".shop.Item", "repeated"), Field("d", 3, "bool")]),
        item,
    )
    types = {"n": "tinyint", "items": "array<struct<q:smallint,u:bigint,s:varchar(3)>>", "d": "boolean"}
    values: list[dict[str, Any]] = [
        {"n": 128},
        {"n": -128},
        {"items": [{"q": 1}, {"q": -40_000}]},
        {"items": [{"u": 2**63}]},
        {"items": [{"s": "four"}]},
    ]

    decoded = decoder_of(file, columns_of(**types)).decode([parsed(file, **value) for value in values])

    assert len(rows_of(decoded)) == 1
    assert reasons(decoded) == [
        (0, "n", "128 is out of range for tinyint"),
        (2, "items", "[1].q: -40000 is out of range for smallint"),
        (3, "items", "[0].u: 9223372036854775808 is out of range for bigint"),
        (4, "items", "[0].s: text of 4 characters is longer than varchar(3)"),
    ]


def test_decode_when_column_cannot_store_the_type_then_only_absent_values_are_null() -> None:
    file = row_file(Field("a", 1, "int32", "optional"))
    decoded = decoder_of(file, columns_of(a="date")).decode([b"", bytes([8, 1])])

    assert rows_of(decoded) == [{"a": None}]
    assert reasons(decoded) == [(1, "a", "a value of the Protobuf type int32 cannot be stored in date")]


def test_decode_when_fields_are_groups_then_they_are_read_and_skipped_with_a_limited_depth() -> None:
    item = message("Item", [Field("a", 1, "int32")], syntax="proto2")
    row = message(
        "Row", [Field("g", 2, ".shop.Item", "repeated", is_group=True), Field("n", 3, "int32")], syntax="proto2"
    )
    file = file_of(row, item, syntax="proto2")
    known = bytes([0x13, 8, 5, 0x14, 0x13, 0x14, 0x18, 7])
    unknown = bytes([0x2B, 0x33, 0x34, 0x2C, 0x18, 8])
    deep = bytes([0x2B] * 5000 + [0x2C] * 5000)

    decoded = decoder_of(file, columns_of(g="array<struct<a:int>>", n="int")).decode([known, unknown, deep] * 30)

    rows = [{"g": [{"a": 5}, {"a": None}], "n": 7}, {"g": [], "n": 8}]
    assert rows_of(decoded) == rows * 30
    assert {reason for _, _, reason in reasons(decoded)} == {f"{WRONG} groups nest deeper than 100 levels"}


def test_decode_when_groups_begin_at_different_fields_then_each_is_in_its_own_record() -> None:
    item = message("Item", [Field("x", 1, "int32")], syntax="proto2")
    row = message(
        "Row", [Field("a", 1, "int32"), Field("g", 2, ".shop.Item", "repeated", is_group=True)], syntax="proto2"
    )
    decoder = decoder_of(file_of(row, item, syntax="proto2"), columns_of(a="int", g="array<struct<x:int>>"))
    values = [(b"\x08\x05" if number % 2 else b"") + bytes([0x13, 0x08, number, 0x14]) for number in range(127)]
    assert [row["g"] for row in rows_of(decoder.decode(values))] == [[{"x": number}] for number in range(127)]


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x08", "the message ends"),
        (b"\x08" + b"\x80" * 9 + b"\x80\x01", "an integer has more than 10 bytes"),
        (b"\x00\x01", "a tag is invalid"),
        (b"\x0e", "a tag is invalid"),
        (b"\x0c", "a tag is invalid"),
        (b"\x88\x80\x80\x80\x80\x00\x01", "a tag is invalid"),
        (b"\x12\x05abc", "the message ends"),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a length is invalid"),
        (b"\x12\xff\xff\xff\xff\x07", "the message ends"),
        (b"\x1a\x03\x08\x01\x10", "the message ends in m"),
        (b"\x22\x02\x08\x80", "a packed field ends inside a value in r"),
        (b"\x2a\x03abc", "a packed field ends inside a value in f"),
        (b"\x0b\x08\x01", "the message ends"),
    ],
)
def test_decode_when_message_is_malformed_then_only_its_record_is_rejected(
    value: bytes, reason: str, count: int
) -> None:
    inner = message("Inner", [Field("a", 1, "int32")])
    row = message(
        "Row",
        [
            Field("n", 1, "int32"),
            Field("s", 2, "string"),
            Field("m", 3, ".shop.Inner"),
            Field("r", 4, "int32", "repeated"),
            Field("f", 5, "float", "repeated"),
        ],
    )
    columns = columns_of(n="int", s="string", m="struct<a:int>", r="array<int>", f="array<float>")

    decoded = decoder_of(file_of(row, inner), columns).decode([b"\x08\x07", value, b"\x08\x08"] * count)

    assert [found["n"] for found in rows_of(decoded)] == [7, 8] * count
    assert reasons(decoded) == [(3 * index + 1, "", f"{WRONG} {reason}") for index in range(count)]


def test_decode_when_text_is_not_utf8_then_record_is_rejected_with_its_column() -> None:
    file = row_file(Field("s", 1, "string"))
    decoded = decoder_of(file, columns_of(s="string")).decode([b"\x0a\x02\xc3\xa9", b"\x0a\x01\xff"])
    assert rows_of(decoded) == [{"s": "é"}]
    assert reasons(decoded) == [(1, "s", "the text is not UTF-8")]


def test_decode_when_integers_are_at_their_limits_then_they_are_exact() -> None:
    kinds = {"int32": -(2**31), "int64": -(2**63), "sint32": -(2**31), "sint64": -(2**63), "uint32": 2**32 - 1}
    kinds |= {
        "fixed32": 2**32 - 1,
        "fixed64": 2**63 - 1,
        "sfixed32": -(2**31),
        "sfixed64": -(2**63),
        "uint64": 2**63 - 1,
    }
    file = row_file(*(Field(f"f_{kind}", place, kind) for place, kind in enumerate(kinds, 1)))
    values = {f"f_{kind}": value for kind, value in kinds.items()}

    decoded = decoder_of(file, columns_of(**dict.fromkeys(values, "bigint"))).decode([parsed(file, **values)] * 70)

    assert rows_of(decoded) == [values] * 70


def test_decode_when_map_repeats_a_key_then_the_last_value_wins_and_absent_parts_have_defaults() -> None:
    file = row_file(Field("m", 1, ".google.protobuf.Int64Value", key="int32"))
    entries = bytes([10, 6, 8, 1, 18, 2, 8, 5]) + bytes([10, 2, 8, 1]) + bytes([10, 4, 18, 2, 8, 9])

    decoded = decoder_of(file, columns_of(m="map<int,bigint>")).decode([entries])

    assert rows_of(decoded) == [{"m": [(1, 0), (0, 9)]}]


def test_decode_when_names_differ_in_case_then_fields_are_found() -> None:
    file = row_file(Field("UserId", 1, "int64"), Field("userid2", 2, "int64"), Field("USERID2", 3, "int64"))
    record = parsed(file, UserId=1, userid2=2, USERID2=3)
    assert rows_of(decoder_of(file, columns_of(userid="int", userid2="int")).decode([record])) == [
        {"userid": 1, "userid2": 2}
    ]


def test_decode_when_fields_are_many_and_interleaved_then_all_are_found() -> None:
    file = row_file(*(Field(f"f{number}", number, "int32", "optional") for number in range(1, 61)))
    records = [
        parsed(file, **{f"f{number}": number * record for number in range(1, 61) if (number * 7 + record) % 3})
        for record in range(300)
    ]
    decoded = decoder_of(file, columns_of(f1="int", f30="int", f60="int")).decode(records)
    assert rows_of(decoded) == [
        {f"f{number}": number * record if (number * 7 + record) % 3 else None for number in (1, 30, 60)}
        for record in range(300)
    ]


def test_decode_when_one_message_has_many_fields_then_they_are_read_in_linear_time() -> None:
    file = row_file(Field("r", 1, "int32", "repeated"), Field("n", 2, "int32"))
    decoded = decoder_of(file, columns_of(r="array<int>", n="int")).decode([b"\x08\x05" * 50_000, b"\x10\x01"] * 2)
    assert [(len(row["r"]), row["n"]) for row in rows_of(decoded)[:2]] == [(50_000, 0), (0, 1)]


def test_decode_when_one_message_has_many_fields_then_memory_is_limited() -> None:
    file = row_file(Field("r", 1, "int32", "repeated"))
    decoder, count = decoder_of(file, columns_of(r="array<int>")), 60_000
    decoder.decode([b"\x08\x05"])  # imports modules
    tracemalloc.start()
    try:
        decoded = decoder.decode([b"\x08\x05" * count])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(row["r"]) for row in rows_of(decoded)] == [count]
    assert peak / count < 160  # bytes per field: the arrays, a copy of them and what they are made of
