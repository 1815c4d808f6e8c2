"""Commits, UPDATE and DDL lock a table without deadlock, and open transactions are listed despite a gap in the ids."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hive_metastore import ttypes

from ingestd.clock import Deadline
from ingestd.errors import MetastoreUnavailable
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import Wait, WriteLock
from tests.streaming.support import connect, rows
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table, visible_ids


class _Statement:
    """The lock request of a HiveServer2 statement: one lock on the table in its own transaction."""

    def __init__(self, metastore: Metastore, table: TableName, kind: int) -> None:
        self._metastore = metastore
        self._txn = transactions.begin(metastore, "tests/statement").id
        component = ttypes.LockComponent(
            type=kind,
            level=ttypes.LockLevel.TABLE,
            dbname=table.database,
            tablename=table.table,
            operationType=ttypes.DataOperationType.NO_TXN,
            isTransactional=True,
        )
        request = ttypes.LockRequest(component=[component], txnid=self._txn, user="tests", hostname="tests")
        self._lock = metastore.call("lock", request).lockid

    def has_lock(self) -> bool:
        """Poll for the lock, as HiveServer2 does."""
        request = ttypes.CheckLockRequest(lockid=self._lock, txnid=self._txn)
        return bool(self._metastore.call("check_lock", request).state == ttypes.LockState.ACQUIRED)

    def end(self) -> None:
        transactions.abort(self._metastore, self._txn)


@pytest.fixture
def table(stack: Stack) -> TableName:
    name = TableName("default", stack.name)
    make_table(stack.metastore, name)
    return name


def _waiting(stack: Stack, table: TableName) -> list[int]:
    """Return the types of the locks that wait for the table."""
    request = ttypes.ShowLocksRequest(dbname=table.database, tablename=table.table)
    found = stack.metastore.call("show_locks", request).locks or []
    return sorted(lock.type for lock in found if lock.state == ttypes.LockState.WAITING)


def test_lock_when_ddl_is_requested_during_the_wait_then_the_commit_precedes_it(stack: Stack, table: TableName) -> None:
    kinds = ttypes.LockType
    update = _Statement(stack.metastore, table, kinds.EXCL_WRITE)
    assert update.has_lock()
    txn, _ = transactions.begin_writing(stack.metastore, table, "tests/ours")
    wait = Wait(Deadline.after(LIMIT), threading.Event(), patience_seconds=3.0)

    def lock() -> bool:
        with closing(Metastore(stack.addresses.metastore)) as metastore:
            return transactions.lock_against_overwrites(metastore, txn, [WriteLock(table)], wait=wait)

    with ThreadPoolExecutor(1) as pool:
        locking = pool.submit(lock)
        eventually("the first request to wait", lambda: kinds.SHARED_WRITE in _waiting(stack, table))
        ddl = _Statement(stack.metastore, table, kinds.EXCLUSIVE)
        both = sorted([kinds.SHARED_WRITE, kinds.SHARED_READ, kinds.EXCLUSIVE])
        eventually("the second request to wait", lambda: _waiting(stack, table) == both)
        update.end()
        assert locking.result(LIMIT)
    assert not ddl.has_lock()
    transactions.commit(stack.metastore, txn)
    assert ddl.has_lock()
    ddl.end()


def test_commit_when_ddl_waits_for_the_transaction_then_succeeds(stack: Stack, table: TableName) -> None:
    with connect(stack, lock_seconds=LIMIT) as connection:
        connection.begin_transaction()
        connection.write(rows(0))
        ddl = _Statement(stack.metastore, table, ttypes.LockType.EXCLUSIVE)
        assert not ddl.has_lock()
        connection.commit_transaction()
        assert ddl.has_lock()
        ddl.end()
    assert visible_ids(stack.metastore, table) == list(range(10))


def test_open_transactions_when_there_is_a_gap_in_the_ids_then_returns_all_open_ones(
    stack: Stack, table: TableName
) -> None:
    _leave_id_gap(stack.metastore)
    txn = transactions.begin(stack.metastore, f"tests/{stack.name}")
    assert transactions.open_transactions(stack.metastore, f"tests/{stack.name}") == [txn.id]
    transactions.abort(stack.metastore, txn.id)


def test_lock_when_executed_after_the_commit_then_does_not_block_the_next_transaction(
    stack: Stack, table: TableName
) -> None:
    """A metastore that was suspended executes late requests like the second one."""
    lease = TableName("ingestd", f"lease_{stack.name}")
    wait = Wait(Deadline.after(LIMIT), threading.Event(), patience_seconds=0.5)
    for late in (True, False):
        txn, _ = transactions.begin_writing(stack.metastore, table, "tests/ours")
        assert transactions.lock_against_overwrites(stack.metastore, txn, [WriteLock(table)], wait=wait, lease=lease)
        transactions.commit(stack.metastore, txn)
        if late:
            transactions.lock(stack.metastore, txn, [WriteLock(table)], wait=wait, lease=lease)


def test_lease_when_acquired_after_the_commit_then_does_not_block_the_next_transaction(stack: Stack) -> None:
    lease = TableName("ingestd", f"lease_{stack.name}")
    for late in (True, False):
        txn = transactions.begin(stack.metastore, "tests/ours")
        transactions.take_lease(stack.metastore, txn, lease, Wait(Deadline.after(LIMIT), threading.Event()))
        transactions.commit(stack.metastore, txn)
        if late:
            transactions.take_lease(stack.metastore, txn, lease, Wait(Deadline.after(LIMIT), threading.Event()))


def _leave_id_gap(metastore: Metastore) -> None:
    """Request a transaction that the database rejects after assigning its id: the policy name is too long."""
    request = ttypes.OpenTxnRequest(
        num_txns=1,
        user="tests",
        hostname="tests",
        replPolicy="x" * 300,
        replSrcTxnIds=[1],
        txn_type=ttypes.TxnType.REPL_CREATED,
    )
    with pytest.raises(MetastoreUnavailable):
        metastore.call("open_txns", request)


def test_open_when_the_metastore_answers_an_internal_error_then_it_is_repeated_once(stack: Stack) -> None:
    invalid = ttypes.OpenTxnRequest(num_txns=-1, user="tests", hostname="tests")  # the call declares no exception
    with closing(Metastore(stack.addresses.metastore)) as metastore:
        with pytest.raises(MetastoreUnavailable, match="Internal error processing open_txns"):
            metastore.call("open_txns", invalid)
        assert metastore.calls == 2
