"""A table that cannot be followed by events is copied as a whole in a cycle, and the others are not delayed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pytest
from hive_metastore import ttypes
from pyarrow import orc

from ingestd.acid.layout import bucket_property
from ingestd.hive.events import EventLog
from ingestd.hive.objects import (
    PartitionObject,
    TableObject,
    add_partitions,
    alter_partitions,
    drop_table,
    find_partitions,
    rename_partition,
    table_names,
)
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort, allocate, begin, commit
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.replication.lag import UnreplayedChanges, compare_definitions
from ingestd.replication.load.incremental import ReplayStep
from ingestd.replication.marks import SOURCE_LOCATION, without_marks
from ingestd.replication.statements.scope import Scope
from ingestd.storage.contract import NotFound, child
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.files import files_below
from tests.support.replica import Replica, Side
from tests.support.replica_changes import DELETE, INSERT, alter, assert_same, renamed, truncate, with_column
from tests.support.replica_copying import new_copying
from tests.support.replica_following import Following, place_files, write
from tests.support.replica_rows import Rows, compact, insert, insert_batch, read_rows, table_of
from tests.support.replica_tables import ACID, EXTERNAL, INSERT_ONLY, make_table

# Hive 4.2 has these numbers in CompactionType and TxnType, hmsclient does not.
_REBALANCE, _REBALANCE_TRANSACTION = 3, 6
_ACID_COLUMNS = ("operation", "originalTransaction", "bucket", "rowId", "currentTransaction")


def _fill(following: Following, *tables: str) -> None:
    side = following.replica.source
    for table in tables:
        make_table(side.metastore, following.name(table), partitioned=table == "parted")
        if table == "parted":
            insert(side, following.name(table), [(1, "a"), (2, "b:c")], [(3, "a")])
        else:
            write(side, following.name(table), INSERT)
            write(side, following.name(table), INSERT, then=lambda txn: abort(side.metastore, txn.id))
            write(side, following.name(table), INSERT, DELETE)


def _target_tables(following: Following) -> list[str]:
    return table_names(following.replica.target.metastore, following.target)


def test_table_when_compacted_before_the_dump_then_the_cycle_copies_it(following: Following) -> None:
    side = following.replica.source
    special = ["a:b/c d", "long" * 60]
    _fill(following, "t", "other", *special)
    following.cycle()
    write(side, following.name("other"), INSERT)
    for write_id in (4, 5):
        for table in ("t", *special):
            write(side, following.name(table), INSERT)
            compact(side, following.name(table), write_id=write_id, of_write_id=write_id)
        report = following.cycle()
        assert (report.bootstrapped, report.lost) == ((special[0], special[1], "t"), ())
        assert_same(following)
    for table in ("t", *special):
        write(side, following.name(table), INSERT)
    assert following.cycle().bootstrapped == ()
    assert_same(following)


def test_directory_when_missing_then_copied_as_empty_and_copied_again_if_it_was_being_renamed(
    following: Following,
) -> None:
    side, name = following.replica.source, following.name("parted")
    copied = TableName(following.target, "parted")
    _fill(following, "parted", "other")
    following.cycle()
    insert(side, name, [(4, "a")])
    place = local_path(table_of(side.metastore, name).location)
    unmounted = place.rename(place.with_name("unmounted"))
    with pytest.raises(NotFound, match="is mounted"):
        following.dump()
    unmounted.rename(place)
    renaming = (place / "day=a").rename(place / "_renaming")
    report = following.cycle()
    assert (report.bootstrapped, report.lost) == (("parted",), ())
    assert read_rows(following.replica.target.metastore, copied) == [(2, "b:c")]
    (place / "day=a").mkdir()  # Hive creates it, the streaming API does not
    insert(side, name, [(5, "a")])
    assert following.cycle().bootstrapped == ()
    assert read_rows(following.replica.target.metastore, copied) == [(2, "b:c"), (5, "a")]
    for written in renaming.iterdir():  # now the metastore ends the rename
        written.rename(place / "day=a" / written.name)
    (partition,) = find_partitions(side.metastore, name, ["day=a"])
    partition.raw.values = ["z"]
    rename_partition(side.metastore, name, ["a"], partition)
    assert following.cycle().lost == ("parted",)
    assert following.cycle().bootstrapped == ("parted",)
    assert read_rows(following.replica.target.metastore, copied) == read_rows(side.metastore, name)
    assert_same(following)


def test_table_when_compacted_after_the_dump_then_it_keeps_its_state_and_the_next_cycle_copies_it(
    following: Following,
) -> None:
    side = following.replica.source
    _fill(following, "t", "other", "renamed")
    following.cycle()
    before = following.states()[1]["t"]
    for table in ("t", "other", "renamed"):
        write(side, following.name(table), INSERT)
    alter(following, following.name("t"), with_column)
    following.dump()
    compact(side, following.name("t"), write_id=4, of_write_id=4)
    assert following.run_process("load", ReplayStep.COPIED) == -signal.SIGKILL
    report = following.load()
    assert (report.bootstrapped, report.lost) == ((), ("t",))
    source, target = following.states()
    assert target["t"] == before
    assert target["other"] == source["other"]
    write(side, following.name("t"), INSERT)
    alter(following, following.name("t"), renamed("u"))
    write(side, following.name("u"), INSERT)
    following.dump()
    compact(side, following.name("u"), write_id=5, of_write_id=5)
    assert following.load().lost == ("u",)
    assert _target_tables(following) == ["other", "renamed"]
    assert following.cycle().bootstrapped == ("u",)
    assert_same(following)


def test_table_when_written_in_batches_with_aborted_transactions_then_each_cycle_copies_it(
    following: Following,
) -> None:
    source, target = following.replica.source, following.replica.target.metastore
    name, copied = following.name("t"), TableName(following.target, "t")
    make_table(source.metastore, name)
    following.cycle()
    kept: Rows = []
    for turn, aborted in enumerate(((1,), (0, 2))):
        rows = [[(10 * turn + number, "a")] for number in range(3)]
        insert_batch(source, name, *rows, aborted=aborted)
        kept += [row for number, some in enumerate(rows) for row in some if number not in aborted]
        assert following.cycle().bootstrapped == ("t",)
        assert read_rows(target, copied) == read_rows(source.metastore, name) == kept
    insert(source, name, [(99, "z")])
    assert following.cycle().bootstrapped == ()
    assert read_rows(target, copied) == [*kept, (99, "z")]


def test_tables_when_renamed_and_compacted_after_the_dump_then_the_next_cycle_copies_them(following: Following) -> None:
    side = following.replica.source
    _fill(following, "t", "other", "third")
    following.cycle()
    write(side, following.name("t"), INSERT)
    for old, new in (("t", "u"), ("other", "t"), ("u", "other")):
        alter(following, following.name(old), renamed(new))
        write(side, following.name(new), INSERT)
    write(side, following.name("third"), INSERT)
    following.dump()
    compact(side, following.name("other"), write_id=4, of_write_id=4)
    assert following.load().lost == ("other", "t", "u")
    source, target = following.states()
    assert target["third"] == source["third"]
    assert following.cycle().bootstrapped == ("other", "t")
    assert_same(following)
    write(side, following.name("t"), INSERT)
    assert following.cycle().bootstrapped == ()
    assert_same(following)


def test_external_table_when_it_becomes_transactional_then_the_cycle_copies_it(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    place = side.external / following.database
    make_table(side.metastore, name, parameters=EXTERNAL, location=f"file:{place}")
    (place / "000000_0").write_text("1")
    following.cycle()
    (place / "000001_0").write_text("2")
    alter(following, name, _transactional)
    write(side, name, INSERT)
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)
    write(side, name, INSERT)
    assert following.cycle().bootstrapped == ()
    assert_same(following)


def test_table_when_the_target_refuses_its_new_type_then_the_next_cycle_copies_it_and_others_continue(
    following: Following,
) -> None:
    side, name, other = following.replica.source, following.name("t"), following.name("other")
    location = f"file:{side.external}/{following.database}"
    make_table(side.metastore, name, parameters=EXTERNAL, location=location)
    make_table(side.metastore, other)
    following.cycle()
    side.metastore.call("setMetaConf", "metastore.disallow.incompatible.col.type.changes", "false")
    alter(following, name, lambda table: setattr(table.raw.sd.cols[1], "type", "int"))
    insert(side, other, [(1, "a")])
    assert following.cycle().lost == ("t",)
    assert read_rows(following.replica.target.metastore, TableName(following.target, "other")) == [(1, "a")]
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)


def test_table_when_the_target_refuses_the_rename_of_a_partition_then_the_next_cycle_copies_it(
    following: Following,
) -> None:
    side, name, other = following.replica.source, following.name("t"), following.name("other")
    make_table(side.metastore, name, partitioned=True)
    make_table(side.metastore, other)
    insert(side, name, [(1, "a")])
    following.cycle()
    copied = TableName(following.target, "t")
    (local_path(table_of(following.replica.target.metastore, copied).location) / "day=c").mkdir()
    (partition,) = find_partitions(side.metastore, name, ["day=a"])
    partition.raw.values = ["c"]
    rename_partition(side.metastore, name, ["a"], partition)
    insert(side, other, [(2, "b")])
    assert following.cycle().lost == ("t",)
    assert read_rows(following.replica.target.metastore, TableName(following.target, "other")) == [(2, "b")]
    assert following.cycle().bootstrapped == ("t",)
    assert read_rows(following.replica.target.metastore, copied) == [(1, "c")]


@pytest.mark.parametrize(
    ("kind", "numbers", "copied"),
    [(_REBALANCE, (0, 1), ("t",)), (ttypes.CompactionType.MAJOR, (0, 0), ())],
    ids=["rebalance", "major"],
)
def test_table_when_compacted_then_the_cycle_copies_it_if_it_was_rebalanced(
    following: Following, kind: int, numbers: tuple[int, int], copied: tuple[str, ...]
) -> None:
    """The calls are those of a worker of Hive, which gives `numbers` to the rows of both files."""
    side, name = following.replica.source, following.name("t")
    call = side.metastore.call
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")], [(2, "b")])
    following.cycle()
    call("compact2", ttypes.CompactionRequest(dbname=name.database, tablename=name.table, type=kind))
    version = ttypes.FindNextCompactRequest(workerId="tests", workerVersion="4.2.0")
    infos = iter(lambda: call("find_next_compact2", version).ci, None)
    info = next(info for info in infos if info.dbname == name.database)
    is_rebalance = kind == _REBALANCE
    txn_type = _REBALANCE_TRANSACTION if is_rebalance else ttypes.TxnType.COMPACTION
    opened = ttypes.OpenTxnRequest(num_txns=1, user=side.metastore.user, hostname="tests", txn_type=txn_type)
    (txn_id,) = call("open_txns", opened).txn_ids
    info.highestWriteId, info.runas = 2, side.metastore.user
    call("update_compactor_state", info, txn_id)
    rows = [
        (0, write_id, bucket_property(0, 0), number, write_id) for number, write_id in zip(numbers, (1, 2), strict=True)
    ]
    columns = dict(zip(_ACID_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    base = local_path(table_of(side.metastore, name).location) / f"base_0000002_v{txn_id:07d}"
    base.mkdir()
    values = [{"id": 1, "day": "a"}, {"id": 2, "day": "b"}]
    orc.write_table(pa.table({**columns, "row": values}), base / "bucket_00000")
    call("mark_compacted", info)
    call("commit_txn", ttypes.CommitTxnRequest(txnid=txn_id))
    changes = UnreplayedChanges(side.metastore, following.database, following.last_event())
    assert changes.concern_definition("t") is bool(copied)
    assert following.cycle().bootstrapped == copied
    assert read_rows(following.replica.target.metastore, TableName(following.target, "t")) == [(1, "a"), (2, "b")]


def test_partition_when_it_gets_another_directory_then_the_next_cycle_copies_its_table(
    following: Following, tmp_path: Path
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a"), (2, "b")])
    following.cycle()
    (partition,) = find_partitions(side.metastore, name, ["day=a"])
    place = tmp_path / "elsewhere"
    place.mkdir()
    elsewhere = partition.copied(name, f"file:{place}", partition.parameters)
    alter_partitions(side.metastore, name, [elsewhere])
    assert following.cycle().lost == ("t",)
    assert following.cycle().bootstrapped == ("t",)
    copied = TableName(following.target, "t")
    assert read_rows(following.replica.target.metastore, copied) == read_rows(side.metastore, name) == [(2, "b")]

    alter_partitions(side.metastore, name, [elsewhere.with_parameters({"another": "parameter"})])
    insert(side, name, [(3, "a")])
    report = following.cycle()
    assert (report.lost, report.bootstrapped) == ((), ())
    assert read_rows(following.replica.target.metastore, copied) == [(2, "b"), (3, "a")]

    alter_partitions(side.metastore, name, [partition])
    assert following.cycle().lost == ("t",)
    following.cycle()
    assert read_rows(following.replica.target.metastore, copied) == read_rows(side.metastore, name)


def test_partition_when_an_earlier_release_has_copied_it_from_another_directory_then_its_table_is_copied_once(
    following: Following, tmp_path: Path
) -> None:
    """Its copy does not have the directory of the source. One in its own directory needs no mark."""
    side, name, copied = following.replica.source, following.name("t"), TableName(following.target, "t")
    there = following.replica.target.metastore
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "own")])
    (partition,) = find_partitions(side.metastore, name, ["day=own"])
    apart = partition.copied(name, f"file:{tmp_path}/apart", partition.parameters)
    apart.raw.values = ["apart"]
    add_partitions(side.metastore, table_of(side.metastore, name), [apart])
    insert(side, name, [(2, "apart")])
    following.cycle()
    marked = list(find_partitions(there, copied, ["day=own", "day=apart"]))
    assert sum(SOURCE_LOCATION in partition.parameters for partition in marked) == 1
    alter_partitions(there, copied, [each.with_parameters(without_marks(each.parameters)) for each in marked])

    def change(day: str) -> None:
        (changed,) = find_partitions(side.metastore, name, [f"day={day}"])
        parameters = {**changed.parameters, "another": "parameter"}
        alter_partitions(side.metastore, name, [changed.with_parameters(parameters)])

    change("own")
    assert following.cycle().lost == ()
    for lost in (("t",), (), ()):
        change("apart")
        assert following.cycle().lost == lost
    assert read_rows(there, copied) == read_rows(side.metastore, name) == [(1, "own"), (2, "apart")]


def test_managed_table_without_transactions_when_written_then_each_cycle_copies_it(following: Following) -> None:
    side, names = following.replica.source, [following.name("t"), following.name("parted")]
    for name in names:
        make_table(side.metastore, name, parameters={}, partitioned=name.table == "parted")
        alter(following, name, _managed)
        _overwrite(side, name, "000000_0")
    following.dump()
    report = following.load()
    assert (report.bootstrapped, report.lost) == (("parted", "t"), ())
    for name in names:
        _overwrite(side, name, "000001_0")
    assert following.cycle().bootstrapped == ("parted", "t")
    target = following.replica.target.metastore
    for name, directory in zip(names, ("", "day=a"), strict=True):
        copied = table_of(target, TableName(following.target, name.table))
        place = local_path(copied.location)
        assert {str(file.relative_to(place)) for file in files_below(place)} == {f"{directory}/000001_0".lstrip("/")}
        if directory:
            (partition,) = find_partitions(target, copied.name, [directory])
            assert partition.location == f"{copied.location}/{directory}"
        assert compare_definitions(table_of(side.metastore, name), copied) == []
        drop_table(side.metastore, name, delete_data=True)
        following.cycle()
        assert not place.exists()


def _managed(table: TableObject) -> None:
    left = {"EXTERNAL", "TRANSLATED_TO_EXTERNAL", "external.table.purge"}
    table.raw.tableType = "MANAGED_TABLE"
    table.raw.parameters = {key: value for key, value in table.parameters.items() if key not in left}


def _overwrite(side: Side, name: TableName, file: str) -> None:
    """Write a file to a table without transactions, or to its partition, in place of the others, and announce it."""
    table = table_of(side.metastore, name)
    place, values = local_path(table.location), list[str]()
    if table.partition_columns:
        place, values = place / "day=a", ["a"]
        partition = PartitionObject(ttypes.Partition(values=values, sd=table.raw.sd, parameters={}, writeId=0))
        add_partitions(side.metastore, table, [partition.copied(name, f"{table.location}/day=a", {})])
    rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / file).write_text(file)
    insert = ttypes.InsertEventRequestData(filesAdded=[f"file:{place}/{file}"], replace=True)
    event = ttypes.FireEventRequestData(insertData=insert)
    request = ttypes.FireEventRequest(True, event, name.database, name.table, values or None)
    side.metastore.call("fire_listener_event", request)


def _transactional(table: TableObject) -> None:
    table.raw.tableType, table.raw.parameters = "MANAGED_TABLE", {**table.parameters, **ACID, "EXTERNAL": "FALSE"}


def test_table_when_created_again_after_the_dump_then_it_keeps_its_state_and_the_next_cycle_copies_it(
    following: Following,
) -> None:
    side, name = following.replica.source, following.name("t")
    _fill(following, "t", "other")
    following.cycle()
    before = following.states()[1]
    write(side, name, INSERT)
    write(side, following.name("other"), INSERT)
    _written_earlier(following)
    following.dump()
    drop_table(side.metastore, name, delete_data=True)
    _fill(following, "t")
    write(side, name, INSERT)  # the same path and length
    assert following.load().lost == ("t",)
    after = following.states()[1]
    assert after["t"] == before["t"]
    assert after["other"] != before["other"]
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)


def test_bootstrap_when_a_table_is_created_again_after_the_dump_then_the_first_cycle_copies_it(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    _fill(following, "t", "other")
    _written_earlier(following)
    copying.dump()
    drop_table(replica.source.metastore, following.name("t"), delete_data=True)
    _fill(following, "t")
    copying.load()
    assert _target_tables(following) == ["other"]
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)


def _written_earlier(following: Following) -> None:
    """Make all files of the source some seconds older, as if they had been written before those that follow."""
    place = local_path(table_of(following.replica.source.metastore, following.name("t")).location).parent
    for file in filter(Path.is_file, place.rglob("*")):
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 10))


def test_table_when_lost_and_then_dropped_then_target_drops_it(following: Following) -> None:
    side = following.replica.source
    _fill(following, "a/b %")
    following.cycle()
    write(side, following.name("a/b %"), INSERT)
    following.dump()
    compact(side, following.name("a/b %"), write_id=4, of_write_id=4)
    following.load()
    drop_table(side.metastore, following.name("a/b %"), delete_data=True)
    following.cycle()
    assert _target_tables(following) == []


def test_dump_when_limited_then_it_is_complete_until_its_last_event(following: Following) -> None:
    directory, log = following.directory, EventLog(following.replica.source.metastore)
    _fill(following, "t")
    (last,) = log.read(following.last_event() + 1, 1)
    limited = following.dump(events=2)
    metadata = directory.metadata(limited)
    assert metadata.to_event == last.id
    assert Storages().file_sizes(child(limited.uri, metadata.payload or ""))["_complete_until"]
    assert directory.complete_until(limited, metadata) == last.seconds
    following.load()
    complete = following.dump()
    assert directory.complete_until(complete, directory.metadata(complete)) == complete.state.began
    following.load()
    assert_same(following)


def test_scope_when_changed_then_new_tables_are_copied_and_others_leave(following: Following) -> None:
    side = following.replica.source
    following.dump(Scope(following.database, "kept|entered|renamed_.*"))
    following.load()
    _fill(following, "kept", "left", "later", "parted")
    _fill(following, "outside", "inside")
    alter(following, following.name("outside"), renamed("renamed_in"))
    following.cycle()
    assert _target_tables(following) == ["kept", "renamed_in"]
    for table in ("kept", "left", "renamed_in"):
        write(side, following.name(table), INSERT)
    alter(following, following.name("renamed_in"), renamed("renamed_within"))
    following.dump(Scope(following.database, "kept|parted|inside|renamed_.*"))
    report = following.load()
    assert report.bootstrapped == ("inside", "parted")
    assert _target_tables(following) == ["inside", "kept", "parted", "renamed_within"]
    alter(following, following.name("renamed_within"), renamed("gone"))
    alter(following, following.name("inside"), renamed("left_too"))
    following.dump(Scope(following.database, "kept|left"))
    assert following.load().bootstrapped == ("left",)
    assert _target_tables(following) == ["kept", "left"]
    source, target = following.states()
    assert target == {table: source[table] for table in ("kept", "left")}


def test_copy_when_the_source_changes_meanwhile_then_the_next_cycle_makes_it_equal(following: Following) -> None:
    side, metastore = following.replica.source, following.replica.source.metastore
    followed, copied, recreated, moved = (following.name(name) for name in ("followed", "copied", "recreated", "moved"))
    following.dump(Scope(following.database, "followed"))
    following.load()
    _fill(following, "followed", "copied", "recreated", "moved")
    changes = {DumpStep.EVENTS, DumpStep.SNAPSHOT}

    def change(step: DumpStep) -> None:
        if step not in changes:  # a renamed table is listed in another snapshot
            return
        changes.remove(step)
        both = begin(metastore, "tests/both")
        if step is DumpStep.EVENTS:  # before the snapshot, and after the events of this dump
            for name in (copied, followed):
                place_files(side, name, both, allocate(metastore, both, name), (INSERT,))
            commit(metastore, both)
            write(side, followed, INSERT)
            write(side, copied, INSERT)
        else:
            for name in (followed, copied):
                place_files(side, name, both, allocate(metastore, both, name), (INSERT,))
            alter(following, copied, with_column)
            drop_table(metastore, recreated, delete_data=True)
            make_table(metastore, recreated, parameters=INSERT_ONLY)
            write(side, recreated, INSERT)
            alter(following, moved, renamed("away"))
            write(side, following.name("away"), INSERT)
            commit(metastore, both)
            truncate(following, copied)
            write(side, copied, INSERT)

    following.dump(Scope(following.database), observe=change)
    following.load()
    following.cycle()
    following.cycle()
    assert_same(following)
    write(side, copied, INSERT)
    write(side, followed, INSERT)
    assert following.cycle().bootstrapped == ()
    assert_same(following)


def test_copy_when_interrupted_after_every_step_then_the_next_load_completes_it(following: Following) -> None:
    side = following.replica.source
    following.dump(Scope(following.database, "t"))
    following.load()
    _fill(following, "t", "parted", "other")
    following.cycle()
    write(side, following.name("t"), INSERT)
    write(side, following.name("other"), INSERT)
    compact(side, following.name("t"), write_id=4, of_write_id=4)
    following.dump(Scope(following.database))
    assert following.load_interrupted() > 6
    assert_same(following)
    write(side, following.name("t"), INSERT)
    following.cycle()
    assert_same(following)


def test_bootstrap_when_a_table_is_compacted_after_the_dump_then_the_first_cycle_copies_it(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    _fill(following, "t", "other", "third")

    def rename(step: DumpStep) -> None:
        if step is DumpStep.SNAPSHOT:
            alter(following, following.name("third"), renamed("fourth"))

    copying.dump(observe=rename)
    compact(replica.source, following.name("t"), write_id=3, of_write_id=3)
    copying.load()
    assert _target_tables(following) == ["other", "third"]
    write(replica.source, following.name("fourth"), INSERT)
    assert following.cycle().bootstrapped == ("t",)
    assert following.cycle().bootstrapped == ()
    assert_same(following)
