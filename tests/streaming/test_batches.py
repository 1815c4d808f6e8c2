"""Transaction batches: N transactions share a delta and one file per bucket. Each commit becomes visible by itself."""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable, Iterable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from ingestd.hive import transactions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.storage.local import local_path
from ingestd.streaming import (
    HiveStreamingConnection,
    InvalidTransactionState,
    SerializationError,
    TransactionError,
    TxnState,
)
from tests.streaming.support import client, connect, rows, sees
from tests.support.compaction import compact, request_compaction
from tests.support.files import files_below
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually
from tests.support.truncate import Truncation

BUCKETED = "CLUSTERED BY (id) INTO 2 BUCKETS "


def make_table(stack: Stack, clustered: str = "", partitioned: str = "", name: str = "") -> None:
    stack.sql(
        f"CREATE TABLE {name or stack.name} (id int, note string) {partitioned} {clustered} STORED AS ORC "
        "TBLPROPERTIES ('transactional'='true', 'no_auto_compaction'='true')"
    )


def files_of(stack: Stack, name: str = "") -> list[str]:
    root = local_path(stack.addresses.warehouse) / (name or stack.name)
    found = [file for file in files_below(root) if file.parent.name.startswith("delta_")]
    return sorted(str(file.relative_to(root)) for file in found if not file.name.startswith("_"))


def test_batch_when_transactions_commit_and_abort_then_only_committed_rows_are_visible(stack: Stack) -> None:
    tables = {f"{stack.name}_plain": "", f"{stack.name}_bucketed": BUCKETED}
    for name, clustered in tables.items():
        make_table(stack, clustered, name=name)
        _commit_and_abort(stack, name)
        with connect(stack, table=name) as connection, connection.transaction():
            connection.write(rows(100))
    seen = [*range(10), *range(20, 40), *range(100, 110)]
    _compact(stack, tables, "minor")
    for name in tables:
        sees(stack, seen, name=name, by_job=True)
        stack.sql(f"DELETE FROM {name} WHERE id = 3")
        stack.sql(f"UPDATE {name} SET note = 'changed' WHERE id = 25")
    seen.remove(3)
    for name in tables:
        sees(stack, seen, name=name, by_job=True)
    _compact(stack, tables, "major")
    for name in tables:
        sees(stack, seen, name=name, by_job=True)
        assert stack.sql(f"SELECT note FROM {name} WHERE id = 25") == [("changed",)]


def _commit_and_abort(stack: Stack, name: str) -> None:
    """Run five transactions of one batch, two of which are aborted."""
    seen: list[int] = []
    with connect(stack, table=name, transaction_batch_size=5) as connection:
        for turn, outcome in enumerate("cacca"):
            connection.begin_transaction()
            connection.write(rows(turn * 10))
            sees(stack, seen, name=name, by_job=turn == 2)
            if outcome == "c":
                connection.commit_transaction()
                seen += range(turn * 10, turn * 10 + 10)
            else:
                connection.abort_transaction()
            sees(stack, seen, name=name)

    deltas = {file.split("/")[0] for file in files_of(stack, name)}
    assert len(deltas) == 1
    assert not [file for file in files_of(stack, name) if file.endswith("_flush_length")]
    sees(stack, seen, name=name, by_job=True)


def _compact(stack: Stack, tables: Iterable[str], kind: str) -> None:
    for wait in [request_compaction(stack, f"default.{name}", kind) for name in tables]:
        wait()


def test_batch_when_the_table_is_overwritten_before_the_commit_then_transaction_error(stack: Stack) -> None:
    make_table(stack)

    with connect(stack, transaction_batch_size=3) as connection:
        with connection.transaction():
            connection.write(rows(0))
        stack.sql(f"INSERT OVERWRITE TABLE {stack.name} VALUES (1000, 'new')")
        connection.begin_transaction()
        connection.write(rows(10))
        with pytest.raises(TransactionError, match="overwritten"):
            connection.commit_transaction()
        with connection.transaction():
            connection.write(rows(10))

    assert sorted(row[0] for row in stack.sql(f"SELECT id FROM {stack.name}")) == [*range(10, 20), 1000]


def _flushing_each_write() -> dict[str, Any]:
    """Return options that flush after each write, which registers partitions and writes rows to the batch's files."""
    short = {"hive.heap.memory.monitor.usage.threshold": "0"}
    return {"configuration": short, "auto_flush_check_interval_size": 1}


@pytest.mark.parametrize("size", [1, 3], ids=["alone", "batch"])
def test_truncate_when_before_the_commit_then_transaction_error(stack: Stack, size: int) -> None:
    make_table(stack)
    with connect(stack, transaction_batch_size=size, **_flushing_each_write()) as connection:
        with connection.transaction():
            connection.write(rows(0))
        connection.begin_transaction()
        connection.write(rows(10))  # in a batch this also registers its partitions
        stack.sql(f"TRUNCATE TABLE {stack.name}")  # it waits only for commits
        with pytest.raises(TransactionError, match="truncated"):
            connection.commit_transaction()
        with connection.transaction():
            connection.write(rows(10))

    assert sorted(row[0] for row in stack.sql(f"SELECT id FROM {stack.name}")) == list(range(10, 20))


def test_truncate_when_during_the_commit_then_transaction_error_and_rows_are_withdrawn(
    stack: Stack,
) -> None:
    make_table(stack)
    name = TableName("default", stack.name)
    with connect(stack, transaction_batch_size=3, **_flushing_each_write()) as connection:
        with connection.transaction():
            connection.write(rows(0))
        truncation = Truncation(stack.metastore, name)
        with connection.transaction():  # the commit does not wait for it
            connection.write(rows(10))
        connection.begin_transaction()
        connection.write(rows(20))
        truncation.finish()
        with pytest.raises(TransactionError, match="truncated"):
            connection.commit_transaction()

    (file,) = local_path(load_acid_table(stack.metastore, name).location).glob("delta_*/bucket_00000")
    length = struct.unpack(">q", file.with_name("bucket_00000_flush_length").read_bytes()[-8:])[0]
    assert file.stat().st_size == length
    assert [row["id"] for row in orc.read_table(file)["row"].to_pylist()] == list(range(20))


def test_batch_when_rows_of_an_aborted_transaction_are_in_its_file_then_not_counted(stack: Stack) -> None:
    make_table(stack)
    short = {"hive.heap.memory.monitor.usage.threshold": "0"}

    with connect(stack, transaction_batch_size=3, configuration=short, auto_flush_check_interval_size=1) as connection:
        for turn, outcome in enumerate("cac"):
            connection.begin_transaction()
            connection.write(rows(turn * 10))
            connection.commit_transaction() if outcome == "c" else connection.abort_transaction()

    sees(stack, [*range(10), *range(20, 30)], by_job=True)


def test_batch_when_used_up_then_the_next_one_is_opened(stack: Stack) -> None:
    make_table(stack)

    with connect(stack, transaction_batch_size=2) as connection:
        for turn in range(5):
            with connection.transaction():
                connection.write(rows(turn * 10))

    sees(stack, list(range(50)))
    assert len({name.split("/")[0] for name in files_of(stack)}) == 3
    assert connection.stats.committed_transactions == 5


def test_batch_when_later_transactions_add_partitions_then_each_appears_with_its_commit(stack: Stack) -> None:
    make_table(stack, partitioned="PARTITIONED BY (day string)")

    with connect(stack, transaction_batch_size=3) as connection:
        with connection.transaction():
            connection.write(rows(0, day=["a"] * 10))
        sees(stack, list(range(10)))
        connection.begin_transaction()
        connection.write(rows(10, day=["a"] * 5 + ["b"] * 5))
        connection.abort_transaction()
        sees(stack, list(range(10)))
        with connection.transaction():
            connection.write(rows(20, day=["b"] * 5 + ["c"] * 5))
        sees(stack, [*range(10), *range(20, 30)], by_job=True)

    sees(stack, list(range(20, 25)), "WHERE day = 'b'")
    sees(stack, list(range(25, 30)), "WHERE day = 'c'")


KILLED = """
import sys
import pyarrow as pa
from ingestd.streaming import ArrowWriter, HiveStreamingConnection

_, table, uri = sys.argv[1:]
connection = HiveStreamingConnection(
    table=table, metastore_uri=uri, record_writer=ArrowWriter(), transaction_batch_size=4
)
for turn in range(3):
    connection.begin_transaction()
    connection.write(pa.table({"id": list(range(turn * 10, turn * 10 + 10)), "note": ["x"] * 10}))
    if turn == 2:
        print(*connection.txn_to_write_ids, flush=True)
        sys.stdin.readline()
    connection.commit_transaction()
"""


def test_client_when_killed_while_committing_in_a_batch_then_only_earlier_commits_are_visible(
    stack: Stack,
) -> None:
    """The client is killed after it has written the files of the commit, while it waits for the commit's lock."""
    make_table(stack)
    with proxy(stack.addresses.metastore) as between:
        process = client(stack, KILLED, between.uri)
        try:
            assert process.stdin
            assert process.stdout
            ids = [int(number) for number in process.stdout.readline().split()]
            locks = between.calls["lock"]
            between.hold("lock")
            process.stdin.write("commit\n")
            process.stdin.flush()
            eventually("the lock of the commit", lambda: between.calls["lock"] > locks)
            sees(stack, list(range(20)), by_job=True)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=LIMIT)

    sees(stack, list(range(20)))
    with connect(stack) as connection, connection.transaction():
        connection.write(rows(100))
    sees(stack, [*range(20), *range(100, 110)])
    for txn in ids[2:]:  # as the metastore does after a timeout
        transactions.abort(stack.metastore, txn)
    compact(stack, f"default.{stack.name}", "major")
    sees(stack, [*range(20), *range(100, 110)], by_job=True)


def test_batch_when_older_than_batch_seconds_then_closed_in_the_background(stack: Stack) -> None:
    make_table(stack)

    with connect(stack, transaction_batch_size=5, batch_seconds=1.0) as connection:
        with connection.transaction():
            connection.write(rows(0))
        eventually("the side file is gone", lambda: not [f for f in files_of(stack) if f.endswith("_flush_length")])
        with connection.transaction():
            connection.write(rows(10))

    sees(stack, list(range(20)))
    assert len({name.split("/")[0] for name in files_of(stack)}) == 2


def test_julian_dates_when_written_in_a_batch_then_rejected_and_the_transaction_continues(stack: Stack) -> None:
    stack.sql(f"CREATE TABLE {stack.name} (id int, day date) STORED AS ORC TBLPROPERTIES ('transactional'='true')")
    old = pa.table({"id": pa.array([1], pa.int32()), "day": [date(1500, 1, 1)]})
    new = pa.table({"id": pa.array([2], pa.int32()), "day": [date(1600, 1, 1)]})

    with connect(stack, transaction_batch_size=2) as connection:
        connection.begin_transaction()
        with pytest.raises(SerializationError, match="1582"):
            connection.write(old)
        connection.write(new)
        connection.commit_transaction()
        assert stack.sql(f"SELECT id, cast(day AS string) FROM {stack.name}") == [(2, "1600-01-01")]
    with connect(stack) as connection, connection.transaction():
        connection.write(old)

    assert sorted(stack.sql(f"SELECT id, cast(day AS string) FROM {stack.name}")) == [
        (1, "1500-01-01"),
        (2, "1600-01-01"),
    ]


def test_many_partitions_when_above_the_limit_of_open_files_then_all_rows_are_stored(stack: Stack) -> None:
    make_table(stack, partitioned="PARTITIONED BY (day string)")
    days = [f"d{number:03d}" for number in range(70)]

    with connect(stack, transaction_batch_size=2) as connection:
        for turn in range(2):
            with connection.transaction():
                connection.write(rows(turn * 70, 70, day=days))

    sees(stack, list(range(140)), by_job=True)


def state(connection: HiveStreamingConnection) -> TxnState:
    return connection.current_transaction_state


def test_calls_when_in_the_wrong_order_then_rejected(stack: Stack) -> None:
    make_table(stack)
    refused: list[Callable[[HiveStreamingConnection], object]] = [
        lambda connection: connection.write(rows(0)),
        lambda connection: connection.commit_transaction(),
        lambda connection: connection.abort_transaction(),
    ]

    with connect(stack, transaction_batch_size=2) as connection:
        assert state(connection) is TxnState.INACTIVE
        for call in refused:
            with pytest.raises(InvalidTransactionState):
                call(connection)
        connection.begin_transaction()
        assert state(connection) is TxnState.OPEN
        with pytest.raises(InvalidTransactionState):
            connection.begin_transaction()
        connection.write(rows(0))
        connection.commit_transaction()
        assert state(connection) is TxnState.COMMITTED
        for call in refused:
            with pytest.raises(InvalidTransactionState):
                call(connection)
        connection.begin_transaction()
        connection.abort_transaction()
        assert state(connection) is TxnState.ABORTED
