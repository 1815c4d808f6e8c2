"""The snapshot for a copy waits for writers, and only for them, and its write-id lists contain no open id."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hive_metastore import ttypes

from ingestd.clock import Deadline
from ingestd.errors import TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.events import Event, EventLog
from ingestd.hive.objects import alter_table, drop_table, find_table
from ingestd.hive.snapshot import ReadTransaction, TablesSnapshot, WriterRule, WritersActive, wait_for_writers
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import Transaction, Wait, WriteLock
from ingestd.hive.write_ids import read_snapshot, read_transactions
from tests.support.patience import LIMIT
from tests.support.replica import Replica
from tests.support.stack import eventually
from tests.support.tables import make_table

_AT_ONCE = WriterRule(timeout_seconds=0.0, aborts=False)
# The calls that read the write ids of tables once.
_LISTS = 3


@pytest.fixture
def metastore(replica: Replica) -> Metastore:
    return replica.source.metastore


@pytest.fixture
def table(replica: Replica, metastore: Metastore) -> TableName:
    name = TableName(replica.name("snapshot"), "t")
    metastore.call("create_database", ttypes.Database(name=name.database))
    make_table(metastore, name)
    return name


def _write(metastore: Metastore, table: TableName) -> Transaction:
    """Begin a transaction with a write id and a lock: HMS soon forgets an aborted one without locks."""
    txn, _ = transactions.begin_writing(metastore, table, "tests/writer")
    transactions.lock(metastore, txn, [WriteLock(table)], wait=Wait(Deadline.after(LIMIT), threading.Event()))
    return txn


def _wait(metastore: Metastore, table: TableName, rule: WriterRule = _AT_ONCE) -> TablesSnapshot:
    return wait_for_writers(metastore, [table], rule, threading.Event())


def test_snapshot_when_nothing_is_open_then_lists_the_aborted_ids(metastore: Metastore, table: TableName) -> None:
    ids = _wait(metastore, table).write_ids[table]
    assert (ids.high_watermark, ids.open, ids.aborted) == (0, frozenset(), frozenset())
    # While only aborted ids are recorded, the metastore hides all but the first of them.
    for expected in ({1}, {1, 2}):
        transactions.abort(metastore, _write(metastore, table).id)
        ids = _wait(metastore, table).write_ids[table]
        assert ids.high_watermark == max(expected)
        assert ids.aborted == expected
    assert read_snapshot(metastore, table).high_watermark == 1
    transactions.commit(metastore, _write(metastore, table))
    ids = _wait(metastore, table).write_ids[table]
    assert ids.high_watermark == 3
    assert ids.aborted == {1, 2}


@pytest.mark.parametrize("earlier", ["none", "aborted", "committed"])
def test_wait_when_a_writer_is_open_then_it_is_waited_for(
    metastore: Metastore, table: TableName, caplog: pytest.LogCaptureFixture, earlier: str
) -> None:
    caplog.set_level(logging.INFO, "ingestd.hive.snapshot")
    if earlier != "none":
        ended = _write(metastore, table)
        (transactions.commit if earlier == "committed" else _abort)(metastore, ended)
    writer = _write(metastore, table)
    with pytest.raises(WritersActive, match=str(writer.id)):
        _wait(metastore, table)
    checked = threading.Event()
    observed = Metastore(
        f"thrift://{metastore.preferred_address[0]}:{metastore.preferred_address[1]}",
        on_call=lambda method, *_: checked.set() if method == "get_valid_write_ids" else None,
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_wait, observed, table, WriterRule(LIMIT, poll_seconds=0.05))
        assert checked.wait(LIMIT)
        transactions.commit(metastore, writer)
        ids = waiting.result(LIMIT).write_ids[table]
    observed.close()
    assert caplog.messages[-1] == f"waiting for transactions that write to table {table}: {writer.id}"
    assert ids.is_valid(1 if earlier == "none" else 2)
    assert not ids.open


def _abort(metastore: Metastore, txn: Transaction) -> None:
    transactions.abort(metastore, txn.id)


def test_wait_when_the_deadline_passes_then_only_the_writers_of_the_tables_are_aborted(
    metastore: Metastore, table: TableName, caplog: pytest.LogCaptureFixture
) -> None:
    other = TableName(table.database, "other")
    make_table(metastore, other)
    idle = transactions.begin(metastore, "tests/idle")
    elsewhere, writer = _write(metastore, other), _write(metastore, table)
    snapshot = _wait(metastore, table, WriterRule(0.0, aborts=True))
    assert caplog.messages == [f"aborting transactions that write to table {table}: {writer.id}"]
    assert snapshot.write_ids[table].aborted == {1}
    assert read_transactions(metastore).aborted >= {writer.id}
    assert read_transactions(metastore).open >= {idle.id, elsewhere.id}
    assert snapshot.transactions.has_ended(writer.id)
    assert not snapshot.transactions.has_ended(idle.id)
    transactions.abort_all(metastore, [idle.id, elsewhere.id])


def test_wait_when_a_writer_begins_later_then_the_list_ends_below_its_id(
    metastore: Metastore, table: TableName
) -> None:
    old = _write(metastore, table)
    later: list[Transaction] = []

    def begin_later(method: str, *_: object) -> None:
        """Begin two writers between the first lists and the next ones, and commit one of them."""
        if method == "get_valid_write_ids" and not later:
            later.append(_write(metastore, table))
            later.append(_write(metastore, table))
            transactions.commit(metastore, later[1])
            transactions.commit(metastore, old)

    observed = Metastore(
        f"thrift://{metastore.preferred_address[0]}:{metastore.preferred_address[1]}", on_call=begin_later
    )
    ids = _wait(observed, table, WriterRule(LIMIT, poll_seconds=0.05)).write_ids[table]
    observed.close()
    assert (ids.high_watermark, ids.open, ids.aborted) == (1, frozenset(), frozenset())
    assert read_transactions(metastore).open >= {later[0].id}
    transactions.abort(metastore, later[0].id)


def test_wait_when_an_older_transaction_begins_to_write_later_then_only_the_first_writer_is_aborted(
    metastore: Metastore, table: TableName
) -> None:
    idle = transactions.begin(metastore, "tests/idle")
    writer = _write(metastore, table)
    answered: list[str] = []

    def write_later(method: str, *_: object) -> None:
        answered.append(method)
        if method == "get_valid_write_ids" and answered.count(method) == _LISTS:
            transactions.allocate(metastore, idle, table)

    address = f"thrift://{metastore.preferred_address[0]}:{metastore.preferred_address[1]}"
    with closing(Metastore(address, on_call=write_later)) as observed:
        snapshot = _wait(observed, table, WriterRule(0.0, aborts=True))
    assert snapshot.write_ids[table].high_watermark == 1
    assert snapshot.transactions.open >= {idle.id}
    assert snapshot.transactions.has_ended(writer.id)
    transactions.abort(metastore, idle.id)


@pytest.mark.parametrize("change", ["renamed", "dropped", "created again"])
def test_wait_when_a_table_is_lost_meanwhile_then_it_is_not_waited_for(
    metastore: Metastore, table: TableName, change: str
) -> None:
    for _ in range(2):
        transactions.commit(metastore, _write(metastore, table))
    answered: list[str] = []

    def lose(method: str, *_: object) -> None:
        """Lose the table after the lists of the beginning, and write to the one that has its name then."""
        if method != "get_valid_write_ids":
            return
        answered.append(method)
        if len(answered) != _LISTS:
            return
        if change == "renamed":
            found = find_table(metastore, table)
            assert found is not None
            found.raw.tableName = "moved"
            alter_table(metastore, table, found)
            return
        drop_table(metastore, table, delete_data=True)
        if change == "created again":
            make_table(metastore, table)
            later.append(_write(metastore, table))

    later: list[Transaction] = []
    address = f"thrift://{metastore.preferred_address[0]}:{metastore.preferred_address[1]}"
    with closing(Metastore(address, on_call=lose)) as observed:
        ids = _wait(observed, table).write_ids[table]
    assert len(answered) > _LISTS
    assert (ids.high_watermark, ids.open) == (0, frozenset())
    transactions.abort_all(metastore, [txn.id for txn in later])


def test_read_transaction_when_open_then_no_event_and_no_wait(metastore: Metastore, table: TableName) -> None:
    log = EventLog(metastore)
    before = log.current_id()
    with ReadTransaction(metastore, "tests/snapshot", heartbeat_seconds=0.05) as held:
        assert held.id not in read_transactions(metastore).open
        assert _wait(metastore, table).write_ids[table].high_watermark == 0
        held.check()
        assert not _named(log, before, held.id)
        described = {transaction.id: transaction for transaction in transactions.describe_transactions(metastore)}
        eventually("a heartbeat", lambda: _beat(metastore, held.id) > described[held.id].lastHeartbeatTime)
    assert not _named(log, before, held.id)


def _named(log: EventLog, after: int, txn_id: int) -> list[Event]:
    """Return the events that name a transaction. The metastore itself may end those of other tests meanwhile."""
    found = ((event, event.message) for event in log.read(after, 1000))
    return [event for event, message in found if txn_id in (message.get("fromTxnId"), message.get("txnid"))]


def _beat(metastore: Metastore, txn_id: int) -> int:
    found = {
        transaction.id: transaction.lastHeartbeatTime for transaction in transactions.describe_transactions(metastore)
    }
    return int(found[txn_id])


def test_read_transaction_when_aborted_then_the_check_fails(metastore: Metastore) -> None:
    with ReadTransaction(metastore, "tests/snapshot") as held:
        transactions.abort(metastore, held.id)
        with pytest.raises(TransactionAborted, match="snapshot ended"):
            held.check()
