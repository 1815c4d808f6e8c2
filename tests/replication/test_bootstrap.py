"""A bootstrap copies a database as it was in one snapshot, on two metastores, and survives kills at every step."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hive_metastore import ttypes
from pyarrow import orc

from ingestd.errors import ReplicationError, TransactionAborted
from ingestd.hive.attachments import (
    ColumnStatistics,
    Constraint,
    ConstraintKind,
    FunctionObject,
    add_constraints,
    create_function,
    list_constraints,
    list_functions,
    store_statistics,
)
from ingestd.hive.client import CAPABILITIES
from ingestd.hive.events import EventLog
from ingestd.hive.objects import TableKind, find_partitions, table_names
from ingestd.hive.snapshot import WriterRule, WritersActive
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort, begin_writing, open_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.directory.protocol import Skipped
from ingestd.replication.dump.bootstrap import BootstrapDumpOptions, DumpStep, dump_bootstrap
from ingestd.replication.load.bootstrap import TargetOccupied
from ingestd.replication.load.table_load import LoadStep
from ingestd.replication.statements.scope import Scope
from ingestd.storage.storages import Storages
from tests.support.replica import Replica
from tests.support.replica_copying import AT_ONCE, TABLES, Copying, fill, new_copying, same_write_ids
from tests.support.replica_rows import (
    begin_locked,
    compact,
    forget_aborted_transactions,
    insert,
    read_rows,
    table_of,
    write_batch,
)
from tests.support.replica_tables import ACID, EXTERNAL, make_database, make_table

BASIC = '{"BASIC_STATS":"true"}'


@pytest.fixture
def copying(replica: Replica, tmp_path: Path) -> Copying:
    """Yield an empty source database."""
    return new_copying(replica, tmp_path)


def test_bootstrap_when_tables_have_all_kinds_of_transactions_then_target_has_the_committed_rows(
    copying: Copying,
) -> None:
    fill(copying)
    dump = copying.dump()
    copying.load()
    assert copying.rows(*TABLES) == TABLES
    assert [table for table in TABLES if not same_write_ids(copying, table)] == []
    for table in TABLES:
        assert table_of(copying.replica.target.metastore, TableName(copying.target, table)).parameters[
            "hive.repl.ckpt.key"
        ] == (dump.uri)
    marks = copying.marks()
    assert marks["repl.last.id"] == str(dump.state.from_event)
    assert (marks["team"], marks["repl.target.for"], marks["hive.repl.first.inc.pending"]) == ("web", "true", "true")
    assert marks["readonly"] == "true"
    assert "repl.x" not in marks
    assert isinstance(copying.directory.begin_load(), Skipped)


def test_base_when_its_last_write_was_aborted_then_is_visible_in_the_copy(copying: Copying) -> None:
    name = TableName(copying.database, "t")
    side = copying.replica.source
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")])
    abort(side.metastore, begin_locked(side, name)[0].id)
    compact(side, name, write_id=2, of_write_id=1)
    assert read_rows(side.metastore, name) == [(1, "a")]
    copying.dump()
    copying.load()
    assert copying.rows("t") == {"t": [(1, "a")]}
    assert same_write_ids(copying, "t")


def test_batch_when_one_of_its_transactions_was_aborted_then_its_rows_stay_invisible(copying: Copying) -> None:
    source, target = copying.replica.source, copying.replica.target.metastore
    rows, expected = [[(1, "a")], [(2, "a")], [(3, "a")]], [(1, "a"), (3, "a")]
    for table in ("t", "p"):
        make_table(source.metastore, TableName(copying.database, table), partitioned=table == "p")
    insert(source, TableName(copying.database, "p"), [(0, "a")])
    write_batch(source, TableName(copying.database, "t"), rows, aborted=[1])
    write_batch(source, TableName(copying.database, "p"), rows, aborted=[1], partition="day=a")
    copying.dump()
    copying.load()
    forget_aborted_transactions(target)
    assert copying.rows("t", "p") == {"t": expected, "p": [(0, "a"), *expected]}


def test_dump_when_a_writer_does_not_end_then_fails_if_it_may_not_abort_it(copying: Copying) -> None:
    name = TableName(copying.database, "t")
    make_table(copying.replica.source.metastore, name)
    txn, _ = begin_writing(copying.replica.source.metastore, name, "test")
    with pytest.raises(WritersActive, match=str(txn.id)):
        copying.dump(WriterRule(timeout_seconds=0.0, aborts=False))
    abort(copying.replica.source.metastore, txn.id)
    copying.dump()
    copying.load()
    assert copying.rows("t") == {"t": []}


def test_bootstrap_when_tables_are_external_then_they_have_mapped_locations(copying: Copying) -> None:
    side, outside = copying.replica.source, copying.root / "outside"
    name = TableName(copying.database, "t")
    make_table(side.metastore, name, partitioned=True, parameters=EXTERNAL, location=f"file:{copying.root}/ext/t")
    table = table_of(side.metastore, name)
    for day, location in (("a", f"{table.location}/day=a"), ("b", f"file:{outside}")):
        partition = ttypes.Partition(
            values=[day],
            dbName=name.database,
            tableName="t",
            sd=ttypes.StorageDescriptor(**{**vars(table.raw.sd), "location": location}),
            parameters={},
        )
        side.metastore.call("add_partitions_req", ttypes.AddPartitionsRequest(name.database, "t", [partition], True))
    orc.write_table(pa.table({"id": [1]}), outside / "file")
    copying.dump()
    copying.load()
    target = copying.replica.target
    copied = TableName(copying.target, "t")
    base = f"file:{target.external}"
    assert table_of(target.metastore, copied).location == f"{base}{copying.root}/ext/t"
    found = find_partitions(target.metastore, copied, ["day=a", "day=b"])
    assert {table.location for table in found} == {f"{base}{copying.root}/ext/t/day=a", f"{base}{outside}"}
    assert copying.rows("t") == {"t": [(1, "b")]}


def test_bootstrap_when_tables_have_constraints_and_functions_then_target_has_them(copying: Copying) -> None:
    metastore, target = copying.replica.source.metastore, copying.replica.target.metastore
    child, parent = TableName(copying.database, "child"), TableName(copying.database, "parent")
    for name in (child, parent):
        make_table(metastore, name)
    state = {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}
    key = ttypes.SQLPrimaryKey(copying.database, "parent", "id", 1, "the_key", **state)
    add_constraints(metastore, parent, [Constraint(ConstraintKind.PRIMARY_KEY, (key,))])
    foreign = ttypes.SQLForeignKey(
        *(copying.database, "parent", "id", copying.database, "child", "id"),
        1,
        0,
        0,
        "the_reference",
        "the_key",
        **state,
    )
    add_constraints(metastore, child, [Constraint(ConstraintKind.FOREIGN_KEY, (foreign,))])
    create_function(metastore, _function(copying.database, "f", "x.F", "file:///x.jar"))
    create_function(metastore, _function(copying.database, "g", "x.G"))
    copying.dump()
    copying.load()
    (function,) = list_functions(target, copying.target)
    assert function.definition == _function(copying.target, "f", "x.F", "file:///x.jar").definition
    copied = [list_constraints(target, TableName(copying.target, name)) for name in ("parent", "child")]
    assert [[constraint.name for constraint in some] for some in copied] == [["the_key"], ["the_reference"]]


def test_bootstrap_when_the_database_has_a_view_then_target_has_it(copying: Copying) -> None:
    view = ttypes.Table(
        dbName=copying.database,
        tableName="v",
        owner="me",
        sd=ttypes.StorageDescriptor(cols=[ttypes.FieldSchema("one", "int")], serdeInfo=ttypes.SerDeInfo()),
        partitionKeys=[],
        parameters={},
        viewOriginalText="select 1 as one",
        viewExpandedText="select 1 as `one`",
        tableType="VIRTUAL_VIEW",
    )
    request = ttypes.CreateTableRequest(table=view, processorCapabilities=CAPABILITIES, processorIdentifier="ingestd")
    copying.replica.source.metastore.call("create_table_req", request)
    copying.dump()
    copying.load()
    copied = table_of(copying.replica.target.metastore, TableName(copying.target, "v"))
    assert (copied.kind, copied.raw.viewExpandedText) == (TableKind.VIEW, "select 1 as `one`")


def test_bootstrap_when_a_table_has_statistics_then_target_accepts_them_for_the_same_writes(copying: Copying) -> None:
    name = TableName(copying.database, "t")
    side = copying.replica.source
    make_table(side.metastore, name, parameters={**ACID, "numRows": "2", "COLUMN_STATS_ACCURATE": BASIC})
    insert(side, name, [(1, "a"), (2, "b")])
    data = ttypes.LongColumnStatsData(lowValue=1, highValue=2, numNulls=0, numDVs=2)
    statistics = ttypes.ColumnStatistics(
        statsDesc=ttypes.ColumnStatisticsDesc(isTblLevel=True, dbName=name.database, tableName="t"),
        statsObj=[ttypes.ColumnStatisticsObj("id", "bigint", ttypes.ColumnStatisticsData(longStats=data))],
        engine="hive",
    )
    store_statistics(side.metastore, name, ColumnStatistics(statistics, 1))
    copying.dump()
    copying.load()
    before, after = (
        table_of(metastore, table)
        for metastore, table in (
            (side.metastore, name),
            (copying.replica.target.metastore, TableName(copying.target, "t")),
        )
    )
    assert after.raw.writeId == before.raw.writeId == 1
    assert after.raw.colStats.statsObj == before.raw.colStats.statsObj
    for key in ("numRows", "COLUMN_STATS_ACCURATE"):
        assert after.parameters[key] == before.parameters[key]


def test_load_when_the_target_is_not_empty_or_of_another_source_then_is_refused(
    copying: Copying, tmp_path: Path
) -> None:
    make_table(copying.replica.source.metastore, TableName(copying.database, "t"))
    copying.dump()
    target = copying.replica.target.metastore
    occupied = copying.replica.name("occupied")
    make_database(target, occupied)
    make_table(target, TableName(occupied, "x"))
    with pytest.raises(TargetOccupied, match="not empty; it contains the table x"):
        copying.load(occupied)
    replicated = copying.replica.name("replicated")
    make_database(target, replicated, {"repl.last.id": "3"})
    with pytest.raises(TargetOccupied, match=r"copy of another source: repl\.last\.id=3"):
        copying.load(replicated)
    assert table_names(target, occupied) == ["x"]
    copying.load()


def test_bootstrap_when_repeated_then_replaces_tables_and_drops_those_without_source(copying: Copying) -> None:
    source, target = copying.replica.source, copying.replica.target.metastore
    for name in ("kept", "dropped"):
        make_table(source.metastore, TableName(copying.database, name))
        insert(source, TableName(copying.database, name), [(1, "a")])
    for name in ("same", "class", "jar", "dropped"):
        create_function(source.metastore, _function(copying.database, name, "x.Old", "file:///old.jar"))
    copying.dump()
    copying.load()
    for name in ("class", "jar", "dropped"):
        source.metastore.call("drop_function", copying.database, name)
    create_function(source.metastore, _function(copying.database, "class", "x.New", "file:///old.jar"))
    create_function(source.metastore, _function(copying.database, "jar", "x.Old", "file:///new.jar"))
    source.metastore.call("drop_table", copying.database, "dropped", True)
    source.metastore.call("drop_table", copying.database, "kept", True)
    make_table(source.metastore, TableName(copying.database, "kept"))
    insert(source, TableName(copying.database, "kept"), [(2, "b")], [(3, "c")])
    cluster = Cluster(source.metastore, Storages())
    dump = copying.directory.begin_bootstrap(Scope(copying.database), EventLog(source.metastore).current_id)
    metadata = dump_bootstrap(cluster, dump, BootstrapDumpOptions(AT_ONCE), threading.Event())
    copying.directory.finish_dump(dump, metadata)
    copying.load()
    assert table_names(target, copying.target) == ["kept"]
    assert copying.rows("kept") == {"kept": [(2, "b"), (3, "c")]}
    assert same_write_ids(copying, "kept")
    functions = list_functions(target, copying.target)
    assert [(function.name, function.raw.className, function.resources) for function in functions] == [
        ("class", "x.New", ("file:///old.jar",)),
        ("jar", "x.Old", ("file:///new.jar",)),
        ("same", "x.Old", ("file:///old.jar",)),
    ]


def _function(database: str, name: str, java_class: str, *jars: str) -> FunctionObject:
    raw = ttypes.Function(name, database, java_class, "me", ttypes.PrincipalType.USER, 0, 1)
    raw.resourceUris = [ttypes.ResourceUri(ttypes.ResourceType.JAR, jar) for jar in jars]
    return FunctionObject(raw)


def test_dump_when_the_database_is_an_incomplete_replica_then_is_refused(copying: Copying) -> None:
    name = copying.replica.name("pending")
    make_database(copying.replica.source.metastore, name, {"hive.repl.first.inc.pending": "true"})
    with pytest.raises(ReplicationError, match="does not have all changes that were made during its bootstrap"):
        Copying(copying.replica, name, "x", copying.root).dump()


def test_dump_when_its_snapshot_has_ended_then_is_not_finished(copying: Copying) -> None:
    metastore = copying.replica.source.metastore
    make_table(metastore, TableName(copying.database, "t"))

    def end(_: DumpStep) -> None:
        for txn in open_transactions(metastore, f"ingestd repl dump {copying.database}"):
            abort(metastore, txn)

    with pytest.raises(TransactionAborted, match="the snapshot ended"):
        copying.dump(observe=end)
    assert not copying.directory.dumps()[-1].is_finished
    copying.dump()
    copying.load()


def test_load_when_a_table_is_complete_then_is_not_touched_again(copying: Copying) -> None:
    fill(copying)
    copying.dump()
    copying.run_process("load", LoadStep.COMPLETE)
    name = TableName(copying.target, "plain")
    before = table_of(copying.replica.target.metastore, name).raw.id
    copying.load_last()
    assert table_of(copying.replica.target.metastore, name).raw.id == before
