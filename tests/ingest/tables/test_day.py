"""A day in which schemas and tables change, with SQL: killed between any two steps, each row is stored exactly once.

Three mappings read one topic. Two divide its records among tables by `where`, and alter these tables for new fields and
wider types; the third computes its rows with `transform`. Two producers write records of different schemas.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from ingestd.hive.objects import alter_table, find_table
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import open_transactions
from ingestd.ingest.steps import STEPS
from tests.support.avro import encode, logical, schema_of, single_object
from tests.support.daemon import Daemon
from tests.support.stack import Stack

BIG = 2**40
HOUR = 240  # records
_COMMIT = {"rows": 80, "interval": "1s"}


def _struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "s", "fields": [{"name": name, "type": kind} for name, kind in fields]}


_ITEMS = {"type": "array", "items": _struct(("sku", "string"), ("price", "string"))}
_FIRST = {"id": "int", "kind": "string", "n": "int", "s": _struct(("x", "int")), "items": _ITEMS}
_AMOUNT = {"amount": ["null", logical("bytes", "decimal", precision=9, scale=2)]}
_WIDER = {"n": "long", "s": _struct(("x", "long"), ("Y", ["null", "string"]))}
_ZIP = {"s": _struct(("Y", ["null", "string"]), ("zip", "int"), ("x", "long")), "note": "string"}
_TAGS = {"tags": {"type": "array", "items": "string"}}
# The schemas of a producer: a new field, wider types and a new field of a struct, a new array, and both once more.
_VERSIONS = [
    schema_of(fields)
    for fields in (
        _FIRST,
        _FIRST | _AMOUNT,
        _FIRST | _AMOUNT | _WIDER,
        _TAGS | _FIRST | _AMOUNT | _WIDER,
        _TAGS | _FIRST | _AMOUNT | _WIDER | _ZIP,
    )
]
_ITEM_TYPE = "array<struct<sku:string,price:string>>"
_COLUMNS = "id int, kind string, n int, s struct<x:int>"
_SELECT = """
    SELECT id, upper(item.sku) AS sku, try_cast(item.price AS decimal(6,2)) AS price, n % 7 AS rest
    FROM records LATERAL VIEW explode(items) AS item WHERE kind = 'order' OR n % 2 = 0
"""


class _Day:
    """The topic, the tables, and the records that have been produced, each with the version of its schema."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.versions: list[int] = []
        # From this order on, `amount` is stored in a column that was added after the first one was renamed.
        self.renamed_at: int | None = None
        stack.topic(2)
        self.tables = {
            "orders": stack.table(_COLUMNS, name=f"default.{stack.name}_orders"),
            "clicks": stack.table(_COLUMNS, "day string", f"default.{stack.name}_clicks"),
            "items": stack.table(
                "id int, sku string, price decimal(8,2), rest bigint, unused string", "p int", f"default.{stack.name}_i"
            ),
        }
        avro = {"type": "avro", "framing": "single_object", "schemas": _VERSIONS}
        select = {"columns": {"id": "int", "kind": "string", "n": "bigint", "items": _ITEM_TYPE}, "select": _SELECT}
        keys: dict[str, dict[str, Any]] = {
            "orders": {"where": "kind = 'order'", "schema_evolution": "widen"},
            "clicks": {"where": "kind = 'click'", "schema_evolution": "widen", "partition": {"day": "monday"}},
            "items": {"transform": select, "partition": {"p": 1}},
        }
        self.config = stack.config(
            *(
                {"name": self.mapping(case), "table": self.tables[case], "format": avro, "commit": _COMMIT} | more
                for case, more in keys.items()
            )
        )

    def mapping(self, case: str) -> str:
        return f"{self.stack.name}_{case}"[-40:]

    def produce(self, newest: int, records: int = HOUR) -> None:
        """Produce records of the newest schema, and, from the other producer, of the one before."""
        first = len(self.versions)
        self.versions += [max(0, newest - n % 2) for n in range(first, first + records)]
        for partition in range(2):
            numbers = range(first + (first + partition) % 2, first + records, 2)
            self.stack.produce(map(self._record, numbers), partition=partition)

    def _record(self, n: int) -> bytes:
        schema = _VERSIONS[self.versions[n]]
        return single_object(schema, encode(schema, self.value(n)))

    def value(self, n: int) -> dict[str, Any]:
        """Return all fields of a record. Its schema contains some of them."""
        number = BIG + n if self.versions[n] >= 2 else n
        items = [{"sku": f"a{n}", "price": f"{n}.5"}, {"sku": "b", "price": "free"}][: n % 3]
        return {
            "id": n,
            "kind": "click" if n % 3 == 2 else "order",
            "n": number,
            "s": {"x": number, "Y": f"y{n}", "zip": n},
            "items": items,
            "amount": Decimal(n) / 4,
            "tags": [f"t{n}"],
            "note": f"note {n}",
        }

    def fields(self, n: int) -> tuple[Any, ...]:
        """Return what Hive reads: id, n, s.x, s.y, s.zip, amount, the first of tags, note."""
        value, version = self.value(n), self.versions[n]
        since = zip((2, 4, 1, 3, 4), (f"y{n}", n, value["amount"], f"t{n}", f"note {n}"), strict=True)
        return (n, value["n"], value["n"], *(part if version >= first else None for first, part in since))

    def items(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that `transform` makes of all records."""
        for n in range(len(self.versions)):
            value = self.value(n)
            if value["kind"] == "order" or value["n"] % 2 == 0:
                for item in value["items"]:
                    price = None if item["price"] == "free" else Decimal(item["price"])
                    yield n, item["sku"].upper(), price, value["n"] % 7

    def ids(self, case: str) -> list[int]:
        return self.stack.ids(self.tables[case])

    def open(self) -> list[int]:
        return open_transactions(self.stack.metastore, f"ingestd/ingestd/{self.stack.name}_")

    def require_no_row_twice(self, when: str) -> None:
        """Fail if a table contains a row more than once."""
        for case in ("orders", "clicks"):
            visible = self.ids(case)
            assert visible == sorted(set(visible)), f"{case}, {when}"
        rows = self.stack.sql(f"SELECT id, sku FROM {self.tables['items']}")
        assert len(rows) == len(set(rows)), f"items, {when}"

    def require_all(self) -> None:
        """Fail unless each table contains the rows of all records, with their values in the right columns."""
        stored = "id, n, s.x, s.y, s.zip, amount, tags[0], note"
        for case, kind in (("orders", "order"), ("clicks", "click")):
            wanted = [self.fields(n) for n in range(len(self.versions)) if self.value(n)["kind"] == kind]
            columns, renamed = stored, self.renamed_at if case == "orders" else None
            if renamed is not None:
                columns = f"{stored.replace('amount', 'coalesce(price, amount)')}, price, amount"
            rows = self.stack.sql(f"SELECT {columns} FROM {self.tables[case]} ORDER BY id")
            assert [row[:8] for row in rows] == wanted, case
            if renamed is not None:
                assert all(row[9 if row[0] < renamed else 8] is None for row in rows)
            assert self.stack.count(name=self.tables[case]) == len(wanted)
        rows = self.stack.sql(f"SELECT id, sku, price, rest FROM {self.tables['items']} ORDER BY id, sku")
        assert rows == sorted(self.items(), key=lambda row: row[:2])
        assert self.open() == []

    def columns(self, case: str) -> dict[str, str]:
        """Return the types of the columns that are not partition columns."""
        names = [row[:2] for row in self.stack.sql(f"DESCRIBE {self.tables[case]}")]
        return {name: kind for name, kind in names if name and not name.startswith("#") and name not in ("p", "day")}


# The columns that the tables get for the records.
_EVOLVED = {
    "n": "bigint",
    "s": "struct<x:bigint,y:string,zip:int>",
    "amount": "decimal(9,2)",
    "tags": "array<string>",
    "items": _ITEM_TYPE,
    "note": "string",
}


def _rename_and_drop(day: _Day, newest: int) -> None:
    """Change two tables as users might, produce the records of an hour, and accept the changes when mappings stop."""
    stack, before = day.stack, {case: day.ids(case) for case in ("orders", "items")}
    stack.sql(f"ALTER TABLE {day.tables['orders']} CHANGE COLUMN amount price decimal(9,2)")
    # HiveServer2 refuses to drop a column of an ORC table, but other clients of the metastore can.
    name = TableName.parse(day.tables["items"])
    table = find_table(stack.metastore, name)
    assert table is not None
    table.raw.sd.cols = table.raw.sd.cols[:-1]
    alter_table(stack.metastore, name, table)

    day.renamed_at = len(day.versions)
    day.produce(newest, HOUR // 2)
    stopped = stack.drain(day.config, expect=65)
    failed = {event["mapping"]: event["error"] for event in stopped.events("failed")}
    assert set(failed) == {day.mapping("orders"), day.mapping("items")}
    assert "amount decimal(9,2) was removed or renamed" in failed[day.mapping("orders")]
    assert "unused string was removed or renamed" in failed[day.mapping("items")]
    assert {case: day.ids(case) for case in before} == before
    for case in before:
        command = [sys.executable, "-m", "ingestd", "mappings", "resume", day.mapping(case), "--config", day.config]
        subprocess.run(list(map(str, command)), check=True)
    day.produce(newest, HOUR // 2)


def _kill(day: _Day, steps: Sequence[str]) -> Daemon:
    """Kill a process in which each mapping waits after its own step: the first of `day.tables` after the first one."""
    pairs = zip(day.tables, steps, strict=False)
    killed, _ = day.stack.start_held(day.config, [f"{day.mapping(case)}:{step}" for case, step in pairs])
    killed.kill()
    assert killed.wait() == -9, killed.text()
    day.require_no_row_twice(f"after {steps}")
    return killed


@pytest.mark.soak
def test_day_when_killed_while_schemas_change_then_every_row_is_stored_once(stack: Stack) -> None:
    day = _Day(stack)
    day.produce(0)
    stack.drain(day.config)
    day.produce(len(_VERSIONS) - 1)
    _kill(day, ("staged", "placed", "committed"))
    stack.drain(day.config)
    day.require_all()
    for case in ("orders", "clicks"):
        assert day.columns(case) == {"id": "int", "kind": "string"} | _EVOLVED


@pytest.mark.soak
def test_day_when_killed_after_each_step_then_every_row_is_stored_once_in_the_right_columns(stack: Stack) -> None:
    """In each hour, the schemas are newer than in the hour before, and the mappings are killed after later steps."""
    day = _Day(stack)
    # The first transactions of a mapping contain no records.
    daemons: list[Daemon] = [stack.drain(day.config)]
    for newest, first in enumerate(range(0, len(STEPS), len(day.tables)), 1):
        if newest == len(_VERSIONS) - 2:
            daemons.append(stack.drain(day.config))
            day.require_no_row_twice("before users change the tables")
            _rename_and_drop(day, newest)
        else:
            day.produce(newest)
        daemons.append(_kill(day, STEPS[first : first + len(day.tables)]))
    daemons.append(stack.drain(day.config))
    day.require_all()
    assert day.columns("orders") == {"id": "int", "kind": "string", "price": "decimal(9,2)"} | _EVOLVED
    assert day.columns("clicks") == {"id": "int", "kind": "string"} | _EVOLVED
    assert list(day.columns("items")) == ["id", "sku", "price", "rest"]
    statements = [
        text for daemon in daemons for event in daemon.events("table_altered") for text in event["statements"]
    ]
    assert len(statements) == len(set(statements)), statements
