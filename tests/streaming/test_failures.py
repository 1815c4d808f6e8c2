"""Errors of a streaming client, and the state of its transactions after them."""

from __future__ import annotations

import io
import random
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.hive import transactions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.storage.local import local_path
from ingestd.streaming import (
    CommitOutcomeUnknown,
    HiveStreamingConnection,
    InvalidTransactionState,
    PartitionCreationFailed,
    SerializationError,
    StreamingException,
    StreamingIOFailure,
    StrictDelimitedInputWriter,
    StrictJsonWriter,
    TransactionError,
    TxnState,
    v1,
)
from tests.streaming.support import connect, rows, sees
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually


def open_agents(stack: Stack, agent: str) -> list[int]:
    return transactions.open_transactions(stack.metastore, agent)


def test_records_when_written_one_by_one_then_counted_immediately_even_if_aborted(stack: Stack) -> None:
    stack.table("id int, note string")

    with connect(stack, record_writer=StrictJsonWriter()) as connection:
        connection.begin_transaction()
        for number in range(10):
            connection.write(b'{"id": %d}' % number)
        with pytest.raises(SerializationError):
            connection.write(b"{")
        assert (connection.stats.records_written, connection.stats.records_size) == (10, 90)
        connection.abort_transaction()
        with connection.transaction():
            connection.write([b'{"id": 10}', b'{"id": 11}'])
        assert (connection.stats.records_written, connection.stats.records_size) == (12, 110)

    sees(stack, [10, 11])


def test_write_when_data_is_not_bytes_then_rejected_and_the_transaction_continues(stack: Stack) -> None:
    stack.table("id int, note string")
    wrong_data: list[Any] = ["1,a", ["1,a"], [b"1,a", None], 5]

    with connect(stack, record_writer=StrictDelimitedInputWriter(field_delimiter=",")) as connection:
        for number, wrong in enumerate(wrong_data):
            with connection.transaction():
                connection.write(b"%d,a" % number)
                with pytest.raises(StreamingException, match="a record must be bytes, not"):
                    connection.write(wrong)
                connection.write(b"%d,b" % more for more in (10 * number + 10, 10 * number + 11))
            assert connection.stats.records_written == 3 * number + 3

    sees(stack, [*range(4), 10, 11, 20, 21, 30, 31, 40, 41])


def test_batch_when_the_metastore_aborted_its_transaction_then_a_later_write_fails(stack: Stack) -> None:
    stack.table("id int, note string")
    writer = StrictDelimitedInputWriter(field_delimiter=",")

    with connect(stack, record_writer=writer, transaction_batch_size=3, batch_seconds=0.2) as connection:
        connection.begin_transaction()
        connection.write(b"1,a")
        assert connection.current_txn_id
        transactions.abort(stack.metastore, connection.current_txn_id)

        def refused() -> TransactionError | None:
            try:
                connection.write(b"2,b")
            except TransactionError as error:
                return error
            return None

        error = eventually("a heartbeat that finds the transaction aborted", refused)
        assert "aborted the transaction" in error.what
        assert error.is_retriable
        assert connection.current_transaction_state is TxnState.ABORTED
        assert open_agents(stack, connection.agent_info) == []
        for _ in range(2):  # an exception handler may abort what has failed
            connection.abort_transaction()
        assert connection.current_transaction_state is TxnState.ABORTED
        with connection.transaction():
            connection.write(b"3,c")

    sees(stack, [3])


def write_and_commit(connection: HiveStreamingConnection, records: list[bytes]) -> None:
    connection.write(records)
    connection.commit_transaction()


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"not permitted to mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("size", [1, 3], ids=["alone", "batch"])
def test_disk_when_full_then_io_failure_and_the_open_transactions_are_aborted(stack: Stack, size: int) -> None:
    stack.table("id int, note string")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    choose = random.Random(1)
    many = [b'{"id": 9, "note": "%s"}' % choose.randbytes(1500).hex().encode() for _ in range(4000)]

    with (
        small_disk(local_path(table.location)),
        connect(
            stack, record_writer=StrictJsonWriter(), transaction_batch_size=size, agent_info=f"{stack.name}-full"
        ) as connection,
    ):
        with connection.transaction():
            connection.write(b'{"id": 1}')
        connection.begin_transaction()
        with pytest.raises(StreamingIOFailure) as caught:
            write_and_commit(connection, many)
        assert caught.value.is_retriable
        assert connection.current_transaction_state is TxnState.ABORTED
        assert open_agents(stack, f"{stack.name}-full") == []
        sees(stack, [1])
        with connection.transaction():
            connection.write(b'{"id": 2}')
        sees(stack, [1, 2])


def test_partition_when_its_directory_cannot_be_created_then_partition_creation_failed(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    (local_path(table.location) / "day=b").write_text("in the way")

    with connect(stack) as connection:
        with pytest.raises(PartitionCreationFailed, match="day=b") as caught, connection.transaction():
            connection.write(rows(0, 2, day=["a", "b"]))
        assert caught.value.is_retriable
        assert connection.current_transaction_state is TxnState.ABORTED
        with pytest.raises(PartitionCreationFailed):
            connection.create_partition_if_not_exists(["b"])
        with connection.transaction():
            connection.write(rows(10, 1, day=["a"]))

    sees(stack, [10])


def test_connection_when_handed_over_then_belongs_to_the_next_thread(stack: Stack) -> None:
    stack.table("id int, note string")
    connection = connect(stack)
    connection.begin_transaction()
    connection.write(rows(0))
    connection.hand_over()

    def work() -> None:
        connection.write(rows(10))
        connection.commit_transaction()
        with pytest.raises(StreamingException, match="belongs to one thread"):
            refused.result()
        connection.close()

    with ThreadPoolExecutor(1) as workers, ThreadPoolExecutor(1) as strangers:
        refused = Future[None]()
        taken = workers.submit(lambda: connection.write(rows(20)))
        taken.result()
        refused = strangers.submit(lambda: connection.write(rows(30)))
        workers.submit(work).result()

    sees(stack, list(range(30)))


def test_static_partition_when_being_written_then_others_can_be_overwritten(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string")

    with connect(stack, static_partition_values=["a"]) as connection:
        connection.begin_transaction()
        connection.write(rows(0))
        stack.sql(f"INSERT OVERWRITE TABLE {stack.name} PARTITION (day='b') SELECT 100, 'b'")
        locks = stack.metastore.call("show_locks", ttypes.ShowLocksRequest(tablename=stack.name)).locks
        ours = {(lock.partname, lock.type) for lock in locks if lock.txnid == connection.current_txn_id}
        assert ours == {("day=a", ttypes.LockType.SHARED_READ)}
        connection.commit_transaction()

    sees(stack, [*range(10), 100])


def test_joined_transaction_when_written_then_only_its_table_is_read_from_the_metastore(
    stack: Stack,
) -> None:
    stack.table("id int, note string")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    owner, write_id = transactions.begin_writing(stack.metastore, table.name, "owner")

    with (
        proxy(stack.addresses.metastore) as between,
        connect(stack, metastore_uri=between.uri, write_id=write_id, table_object=table.raw) as joined,
    ):
        before = between.calls.copy()
        joined.begin_transaction()
        joined.write(rows(0))
        joined.commit_transaction()
        called = between.calls - before
    # The table is compared with `table_object`; no other call is made.
    assert called == {"get_table_req": 1, "get_not_null_constraints": 1}
    transactions.commit(stack.metastore, owner)

    assert len(stack.sql(f"SELECT id FROM {stack.name}")) == 10


def test_next_batch_when_a_transaction_is_open_then_rejected_and_nothing_is_lost(stack: Stack) -> None:
    stack.table("id int, note string")

    with connect(stack) as connection:
        with connection.transaction():
            connection.write(rows(0))
            with pytest.raises(InvalidTransactionState, match="the last transaction of the batch is open"):
                connection.fetch_batch()
        connection.fetch_batch()
        with connection.transaction():
            connection.write(rows(10))

    sees(stack, list(range(20)))


def test_joined_transaction_when_committed_with_a_key_then_rejected_and_its_rows_stay(stack: Stack) -> None:
    stack.table("id int, note string", **{"_meta.offset": "0"})
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    owner, write_id = transactions.begin_writing(stack.metastore, table.name, "owner")

    with connect(stack, write_id=write_id, table_object=table.raw) as joined:
        joined.begin_transaction()
        joined.write(rows(0))
        with pytest.raises(InvalidTransactionState, match="only the owner of a joined transaction"):
            joined.commit_transaction(key="_meta.offset", value="1")
        joined.commit_transaction()
    transactions.commit(stack.metastore, owner)

    assert len(stack.sql(f"SELECT id FROM {stack.name}")) == 10


def test_text_stream_when_written_then_rejected_and_the_transaction_continues(stack: Stack) -> None:
    stack.table("id int, note string")

    writer = StrictDelimitedInputWriter(field_delimiter=",")

    with connect(stack, record_writer=writer) as connection, connection.transaction():
        connection.write([bytearray(b"1,a"), b"2,b"])
        with pytest.raises(StreamingException, match="not text"):
            connection.write(io.StringIO("3,c"))

    sees(stack, [1, 2])


def test_v1_connection_when_a_batch_belongs_to_another_thread_then_the_others_are_closed(stack: Stack) -> None:
    stack.table("id int, note string")
    end_point = v1.HiveEndPoint(stack.addresses.metastore, "default", stack.name)
    connection = end_point.new_connection()
    theirs, ours = (connection.fetch_transaction_batch(2, v1.StrictJsonWriter()) for _ in range(2))

    with ThreadPoolExecutor(1) as workers:
        workers.submit(theirs.begin_next_transaction).result()
        with pytest.raises(StreamingException, match="belongs to one thread"):
            connection.close()
        assert (theirs.is_closed(), ours.is_closed()) == (False, True)
        workers.submit(theirs.close).result()
    connection.close()


def test_commit_when_its_answer_is_lost_then_resolved_and_rows_are_stored_once(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    stack.table("id int, note string")

    with proxy(stack.addresses.metastore) as between, connect(stack, metastore_uri=between.uri) as connection:
        connection.begin_transaction()
        connection.write(rows(0))
        between.lose_answer("commit_txn")
        connection.commit_transaction()
        assert connection.current_transaction_state is TxnState.COMMITTED
        assert between.calls["commit_txn"] == 1
        assert "the next check is in" in caplog.text
        with connection.transaction():
            connection.write(rows(10))

    sees(stack, list(range(20)))


def test_commit_when_its_outcome_cannot_be_queried_then_outcome_unknown_and_not_retriable(stack: Stack) -> None:
    stack.table("id int, note string")

    with (
        proxy(stack.addresses.metastore) as between,
        connect(stack, metastore_uri=between.uri, commit_outcome_seconds=0.3) as connection,
    ):
        connection.begin_transaction()
        connection.write(rows(0))
        for method in ("commit_txn", "get_open_txns"):
            between.lose_answer(method, 100)
        with pytest.raises(CommitOutcomeUnknown, match="check whether its rows are visible") as caught:
            connection.commit_transaction()
        assert not caught.value.is_retriable
        with pytest.raises(InvalidTransactionState):  # the rows may be visible
            connection.abort_transaction()
        assert [
            (local_path(directory.location) / directory.delta).is_dir() for directory in connection.write_directories
        ] == [True]
        for method in ("commit_txn", "get_open_txns"):
            between.lose_answer(method, -100)
        with connection.transaction():
            connection.write(rows(10))

    sees(stack, list(range(20)))  # the commit had succeeded


def test_v1_batch_when_the_metastore_does_not_answer_then_batch_unavailable(stack: Stack) -> None:
    stack.table("id int, note string")
    writer = v1.DelimitedInputWriter(["id", "note"], ",")

    with proxy(stack.addresses.metastore) as between:
        end_point = v1.HiveEndPoint(between.uri, "default", stack.name, None)
        with end_point.new_connection(configuration={"hive.metastore.uris": "thrift://127.0.0.1:1"}) as connection:
            between.lose_answer("open_txns")
            with pytest.raises(v1.TransactionBatchUnAvailable) as caught:
                connection.fetch_transaction_batch(2, writer)
            assert caught.value.is_retriable
            batch = connection.fetch_transaction_batch(2, writer)

            def work() -> None:
                batch.begin_next_transaction()
                batch.write(b"1,a")
                batch.commit()
                batch.close()

            with ThreadPoolExecutor(1) as workers:
                workers.submit(work).result()

    sees(stack, [1])
