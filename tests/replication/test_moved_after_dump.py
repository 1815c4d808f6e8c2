"""A table that is renamed after the last event of a dump keeps its copy, which follows when the rename is replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest
from hive_metastore import ttypes

from ingestd.acid.layout import base_name
from ingestd.hive.attachments import Constraint, ConstraintKind, add_constraints, list_constraints
from ingestd.hive.client import Metastore
from ingestd.hive.objects import alter_table, drop_table, find_partitions, rename_partition, table_names
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import Transaction, abort, commit
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.storage.local import local_path
from tests.support.proxy import proxy
from tests.support.replica import Side
from tests.support.replica_changes import alter, assert_same, renamed, with_column
from tests.support.replica_following import Following
from tests.support.replica_rows import (
    Rows,
    begin_locked,
    compact,
    forget_aborted_transactions,
    insert,
    read_rows,
    table_of,
)
from tests.support.replica_tables import make_table
from tests.support.stack import eventually

_Change = Callable[[], None]
_LOST_ROWS: Rows = [(0, "a"), (2, "b"), (3, "a")]
_KEY_STATE = {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}


def _make(following: Following, *tables: str, partitioned: bool = False) -> list[TableName]:
    """Create tables on both sides, each with a row of another id."""
    names = [following.name(table) for table in tables]
    for number, name in enumerate(names):
        make_table(following.replica.source.metastore, name, partitioned=partitioned)
        insert(following.replica.source, name, [(number, "a")])
    return names


def _move(following: Following, *, is_swapped: bool) -> _Change:
    """Return a change that renames the table t to u, and then the table other to t if they are swapped."""

    def change() -> None:
        alter(following, following.name("t"), renamed("u"))
        if is_swapped:
            alter(following, following.name("other"), renamed("t"))

    return change


def _dump(following: Following, change: _Change, step: DumpStep = DumpStep.EVENTS) -> None:
    """Dump, with a change after the last event of the dump: when `step` is observed for the first time."""
    changes = [change]
    following.dump(observe=lambda at: changes.pop()() if at is step and changes else None)


def _rows(following: Following, table: str) -> Rows:
    """Return the rows that a query of the target reads."""
    return read_rows(following.replica.target.metastore, TableName(following.target, table))


def _partition_columns(following: Following, table: str) -> list[str]:
    """Return the columns of the partition of a table of the target."""
    name = TableName(following.target, table)
    partition = following.replica.target.metastore.call("get_partition_by_name", name.database, name.table, "day=a")
    return [column.name for column in partition.sd.cols]


def _assert_followed(following: Following) -> None:
    """Assert that the next cycle replays the renames, without a copy of a whole table."""
    report = following.cycle()
    assert (report.bootstrapped, report.lost) == ((), ())
    assert_same(following)


@pytest.mark.parametrize("is_swapped", [False, True], ids=["renamed", "swapped"])
def test_partitions_when_their_table_is_renamed_after_the_dump_then_have_the_changed_columns(
    following: Following, *, is_swapped: bool
) -> None:
    name, _ = _make(following, "t", "other", partitioned=True)
    following.cycle()
    alter(following, name, with_column, cascade=True)
    _dump(following, _move(following, is_swapped=is_swapped))
    assert following.load().bootstrapped == ()
    assert [_partition_columns(following, table) for table in ("t", "other")] == [["id", "c1"], ["id"]]
    assert [_rows(following, table) for table in ("t", "other")] == [[(0, "a")], [(1, "a")]]
    _assert_followed(following)
    assert _partition_columns(following, "u") == ["id", "c1"]


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
@pytest.mark.parametrize("is_swapped", [False, True], ids=["renamed", "swapped"])
def test_overwrite_without_rows_when_its_table_is_renamed_after_the_dump_then_hides_rows_if_it_commits(
    following: Following, *, is_swapped: bool, is_committed: bool
) -> None:
    """The write ids are allocated in an earlier cycle, so only the write ids of the table tell how they end."""
    side, (name, other) = following.replica.source, _make(following, "t", "other")
    (txn, write_id), (other_txn, _) = begin_locked(side, name), begin_locked(side, other)
    following.cycle()
    (local_path(table_of(side.metastore, name).location) / base_name(write_id)).mkdir()
    alter_table(side.metastore, name, table_of(side.metastore, name).with_write_id(write_id))
    _end(side, txn, is_committed=is_committed)
    _end(side, other_txn, is_committed=not is_committed)
    _dump(following, _move(following, is_swapped=is_swapped))
    assert following.load().bootstrapped == ()
    forget_aborted_transactions(following.replica.target.metastore)
    kept = [] if is_committed else [(0, "a")]
    assert [_rows(following, table) for table in ("t", "other")] == [kept, [(1, "a")]]
    report = following.cycle()
    assert (report.bootstrapped, report.lost) == ((), ())
    assert [_rows(following, table) for table in ("u", "t" if is_swapped else "other")] == [kept, [(1, "a")]]


def _end(side: Side, txn: Transaction, *, is_committed: bool) -> None:
    if is_committed:
        commit(side.metastore, txn)
    else:
        abort(side.metastore, txn.id)


@pytest.mark.parametrize(
    ("step", "is_swapped"),
    [(DumpStep.EVENTS, False), (DumpStep.EVENTS, True), (DumpStep.SNAPSHOT, False)],
    ids=["renamed", "swapped", "renamed while the dump waits for writers"],
)
def test_table_when_copied_as_a_whole_and_renamed_after_the_dump_then_has_its_old_name_until_the_next_cycle(
    following: Following, step: DumpStep, *, is_swapped: bool
) -> None:
    side, (name, _) = following.replica.source, _make(following, "t", "other")
    key = ttypes.SQLPrimaryKey(name.database, name.table, "id", 1, "the_key", **_KEY_STATE)
    add_constraints(side.metastore, name, [Constraint(ConstraintKind.PRIMARY_KEY, (key,))])
    following.cycle()
    insert(side, name, [(2, "b")])
    compact(side, name, write_id=2, of_write_id=2)
    _dump(following, _move(following, is_swapped=is_swapped), step)
    assert following.load().bootstrapped == ("t",)
    assert table_names(following.replica.target.metastore, following.target) == ["other", "t"]
    assert _rows(following, "t") == [(2, "b")]
    copied = TableName(following.target, "t")
    constraints = list_constraints(following.replica.target.metastore, copied)
    assert [constraint.name for constraint in constraints] == ["the_key"]
    insert(side, following.name("u"), [(3, "c")])
    _assert_followed(following)


def test_table_when_recreated_after_its_rename_after_the_dump_then_both_follow(following: Following) -> None:
    side, (name, _) = following.replica.source, _make(following, "t", "other")
    following.cycle()
    insert(side, name, [(2, "b")])
    compact(side, name, write_id=2, of_write_id=2)

    def change() -> None:
        alter(following, name, renamed("u"))
        _make(following, "t")
        drop_table(side.metastore, following.name("other"), delete_data=True)
        alter(following, name, renamed("other"))

    _dump(following, change)
    assert following.load().bootstrapped == ("t",)
    assert _rows(following, "t") == [(2, "b")]
    _assert_followed(following)


@pytest.mark.parametrize(
    ("method", "is_partitioned"),
    [
        ("add_write_ids_to_min_history", False),
        ("get_all_table_constraints", False),
        ("get_partition_names", True),
        ("get_partitions_by_names_req", True),
    ],
    ids=["before its snapshot", "before its files", "before its partitions", "before the files of its partitions"],
)
@pytest.mark.parametrize("is_swapped", [False, True], ids=["renamed", "swapped"])
def test_table_when_renamed_while_it_is_listed_then_its_copy_has_its_own_rows(
    following: Following, method: str, *, is_partitioned: bool, is_swapped: bool
) -> None:
    _make_lost(following, is_partitioned=is_partitioned)
    _dump_while(following, method, _move(following, is_swapped=is_swapped))
    assert following.load().bootstrapped == ("t",)
    assert [_rows(following, table) for table in ("t", "other")] == [_LOST_ROWS, [(1, "a")]]
    _assert_followed(following)


def test_table_when_dropped_while_it_is_listed_then_target_drops_it(following: Following) -> None:
    name = _make_lost(following, is_partitioned=True)
    drop = partial(drop_table, following.replica.source.metastore, name, delete_data=True)
    _dump_while(following, "get_partitions_by_names_req", drop)
    following.load()
    assert table_names(following.replica.target.metastore, following.target) == ["other"]
    _assert_followed(following)


def test_partition_when_renamed_while_its_table_is_listed_then_no_row_is_missing(following: Following) -> None:
    side, name = following.replica.source, _make_lost(following, is_partitioned=True)

    def change() -> None:
        (partition,) = find_partitions(side.metastore, name, ["day=a"])
        partition.raw.values = ["z"]
        rename_partition(side.metastore, name, ["a"], partition)

    _dump_while(following, "get_partitions_by_names_req", change)
    assert following.load().bootstrapped == ("t",)
    assert _rows(following, "t") == [(0, "z"), (2, "b"), (3, "z")]
    following.cycle()
    following.cycle()
    assert_same(following)


def _make_lost(following: Following, *, is_partitioned: bool) -> TableName:
    """Create the tables t and other on both sides; the next dump copies t as a whole, which then has `_LOST_ROWS`."""
    name, _ = _make(following, "t", "other", partitioned=is_partitioned)
    following.cycle()
    insert(following.replica.source, name, [(2, "b"), (3, "a")])
    (local_path(following.directory.dumps()[-1].uri) / "_lost.t").write_text("for the test")
    return name


def _dump_while(following: Following, method: str, change: _Change) -> None:
    """Dump, with a change before the first call of a method of the metastore takes effect."""
    with proxy(following.replica.source.uri) as between, closing(Metastore(between.uri)) as source:
        between.hold(method)
        dumping = threading.Thread(target=following.dump, kwargs={"metastore": source})
        dumping.start()
        eventually(f"the call of {method}", lambda: between.calls[method] > 0)
        change()
        between.forward(method)
        dumping.join()
