"""A load renames or drops what a compaction of the target works on: it waits, and no row is lost or wrong."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import Enum

import pytest

from ingestd.hive.client import Metastore
from ingestd.hive.objects import drop_partitions, drop_table, find_partitions, rename_partition
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import abort
from ingestd.hive.write_ids import read_transactions
from ingestd.replication.copying.report import LoadReport
from ingestd.replication.load.table_load import LoadStep, loading_name
from ingestd.replication.load.target_moves import CompactionRunning
from ingestd.replication.statements.scope import Scope
from ingestd.storage.storages import Storages
from tests.support.replica import Side
from tests.support.replica_changes import alter, renamed
from tests.support.replica_compaction import Work, begin_work
from tests.support.replica_following import Following
from tests.support.replica_rows import insert, read_rows
from tests.support.replica_tables import make_table
from tests.support.stack import eventually

_LOOK = "show_compact_of"


class _Calls:
    """Observes the calls of a load, and calls `then` after its look at the compactions of number `at`."""

    def __init__(self, then: Callable[[], object] = lambda: None, at: int = 0) -> None:
        self.looks = 0
        self._then = then
        self._at = at

    def __call__(self, method: str, _seconds: float, _outcome: str) -> None:
        if method == _LOOK:
            self.looks += 1
            if self.looks == self._at:
                self._then()


def _load(following: Following, calls: _Calls, observe: Callable[[Enum], None] = lambda _: None) -> LoadReport:
    """Load the last dump by a connection whose calls are observed."""
    with closing(Metastore(following.replica.target.uri, on_call=calls)) as metastore:
        return following.load(observe, metastore=metastore)


def _load_beside(
    following: Following, works: list[Work], observe: Callable[[Enum], None] = lambda _: None
) -> LoadReport:
    """Load the last dump, and finish the compactions in `works` when the load waits for them, or has ended."""
    calls = _Calls()
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(_load, following, calls, observe)
        eventually("the load waits", lambda: (works and calls.looks > 1) or load.done())
        for work in works:
            work.finish()
        return load.result()


def _rename_table(side: Side, following: Following) -> None:
    alter(following, following.name("t"), renamed("moved"))
    make_table(side.metastore, following.name("t"), partitioned=True)


def _rename_partition(side: Side, following: Following) -> None:
    name = following.name("t")
    (partition,) = find_partitions(side.metastore, name, ["day=a"])
    partition.raw.values = ["c"]
    rename_partition(side.metastore, name, ["a"], partition)


def _drop_table(side: Side, following: Following) -> None:
    drop_table(side.metastore, following.name("t"), delete_data=True)
    make_table(side.metastore, following.name("t"), partitioned=True)


def _drop_partition(side: Side, following: Following) -> None:
    drop_partitions(side.metastore, following.name("t"), ["day=a"], delete_data=True)


def _work(following: Following, table: str = "t", partition: str = "day=a") -> Work:
    """Begin a compaction of the target, and write the first half of its result."""
    name = TableName(following.target, table)
    work = begin_work(following.replica.target.metastore, Storages(), name, partition)
    work.write()
    return work


def _rows(following: Following, *tables: str) -> list[object]:
    """Return the rows of tables on the source and on the target."""
    sides = (following.replica.source, following.database), (following.replica.target, following.target)
    return [
        {table: read_rows(side.metastore, TableName(database, table)) for table in tables} for side, database in sides
    ]


@pytest.mark.parametrize("change", [_rename_table, _rename_partition, _drop_table, _drop_partition])
def test_change_when_a_compaction_of_the_target_works_then_waits_for_it(
    following: Following, change: Callable[[Side, Following], None]
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    work = _work(following)
    change(side, following)
    insert(side, name, [(3, "a")], [(4, "a")], [(5, "a")])
    following.dump()
    assert _load_beside(following, [work]).lost == ()
    tables = ["t", "moved"] if change is _rename_table else ["t"]
    source, target = _rows(following, *tables)
    assert target == source
    insert(side, name, [(6, "a")])
    following.cycle()
    source, target = _rows(following, *tables)
    assert target == source


def test_copy_of_a_table_when_a_compaction_of_it_works_then_is_renamed_after_it(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    following.dump(Scope(following.database, "other"))
    following.load()
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")], [(2, "b")])
    following.dump(Scope(following.database))
    works: list[Work] = []

    def begin(step: Enum) -> None:
        if step is LoadStep.COMPLETE:
            works.append(_work(following, loading_name("t"), WHOLE_TABLE))

    report = _load_beside(following, works, begin)
    assert (report.bootstrapped, report.lost) == (("t",), ())
    source, target = _rows(following, "t")
    assert target == source


def test_load_when_a_compaction_does_not_end_then_fails_until_its_transaction_has_ended(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    work = _work(following)
    _rename_partition(side, following)
    following.dump()
    with pytest.raises(CompactionRunning, match=f"is running in the transaction {work.txn_id}"):
        following.load()
    abort(following.replica.target.metastore, work.txn_id)  # the metastore does so when its heartbeats stop
    assert following.load().lost == ()
    source, target = _rows(following, "t")
    assert target == source


def test_table_when_a_compaction_begins_during_its_rename_then_its_result_is_not_visible_and_it_is_copied(
    following: Following,
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    alter(following, name, renamed("moved"))
    following.dump()
    begun: list[Work] = []

    report = _load(following, _Calls(lambda: begun.append(_work(following)), at=1))
    assert report.lost == ("moved", "t")
    (work,) = begun
    assert work.txn_id in read_transactions(following.replica.target.metastore).aborted
    source, target = _rows(following, "moved")
    assert target == source
    assert following.cycle().bootstrapped == ("moved",)
    source, target = _rows(following, "moved")
    assert target == source
