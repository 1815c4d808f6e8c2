"""Changes of columns through the metastore, beside statistics of HiveServer2 and row counts of other writers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from ingestd.clock import Deadline
from ingestd.hive import transactions
from ingestd.hive.alteration import change_columns
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table, TableName, read_table
from ingestd.hive.transactions import LockTimeout, Wait
from ingestd.schema import Column, HiveType
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually

BIG = 2**40
TYPES = {"n": HiveType.parse("bigint"), "extra": HiveType.parse("int"), "last": HiveType.parse("date")}


def _change(
    stack: Stack, names: Sequence[str], seconds: float = LIMIT, metastore: Metastore | None = None
) -> list[str]:
    """Give the columns `names` their types in TYPES, and return the statements without the name of the table."""

    def plan(table: Table) -> list[Column]:
        types = {column.name: column.type for column in table.columns} | {name: TYPES[name] for name in names}
        return [Column(name, kind) for name, kind in types.items()]

    name = TableName("default", stack.name)
    lease = TableName("ingestd", f"alter_{stack.name}")
    wait = Wait(Deadline.after(seconds), threading.Event())
    metastore = metastore or stack.metastore
    statements = change_columns(metastore, name, plan, lease=lease, agent=f"{stack.name}_ddl", wait=wait)
    return [text.partition(f"`{stack.name}` ")[2] for text in statements]


@pytest.mark.parametrize("partitioned", ["", "dt string"])
def test_columns_when_hive_has_their_statistics_then_changed_and_answers_are_right(
    stack: Stack, partitioned: str
) -> None:
    stack.table("id int, n int, note string", partitioned)
    place = f"{stack.name} PARTITION (dt='a')" if partitioned else stack.name
    stack.sql(f"INSERT INTO {place} VALUES (1, 1, 'a')")
    stack.sql(f"ANALYZE TABLE {stack.name} COMPUTE STATISTICS FOR COLUMNS")
    assert _change(stack, ["extra"]) == ["ADD COLUMNS (`extra` int)"]
    assert _change(stack, ["n", "extra"]) == ["CHANGE COLUMN `n` `n` bigint"]
    assert _change(stack, ["n", "extra"]) == []

    assert stack.sql(f"SELECT count(*), min(n), max(n), max(id), count(extra) FROM {stack.name}") == [(1, 1, 1, 1, 0)]
    stack.sql(f"INSERT INTO {place} VALUES (2, {BIG}, 'b', 5)")
    assert stack.sql(f"SELECT count(*), max(n), max(id), max(extra) FROM {stack.name}") == [(2, BIG, 2, 5)]
    assert stack.count() == 2
    assert transactions.open_transactions(stack.metastore, f"{stack.name}_ddl") == []


def test_columns_when_another_writer_counts_rows_then_changed_only_after_it(stack: Stack) -> None:
    stack.table("id int, n int")
    change = partial(_change, stack, ["n"])
    writer = transactions.begin(stack.metastore, "writer")
    wait = Wait(Deadline.after(LIMIT), threading.Event())
    counting = TableName("default", f"{stack.name}#ingestd.counting")
    transactions.take_lease(stack.metastore, writer, counting, wait)
    with pytest.raises(LockTimeout, match="counting lease"):
        change(seconds=1.0)
    assert read_table(stack.metastore, TableName("default", stack.name)).sd.cols[1].type == "int"
    transactions.abort(stack.metastore, writer.id)
    assert change() == ["CHANGE COLUMN `n` `n` bigint"]


def test_columns_when_hive_alters_them_meanwhile_and_the_answer_is_lost_then_all_changes_are_kept(stack: Stack) -> None:
    stack.table("id int, n int, note string")
    with (
        ThreadPoolExecutor(1) as pool,
        proxy(stack.addresses.metastore) as slow,
        closing(Metastore(slow.uri)) as metastore,
    ):
        # The first change finds out whether the metastore's database can compare.
        assert _change(stack, ["extra"], metastore=metastore) == ["ADD COLUMNS (`extra` int)"]
        calls = slow.calls["alter_table_req"]
        slow.delay("alter_table_req", 2.0)
        slow.lose_answer("alter_table_req")
        change = pool.submit(_change, stack, ["n", "last"], metastore=metastore)
        eventually("the change to be under way", lambda: slow.calls["alter_table_req"] > calls)
        stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (mine string)")
        stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN note title string")
        assert change.result(LIMIT) == ["CHANGE COLUMN `n` `n` bigint", "ADD COLUMNS (`last` date)"]
    found = [
        (field.name, field.type) for field in read_table(stack.metastore, TableName("default", stack.name)).sd.cols
    ]
    assert found == [
        *(("id", "int"), ("n", "bigint"), ("title", "string")),
        *(("extra", "int"), ("last", "date"), ("mine", "string")),
    ]
    assert transactions.open_transactions(stack.metastore, f"{stack.name}_ddl") == []
