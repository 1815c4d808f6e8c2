"""Changes of transactions that abort, or cannot be followed, have no effect on the target.

A metastore does not undo changes of definitions, and a target forgets aborted write ids, which then count as valid.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingestd.hive.objects import alter_partitions, alter_table, find_partitions
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import Transaction, abort, commit
from ingestd.hive.truncation import truncate_in_transaction
from ingestd.storage.local import local_path
from tests.support.replica import Replica, Side
from tests.support.replica_changes import INSERT, assert_same
from tests.support.replica_copying import new_copying
from tests.support.replica_following import Following, place_files
from tests.support.replica_rows import begin_locked, forget_aborted_transactions, insert, table_of
from tests.support.replica_tables import ACID, make_table

_ACCURATE = "COLUMN_STATS_ACCURATE"
_EXACT = {"numRows": "7", _ACCURATE: '{"BASIC_STATS":"true"}'}


@pytest.fixture
def side(replica: Replica) -> Side:
    return replica.source


@pytest.fixture
def table(following: Following, side: Side) -> TableName:
    """Return a table with two partitions, which the target has."""
    name = following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a"), (2, "b")])
    following.cycle()
    return name


def _truncate(side: Side, name: TableName) -> Transaction:
    """Truncate a partition in a transaction, and leave it open."""
    txn, write_id = begin_locked(side, name, "day=a")
    truncate_in_transaction(side.metastore, name, ["day=a"], write_id)
    return txn


def test_truncate_when_its_transaction_aborts_then_target_keeps_the_rows(
    following: Following, side: Side, table: TableName
) -> None:
    abort(side.metastore, _truncate(side, table).id)
    assert following.cycle().bootstrapped == ()
    forget_aborted_transactions(following.replica.target.metastore)
    assert_same(following)
    commit(side.metastore, _truncate(side, table))
    assert following.cycle().bootstrapped == ()
    assert_same(following)


def test_truncate_when_its_transaction_has_aborted_before_then_target_keeps_the_rows(
    following: Following, side: Side, table: TableName
) -> None:
    """The metastore does not examine the transaction."""
    txn, write_id = begin_locked(side, table, "day=a")
    abort(side.metastore, txn.id)
    truncate_in_transaction(side.metastore, table, ["day=a"], write_id)
    following.cycle()
    assert_same(following)


def test_truncate_when_its_transaction_is_open_at_the_end_of_the_dump_then_the_table_is_copied(
    following: Following, side: Side, table: TableName
) -> None:
    _truncate(side, table)  # the dump aborts it, because it does not wait
    assert following.cycle().bootstrapped == ("t",)
    following.cycle()
    forget_aborted_transactions(following.replica.target.metastore)
    assert_same(following)


def _store_statistics(side: Side, name: TableName) -> Transaction:
    """Store statistics in a transaction, and leave it open."""
    txn, write_id = begin_locked(side, name)
    table = table_of(side.metastore, name)
    table.raw.writeId, table.raw.parameters = write_id, {**table.parameters, **_EXACT}
    alter_table(side.metastore, name, table)
    return txn


def test_statistics_when_their_transaction_aborts_then_target_does_not_use_them(
    following: Following, side: Side
) -> None:
    name, copied = following.name("t"), TableName(following.target, "t")
    make_table(side.metastore, name)
    commit(side.metastore, _store_statistics(side, name))
    following.cycle()
    target = following.replica.target.metastore
    assert _EXACT.items() <= table_of(target, copied).parameters.items()
    txn = _store_statistics(side, name)
    following.cycle()
    assert _ACCURATE not in table_of(target, copied).parameters
    abort(side.metastore, txn.id)
    abort(side.metastore, _store_statistics(side, name).id)
    following.cycle()
    assert _ACCURATE not in table_of(target, copied).parameters
    commit(side.metastore, _store_statistics(side, name))
    following.cycle()
    assert _EXACT.items() <= table_of(target, copied).parameters.items()


def test_bootstrap_when_statistics_are_of_an_aborted_transaction_then_target_does_not_use_them(
    replica: Replica, side: Side, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    name = TableName(copying.database, "t")
    make_table(side.metastore, name, parameters={**ACID, **_EXACT})
    abort(side.metastore, _store_statistics(side, name).id)
    copying.dump()
    copying.load()
    copied = table_of(replica.target.metastore, TableName(copying.target, "t"))
    assert _ACCURATE not in copied.parameters
    assert copied.parameters["numRows"] == "7"


def test_table_when_lost_before_an_open_transaction_commits_then_shows_none_of_its_rows(
    following: Following, side: Side, table: TableName
) -> None:
    txn, write_id = begin_locked(side, table)
    following.cycle()
    before = following.states()[1]
    for day in ("a", "b"):
        place_files(side, table, txn, write_id, (INSERT,), partition=f"day={day}")
    commit(side.metastore, txn)
    following.dump()
    location = local_path(table_of(side.metastore, table).location)
    shutil.rmtree(location / "day=a" / f"delta_{write_id:07d}_{write_id:07d}_0000")
    assert following.load().lost == ("t",)
    after = following.states()[1]
    assert after == before
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)


@pytest.mark.parametrize("is_open_before", [False, True])
def test_table_when_its_definition_is_lost_before_a_commit_then_shows_none_of_its_rows(
    following: Following, side: Side, table: TableName, tmp_path: Path, *, is_open_before: bool
) -> None:
    """The files of the commit are copied before the change that the target cannot follow."""
    txn, write_id = begin_locked(side, table, "day=a")
    if is_open_before:
        following.cycle()
    before = following.states()[1]
    (partition,) = find_partitions(side.metastore, table, ["day=a"])
    place = tmp_path / "elsewhere"
    place.mkdir()
    alter_partitions(side.metastore, table, [partition.copied(table, f"file:{place}", partition.parameters)])
    place_files(side, table, txn, write_id, (INSERT,), partition="day=a")
    commit(side.metastore, txn)
    assert following.cycle().lost == ("t",)
    assert following.states()[1] == before
    assert following.cycle().bootstrapped == ("t",)
