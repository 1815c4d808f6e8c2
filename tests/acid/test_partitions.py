"""Partition texts are Hive's, and routing loses, doubles and reorders nothing."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.acid import DEFAULT_PARTITION, partition_name, partition_value, route
from ingestd.errors import InvalidTable
from ingestd.schema import Column, HiveType


def test_partition_name_when_special_characters_then_escaped_as_hive() -> None:
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
def test_partition_value_when_typed_scalar_then_hive_text(type_text: str, value: object, expected: str) -> None:
    column = Column("k", HiveType.parse(type_text))
    assert partition_value(column, pa.scalar(value, column.type.arrow)) == expected


def test_partition_value_when_far_year_then_text() -> None:
    scalar = pa.scalar(datetime(9999, 12, 31, 23, 59, 59, 1), pa.timestamp("us"))
    assert partition_value(Column("k", HiveType.parse("timestamp")), scalar) == "9999-12-31 23:59:59.000001"


def test_partition_value_when_binary_then_invalid_table() -> None:
    with pytest.raises(InvalidTable, match="binary"):
        partition_value(Column("k", HiveType.parse("binary")), pa.scalar(b"x"))


DATA = [Column("n", HiveType.parse("bigint"))]
KEYS = [
    Column("day", HiveType.parse("date")),
    Column("city", HiveType.parse("string")),
    Column("q", HiveType.parse("int")),
]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.dates(date(2026, 1, 1), date(2026, 1, 3))),
            st.sampled_from([None, "", "a", "b", "ä/b"]),
            st.sampled_from([None, 0, 1]),
        ),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_route_when_any_rows_then_each_row_once_in_order(
    keys: list[tuple[date | None, str | None, int | None]], width: int
) -> None:
    arrays = [pa.array(range(len(keys)), pa.int64())]
    arrays += [pa.array([key[place] for key in keys], column.type.arrow) for place, column in enumerate(KEYS)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["n", "day", "city", "q"])
    routed = route(batch, DATA, KEYS[:width])
    expected: dict[tuple[str, ...], list[int]] = {}
    for number, key in enumerate(keys):
        texts = tuple(DEFAULT_PARTITION if part in (None, "") else str(part) for part in key[:width])
        expected.setdefault(texts, []).append(number)
    assert {one.values: one.rows.column("n").to_pylist() for one in routed} == expected
    assert len(routed) == len(expected)
    assert all(one.rows.schema.names == ["n"] for one in routed)
