"""If the metastore of the target refuses a step of the copy of a whole table, only this table is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestd.acid.layout import base_name
from ingestd.hive.objects import alter_partitions, find_partitions, table_names
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import commit
from ingestd.replication.load.table_load import LoadStep
from ingestd.storage.local import local_path
from tests.support.replica import Replica
from tests.support.replica_changes import INSERT, alter, assert_same, renamed
from tests.support.replica_copying import new_copying
from tests.support.replica_following import Following, place_files, write
from tests.support.replica_rows import Rows, begin_locked, compact, insert, read_rows, table_of
from tests.support.replica_tables import make_table

_WHITELIST = "metastore.partition.name.whitelist.pattern"


def _rows(following: Following, table: str) -> Rows:
    """Return the rows that a query of the target reads."""
    return read_rows(following.replica.target.metastore, TableName(following.target, table))


def _target_tables(following: Following) -> list[str]:
    return table_names(following.replica.target.metastore, following.target)


@pytest.fixture
def refusing(replica: Replica) -> Iterator[None]:
    """Let the metastore of the target refuse partitions whose names have other characters than lower-case letters."""
    replica.target.metastore.call("setMetaConf", _WHITELIST, "[a-z]*")
    yield
    replica.target.metastore.call("setMetaConf", _WHITELIST, "")


def _accept(following: Following) -> None:
    """Let the metastore of the target accept all partitions."""
    following.replica.target.metastore.call("setMetaConf", _WHITELIST, "")


def test_table_when_a_partition_of_its_copy_is_refused_then_it_keeps_its_state_and_others_continue(
    following: Following, refusing: None
) -> None:
    side, name, other = following.replica.source, following.name("t"), following.name("other")
    make_table(side.metastore, name, partitioned=True)
    make_table(side.metastore, other)
    insert(side, name, [(1, "a")])
    following.cycle()
    insert(side, name, [(2, "B")])
    assert following.cycle().lost == ("t",)
    for number in (3, 4):
        insert(side, other, [(number, "b")])
        report = following.cycle()
        assert (report.bootstrapped, report.lost) == ((), ("t",))
        assert _target_tables(following) == ["other", "t"]
        assert _rows(following, "t") == [(1, "a")]
        assert (number, "b") in _rows(following, "other")
    _accept(following)
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)


def test_bootstrap_when_a_partition_is_refused_then_has_the_other_tables(
    replica: Replica, refusing: None, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    name, other = following.name("t"), following.name("other")
    make_table(replica.source.metastore, name, partitioned=True)
    make_table(replica.source.metastore, other)
    insert(replica.source, name, [(1, "A")])
    insert(replica.source, other, [(2, "b")])
    copying.dump()
    copying.load()
    assert _target_tables(following) == ["other"]
    _accept(following)
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)


def test_table_when_the_name_of_its_copy_is_refused_then_the_next_cycle_copies_it_and_others_continue(
    following: Following,
) -> None:
    side, name, other = following.replica.source, following.name("t"), following.name("other")
    for table in (name, other):
        make_table(side.metastore, table)
        insert(side, table, [(1, "a")])
    following.cycle()
    insert(side, name, [(2, "b")])
    compact(side, name, write_id=2, of_write_id=2)
    insert(side, other, [(3, "c")])
    place = local_path(table_of(following.replica.target.metastore, TableName(following.target, "t")).location)
    following.dump()
    report = following.load(lambda step: place.mkdir() if step is LoadStep.DROPPED else None)
    assert (report.bootstrapped, report.lost) == ((), ("t",))
    assert _target_tables(following) == ["other"]
    assert _rows(following, "other") == [(1, "a"), (3, "c")]
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)


def test_table_when_a_directory_has_its_new_name_then_the_next_cycle_copies_it_to_another(following: Following) -> None:
    side, target = following.replica.source, following.replica.target
    make_table(side.metastore, following.name("t"))
    write(side, following.name("t"), INSERT)
    following.cycle()
    place = local_path(table_of(target.metastore, TableName(following.target, "t")).location)
    (place.parent / "u" / "delta_0000001_0000001_0000").mkdir(parents=True)
    alter(following, following.name("t"), renamed("u"))
    assert following.cycle().lost == ("t", "u")
    for _ in range(2):
        write(side, following.name("u"), INSERT)
        following.cycle()
        assert _target_tables(following) == ["u"]
        assert_same(following)


@pytest.mark.parametrize(
    ("folders", "is_renamed"),
    [(("base_{w}",), False), ((), False), ((), True)],
    ids=["with rows", "without rows", "without rows, and renamed"],
)
def test_table_when_lost_before_an_overwrite_of_it_commits_then_keeps_its_rows(
    following: Following, refusing: None, folders: tuple[str, ...], *, is_renamed: bool
) -> None:
    """The target has the write id of the overwrite, which becomes valid there with the transaction."""
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")])
    following.cycle()
    txn, write_id = begin_locked(side, name, "day=a")
    following.cycle()
    (partition,) = find_partitions(side.metastore, name, ["day=a"])
    if folders:
        place_files(side, name, txn, write_id, folders, "day=a")
    else:
        (local_path(partition.location) / base_name(write_id)).mkdir()
        alter_partitions(side.metastore, name, [partition.with_write_id(write_id)])
    if is_renamed:
        alter(following, name, renamed("u"))
        name = following.name("u")
    side.metastore.call("append_partition", name.database, name.table, ["B"])
    commit(side.metastore, txn)
    assert name.table in following.cycle().lost
    assert _rows(following, name.table) == [(1, "a")]
    _accept(following)
    assert following.cycle().bootstrapped == (name.table,)
    assert_same(following)
