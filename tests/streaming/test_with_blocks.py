"""The errors that blocks of `with connection` and `with connection.transaction()` raise."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ingestd.hive import transactions
from ingestd.streaming import (
    HiveStreamingConnection,
    TransactionError,
)
from tests.streaming.support import connect, rows, sees
from tests.support.proxy import Proxy, proxy
from tests.support.stack import Stack


@pytest.mark.parametrize("size", [1, 3], ids=["alone", "batch"])
def test_block_when_it_raises_while_the_metastore_is_down_then_its_own_error_is_raised(stack: Stack, size: int) -> None:
    stack.table("id int, note string")

    def fail(between: Proxy) -> None:
        options = {"metastore_uri": between.uri, "transaction_batch_size": size}
        with connect(stack, **options) as connection, connection.transaction():
            connection.write(rows(0))
            between.shut()
            raise KeyError("mine")

    with proxy(stack.addresses.metastore) as between, pytest.raises(KeyError, match="mine"):
        fail(between)

    sees(stack, [])


def swallow(stack: Stack, connection: HiveStreamingConnection) -> None:
    with connection.transaction():
        connection.write(rows(30))
        assert connection.current_txn_id
        transactions.abort(stack.metastore, connection.current_txn_id)
        with suppress(TransactionError):
            connection.commit_transaction()


def write_and_close(connection: HiveStreamingConnection) -> None:
    with connection.transaction():
        connection.write(rows(40))
        connection.close()


def test_block_when_it_ends_its_transaction_then_left_as_is_and_an_earlier_failure_is_raised(stack: Stack) -> None:
    stack.table("id int, note string")

    with connect(stack) as connection:
        with connection.transaction():
            connection.write(rows(0))
            connection.commit_transaction()
        with connection.transaction():
            connection.write(rows(10))
            connection.abort_transaction()
        with connection.transaction():
            connection.commit_transaction()
            connection.begin_transaction()
            connection.write(rows(20))
        with pytest.raises(TransactionError, match="none of the rows is visible"):
            swallow(stack, connection)
        with pytest.raises(TransactionError, match="closed while the transaction was open"):
            write_and_close(connection)

    sees(stack, [*range(10), *range(20, 30)])
