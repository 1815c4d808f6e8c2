"""JSON records: the value of each column, and the same result for batches as for single records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from itertools import compress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ingestd.formats import DecodeResult, JsonDecoder, Reject
from ingestd.formats.decoder import RejectError
from ingestd.formats.json.arrow_reader import ArrowReader
from ingestd.formats.json.record import RecordReader
from ingestd.formats.record_decoder import NotColumnar
from ingestd.formats.row_batches import TimestampUnits
from tests.support.decoding import columns_of, in_order

TYPES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,20)", "string",
    "varchar(5)", "char(5)", "binary", "date", "timestamp",
]  # fmt: skip


def one(type_text: str, text: str) -> Any:
    """Decode one JSON text in a column of this type; return its value, or 'reject'."""
    decoded = JsonDecoder(columns_of(c=type_text)).decode([b'{"c":' + text.encode() + b"}"])
    if decoded.rejects:
        assert decoded.rejects[0].column == "c"
        return "reject"
    return decoded.batches[0].column(0)[0].as_py()


@pytest.mark.parametrize(
    ("type_text", "text", "expected"),
    [
        ("int", "5", 5), ("int", "5.0", 5), ("int", "1e3", 1000), ("int", '"5"', 5), ("int", "5.5", "reject"),
        ("int", "2147483648", "reject"), ("int", '""', "reject"), ("int", '" 5"', "reject"), ("int", "true", "reject"),
        ("int", '"0x10"', "reject"), ("int", "[5]", "reject"), ("int", "1e999999999", "reject"), ("int", "null", None),
        ("int", '"5e-99999999999999999999"', "reject"), ("int", "0e99", 0), ("int", '"1_0"', "reject"),
        ("tinyint", "-128", -128), ("tinyint", "128", "reject"), ("bigint", "-9223372036854775808", -(2**63)),
        ("bigint", "9223372036854775808", "reject"), ("bigint", "9223372036854775807.0", 2**63 - 1),
        ("double", "0.1", 0.1), ("double", '"0.1"', 0.1), ("double", '"NaN"', "nan"), ("double", '"-Infinity"', -1e999),
        ("double", "1e400", "reject"), ("double", '"1e400"', "reject"), ("double", '"nan"', "reject"),
        ("float", "0.5", 0.5), ("float", "3.5e38", "reject"), ("float", '"3.5e38"', "reject"),
        ("boolean", "true", True), ("boolean", '"FALSE"', False), ("boolean", "1", "reject"),
        ("boolean", '"yes"', "reject"),
        ("decimal(10,1)", "12.50", Decimal("12.5")), ("decimal(10,2)", "12.345", "reject"),
        ("decimal(10,2)", "123456789.1", "reject"), ("decimal(10,2)", "12345678.1", Decimal("12345678.10")),
        ("decimal(10,2)", "1e2", Decimal("100.00")), ("decimal(10,2)", '"-0.010"', Decimal("-0.01")),
        ("decimal(38,19)", "1e-19", Decimal("1e-19")), ("decimal(10,2)", "1e-19", "reject"),
        ("decimal(10,0)", "1e-39", "reject"), ("decimal(10,0)", "1E-75", "reject"),
        ("decimal(10,0)", '"1e-39"', "reject"),
        ("decimal(38,20)", "1.7205955712238422e-79", "reject"), ("decimal(10,0)", "0." + "0" * 80 + "1", "reject"),
        ("decimal(10,0)", f'"0.{"0" * 40}1"', "reject"), ("decimal(10,0)", "0." + "0" * 29 + "1e-9", "reject"),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)), ("decimal(38,0)", "9" * 39, "reject"),
        ("decimal(38,18)", "12345678901234567890.123456789012345678",
        Decimal("12345678901234567890.123456789012345678")),
        ("string", '"a\\u0000\\ud83d\\ude00"', "a\0😀"), ("string", "1.50", "1.50"), ("string", "true", "true"),
        ("string", '{"a": [1, "x", null, 1.0]}', '{"a":[1,"x",null,1.0]}'), ("string", '"\\ud800"', "reject"),
        ("varchar(3)", '"äöü"', "äöü"), ("varchar(3)", '"abcd"', "reject"), ("varchar(3)", '"abc "', "reject"),
        ("char(3)", '"abc   "', "abc"), ("char(3)", '"abcd"', "reject"),
        ("char(3)", '"a\\u00a0\\u00a0\\u00a0"', "reject"),
        ("binary", '"AAH/"', b"\0\x01\xff"), ("binary", '"AAH"', b"AAH"), ("binary", '"a b="', b"a b="),
        ("binary", '""', b""), ("binary", "5", "reject"),
        ("date", '"2026-11-21"', date(2026, 11, 21)), ("date", '"0001-01-01"', date(1, 1, 1)),
        ("date", '"0000-01-01"', "reject"), ("date", '"2026-02-30"', "reject"), ("date", '"2026-1-1"', "reject"),
        ("date", '"2026-11-21 00:00:00"', "reject"), ("date", "20000", "reject"),
        ("timestamp", '"2026-11-21T10:00:00.123"', datetime(2026, 11, 21, 10, 0, 0, 123000)),
        ("timestamp", '"2026-11-21 10:00"', datetime(2026, 11, 21, 10)),
        ("timestamp", '"2026-11-21"', datetime(2026, 11, 21)),
        ("timestamp", '"2026-11-21T10:00:00Z"', datetime(2026, 11, 21, 10)),
        ("timestamp", '"2026-11-21T10:00:00+0230"', datetime(2026, 11, 21, 7, 30)),
        ("timestamp", '"2026-11-21T10:00:00-02:30"', datetime(2026, 11, 21, 12, 30)),
        ("timestamp", '"9999-12-31T23:59:59.999999"', datetime(9999, 12, 31, 23, 59, 59, 999999)),
        ("timestamp", '"0001-01-01 00:00:00"', datetime(1, 1, 1)), ("timestamp", '"0000-01-01 00:00:00"', "reject"),
        ("timestamp", '"0001-01-01T00:00:00+01:00"', "reject"), ("timestamp", '"9999-12-31T23:59:59-01:00"', "reject"),
        ("timestamp", '"9999-12-31T23:59:59.9999999"', "reject"), ("timestamp", "1700000000", "reject"),
        ("timestamp", '"2026-11-21T10:00:00.1234567891"', "reject"), ("timestamp", '"2026-11-21T24:00:00"', "reject"),
        ("timestamp", '"2026-11-21T10:00:60"', "reject"), ("timestamp", '"2026-11-21T10:00:00+24:00"', "reject"),
        ("timestamp", '"now"', "reject"), ("timestamp", '""', "reject"),
    ],
)  # fmt: skip
def test_decode_when_record_has_one_value_then_is_exact_or_rejected(
    type_text: str, text: str, expected: object
) -> None:
    value = one(type_text, text)
    assert (str(value) if expected == "nan" else value) == expected


def test_decode_when_timestamp_has_nanoseconds_then_keeps_them() -> None:
    decoded = JsonDecoder(columns_of(c="timestamp")).decode([b'{"c":"2026-11-21T10:00:00.123456789"}'])
    assert decoded.batches[0].column(0).cast(pa.int64())[0].as_py() % 10**9 == 123456789


@pytest.mark.parametrize(
    "value",
    [
        b"", b" ", b"null", b"5", b"[]", b'"x"', b"{", b"}", b"{} {}", b"{}null{}", b"{}null", b"null{}",
        b"{}\nnull\n{}",
        b"{}x", b'{"id":1,}', b"{'id':1}", b'{"id":NaN}', b'{"x":NaN}', b'{"x":[-Infinity]}', b'{"x":Inf}',
        b'{"x":"\xff"}', b'{"x":"\xed\xa0\x80"}', b'{"x":"a\nb"}', b'{"x":"a\tb"}',
        b'{"x":01}',
        b'{"id":1}\x00', b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' + b'{"x":' * 300 + b"1" + b"}" * 301,
        b"{}{}", b"{}\n{}", b"{}\r{}", b"{}//", b'{"x":tru}', b'{"x":+1}', b'{"x":.5}', b"\xff\xfe{\0}\0",
    ],
)  # fmt: skip
def test_decode_when_value_is_not_one_json_object_then_rejects_only_that_record(value: bytes) -> None:
    decoded = JsonDecoder(columns_of(id="int")).decode([b'{"id":1}', value, b'{"id":3}'])
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(1, "")]
    assert decoded.rejects[0].head == value[:80]
    assert ids(decoded) == [1, 3]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"ID":7}', 7), (b'{"id":1,"ID":7}', 7), (b'{"ID":7,"id":1}', 1), (b'{"id":1,"Id":2,"id":7}', 7),
        (b'{"id":1,"id":null}', None), (b'{"\\u0069d":7}', 7), (b'{"\\u0049D":7}', 7), (b'{"x":{"id":7}}', None),
        (b'{"x":{"ID":7},"id":1}', 1), (b'{"x":"\\"ID\\":","id":1}', 1), (b'{\n"id"\n:\r\n7\n}', 7), (b" {} ", None),
        (b'{"x":1e999,"id":1}', 1), (b'{"x":"\\ud800","id":1}', 1), (b'{"x":"a null { b NaN","id":1}', 1),
        (b'{"x":' + b"[" * 150 + b"]" * 150 + b',"id":1}', 1), (b'{"x":"' + b"[" * 5000 + b'","id":1}', 1),
    ],
)  # fmt: skip
def test_decode_when_names_or_spacing_are_unusual_then_finds_the_value(value: bytes, expected: int | None) -> None:
    for batch in ([value], [b'{"id":0}', value], [b'{"id":0,"y":1}', value], [b'{"ID":0,"y":1}', value]):
        decoder = JsonDecoder(columns_of(id="int"))
        assert decoder.decode([b'{"id":0,"other":1}']).rejects == []
        for decoded in (JsonDecoder(columns_of(id="int")).decode(batch), decoder.decode(batch)):
            assert decoded.rejects == []
            assert ids(decoded)[-1] == expected


def test_decode_when_name_has_a_kelvin_sign_then_treats_it_as_k() -> None:
    decoded = JsonDecoder(columns_of(k="int", ä="int")).decode(['{"\u212a":1,"Ä":2}'.encode(), b'{"k":3,"z":0}'])
    assert pa.Table.from_batches(decoded.batches).to_pylist() == [{"k": 1, "ä": 2}, {"k": 3, "ä": None}]


def ids(decoded: DecodeResult) -> list[int | None]:
    return [value for batch in decoded.batches for value in batch.column("id").to_pylist()]


def test_decode_when_tombstones_are_not_skipped_then_rejects_them() -> None:
    decoded = JsonDecoder(columns_of(id="int")).decode([None, b'{"id":1}', b"x", None])
    assert [reject.row for reject in decoded.rejects] == [0, 2, 3]
    assert decoded.rejects[0] == Reject(0, "", "record has no value (tombstone)", b"")
    assert (ids(decoded), decoded.skipped, decoded.rows) == ([1], 0, 1)


def test_decode_when_tombstones_are_skipped_then_counts_them() -> None:
    decoded = JsonDecoder(columns_of(id="int"), tombstones="skip").decode([None, b'{"id":1}', b"x", None])
    assert [reject.row for reject in decoded.rejects] == [2]
    assert (ids(decoded), decoded.skipped) == ([1], 2)


def test_decode_when_there_are_no_records_then_result_is_empty() -> None:
    assert JsonDecoder(columns_of(id="int")).decode([]) == DecodeResult([], [], 0)


def test_decode_when_few_of_many_records_are_bad_then_keeps_order_and_indexes() -> None:
    values = [b'{"id":%d}' % n for n in range(5000)]
    for bad in (0, 1234, 1235, 4999):
        values[bad] = b'{"id":"bad"}'
    decoded = JsonDecoder(columns_of(id="int")).decode(values)
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(bad, "id") for bad in (0, 1234, 1235, 4999)]
    assert ids(decoded) == [n for n in range(5000) if n not in (0, 1234, 1235, 4999)]


def test_decode_when_there_are_far_years_and_nanoseconds_then_units_of_batches_differ() -> None:
    texts = ["2026-01-01T00:00:00.123456789", "9999-12-31T00:00:00", "2026-01-01T00:00:00.123456789", "2026-01-01"]
    decoded = JsonDecoder(columns_of(t="timestamp", u="timestamp")).decode(
        [json.dumps({"t": text}).encode() for text in texts]
    )
    assert decoded.rejects == []
    assert [(str(batch.schema.field("t").type), batch.num_rows) for batch in decoded.batches] == [
        ("timestamp[ns]", 3), ("timestamp[us]", 1),
    ]  # fmt: skip
    assert all(batch.schema.field("t").type == batch.schema.field("u").type for batch in decoded.batches)


def test_decode_when_one_record_needs_both_units_then_rejects() -> None:
    value = b'{"t":"9999-12-31T00:00:00","u":"2026-01-01T00:00:00.123456789"}'
    decoded = JsonDecoder(columns_of(t="timestamp", u="timestamp")).decode([value])
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(0, "u")]


COLUMNS = columns_of(**{f"c{index}": text for index, text in enumerate(TYPES)}, t2="timestamp", größe="int", k="string")
NAMES = [column.name for column in COLUMNS]
SCALARS = [
    "5", "-0", "5.0", "1e2", "12.50", "12.345", "0.1", "127", "128", "32768", "2147483648", "9223372036854775808",
    "123456789.1", "99999999.99", "1e-19", "1e-21", "1e-39", "1E-75", "0." + "0" * 40 + "1",
    "1e308", "1e309", "3.4e38", "3.5e38", "1E400", "true", "false",
    "null", "NaN",
    "Infinity", "-Inf", "[]", "{}", '{"c0":1}', "[1,{}]", "16777217", "0.1000000014901161",
    *map(json.dumps, [
        "", "5", "-5", "+5", "5.", ".5", "007", "0x10", "1e2", "1e400", "-1E-3", "12.50", "12.345", "0e400",
        "99999999.99",
        "123456789.1", "nan", "NaN", "inf", "-Infinity", "true", "FALSE", "tRue", "yes", "abc", "abcde", "abc     ",
        "äöüäö",
        "a\u00a0", "abcdef", "QUJD", "QUI=", "QQ==", "QR==", "QUJ", "Q===", "a b=", "\u0000", "😀", "null {", "x}\n{",
        '"k":',
        "2026-11-21", "0001-01-01", "0000-12-31", "9999-12-31", "2026-02-29", "2024-02-29", "2026-1-1", "10000-01-01",
        "2026-11-21T10", "2026-11-21 10:00", "2026-11-21T10:00:00", "2026-11-21T10:00:00.1",
        "2026-11-21 10:00:00.123456789",
        "2026-11-21T10:00:00.1234567890", "2026-11-21T10:00:00Z", "2026-11-21T10:00Z", "2026-11-21T10Z",
        "2026-11-21T10:00:00.5+02:00", "2026-11-21T10:00:00-0330", "2026-11-21T10:00:00+02", "2026-11-21T10:00:00+2",
        "2026-11-21T10:00:00+24:00", "2026-11-21T10:00:00+23:60", "2026-11-21Z", "2026-11-21T24:00:00",
        "2026-11-21T10:00:60",
        "2500-01-01T00:00:00", "2500-01-01T00:00:00.1234567", "1600-01-01T00:00:00.123456",
        "1969-12-31T23:59:59.999999999",
        "2262-04-11T23:47:16.854775807", "2262-04-11T23:47:16.854775808", "1677-09-21T00:12:43.145224193",
        "1677-09-21T00:12:43.145224192", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999-00:01",
        "9999-12-31T23:59:59.999999", "2026-11-21t10:00:00", " 2026-11-21",
    ]),
    '"\\ud800"', '"\\u0041"', '"\\u00e4\\"\\\\"', '"a\tb"', '"\x7f"',
]  # fmt: skip


def spellings(name: str) -> st.SearchStrategy[str]:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in name)
    return st.sampled_from([name] * 12 + [name.upper(), name.title(), escaped, "K" if name == "k" else name])


@st.composite
def members(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from([*NAMES, *NAMES, "x", "nested"]))
    value = draw(
        st.one_of(
            st.sampled_from(SCALARS),
            st.integers().map(str),
            st.floats(allow_nan=False, allow_infinity=False).map(repr),
            st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
            st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
            st.datetimes().map(lambda moment: f'"{moment.isoformat()}"'),
            st.dates().map(lambda day: f'"{day}"'),
        )
    )
    blank = draw(st.sampled_from(["", "", "", " ", "\t", "\n", "\r\n"]))
    return f'{blank}"{draw(spellings(name))}"{blank}:{blank}{value}{blank}'


RECORDS = st.one_of(
    *[st.lists(members(), max_size=3).map(lambda parts: ("{" + ",".join(parts) + "}").encode(errors="replace"))] * 6,
    st.sampled_from(
        [b"", b"{}", b"{}{}", b"null", b"{}null{}", b"[]", b"1", b" {} ", b"{}\n{}", b"\xff", b'{"k":"\xff"}']
    ),
    st.binary(max_size=12),
)


def rows_of(decoded: DecodeResult) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for batch in decoded.batches:
        units = {str(batch.schema.field(name).type) for name in ("t2", "c14")}
        assert len(units) == 1
        for column, field in zip(COLUMNS, batch.schema, strict=True):
            assert field.name == column.name
            assert field.type == column.type.arrow or units == {"timestamp[us]"} == {str(field.type)}
        rows.extend(zip(*(comparable(array) for array in batch.columns), strict=True))
    return rows


def comparable(array: pa.Array) -> list[object]:
    if pa.types.is_timestamp(array.type):
        scale = 1000 if array.type.unit == "us" else 1
        return [None if stamp is None else stamp * scale for stamp in array.view(pa.int64()).to_pylist()]
    if pa.types.is_date(array.type):
        return list(array.view(pa.int32()).to_pylist())
    return [str(value) if isinstance(value, float | Decimal) else value for value in array.to_pylist()]


def one_by_one(values: Sequence[bytes]) -> tuple[list[tuple[object, ...]], list[tuple[int, str]]]:
    """Return the reference: the rows, and the index and column of each reject."""
    reader, units = RecordReader(COLUMNS), TimestampUnits(COLUMNS)
    rows: list[tuple[object, ...]] = []
    rejects: list[tuple[int, str]] = []

    def decode(index: int, value: bytes) -> None:
        try:
            row = tuple(reader.row(value))
            units.of(row)
            rows.append(row)
        except RejectError as error:
            rejects.append((index, error.column))

    for index, value in enumerate(values):
        decode(index, value)
    typed: list[tuple[object, ...]] = [
        tuple(
            stamp if column.type.kind in ("timestamp", "date") or stamp is None
            else str(stamp) if isinstance(stamp, float | Decimal) else stamp
            for column, stamp in zip(COLUMNS, row, strict=True)
        )
        for row in rows
    ]  # fmt: skip
    return typed, rejects


MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(st.lists(st.lists(RECORDS, min_size=1, max_size=6), min_size=1, max_size=3))
@example([[b"{}\n{}", b'{"c1":5,"c1":5}']])  # Arrow names the third of two records
def test_decode_when_batches_are_arbitrary_then_result_is_the_same_as_one_by_one(batches: list[list[bytes]]) -> None:
    decoder = JsonDecoder(COLUMNS)
    for values in batches:
        decoded = decoder.decode(values)
        rows, rejects = one_by_one(values)
        assert [(reject.row, reject.column) for reject in decoded.rejects] == rejects
        assert in_order(decoded, rows_of(decoded)) == rows


@MANY
@given(st.data())
def test_read_when_records_are_similar_then_result_is_the_same_as_one_by_one(data: st.DataObject) -> None:
    """Test batches of one column that Arrow converts, because a wrong value would raise no error there."""
    column = data.draw(st.sampled_from(COLUMNS))
    scalar = st.one_of(
        st.sampled_from(SCALARS), st.integers(-(10**12), 10**12).map(str), st.floats(allow_nan=False).map(repr),
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
        st.decimals(-(10**9), 10**9, places=3).map(str), st.decimals(-(10**9), 10**9, places=2).map(lambda d: f'"{d}"'),
        st.datetimes().map(lambda moment: f'"{moment.isoformat()}"'),
    )  # fmt: skip
    texts = data.draw(st.lists(scalar, min_size=1, max_size=3))
    extra = data.draw(st.sampled_from(["", ',"x":null', ',"x":{"k":[]}']))
    values = [f'{{"{column.name}":{text}{extra}}}'.encode() for text in texts]
    arrow, reader = ArrowReader([column]), RecordReader([column])
    for batches in ([value] for value in values), [values]:
        for batch in batches:
            with suppress(NotColumnar):
                read, undecided, rejected = arrow.read(batch)
                for value in compress(batch, rejected):
                    with pytest.raises(RejectError):
                        reader.row(value)
                decided = ~(undecided | rejected)
                expected = [reader.row(value)[0] for value in compress(batch, decided)]
                expected = [str(value) if isinstance(value, float | Decimal) else value for value in expected]
                assert comparable(read.column(0).filter(pa.array(decided))) == expected


def test_decode_when_a_column_and_a_field_inside_have_one_name_then_each_is_found_in_any_case() -> None:
    values = [b'{"b": {"B": 1}, "other": 0}', b'{"b": {"B": 2}, "other": 0}', b'{"B": {"B": 3}, "other": 0}']
    decoded = JsonDecoder(columns_of(a="int", b="struct<b:int>")).decode(values)
    [batch] = decoded.batches
    assert batch.column(1).to_pylist() == [{"b": 1}, {"b": 2}, {"b": 3}]


def test_read_when_a_column_and_a_field_inside_have_one_name_in_two_spellings_then_arrow_reads_the_batch() -> None:
    columns = columns_of(id="int", inner="struct<id:int,ids:array<struct<id:int>>>")
    reader = ArrowReader(columns)
    usual = b'{"Id":1,"inner":{"id":2,"ids":[{"ID":3},{"ID":4}]},"other":0}'
    batch, undecided, _ = reader.read([usual, b'{"inner":{"ids":[]},"other":0}'])
    assert undecided.tolist() == [False, False]
    assert batch.to_pylist() == [
        {"id": 1, "inner": {"id": 2, "ids": [{"id": 3}, {"id": 4}]}},
        {"id": None, "inner": {"id": None, "ids": []}},
    ]
    others = [usual.replace(b"Id", b"id"), usual.replace(b"{", b'{"id":9,', 1), usual.replace(b'"ID":4', b'"Id":4')]
    for other in others:
        with pytest.raises(NotColumnar):
            reader.read([usual, other])


def test_read_when_spellings_are_common_then_arrow_reads_the_batch() -> None:
    columns = columns_of(id="bigint", ts="timestamp", amount="decimal(10,2)", flag="boolean", note="string")
    record = '{"id":1,"ts":"2026-11-21T10:00:00Z","amount":1.5,"flag":true,"note":"a \\u00e4 null NaN"}'
    variants = [
        record,
        record.replace('"id"', '"ID"'),
        record.replace('"id":1', '"id":"1"').replace("1.5", '"1.5"').replace("true", '"true"'),
        record.replace("{", '{"extra":[{"x":null}],', 1),
        record.replace("{", '{"extra":1,', 1).replace('"note"', '"Note"'),
        record.replace(",", ",\n"),
        record.replace("T10:00:00Z", ""),
        record.replace("2026", "2526"),
    ]
    for variant in variants:
        _, undecided, _ = ArrowReader(columns).read([variant.encode()] * 3)
        assert undecided.tolist() == [False] * 3, variant
