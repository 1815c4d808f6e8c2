"""Write ids of a name that no table has on the target: its creation failed, or the source has dropped the table."""

from __future__ import annotations

import copy
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.objects import drop_table
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort, begin_writing
from ingestd.replication import cycle
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.storage.local import local_path
from tests.support.replica import Replica, Side
from tests.support.replica_changes import alter, assert_same, renamed
from tests.support.replica_following import Following
from tests.support.replica_policies import new_pair
from tests.support.replica_rows import insert, insert_batch, read_rows
from tests.support.replica_tables import make_table


def _fail_to_create(side: Side, name: TableName) -> None:
    """Leave a write id of a table that does not exist, as a CREATE TABLE AS SELECT that fails."""
    txn, _ = begin_writing(side.metastore, name, "tests/ctas")
    abort(side.metastore, txn.id)


def test_table_when_its_creation_had_failed_and_it_is_copied_as_a_whole_then_it_follows(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    _fail_to_create(side, name)
    following.cycle()
    make_table(side.metastore, name)
    insert_batch(side, name, [(2, "b")], [(3, "b")], aborted=())
    assert following.cycle().bootstrapped == ("t",)
    insert(side, name, [(4, "c")], [(5, "c")])
    assert following.cycle().lost == ()
    assert_same(following)


def test_table_when_its_creation_had_failed_and_the_database_is_copied_again_then_it_has_all_rows(
    replica: Replica, tmp_path: Path
) -> None:
    pair = new_pair(replica, tmp_path)
    side, name = replica.source, TableName(pair.database, "n")
    for _ in range(2):
        pair.dump()
        pair.load()
    _fail_to_create(side, name)
    pair.dump()
    pair.load()
    make_table(side.metastore, name)
    rows = [(number, "b") for number in range(4)]
    insert(side, name, *([row] for row in rows))
    cycle.resume(pair.cluster(side), pair.dump_statement, bootstrap=True)
    for _ in range(2):
        pair.dump()
        pair.load()
        assert read_rows(replica.target.metastore, TableName(pair.target, "n")) == rows


@pytest.mark.parametrize("is_renamed", [False, True], ids=["dropped", "renamed"])
def test_table_when_lost_and_recreated_after_the_events_of_a_dump_then_it_follows(
    following: Following, *, is_renamed: bool
) -> None:
    """The next cycle has the write ids of the old table, of which the target has no copy any more."""
    side, name, other = following.replica.source, following.name("t"), following.name("other")
    for table in (name, other):
        make_table(side.metastore, table)
    insert(side, name, [(1, "a")])
    following.cycle()
    (local_path(following.directory.dumps()[-1].uri) / "_lost.t").write_text("for the test")
    insert(side, other, [(1, "a")])
    events = EventLog(side.metastore).current_id() - following.last_event()

    def recreate() -> None:
        insert(side, name, [(4, "a")], [(5, "a")])
        if is_renamed:
            alter(following, name, renamed("u"))
        else:
            drop_table(side.metastore, name, delete_data=True)

    changes = [recreate]
    following.dump(events=events, observe=lambda at: changes.pop()() if at is DumpStep.EVENTS and changes else None)
    following.load()
    make_table(side.metastore, name)
    insert(side, name, [(9, "z")])
    for _ in range(3):
        following.cycle()
    assert_same(following)
    assert read_rows(following.replica.target.metastore, TableName(following.target, "t")) == [(9, "z")]


class _Refusing(Metastore):
    """Asks for tables without a name in place of the table t, which the metastore refuses."""

    def call(self, method: str, *arguments: Any) -> Any:
        if method == "create_table_req" and arguments[0].table.tableName == "t":
            arguments = copy.deepcopy(arguments)
            arguments[0].table.tableName = ""
        return super().call(method, *arguments)


def test_table_when_the_target_refuses_its_name_then_it_is_lost_and_others_continue(following: Following) -> None:
    side, name, other = following.replica.source, following.name("t"), following.name("other")
    make_table(side.metastore, other)
    _fail_to_create(side, name)
    following.cycle()
    with closing(_Refusing(following.replica.target.uri)) as target:
        make_table(side.metastore, name)
        following.dump()
        assert following.load(metastore=target).lost == ("t",)
        changes = [lambda: drop_table(side.metastore, name, delete_data=True)]
        following.dump(observe=lambda at: changes.pop()() if at is DumpStep.EVENTS and changes else None)
        assert following.load(metastore=target).lost == ()
        for lost in (("t",), ()):  # the first dump has the event of the drop
            insert(side, other, [(1, "a")])
            following.dump()
            assert following.load(metastore=target).lost == lost
            assert_same(following)
