"""A target follows its source by events: after each cycle, readers see the same, and never a state in between."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import Enum
from functools import partial
from pathlib import Path
from shutil import rmtree
from threading import Timer

from hive_metastore import ttypes

from ingestd.hive.attachments import (
    Constraint,
    ConstraintKind,
    FunctionObject,
    add_constraints,
    create_function,
    delete_statistics,
    drop_constraint,
    list_constraints,
    list_functions,
    store_statistics,
)
from ingestd.hive.events import EventLog
from ingestd.hive.objects import (
    TableKind,
    alter_partitions,
    change_database,
    drop_partitions,
    drop_table,
    find_partitions,
    rename_partition,
    table_names,
)
from ingestd.hive.replay import Replay
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import abort, allocate, begin, begin_writing, commit
from ingestd.hive.truncation import truncate_at_once
from ingestd.replication.copying.copy import Copier, CopyOptions
from ingestd.replication.directory.protocol import Dump
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.replication.load.incremental import ReplayStep
from ingestd.replication.marks import INCOMPATIBLE, PENDING
from ingestd.replication.statements.scope import Scope
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.daemon import shared_engine
from tests.support.replica import Replica, Side
from tests.support.replica_changes import (
    DELETE,
    INSERT,
    OVERWRITE,
    alter,
    assert_same,
    column_statistics,
    do_everything,
    renamed,
    truncate,
    visible_write_ids,
    with_column,
)
from tests.support.replica_copying import Copying, new_copying
from tests.support.replica_following import (
    Following,
    new_following,
    place_files,
    write,
)
from tests.support.replica_rows import insert, read_rows, table_of
from tests.support.replica_tables import EXTERNAL, make_database, make_table


def test_cycle_when_the_source_has_done_everything_then_readers_see_the_same(following: Following) -> None:
    do_everything(following)
    following.cycle()
    assert_same(following)
    assert set(following.states()[1]) == {"plain", "renamed", "parted", "only"}
    assert following.last_event() == EventLog(following.replica.source.metastore).current_id()


def test_partitions_when_truncated_at_once_after_a_write_without_files_then_have_no_rows(following: Following) -> None:
    """The event has the write id of that write."""
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True)
    insert(side, name, [(1, "a"), (2, "b"), (3, "c")], [(4, "b")])
    following.cycle()
    txn, write_id = begin_writing(side.metastore, name, "test")
    altered = find_partitions(side.metastore, name, ["day=a", "day=b"])
    alter_partitions(side.metastore, name, [partition.with_write_id(write_id) for partition in altered])
    commit(side.metastore, txn)
    truncate_at_once(side.metastore, name, ["day=a", "day=b"])
    report = following.cycle()
    assert (report.bootstrapped, report.lost) == ((), ())
    assert read_rows(following.replica.target.metastore, TableName(following.target, "t")) == [(3, "c")]
    assert_same(following)


def test_bootstrap_when_the_source_changes_meanwhile_then_the_first_cycles_make_it_equal(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    side, metastore = replica.source, replica.source.metastore
    first, second = (following.name(name) for name in ("first", "second"))
    for name in (first, second):
        make_table(metastore, name)
        write(side, name, INSERT)
    left_open = begin(metastore, "tests/open")

    def change(step: DumpStep) -> None:
        if step is not DumpStep.SNAPSHOT:
            return
        place_files(side, first, left_open, allocate(metastore, left_open, first), (INSERT,))
        write(side, first, INSERT)
        alter(following, first, with_column)
        write(side, second, INSERT)
        drop_table(metastore, second, delete_data=True)
        make_table(metastore, second)
        write(side, second, INSERT, DELETE)
        truncate(following, first)
        write(side, first, INSERT)

    copying.dump(observe=change)
    copying.load()
    assert following.marks()[PENDING] == "true"
    commit(metastore, left_open)
    cycles = 0
    while following.marks().get(PENDING):
        following.dump(events=5)
        following.load()
        cycles += 1
    assert cycles > 2
    following.cycle()
    assert_same(following)
    write(side, first, INSERT)
    following.cycle()
    assert_same(following)


def test_bootstrap_when_partitions_go_meanwhile_then_the_first_cycle_makes_it_equal(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    side, name = replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=True, parameters=EXTERNAL, location=f"file:{side.external}/gone")
    for value in ("dropped", "renamed", "kept"):
        side.metastore.call("append_partition", name.database, name.table, [value])

    def change(step: DumpStep) -> None:
        """Change partitions after the snapshot, and remove some of them before the objects are read."""
        if step is not DumpStep.SNAPSHOT:
            return
        for value in ("dropped", "renamed", "kept"):
            store_statistics(side.metastore, name, column_statistics(f"day={value}"))
        drop_partitions(side.metastore, name, ["day=dropped"], delete_data=False)
        (partition,) = find_partitions(side.metastore, name, ["day=renamed"])
        partition.raw.values = ["new"]
        rename_partition(side.metastore, name, ["renamed"], partition)

    copying.dump(observe=change)
    copying.load()
    assert following.cycle().lost == ("t",)  # because of the rename
    assert following.cycle().bootstrapped == ("t",)
    assert_same(following)
    assert _columns_with_statistics(replica.target, TableName(following.target, "t"), "day=kept") == ["id"]


def test_bootstrap_when_objects_are_created_and_renamed_meanwhile_then_the_first_cycle_makes_it_equal(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    side, parted, before = replica.source, following.name("parted"), following.name("before")
    make_table(side.metastore, parted, partitioned=True)
    insert(side, parted, [(1, "a")])
    known = [following.name(name) for name in ("known", "moved")]
    make_table(side.metastore, known[0])
    write(side, known[0], INSERT)
    others = following.name("others")
    make_table(side.metastore, others, partitioned=True)
    insert(side, others, [(1, "a")])
    begun = copying.directory.begin_dump(Scope(copying.database), EventLog(side.metastore).current_id)
    assert isinstance(begun, Dump)
    make_table(side.metastore, following.name("early"))
    write(side, following.name("early"), INSERT)
    alter(following, following.name("early"), renamed("later"))
    write(side, following.name("later"), INSERT)

    def change(step: DumpStep) -> None:
        """Create and rename a table and a partition, after the snapshot and before the objects are read."""
        if step is not DumpStep.SNAPSHOT:
            return
        insert(side, parted, [(2, "b")])
        (partition,) = find_partitions(side.metastore, parted, ["day=b"])
        partition.raw.values = ["c"]
        rename_partition(side.metastore, parted, ["b"], partition)
        insert(side, parted, [(3, "c")])
        make_table(side.metastore, before)
        write(side, before, INSERT)
        alter(following, before, renamed("after"))
        write(side, following.name("after"), INSERT)
        write(side, known[0], INSERT)
        alter(following, known[0], renamed("moved"))
        insert(side, others, [(2, "a")])
        (partition,) = find_partitions(side.metastore, others, ["day=a"])
        partition.raw.values = ["c"]
        rename_partition(side.metastore, others, ["a"], partition)

    copying.dump(observe=change)
    copying.load()
    assert following.cycle().lost == ("early", "later", "others", "parted")
    following.cycle()
    assert_same(following)


def test_bootstrap_when_names_go_to_other_tables_meanwhile_then_the_next_cycles_make_it_equal(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    side, metastore = replica.source, replica.source.metastore
    external, renewed, dropped, taken, giver = (
        following.name(name) for name in ("external", "renewed", "dropped", "taken", "giver")
    )
    for name in (external, renewed, dropped, taken, giver):
        make_table(metastore, name)
        write(side, name, INSERT)
    parted = following.name("parted")
    make_table(metastore, parted, partitioned=True)
    insert(side, parted, [(1, "a"), (2, "b")])

    def change(step: DumpStep) -> None:
        """Give names to other tables, after the snapshot and before the objects are read."""
        if step is not DumpStep.SNAPSHOT:
            return
        for name in (external, renewed):
            alter(following, name, with_column)
            write(side, name, INSERT)
            alter(following, name, renamed(f"old_{name.table}"))
        place = side.external / following.database
        make_table(metastore, external, partitioned=True, parameters=EXTERNAL, location=f"file:{place}")
        metastore.call("append_partition", external.database, external.table, ["a"])
        (place / "day=a" / "not of Hive").write_text("1")
        make_table(metastore, renewed)
        write(side, renewed, OVERWRITE)
        write(side, dropped, INSERT)
        _add_key(side, dropped)
        drop_table(metastore, dropped, delete_data=True)
        make_table(metastore, dropped, partitioned=True)
        insert(side, dropped, [(1, "a")])
        write(side, taken, INSERT)
        drop_table(metastore, taken, delete_data=True)
        write(side, giver, INSERT)
        alter(following, giver, renamed("taken"))
        make_table(metastore, giver)
        (partition,) = find_partitions(metastore, parted, ["day=a"])
        partition.raw.values = ["c"]
        rename_partition(metastore, parted, ["a"], partition)
        insert(side, parted, [(3, "a")])
        rmtree(local_path(table_of(metastore, parted).location) / "day=b")
        later.start()

    # The dump waits, because a metastore moves or removes a directory some time before or after it changes a partition.
    later = Timer(1.0, partial(drop_partitions, metastore, parted, ["day=b"], delete_data=True))
    copying.dump(observe=change)
    later.join()
    copying.load()
    assert following.cycle().lost == ("parted",)
    following.cycle()
    assert_same(following)


def test_reader_when_transactions_write_two_tables_then_it_never_sees_one_without_the_other(
    following: Following,
) -> None:
    side, metastore = following.replica.source, following.replica.source.metastore
    names = [following.name(name) for name in ("left", "right")]
    for name in names:
        make_table(metastore, name)
    following.cycle()

    def write_both(ends: Callable[..., None]) -> None:
        txn = begin(metastore, "tests/both")
        for name in names:
            place_files(side, name, txn, allocate(metastore, txn, name), (INSERT,))
        ends(metastore, txn)

    def follow() -> None:
        for _ in range(4):
            for number in range(5):
                write_both(commit if number % 3 else lambda metastore, txn: abort(metastore, txn.id))
            following.cycle()

    target = [TableName(following.target, name.table) for name in names]
    seen = set()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(follow)
        while not work.done():
            seen.add(tuple(visible_write_ids(following.replica.target, target)))
        work.result()
    assert all(left == right for left, right in seen), seen
    assert len(seen) > 2
    assert_same(following)


def test_transaction_when_open_for_several_cycles_then_it_is_committed_with_its_event(following: Following) -> None:
    side, metastore = following.replica.source, following.replica.source.metastore
    name = following.name("t")
    make_table(metastore, name)
    txn, write_id = begin_writing(metastore, name, "tests/long")
    place_files(side, name, txn, write_id, (INSERT,))
    write(side, name, INSERT)
    following.cycle()
    assert_same(following)
    following.cycle()
    replay = Replay(following.replica.target.metastore, following.target, accepts_gaps=lambda _: False)
    assert replay.open_transactions == {txn.id}
    commit(metastore, txn)
    following.cycle()
    assert_same(following)


def test_transaction_when_it_ended_without_an_event_then_it_is_swept(following: Following) -> None:
    metastore = following.replica.source.metastore
    name = following.name("t")
    make_table(metastore, name)
    following.cycle()
    ended = begin(metastore, "tests/ended")
    abort(metastore, ended.id)
    following.cycle()
    replay = Replay(following.replica.target.metastore, following.target, accepts_gaps=lambda _: False)
    replay.allocate(ended.id, TableName(following.target, "t"), 1)
    following.cycle()
    replay = Replay(following.replica.target.metastore, following.target, accepts_gaps=lambda _: False)
    assert replay.open_transactions == frozenset()
    assert INCOMPATIBLE not in following.marks()


def test_cycle_when_nothing_has_changed_in_the_database_then_the_last_event_moves(following: Following) -> None:
    before = following.last_event()
    other = new_following(following.replica, following.root)
    assert other.database != following.database
    following.cycle()
    assert following.last_event() > before


def test_events_when_of_a_database_of_this_name_in_another_catalog_then_have_no_effect(
    following: Following, tmp_path: Path
) -> None:
    metastore, name = following.replica.source.metastore, following.name("t")
    catalog = following.replica.name("catalog")
    made = ttypes.Catalog(name=catalog, locationUri=f"file:{tmp_path}/{catalog}")
    metastore.call("create_catalog", ttypes.CreateCatalogRequest(made))
    place = f"file:{tmp_path}/{catalog}/db"
    metastore.call("create_database", ttypes.Database(following.database, catalogName=catalog, locationUri=place))
    make_table(metastore, name)
    write(following.replica.source, name, INSERT)
    following.cycle()
    for table in ("t", "u"):
        other = f"{place}/{table}"
        make_table(metastore, following.name(table), parameters=EXTERNAL, location=other, catalog=catalog)
    context = ttypes.EnvironmentContext(properties={})
    metastore.call("drop_table_with_environment_context", f"@{catalog}#{following.database}", "t", False, context)
    write(following.replica.source, name, INSERT)
    following.cycle()
    assert table_names(following.replica.target.metastore, following.target) == ["t"]
    assert_same(following)


def test_partition_when_renamed_then_target_has_its_rows_under_the_new_name(following: Following) -> None:
    side, metastore = following.replica.source, following.replica.source.metastore
    name = following.name("t")
    make_table(metastore, name, partitioned=True)
    insert(side, name, [(1, "a"), (2, "b")])
    (partition,) = find_partitions(metastore, name, ["day=a"])
    partition.raw.values = ["c"]
    rename_partition(metastore, name, ["a"], partition)
    insert(side, name, [(3, "c")])
    following.cycle()
    assert_same(following)


def test_partition_when_renamed_and_the_statistics_of_its_copy_are_not_exact_then_they_stay_so(
    following: Following,
) -> None:
    side, metastore = following.replica.source, following.replica.source.metastore
    name, copied = following.name("t"), TableName(following.target, "t")
    make_table(metastore, name, partitioned=True)
    insert(side, name, [(1, "a")])
    (partition,) = find_partitions(metastore, name, ["day=a"])
    partition.raw.parameters["COLUMN_STATS_ACCURATE"] = '{"BASIC_STATS":"true"}'
    alter_partitions(metastore, name, [partition])
    following.cycle()
    (there,) = find_partitions(following.replica.target.metastore, copied, ["day=a"])
    del there.raw.parameters["COLUMN_STATS_ACCURATE"]
    alter_partitions(following.replica.target.metastore, copied, [there])
    (partition,) = find_partitions(metastore, name, ["day=a"])
    assert "COLUMN_STATS_ACCURATE" in partition.parameters
    partition.raw.values = ["c"]
    rename_partition(metastore, name, ["a"], partition)
    following.cycle()
    assert_same(following)
    (renamed,) = find_partitions(following.replica.target.metastore, copied, ["day=c"])
    assert "COLUMN_STATS_ACCURATE" not in renamed.parameters


def test_definitions_when_changed_then_target_has_them(following: Following) -> None:
    source, target = following.replica.source.metastore, following.replica.target.metastore
    name = following.name("t")
    make_table(source, name)
    change_database(source, following.database, {"team": "web", "repl.last.id": "5"})
    state = {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}
    keys = [
        ttypes.SQLPrimaryKey(following.database, "t", column, number, "pk", **state)
        for number, column in enumerate(("id", "day"), 1)
    ]
    unique = ttypes.SQLUniqueConstraint(
        table_db=following.database, table_name="t", column_name="id", key_seq=1, uk_name="uk", **state
    )
    constraints = [Constraint(ConstraintKind.PRIMARY_KEY, tuple(keys)), Constraint(ConstraintKind.UNIQUE, (unique,))]
    add_constraints(source, name, constraints)
    drop_constraint(source, name, "uk")
    for one in ("kept", "dropped"):
        function = ttypes.Function(
            functionName=one,
            dbName=following.database,
            className="x.Y",
            ownerName="o",
            ownerType=1,
            createTime=1,
            functionType=1,
            resourceUris=[ttypes.ResourceUri(1, "file:/x.jar")],
        )
        create_function(source, FunctionObject(function))
    source.call("drop_function", following.database, "dropped")
    following.cycle()
    copied = TableName(following.target, "t")
    assert [(constraint.kind, constraint.name) for constraint in list_constraints(target, copied)] == [
        (ConstraintKind.PRIMARY_KEY, "pk")
    ]
    assert [column.column_name for column in list_constraints(target, copied)[0].columns] == ["id", "day"]
    functions = list_functions(target, following.target)
    assert [(one.name, one.raw.className, one.resources) for one in functions] == [("kept", "x.Y", ("file:/x.jar",))]
    assert (following.marks()["team"], following.marks()["readonly"]) == ("web", "true")
    assert following.last_event() > 5


def test_database_when_dropped_and_created_again_then_target_has_its_new_tables(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name)
    write(side, name, INSERT, DELETE)
    following.cycle()
    write(side, name, INSERT)
    side.metastore.call("drop_database", following.database, True, True)
    following.cycle()
    assert table_names(following.replica.target.metastore, following.target) == []
    for _ in range(2):
        make_database(side.metastore, following.database)
        make_table(side.metastore, name)
        write(side, name, INSERT)
        write(side, name, OVERWRITE)
        following.cycle()
        assert_same(following)
        write(side, name, INSERT)
        side.metastore.call("drop_database", following.database, True, True)


def test_external_table_when_created_then_its_files_are_copied_with_every_cycle(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    place = side.external / following.database
    make_table(side.metastore, name, parameters=EXTERNAL, location=f"file:{place}")
    (place / "one").write_text("1")
    following.cycle()
    (place / "one").unlink()
    (place / "two").write_text("2")
    following.cycle()
    copied = table_of(following.replica.target.metastore, TableName(following.target, "t"))
    assert copied.location == f"file:{following.replica.target.external}{place}"
    assert [path.name for path in local_path(copied.location).iterdir() if not path.name.startswith(".")] == ["two"]
    drop_table(side.metastore, name, delete_data=True)
    following.cycle()
    assert (local_path(copied.location) / "two").exists()
    assert_same(following)


def test_table_when_it_has_a_storage_handler_then_only_its_definition_is_copied(
    following: Following, tmp_path: Path
) -> None:
    source, target = following.replica.source.metastore, following.replica.target.metastore
    parameters = {**EXTERNAL, "storage_handler": "org.example.Handler"}
    make_table(source, following.name("h"), parameters=parameters, location=f"file:{tmp_path}/h")
    (tmp_path / "h" / "data").write_bytes(b"one")
    following.cycle()
    (tmp_path / "dumps").mkdir()
    other = Copying(following.replica, following.database, following.replica.name("there"), tmp_path / "dumps")
    other.dump()
    other.load()
    for database in (following.target, other.target):
        copied = table_of(target, TableName(database, "h"))
        assert (copied.kind, copied.raw.parameters["storage_handler"]) == (
            TableKind.STORAGE_HANDLER,
            "org.example.Handler",
        )
        assert not list(local_path(copied.location).glob("**/data"))
    drop_table(source, following.name("h"), delete_data=False)
    following.cycle()
    assert table_names(target, following.target) == []
    assert (tmp_path / "h" / "data").exists()


def test_statistics_when_deleted_on_the_source_then_on_the_target_as_well(following: Following) -> None:
    side, target = following.replica.source, following.replica.target
    places = {"t": WHOLE_TABLE, "p": "day=a"}
    for table, partition in places.items():
        name = following.name(table)
        location = f"file:{side.external}/{following.database}/{table}"
        make_table(side.metastore, name, partitioned=bool(partition), parameters=EXTERNAL, location=location)
        if partition:
            side.metastore.call("append_partition", following.database, table, ["a"])
        store_statistics(side.metastore, name, column_statistics(partition))
    following.cycle()
    for table, partition in places.items():
        assert _columns_with_statistics(target, TableName(following.target, table), partition) == ["id"]
        delete_statistics(side.metastore, following.name(table), partition, "id", "hive")
        assert _columns_with_statistics(side, following.name(table), partition) == []
    following.cycle()
    for table, partition in places.items():
        assert _columns_with_statistics(target, TableName(following.target, table), partition) == []


def _add_key(side: Side, name: TableName) -> None:
    """Add a primary key."""
    state = {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}
    key = ttypes.SQLPrimaryKey(name.database, name.table, "day", 1, "pk", **state)
    add_constraints(side.metastore, name, [Constraint(ConstraintKind.PRIMARY_KEY, (key,))])


def _columns_with_statistics(side: Side, name: TableName, partition: str) -> list[str]:
    where = {"dbName": name.database, "tblName": name.table, "colNames": ["id", "day"], "engine": "hive"}
    if partition:
        request = ttypes.PartitionsStatsRequest(**where, partNames=[partition])
        found = side.metastore.call("get_partitions_statistics_req", request).partStats.get(partition, [])
    else:
        found = side.metastore.call("get_table_statistics_req", ttypes.TableStatsRequest(**where)).tableStats
    return [one.colName for one in found]


def test_files_when_of_many_commits_then_one_spark_job_copies_them_first(following: Following) -> None:
    side, names = following.replica.source, [following.name(name) for name in ("s", "t")]
    for name in names:
        make_table(side.metastore, name)
    following.cycle()
    for name in names * 3:
        write(side, name, INSERT)
    following.dump()
    steps: list[Enum] = []
    with closing(Copier(Storages(), shared_engine(), CopyOptions(job_files=1))) as copier:
        report = following.load_last(steps.append, copier=copier)
    assert report.files == len(names) * 3
    assert steps.index(ReplayStep.COPIED) == 0
    assert steps.count(ReplayStep.COPIED) == 1
    assert_same(following)
