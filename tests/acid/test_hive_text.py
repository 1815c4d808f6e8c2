"""The texts of values, which tests/cli/test_preview.py compares with those of HiveServer2."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from ingestd.acid.hive_text import hive_text
from ingestd.schema import HiveType


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("int", None, None),
        ("string", "", ""),
        ("char(4)", "ab", "ab  "),
        ("boolean", False, "false"),
        ("double", 1e10, "1.0E10"),
        ("decimal(10,3)", Decimal("1.500"), "1.500"),
        ("date", date(2026, 11, 1), "2026-11-01"),
        ("timestamp", datetime(2026, 11, 1, 10, 0, 0, 250_000), "2026-11-01 10:00:00.25"),
        ("binary", b"a\xff", "a\\xff"),
        ("array<decimal(10,3)>", [Decimal("1.500"), None], "[1.5,null]"),
        ("array<timestamp>", [datetime(2026, 11, 1)], '["2026-11-01 00:00:00"]'),
        ("map<int,string>", [(1, 'a"b'), (2, None)], '{1:"a\\"b",2:null}'),
        ("struct<a:float,b:array<boolean>>", {"a": 0.5, "b": [True]}, '{"a":0.5,"b":[true]}'),
        ("struct<a:int,b:int>", {"a": None, "b": 1}, '{"a":null,"b":1}'),
    ],
)
def test_text_of_a_value_then_is_that_of_hive(kind: str, value: object, text: str | None) -> None:
    parsed = HiveType.parse(kind)
    assert hive_text(parsed, pa.scalar(value, parsed.arrow)) == text
