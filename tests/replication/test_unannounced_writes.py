"""A write that its client has not announced reaches the copy, although no event names its files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable

import pytest

from ingestd.acid.layout import delta_name
from ingestd.hive.notifications import WrittenPartition, notify_writes
from ingestd.hive.objects import alter_partitions, alter_table, find_partitions
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import Transaction, abort, begin, commit
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.storage.local import local_path
from tests.support.replica import Side
from tests.support.replica_following import Following
from tests.support.replica_rows import Rows, begin_locked, insert, read_rows, table_of
from tests.support.replica_statements import ACID, INSERT_ONLY, assert_equal, run
from tests.support.replica_tables import make_table


def _place(side: Side, name: TableName, write_id: int, partition: str = "") -> None:
    """Place the rows of the first write again, as those of another one."""
    location = local_path(table_of(side.metastore, name).location) / partition
    shutil.copytree(location / delta_name(1, 0), location / delta_name(write_id, 0))


def _alter(side: Side, name: TableName, write_id: int, partition: str = "") -> None:
    """Alter the table or partition under the write id, as HiveServer2 does."""
    if partition:
        (found,) = find_partitions(side.metastore, name, [partition])
        alter_partitions(side.metastore, name, [found.with_write_id(write_id)])
        return
    alter_table(side.metastore, name, table_of(side.metastore, name).with_write_id(write_id))


def _announce(side: Side, name: TableName, txn: Transaction, write_id: int) -> None:
    """Announce the file of a write."""
    raw = table_of(side.metastore, name)
    table = Table(name, 0, raw.location, (), (), None, frozenset(), {}, raw.raw)
    folder = delta_name(write_id, 0)
    (file,) = (local_path(raw.location) / folder).glob("bucket_*")
    written = WrittenPartition((), [(f"{raw.location}/{folder}/{file.name}", folder)])
    notify_writes(side.metastore, txn, table, write_id, [written])


def _rows(following: Following, table: str) -> tuple[Rows, Rows]:
    """Return the rows on both sides."""
    source, target = following.replica.source, following.replica.target
    copy = TableName(following.target, table)
    return read_rows(source.metastore, following.name(table)), read_rows(target.metastore, copy)


@pytest.fixture
def announcing(following: Following) -> Callable[[bool], None]:
    """Return a function that lets HiveServer2 of the source announce writes, or not."""
    return lambda on: run(following, f"SET hive.metastore.dml.events={str(on).lower()}")


@pytest.mark.parametrize("autogather", [True, False])
def test_tables_when_written_without_events_then_are_copied(
    following: Following, announcing: Callable[[bool], None], caplog: pytest.LogCaptureFixture, *, autogather: bool
) -> None:
    partitioned = "PARTITIONED BY (day STRING)"
    kinds = {"t": ("", ACID), "o": ("", INSERT_ONLY), "p": (partitioned, ACID), "q": (partitioned, INSERT_ONLY)}
    run(
        following,
        *(f"CREATE TABLE {{db}}.{table} (id INT) {columns} {kind}" for table, (columns, kind) in kinds.items()),
    )
    queries = [f"SELECT {what} FROM {{db}}.{table}" for table in kinds for what in ("*", "count(*)")]
    inserts = [
        "t VALUES (1), (2)",
        "o VALUES (1), (2)",
        *(f"{table} VALUES (1, '{{day}}'), (2, 'c')" for table in "pq"),
    ]
    changes = {
        tuple(kinds): ["INSERT INTO {db}." + rows for rows in inserts],
        ("t", "p"): [f"UPDATE {{db}}.{table} SET id = 3 WHERE id = 1" for table in "tp"],
        ("p", "t"): [f"DELETE FROM {{db}}.{table} WHERE id = 2" for table in "tp"],
        ("q", "t"): [
            "INSERT OVERWRITE TABLE {db}.t VALUES (7)",
            "INSERT OVERWRITE TABLE {db}.q PARTITION (day='c') VALUES (7)",
        ],
    }
    run(following, f"SET hive.stats.autogather={str(autogather).lower()}")
    try:
        for day, on in (("a:b", True), ("new", False), ("last", True)):
            announcing(on)
            for tables, statements in changes.items():
                run(following, *(statement.replace("{day}", day) for statement in statements))
                caplog.clear()
                with caplog.at_level(logging.WARNING):
                    copied = following.cycle().bootstrapped
                assert_equal(following, *queries)
                assert sorted(copied) == ([] if on else sorted(tables))
                warned = [
                    table for table in kinds if f"all of the table {table}, because no event names" in caplog.text
                ]
                assert warned == ([] if on else [table for table in kinds if table in tables])
                assert on or "hive.metastore.dml.events=true" in caplog.text
    finally:
        announcing(True)
        run(following, "SET hive.stats.autogather=true")


@pytest.mark.parametrize("is_older_open", [False, True])
@pytest.mark.parametrize("is_allocated_earlier", [False, True])
@pytest.mark.parametrize("is_announced", [False, True])
def test_write_when_it_commits_after_the_dump_then_its_table_is_copied_unless_announced(
    following: Following, *, is_older_open: bool, is_allocated_earlier: bool, is_announced: bool
) -> None:
    side, name = following.replica.source, following.name("t")
    older = begin(side.metastore, "tests/older") if is_older_open else None
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")])
    following.cycle()
    txn, write_id = begin_locked(side, name)
    if is_allocated_earlier:
        following.cycle()
    _place(side, name, write_id)
    _alter(side, name, write_id)
    if is_announced:
        _announce(side, name, txn, write_id)

    def end(step: DumpStep) -> None:
        if step is DumpStep.EVENTS:
            commit(side.metastore, txn)

    following.dump(observe=end)
    assert following.load().bootstrapped == (() if is_announced else ("t",))
    insert(side, name, [(2, "b")])
    assert following.cycle().bootstrapped == ()
    source, target = _rows(following, "t")
    assert source == target
    assert len(source) == 3
    if older is not None:
        abort(side.metastore, older.id)


@pytest.mark.parametrize("is_allocated_earlier", [False, True])
def test_write_when_it_commits_in_the_dump_then_its_partitioned_table_is_copied(
    following: Following, *, is_allocated_earlier: bool
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a"), (2, "b")])
    following.cycle()
    txn, write_id = begin_locked(side, name)
    if is_allocated_earlier:
        following.cycle()
    for day in "ab":
        _place(side, name, write_id, f"day={day}")
    found = find_partitions(side.metastore, name, ["day=a", "day=b"])
    alter_partitions(side.metastore, name, [partition.with_write_id(write_id) for partition in found])
    commit(side.metastore, txn)
    assert following.cycle().bootstrapped == ("t",)
    source, target = _rows(following, "t")
    assert source == target
    assert len(source) == 4


@pytest.mark.parametrize("has_commits", [False, True])
def test_partitions_when_altered_together_while_transactions_are_open_then_are_not_copied(
    following: Following, caplog: pytest.LogCaptureFixture, *, has_commits: bool
) -> None:
    side, name, other = following.replica.source, following.name("t"), following.name("o")
    make_table(side.metastore, name, partitioned=True)
    make_table(side.metastore, other)
    insert(side, name, [(1, "a")], [(2, "b")])
    insert(side, other, [(1, "a")])
    following.cycle()
    # One of the partitions and the transaction have the same write id.
    older, (txn, write_id) = begin(side.metastore, "tests/older"), begin_locked(side, other)
    following.cycle()
    _place(side, other, write_id)
    _announce(side, other, txn, write_id)
    if has_commits:
        commit(side.metastore, txn)
        commit(side.metastore, older)
        younger = begin(side.metastore, "tests/younger")
    found = list(find_partitions(side.metastore, name, ["day=a", "day=b"]))
    assert write_id in {partition.write_id for partition in found}
    with caplog.at_level(logging.WARNING):
        alter_partitions(side.metastore, name, found)
        assert following.cycle().bootstrapped == ()
    assert "all of the table" not in caplog.text
    for left in [younger] if has_commits else [older, txn]:
        abort(side.metastore, left.id)
    source, target = _rows(following, "o")
    assert source == target
    assert len(source) == (2 if has_commits else 1)


@pytest.mark.parametrize("partition", ["", "day=a"])
def test_table_when_altered_without_files_and_compacted_then_is_not_copied(
    following: Following, partition: str
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=bool(partition))
    insert(side, name, [(1, "a")])
    following.cycle()
    txn, write_id = begin_locked(side, name, partition)
    _alter(side, name, write_id, partition)
    commit(side.metastore, txn)
    location = local_path(table_of(side.metastore, name).location) / partition
    shutil.copytree(location / delta_name(1, 0), location / f"delta_0000001_{write_id:07d}_v{txn.id:07d}")
    assert following.cycle().bootstrapped == ()
