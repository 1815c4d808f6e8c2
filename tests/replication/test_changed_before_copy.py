"""Changes after the last event of a dump, and before the snapshot of a table that it copies as a whole.

The next dump contains their events, and the target has their results already.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.objects import (
    alter_table,
    drop_partitions,
    drop_table,
    find_partitions,
    find_table,
    rename_partition,
    table_names,
)
from ingestd.hive.tables import TableName
from ingestd.hive.truncation import truncate_at_once
from ingestd.replication import cycle
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Step
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.replica import Replica, Side
from tests.support.replica_changes import INSERT, alter, assert_same, renamed, truncate, with_column
from tests.support.replica_following import Following, write
from tests.support.replica_policies import new_pair
from tests.support.replica_rows import Rows, insert, insert_batch, read_rows
from tests.support.replica_statements import ACID, assert_answered_from_statistics, assert_equal, run
from tests.support.replica_tables import ACID as TRANSACTIONAL
from tests.support.replica_tables import make_table

# Without them, the metastore refuses a TRUNCATE without a write id.
_EXACT = {"numRows": "0", "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
_ADDED_AGAIN: Rows = [(2, "b"), (3, "b"), (7, "a"), (8, "a")]


def _events(following: Following) -> int:
    """Return the number of events that the target does not have yet."""
    return EventLog(following.replica.source.metastore).current_id() - following.last_event()


def _rows(following: Following, table: str) -> Rows:
    """Return the rows that a query of the target reads."""
    return read_rows(following.replica.target.metastore, TableName(following.target, table))


def _follow(following: Following) -> None:
    """Run cycles until one copies no table as a whole, and assert that both sides are equal."""
    reports = [following.cycle() for _ in range(3)]
    assert (reports[-1].bootstrapped, reports[-1].lost) == ((), ())
    assert_same(following)


def _add_again(side: Side, name: TableName) -> None:
    """Drop a partition and add it again, with other rows."""
    drop_partitions(side.metastore, name, ["day=a"], delete_data=True)
    insert(side, name, [(7, "a"), (8, "a")])


def _make_partitioned(following: Following) -> TableName:
    """Create a partitioned table on both sides, and write to it so that the next dump copies all of it."""
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a"), (2, "b")])
    following.cycle()
    insert_batch(side, name, [(3, "b")], [(4, "b")], aborted=[1])
    return name


def _make_plain(following: Following) -> TableName:
    """Create a table without partitions on both sides, and write to it; the next dump copies all of it."""
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, parameters={**TRANSACTIONAL, **_EXACT})
    write(side, name, INSERT)
    following.cycle()
    write(side, name, INSERT)
    (local_path(following.directory.dumps()[-1].uri) / "_lost.t").write_text("for the test")
    return name


def _dump_with(following: Following, change: Callable[[], None], step: DumpStep = DumpStep.EVENTS) -> None:
    """Dump, with a change after the last event of the dump: when `step` is observed for the first time."""
    changes = [change]
    following.dump(observe=lambda at: changes.pop()() if at is step and changes else None)


@pytest.mark.parametrize("step", [DumpStep.EVENTS, DumpStep.SNAPSHOT], ids=["after the events", "after the snapshot"])
def test_partition_when_added_again_before_its_table_is_copied_then_no_row_is_missing(
    following: Following, step: DumpStep
) -> None:
    name = _make_partitioned(following)
    _dump_with(following, lambda: _add_again(following.replica.source, name), step)
    assert following.load().bootstrapped == ("t",)
    _follow(following)
    assert sorted(_rows(following, "t")) == _ADDED_AGAIN


def test_partition_when_added_again_after_a_dump_that_is_cut_then_no_row_is_missing(following: Following) -> None:
    """The next dump has the event that drops the partition, and not that which adds it."""
    name = _make_partitioned(following)
    events = _events(following)
    drop_partitions(following.replica.source.metastore, name, ["day=a"], delete_data=True)
    dropped = _events(following)
    insert(following.replica.source, name, [(7, "a"), (8, "a")])
    following.dump(events=events)
    assert following.load().bootstrapped == ("t",)
    assert sorted(_rows(following, "t")) == _ADDED_AGAIN
    following.dump(events=dropped - events)
    assert following.load().lost == ("t",)
    assert sorted(_rows(following, "t")) == _ADDED_AGAIN
    _follow(following)


def test_partition_when_dropped_before_its_table_is_copied_then_the_table_follows(following: Following) -> None:
    name = _make_partitioned(following)
    metastore = following.replica.source.metastore
    drop = partial(drop_partitions, metastore, name, ["day=a"], delete_data=True)
    _dump_with(following, drop, DumpStep.SNAPSHOT)
    assert following.load().bootstrapped == ("t",)
    report = following.cycle()
    assert (report.bootstrapped, report.lost) == ((), ())
    assert_same(following)


def test_partition_when_added_again_under_another_name_of_its_table_then_no_row_is_missing(
    following: Following,
) -> None:
    side, name = following.replica.source, _make_partitioned(following)

    def change() -> None:
        drop_partitions(side.metastore, name, ["day=a"], delete_data=True)
        alter(following, name, renamed("u"))
        insert(side, following.name("u"), [(7, "a"), (8, "a")])

    _dump_with(following, change)
    assert following.load().bootstrapped == ("t",)
    following.cycle()
    (copy,) = table_names(following.replica.target.metastore, following.target)
    assert sorted(_rows(following, copy)) == _ADDED_AGAIN
    _follow(following)
    assert sorted(_rows(following, "u")) == _ADDED_AGAIN


def test_partition_when_another_one_gets_its_name_then_no_row_is_missing(following: Following) -> None:
    side, name = following.replica.source, _make_partitioned(following)

    def change() -> None:
        drop_partitions(side.metastore, name, ["day=a"], delete_data=True)
        partition = next(iter(find_partitions(side.metastore, name, ["day=b"])))
        partition.raw.values = ["a"]
        rename_partition(side.metastore, name, ["b"], partition)

    _dump_with(following, change)
    assert following.load().bootstrapped == ("t",)
    following.cycle()
    assert sorted(_rows(following, "t")) == [(2, "a"), (3, "a")]
    _follow(following)


@pytest.mark.parametrize("step", [DumpStep.EVENTS, DumpStep.SNAPSHOT], ids=["after the events", "after the snapshot"])
@pytest.mark.parametrize("has_partition", [False, True], ids=["table", "partition"])
def test_truncate_when_before_the_copy_of_its_table_then_keeps_later_rows(
    following: Following, step: DumpStep, *, has_partition: bool
) -> None:
    """TRUNCATE without a write id removes the files at once."""
    side = following.replica.source
    name, partitions = (_make_partitioned(following), ["day=a"]) if has_partition else (_make_plain(following), [])

    def change() -> None:
        truncate_at_once(side.metastore, name, partitions)
        write(side, name, INSERT, partition="".join(partitions))

    _dump_with(following, change, step)
    assert following.load().bootstrapped == ("t",)
    following.cycle()
    assert_same(following)
    _follow(following)


def test_truncate_when_the_dump_does_not_have_the_later_rows_of_the_copy_then_keeps_them(following: Following) -> None:
    side, name = following.replica.source, _make_plain(following)
    events = _events(following)
    truncate_at_once(side.metastore, name, [])
    truncated = _events(following)
    write(side, name, INSERT)
    following.dump(events=events)
    assert following.load().bootstrapped == ("t",)
    following.dump(events=truncated - events)
    assert following.load().lost == ("t",)
    assert_same(following)
    _follow(following)


@pytest.mark.parametrize("has_rows", [False, True], ids=["without rows", "with rows"])
def test_truncate_when_the_copy_has_no_later_rows_then_its_table_follows(
    following: Following, *, has_rows: bool
) -> None:
    side, name = following.replica.source, _make_plain(following)

    def change() -> None:
        truncate_at_once(side.metastore, name, [])
        if has_rows:  # after the snapshot
            write(side, name, INSERT)

    _dump_with(following, change, DumpStep.SNAPSHOT)
    assert following.load().bootstrapped == ("t",)
    report = following.cycle()
    assert (report.bootstrapped, report.lost) == ((), ())
    assert_same(following)


@pytest.mark.parametrize("step", [DumpStep.EVENTS, DumpStep.SNAPSHOT], ids=["after the events", "after the snapshot"])
@pytest.mark.parametrize("has_write_id", [False, True], ids=["at once", "in a transaction"])
def test_truncate_when_its_partition_is_dropped_before_the_copy_then_keeps_other_partitions(
    following: Following, step: DumpStep, *, has_write_id: bool
) -> None:
    side, name = following.replica.source, _make_partitioned(following)

    def change() -> None:
        if has_write_id:
            truncate(following, name, "day=a")
        else:
            truncate_at_once(side.metastore, name, ["day=a"])
        drop_partitions(side.metastore, name, ["day=a"], delete_data=True)

    _dump_with(following, change, step)
    assert following.load().bootstrapped == ("t",)
    following.cycle()
    assert sorted(_rows(following, "t")) == [(2, "b"), (3, "b")]
    assert_same(following)


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["table", "partitioned"])
def test_statistics_when_older_than_the_copy_of_their_table_then_count_is_that_of_the_rows(
    following: Following, *, is_partitioned: bool
) -> None:
    """The first dump copies the table with all rows, and the second one has only the statistics of the first half."""
    partitioned, place = ("PARTITIONED BY (day STRING)", "PARTITION (day='a')") if is_partitioned else ("", "")
    run(
        following,
        f"CREATE TABLE {{db}}.t (id INT) {partitioned} {ACID}",
        f"INSERT INTO {{db}}.t {place} VALUES (1)",
    )
    following.cycle()
    (local_path(following.directory.dumps()[-1].uri) / "_lost.t").write_text("for the test")
    run(following, "ALTER DATABASE {db} SET DBPROPERTIES ('a'='b')")
    first = _events(following)
    run(following, f"INSERT INTO {{db}}.t {place} VALUES (2), (3)")
    second = _events(following)
    run(following, f"INSERT INTO {{db}}.t {place} VALUES (4), (5), (6)")
    following.dump(events=first)
    assert following.load().bootstrapped == ("t",)
    queries = [f"SELECT {what} FROM {{db}}.t" for what in ("count(*)", "min(id), max(id)", "id")]
    assert_equal(following, *queries)
    following.dump(events=second - first)
    assert (following.load().bootstrapped, _events(following) > 0) == ((), True)
    assert_equal(following, *queries)
    following.cycle()
    assert_answered_from_statistics(following, queries[0])


@pytest.mark.parametrize("is_written", [False, True], ids=["new", "written"])
def test_table_when_altered_without_a_write_id_before_it_is_copied_then_it_follows(
    following: Following, *, is_written: bool
) -> None:
    """The statistics in the event are older than those of the copy, and without a write id none can be changed."""
    side, name, other = following.replica.source, following.name("t"), following.name("other")
    make_table(side.metastore, name, parameters={**TRANSACTIONAL, **_EXACT})
    make_table(side.metastore, other)
    if is_written:
        insert(side, name, [(1, "a")])
    following.cycle()
    (local_path(following.directory.dumps()[-1].uri) / "_lost.t").write_text("for the test")
    insert(side, other, [(1, "a")])
    events = _events(following)
    alter(following, name, with_column)
    insert(side, name, [(2, "a")], [(3, "a")])
    following.dump(events=events)
    assert following.load().bootstrapped == ("t",)
    report = following.cycle()
    assert (report.bootstrapped, report.lost) == ((), ())
    assert_same(following)


def test_partition_when_added_again_during_a_bootstrap_then_no_row_is_missing(replica: Replica, tmp_path: Path) -> None:
    pair = new_pair(replica, tmp_path)
    name = TableName(pair.database, "p")
    make_table(replica.source.metastore, name, partitioned=True)
    insert(replica.source, name, [(1, "a"), (2, "b")])
    pair.dump(Step(hold=lambda _directory, _dump: _add_again(replica.source, name)))
    pair.load()
    for _ in range(3):
        pair.dump()
        pair.load()
    rows = read_rows(replica.target.metastore, TableName(pair.target, "p"))
    assert sorted(rows) == sorted(read_rows(replica.source.metastore, name))
    assert (7, "a") in rows


@pytest.mark.parametrize("change", ["renamed", "swapped", "dropped", "created again"])
def test_table_when_lost_while_a_bootstrap_waits_for_its_writers_then_it_follows(
    replica: Replica, tmp_path: Path, change: str
) -> None:
    at_once = {"hive.repl.bootstrap.dump.open.txn.timeout": "0s"}
    pair = replace(new_pair(replica, tmp_path), settings=at_once)
    metastore, other = replica.source.metastore, TableName(pair.database, "other")
    make_table(metastore, other)
    insert(replica.source, other, [(9, "z")])
    for number in range(3):
        pair.insert([(number, "a")])
    answered: list[str] = []

    def lose(method: str, *_: object) -> None:
        """Lose the table after its write ids have been read once."""
        if method == "get_valid_write_ids":
            answered.append(method)
        if method != "get_valid_write_ids" or len(answered) != 3:
            return
        if change in {"renamed", "swapped"}:
            _rename(metastore, pair.table, "moved")
            if change == "swapped":
                _rename(metastore, other, "t")
        else:
            drop_table(metastore, pair.table, delete_data=True)
            if change == "created again":
                make_table(metastore, pair.table)
                pair.insert([(7, "b")])

    with closing(Metastore(replica.source.uri, on_call=lose)) as observed:
        cycle.dump(Cluster(observed, Storages()), pair.dump_statement, Step(), pair.stop)
    assert len(answered) > 3
    pair.load()
    for _ in range(3):
        pair.dump()
        pair.load()
    pair.assert_equal()


def _rename(metastore: Metastore, table: TableName, to: str) -> None:
    found = find_table(metastore, table)
    assert found is not None
    renamed(to)(found)
    alter_table(metastore, table, found)
