"""Heartbeats, locks and commits of a transaction, and what happens to it when its program ends."""

from __future__ import annotations

import io
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hive_metastore import ttypes

from ingestd.hive import transactions
from ingestd.hive.leases import lease_component
from ingestd.hive.tables import TableName, load_acid_table, read_table
from ingestd.storage.local import local_path
from ingestd.streaming import (
    ArrowWriter,
    InvalidTransactionState,
    StreamingException,
    StrictDelimitedInputWriter,
    TransactionError,
    TxnState,
)
from ingestd.streaming.heartbeat import Heartbeat
from tests.streaming.support import client, connect, rows, sees
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually


def name_of(stack: Stack) -> TableName:
    return TableName("default", stack.name)


def test_heartbeat_when_a_batch_is_open_then_all_its_transactions_stay_alive(stack: Stack) -> None:
    stack.table("id int, note string")

    with connect(stack, transaction_batch_size=3, heartbeat_seconds=0.5) as connection:
        connection.begin_transaction()
        ids = list(connection.txn_to_write_ids)
        first = {txn.id: txn.lastHeartbeatTime for txn in open_transactions(stack) if txn.id in ids}
        eventually(
            "a heartbeat of every transaction",
            lambda: all(txn.lastHeartbeatTime > first[txn.id] for txn in open_transactions(stack) if txn.id in first),
        )
        assert len(first) == 3
        connection.abort_transaction()


def open_transactions(stack: Stack) -> list[ttypes.TxnInfo]:
    return list(transactions.describe_transactions(stack.metastore))


def test_heartbeat_when_its_batch_is_garbage_collected_then_its_thread_ends(stack: Stack) -> None:
    class Batch:
        def after_beat(self) -> None:
            """Do nothing."""

    batch = Batch()
    heartbeat = Heartbeat(stack.metastore, [], 0.05, batch.after_beat)
    del batch
    eventually("the end of the thread", lambda: not heartbeat.is_running)


@pytest.mark.parametrize("size", [1, 3])
def test_stream_when_it_commits_while_being_read_then_later_records_are_rejected(stack: Stack, size: int) -> None:
    class Stream(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                connection.commit_transaction()
            return super().read(8)

    stack.table("id int, note string")
    writer = StrictDelimitedInputWriter(field_delimiter=",")
    with connect(stack, record_writer=writer, transaction_batch_size=size) as connection:
        connection.begin_transaction()
        with pytest.raises(InvalidTransactionState, match="no transaction is open"):
            connection.write(Stream(b"1,a\n2,b\n3,c\n4,d\n"))
        with connection.transaction():
            connection.write(b"5,e")
    sees(stack, [1, 2, 5])


def test_lock_when_another_client_holds_the_table_lock_then_waits(stack: Stack) -> None:
    stack.table("id int, note string")
    taken = stack.metastore.call(
        "lock",
        ttypes.LockRequest(
            component=[lease_component(name_of(stack))],
            user="test",
            hostname="test",
        ),
    )

    with connect(stack, lock_seconds=0.5) as connection, pytest.raises(TransactionError, match="were not granted"):
        connection.begin_transaction()

    def unlock() -> None:
        stack.metastore.call("unlock", ttypes.UnlockRequest(lockid=taken.lockid))
        stack.metastore.close()

    release = threading.Timer(1.0, unlock)
    release.start()
    with connect(stack) as connection, connection.transaction():
        connection.write(rows(0))
    release.join()

    sees(stack, list(range(10)))


def test_commit_when_given_partitions_and_a_key_then_sets_both(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string", **{"_meta.offset": "0"})

    with connect(stack) as connection:
        connection.begin_transaction()
        connection.write(rows(0, day=["a"] * 10))
        connection.commit_transaction(partitions=[["empty one"]], key="_meta.offset", value="10")
        assert sorted(connection.partitions) == ["day=a", "day=empty one"]
        connection.begin_transaction()
        with pytest.raises(StreamingException, match="must be given together"):
            connection.commit_transaction(key="_meta.offset")
        for key in ("_meta.missing", "plain"):
            with pytest.raises(StreamingException, match=f"cannot set the table parameter '{key}'"):
                connection.commit_transaction(key=key, value="1")
        with pytest.raises(StreamingException, match="partition_values has length 2"):
            connection.commit_transaction(partitions=[["a", "b"]])
        connection.abort_transaction()
        info = connection.create_partition_if_not_exists(["a"])
        assert (info.name, info.existed) == ("day=a", True)
        info = connection.create_partition_if_not_exists(["new"])
        assert (info.name, info.existed) == ("day=new", False)

    assert read_table(stack.metastore, name_of(stack)).parameters["_meta.offset"] == "10"
    assert [row[0] for row in stack.sql(f"SHOW PARTITIONS {stack.name}")] == ["day=a", "day=empty one", "day=new"]
    sees(stack, list(range(10)))


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_joined_transaction_then_its_rows_are_visible_only_if_its_owner_commits(stack: Stack, outcome: str) -> None:
    stack.table("id int, note string", partitioned="day string")
    table = load_acid_table(stack.metastore, name_of(stack))
    owner, write_id = transactions.begin_writing(stack.metastore, table.name, "owner")

    with connect(
        stack, write_id=write_id, table_object=table.raw, statement_id=3, record_writer=ArrowWriter()
    ) as joined:
        joined.begin_transaction()
        joined.write(rows(0, day=["a"] * 5 + ["b"] * 5))
        joined.commit_transaction()
        assert joined.current_transaction_state is TxnState.PREPARED_FOR_COMMIT
        assert joined.stats.committed_transactions == 0
        place = joined.delta_file_location(["a"], 0, write_id, write_id, 3)
        assert local_path(place).is_file()
        with pytest.raises(InvalidTransactionState):
            joined.begin_transaction()
        assert joined.current_transaction_state is TxnState.PREPARED_FOR_COMMIT
        transactions.register_partitions(stack.metastore, owner, table.name, write_id, list(joined.partitions))

    assert stack.sql(f"SELECT id FROM {stack.name}") == []
    if outcome == "commit":
        transactions.commit(stack.metastore, owner)
    else:
        transactions.abort(stack.metastore, owner.id)
    assert len(stack.sql(f"SELECT id FROM {stack.name}")) == (10 if outcome == "commit" else 0)


LEFT_OPEN = """
import atexit
import sys
import pyarrow as pa
from ingestd.streaming import ArrowWriter, HiveStreamingConnection

uri, table, *how = sys.argv[1:]
if how:  # registered before there is a connection
    atexit.register(lambda: connection.commit_transaction())
connection = HiveStreamingConnection(table=table, metastore_uri=uri, record_writer=ArrowWriter())
connection.begin_transaction()
connection.write(pa.table({"id": [1], "note": ["x"]}))
print(connection.current_txn_id, flush=True)
"""


def test_program_when_it_ends_with_an_open_transaction_then_aborted(stack: Stack) -> None:
    stack.table("id int, note string")

    process = client(stack, LEFT_OPEN)
    printed = process.communicate(timeout=LIMIT)[0]

    assert process.returncode == 0, printed
    txn_id = int(printed)
    assert txn_id not in [txn.id for txn in open_transactions(stack) if txn.state == ttypes.TxnState.OPEN]
    assert stack.count() == 0


def test_program_when_its_exit_handler_commits_then_rows_are_visible(stack: Stack) -> None:
    stack.table("id int, note string")

    process = client(stack, LEFT_OPEN, "commit")
    printed = process.communicate(timeout=LIMIT)[0]

    assert process.returncode == 0, printed
    assert printed.strip().isdecimal(), printed
    assert stack.count() == 1


def test_program_when_killed_while_writing_then_a_later_client_removes_its_files(stack: Stack) -> None:
    stack.table("id int, note string")
    process = client(stack, LEFT_OPEN + "\nimport time\ntime.sleep(600)\n")
    try:
        assert process.stdout
        txn_id = int(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT)
    staging = staging_of(stack)
    assert [path.name for path in staging.iterdir()] == [str(txn_id)]

    with connect(stack):
        assert [path.name for path in staging.iterdir()] == [str(txn_id)]  # the transaction is still open
    transactions.abort(stack.metastore, txn_id)
    with connect(stack):
        assert list(staging.iterdir()) == []


def staging_of(stack: Stack) -> Path:
    return local_path(load_acid_table(stack.metastore, name_of(stack)).location) / ".ingestd-streaming"


def test_optimizations_when_disabled_then_files_differ_and_rows_are_the_same(stack: Stack) -> None:
    stack.table("id int, note string")
    sizes = []
    for optimized in (True, False):
        with connect(stack, streaming_optimizations=optimized) as connection:
            connection.begin_transaction()
            connection.write(pa.table({"id": range(20_000), "note": [f"value {n % 50}" for n in range(20_000)]}))
            write_id = connection.current_write_id
            assert write_id
            place = connection.delta_file_location([], 0, write_id, write_id)
            connection.commit_transaction()
        sizes.append(local_path(place).stat().st_size)

    assert sizes[0] != sizes[1]
    assert stack.sql(f"SELECT count(*), count(DISTINCT note) FROM {stack.name} WHERE id >= 0") == [(40_000, 50)]
