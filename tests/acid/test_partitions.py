"""The names and values of partitions are the strings that Hive writes."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from ingestd.acid.partitions import (
    DEFAULT_PARTITION,
    odd_partition_names,
    partition_name,
    partition_value,
    static_partition_value,
)
from ingestd.errors import InvalidTable
from ingestd.schema import Column, HiveType


def test_partition_name_when_values_have_special_characters_then_they_are_escaped_as_in_hive() -> None:
    assert partition_name(["Day", "k"], ["2026-11-21", "a b"]) == "day=2026-11-21/k=a b"
    assert partition_name(["k"], ["\"#%'*/:=?\\{[]^"]) == "k=%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E"
    assert partition_name(["k"], ["\x01\n\x7f}&ä"]) == "k=%01%0A%7F}&ä"
    assert partition_name(["k"], [""]) == "k=__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("type_text", "value", "expected"),
    [
        ("string", "x y", "x y"), ("string", "", DEFAULT_PARTITION), ("string", None, DEFAULT_PARTITION),
        ("char(5)", "a  ", "a    "), ("varchar(5)", "a ", "a "), ("int", -5, "-5"), ("bigint", 2**60, str(2**60)),
        ("boolean", True, "true"), ("boolean", False, "false"), ("date", date(1, 2, 3), "0001-02-03"),
        ("decimal(10,2)", Decimal("12.50"), "12.5"), ("decimal(10,2)", Decimal("100.00"), "100"),
        ("decimal(10,2)", Decimal("-0.00"), "0"), ("decimal(38,18)", Decimal("1e-18"), "0.000000000000000001"),
        ("decimal(38,0)", Decimal("1e37"), "1" + "0" * 37),
        ("timestamp", datetime(2026, 11, 21, 10, 0, 0), "2026-11-21 10:00:00"),
        ("timestamp", datetime(2026, 11, 21, 10, 0, 0, 120000), "2026-11-21 10:00:00.12"),
        ("timestamp", datetime(1969, 12, 31, 23, 59, 59, 999999), "1969-12-31 23:59:59.999999"),
        ("double", 1.0, "1.0"), ("double", 1e7, "1.0E7"), ("double", 0.001, "0.001"), ("double", 0.00012, "1.2E-4"),
        ("double", -123456.5, "-123456.5"), ("double", float("nan"), "NaN"), ("double", 0.0, "0.0"),
        ("double", 9999999.0, "9999999.0"), ("float", 0.1, "0.1"), ("float", 1.5e10, "1.5E10"),
    ],
)  # fmt: skip
def test_partition_value_when_type_is_supported_then_it_is_the_text_of_hive(
    type_text: str, value: object, expected: str
) -> None:
    column = Column("k", HiveType.parse(type_text))
    assert partition_value(column, pa.scalar(value, column.type.arrow)) == expected


def test_partition_value_when_timestamp_exceeds_the_range_of_nanoseconds_then_it_is_exact() -> None:
    scalar = pa.scalar(datetime(9999, 12, 31, 23, 59, 59, 1), pa.timestamp("us"))
    assert partition_value(Column("k", HiveType.parse("timestamp")), scalar) == "9999-12-31 23:59:59.000001"


def test_partition_value_when_type_is_binary_then_invalid_table() -> None:
    with pytest.raises(InvalidTable, match="binary"):
        partition_value(Column("k", HiveType.parse("binary")), pa.scalar(b"x"))


@pytest.mark.parametrize(
    ("type_text", "text", "expected"),
    [
        ("int", "007", "7"), ("int", "+5", "5"), ("int", "-0", "0"), ("tinyint", "-128", "-128"),
        ("bigint", "9223372036854775807", "9223372036854775807"), ("smallint", "0012", "12"),
        ("float", "1", "1.0"), ("float", "16777217", "1.6777216E7"), ("float", "0.1", "0.1"),
        ("double", "1.50", "1.5"), ("double", "1e7", "1.0E7"), ("double", "-0", "-0.0"), ("double", "NaN", "NaN"),
        ("decimal(10,2)", "1.50", "1.5"), ("decimal(10,2)", "100", "100"), ("decimal(10,2)", "-0.00", "0"),
        ("decimal(10,2)", "007", "7"), ("decimal(10,2)", "1e2", "100"), ("boolean", "TRUE", "true"),
        ("date", "2026-1-5", "2026-01-05"), ("date", "0001-01-01", "0001-01-01"),
        ("timestamp", "2026-1-5", "2026-01-05 00:00:00"), ("timestamp", "2026-01-05T10:00", "2026-01-05 10:00:00"),
        ("timestamp", "2026-01-05 10:00:00.50", "2026-01-05 10:00:00.5"),
        ("timestamp", "1969-12-31 23:59:59.123456789", "1969-12-31 23:59:59.123456789"),
        ("timestamp", "9999-12-31 23:59:59.1", "9999-12-31 23:59:59.1"),
        ("char(5)", "ab", "ab   "), ("char(2)", "ab   ", "ab"), ("varchar(5)", "ab ", "ab "), ("string", " x", " x"),
        ("int", "", DEFAULT_PARTITION), ("char(5)", "", DEFAULT_PARTITION),
        ("date", DEFAULT_PARTITION, DEFAULT_PARTITION),
    ],
)  # fmt: skip
def test_static_value_when_valid_then_it_is_normalised(type_text: str, text: str, expected: str) -> None:
    assert static_partition_value(Column("k", HiveType.parse(type_text)), text) == expected


@pytest.mark.parametrize(
    ("type_text", "text"),
    [
        ("int", "abc"), ("int", "5.7"), ("int", " 7"), ("int", "2147483648"), ("int", "٣"), ("int", "NULL"),
        ("tinyint", "300"), ("bigint", "9223372036854775808"), ("float", "nan"), ("float", "1e39"), ("double", "1e400"),
        ("double", "1d"), ("decimal(10,2)", "1.555"), ("decimal(10,2)", "123456789.1"), ("boolean", "1"),
        ("boolean", "yes"), ("date", "2026-02-30"), ("date", "20260105"), ("timestamp", "2026-01-05 25:00:00"),
        ("timestamp", "2026-01-05 10:00:00Z"), ("timestamp", "9999-12-31 23:59:59.123456789"),
        ("varchar(2)", "abc"), ("char(2)", "abc"), ("string", "\ud800"), ("binary", "x"), ("string", "x" * 254),
        ("string", "/" * 85),
    ],
)  # fmt: skip
def test_static_value_when_invalid_for_the_type_then_invalid_table(type_text: str, text: str) -> None:
    with pytest.raises(InvalidTable) as caught:
        static_partition_value(Column("k", HiveType.parse(type_text)), text)
    assert "column k" in str(caught.value)


def test_odd_names_when_values_are_not_normalised_then_they_are_returned() -> None:
    columns = [Column("q", HiveType.parse("int")), Column("at", HiveType.parse("timestamp"))]
    odd = ["q=007/at=2026-01-05 10%3A00%3A00", "q=7/at=2026-01-05 10%3A00%3A00.0", "q=x/at=2026-01-05 10%3A00%3A00"]
    fine = ["q=7/at=2026-01-05 10%3A00%3A00", f"q={DEFAULT_PARTITION}/at={DEFAULT_PARTITION}"]
    assert odd_partition_names(columns, [*fine, *odd]) == odd
    assert odd_partition_names([Column("s", HiveType.parse("string"))], ["s=%2F", "s=007"]) == []
