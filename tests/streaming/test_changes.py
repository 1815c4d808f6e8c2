"""Tables that change between two transactions of a connection, and programs that fork."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingestd.hive import transactions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.storage.local import local_path
from ingestd.streaming import (
    HiveStreamingConnection,
    StrictDelimitedInputWriter,
    StrictJsonWriter,
    StrictRegexWriter,
    TableChanged,
    TransactionError,
    TxnState,
)
from tests.streaming.support import client, connect, rows, sees
from tests.support.patience import LIMIT
from tests.support.stack import Stack


def recreate(stack: Stack, columns: str, partitioned: str = "") -> None:
    stack.sql(f"DROP TABLE {stack.name}")
    stack.table(columns, partitioned)


def new_place(stack: Stack) -> Path:
    """Return a new location for a table or partition. Hive requires it to be in the warehouse."""
    place = local_path(stack.addresses.warehouse) / f"{stack.name}_elsewhere"
    place.mkdir()
    return place


def write(connection: HiveStreamingConnection, *records: bytes) -> None:
    with connection.transaction():
        connection.write(list(records))


@pytest.mark.parametrize("size", [1, 3], ids=["alone", "batch"])
def test_table_when_extended_moved_or_recreated_unchanged_then_its_new_definition_applies(
    stack: Stack, size: int
) -> None:
    stack.table("id int, note string")
    elsewhere = new_place(stack)
    json_writer = {"record_writer": StrictJsonWriter(), "transaction_batch_size": size}

    with connect(stack, **json_writer) as by_name, connect(stack, transaction_batch_size=size) as arrow:
        for connection in (by_name, arrow):
            assert [column.name for column in connection.table.columns] == ["id", "note"]
        write(by_name, b'{"id": 1, "note": "a"}')
        with arrow.transaction():
            arrow.write(rows(10, 1))

        stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (extra string)")
        write(by_name, b'{"id": 2, "note": "b", "extra": "json"}')
        with arrow.transaction():
            arrow.write(rows(20, 1, extra=["arrow"]))
        assert by_name.table.columns[-1].name == "extra"
        found = stack.sql(f"SELECT id, extra FROM {stack.name}")
        assert sorted(found) == [(1, None), (2, "json"), (10, None), (20, "arrow")]

        recreate(stack, "id int, note string, extra string")
        write(by_name, b'{"id": 3, "extra": "recreated"}')
        write(by_name, b'{"id": 4}')
        with arrow.transaction():
            arrow.write(rows(30, 1))
        write_ids = [*by_name.txn_to_write_ids.values(), *arrow.txn_to_write_ids.values()]
        assert max(write_ids) <= 7  # write ids of the new table
        sees(stack, [3, 4, 30])

        stack.sql(f"ALTER TABLE {stack.name} SET LOCATION 'file:{elsewhere}'")
        write(by_name, b'{"id": 5, "extra": "moved"}')
        assert by_name.stats.aborted_transactions == 0
        assert sorted(stack.sql(f"SELECT id, extra FROM {stack.name}")) == [(5, "moved")]


@pytest.mark.parametrize(
    ("columns", "partitioned", "what"),
    [
        ("note string, id int", "day string", r"recreated with the columns: note string, id int"),
        ("id int, note string", "", "its partition columns are now: none"),
        ("id int, note string", "day int", "its partition columns are now: day int"),
        (None, "", "the table does not exist"),
        ("external", "", "not a transactional table"),
    ],
    ids=["columns", "unpartitioned", "partitions", "dropped", "not acid"],
)
def test_table_when_recreated_with_another_definition_then_table_changed_and_nothing_is_written(
    stack: Stack, columns: str | None, partitioned: str, what: str
) -> None:
    stack.table("id int, note string", "day string")
    writer = StrictDelimitedInputWriter(field_delimiter=",")

    with connect(stack, record_writer=writer, static_partition_values=["a"]) as connection:
        write(connection, b"1,a")
        if columns is None:
            stack.sql(f"DROP TABLE {stack.name}")
        elif columns == "external":
            stack.sql(f"DROP TABLE {stack.name}")
            stack.sql(f"CREATE EXTERNAL TABLE {stack.name} (id int) STORED AS ORC")
        else:
            recreate(stack, columns, partitioned)
        for _ in range(2):
            with pytest.raises(TableChanged, match=what) as caught:
                connection.begin_transaction()
            assert isinstance(caught.value, TransactionError)
            assert not caught.value.is_retriable
            assert "open a new one" in caught.value.hint
        assert connection.current_transaction_state is TxnState.ABORTED
        assert transactions.open_transactions(stack.metastore, connection.agent_info) == []

    if columns and columns != "external":
        assert stack.sql(f"SELECT * FROM {stack.name}") == []


def test_partitioned_table_when_columns_are_added_then_only_writers_by_name_continue(stack: Stack) -> None:
    stack.table("id int, note string", "day string")
    by_place = StrictDelimitedInputWriter(field_delimiter=",")
    pattern = StrictRegexWriter(r"(\d+) (\w+)")

    with (
        connect(stack, record_writer=StrictJsonWriter()) as by_name,
        connect(stack, record_writer=by_place) as shifted,
        connect(stack, record_writer=by_place, static_partition_values=["d"]) as fixed,
        connect(stack, record_writer=pattern, static_partition_values=["d"]) as matched,
    ):
        write(shifted, b"1,a,d")
        stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (extra string) CASCADE")
        write(by_name, b'{"id": 2, "extra": "x", "day": "d"}')
        write(fixed, b"3,c,x")
        with pytest.raises(TableChanged, match=r"columns were added \(extra\).*partition values"):
            shifted.begin_transaction()
        for _ in range(2):
            with pytest.raises(TableChanged, match="groups is 2, but the number of columns is 3"):
                matched.begin_transaction()

    assert sorted(stack.sql(f"SELECT id, extra, day FROM {stack.name}")) == [
        (1, None, "d"),
        (2, "x", "d"),
        (3, "x", "d"),
    ]


def test_partition_when_moved_or_dropped_within_a_batch_then_rows_go_to_its_new_location(stack: Stack) -> None:
    stack.table("id int, note string", "day string")
    elsewhere = new_place(stack)

    with connect(stack, transaction_batch_size=5) as connection:
        for turn in range(2):
            with connection.transaction():
                connection.write(rows(10 * turn, 2, day=["a", "b"]))
        stack.sql(f"ALTER TABLE {stack.name} PARTITION (day='a') SET LOCATION 'file:{elsewhere}'")
        stack.sql(f"ALTER TABLE {stack.name} DROP PARTITION (day='b')")
        for turn in range(2, 5):
            with connection.transaction():
                connection.write(rows(10 * turn, 2, day=["a", "b"]))
            assert stack.ids() == [number for before in range(2, turn + 1) for number in (10 * before, 10 * before + 1)]
        assert connection.stats.aborted_transactions == 0

    assert stack.ids() == [20, 21, 30, 31, 40, 41]


def test_bucket_when_its_partition_is_recreated_within_a_batch_then_no_row_is_lost(stack: Stack) -> None:
    stack.sql(
        f"CREATE TABLE {stack.name} (id int, note string) PARTITIONED BY (day string)"
        " CLUSTERED BY (id) INTO 4 BUCKETS STORED AS ORC TBLPROPERTIES ('transactional'='true')"
    )

    with connect(stack, transaction_batch_size=3) as connection:
        with connection.transaction():
            connection.write(rows(0, 1, day=["a"]))
        for statement in ("DROP", "ADD"):
            stack.sql(f"ALTER TABLE {stack.name} {statement} PARTITION (day='a')")
        for turn in (1, 2):
            with connection.transaction():
                connection.write(rows(10 * turn, 8, day=["a"] * 8))
        assert connection.stats.aborted_transactions == 0

    sees(stack, [*range(10, 18), *range(20, 28)], by_job=True)


def test_joined_transaction_when_its_table_object_is_outdated_then_table_changed(stack: Stack) -> None:
    stack.table("id int, note string")
    old = load_acid_table(stack.metastore, TableName("default", stack.name))
    stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (extra string)")
    owner, write_id = transactions.begin_writing(stack.metastore, old.name, "owner")

    with connect(stack, write_id=write_id, table_object=old.raw) as joined:
        with pytest.raises(TableChanged, match="changed since table_object was read"):
            joined.begin_transaction()
        assert joined.current_transaction_state is TxnState.ABORTED
    transactions.abort(stack.metastore, owner.id)


FORK = """
import json, os, sys
import pyarrow as pa
from ingestd.streaming import ArrowWriter, HiveStreamingConnection, v1

uri, table, size = sys.argv[1:]
connection = HiveStreamingConnection(
    table=table, metastore_uri=uri, record_writer=ArrowWriter(), transaction_batch_size=int(size),
    configuration={"hive.heap.memory.monitor.usage.threshold": "0"}, auto_flush_check_interval_size=1,
)
older = v1.HiveEndPoint(uri, "default", table).new_connection()
batch = older.fetch_transaction_batch(2, v1.DelimitedInputWriter(["id", "note"], ","))
batch.begin_next_transaction()
batch.write(b"100,one")


def rows(first):
    return pa.table({"id": [first], "note": [f"note {first}"]})


def block():
    with connection:
        pass


def transaction():
    with connection.transaction():
        pass


def own_error():
    with connection:
        raise KeyError("mine")


def leave_open_block():
    error = KeyError("mine")
    open_block.__exit__(KeyError, error, None)
    raise error


calls = [
    lambda: connection.write(rows(2)), connection.commit_transaction, connection.abort_transaction,
    connection.begin_transaction, connection.fetch_batch, connection.hand_over, connection.close, block, transaction,
    lambda: connection.create_partition_if_not_exists(["a"]), lambda: connection.delta_file_location([], 0, 1, 1),
    lambda: connection.add_write_notification_events(1), own_error, leave_open_block,
    batch.begin_next_transaction, lambda: batch.write(b"2,x"), batch.commit, batch.abort, batch.close, older.close,
    lambda: older.fetch_transaction_batch(1, v1.StrictJsonWriter()),
]
open_block = connection.transaction()
open_block.__enter__()
connection.write(rows(0))
child = os.fork()
if not child:
    said = []
    for call in calls:
        try:
            call()
            said.append("nothing")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    with HiveStreamingConnection(table=table, metastore_uri=uri, record_writer=ArrowWriter()) as own:
        with own.transaction():
            own.write(rows(50))
    print("said", json.dumps(said), flush=True)
    sys.exit()  # runs exit handlers and destructors in the child
assert os.waitpid(child, 0)[1] == 0
connection.write(rows(1))
open_block.__exit__(None, None, None)
batch.write(b"101,two")
batch.commit()
older.close()
with connection.transaction():
    connection.write(rows(3))
connection.close()
"""


@pytest.mark.parametrize("size", ["1", "3"], ids=["alone", "batch"])
def test_forked_child_when_it_uses_a_connection_then_rejected_and_the_parent_is_unaffected(
    stack: Stack, size: str
) -> None:
    stack.table("id int, note string")

    process = client(stack, FORK, size)
    printed = process.communicate(timeout=LIMIT)[0]

    assert process.returncode == 0, printed
    said = json.loads(next(line for line in printed.splitlines() if line.startswith("said")).removeprefix("said"))
    assert [said.pop(12), said.pop(12)] == ["KeyError: 'mine'"] * 2
    assert [line for line in said if not line.startswith("StreamingException") or "forked child" not in line] == []
    sees(stack, [0, 1, 3, 50, 100, 101])
