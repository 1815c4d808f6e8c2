"""HiveServer2 reads every element of arrays, maps and structs correctly, before and after compaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingestd.sandbox import Addresses
from tests.support.compaction import compact
from tests.support.stack import Stack

# No array contains a decimal of 18 digits or less. With Tez, Hive 4.0.1 cannot read such arrays, even its own.
COLUMNS = (
    "id int, a array<int>, m map<string,double>, s struct<a:int,b:string,t:timestamp,d:date>, "
    "l array<struct<x:int,s:struct<y:string,z:struct<w:decimal(30,2)>>,t:timestamp>>, "
    "n struct<s:struct<x:int,y:array<string>>,v:int>, k map<int,array<date>>, f struct<c:char(3),r:binary,g:boolean>"
)
# The expressions selected from every row, and their values when the column is NULL.
LEAVES: dict[str, Any] = {
    "a[0]": None,
    "a[1]": None,
    "size(a)": -1,
    "m['k']": None,
    "m['ü']": None,
    "size(m)": -1,
    "s IS NULL": True,
    "s.a": None,
    "s.b": None,
    "cast(s.t AS string)": None,
    "cast(s.d AS string)": None,
    "size(l)": -1,
    "l[0].x": None,
    "l[0].s.y": None,
    "cast(l[0].s.z.w AS string)": None,
    "l[1] IS NULL": True,
    "l[1].x": None,
    "l[1].s.y": None,
    "cast(l[1].t AS string)": None,
    "n IS NULL": True,
    "n.s IS NULL": True,
    "n.s.x": None,
    "n.s.y[0]": None,
    "size(n.s.y)": -1,
    "n.v": None,
    "cast(k[1][0] AS string)": None,
    "size(k[1])": -1,
    "size(k)": -1,
    "f.c": None,
    "hex(f.r)": None,
    "f.g": None,
}
Case = tuple[dict[str, Any], dict[str, Any]]


def _stamp(text: str) -> Case:
    """Return a case with a timestamp in a struct and the same timestamp in an array of structs."""
    record = {"s": {"t": text}, "l": [None, {"t": text}]}
    told = {"cast(s.t AS string)": text, "cast(l[1].t AS string)": text}
    return record, {"s IS NULL": False, "size(l)": 2, "l[1] IS NULL": False} | told


def _day(text: str) -> Case:
    record = {"s": {"d": text}, "k": {"1": [text, None]}}
    told = {"cast(s.d AS string)": text, "cast(k[1][0] AS string)": text}
    return record, {"s IS NULL": False, "size(k)": 1, "size(k[1])": 2} | told


STAMPS = [
    "0001-01-01 00:00:00.000001",
    "1500-01-02 03:04:05.123456",
    "1582-10-04 23:59:59",
    "1582-10-15 00:00:00",
    "1700-01-01 00:00:00.000000001",
    "1969-12-31 23:59:58.5",
    "1970-01-01 00:00:00",
    "2026-11-21 10:11:12.123456789",
    "9999-12-31 23:59:59.999999",
]
DAYS = ["0001-01-01", "1500-01-02", "1582-10-04", "1582-10-15", "1969-12-31", "2024-02-29", "9999-12-31"]
CASES: list[Case] = [
    ({}, {}),
    (dict.fromkeys("amslnkf"), {}),
    ({"a": [], "m": {}, "l": [], "k": {}}, {"size(a)": 0, "size(m)": 0, "size(l)": 0, "size(k)": 0}),
    ({"a": [1, None, 3]}, {"a[0]": 1, "size(a)": 3}),
    ({"a": ["-2147483648", 2147483647]}, {"a[0]": -(2**31), "a[1]": 2**31 - 1, "size(a)": 2}),
    ({"A": list(range(5000))}, {"a[0]": 0, "a[1]": 1, "size(a)": 5000}),
    ({"m": {"k": 0.1, "ü": None, "K": 3}}, {"m['k']": 0.1, "size(m)": 3}),
    ({"m": {"": 1, "ü": "-2.5"}}, {"m['ü']": -2.5, "size(m)": 2}),
    ({"s": {}}, {"s IS NULL": False}),
    ({"s": {"A": 1, "b": "x", "other": 5}}, {"s IS NULL": False, "s.a": 1, "s.b": "x"}),
    ({"s": {"a": 2, "b": ""}}, {"s IS NULL": False, "s.a": 2, "s.b": ""}),
    (
        {"l": [{"x": 1, "s": {"y": "p", "z": {"w": 12.5}}}, {"x": 2, "s": {"y": "q"}}]},
        {"size(l)": 2, "l[0].x": 1, "l[0].s.y": "p", "cast(l[0].s.z.w AS string)": "12.50", "l[1] IS NULL": False}
        | {"l[1].x": 2, "l[1].s.y": "q"},
    ),
    (
        {"l": [{"x": 3, "s": None}, {"x": 4, "s": {"y": "r", "z": None}}]},
        {"size(l)": 2, "l[0].x": 3, "l[1] IS NULL": False, "l[1].x": 4, "l[1].s.y": "r"},
    ),
    ({"l": [None, {"x": 5, "s": {"y": "t"}}]}, {"size(l)": 2, "l[1] IS NULL": False, "l[1].x": 5, "l[1].s.y": "t"}),
    ({"l": [{}, None]}, {"size(l)": 2}),
    ({"n": {"s": None, "v": 6}}, {"n IS NULL": False, "n.v": 6}),
    (
        {"n": {"s": {"x": 7, "y": ["u", None]}, "v": None}},
        {"n IS NULL": False, "n.s IS NULL": False, "n.s.x": 7, "n.s.y[0]": "u", "size(n.s.y)": 2},
    ),
    (
        {"n": {"s": {"x": None, "y": []}, "v": 8}},
        {"n IS NULL": False, "n.s IS NULL": False, "size(n.s.y)": 0, "n.v": 8},
    ),
    ({"k": {"1": None, "2.0": []}}, {"size(k)": 2}),
    (
        {"f": {"c": "ab", "r": "AAH/", "g": "TRUE"}},
        {"f.c": "ab ", "hex(f.r)": "0001FF", "f.g": True},
    ),
    *map(_stamp, STAMPS),
    *map(_day, DAYS),
]


class _Complex:
    """The table and its expected rows."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.rows = {n: {"id": n} | LEAVES | told for n, (_, told) in enumerate(CASES * 3)}

    def load(self) -> None:
        """Load the table in three transactions, so that a compaction reads several deltas."""
        self.stack.topic(1)
        self.stack.table(COLUMNS)
        for part in range(3):
            records = [record | {"id": part * len(CASES) + n} for n, (record, _) in enumerate(CASES)]
            self.stack.produce(records)
            self.stack.drain()

    def delete(self) -> None:
        self.stack.sql(f"DELETE FROM {self.stack.name} WHERE id % 7 = 0")
        self.rows = {n: row for n, row in self.rows.items() if n % 7}

    def check(self, how: str) -> None:
        """Compare the results of a fetch task and of Tez with the expected rows."""
        names = ["id", *LEAVES]
        for order in ("", " ORDER BY id"):
            answer = self.stack.sql(f"SELECT {', '.join(names)} FROM {self.stack.name}{order}")
            found = {row[0]: dict(zip(names, row, strict=True)) for row in answer}
            assert len(answer) == len(found), how
            assert sorted(found) == sorted(self.rows), how
            wrong = [
                f"{how}{order}: row {n} {leaf}: {found[n][leaf]!r} instead of {row[leaf]!r}"
                for n, row in self.rows.items()
                for leaf in names
                if found[n][leaf] != row[leaf]
            ]
            assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def table(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Complex]:
    with Stack(addresses, "complex", Path(tmp_path_factory.mktemp("complex"))) as stack:
        made = _Complex(stack)
        made.load()
        yield made


def test_leaves_when_read_back_then_are_equal(table: _Complex) -> None:
    table.check("after loading")


def test_rows_when_exploded_or_selected_whole_then_are_complete(table: _Complex) -> None:
    name = table.stack.name
    assert len(table.stack.sql(f"SELECT * FROM {name}")) == len(table.rows)
    elements = sum(row["size(a)"] for row in table.rows.values() if row["size(a)"] > 0)
    exploded = f"SELECT count(*) FROM {name} LATERAL VIEW explode(a) e AS v WHERE v IS NOT NULL"
    assert table.stack.sql(exploded) == [(elements - 3,)]  # one null element in each of three rows


def test_leaves_when_compacted_then_are_equal(table: _Complex) -> None:
    compact(table.stack, f"default.{table.stack.name}", "minor")
    table.check("after minor compaction")
    table.delete()
    table.check("after a delete")
    compact(table.stack, f"default.{table.stack.name}", "major")
    table.check("after major compaction")
