"""A load renames or drops what a compaction of the target works on: no row is lost or wrong."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import Enum
from typing import Any

import pytest

from ingestd.errors import MetastoreUnavailable
from ingestd.hive.client import Metastore
from ingestd.hive.compactions import Compaction, read_compactions
from ingestd.hive.objects import drop_partitions, drop_table, find_partitions, find_table, rename_partition
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import abort
from ingestd.hive.write_ids import read_transactions
from ingestd.replication.copying.report import LoadReport
from ingestd.replication.load.table_load import LoadStep, loading_name
from ingestd.replication.load.target_moves import CompactionRunning
from ingestd.replication.marks import MOVED
from ingestd.replication.statements.scope import Scope
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.replica import Side
from tests.support.replica_changes import alter, renamed
from tests.support.replica_compaction import (
    Work,
    abort_open_transactions,
    begin_transaction,
    begin_work,
    continue_work,
    fail_compactions,
    take_request,
)
from tests.support.replica_following import Following
from tests.support.replica_rows import insert, read_rows, table_of
from tests.support.replica_tables import make_table
from tests.support.stack import eventually


class _Call(Enum):
    """Calls after which a process can be stopped."""

    LOOK = "show_compact_of"


_CALLS_PER_LOOK = 3  # of a load: the last compaction that began, workers, and the cleaner


class _Calls:
    """Observes the calls of a load, and calls `then` after its look at the compactions of number `at`."""

    def __init__(self, then: Callable[[], object] = lambda: None, at: int = 0) -> None:
        self._calls = 0
        self._then = then
        self._at = at

    @property
    def looks(self) -> int:
        return self._calls // _CALLS_PER_LOOK

    def __call__(self, method: str, _seconds: float, _outcome: str) -> None:
        if method == _Call.LOOK.value:
            self._calls += 1
            if self._calls == self._at * _CALLS_PER_LOOK:
                self._then()


def _load(
    following: Following, calls: _Calls, observe: Callable[[Enum], None] = lambda _: None, uri: str = ""
) -> LoadReport:
    """Load the last dump by a connection whose calls are observed."""
    with closing(Metastore(uri or following.replica.target.uri, on_call=calls)) as metastore:
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


@pytest.mark.parametrize("writes_all", [False, True])
def test_table_when_a_compaction_begins_during_its_rename_then_its_result_is_not_visible_and_it_is_copied(
    following: Following, *, writes_all: bool
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    alter(following, name, renamed("moved"))
    following.dump()
    begun: list[Work] = []

    def begin() -> None:
        begun.append(work := _work(following))
        if writes_all:
            work.complete()

    report = _load(following, _Calls(begin, at=1))
    assert report.lost == ("moved", "t")
    (work,) = begun
    assert work.txn_id in read_transactions(following.replica.target.metastore).aborted
    source, target = _rows(following, "moved")
    assert target == source
    assert following.cycle().bootstrapped == ("moved",)
    source, target = _rows(following, "moved")
    assert target == source


_RENAMES = [
    pytest.param(_rename_table, "alter_table_req", ("moved", "t"), id="table"),
    pytest.param(_rename_partition, "rename_partition_req", ("t",), id="partition"),
]


def _assert_copied(following: Following, work: Work, lost: tuple[str, ...]) -> None:
    """Assert that a load notices a compaction that began during a rename, and that the next cycle copies the table."""
    assert following.load().lost == lost
    assert work.txn_id in read_transactions(following.replica.target.metastore).aborted
    work.fail()
    assert set(following.cycle().bootstrapped) == set(lost)
    source, target = _rows(following, *lost)
    assert target == source


@pytest.mark.parametrize(("change", "method", "lost"), _RENAMES)
def test_compaction_when_it_began_during_a_rename_whose_answer_is_lost_then_the_next_load_notices_it(
    following: Following, change: Callable[[Side, Following], None], method: str, lost: tuple[str, ...]
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    change(side, following)
    following.dump()
    begun: list[Work] = []
    with proxy(following.replica.target.uri) as between:
        between.lose_answer(method)
        with pytest.raises(MetastoreUnavailable):
            _load(following, _Calls(lambda: begun.append(_work(following)), at=1), uri=between.uri)
    (work,) = begun
    _assert_copied(following, work, lost)


@pytest.mark.parametrize(("change", "method", "lost"), _RENAMES)
def test_compaction_when_it_began_during_a_rename_whose_load_is_killed_then_the_next_load_notices_it(
    following: Following, change: Callable[[Side, Following], None], method: str, lost: tuple[str, ...]
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    change(side, following)
    following.dump()
    with (
        proxy(following.replica.target.uri) as between,
        following.process("load", _Call.LOOK, _CALLS_PER_LOOK, signal.SIGSTOP, between.uri) as load,
    ):
        _wait_until_stopped(load)
        work = _work(following)
        between.answering.clear()
        load.send_signal(signal.SIGCONT)
        eventually("the rename", lambda: between.calls[method] and _is_renamed(following))
        load.kill()
        load.wait(LIMIT)
        between.answering.set()
    _assert_copied(following, work, lost)


def _wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert state is not None
    assert state.si_code == os.CLD_STOPPED


def _is_renamed(following: Following) -> bool:
    """Return whether the target has renamed the table, or the partition."""
    metastore, name = following.replica.target.metastore, TableName(following.target, "t")
    return find_table(metastore, name) is None or not list(find_partitions(metastore, name, ["day=a"]))


def test_compaction_when_it_began_while_a_copy_was_renamed_and_the_answer_is_lost_then_the_next_load_notices_it(
    following: Following,
) -> None:
    side, name = following.replica.source, following.name("t")
    following.dump(Scope(following.database, "other"))
    following.load()
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")], [(2, "b")])
    following.dump(Scope(following.database))
    begun: list[Work] = []
    with proxy(following.replica.target.uri) as between:

        def observe(step: Enum) -> None:
            if step is LoadStep.DROPPED:  # the copy is complete, and renamed next
                between.lose_answer("alter_table_req")

        def begin() -> None:
            begun.append(_work(following, loading_name("t"), WHOLE_TABLE))

        with pytest.raises(MetastoreUnavailable):
            _load(following, _Calls(begin, at=1), observe, between.uri)
    (work,) = begun
    _assert_copied(following, work, ("t",))


@pytest.mark.parametrize("change", [_rename_table, _rename_partition])
def test_rename_when_no_compaction_begins_then_is_complete_and_leaves_no_mark(
    following: Following, change: Callable[[Side, Following], None]
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    _work(following).finish()
    change(side, following)
    following.dump()
    tables = ["t", "moved"] if change is _rename_table else ["t"]
    with proxy(following.replica.target.uri) as between:
        between.lose_answer("alter_table_req" if change is _rename_table else "rename_partition_req")
        with pytest.raises(MetastoreUnavailable):
            _load(following, _Calls(), uri=between.uri)
    assert following.load().lost == ()
    source, target = _rows(following, *tables)
    assert target == source
    metastore = following.replica.target.metastore
    names = [TableName(following.target, table) for table in tables]
    objects = [table_of(metastore, name) for name in names]
    partitions = [partition for name in names for partition in find_partitions(metastore, name, ["day=a", "day=c"])]
    assert len(partitions) == 1
    assert not [item for item in (*objects, *partitions) if MOVED in item.parameters]


# --- entries that nobody works on


def _entry(following: Following) -> Compaction:
    """Return the last compaction of the table on the target."""
    entries = read_compactions(following.replica.target.metastore)
    return [entry for entry in entries if entry.table == TableName(following.target, "t")][-1]


class _HourLater(Metastore):
    """Answers that the cleaner began its attempts an hour earlier."""

    def call(self, method: str, *arguments: Any) -> Any:
        answer = super().call(method, *arguments)
        if method == _Call.LOOK.value:
            for entry in answer:
                entry.cleanerStart = (entry.cleanerStart or 0) - 3_600_000
        return answer


def test_load_when_the_cleaner_has_failed_and_may_try_again_then_waits_for_an_hour(following: Following) -> None:
    """While it tries again, the entry of the queue is the same as after a failure."""
    side, name = following.replica.source, following.name("t")
    metastore = following.replica.target.metastore
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    abort_open_transactions(metastore)  # the cleaner waits for them
    location = local_path(table_of(metastore, TableName(following.target, "t")).location)
    obstacle = location / "day=a" / "base_without_number"  # the cleaner cannot parse the name
    obstacle.mkdir()
    _work(following).finish()
    eventually("the cleaner fails", lambda: _entry(following).error)
    assert _entry(following).is_being_cleaned
    obstacle.rmdir()
    _rename_partition(side, following)
    following.dump()
    with pytest.raises(CompactionRunning, match=r"is being cleaned up.*may be trying again"):
        following.load()
    with closing(_HourLater(following.replica.target.uri)) as metastore:
        assert following.load(metastore=metastore).lost == ()
    source, target = _rows(following, "t")
    assert target == source


def test_load_when_a_worker_died_before_its_transaction_then_renames_the_partition(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    take_request(following.replica.target.metastore, TableName(following.target, "t"), "day=a")
    assert _entry(following).state == "working"
    _rename_partition(side, following)
    following.dump()
    assert following.load().lost == ()
    source, target = _rows(following, "t")
    assert target == source


def test_load_when_a_compaction_is_taken_up_by_another_worker_then_waits_for_that(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    metastore = following.replica.target.metastore
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    # The entry has the transaction of the first worker until the second one has begun its own.
    info: Any = take_request(metastore, TableName(following.target, "t"), "day=a")
    abort(metastore, begin_transaction(metastore, info))
    _rename_partition(side, following)
    following.dump()
    calls = _Calls()
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(_load, following, calls)
        eventually("the load waits", lambda: calls.looks > 1 or load.done())
        work = continue_work(metastore, Storages(), info)
        work.write()
        seen = calls.looks
        eventually("the load looks again", lambda: calls.looks > seen + 1 or load.done())
        work.finish()
        assert load.result().lost == ()
    source, target = _rows(following, "t")
    assert target == source


# --- cost


class _Counting(Metastore):
    """Counts the entries of the queue and its history in the answers of the metastore."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.counts: list[int] = []

    def call(self, method: str, *arguments: Any) -> Any:
        answer = super().call(method, *arguments)
        if method == _Call.LOOK.value:
            self.counts.append(len(answer))
        return answer


@pytest.mark.parametrize("change", [_rename_table, _rename_partition, _drop_table, _drop_partition])
def test_load_when_the_history_of_a_table_is_long_then_reads_a_few_entries(
    following: Following, change: Callable[[Side, Following], None]
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a")], [(2, "a")])
    following.cycle()
    partitions = [f"day={number}" for number in range(60)]
    fail_compactions(following.replica.target.metastore, TableName(following.target, "t"), partitions)
    change(side, following)
    following.dump()
    with closing(_Counting(following.replica.target.uri)) as metastore:
        assert following.load(metastore=metastore).lost == ()
    assert metastore.counts
    assert sum(metastore.counts) < 20
    source, target = _rows(following, "t")
    assert target == source
