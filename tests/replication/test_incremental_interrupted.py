"""A load of changes that was cut, interrupted, killed or stopped is completed by the next one."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import Enum

import psutil
import pytest

from ingestd.errors import MetastoreUnavailable, OwnershipLost
from ingestd.hive.attachments import store_statistics
from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.leases import claims, release
from ingestd.hive.objects import (
    TableObject,
    alter_partitions,
    drop_partitions,
    drop_table,
    find_partitions,
    rename_partition,
)
from ingestd.hive.replay import Replay
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import abort, begin_writing, commit
from ingestd.replication.copying.copy import CopyStopped
from ingestd.replication.directory.protocol import Skipped
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.replication.load.incremental import ReplayStep
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.replica_changes import INSERT, alter, assert_same, column_statistics, do_everything, renamed
from tests.support.replica_following import Following, write
from tests.support.replica_kills import ProcessStep
from tests.support.replica_rows import compact
from tests.support.replica_tables import EXTERNAL, make_table
from tests.support.stack import eventually

_CHANGES = (
    *("open_txns", "allocate_table_write_ids", "commit_txn", "abort_txn", "alter_database", "create_table_req"),
    *("alter_table_req", "add_partitions_req", "alter_partitions_req", "drop_partitions_req", "truncate_table_req"),
    "drop_table_with_environment_context",
)


def test_cycles_when_they_are_cut_between_any_events_then_readers_see_the_same(following: Following) -> None:
    do_everything(following)
    newest = EventLog(following.replica.source.metastore).current_id()
    while following.last_event() < newest:
        before = following.last_event()
        following.dump(events=3)
        following.load()
        assert before < following.last_event() <= before + 3
    assert_same(following)
    replay = Replay(following.replica.target.metastore, following.target, accepts_gaps=lambda _: False)
    assert replay.open_transactions == frozenset()


def test_load_when_interrupted_after_every_step_then_the_next_one_completes_it(following: Following) -> None:
    do_everything(following)
    following.dump()
    following.load_interrupted()
    assert_same(following)
    replay = Replay(following.replica.target.metastore, following.target, accepts_gaps=lambda _: False)
    assert replay.open_transactions == frozenset()


def test_load_when_answers_of_the_metastore_are_lost_then_the_next_one_completes_it(following: Following) -> None:
    do_everything(following)
    following.dump()
    with proxy(following.replica.target.uri) as between, closing(Metastore(between.uri)) as target:
        for method in _CHANGES:
            between.lose_answer(method)
        for _ in _CHANGES:
            try:
                following.load_last(metastore=target)
            except MetastoreUnavailable:
                continue
            break
        assert set(_CHANGES) <= between.calls.keys()
    following.load()
    assert_same(following)
    replay = Replay(following.replica.target.metastore, following.target, accepts_gaps=lambda _: False)
    assert replay.open_transactions == frozenset()


def test_load_when_interrupted_after_an_object_is_gone_then_earlier_changes_of_it_are_not_replayed(
    following: Following,
) -> None:
    metastore = following.replica.source.metastore
    names = parted, dropped, renamed_from = [following.name(name) for name in ("parted", "dropped", "old")]
    for name in names:
        location = f"file:{following.replica.source.external}/{following.database}/{name.table}"
        make_table(metastore, name, partitioned=name == parted, parameters=EXTERNAL, location=location)
    for value in ("a", "b", "c"):
        metastore.call("append_partition", parted.database, parted.table, [value])
    following.cycle()

    def comment(table: TableObject) -> None:
        table.raw.parameters = {**table.parameters, "comment": "changed"}

    for partition in ("day=a", "day=b"):
        store_statistics(metastore, parted, column_statistics(partition))
        (described,) = find_partitions(metastore, parted, [partition])
        described.raw.parameters = {**described.parameters, "comment": "changed"}
        alter_partitions(metastore, parted, [described])
    drop_partitions(metastore, parted, ["day=a"], delete_data=False)
    described.raw.values = ["d"]
    rename_partition(metastore, parted, ["b"], described)
    for name in (dropped, renamed_from):
        store_statistics(metastore, name, column_statistics(WHOLE_TABLE))
        alter(following, name, comment)
    drop_table(metastore, dropped, delete_data=False)
    alter(following, renamed_from, renamed("new"))
    following.dump()
    following.load_interrupted()
    assert_same(following)


def test_load_when_interrupted_after_a_table_is_renamed_in_a_transaction_then_another_one_may_have_its_name(
    following: Following,
) -> None:
    """HiveServer2 allocates a write id for the rename. Under the new name of the table, it would be allocated again."""
    side, metastore = following.replica.source, following.replica.source.metastore
    name, dropped = following.name("t"), following.name("dropped")
    for table in (name, dropped):
        make_table(metastore, table)
        write(side, table, INSERT)
    following.cycle()
    txn, _ = begin_writing(metastore, name, "tests/rename")
    alter(following, name, renamed("renamed"))
    commit(metastore, txn)
    write(side, dropped, INSERT, then=lambda writer: abort(metastore, writer.id))
    drop_table(metastore, dropped, delete_data=True)
    for table in (name, dropped):
        make_table(metastore, table)
        write(side, table, INSERT)
    following.dump()
    following.load_interrupted()
    assert_same(following)


def test_load_when_stopped_then_it_ends_between_two_events(following: Following) -> None:
    do_everything(following)
    following.dump()
    stop = threading.Event()
    with pytest.raises(CopyStopped):
        following.load(lambda _: stop.set(), stop)
    following.load()
    assert_same(following)


def test_dump_when_killed_after_each_step_then_the_next_one_continues_it(following: Following) -> None:
    do_everything(following)
    lost, plain = following.name("lost"), following.name("plain")
    make_table(following.replica.source.metastore, lost)
    write(following.replica.source, lost, INSERT)
    compact(following.replica.source, lost, write_id=1, of_write_id=1)
    before, states = following.last_event(), []
    for step in (ProcessStep.BEGUN, *DumpStep):
        assert following.run_process("dump", step) == -signal.SIGKILL, step
        begun = following.directory.dumps()[-1]
        states.append(begun.state)
        assert isinstance(following.directory.begin_load(), Skipped), step
        write(following.replica.source, plain, INSERT)
    assert following.run_process("dump", ProcessStep.FINISHED) == -signal.SIGKILL
    finished = following.directory.dumps()[-1].state
    assert {*states, finished} == {states[0]}
    assert finished.from_event == before
    assert isinstance(following.directory.begin_dump(finished.scope, lambda: 0), Skipped)
    assert following.load().bootstrapped == ("lost",)
    assert_same(following)


def test_load_when_another_one_runs_then_is_refused(following: Following) -> None:
    do_everything(following)
    following.dump()
    reached, released = threading.Event(), threading.Event()

    def hold(step: Enum) -> None:
        if step is ReplayStep.COMMITTED and not reached.is_set():
            reached.set()
            assert released.wait(LIMIT)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(following.load, hold)
        assert reached.wait(LIMIT)
        with pytest.raises(OwnershipLost, match="only one process at a time may load into the database"):
            following.load()
        released.set()
        first.result()
    assert_same(following)


def test_load_when_suspended_while_another_process_loads_then_changes_nothing_afterwards(following: Following) -> None:
    do_everything(following)
    following.dump()
    with following.process("load", ReplayStep.COMMITTED, 2, signal.SIGSTOP) as first:
        eventually("its suspension", lambda: psutil.Process(first.pid).status() == psutil.STATUS_STOPPED)
        before = following.last_event()
        with following.process("load", ProcessStep.FINISHED) as second:  # takes the lease over after 20 s
            assert second.wait(LIMIT) == -signal.SIGKILL
        assert isinstance(following.directory.begin_load(), Skipped)
        write(following.replica.source, following.name("plain"), INSERT)
        following.cycle()
        last = following.last_event()
        assert before < last
        first.send_signal(signal.SIGCONT)
        assert first.wait(LIMIT) == 1
    assert following.last_event() == last
    assert_same(following)
    replay = Replay(following.replica.target.metastore, following.target, accepts_gaps=lambda _: False)
    assert replay.open_transactions == frozenset()


def test_load_when_it_loses_its_lease_within_an_event_then_changes_nothing_more(following: Following) -> None:
    make_table(following.replica.source.metastore, following.name("t"))
    write(following.replica.source, following.name("t"), INSERT)
    following.dump()
    metastore, lease = following.replica.target.metastore, TableName(following.target, "ingestd_load")
    seen: list[int] = []

    def lose(step: Enum) -> None:
        if step is ReplayStep.DEFINED:
            (claim,) = claims(metastore, lease)
            release(metastore, claim.lock_id)
            eventually("the loss is noticed", lambda: not _heartbeats())
            seen.append(following.last_event())

    with pytest.raises(OwnershipLost, match="its heartbeats were interrupted"):
        following.load(lose)
    assert seen == [following.last_event()]
    following.load()
    assert_same(following)


def _heartbeats() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ingestd-lease-heartbeat"]
