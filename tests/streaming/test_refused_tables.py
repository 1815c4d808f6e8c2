"""Tables that Hive refuses to write: no connection opens, and no transaction begins after the database changes."""

from __future__ import annotations

import pytest
from hive_metastore import ttypes

from ingestd.hive.tables import TableName, read_table
from ingestd.hive.transactions import describe_transactions
from ingestd.streaming import InvalidTable, TxnState, v1
from tests.streaming.support import connect, rows
from tests.support.stack import Stack
from tests.support.tables import next_write_id

REPLICA = r"is a target of replication \(repl.target.for\)"
VIEW = "a view cannot be used as target table for LOAD or INSERT"


def _set(stack: Stack, database: str, key: str, value: str) -> None:
    stack.sql(f"ALTER DATABASE {database} SET DBPROPERTIES ('{key}'='{value}')")


@pytest.mark.parametrize(
    ("key", "value", "sentence"), [("repl.target.for", "p1", REPLICA), ("readonly", "true", "is read-only")]
)
def test_database_when_it_must_not_be_written_then_no_connection_opens(
    stack: Stack, key: str, value: str, sentence: str
) -> None:
    database = f"{stack.name}_db"
    name = TableName(database, "t")
    stack.sql(f"CREATE DATABASE {database} WITH DBPROPERTIES ('{key}'='{value}')")
    stack.table("id int, note string", name=str(name))
    before = next_write_id(stack.metastore, name)

    with pytest.raises(InvalidTable, match=f"table {name}: database {database} {sentence}") as caught:
        connect(stack, database=database, table="t")
    assert not caught.value.is_retriable
    assert "ALTER DATABASE" in caught.value.hint
    with pytest.raises(InvalidTable, match=sentence):
        connect(stack, database=database, table="t", table_object=read_table(stack.metastore, name), write_id=before)
    with pytest.raises(v1.InvalidTable, match=sentence):
        v1.HiveEndPoint(stack.addresses.metastore, database, "t").new_connection()

    assert next_write_id(stack.metastore, name) == before + 1
    assert stack.ids(str(name)) == []


@pytest.mark.parametrize("size", [1, 3])
def test_database_when_it_becomes_read_only_then_the_next_transaction_is_refused(stack: Stack, size: int) -> None:
    database = f"{stack.name}_db"
    name = TableName(database, "t")
    stack.sql(f"CREATE DATABASE {database}")
    stack.table("id int, note string", name=str(name))
    end_point = v1.HiveEndPoint(stack.addresses.metastore, database, "t")

    with (
        connect(stack, database=database, table="t", transaction_batch_size=size) as connection,
        end_point.new_connection() as old,
    ):
        with connection.transaction():
            connection.write(rows(0))
        unused = list(connection.txn_to_write_ids)[1:]
        _set(stack, database, "readonly", "true")
        before = next_write_id(stack.metastore, name)
        for attempt in (connection.begin_transaction, connection.fetch_batch):
            with pytest.raises(InvalidTable, match=f"database {database} is read-only"):
                attempt()
        with pytest.raises(v1.InvalidTable, match="is read-only"):
            old.fetch_transaction_batch(2, v1.StrictJsonWriter())
        assert connection.current_transaction_state is (TxnState.COMMITTED if size == 1 else TxnState.ABORTED)
        assert next_write_id(stack.metastore, name) == before + 1
        opened = {txn.id for txn in describe_transactions(stack.metastore) if txn.state == ttypes.TxnState.OPEN}
        assert not opened.intersection(unused)

        _set(stack, database, "readonly", "false")
        with connection.transaction():
            connection.write(rows(10))

    assert stack.ids(str(name)) == list(range(20))


def test_table_when_hive_refuses_it_then_no_connection_opens(stack: Stack) -> None:
    stack.table("id int, note string")
    stack.sql(f"CREATE VIEW {stack.name}_view AS SELECT id FROM {stack.name}")
    stack.sql(
        f"CREATE MATERIALIZED VIEW {stack.name}_materialized DISABLE REWRITE STORED AS ORC"
        f" TBLPROPERTIES ('transactional'='true') AS SELECT id, note FROM {stack.name}"
    )
    stack.table("id int, note string", name=f"default.{stack.name}_immutable", immutable="true")
    for case, sentence in (
        ("view", f"the table is a view: {VIEW}"),
        ("materialized", f"the table is a materialized view: {VIEW}"),
        ("immutable", "inserting into a non-empty immutable table is not allowed"),
    ):
        table = f"{stack.name}_{case}"
        with pytest.raises(InvalidTable, match=sentence):
            connect(stack, table=table)
        with pytest.raises(v1.InvalidTable, match=sentence):
            v1.HiveEndPoint(stack.addresses.metastore, "default", table).new_connection()


def test_table_when_the_statement_of_the_hint_was_run_then_it_is_written(stack: Stack) -> None:
    directories, immutable = f"{stack.name}_d", f"{stack.name}_i"
    acid = "STORED AS ORC TBLPROPERTIES ('transactional'='true'"
    skewed = "(id int, note string) SKEWED BY (id) ON (1) STORED AS DIRECTORIES"
    stack.sql(f"CREATE TABLE {directories} {skewed} {acid})")
    stack.sql(f"CREATE TABLE {immutable} (id int, note string) {acid}, 'immutable'='true')")
    for table in (directories, immutable):
        with pytest.raises(InvalidTable) as caught:
            connect(stack, table=table)
        assert "ALTER TABLE … " in caught.value.hint
        stack.sql(caught.value.hint.removeprefix("run ").replace("…", table))
        with connect(stack, table=table) as connection, connection.transaction():
            connection.write(rows(0))
        assert stack.ids(table) == list(range(10))
