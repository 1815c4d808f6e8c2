"""HiveServer2 reads values of every primitive type correctly: after loading, after updates and after compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingestd.sandbox import Addresses
from tests.support.compaction import compact
from tests.support.stack import Row, Stack

COLUMNS = {
    "id": "int",
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "num": "int",
    "big": "bigint",
    "single": "float",
    "dbl": "double",
    "wide": "decimal(38,18)",
    "money": "decimal(10,2)",
    "txt": "string",
    "var": "varchar(10)",
    "fix": "char(5)",
    "day": "date",
    "at": "timestamp",
    "raw": "binary",
}
# PyHive truncates timestamps to microseconds and does not support binary, so Hive casts them to strings.
AS_TEXT = {"day": "cast(day as string)", "at": "cast(at as string)", "raw": "hex(raw)"}
SELECT = ", ".join(AS_TEXT.get(name, name) for name in COLUMNS)

# A record and the expected value of each column. Columns that are not named must be NULL.
Case = tuple[dict[str, Any], dict[str, Any]]


def _same(**values: Any) -> Case:
    """Return a case in which the expected values are those of the record."""
    return values, values


DATES = ["0001-01-01", "1500-01-02", "1582-10-04", "1582-10-15", "1899-12-31", "1969-12-31", "1970-01-01", "2024-02-29"]
DATES += ["9999-12-31"]
TIMESTAMPS = {
    "0001-01-01 00:00:00": "0001-01-01 00:00:00",
    "0001-01-01 00:00:00.000001": "0001-01-01 00:00:00.000001",
    "1500-01-02 03:04:05.123456": "1500-01-02 03:04:05.123456",
    "1582-10-04 23:59:59": "1582-10-04 23:59:59",
    "1582-10-15 00:00:00": "1582-10-15 00:00:00",
    "1677-09-21 00:12:43": "1677-09-21 00:12:43",
    "1700-01-01 00:00:00.000000001": "1700-01-01 00:00:00.000000001",
    "1960-02-29 12:00:00.123456789": "1960-02-29 12:00:00.123456789",
    "1969-12-31 23:59:58.5": "1969-12-31 23:59:58.5",
    "1969-12-31 23:59:59": "1969-12-31 23:59:59",
    "1970-01-01 00:00:00": "1970-01-01 00:00:00",
    "1970-01-01T00:00:00.000000001": "1970-01-01 00:00:00.000000001",
    "2014-12-31 23:59:59.999999999": "2014-12-31 23:59:59.999999999",
    "2015-01-01": "2015-01-01 00:00:00",
    "2026-11-21T10:11": "2026-11-21 10:11:00",
    "2026-11-21T10:00:00Z": "2026-11-21 10:00:00",
    "2026-11-21T10:00:00.25+02:00": "2026-11-21 08:00:00.25",
    "2026-03-29 02:30:00": "2026-03-29 02:30:00",
    "2026-11-21 23:30:00-0130": "2026-11-22 01:00:00",
    "2262-04-12 00:00:00.5": "2262-04-12 00:00:00.5",
    "9999-12-31 23:59:59.999999": "9999-12-31 23:59:59.999999",
}
TEXTS = ["", " ", "äöü € 𝄞 漢字", "a\tb\nc\rd", "\u0001|,\\N", "NULL", '"quoted" \\ back', "x" * 5_000]

# Records that Arrow decodes as one batch (PLAIN), and records that are decoded one by one (ODD).
PLAIN: list[Case] = [
    _same(flag=True, tiny=127, small=32767, num=2**31 - 1, big=2**63 - 1, single=1.5, dbl=1.7976931348623157e308),
    _same(flag=False, tiny=-128, small=-32768, num=-(2**31), big=-(2**63), single=-1.5, dbl=5e-324),
    _same(tiny=0, small=0, num=0, big=0, single=0.0, dbl=0.0),
    _same(single=-0.0, dbl=-0.0),
    _same(single=3.4028234663852886e38, dbl=-2.2250738585072014e-308),
    _same(single=1.401298464324817e-45, dbl=0.1),
    ({}, {}),
    (dict.fromkeys(COLUMNS), {}),
    ({"unknown": {"deep": [1, {"x": None}]}, "num": 1}, {"num": 1}),
    ({"money": 12.34, "wide": 1.5}, {"money": Decimal("12.34"), "wide": Decimal("1.5")}),
    ({"money": 99999999.99}, {"money": Decimal("99999999.99")}),
    ({"money": -0.01, "wide": 0}, {"money": Decimal("-0.01"), "wide": Decimal(0)}),
    _same(txt="plain", var="0123456789", fix="12345"),
    ({"var": "", "fix": ""}, {"var": "", "fix": "     "}),
    ({"fix": "ab"}, {"fix": "ab   "}),
    _same(var="äöü€漢字𝄞890", fix="é漢𝄞xy"),
    ({"raw": "AAH/"}, {"raw": "0001FF"}),
    ({"raw": "hé!"}, {"raw": "68C3A921"}),
    ({"raw": ""}, {"raw": ""}),
    *(_same(txt=text) for text in TEXTS),
    *(_same(day=day) for day in DATES),
    *(({"at": given}, {"at": wanted}) for given, wanted in TIMESTAMPS.items()),
]
ODD: list[Case] = [
    ({"single": "NaN", "dbl": "NaN"}, {"single": float("nan"), "dbl": float("nan")}),
    ({"single": "Infinity", "dbl": "-Infinity"}, {"single": float("inf"), "dbl": float("-inf")}),
    ({"single": "-0.0", "dbl": "-0.0"}, {"single": -0.0, "dbl": -0.0}),
    ({"NUM": 7, "Txt": "other case", "AT": "2026-01-01"}, {"num": 7, "txt": "other case", "at": "2026-01-01 00:00:00"}),
    ({"num": 1, "Num": 2}, {"num": 2}),
    ({"flag": "TRUE", "tiny": "5", "small": 5.0, "num": 1e3}, {"flag": True, "tiny": 5, "small": 5, "num": 1000}),
    ({"txt": 12.50, "var": True}, {"txt": "12.5", "var": "true"}),
    ({"txt": {"a": [1, "é"]}}, {"txt": '{"a":[1,"é"]}'}),
    (
        {"wide": "12345678901234567890.123456789012345678", "money": "-99999999.99"},
        {"wide": Decimal("12345678901234567890.123456789012345678"), "money": Decimal("-99999999.99")},
    ),
    (
        {"wide": "-99999999999999999999.999999999999999999"},
        {"wide": Decimal("-99999999999999999999.999999999999999999")},
    ),
    ({"wide": "0.000000000000000001", "money": "1e3"}, {"wide": Decimal("1e-18"), "money": Decimal(1000)}),
    *(({"at": given, "num": "1"}, {"at": wanted, "num": 1}) for given, wanted in TIMESTAMPS.items()),
    *(({"day": day, "num": "1"}, {"day": day, "num": 1}) for day in DATES),
]
CASES = PLAIN + ODD


def _comparable(name: str, value: Any) -> Any:
    """Convert a value so that NaN equals NaN and -0.0 differs from 0.0. Floats are rounded to single precision."""
    if value is None or name not in {"single", "dbl"}:
        return value
    return repr(np.float32(value)) if name == "single" else repr(float(value))


class _Types:
    """The table and its expected rows."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.rows: dict[int, dict[str, Any]] = {n: {"id": n} | wanted for n, (_, wanted) in enumerate(CASES)}

    def load(self) -> None:
        """Load PLAIN and ODD from separate topics, because one odd record makes a whole batch decode one by one."""
        odd = self.stack.topic(1, f"{self.stack.name}-odd")
        self.stack.topic(1)
        self.stack.table(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))
        records = [record | {"id": n} for n, (record, _) in enumerate(CASES)]
        self.stack.produce(records[: len(PLAIN)])
        self.stack.produce(records[len(PLAIN) :], odd)
        self.stack.drain(self.stack.config({"topics": [self.stack.name, odd]}))

    def select(self, order: str = "") -> list[Row]:
        return self.stack.sql(f"SELECT {SELECT} FROM {self.stack.name}{order}")

    def check(self, how: str) -> None:
        """Compare the rows of a fetch task and of Tez, which read different metadata, with the expected rows."""
        for order in ("", " ORDER BY id"):
            found = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in self.select(order)}
            assert sorted(found) == sorted(self.rows), how
            wrong = [
                f"{how}{order}: row {n} {name}: {found[n][name]!r} instead of {row.get(name)!r}"
                for n, row in self.rows.items()
                for name in COLUMNS
                if _comparable(name, found[n][name]) != _comparable(name, row.get(name))
            ]
            assert not wrong, "\n".join(wrong)

    def update(self, chosen: Callable[[int], bool], where: str) -> None:
        self.stack.sql(f"UPDATE {self.stack.name} SET var = 'changed' WHERE {where}")
        for n, row in self.rows.items():
            if chosen(n):
                row["var"] = "changed"

    def delete(self, chosen: Callable[[int], bool], where: str) -> None:
        self.stack.sql(f"DELETE FROM {self.stack.name} WHERE {where}")
        self.rows = {n: row for n, row in self.rows.items() if not chosen(n)}


@pytest.fixture(scope="module")
def types(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Types]:
    with Stack(addresses, "types", Path(tmp_path_factory.mktemp("types"))) as stack:
        table = _Types(stack)
        table.load()
        yield table


def test_values_when_read_back_then_are_equal(types: _Types) -> None:
    types.check("after loading")


def test_select_star_when_run_as_a_fetch_task_then_returns_all_rows(types: _Types) -> None:
    rows = types.stack.sql(f"SELECT * FROM {types.stack.name}")
    assert len(rows) == len(CASES)
    assert all(len(row) == len(COLUMNS) for row in rows)


def _matching(name: str, kind: str, values: list[str]) -> list[tuple[str, list[int]]]:
    literals = [f"{kind} '{value}'" for value in values]
    return [
        (f"{name} = {literal}", [n for n, (_, wanted) in enumerate(CASES) if wanted.get(name) == value])
        for literal, value in zip(literals, values, strict=True)
    ]


def test_filters_when_pushed_into_orc_then_find_every_row(types: _Types) -> None:
    searches = [
        *_matching("day", "date", ["0001-01-01", "1500-01-02", "1582-10-04", "1969-12-31", "9999-12-31"]),
        *_matching(
            "at",
            "timestamp",
            [
                "0001-01-01 00:00:00",
                "1500-01-02 03:04:05.123456",
                "1969-12-31 23:59:58.5",
                "2014-12-31 23:59:59.999999999",
            ],
        ),
        ("big = 9223372036854775807", [0]),
        ("wide = 12345678901234567890.123456789012345678BD", [len(PLAIN) + 8]),
        ("fix = '12345'", [n for n, (_, wanted) in enumerate(CASES) if wanted.get("fix") == "12345"]),
        ("var = 'äöü€漢字𝄞890'", [n for n, (_, wanted) in enumerate(CASES) if wanted.get("var") == "äöü€漢字𝄞890"]),
    ]
    for where, wanted in searches:
        assert wanted, where
        found = types.stack.sql(f"SELECT id FROM {types.stack.name} WHERE {where}")
        assert sorted(row[0] for row in found) == wanted, where


def test_extremes_when_computed_by_tez_then_are_equal(types: _Types) -> None:
    answer = types.stack.sql(
        "SELECT max(tiny), min(tiny), max(small), min(small), max(num), min(num), max(big), min(big), max(wide), "
        "min(wide), max(money), min(money), cast(min(day) as string), cast(max(day) as string), "
        f"cast(min(at) as string), cast(max(at) as string), count(flag), count(raw) FROM {types.stack.name}"
    )
    flags, raws = (sum(wanted.get(name) is not None for _, wanted in CASES) for name in ("flag", "raw"))
    assert answer == [
        (
            *(127, -128, 32767, -32768, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)),
            *(Decimal("12345678901234567890.123456789012345678"), Decimal("-99999999999999999999.999999999999999999")),
            *(Decimal("99999999.99"), Decimal("-99999999.99"), "0001-01-01", "9999-12-31"),
            *("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", flags, raws),
        )
    ]


def test_values_when_updated_deleted_and_compacted_then_are_equal(types: _Types) -> None:
    types.update(lambda n: n % 5 == 0, "id % 5 = 0")
    types.delete(lambda n: n % 7 == 0, "id % 7 = 0")
    types.check("after changes")
    compact(types.stack, f"default.{types.stack.name}", "minor")
    types.check("after minor compaction")
    compact(types.stack, f"default.{types.stack.name}", "major")
    types.check("after major compaction")
