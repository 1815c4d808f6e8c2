"""A dump or a load is killed at each instant at which that may matter, and what runs next makes the copy right.

The numbers are those of the ids of the tests:

 1  a dump has read its first event, and stored nothing else
 2  a dump has written a part of its manifest
 3  a dump has lost its snapshot, so the files that it lists may be removed
 4  a dump is complete, and the worker does not know it
 5  a load has copied some files
 6  a load has created a table, and not its write ids
 7  a load has stored the write ids of a table that has no rows yet
 8  a load has opened a transaction and allocated its write ids
 9  a load has committed or aborted a transaction; the last event is stored with a commit only
10  a load has copied the files of transactions that it has not committed
11  a load has changed a definition, and not stored its event
12  a load is complete, and the dump is not marked as loaded
13  two loads run at the same time
14  the source has removed events that were not dumped: `test_expired_events.py`
15  the source has removed files that were not copied
16  the target has ended a replicated transaction: `test_expired_transactions.py`
17  the metastore of the source was restored from a backup: `test_metastore_restart.py`
18  another client has written on the target

The other steps of a load are examined in the same way with `-m soak`.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from enum import Enum
from pathlib import Path

import psutil
import pytest

from ingestd.hive.objects import change_database
from ingestd.hive.replay import Replay, TargetChanged
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort, begin_writing, commit, open_transactions
from ingestd.replication.directory.protocol import Skipped
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.replication.load.incremental import ReplayStep
from ingestd.replication.load.table_load import LoadStep
from ingestd.replication.marks import LAST_ID, PENDING
from tests.support.patience import LIMIT
from tests.support.replica import Replica
from tests.support.replica_changes import INSERT, assert_same, do_everything, visible_write_ids
from tests.support.replica_copying import TABLES, Copying, fill, new_copying, same_write_ids
from tests.support.replica_following import Following, new_following, write
from tests.support.replica_kills import ProcessStep
from tests.support.replica_rows import compact, insert, read_rows
from tests.support.replica_tables import make_table
from tests.support.stack import eventually


@pytest.fixture(scope="module")
def filled(replica: Replica, tmp_path_factory: pytest.TempPathFactory) -> Copying:
    """Yield a source database with tables of every kind, and a finished dump of it."""
    copying = new_copying(replica, tmp_path_factory.mktemp("filled"))
    fill(copying)
    copying.dump()
    return copying


@pytest.fixture(scope="module")
def changed(replica: Replica, tmp_path_factory: pytest.TempPathFactory) -> Following:
    """Yield a source database with changes of every kind, and a finished dump of them."""
    following = new_following(replica, tmp_path_factory.mktemp("changed"))
    do_everything(following)
    following.dump()
    return following


@pytest.mark.parametrize(
    ("step", "count"),
    [
        pytest.param(ProcessStep.BEGUN, 1, id="1-begun"),
        pytest.param(DumpStep.SNAPSHOT, 1, id="2-snapshot", marks=pytest.mark.soak),
        pytest.param(DumpStep.TABLE, 2, id="2-two-tables"),
        pytest.param(DumpStep.MANIFEST, 1, id="2-manifest", marks=pytest.mark.soak),
        pytest.param(ProcessStep.FINISHED, 1, id="4-finished"),
    ],
)
def test_bootstrap_when_the_dump_is_killed_then_is_continued_with_its_first_event(
    filled: Copying, tmp_path: Path, step: Enum, count: int
) -> None:
    copying = replace(filled, target=filled.replica.name("there"), root=tmp_path)
    assert copying.run_process("dump", step, count) == -signal.SIGKILL
    (killed,) = copying.directory.dumps()
    if step is ProcessStep.FINISHED:
        assert isinstance(copying.directory.begin_dump(killed.state.scope, lambda: 0), Skipped)
    else:
        assert isinstance(copying.directory.begin_load(), Skipped)
        make_table(copying.replica.source.metastore, TableName(copying.database, f"after_{step.value}"))
        assert copying.dump().state == killed.state
    copying.load()
    assert copying.rows(*TABLES) == TABLES


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["3-killed", "3-suspended"])
def test_bootstrap_when_the_dump_has_lost_its_snapshot_then_the_next_one_lists_the_files_again(
    replica: Replica, tmp_path: Path, number: signal.Signals
) -> None:
    copying = new_copying(replica, tmp_path)
    side, name = replica.source, TableName(copying.database, "t")
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")], [(2, "b")])
    with copying.process("dump", DumpStep.TABLE, 1, number) as process:
        if number == signal.SIGSTOP:
            eventually("its suspension", lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        else:
            assert process.wait(LIMIT) == -signal.SIGKILL
        for txn in open_transactions(side.metastore, f"ingestd repl dump {copying.database}"):
            abort(side.metastore, txn)
        compact(side, name, write_id=2, of_write_id=2)
        insert(side, name, [(3, "c")])
        process.send_signal(signal.SIGCONT)
        assert process.wait(LIMIT) == (1 if number == signal.SIGSTOP else -signal.SIGKILL)
    (killed,) = copying.directory.dumps()
    assert not killed.is_finished
    assert copying.dump().state == killed.state
    copying.load()
    assert copying.rows("t") == {"t": read_rows(side.metastore, name)}


@pytest.mark.parametrize(
    ("step", "count"),
    [
        pytest.param(LoadStep.DATABASE, 1, id="5-database", marks=pytest.mark.soak),
        pytest.param(ProcessStep.FILES, 1, id="5-a-file"),
        pytest.param(ProcessStep.FILES, 4, id="5-four-files", marks=pytest.mark.soak),
        pytest.param(LoadStep.TABLE, 1, id="6-a-table"),
        pytest.param(LoadStep.TABLE, 3, id="6-three-tables", marks=pytest.mark.soak),
        pytest.param(LoadStep.WRITE_IDS, 2, id="7-write-ids"),
        pytest.param(LoadStep.COPIED, 1, id="7-copied"),
        pytest.param(LoadStep.PARTITIONS, 1, id="7-partitions", marks=pytest.mark.soak),
        pytest.param(LoadStep.COMPLETE, 1, id="7-complete", marks=pytest.mark.soak),
        pytest.param(LoadStep.CONSTRAINTS, 1, id="12-constraints", marks=pytest.mark.soak),
        pytest.param(LoadStep.LAST_EVENT, 1, id="12-bootstrap"),
    ],
)
def test_bootstrap_when_the_load_is_killed_then_is_continued(filled: Copying, step: Enum, count: int) -> None:
    copying = replace(filled, target=filled.replica.name("killed"))
    assert copying.run_process("load", step, count) == -signal.SIGKILL
    if step is not LoadStep.LAST_EVENT:
        assert LAST_ID not in copying.marks()
    copying.load_last()
    assert copying.rows(*TABLES) == TABLES
    assert [table for table in TABLES if not same_write_ids(copying, table)] == []


@pytest.mark.parametrize(
    ("step", "count"),
    [
        pytest.param(ReplayStep.ALLOCATED, 2, id="8-allocated"),
        pytest.param(ReplayStep.COMMITTED, 2, id="9-committed"),
        pytest.param(ReplayStep.ABORTED, 1, id="9-aborted"),
        pytest.param(ProcessStep.FILES, 1, id="10-a-file"),
        pytest.param(ReplayStep.COPIED, 2, id="10-copied"),
        pytest.param(ReplayStep.DEFINED, 2, id="11-created"),
        pytest.param(ReplayStep.DEFINED, 6, id="11-changed"),
        pytest.param(ReplayStep.STORED, 2, id="11-stored", marks=pytest.mark.soak),
        pytest.param(ReplayStep.LOADED, 1, id="12-loaded"),
        pytest.param(ReplayStep.SWEPT, 1, id="12-swept", marks=pytest.mark.soak),
    ],
)
def test_changes_when_the_load_is_killed_then_the_next_one_completes_it(
    changed: Following, step: Enum, count: int
) -> None:
    target = changed.other_target()
    change_database(target.replica.target.metastore, target.target, {PENDING: "true"})
    assert target.run_process("load", step, count) == -signal.SIGKILL
    assert (PENDING in target.marks()) == (step not in {ReplayStep.LOADED, ReplayStep.SWEPT})
    target.load_last()
    assert PENDING not in target.marks()
    _assert_complete(target)


@pytest.mark.parametrize("step", [pytest.param(ReplayStep.COMMITTED, id="13-two-loads")])
def test_changes_when_one_of_two_loads_is_killed_then_the_other_one_completes_it(
    changed: Following, step: Enum
) -> None:
    target = changed.other_target()
    with target.process("load", step, 2, signal.SIGSTOP) as first:
        eventually("its suspension", lambda: psutil.Process(first.pid).status() == psutil.STATUS_STOPPED)
        with target.process("load", step, 2) as second:  # waits until the first one has ended or is silent for long
            before = target.last_event()
            eventually("its connection", psutil.Process(second.pid).net_connections)
            first.kill()
            first.wait(LIMIT)
            assert second.wait(LIMIT) == -signal.SIGKILL
    assert target.last_event() > before
    target.load_last()
    _assert_complete(target)


@pytest.mark.parametrize("step", [pytest.param(ReplayStep.COPIED, id="15-compacted")])
def test_changes_when_files_are_removed_and_the_load_is_killed_then_the_table_is_copied_as_a_whole(
    following: Following, step: Enum
) -> None:
    side, names = following.replica.source, [following.name("t"), following.name("other")]
    for name in names:
        make_table(side.metastore, name)
    following.cycle()
    for name in names:
        write(side, name, INSERT)
    following.dump()
    compact(side, names[0], write_id=1, of_write_id=1)
    assert following.run_process("load", step) == -signal.SIGKILL
    report = following.load()
    assert (report.bootstrapped, report.lost) == ((), ("t",))
    assert following.run_process("dump", DumpStep.TABLE) == -signal.SIGKILL
    following.dump()
    assert following.run_process("load", LoadStep.COPIED) == -signal.SIGKILL
    assert following.load().bootstrapped == ("t",)
    _assert_complete(following)


@pytest.mark.parametrize("step", [pytest.param(ReplayStep.COMMITTED, id="18-written")])
def test_changes_when_the_load_is_killed_and_another_client_writes_then_nothing_more_is_replayed(
    following: Following, step: Enum
) -> None:
    side, target = following.replica.source, following.replica.target
    for table in ("s", "t"):
        make_table(side.metastore, following.name(table))
    following.cycle()
    for table in ("s", "s", "t"):
        write(side, following.name(table), INSERT)
    following.dump()
    assert following.run_process("load", step) == -signal.SIGKILL
    commit(target.metastore, begin_writing(target.metastore, TableName(following.target, "t"), "somebody")[0])
    before = following.last_event()
    with pytest.raises(TargetChanged, match="another client has written"):
        following.load()
    assert following.last_event() == before
    assert visible_write_ids(target, [TableName(following.target, "s")]) == [frozenset({1})]


def _assert_complete(following: Following) -> None:
    assert_same(following)
    replay = Replay(following.replica.target.metastore, following.target, accepts_gaps=lambda _: False)
    assert replay.open_transactions == frozenset()
