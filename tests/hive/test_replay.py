"""Source transactions are replayed with the same write ids, once, however often their events are read."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.clock import Deadline
from ingestd.errors import BootstrapRequired, ReplicationError
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.objects import change_database
from ingestd.hive.replay import LAST_ID, Allocation, Replay, TargetChanged
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import Wait, WriteLock, describe_transactions
from ingestd.hive.write_ids import as_text, parse, read_snapshot
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.replica import Replica
from tests.support.replica_rows import forget_aborted_transactions
from tests.support.tables import make_table

MAPPED, FINISHED = Allocation.MAPPED, Allocation.FINISHED


@pytest.fixture
def metastore(replica: Replica) -> Metastore:
    return replica.target.metastore


@pytest.fixture
def table(replica: Replica, metastore: Metastore) -> TableName:
    return _new_table(replica, metastore)


def _new_table(replica: Replica, metastore: Metastore) -> TableName:
    """Create a table in a database of its own."""
    return _table_in(metastore, replica.name("replay"))


def _table_in(metastore: Metastore, database: str) -> TableName:
    name = TableName(database, "t")
    metastore.call("create_database", ttypes.Database(name=name.database, parameters={LAST_ID: "1"}))
    make_table(metastore, name)
    return name


def _replay(metastore: Metastore, table: TableName, *, accepts_gaps: bool = False) -> Replay:
    return Replay(metastore, table.database, accepts_gaps=lambda _: accepts_gaps)


def _last_id(metastore: Metastore, table: TableName) -> str:
    return str(metastore.call("get_database", table.database).parameters[LAST_ID])


def _uri(metastore: Metastore) -> str:
    host, port = metastore.preferred_address
    return f"thrift://{host}:{port}"


def _at(table: TableName, identity: tuple[int, int]) -> tuple[int, TableName, int]:
    return identity[0], table, identity[1]


def _valid(metastore: Metastore, table: TableName, last: int) -> list[int]:
    snapshot = read_snapshot(metastore, table)
    return [write_id for write_id in range(1, last + 1) if snapshot.is_valid(write_id)]


def test_events_when_replayed_twice_then_nothing_is_rewound_and_no_transaction_is_left(
    metastore: Metastore, table: TableName
) -> None:
    def replay() -> list[Allocation]:
        to = _replay(metastore, table)
        found = [to.allocate(901, table, 1), to.allocate(902, table, 2)]
        to.commit(901, [], 10)
        return found

    assert replay() == [MAPPED, MAPPED]
    assert replay() == [FINISHED, MAPPED]
    to = _replay(metastore, table)
    assert to.open_transactions == {902}
    snapshot = read_snapshot(metastore, table)
    assert snapshot.high_watermark == 2
    assert snapshot.open == {2}
    (opened,) = _open(metastore, table)
    lock = [WriteLock(table)]  # HMS soon forgets an aborted transaction without locks
    wait = Wait(Deadline.after(LIMIT), threading.Event())
    transactions.lock(metastore, transactions.Transaction(opened, "tests"), lock, wait=wait)
    to.abort(902)
    assert _replay(metastore, table).open_transactions == frozenset()
    assert [_replay(metastore, table).allocate(txn, table, txn - 900) for txn in (901, 902)] == [FINISHED, FINISHED]
    assert to.highest_write_id(table) == 2
    assert read_snapshot(metastore, table).aborted == {2}


def test_commit_when_the_transaction_is_open_then_the_last_id_moves_in_the_same_call(
    metastore: Metastore, table: TableName
) -> None:
    to = _replay(metastore, table)
    to.allocate(5, table, 1)
    methods: list[str] = []
    observed = Metastore(_uri(metastore), on_call=lambda method, *_: methods.append(method))
    again = _replay(observed, table)
    again.commit(5, [], 77)
    observed.close()
    assert "alter_database" not in methods
    assert _last_id(metastore, table) == "77"


def test_commit_when_another_property_has_the_same_value_then_the_last_id_moves(
    metastore: Metastore, table: TableName
) -> None:
    database = metastore.call("get_database", table.database)
    database.parameters = {"aaa": "15", LAST_ID: "3"}
    metastore.call("alter_database", table.database, database)
    to = _replay(metastore, table)
    assert to.is_ambiguous(15)
    assert not to.is_ambiguous(3)
    to.allocate(5, table, 1)
    to.commit(5, [], 15)
    assert _last_id(metastore, table) == "15"
    to.commit(6, [], 16)  # a transaction that is not open on the target
    assert _last_id(metastore, table) == "16"


def test_commit_when_another_property_gets_the_same_value_meanwhile_then_the_last_id_moves(
    metastore: Metastore, table: TableName
) -> None:
    _replay(metastore, table).allocate(5, table, 1)
    methods: list[str] = []

    def alter(method: str, _seconds: float, _outcome: str) -> None:
        """Set the property when the commit has read the others."""
        methods.append(method)
        if method == "get_database" and "commit_txn" not in methods:
            change_database(metastore, table.database, {"aaa": "15"})

    with closing(Metastore(_uri(metastore), on_call=alter)) as observed:
        _replay(observed, table).commit(5, [], 15)
    assert _last_id(metastore, table) == "15"
    assert _valid(metastore, table, 1) == [1]


def test_transaction_when_it_writes_two_tables_then_both_have_its_ids(metastore: Metastore, table: TableName) -> None:
    other = TableName(table.database, "u")
    make_table(metastore, other)
    to = _replay(metastore, table)
    assert [to.allocate(7, name, 1) for name in (table, other)] == [MAPPED, MAPPED]
    assert [_replay(metastore, table).allocate(7, name, 1) for name in (table, other)] == [MAPPED, MAPPED]
    assert _valid(metastore, table, 1) == _valid(metastore, other, 1) == []
    to.commit(7, [], 12)
    assert _valid(metastore, table, 1) == _valid(metastore, other, 1) == [1]


def test_ids_when_those_of_later_transactions_follow_then_one_call_allocates_them(
    metastore: Metastore, table: TableName
) -> None:
    methods: list[str] = []
    with closing(Metastore(_uri(metastore), on_call=lambda method, *_: methods.append(method))) as observed:
        to, ids = _replay(observed, table), [(40 + write_id, write_id) for write_id in range(1, 6)]
        assert [to.allocate(*_at(table, identity), ids[place:]) for place, identity in enumerate(ids, 1)] == [
            MAPPED
        ] * 5
        assert methods.count("allocate_table_write_ids") == 1
        to.commit(43, [], 10)
        assert [to.allocate(*_at(table, identity)) for identity in ids] == [MAPPED, MAPPED, FINISHED, MAPPED, MAPPED]
    assert _valid(metastore, table, 5) == [3]
    again = _replay(metastore, table)
    assert [again.allocate(*_at(table, identity)) for identity in ids] == [MAPPED, MAPPED, FINISHED, MAPPED, MAPPED]
    again.commit(41, [], 11)
    again.abort(45)
    assert _valid(metastore, table, 5) == [1, 3]


def test_ids_when_their_order_is_not_that_of_the_transactions_then_each_has_its_own(
    metastore: Metastore, table: TableName
) -> None:
    other = TableName(table.database, "u")
    make_table(metastore, other)
    to = _replay(metastore, table)
    to.allocate(53, other, 1)
    to.allocate(51, other, 2)
    ids = [(51, 1), (52, 2), (53, 3), (54, 4)]
    assert to.allocate(51, table, 1, ids[1:]) is MAPPED
    for txn_id, write_id in ids[1:]:
        assert to.allocate(txn_id, table, write_id, ids[write_id:]) is MAPPED
        to.commit(txn_id, [], 10 + write_id)
        assert _valid(metastore, table, 4) == list(range(2, write_id + 1))


def test_ids_when_another_client_takes_one_then_those_that_follow_are_refused(
    metastore: Metastore, table: TableName
) -> None:
    to = _replay(metastore, table)
    assert to.allocate(61, table, 1, [(62, 2)]) is MAPPED
    transactions.begin_writing(metastore, table, "somebody")
    assert to.allocate(62, table, 2) is MAPPED
    with pytest.raises(TargetChanged, match="does not belong"):
        to.allocate(62, table, 3)
    with pytest.raises(TargetChanged, match="next write id is 4"):
        to.allocate(63, table, 5)


def test_replay_when_answers_are_lost_then_its_calls_are_repeated_and_take_effect_once(
    metastore: Metastore, table: TableName
) -> None:
    with proxy(_uri(metastore)) as between, closing(Metastore(between.uri)) as through:
        for method in ("open_txns", "allocate_table_write_ids", "commit_txn", "abort_txn", "repl_tbl_writeid_state"):
            between.lose_answer(method)
        to = _replay(through, table)
        to.set_write_ids(table, ValidWriteIds(str(table), 3, frozenset(), frozenset({1})))
        to.allocate(50, table, 4)
        to.commit(50, [], 9)
        to.allocate(51, table, 5)
        to.abort(51)
        assert between.calls["abort_txn"] == between.calls["repl_tbl_writeid_state"] == 2
    assert _valid(metastore, table, 6) == [1, 2, 3, 4]
    again = _replay(metastore, table)
    assert (again.open_transactions, again.highest_write_id(table)) == (frozenset(), 5)
    assert _last_id(metastore, table) == "9"


@pytest.mark.parametrize("is_open", [True, False])
def test_target_when_another_client_has_allocated_the_id_then_reported(
    metastore: Metastore, table: TableName, *, is_open: bool
) -> None:
    other = TableName(table.database, "u")
    make_table(metastore, other)
    to = _replay(metastore, table)
    to.allocate(7, other, 1)
    foreign, _ = transactions.begin_writing(metastore, table, "somebody")
    if not is_open:
        transactions.commit(metastore, foreign)
    with pytest.raises(TargetChanged, match="does not belong"):
        to.allocate(7, table, 1)
    with pytest.raises(ReplicationError, match="next write id is 2"):
        to.allocate(8, table, 3)
    assert to.highest_write_id(table) == 1


def _open(metastore: Metastore, table: TableName) -> list[int]:
    """Return the open transactions of the replay."""
    known = [txn for txn in describe_transactions(metastore) if str(txn.hostname).endswith(f"/{table.database}")]
    return [txn.id for txn in known if txn.state == ttypes.TxnState.OPEN]


def _end(metastore: Metastore, table: TableName) -> None:
    """End all transactions of the replay, as another client does."""
    transactions.abort_all(metastore, _open(metastore, table))


@pytest.mark.parametrize("is_taken", [False, True])
def test_id_when_another_client_has_ended_the_transaction_then_a_bootstrap_is_required(
    metastore: Metastore, table: TableName, *, is_taken: bool
) -> None:
    other = TableName(table.database, "u")
    make_table(metastore, other)
    to = _replay(metastore, table)
    to.allocate(7, table, 1)
    if is_taken:
        transactions.begin_writing(metastore, other, "somebody")
    _end(metastore, table)
    with pytest.raises(BootstrapRequired, match="was ended by another client"):
        to.allocate(7, other, 1)
    assert to.highest_write_id(other) == is_taken


def test_transaction_when_the_database_of_another_has_almost_the_same_long_name_then_only_its_own_is_known(
    replica: Replica, metastore: Metastore
) -> None:
    prefix = replica.name("replay").ljust(127, "x")
    own, other = (_table_in(metastore, prefix + last) for last in "ab")
    _replay(metastore, own).allocate(5, own, 1)
    assert _replay(metastore, other).open_transactions == frozenset()
    again = _replay(metastore, own)
    assert again.open_transactions == {5}
    again.commit(5, [], 10)
    assert _valid(metastore, own, 1) == [1]


def test_gap_when_it_is_the_first_cycle_then_accepted(metastore: Metastore, table: TableName) -> None:
    to = _replay(metastore, table, accepts_gaps=True)
    assert to.allocate(3, table, 5) is MAPPED
    to.commit(3, [], 20)
    assert _valid(metastore, table, 5)[-1] == 5


def test_write_ids_of_a_snapshot_when_set_twice_then_readers_never_see_aborted_ones_with_rows(
    replica: Replica, metastore: Metastore
) -> None:
    expected: dict[TableName, list[int]] = {}
    none: set[int] = set()
    for high, written in ((7, {2, 3}), (7, {7}), (7, {2, 6, 7}), (7, none), (2, {1, 2}), (1, {1}), (0, none)):
        table = _new_table(replica, metastore)
        ids = ValidWriteIds("source.t", high, frozenset(), frozenset({2, 4} | written))
        valid = [write_id for write_id in range(1, high + 1) if write_id not in written]
        for _ in range(2):
            partitions = {write_id: [WHOLE_TABLE] for write_id in written}
            _replay(metastore, table).set_write_ids(table, parse(as_text(ids)), partitions)
            assert _valid(metastore, table, high + 1) == valid, (high, written)
        to = _replay(metastore, table)
        assert to.open_transactions == frozenset()
        assert to.highest_write_id(table) == high
        assert to.allocate(900, table, high + 1) is MAPPED
        to.commit(900, [], 30)
        expected[table] = [*valid, high + 1]
    forget_aborted_transactions(metastore)
    assert {table: _valid(metastore, table, ids[-1]) for table, ids in expected.items()} == expected


def test_write_ids_of_a_snapshot_when_another_client_ends_their_transaction_then_a_bootstrap_is_required(
    metastore: Metastore, table: TableName
) -> None:
    methods: list[str] = []

    def end(method: str, _seconds: float, _outcome: str) -> None:
        """End the transaction that is to be committed with the second write id."""
        methods.append(method)
        if method == "allocate_table_write_ids" and methods.count(method) == 2:
            _end(metastore, table)

    ids = ValidWriteIds("source.t", 3, frozenset(), frozenset({1}))
    observed = Metastore(_uri(metastore), on_call=end)
    with closing(observed), pytest.raises(BootstrapRequired, match="was ended by another client"):
        _replay(observed, table).set_write_ids(table, ids, {1: [WHOLE_TABLE]})
    assert methods.count("allocate_table_write_ids") == 3


def test_sweep_when_a_source_transaction_has_ended_then_it_is_aborted_on_the_target(
    metastore: Metastore, table: TableName
) -> None:
    to = _replay(metastore, table)
    for txn, write_id in ((1000, 1), (1001, 2)):
        to.allocate(txn, table, write_id)
    assert _replay(metastore, table).sweep(lambda txn: txn == 1000) == [1000]
    assert _replay(metastore, table).open_transactions == {1001}
    parameters = metastore.call("get_database", table.database).parameters
    assert "repl.incompatible" not in parameters
