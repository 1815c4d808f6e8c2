"""Delimited text is decoded by the rules of LazySimpleSerDe.

The expected values are those of LazySimpleSerDe of Hive 4.0.1 for the same bytes, except for the differences that the
table in `delimited` lists.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ingestd.errors import ConfigError
from ingestd.formats.decoder import DecodeResult, Reject
from ingestd.formats.delimited import DelimitedDecoder, DelimitedFormat
from tests.support.decoding import columns_of, in_order, values_of

HIVE = DelimitedFormat()
STRICT = DelimitedFormat(bad_values="reject", bad_counts="reject")
BAD = "invalid"


def one(type_text: str, text: bytes, form: DelimitedFormat = HIVE) -> Any:
    decoded = DelimitedDecoder(columns_of(type_text), form).decode([text])
    if decoded.rejects:
        return decoded.rejects[0].column
    return decoded.batches[0].column(0)[0].as_py()


@pytest.mark.parametrize(
    ("type_text", "text", "expected"),
    [
        ("int", "5", 5), ("int", "+5", 5), ("int", "007", 7), ("int", "-0", 0), ("int", "5.7", 5), ("int", "-5.7", -5),
        ("int", "5.", 5), ("int", ".5", 0), ("int", "-.5", 0), ("int", ".", BAD), ("int", "+.", BAD), ("int", "-", BAD),
        ("int", "", None), ("int", " 5", BAD), ("int", "5 ", BAD), ("int", "0x10", BAD), ("int", "1e3", BAD),
        ("int", "5.x", BAD), ("int", "5.7.1", BAD), ("int", "--5", BAD), ("int", "5-", BAD), ("int", "1_0", BAD),
        ("int", "４", BAD), ("int", "2147483647", 2**31 - 1), ("int", "2147483648", BAD), ("int", "2147483648.5", BAD),
        ("int", "-2147483648", -(2**31)), ("int", "0" * 6000 + "5", 5), ("int", "9" * 6000, BAD),
        ("tinyint", "127", 127), ("tinyint", "128", BAD), ("tinyint", "1.9", 1), ("tinyint", "65536", BAD),
        ("smallint", "-32768", -32768), ("smallint", "65541", BAD), ("bigint", "-9223372036854775808", -(2**63)),
        ("bigint", "9223372036854775807.9", 2**63 - 1), ("bigint", "9223372036854775808", BAD),
        ("double", "5.", 5.0), ("double", ".5", 0.5), ("double", "+5", 5.0), ("double", ".", BAD), ("double", "", None),
        ("double", "1E+3", 1000.0), ("double", "1e400", float("inf")), ("double", "-1e400", -float("inf")),
        ("double", "1e-400", 0.0), ("double", "NaN", "nan"), ("double", "-NaN", "nan"), ("double", "NaN ", BAD),
        ("double", "nan", BAD), ("double", "inf", BAD), ("double", "Infinity", float("inf")), ("double", "Inf", BAD),
        ("double", " 5 ", 5.0), ("double", "\t5", 5.0), ("double", "\u00a05", BAD), ("double", "5d", 5.0),
        ("double", "5F", 5.0), ("double", "5dd", BAD), ("double", "NaNd", BAD), ("double", "1_0", BAD),
        ("double", "0x1p3", BAD), ("double", "1e", BAD), ("double", "- 5", BAD),
        ("float", "0.1", 0.10000000149011612), ("float", "16777217", 16777216.0), ("float", "3.5e38", float("inf")),
        ("float", "-3.5e38 ", -float("inf")), ("float", "1e-46", 0.0), ("float", "+5f", 5.0),
        ("float", "1.000000178813934326171874999999999999999d", 1.0000001192092896),
        ("boolean", "true", True), ("boolean", "FALSE", False), ("boolean", "tRuE", True), ("boolean", "1", BAD),
        ("boolean", "t", BAD), ("boolean", " true", BAD), ("boolean", "true ", BAD), ("boolean", "", None),
        ("boolean", "truе", BAD),
        ("decimal(10,2)", "5.", Decimal("5.00")), ("decimal(10,2)", ".5", Decimal("0.50")), ("decimal(10,2)", ".", BAD),
        ("decimal(10,2)", "12.345", Decimal("12.35")), ("decimal(10,2)", "-12.345", Decimal("-12.35")),
        ("decimal(10,2)", "12.344", Decimal("12.34")), ("decimal(10,2)", "99999999.995", BAD),
        ("decimal(10,2)", "99999999.994", Decimal("99999999.99")), ("decimal(10,2)", "100000000", BAD),
        ("decimal(10,2)", "1e3", Decimal("1000.00")), ("decimal(10,2)", "5e-3", Decimal("0.01")),
        ("decimal(10,2)", "1e8", BAD), ("decimal(10,2)", "0e99", Decimal("0.00")), ("decimal(10,2)", "0e100", BAD),
        ("decimal(10,2)", "1e-100", BAD), ("decimal(10,2)", "1e0003", Decimal("1000.00")), ("decimal(10,2)", "1e", BAD),
        ("decimal(10,2)", "1e ", Decimal("1.00")), ("decimal(10,2)", " \t5 ", Decimal("5.00")),
        ("decimal(10,2)", "5\n", BAD), ("decimal(10,2)", "5 x", BAD), ("decimal(10,2)", "1_0", BAD),
        ("decimal(10,2)", "-0.001", Decimal("0.00")), ("decimal(10,2)", "", None), ("decimal(10,2)", "NaN", BAD),
        ("decimal(10,2)", "0" * 50 + "1", Decimal("1.00")), ("decimal(10,2)", "0." + "0" * 60 + "5", Decimal("0.00")),
        ("decimal(38,0)", "2.5", Decimal(3)), ("decimal(38,0)", "9" * 38 + ".4", Decimal("9" * 38)),
        ("decimal(38,0)", "9" * 38 + ".5", BAD), ("decimal(38,0)", "9" * 39, BAD),
        ("decimal(38,0)", "0.4" + "9" * 37, Decimal(0)), ("decimal(38,0)", "0.4" + "9" * 38, Decimal(1)),
        ("decimal(38,0)", "1.4" + "9" * 37, Decimal(2)), ("decimal(38,0)", "9" * 39 + "e-38", BAD),
        ("decimal(38,20)", "1189421613997509613819766062", BAD),
        ("decimal(38,38)", "12345678901234567890123456789012345678e-39",
         Decimal("0.01234567890123456789012345678901234568")),
        ("string", "", ""), ("string", r"\N", None), ("string", r" \N", r" \N"), ("string", r"\\N", r"\\N"),
        ("string", '"a"', '"a"'), ("string", "a\x02b\0\r\n", "a\x02b\0\r\n"), ("string", "\ufeffa", "\ufeffa"),
        ("varchar(3)", "äöüx", "äöü"), ("varchar(3)", "abc ", "abc"), ("varchar(3)", "ab ", "ab "),
        ("varchar(2)", "😀😀😀", "😀😀"), ("char(3)", "ab ", "ab"), ("char(3)", "a   x", "a"), ("char(3)", "  ", ""),
        ("char(3)", "a\u00a0", "a\u00a0"),
        ("binary", "QUJD", b"ABC"), ("binary", "QUI=", b"AB"), ("binary", "QUI", b"AB"), ("binary", "QQ", b"A"),
        ("binary", "QQ=", b"QQ="), ("binary", "Q", b"Q"), ("binary", "", b""), ("binary", "QU JD", b"QU JD"),
        ("binary", "QR==", b"A"), ("binary", "QUJD\n", b"QUJD\n"), ("binary", "QUJD====", b"QUJD===="),
        ("date", "2024-01-15", date(2024, 1, 15)), ("date", "2024-1-5", date(2024, 1, 5)), ("date", "999-1-1", BAD),
        ("date", " 2024-01-15 ", date(2024, 1, 15)), ("date", "2024-01-15 10:00:00", date(2024, 1, 15)),
        ("date", "2024-01-15abc", date(2024, 1, 15)), ("date", "2024-01-155", BAD), ("date", "2024-02-30", BAD),
        ("date", "24-01-01", date(24, 1, 1)), ("date", "0000-01-01", BAD), ("date", "-001-01-01", BAD),
        ("date", "9999-12-31", date(9999, 12, 31)), ("date", "10000-01-01", BAD), ("date", "20240115", BAD),
        ("date", "2024-001-1", BAD), ("date", "", None), ("date", "2024/01/15", BAD),
        ("timestamp", "2024-01-15 10:20:30", datetime(2024, 1, 15, 10, 20, 30)), ("timestamp", "2024-01-15", BAD),
        ("timestamp", "2024-1-5 1:2:3.5", datetime(2024, 1, 5, 1, 2, 3, 500000)), ("timestamp", "", None),
        ("timestamp", " 2024-01-15 10:20:30 ", datetime(2024, 1, 15, 10, 20, 30)),
        ("timestamp", "2024-01-15T10:20", datetime(2024, 1, 15, 10, 20)), ("timestamp", "2024-01-15 10:20", BAD),
        ("timestamp", "2024-01-15t10:20:30.", datetime(2024, 1, 15, 10, 20, 30)),
        ("timestamp", "2024-01-15 10:20:30.", BAD), ("timestamp", "2024-1-15T10:20:30", BAD),
        ("timestamp", "2024-01-15 10:20:30Z", BAD), ("timestamp", "2024-01-15T10:20:30+01:00", BAD),
        ("timestamp", "2024-01-15 24:00:00", BAD), ("timestamp", "2024-01-15 23:59:60", BAD),
        ("timestamp", "2024-01-15 10:60:00", BAD), ("timestamp", "2024-02-30 00:00:00", BAD),
        ("timestamp", "2024-01-15 10:20:30.1234567891", BAD), ("timestamp", "1700000000", BAD),
        ("timestamp", "0000-01-01 00:00:00", BAD), ("timestamp", "0001-01-01 00:00:00", datetime(1, 1, 1)),
        ("timestamp", "02024-01-15 00:00:00", datetime(2024, 1, 15)), ("timestamp", "10000-01-01 00:00:00", BAD),
        ("timestamp", "9999999999-01-01 00:00:00", BAD), ("timestamp", "now", BAD),
    ],
)  # fmt: skip
def test_decode_when_record_has_one_field_then_value_is_that_of_hive(
    type_text: str, text: str, expected: object
) -> None:
    value, strict = one(type_text, text.encode()), one(type_text, text.encode(), STRICT)
    assert (str(value) if expected == "nan" else value) == (None if expected is BAD else expected)
    assert (str(strict) if expected == "nan" else strict) == ("c0" if expected is BAD else expected)


@pytest.mark.parametrize("type_text", ["string", "varchar(3)", "char(3)", "array<string>", "map<string,int>"])
def test_decode_when_text_is_not_utf8_then_rejects_even_if_bad_values_are_null(type_text: str) -> None:
    assert one(type_text, b"a\xff") == "c0"


def test_decode_when_other_columns_are_not_utf8_then_values_are_those_of_hive() -> None:
    decoded = DelimitedDecoder(columns_of("binary", "int", "date", "string"), HIVE).decode(
        [b"\xff\0\x015\xff\x012024-01-15\xff\x01a\x01\xff"]
    )
    assert decoded.batches[0].to_pylist() == [{"c0": b"\xff\0", "c1": None, "c2": date(2024, 1, 15), "c3": "a"}]


def test_decode_when_timestamp_has_nanoseconds_then_keeps_them() -> None:
    decoded = DelimitedDecoder(columns_of("timestamp"), HIVE).decode([b"2026-11-21 10:00:00.123456789"])
    assert decoded.batches[0].column(0).cast(pa.int64())[0].as_py() % 10**9 == 123456789


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"", (None, None, None)), (b"\x01", (None, "", None)), (b"1\x01a\x012\x013\x01", (1, "a", 2)),
        (b"1", (1, None, None)), (b"\\N\x01\\N\x01\\N", (None, None, None)), (b'"1\x01"a\x012"', (None, '"a', None)),
        (b"1\x01a\n\x012", (1, "a\n", 2)), (b"1\x01a\r\n\x012\r", (1, "a\r\n", None)), (b"\n", (None, None, None)),
    ],
)  # fmt: skip
def test_decode_when_field_counts_and_line_ends_vary_then_fits_records_to_columns(
    record: bytes, expected: tuple[object, ...]
) -> None:
    decoder = DelimitedDecoder(columns_of("int", "string", "int"), HIVE)
    for batch in ([record], [b"7\x01x\x018", record], [record, record], [record, b"7\x01x\x018"]):
        decoded = decoder.decode(batch)
        assert decoded.rejects == []
        assert expected in values_of(decoded)
        assert decoded.rows == len(batch)


def test_decode_when_bad_counts_are_rejected_then_reason_contains_the_count() -> None:
    decoded = DelimitedDecoder(columns_of("int", "int"), STRICT).decode([b"1", b"1\x012", b"1\x012\x013", b"x\x01y"])
    assert [(reject.row, reject.column, reject.reason) for reject in decoded.rejects] == [
        (0, "", "the number of fields is 1, but the number of columns is 2"),
        (2, "", "the number of fields is 3, but the number of columns is 2"),
        (3, "c0", "'x' is not a number, but the type is int"),
    ]
    assert values_of(decoded) == [(1, 2)]


def test_decode_when_record_has_no_value_then_rejects() -> None:
    decoded = DelimitedDecoder(columns_of("int"), HIVE).decode([None, b"1", None, b"2"])
    assert decoded.rejects == [
        Reject(0, "", "record has no value (tombstone)", b""),
        Reject(2, "", "record has no value (tombstone)", b""),
    ]
    assert (values_of(decoded), decoded.skipped) == ([(1,), (2,)], 0)
    assert DelimitedDecoder(columns_of("int"), HIVE).decode([]) == DecodeResult([], [], 0)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"a\\\x01b\x015\x01x\\ny", ("a\x01b", 5, "x\ny")),
        (b"a\\n\\r\\t\\\\\x01\\5\x01\\", ("a\n\rt\\", None, "\\")),
        (b"\\N\x01\\N\x01\\N", (None, None, None)), (b"\\\\N\x011\x01\\\x01", ("\\N", 1, "\x01")),
        (b"a\\", ("a\\", None, None)), (b"a\n\x011\x01b", ("a\n", 1, "b")),
    ],
)  # fmt: skip
def test_decode_when_escape_is_set_then_byte_after_it_is_data(record: bytes, expected: tuple[object, ...]) -> None:
    decoder = DelimitedDecoder(columns_of("string", "int", "varchar(4)"), DelimitedFormat(escape="\\"))
    assert values_of(decoder.decode([record, b"x\x011\x01y"])) == [expected, ("x", 1, "y")]


@pytest.mark.parametrize(
    ("types", "record", "expected"),
    [
        ("array<int>;map<string,int>;struct<a:int,b:string>",
         b"1\x022\x01a\x031\x02b\x032\x015\x02x", ([1, 2], [("a", 1), ("b", 2)], {"a": 5, "b": "x"})),
        ("array<int>;map<string,int>;struct<a:int,b:string>",
         b"1\x02\x02x\x01a\x02a\x031\x02\x03\x02\\N\x034\x01\x02\x02z",
         ([1, None, None], [("a", None), ("", None)], {"a": None, "b": ""})),
        ("array<int>;map<string,int>;struct<a:int,b:string>", b"\x01\x01", ([], [], {"a": None, "b": None})),
        ("array<int>;map<string,int>;struct<a:int,b:string>", b"", ([], None, None)),
        ("array<int>;map<string,int>;struct<a:int,b:string>", b"\\N\x01\\N\x01\\N", (None, None, None)),
        ("array<array<string>>;map<int,array<int>>;struct<a:map<string,int>,b:array<struct<x:int>>>",
         b"a\x03b\x02c\x011\x034\x045\x022\x03\x01k\x047\x03l\x048\x021\x032",
         ([["a", "b"], ["c"]], [(1, [4, 5]), (2, [])], {"a": [("k", 7), ("l", 8)], "b": [{"x": 1}, {"x": 2}]})),
        ("array<array<array<array<array<array<array<int>>>>>>>", b"1\x082\x073\x02", ([[[[[[[1, 2], [3]]]]]], []],)),
        ("map<double,int>", b"1\x031\x021.0\x032\x02x\x033\x02\x034", ([(1.0, 1)],)),
        ("map<char(3),int>", b"a\x031\x02a \x032", ([("a", 1)],)),
        ("array<timestamp>;map<date,timestamp>", b"9999-12-31 00:00:00\x02x\x012024-01-15\x032024-01-15 10:20:30",
         ([datetime(9999, 12, 31), None], [(date(2024, 1, 15), datetime(2024, 1, 15, 10, 20, 30))])),
        ("struct<a:timestamp,b:struct<c:timestamp>>", b"2024-01-15 00:00:00",
         ({"a": datetime(2024, 1, 15), "b": None},)),
    ],
)  # fmt: skip
def test_decode_when_column_is_complex_then_splits_level_by_level(
    types: str, record: bytes, expected: tuple[Any, ...]
) -> None:
    decoded = DelimitedDecoder(columns_of(*types.split(";")), HIVE).decode([record])
    assert decoded.rejects == []
    assert values_of(decoded) == [expected]


def test_decode_when_column_is_complex_and_escaped_then_unescapes_its_parts() -> None:
    columns = columns_of("array<int>", "map<string,string>", "struct<a:string,b:string>")
    record = b"1\\\x022\x022\x01a\\\x03b\x03c\\\x02\x01x\\\x02y\x02z\\n"
    decoded = DelimitedDecoder(columns, DelimitedFormat(escape="92")).decode([record])
    assert values_of(decoded) == [([None, 2], [("a\x03b", "c\x02")], {"a": "x\x02y", "b": "z\n"})]


def test_decode_when_column_is_complex_and_strict_then_rejects_bad_elements() -> None:
    decoder = DelimitedDecoder(columns_of("array<int>", "map<int,int>"), STRICT)
    decoded = decoder.decode([b"1\x02x\x011\x032", b"1\x01x\x031", b"1\x02\x02\\N\x01\x031", b"1\x011\x03x"])
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(0, "c0"), (1, "c1"), (3, "c1")]
    assert values_of(decoded) == [([1, None, None], [])]


def test_decode_when_delimiters_are_configured_then_uses_them() -> None:
    form = DelimitedFormat(field_delimiter="44", collection_delimiter=";", map_key_delimiter=":", null_text="")
    decoded = DelimitedDecoder(columns_of("string", "map<string,int>", "array<int>"), form).decode(
        [b"a,b:1;c:2,1;2", b",,", b"x"]
    )
    assert values_of(decoded) == [("a", [("b", 1), ("c", 2)], [1, 2]), (None, None, None), ("x", None, None)]


@pytest.mark.parametrize("delimiter", ["\t", " ", '"', "\\", "\x7f", "a", "0", "\n", "10", "\r", "\0", ","])
def test_decode_when_delimiter_is_any_ascii_character_then_splits_at_it(delimiter: str) -> None:
    byte = bytes([int(delimiter) if delimiter.isdigit() else ord(delimiter)])
    decoder = DelimitedDecoder(columns_of("string", "string"), DelimitedFormat(field_delimiter=delimiter))
    assert values_of(decoder.decode([b"x" + byte + b"y", byte, b"x"])) == [("x", "y"), ("", ""), ("x", None)]


@pytest.mark.parametrize(
    "options",
    [
        {"field_delimiter": "||"}, {"field_delimiter": ""}, {"collection_delimiter": "ä"}, {"map_key_delimiter": "-1"},
        {"field_delimiter": "128"}, {"escape": "ab"}, {"bad_values": "skip"}, {"bad_counts": "null"},
    ],
)  # fmt: skip
def test_format_when_options_are_invalid_then_raises_config_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DelimitedFormat(**options)


def test_decoder_when_type_is_nested_too_deeply_then_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        DelimitedDecoder(columns_of("array<" * 8 + "int" + ">" * 8), HIVE)


def test_decode_when_there_are_far_years_and_nanoseconds_then_units_of_batches_differ() -> None:
    texts = ["2026-01-01 00:00:00.123456789", "9999-12-31 00:00:00", "2026-01-01 00:00:00.123456789", ""]
    decoded = DelimitedDecoder(columns_of("timestamp", "timestamp"), HIVE).decode([text.encode() for text in texts])
    assert decoded.rejects == []
    assert [(str(batch.schema.field(0).type), batch.num_rows) for batch in decoded.batches] == [
        ("timestamp[ns]", 3), ("timestamp[us]", 1),
    ]  # fmt: skip
    assert all(batch.schema.field(0).type == batch.schema.field(1).type for batch in decoded.batches)


def test_decode_when_one_record_needs_both_units_then_rejects() -> None:
    decoder = DelimitedDecoder(columns_of("timestamp", "timestamp"), HIVE)
    value = b"9999-12-31 00:00:00\x012026-01-01 00:00:00.123456789"
    decoded = decoder.decode([value])
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(0, "c1")]
    assert decoder.check(value) == decoded.rejects[0]


def test_decode_when_few_of_many_records_are_bad_then_keeps_order_and_indexes() -> None:
    stamps = ["2026-01-01 00:00:00.123456789", "9999-12-31 00:00:00"]
    values = [f"{n}\x01{stamps[n % 1000 == 7]}".encode() for n in range(5000)]
    for bad in (0, 1234, 4999):
        values[bad] = b"bad\x01"
    decoded = DelimitedDecoder(columns_of("int", "timestamp"), STRICT).decode(values)
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(bad, "c0") for bad in (0, 1234, 4999)]
    numbers = [n for batch in decoded.batches for n in batch.column(0).to_pylist()]
    assert in_order(decoded, numbers) == [n for n in range(5000) if n not in (0, 1234, 4999)]
    assert [(str(batch.schema.field(1).type), batch.num_rows) for batch in decoded.batches] == [
        ("timestamp[ns]", 4992), ("timestamp[us]", 5),
    ]  # fmt: skip
