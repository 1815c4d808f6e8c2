"""Batches of delimited text have the same result as records that are decoded one by one, however they are mixed."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.formats.decoder import RejectError
from ingestd.formats.delimited import DelimitedDecoder, DelimitedFormat
from ingestd.formats.lazysimple.columns import FieldConverter
from ingestd.formats.record_decoder import NotColumnar
from ingestd.formats.row_batches import TimestampUnits, array_of
from ingestd.schema import Column, HiveType
from tests.support.decoding import columns_of, in_order

HIVE = DelimitedFormat()
STRICT = DelimitedFormat(bad_values="reject", bad_counts="reject")
TYPES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,20)",
    "decimal(3,3)", "string", "varchar(5)", "char(5)", "binary", "date", "timestamp",
]  # fmt: skip


COLUMNS = columns_of(*TYPES, "timestamp", "array<int>", "map<string,date>", "struct<a:double,b:varchar(2)>")
DEEP = [*COLUMNS, Column("deep", HiveType.parse("array<timestamp>"))]
FIELDS = [
    "", "\\N", "5", "-0", "+5", "5.", ".5", "5.7", "007", "12.345", "0.1", "127", "128", "32768", "2147483648", "1e3",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999.99", "99999999.995", "123456789.1",
    "1e-19", "1e-39", "0." + "0" * 40 + "1", "9" * 18 + "." + "9" * 20, "1e308", "1e400", "-1e400", "3.4e38", "3.5e38",
    "16777217", "0.999", "0.9995", " 5", "5 ", "\t5", "0x10", "0x1p3", "5d", "1e5f", "NaN", "nan", "inf", "-Infinity",
    "-", "+", ".", "-.", "--5", "5-5", "1-1", "1e", "1e5e5", "1.2.3", "1_0", "true", "FALSE", "tRue", "t", "1", "0",
    "yes", "abc", "abcdef", "abc     ", "äöüäöü", "a\u00a0", "\ufeff", "QUJD", "QUI=", "QUI", "QQ=", "a b=", "\0", "😀",
    "1189421613997509613819766062", '"x"', "2026-11-21", "0001-01-01",
    "0000-12-31", "9999-12-31", "2026-02-29", "2024-02-29", "2026-1-1", "2026-11-21x",
    "2026-11-211", "10000-01-01", "2026-11-21T10", "2026-11-21 10:00", "2026-11-21T10:00", "2026-11-21T10:00:00",
    "2026-11-21 10:00:00", "2026-11-21 10:00:00.", "2026-11-21T10:00:00.", "2026-11-21 10:00:00.1", "20261121",
    "2026-11-21 10:00:00.123456789", "2026-11-21 10:00:00.1234567890", "2026-11-21 10:00:00Z", " 2026-11-21 10:00:00",
    "2026-11-21 10:00:00-01:00", "2026-11-21 24:00:00", "2026-11-21 10:00:60", "2026-11-21 1:2:3",
    "2026-02-30 10:00:00", "2500-01-01 00:00:00", "2500-01-01 00:00:00.1234567", "1600-01-01 00:00:00.123456",
    "1677-09-21 00:12:43.145224193", "1677-09-21 00:12:43.145224192", "2262-04-11 23:47:16.854775807",
    "2262-04-11 23:47:16.854775808", "1969-12-31 23:59:59.999999999", "9999-12-31 23:59:59.999999",
    "a\nb", "5\r", "1\r\n", "\r\n", "\n",
    "1\x022\x02x", "a\x032024-01-15\x02a\x03\x02b", "2026-11-21 10:00:00\x022500-01-01 00:00:00", "\x02", "\x03",
]  # fmt: skip
FIELD = st.one_of(
    st.sampled_from(FIELDS).map(str.encode),
    st.sampled_from(FIELDS).map(str.encode),
    st.integers().map(lambda number: b"%d" % number),
    st.floats().map(lambda number: repr(number).encode()),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(lambda number: str(number).encode()),
    st.datetimes().map(lambda moment: str(moment).encode()),
    st.dates().map(lambda day: str(day).encode()),
    st.text(alphabet="0123456789+-.:eE TtNn", max_size=12).map(str.encode),
    st.text(max_size=6).map(lambda text: text.encode(errors="replace")),
    st.binary(max_size=4),
)
FORMS = [
    HIVE, STRICT, DelimitedFormat(escape="\\"), DelimitedFormat(field_delimiter="\n", escape="5", bad_values="reject"),
    DelimitedFormat(field_delimiter=",", null_text=""), DelimitedFormat(null_text="5", bad_counts="reject"),
    DelimitedFormat(null_text="5\r"),
]  # fmt: skip


def expected_row(columns: Sequence[Column], form: DelimitedFormat, value: bytes) -> tuple[object, ...] | str:
    """Return the reference for one record: its values, or the name of the column that makes it a reject."""
    syntax = form.syntax()
    fields: list[bytes | None] = [b""]
    index = 0
    while index < len(value):
        byte = value[index : index + 1]
        if byte[0] == syntax.separators[0]:
            fields.append(b"")
        else:
            if byte[0] == syntax.escape and index + 1 < len(value):
                byte = value[index : index + 2]
            fields[-1] = (fields[-1] or b"") + byte
        index += len(byte)
    if form.bad_counts == "reject" and len(fields) != len(columns):
        return ""
    fields = [None if field == syntax.null else field for field in fields] + [None] * len(columns)
    try:
        row = FieldConverter(columns, syntax).row(fields[: len(columns)])
        TimestampUnits(columns).of(row)
    except RejectError as error:
        return error.column
    return tuple(map(comparable, row))


def comparable(value: object) -> object:
    if isinstance(value, float | Decimal):
        return str(value)
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    return value


def python_of(array: pa.Array, kind: HiveType) -> list[object]:
    """Return the values in the form of the reference: dates and timestamps as numbers, structs as tuples."""
    if kind.kind == "timestamp":
        scale = 1000 if array.type.unit == "us" else 1
        return [None if stamp is None else stamp * scale for stamp in array.view(pa.int64()).to_pylist()]
    if kind.kind == "date":
        return list(array.view(pa.int32()).to_pylist())
    if not kind.is_complex:
        return [comparable(value) for value in array.to_pylist()]
    return [None if value is None else comparable(plain(value, kind)) for value in raw(array, kind).to_pylist()]


def raw(array: pa.Array, kind: HiveType) -> pa.Array:
    """Return the array with numbers instead of dates and timestamps."""
    target = {
        "map<string,date>": pa.map_(pa.string(), pa.int32()), "array<timestamp>": pa.list_(pa.int64()),
    }.get(str(kind))  # fmt: skip
    return array if target is None else array.cast(target)


def plain(value: Any, kind: HiveType) -> Any:
    return tuple(value.values()) if kind.kind == "struct" else value


def check(columns: Sequence[Column], form: DelimitedFormat, batches: Sequence[Sequence[bytes]]) -> None:
    decoder = DelimitedDecoder(columns, form)
    for values in batches:
        decoded = decoder.decode(values)
        expected = [expected_row(columns, form, value) for value in values]
        rejects = [(row, outcome) for row, outcome in enumerate(expected) if isinstance(outcome, str)]
        assert [(reject.row, reject.column) for reject in decoded.rejects] == rejects
        found: list[tuple[object, ...]] = []
        for batch in decoded.batches:
            units = {str(field.type) for field in batch.schema if pa.types.is_timestamp(field.type)}
            assert len(units) <= 1
            scale = 1000 if units == {"timestamp[us]"} else 1
            arrays = [python_of(array, column.type) for array, column in zip(batch.columns, columns, strict=True)]
            found += [tuple(scaled(value, column, scale) for value, column in zip(row, columns, strict=True))
                      for row in zip(*arrays, strict=True)]  # fmt: skip
        assert in_order(decoded, found) == [outcome for outcome in expected if not isinstance(outcome, str)]
        assert [decoder.check(value) is not None for value in values] == [isinstance(row, str) for row in expected]


def scaled(value: Any, column: Column, scale: int) -> Any:
    if str(column.type) != "array<timestamp>" or value is None:
        return value
    return [None if stamp is None else stamp * scale for stamp in value]


MANY = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def records(draw: st.DrawFn, width: int) -> list[bytes]:
    """Generate the fields of one record, in most cases one per column."""
    fields = draw(st.lists(FIELD, max_size=width + 2))
    if draw(st.integers(0, 3)):
        return [*fields, *[b"5"] * width][:width]
    return fields if draw(st.booleans()) else []


@st.composite
def batches(draw: st.DrawFn) -> tuple[Sequence[Column], list[list[list[bytes]]]]:
    columns = draw(st.sampled_from([COLUMNS, COLUMNS, DEEP, COLUMNS[10:13]]))
    record = records(len(columns))
    return columns, draw(st.lists(st.lists(record, min_size=1, max_size=5), min_size=1, max_size=2))


@MANY
@given(st.sampled_from(FORMS), batches())
def test_decode_when_batches_are_arbitrary_then_result_is_the_same_as_one_by_one(
    form: DelimitedFormat, drawn: tuple[list[Column], list[list[list[bytes]]]]
) -> None:
    separator = form.syntax().separators[:1]
    check(drawn[0], form, [[separator.join(fields) for fields in batch] for batch in drawn[1]])


@MANY
@given(st.sampled_from(FORMS[:3]), st.sampled_from(COLUMNS), st.data())
def test_decode_when_arrow_converts_a_column_then_result_is_the_same_as_one_by_one(
    form: DelimitedFormat, column: Column, data: st.DataObject
) -> None:
    """Test whole columns that Arrow converts, because a wrong value would raise no error there."""
    likely = [field.encode() for field in FIELDS if is_valid(column, field)]
    fields = data.draw(st.lists(st.one_of(st.sampled_from(likely), st.sampled_from(likely), FIELD), min_size=1))
    second = Column("t", HiveType.parse("timestamp"))
    check([column, second], form, [[field + b"\x012026-11-21 10:00:00" for field in fields]])


NESTED = [
    "array<int>", "array<array<string>>", "array<struct<a:int,b:date,c:array<double>>>", "map<string,int>",
    "map<int,struct<a:varchar(2),b:boolean>>", "map<char(3),array<int>>", "map<double,string>", "array<timestamp>",
    "struct<a:int,b:struct<c:string,d:decimal(4,2)>,e:map<string,int>>", "struct<a:timestamp,b:binary>",
    "map<string,timestamp>", "array<map<date,decimal(38,2)>>",
]  # fmt: skip
ELEMENT = st.one_of(
    st.sampled_from(
        ["", "\\N", "5", "-7", "a", "b", "abc  ", "1.5", "true", "2026-11-21", "2026-11-21 10:00:00", "x\\"]
    ),
    st.sampled_from(FIELDS),
).map(str.encode)
NESTED_FIELD = st.lists(
    st.tuples(ELEMENT, st.sampled_from([b"\x02", b"\x03", b"\x03", b"\x04", b"\x05"])), max_size=9
).map(lambda parts: b"".join(element + separator for element, separator in parts)[:-1])


@MANY
@given(st.sampled_from(FORMS[:3]), st.sampled_from(NESTED), st.lists(st.none() | NESTED_FIELD, min_size=1, max_size=6))
def test_batch_when_columns_are_nested_then_values_and_reasons_are_those_of_each_field(
    form: DelimitedFormat, text: str, fields: list[bytes | None]
) -> None:
    [column] = columns_of(text)
    converter = FieldConverter([column], form.syntax())
    rows: list[Any] = []
    rejects: dict[int, tuple[str, str]] = {}
    for index, field in enumerate(fields):
        try:
            rows += converter.row([field])
        except RejectError as error:  # noqa: PERF203
            rejects[index] = error.column, error.reason
    try:
        batch, found = converter.batch([pa.array(fields, pa.binary())])
    except NotColumnar:
        # Only if one unit does not fit all timestamps, or if their elements are read one by one.
        assert "timestamp" in text
        return
    assert found == rejects
    is_row = pa.array([index not in rejects for index in range(len(fields))])
    array = batch.column(0).filter(is_row)
    array.validate(full=True)
    assert repr(array.to_pylist()) == repr(array_of(column.type, rows).to_pylist())


def test_batch_when_timestamps_are_nested_and_near_then_is_columnar() -> None:
    columns = columns_of("array<timestamp>", "timestamp")
    fields = [pa.array([b"2026-11-21 10:00:00\x02\\N"]), pa.array([b"2026-11-21 10:00:00.123456789"])]

    batch, rejects = FieldConverter(columns, STRICT.syntax()).batch(fields)

    assert not rejects
    assert batch.schema.field(0).type == pa.list_(pa.timestamp("ns"))
    assert batch.num_rows == 1


@cache
def is_valid(column: Column, field: str) -> bool:
    return isinstance(expected_row([column], STRICT, field.encode()), tuple)
