"""`where` and `transform`: one topic fills several tables, whose rows Spark SQL computes exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ingestd.sandbox import Addresses
from tests.support.daemon import DaemonThread
from tests.support.stack import Stack

# One topic of two kinds. Record 5 has neither kind, record 6 is malformed, and record 7 has a kind of another type.
ROUTED: list[Any] = [
    *({"id": n, "kind": "order" if n % 2 else "click", "amount": f"{n}.50"} for n in range(5)),
    {"id": 5, "amount": "1"},
    b"{oops",
    {"id": 7, "kind": {"a": 1}, "amount": "x"},
]
BASKETS: list[Any] = [
    {
        "id": 1,
        "at": "2026-11-24 23:59:59.123456",
        "who": {"name": "Ada", "zip": 7},
        "items": [{"sku": "a", "price": "1.25", "n": 2}, {"sku": "b", "price": "oops", "n": 1}],
    },
    b"[]",
    {"id": 2, "at": "1969-12-31 00:00:00.5", "who": None, "items": [{"sku": "c", "price": "3", "n": 1}]},
    {"id": "three", "at": None, "who": None, "items": []},
    {"id": 4, "at": "2026-11-25 00:00:00", "who": {"name": "Bob"}, "items": []},
]
_TRANSFORM = {
    "columns": {
        "id": "bigint",
        "at": "timestamp",
        "who": "struct<name:string,zip:int>",
        "items": "array<struct<sku:string,price:string,n:int>>",
        "place": "bigint",
    },
    "select": """
        SELECT id, upper(who.name) AS name, item.sku, try_cast(item.price AS decimal(8,2)) AS price,
          CAST(item.n AS smallint) AS n, at, place, named_struct('zip', who.zip) AS home, to_date(at) AS day
        FROM records LATERAL VIEW explode(items) AS item
        WHERE id IS NOT NULL -- always true
    """,
}


class _Cases:
    """The mappings and the daemon that has run them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.mappings: list[dict[str, Any]] = []
        self.daemon: DaemonThread

    def name(self, case: str) -> str:
        return f"{self.stack.name}_{case}"[-40:]

    def add(self, case: str, topic: str, table: str, partitioned: str = "", **options: Any) -> None:
        """Add a mapping whose dead letters are written to one table."""
        name = f"default.{self.name(case)}"
        self.stack.table(table, partitioned, name)
        letters = {"on_error": "dead_letter", "dead_letter": {"table": f"default.{self.stack.name}_dead"}}
        self.mappings.append({"name": self.name(case), "topics": [topic], "table": name} | letters | options)

    def sql(self, case: str, columns: str, order: str = "id") -> list[tuple[Any, ...]]:
        return list(self.stack.sql(f"SELECT {columns} FROM default.{self.name(case)} ORDER BY {order}"))

    def failed(self, case: str) -> dict[str, Any]:
        [event] = [logged for logged in self.daemon.events("failed") if logged["mapping"] == self.name(case)]
        return event


@pytest.fixture(scope="module")
def cases(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cases]:
    with Stack(addresses, "transform", Path(tmp_path_factory.mktemp("transform"))) as stack:
        made = _Cases(stack)
        routed, baskets = stack.topic(1, f"{stack.name}_routed"), stack.topic(1, f"{stack.name}_baskets")
        stack.produce(ROUTED, routed)
        stack.produce(BASKETS, baskets)
        kinds = "id int, kind string, amount string"
        made.add("orders", routed, kinds, where="kind = 'order' AND id > 0")
        made.add("clicks", routed, kinds, where="kind = 'click'")
        made.add(
            "items",
            baskets,
            "id bigint, name varchar(10), sku string, price decimal(10,2), n int, at timestamp, place bigint,"
            " home struct<zip:int>, added string",
            "day date",
            columns={"place": "offset"},
            where="id < 100",
            transform=_TRANSFORM,
        )
        kind = {"columns": {"kind": "string"}}
        made.add("cast", routed, "n int", transform=kind | {"select": "SELECT CAST(kind AS int) n FROM records"})
        made.add("long", routed, "t varchar(3)", transform=kind | {"select": "SELECT kind AS t FROM records"})
        late = {"columns": {"id": "int", "kind": "string"}, "select": "SELECT IF(id > 3, kind, '') AS t FROM records"}
        made.add("late", routed, "t varchar(3)", transform=late)
        keys = {"columns": {"id": "int"}, "select": "SELECT str_to_map(IF(id > 3, 'a:1,a:2', 'a:1')) AS m FROM records"}
        made.add("keys", routed, "m map<string,string>", transform=keys)
        made.add("pattern", routed, kinds, where="kind RLIKE IF(id > 3, '(', 'click')")
        made.add("sums", routed, "n bigint", transform={"select": "SELECT count(*) AS n FROM records"})
        made.add("types", routed, "n int", transform={"select": "SELECT n * 2L AS n FROM records"})
        made.add("names", routed, "n int", transform={"select": "SELECT n AS m FROM records"})
        made.add("false", routed, "n int", where="1 = 2")
        made.add("constant", routed, kinds, where="id = 'x'")
        made.add("none", routed, kinds, where="id > 100")
        deletes = stack.topic(1, f"{stack.name}_deletes")
        stack.produce([{"id": 7}, None, {"id": 8}], deletes)
        made.add(
            "deletes",
            deletes,
            "k string, is_deleted boolean",
            format={"tombstones": "null_row"},
            columns={"k": "key"},
            transform={
                "columns": {"k": "string", "id": "int"},
                "select": "SELECT k, id IS NULL AS is_deleted FROM records WHERE id IS NULL OR id > 7",
            },
        )
        made.daemon = stack.drain(stack.config(*made.mappings), expect=78)
        yield made


def _letters(cases: _Cases, case: str) -> list[tuple[int, str]]:
    table = f"default.{cases.stack.name}_dead"
    chosen = f"mapping = '{cases.name(case)}'"
    return list(
        cases.stack.sql(f"SELECT record_offset, error_column FROM {table} WHERE {chosen} ORDER BY record_offset")
    )


def test_where_when_mappings_share_a_topic_then_each_table_has_its_rows(cases: _Cases) -> None:
    assert cases.sql("orders", "id, kind, amount") == [(1, "order", "1.50"), (3, "order", "3.50")]
    assert cases.sql("clicks", "id, kind") == [(0, "click"), (2, "click"), (4, "click")]
    for case, rows in (("orders", 2), ("clicks", 3)):
        assert cases.stack.count(name=f"default.{cases.name(case)}") == rows
        assert _letters(cases, case)[0] == (6, "")
        commits = [event for event in cases.daemon.events("committed") if event["mapping"] == cases.name(case)]
        [event] = [commit for commit in commits if commit["records"]]
        assert (event["records"], event["rows"], event["decoded"]) == (8, rows, 8 - event["rejects"])


def test_transform_when_it_explodes_and_casts_then_its_result_is_stored(cases: _Cases) -> None:
    late, early = datetime(2026, 11, 24, 23, 59, 59, 123456), datetime(1969, 12, 31, 0, 0, 0, 500000)
    shown = cases.sql("items", "id, name, sku, price, n, at, place, home.zip, added, day", "id, sku")
    assert shown == [
        (1, "ADA", "a", Decimal("1.25"), 2, late, 0, 7, None, "2026-11-24"),
        (1, "ADA", "b", None, 1, late, 0, 7, None, "2026-11-24"),
        (2, None, "c", Decimal("3.00"), 1, early, 2, None, None, "1969-12-31"),
    ]
    assert cases.stack.count(name=f"default.{cases.name('items')}") == 3
    assert _letters(cases, "items") == [(1, ""), (3, "id")]


def test_where_when_it_is_true_for_no_row_then_the_offsets_are_committed(cases: _Cases) -> None:
    name = cases.name("none")
    assert cases.sql("none", "id") == []
    assert cases.stack.count(name=f"default.{name}") == 0
    assert cases.stack.group_offsets(f"ingestd-{name}", f"{cases.stack.name}_routed", 1) == [len(ROUTED)]
    assert [offset for offset, _ in _letters(cases, "none")] == [6]


def test_transform_when_tombstones_are_rows_then_the_query_reads_them(cases: _Cases) -> None:
    assert cases.sql("deletes", "k, is_deleted", "k") == [("2", True), ("3", False)]


@pytest.mark.parametrize(
    ("case", "reason", "text"),
    [
        ("cast", "QueryFailed", "[CAST_INVALID_INPUT] The value 'click' of the type \"STRING\" cannot be cast"),
        ("cast", "QueryFailed", "_routed[0] offset 0, "),
        ("long", "RecordError", "a text of 5 characters is longer than varchar(3)"),
        ("long", "RecordError", "_routed[0] offset 0, transform.select, column t"),
        ("late", "RecordError", "_routed[0] offset 4, transform.select, column t"),
        ("keys", "QueryFailed", "_routed[0] offset 4, "),
        ("keys", "QueryFailed", "[DUPLICATED_MAP_KEY] Duplicate map key"),
        ("pattern", "QueryFailed", "_routed[0] offset 4, "),
        ("pattern", "QueryFailed", "java.util.regex.PatternSyntaxException: Unclosed group"),
        ("sums", "ConfigError", "an aggregation is not allowed"),
        ("types", "ConfigError", "the result has the type bigint, but the column of the table has the type int"),
        ("names", "ConfigError", "the table has no such column"),
        ("false", "ConfigError", "the predicate is never true"),
        ("constant", "ConfigError", "[CAST_INVALID_INPUT] The value 'x' of the type"),
    ],
)
def test_query_when_it_cannot_be_used_then_the_mapping_stops_and_stores_nothing(
    cases: _Cases, case: str, reason: str, text: str
) -> None:
    failed = cases.failed(case)
    assert (failed["reason"], text in failed["error"]) == (reason, True), failed
    assert cases.sql(case, "*", "1") == []
    assert _letters(cases, case) == []
