"""A load of changes stops before it makes a target that is not a state of the source."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import closing
from enum import Enum
from pathlib import Path

import pytest

from ingestd.doctor.metastore import Service, old_transactions
from ingestd.errors import BootstrapRequired, ReplicationError
from ingestd.hive.client import Metastore
from ingestd.hive.events import EventsExpired
from ingestd.hive.health import uncommitted
from ingestd.hive.objects import change_database
from ingestd.hive.replay import TargetChanged
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import Transaction, abort, abort_all, begin_writing, commit, open_transactions
from ingestd.replication.copying.copy import CopyStopped
from ingestd.replication.directory.protocol import Skipped
from ingestd.replication.load.incremental import ReplayStep
from ingestd.replication.marks import INCOMPATIBLE, LAST_ID, PENDING
from tests.support.proxy import proxy
from tests.support.replica import Replica
from tests.support.replica_changes import INSERT, alter, assert_same, renamed, visible_write_ids
from tests.support.replica_copying import new_copying
from tests.support.replica_following import Following, new_following, write
from tests.support.replica_tables import make_table


def test_target_when_another_client_has_written_then_nothing_is_replayed(following: Following) -> None:
    side, target = following.replica.source, following.replica.target
    for name in ("s", "t"):
        make_table(side.metastore, following.name(name))
    following.cycle()
    before = following.last_event()
    commit(target.metastore, begin_writing(target.metastore, TableName(following.target, "t"), "somebody")[0])
    write(side, following.name("s"), INSERT)
    write(side, following.name("t"), INSERT)
    following.dump()
    with pytest.raises(TargetChanged, match="another client"):
        following.load()
    assert following.last_event() == before
    assert visible_write_ids(target, [TableName(following.target, "s")]) == [frozenset()]


def _abort(following: Following) -> Callable[[Transaction], None]:
    return lambda txn: abort(following.replica.source.metastore, txn.id)


@pytest.mark.parametrize("partition", ["", "day=a"])
def test_target_when_another_client_has_the_write_id_of_an_aborted_transaction_then_nothing_is_replayed(
    following: Following, partition: str
) -> None:
    side, target = following.replica.source, following.replica.target
    other, name = following.name("s"), following.name("t")
    make_table(side.metastore, other)
    make_table(side.metastore, name, partitioned=bool(partition))
    if partition:
        side.metastore.call("append_partition", name.database, name.table, ["a"])
    following.cycle()
    before = following.last_event()
    write(target, TableName(following.target, "t"), INSERT, partition=partition)
    write(side, other, INSERT)
    write(side, name, INSERT, partition=partition, then=_abort(following))
    write(side, name, INSERT, partition=partition)
    following.dump()
    for _ in range(2):  # before and after an administrator has resumed the policy
        with pytest.raises(TargetChanged, match="write id 1 is not one of the source"):
            following.load()
    assert following.last_event() == before
    assert visible_write_ids(target, [TableName(following.target, "s")]) == [frozenset()]


def test_load_when_repeated_after_aborts_then_lists_the_directories_of_a_table_once(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    for day in ("a", "b"):
        side.metastore.call("append_partition", name.database, name.table, [day])
    following.cycle()
    for _ in range(4):
        write(side, name, INSERT, partition="day=a", then=_abort(following))
    following.dump()
    assert following.run_process("load", ReplayStep.ABORTED, 4) == -signal.SIGKILL
    stopped = threading.Event()
    stopped.set()
    with proxy(following.replica.target.uri) as between, closing(Metastore(between.uri)) as target:
        with pytest.raises(CopyStopped, match="before all directories"):
            following.load(stop=stopped, metastore=target)
        assert between.calls["get_partition_names"] == 1
        following.load(metastore=target)
        assert between.calls["get_partition_names"] == 2
        assert between.calls["get_partitions_by_names_req"] == 2
    assert_same(following)


def test_target_when_another_client_writes_during_the_load_then_the_load_stops(following: Following) -> None:
    side, target = following.replica.source, following.replica.target
    for name in ("s", "t"):
        make_table(side.metastore, following.name(name))
    following.cycle()
    write(side, following.name("s"), INSERT)
    write(side, following.name("t"), INSERT, then=_abort(following))
    following.dump()

    def write_there(step: Enum) -> None:
        if step is ReplayStep.COPIED:
            write(target, TableName(following.target, "t"), INSERT)

    with pytest.raises(TargetChanged, match="write id 1 is not one of the source"):
        following.load(write_there)


def test_target_when_another_client_has_written_to_a_table_before_its_rename_then_the_load_stops(
    following: Following,
) -> None:
    side, target, name = following.replica.source, following.replica.target, following.name("t")
    make_table(side.metastore, name)
    following.cycle()
    write(target, TableName(following.target, "t"), INSERT)
    alter(following, name, renamed("u"))
    write(side, following.name("u"), INSERT, then=_abort(following))
    following.dump()
    with pytest.raises(TargetChanged, match="write id 1 is not one of the source"):
        following.load()


def test_target_when_another_client_has_written_after_the_bootstrap_then_nothing_is_replayed(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    make_table(replica.source.metastore, following.name("t"))
    write(replica.source, following.name("t"), INSERT)
    copying.dump()
    copying.load()
    assert following.marks()[PENDING] == "true"
    write(replica.target, TableName(following.target, "t"), INSERT)
    write(replica.source, following.name("t"), INSERT)
    following.dump()
    with pytest.raises(TargetChanged, match="write id 2 is not one of the source"):
        following.load()


def test_target_when_it_cannot_follow_then_a_bootstrap_is_required(following: Following) -> None:
    metastore = following.replica.target.metastore
    following.dump()
    last = following.last_event()
    properties: list[dict[str, str | None]] = [{INCOMPATIBLE: "true"}, {INCOMPATIBLE: None, LAST_ID: None}]
    properties += [{LAST_ID: str(last - 1)}, {LAST_ID: str(last + 10**6)}]
    for some in properties:
        change_database(metastore, following.target, some)
        with pytest.raises(BootstrapRequired):
            following.load()
    change_database(metastore, following.target, {LAST_ID: "x"})
    with pytest.raises(ReplicationError, match="'x', which is not a number"):
        following.load()


def test_target_when_another_client_has_ended_a_replicated_transaction_then_a_bootstrap_is_required(
    following: Following,
) -> None:
    side, target = following.replica.source, following.replica.target.metastore
    make_table(side.metastore, following.name("t"))
    before = set(open_transactions(target, ""))
    txn = write(side, following.name("t"), INSERT, then=lambda _: None)
    following.cycle()
    (replicated,) = set(open_transactions(target, "")) - before
    abort(target, replicated)
    commit(side.metastore, txn)
    following.dump()
    with pytest.raises(BootstrapRequired, match="was ended by another client"):
        following.load()


def test_target_when_another_client_ends_a_transaction_during_the_load_then_the_load_stops(
    following: Following,
) -> None:
    side, target = following.replica.source, following.replica.target
    names = [following.name(name) for name in ("s", "t")]
    for name in names:
        make_table(side.metastore, name)
    following.cycle()
    last, before = following.last_event(), set(open_transactions(target.metastore, ""))
    for name in names:
        write(side, name, INSERT)
    following.dump()

    def end(step: Enum) -> None:
        if step is ReplayStep.ALLOCATED:
            abort_all(target.metastore, sorted(set(open_transactions(target.metastore, "")) - before))

    with pytest.raises(BootstrapRequired, match="was ended by another client"):
        following.load(end)
    assert following.last_event() == last
    copies = [TableName(following.target, name.table) for name in names]
    assert visible_write_ids(target, copies) == [frozenset(), frozenset()]
    with pytest.raises(BootstrapRequired, match="was ended by another client"):
        following.load()


def test_doctor_when_a_replicated_transaction_is_old_then_does_not_suggest_to_abort_it(following: Following) -> None:
    side, metastore = following.replica.source, following.replica.target.metastore
    make_table(side.metastore, following.name("t"))
    before = set(open_transactions(metastore, ""))
    txn = write(side, following.name("t"), INSERT, then=lambda _: None)
    following.cycle()
    (replicated,) = [each for each in uncommitted(metastore) if each.is_open and each.id not in before]
    service = Service(metastore, [], lambda _connections: metastore)
    assert list(old_transactions(service, [replicated], replicated.started + 5 * 86400)) == []
    (verdict,) = old_transactions(service, [replicated], replicated.started + 6 * 86400)
    assert "replicates one that has been open for 6.0 days; after 11.0 days" in verdict.evidence
    assert verdict.fix.startswith(f"end transaction {txn.id} at the source")
    commit(side.metastore, txn)
    following.cycle()


def test_source_when_its_log_lacks_events_then_a_bootstrap_is_required(replica: Replica, tmp_path: Path) -> None:
    following = new_following(replica, tmp_path, ahead=1000)
    with pytest.raises(EventsExpired, match=r"newest event is \d+, but event \d+ has already been read"):
        following.dump()
    assert isinstance(following.directory.begin_load(), Skipped)
