"""A process whose transaction was aborted and removed from the metastore leaves no visible rows.

Files with the write id of such a transaction would be visible to every reader. The metastore of these tests removes
aborted transactions after a few seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ingestd.hive import transactions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.sandbox import Addresses
from ingestd.storage.local import local_path
from ingestd.streaming import TransactionError
from tests.streaming.support import connect, rows
from tests.support.daemon import Hold
from tests.support.metastore import Home, Process, metastore
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table, visible_ids

_SOON = {
    "hive.txn.timeout": "20s",
    "metastore.acid.housekeeper.interval": "1s",
    "metastore.acid.txn.cleaner.interval": "1s",
    "hive.compactor.check.interval": "1s",
    "metastore.compactor.check.interval": "1s",
    "hive.compactor.cleaner.run.interval": "1s",
    "hive.compactor.aborted.txn.time.threshold": "1s",
}


@pytest.fixture(scope="module")
def forgetful(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with metastore(Home(tmp_path_factory.mktemp("forgetful")), "forgetful", _SOON) as process:
        yield process


@pytest.fixture(scope="module")
def addresses(addresses: Addresses, forgetful: Process) -> Addresses:
    """Return the addresses that the fixture `stack` uses in this module."""
    return replace(addresses, metastore=forgetful.uri, hiveserver2=None)


def _name(stack: Stack) -> TableName:
    return TableName("default", stack.name)


def _deltas(stack: Stack) -> list[str]:
    place = local_path(load_acid_table(stack.metastore, _name(stack)).location)
    return sorted(name for _, names, _ in os.walk(place) for name in names if name.startswith("delta_"))


def _open(stack: Stack) -> int:
    """Return the id of the only open transaction of the mapping."""
    (txn_id,) = transactions.open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/")
    return txn_id


def _is_forgotten(stack: Stack, txn_id: int) -> bool:
    """Return whether the metastore has removed the transaction. It never removes the newest one, so begin another."""
    other = transactions.begin(stack.metastore, "tests")
    transactions.commit(stack.metastore, other)
    return txn_id not in stack.metastore.call("get_open_txns").open_txns


def test_daemon_when_its_transaction_is_forgotten_before_publishing_then_every_id_is_stored_once(stack: Stack) -> None:
    stack.topic(1)
    make_table(stack.metastore, _name(stack), partitioned=True)
    stack.produce({"id": number, "note": "", "day": "a"} for number in range(30))
    hold = Hold("registered", times=2)
    daemon = stack.start(stack.config(), "--until-caught-up", hold=hold)
    hold.wait()
    # As if the process had been frozen for longer than `hive.txn.timeout`.
    txn_id = _open(stack)
    transactions.abort(stack.metastore, txn_id)
    eventually("the transaction to be forgotten", lambda: _is_forgotten(stack, txn_id))
    hold.release()

    assert daemon.wait() == 0, daemon.text()[-2000:]
    assert visible_ids(stack.metastore, _name(stack)) == list(range(30))
    assert len(_deltas(stack)) == 1


@pytest.mark.soak
def test_daemon_when_frozen_until_its_transaction_is_forgotten_then_every_id_is_stored_once(stack: Stack) -> None:
    stack.topic(1)
    make_table(stack.metastore, _name(stack), partitioned=True)
    stack.produce({"id": number, "note": "", "day": "a"} for number in range(30))
    gate = stack.directory / "gate"
    failpoint = f"registered@2=hold:{gate}"
    daemon = stack.start_process(stack.config(), "--until-caught-up", INGESTD_TESTING="1", INGESTD_FAILPOINT=failpoint)
    eventually("the daemon to be blocked", lambda: os.path.exists(f"{gate}.held"))
    txn_id = _open(stack)
    os.kill(daemon.process.pid, signal.SIGSTOP)
    eventually("the transaction to time out and be forgotten", lambda: _is_forgotten(stack, txn_id))
    gate.touch()
    os.kill(daemon.process.pid, signal.SIGCONT)

    assert daemon.wait() == 0, daemon.text()[-2000:]
    assert visible_ids(stack.metastore, _name(stack)) == list(range(30))
    assert len(_deltas(stack)) == 1


def test_daemon_when_its_transaction_is_aborted_after_publishing_then_removes_the_files(stack: Stack) -> None:
    stack.topic(1)
    make_table(stack.metastore, _name(stack))
    stack.produce({"id": number, "note": ""} for number in range(30))
    hold = Hold("counted", times=2)
    daemon = stack.start(stack.config(), "--until-caught-up", hold=hold)
    hold.wait()
    txn_id = _open(stack)
    (placed,) = _deltas(stack)
    table = local_path(load_acid_table(stack.metastore, _name(stack)).location)
    transactions.abort(stack.metastore, txn_id)
    eventually("the transaction to be forgotten", lambda: _is_forgotten(stack, txn_id))
    # The metastore removed the delta. Restore it, as if the daemon had been frozen just before publishing it.
    (table / placed).mkdir()
    (table / placed / "bucket_00000").write_bytes(b"")
    hold.release()

    assert daemon.wait() == 0, daemon.text()[-2000:]
    assert visible_ids(stack.metastore, _name(stack)) == list(range(30))
    assert placed not in _deltas(stack)
    assert len(_deltas(stack)) == 1


@pytest.mark.parametrize("size", [1, 3], ids=["alone", "batch"])
def test_streaming_when_its_transaction_is_forgotten_before_the_commit_then_nothing_is_visible(
    stack: Stack, size: int
) -> None:
    make_table(stack.metastore, _name(stack))
    with connect(stack, transaction_batch_size=size) as connection:
        connection.begin_transaction()
        connection.write(rows(0))
        assert connection.current_txn_id
        for txn_id in connection.txn_to_write_ids:
            transactions.abort(stack.metastore, txn_id)
        eventually("the transaction to be forgotten", lambda: _is_forgotten(stack, connection.current_txn_id or 0))
        with pytest.raises(TransactionError):
            connection.commit_transaction()
        assert _deltas(stack) == []
        with connection.transaction():
            connection.write(rows(10))
    assert visible_ids(stack.metastore, _name(stack)) == list(range(10, 20))
