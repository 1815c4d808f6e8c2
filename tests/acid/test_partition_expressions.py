"""Partition expressions return what Hive's functions return, in the type of the partition column."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest

from ingestd.acid.partition_expressions import PartitionExpression
from ingestd.errors import InvalidTable
from ingestd.schema import Column, HiveType

TIMES = [
    datetime(2026, 1, 2, 3, 4, 5, 999999), None, datetime(1500, 12, 31, 23), datetime(1969, 12, 31, 23, 59, 59, 5),
    datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1),
]  # fmt: skip
DATES = [date(2026, 1, 2), None, date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 15), date(1969, 12, 31)]
TEXTS = ["äöü", None, "", "a😀b😀c", "ΑΣΑ ΑΣ", "ßŉ"]
TYPES = {
    name: HiveType.parse(text)
    for name, text in (("ts", "timestamp"), ("d", "date"), ("s", "string"), ("v", "varchar(9)"), ("n", "int"))
}
ARRAYS = {"ts": pa.array(TIMES, pa.timestamp("us")), "d": pa.array(DATES), "s": pa.array(TEXTS), "v": pa.array(TEXTS)}


def _parsed(text: str) -> PartitionExpression:
    expression = PartitionExpression.parse(text)
    assert expression is not None
    return expression


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("date_format(ts, 'yyyy-MM-dd')", "string",
         ["2026-01-02", None, "1500-12-31", "1969-12-31", "9999-12-31", "0001-01-01"]),
        (' DATE_FORMAT( TS ,"yyyyMMdd HH:mm:ss") ', "varchar(17)",
         ["20260102 03:04:05", None, "15001231 23:00:00", "19691231 23:59:59", "99991231 23:59:59",
          "00010101 00:00:00"]),
        ("date_format(ts, 'HH')", "tinyint", [3, None, 23, 23, 23, 0]),
        ("date_format(ts, 'yyyyMMddHH')", "bigint",
         [2026010203, None, 1500123123, 1969123123, 9999123123, 1010100]),
        ("date_format(d, 'MM/yyyy')", "string", ["01/2026", None, "01/0001", "12/9999", "10/1582", "12/1969"]),
        ("date_format(d, 'yyyyMMdd')", "int", [20260102, None, 10101, 99991231, 15821015, 19691231]),
        ("year(d)", "smallint", [2026, None, 1, 9999, 1582, 1969]), ("month(ts)", "int", [1, None, 12, 12, 12, 1]),
        ("day(d)", "string", ["2", None, "1", "31", "15", "31"]), ("hour(ts)", "tinyint", [3, None, 23, 23, 23, 0]),
        ("minute(ts)", "varchar(2)", ["4", None, "0", "59", "59", "0"]),
        ("to_date(ts)", "date",
         [date(2026, 1, 2), None, date(1500, 12, 31), date(1969, 12, 31), date(9999, 12, 31), date(1, 1, 1)]),
        ("to_date(d)", "string", ["2026-01-02", None, "0001-01-01", "9999-12-31", "1582-10-15", "1969-12-31"]),
        ("substr(s, 2)", "string", ["öü", None, "", "😀b😀c", "ΣΑ ΑΣ", "ŉ"]),
        ("substr(v,1 , 2)", "varchar(2)", ["äö", None, "", "a😀", "ΑΣ", "ßŉ"]),
        ("lower(s)", "string", ["äöü", None, "", "a😀b😀c", "ασα ας", "ßŉ"]),
        ("upper(v)", "string", ["ÄÖÜ", None, "", "A😀B😀C", "ΑΣΑ ΑΣ", "SSʼN"]),
    ],
)  # fmt: skip
def test_evaluate_when_values_are_null_or_far_then_the_result_is_that_of_hive(
    text: str, target: str, expected: list[Any]
) -> None:
    expression, column = _parsed(text), Column("p", HiveType.parse(target))
    expression.check(column, TYPES)
    array = ARRAYS[expression.column]
    found = expression.evaluate(column.type, array)
    assert (found.type, found.to_pylist()) == (column.type.arrow, expected)
    assert expression.evaluate(column.type, array.slice(1, 0)).to_pylist() == []
    assert expression.evaluate(column.type, array.slice(1, 1)).to_pylist() == [None]


def test_evaluate_when_timestamps_have_nanoseconds_then_they_are_not_rounded() -> None:
    array = pa.array([-1, 1_767_322_799_999_999_999], pa.timestamp("ns"))
    found = _parsed("date_format(ts, 'yyyy-MM-dd HH:mm:ss')").evaluate(HiveType.parse("string"), array)
    assert found.to_pylist() == ["1969-12-31 23:59:59", "2026-01-02 02:59:59"]
    assert _parsed("to_date(ts)").evaluate(HiveType.parse("date"), array).to_pylist() == [
        date(1969, 12, 31),
        date(2026, 1, 2),
    ]


@pytest.mark.parametrize("text", [
    "year(ts)", "hour(ts)", "minute(ts)", "to_date(ts)", "date_format(ts, 'yyyy-MM-dd')", "date_format(ts, 'MM-dd HH')",
    "date_format(ts, 'yyyy HH:mm')", "date_format(ts, 'yyyy ss')",
])  # fmt: skip
def test_evaluate_when_nanoseconds_are_at_the_ends_of_their_range_then_values_are_those_of_microseconds(
    text: str,
) -> None:
    whole = pa.array([-(2**63) // 1000 + 1, None, -1, 0, (2**63 - 1) // 1000], pa.timestamp("us"))
    beyond = pa.array([-(2**63) + 1, -999_999_001, 2**63 - 1], pa.timestamp("ns"))
    expression, target = _parsed(text), HiveType.parse("string")
    found = expression.evaluate(target, pa.concat_arrays([whole.cast(pa.timestamp("ns")), beyond]))
    lower = pa.array([-(2**63) // 1000, -1_000_000, (2**63 - 1) // 1000], pa.timestamp("us"))
    assert found.to_pylist() == expression.evaluate(target, pa.concat_arrays([whole, lower])).to_pylist()
    if text == "date_format(ts, 'MM-dd HH')":
        assert found.to_pylist()[:5] == ["09-21 00", None, "12-31 23", "01-01 00", "04-11 23"]


@pytest.mark.parametrize("text", ["2026-01-01", "", "a(b", "Berlin (West)", "(x)", "7"])
def test_parse_when_the_text_is_no_call_then_it_is_a_value(text: str) -> None:
    assert PartitionExpression.parse(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("days(ts)", "must be a value or a call of year, month"),
        ("year()", "the first argument of year must be a column"),
        ("year('2026-01-01')", "the first argument of year must be a column"),
        ("year(ts, 1)", "year must have one argument, a column"),
        ("upper(lower(s))", "the first argument of upper must be a column"),
        ("substr(s)", "must have a start of at least 1"), ("substr(s, 0)", "must have a start of at least 1"),
        ("substr(s, -2, 2)", "must have a start of at least 1"), ("substr(s, 1, 0)", "may have a length"),
        ("date_format(ts)", "must have a pattern in quotes"),
        ("date_format(ts, yyyy)", "must have a pattern in quotes"),
        ("date_format(ts, 'yyyy)", "must have a pattern in quotes"),
        ("date_format(ts, 'yy-M')", "does not support yy in a pattern"),
        ("date_format(ts, 'YYYY')", "does not support YYYY in a pattern"),
        ("date_format(ts, 'yyyyMMddT')", "does not support T in a pattern"),
        ("date_format(ts, \"yyyy'T'HH\")", "does not support ' in a pattern"),
        ("date_format(ts, '[yyyy]')", "does not support [ in a pattern"),
        ("header(region)", "must have the name of a header in quotes"),
        ("header('a', 'b)", "must have the name of a header in quotes"), ("header('')", "must have the name of"),
        ("date_format(ts, '--')", "must contain yyyy, MM, dd, HH, mm or ss"),
    ],
)  # fmt: skip
def test_parse_when_an_argument_is_wrong_then_the_error_says_what_is_expected(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"must|does not") as caught:
        PartitionExpression.parse(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "target", "reason"),
    [
        ("year(x)", "int", "year uses x, which is not a column of the table"),
        ("year(s)", "int", "year cannot be applied to the column s of type string"),
        ("hour(d)", "int", "hour cannot be applied to the column d of type date"),
        ("date_format(d, 'yyyy HH')", "string", "date_format cannot be applied to the column d of type date"),
        ("substr(n, 1)", "string", "substr cannot be applied to the column n of type int"),
        ("year(ts)", "tinyint", "the value of year may not fit the type tinyint"),
        ("date_format(ts, 'yyyyMMddHH')", "int", "may not fit the type int"),
        ("date_format(ts, 'yyyy-MM')", "bigint", "may not fit the type bigint"),
        ("date_format(ts, 'yyyy-MM-dd')", "date", "may not fit the type date"),
        ("date_format(ts, 'yyyy-MM-dd')", "varchar(9)", "may not fit the type varchar(9)"),
        ("substr(s, 2)", "varchar(5)", "may not fit the type varchar(5)"), ("substr(s, 1, 3)", "int", "may not fit"),
        ("upper(v)", "varchar(9)", "may not fit the type varchar(9)"), ("lower(s)", "char(5)", "may not fit"),
    ],
)  # fmt: skip
def test_check_when_the_value_cannot_be_stored_then_invalid_table(text: str, target: str, reason: str) -> None:
    with pytest.raises(InvalidTable) as caught:
        _parsed(text).check(Column("p", HiveType.parse(target)), TYPES)
    assert reason in caught.value.what
    assert caught.value.where == "partition column p"
    assert caught.value.hint
