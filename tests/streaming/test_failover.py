"""A streaming client survives broken connections to the metastore at every call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hive_metastore import ThriftHiveMetastore, ttypes

from ingestd.errors import MetastoreUnavailable
from ingestd.hive.answers import MetastoreRefusal
from ingestd.hive.client import Metastore
from ingestd.hive.leases import lease_component
from ingestd.hive.newer_calls import NewerCalls
from ingestd.hive.repeatable import REPEATABLE, is_repeatable
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import describe_transactions
from ingestd.streaming import (
    ConnectionError,  # noqa: A004
    HiveStreamingConnection,
    TransactionError,
    TxnState,
)
from tests.streaming.support import connect, rows, sees
from tests.support.patience import LIMIT
from tests.support.proxy import Proxy, proxy
from tests.support.stack import Stack, eventually


@pytest.fixture
def near(stack: Stack) -> Iterator[Proxy]:
    with proxy(stack.addresses.metastore) as made:
        yield made


@pytest.fixture
def other(stack: Stack) -> Iterator[Proxy]:
    with proxy(stack.addresses.metastore) as made:
        yield made


def _state(connection: HiveStreamingConnection) -> TxnState:
    return connection.current_transaction_state


def _open_transactions(stack: Stack, agent: str) -> list[int]:
    found = describe_transactions(stack.metastore)
    return [txn.id for txn in found if txn.hostname == agent and txn.state == ttypes.TxnState.OPEN]


@pytest.mark.parametrize("size", [1, 3])
def test_address_when_unavailable_during_a_transaction_then_commits_through_the_other(
    stack: Stack, near: Proxy, other: Proxy, size: int
) -> None:
    stack.table("id int, note string")
    uris = f"{near.uri},{other.uri}"

    with connect(stack, metastore_uri=uris, transaction_batch_size=size) as connection:
        with connection.transaction():
            connection.write(rows(0))
            near.shut()
            connection.write(rows(10))
        assert other.accepted
        near.open()
        with connection.transaction():
            connection.write(rows(20))
            other.shut()
            connection.write(rows(30))
        assert connection.stats.committed_transactions == 2

    sees(stack, range(40))


def test_address_when_unavailable_while_partitions_are_created_then_rows_are_stored_once(
    stack: Stack, near: Proxy, other: Proxy
) -> None:
    stack.table("id int, note string", partitioned="day string")

    with connect(stack, metastore_uri=f"{near.uri},{other.uri}") as connection, connection.transaction():
        connection.write(rows(0, day=["a", "b"] * 5))
        near.shut()
        connection.write(rows(10, day=["b", "c"] * 5))

    sees(stack, range(20))


SURVIVED = [
    "get_database",
    "get_table_req",
    "get_config_value",
    "allocate_table_write_ids",
    "lock",
    "get_partitions_by_names_req",
    "add_partitions_req",
    "add_dynamic_partitions",
    "get_valid_write_ids",
    "get_open_txns",
]


def test_every_call_when_its_first_answer_is_lost_then_rows_are_stored_once(stack: Stack, near: Proxy) -> None:
    """With a single address, calls are repeated there, and `publish/outcome.py` resolves the outcome of the commit."""
    stack.table("id int, note string", partitioned="day string")
    for method in [*SURVIVED, "commit_txn"]:
        near.lose_answer(method)

    with connect(stack, metastore_uri=near.uri) as connection:
        with connection.transaction():
            connection.write(rows(0, day=["a", "b"] * 5))
        assert all(near.calls[method] >= 2 for method in SURVIVED)
        assert near.calls["commit_txn"] == 1
        near.lose_answer("abort_txn")
        connection.begin_transaction()
        connection.write(rows(10, day=["a", "b"] * 5))
        connection.abort_transaction()
        assert near.calls["abort_txn"] == 2
        asked = ttypes.ShowLocksRequest(dbname="default", tablename=stack.name)
        assert not stack.metastore.call("show_locks", asked).locks  # the abort released both locks
        with connection.transaction():
            connection.write(rows(20, day=["a", "c"] * 5))

    sees(stack, [*range(10), *range(20, 30)])


def test_row_count_when_its_answer_is_lost_then_not_repeated_and_the_transaction_fails(
    stack: Stack, near: Proxy
) -> None:
    stack.table("id int, note string")
    with connect(stack, metastore_uri=near.uri) as connection:
        near.lose_answer("alter_table_req")
        connection.begin_transaction()
        connection.write(rows(0))
        with pytest.raises(TransactionError, match="alter_table_req"):
            connection.commit_transaction()
        assert near.calls["alter_table_req"] == 1
        assert _state(connection) is TxnState.ABORTED
        with connection.transaction():
            connection.write(rows(10))
    sees(stack, range(10, 20))


def test_begin_when_its_answer_is_lost_then_not_repeated_and_the_next_begin_works(stack: Stack, near: Proxy) -> None:
    stack.table("id int, note string")
    with connect(stack, metastore_uri=near.uri, agent_info=stack.name) as connection:
        near.lose_answer("open_txns")
        with pytest.raises(ConnectionError, match="open_txns"):
            connection.begin_transaction()
        assert near.calls["open_txns"] == 1
        assert _state(connection) is TxnState.INACTIVE
        (orphan,) = _open_transactions(stack, stack.name)
        with connection.transaction():
            connection.write(rows(0))
    sees(stack, range(10))
    stack.metastore.call("abort_txn", ttypes.AbortTxnRequest(txnid=orphan))


@contextmanager
def _interrupted(near: Proxy) -> Iterator[None]:
    """Send SIGINT while a call in the block waits for its answer, then deliver the answer."""

    def interrupt() -> None:
        eventually("a waiting call", lambda: near.calls.total() > calls)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        near.flowing.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process starts with it ignored
    calls = near.calls.total()
    near.flowing.clear()
    helper = threading.Thread(target=interrupt)
    helper.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
        helper.join()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("size", [1, 3])
def test_call_when_interrupted_then_its_answer_is_not_read_by_the_next_call(
    stack: Stack, near: Proxy, size: int
) -> None:
    stack.table("id int, note string")
    with connect(stack, metastore_uri=near.uri, transaction_batch_size=size) as connection:
        with _interrupted(near):
            connection.begin_transaction()
        with connection.transaction():
            connection.write(rows(0))
        connection.begin_transaction()
        connection.write(rows(10))
        with _interrupted(near):
            connection.commit_transaction()
        assert _state(connection) is TxnState.ABORTED
        with connection.transaction():
            connection.write(rows(20))
    sees(stack, [*range(10), *range(20, 30)])


def test_idle_connection_when_cut_then_the_next_call_reconnects(stack: Stack, near: Proxy) -> None:
    stack.table("id int, note string")
    with connect(stack, metastore_uri=near.uri) as connection:
        near.cut()
        connection.begin_transaction()
        near.cut()
        connection.write(rows(0))
        near.cut()
        connection.commit_transaction()
        near.cut()
        with connection.transaction():
            connection.write(rows(10))
        assert near.calls["open_txns"] == near.calls["commit_txn"] == 2
        near.cut()
    sees(stack, range(20))


def test_heartbeat_when_cut_then_reconnects_and_the_transaction_stays_alive(
    stack: Stack, near: Proxy, other: Proxy
) -> None:
    stack.table("id int, note string")

    def beats(more: int) -> None:
        before = near.calls["heartbeat_txn_range"] + other.calls["heartbeat_txn_range"]
        eventually(
            "heartbeats",
            lambda: near.calls["heartbeat_txn_range"] + other.calls["heartbeat_txn_range"] >= before + more,
        )

    with (
        connect(stack, metastore_uri=f"{near.uri},{other.uri}", heartbeat_seconds=0.2) as connection,
        connection.transaction(),
    ):
        connection.write(rows(0))
        beats(1)
        near.shut()
        beats(2)
        near.open()
        other.shut()
        beats(2)
        near.cut()
        beats(2)
    sees(stack, range(10))


def test_heartbeat_when_its_answer_is_garbled_then_the_next_call_fails_and_nothing_is_visible(
    stack: Stack, near: Proxy
) -> None:
    stack.table("id int, note string")
    with connect(stack, metastore_uri=near.uri, heartbeat_seconds=0.2) as connection:
        connection.begin_transaction()
        connection.write(rows(0))
        near.garble_answer("heartbeat_txn_range")

        def failure() -> str:
            try:
                connection.write(rows(0))
            except TransactionError as error:
                return str(error)
            return ""

        assert "a heartbeat failed" in eventually("a call that fails", failure)
        assert _state(connection) is TxnState.ABORTED
        with connection.transaction():
            connection.write(rows(10))
    sees(stack, range(10, 20))


def test_all_addresses_when_down_then_connection_error_and_a_later_transaction_works(
    stack: Stack, near: Proxy, other: Proxy
) -> None:
    stack.table("id int, note string")
    doors = (near, other)
    with connect(stack, metastore_uri=f"{near.uri},{other.uri}") as connection:
        for door in doors:
            door.shut()
        with pytest.raises(ConnectionError, match="no metastore answers") as caught:
            connection.begin_transaction()
        assert all(str(door.port) in str(caught.value) for door in doors)
        assert _state(connection) is TxnState.INACTIVE
        for door in doors:
            door.open()
        connection.begin_transaction()
        connection.write(rows(0))
        left = connection.current_txn_id
        for door in doors:
            door.shut()
        with pytest.raises(TransactionError, match="no metastore answers"):
            connection.commit_transaction()
        assert _state(connection) is TxnState.ABORTED
        for door in doors:
            door.open()
        with connection.transaction():
            connection.write(rows(10))
    sees(stack, range(10, 20))
    # The abort reached no metastore, so the transaction is left to its timeout.
    assert left in stack.metastore.call("get_open_txns").open_txns
    stack.metastore.call("abort_txn", ttypes.AbortTxnRequest(txnid=left))


def test_all_addresses_when_down_at_connect_then_connection_error(near: Proxy, other: Proxy, stack: Stack) -> None:
    near.shut()
    other.shut()
    with pytest.raises(ConnectionError, match="no metastore answers"):
        connect(stack, metastore_uri=f"{near.uri},{other.uri}")


# --- which calls are repeated


def test_repeatable_calls_then_all_exist_and_unsafe_calls_are_not_among_them() -> None:
    known = {*dir(ThriftHiveMetastore.Client), *dir(NewerCalls)}
    assert not set(REPEATABLE) - known
    never = {"alter_table_req", "alter_partitions_req", "create_table_req", "create_database"}
    assert not never & set(REPEATABLE)
    for is_safe in (True, False):
        partitions = ttypes.AddPartitionsRequest(dbName="d", tblName="t", parts=[], ifNotExists=is_safe)
        statistics = ttypes.SetPartitionsStatsRequest(colStats=[], needMerge=not is_safe)
        assert is_repeatable("add_partitions_req", [partitions]) is is_safe
        assert is_repeatable("update_table_column_statistics_req", [statistics]) is is_safe


def test_lock_when_outside_a_transaction_and_its_answer_is_lost_then_not_repeated(stack: Stack, near: Proxy) -> None:
    component = lease_component(TableName("default", stack.name))
    with closing(Metastore(near.uri)) as metastore:
        near.lose_answer("lock")
        with pytest.raises(MetastoreUnavailable, match="lock"):
            metastore.call("lock", ttypes.LockRequest(component=[component], user="tests", hostname="here"))
        assert near.calls["lock"] == 1
    (held,) = stack.metastore.call("show_locks", ttypes.ShowLocksRequest(dbname="default", tablename=stack.name)).locks
    stack.metastore.call("unlock", ttypes.UnlockRequest(lockid=held.lockid))


def test_call_when_all_answers_are_lost_then_fails_after_one_more_attempt_than_addresses(
    near: Proxy, other: Proxy
) -> None:
    with closing(Metastore(f"{near.uri},{other.uri}")) as metastore:
        for door in (near, other):
            door.lose_answer("get_all_databases", 10)
        with pytest.raises(MetastoreUnavailable):
            metastore.call("get_all_databases")
        assert near.calls["get_all_databases"] + other.calls["get_all_databases"] == 3


def test_call_when_the_metastore_answers_with_an_error_then_not_repeated(near: Proxy) -> None:
    with closing(Metastore(near.uri)) as metastore:
        with pytest.raises(MetastoreRefusal):
            metastore.call("get_config_value", "fs.not.of.hive", "")
        assert near.calls["get_config_value"] == 1


def test_connection_when_cut_under_several_threads_then_each_reconnects(near: Proxy) -> None:
    metastore = Metastore(near.uri)
    failed: list[BaseException] = []
    ended = threading.Event()
    calls = [0] * 3

    def work(number: int) -> None:
        try:
            while not ended.is_set():
                metastore.call("get_all_databases")
                calls[number] += 1
        except MetastoreUnavailable as error:
            failed.append(error)
        metastore.close()

    def proceed() -> None:
        """Wait for a call of each thread that has begun by now or later: a call survives only one cut."""
        before = list(calls)
        eventually("calls", lambda: failed or all(now > then + 1 for now, then in zip(calls, before, strict=True)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        proceed()
        near.cut()
    proceed()
    ended.set()
    for thread in threads:
        thread.join(LIMIT)
    assert not failed
