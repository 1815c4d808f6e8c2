"""Databases, tables, partitions, functions and constraints, copied from one metastore to another."""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.hive.attachments import (
    ColumnStatistics,
    Constraint,
    ConstraintKind,
    ConstraintsRefused,
    FunctionObject,
    add_constraints,
    create_function,
    delete_statistics,
    drop_constraint,
    drop_function,
    list_constraints,
    list_functions,
    store_statistics,
)
from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.objects import (
    DatabaseObject,
    PartitionObject,
    TableKind,
    TableObject,
    add_partitions,
    all_partition_names,
    alter_table,
    change_database,
    crafted_list,
    create_database,
    create_table,
    drop_partitions,
    drop_table,
    find_database,
    find_partitions,
    find_table,
    table_names,
)
from ingestd.hive.tables import TableName
from tests.support.replica import Replica
from tests.support.replica_tables import ACID, EXTERNAL, make_database, make_table

ACCURATE = '{"BASIC_STATS":"true","COLUMN_STATS":{"id":"true"}}'
QUICK = {"numRows": "7", "numFiles": "3", "totalSize": "700", "rawDataSize": "90"}


def _statistics(table: TableName, partition: str = "") -> Any:
    data = ttypes.LongColumnStatsData(lowValue=1, highValue=9, numNulls=0, numDVs=7)
    return ttypes.ColumnStatistics(
        statsDesc=ttypes.ColumnStatisticsDesc(
            isTblLevel=not partition, dbName=table.database, tableName=table.table, partName=partition or None
        ),
        statsObj=[
            ttypes.ColumnStatisticsObj(
                colName="id", colType="bigint", statsData=ttypes.ColumnStatisticsData(longStats=data)
            )
        ],
        engine="hive",
    )


def _highest(statistics: Any) -> int:
    return int(statistics.statsObj[0].statsData.longStats.highValue)


def _allocate(metastore: Metastore, table: TableName, count: int) -> None:
    """Commit transactions that have write ids of `table`."""
    for _ in range(count):
        txn = metastore.call("open_txns", ttypes.OpenTxnRequest(1, "u", "h")).txn_ids[0]
        request = ttypes.AllocateTableWriteIdsRequest(dbName=table.database, tableName=table.table, txnIds=[txn])
        metastore.call("allocate_table_write_ids", request)
        metastore.call("commit_txn", ttypes.CommitTxnRequest(txnid=txn))


def _is_accepted(metastore: Metastore, table: TableName, high: int) -> bool:
    """Return whether a reader that sees the write ids up to `high` may answer queries from the table's statistics."""
    request = ttypes.GetTableRequest(
        dbName=table.database,
        tblName=table.table,
        capabilities=ttypes.ClientCapabilities(values=[ttypes.ClientCapability.INSERT_ONLY_TABLES]),
        validWriteIdList=crafted_list(table, high),
        processorCapabilities=CAPABILITIES,
        processorIdentifier="ingestd",
    )
    return bool(metastore.call("get_table_req", request).table.isStatsCompliant)


def test_database_when_copied_then_has_its_properties_and_the_other_location(replica: Replica) -> None:
    name, copy = replica.name("here"), replica.name("there")
    make_database(replica.source.metastore, name, {"team": "web"})
    found = find_database(replica.source.metastore, name)
    assert found is not None
    create_database(replica.target.metastore, DatabaseObject.parse(found.text).copied(copy, {"team": "x"}))
    change_database(replica.target.metastore, copy, {"team": None, "a": "b"})
    made = find_database(replica.target.metastore, copy)
    assert made is not None
    assert made.parameters.get("team") is None
    assert made.parameters["a"] == "b"
    assert str(replica.target.external) in made.raw.locationUri  # external tables; managed ones are elsewhere
    assert find_database(replica.target.metastore, name) is None


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [
        ({"transactional": "true"}, TableKind.FULL_ACID),
        ({"transactional": "true", "transactional_properties": "insert_only"}, TableKind.INSERT_ONLY),
        ({"EXTERNAL": "TRUE"}, TableKind.EXTERNAL),
    ],
)
def test_table_when_copied_then_has_its_kind_and_statistics(
    replica: Replica, parameters: dict[str, str], kind: TableKind
) -> None:
    source, target = TableName(replica.name("here"), "t"), TableName(replica.name("there"), "t")
    make_database(replica.source.metastore, source.database)
    make_database(replica.target.metastore, target.database)
    make_table(replica.source.metastore, source, parameters=parameters)
    found = find_table(replica.source.metastore, source)
    assert found is not None
    described = TableObject.parse(found.text)
    described.raw.colStats, described.raw.writeId = _statistics(source), 5
    create_table(
        replica.target.metastore,
        described.copied(
            target, None, {**described.parameters, **QUICK, "COLUMN_STATS_ACCURATE": ACCURATE, "mark": "1"}
        ),
    )
    made = find_table(replica.target.metastore, target)
    assert made is not None
    assert (made.kind, made.name) == (kind, target)
    assert {key: made.parameters[key] for key in QUICK} == QUICK
    assert made.parameters["COLUMN_STATS_ACCURATE"] == ACCURATE
    assert _highest(made.raw.colStats) == 9
    assert str(replica.target.warehouse.parent) in made.location
    assert table_names(replica.target.metastore, target.database) == ["t"]


def test_table_when_altered_then_a_reader_accepts_its_statistics_from_their_write_on(replica: Replica) -> None:
    name = TableName(replica.name("there"), "t")
    metastore = replica.target.metastore
    make_database(metastore, name.database)
    make_table(metastore, name, parameters={**ACID, **QUICK, "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'})
    _allocate(metastore, name, 5)
    store_statistics(metastore, name, ColumnStatistics(_statistics(TableName("other", "x")), 4))
    found = find_table(metastore, name)
    assert found is not None
    assert found.raw.writeId == 4
    marked = found.copied(name, found.location, {**found.parameters, "mark": "1"})
    alter_table(metastore, name, marked)
    found = find_table(metastore, name)
    assert found is not None
    assert found.parameters["mark"] == "1"
    assert '"id":"true"' in found.parameters["COLUMN_STATS_ACCURATE"]
    assert [_is_accepted(metastore, name, high) for high in (3, 4, 5)] == [False, True, True]


def test_statistics_when_deleted_twice_then_the_table_has_none(replica: Replica) -> None:
    name = TableName(replica.name("there"), "t")
    metastore = replica.target.metastore
    make_database(metastore, name.database)
    make_table(metastore, name, parameters=EXTERNAL)
    store_statistics(metastore, name, ColumnStatistics(_statistics(name), 0))
    present = []
    for _ in range(3):
        found = find_table(metastore, name)
        assert found is not None
        present.append(found.raw.colStats is not None)
        delete_statistics(metastore, name, "", "id", "hive")
    assert present == [True, False, False]


def test_table_when_dropped_with_its_data_then_its_write_ids_are_forgotten(replica: Replica) -> None:
    name = TableName(replica.name("there"), "t")
    metastore = replica.target.metastore
    make_database(metastore, name.database)
    highest = []
    for _ in range(2):
        make_table(metastore, name)
        _allocate(metastore, name, 3)
        request = ttypes.MaxAllocatedTableWriteIdRequest(dbName=name.database, tableName=name.table)
        highest.append(metastore.call("get_max_allocated_table_write_id", request).maxWriteId)
        drop_table(metastore, name, delete_data=True)
        drop_table(metastore, name, delete_data=True)
    assert highest == [3, 3]
    assert find_table(metastore, name) is None


def test_partitions_when_copied_then_have_their_statistics(replica: Replica) -> None:
    name, there = TableName(replica.name("here"), "t"), TableName(replica.name("there"), "t")
    source, target = replica.source.metastore, replica.target.metastore
    for metastore, made_name in ((source, name), (target, there)):
        make_database(metastore, made_name.database)
        make_table(metastore, made_name, partitioned=True)
    table = find_table(source, name)
    assert table is not None
    days = [f"day {number}:{number}" for number in range(250)]
    add_partitions(source, table, [_partition(table, day) for day in days])
    names = all_partition_names(source, name)
    assert set(names) == {table.partition_name([day]) for day in days}
    found = [PartitionObject.parse(partition.text) for partition in find_partitions(source, name, names)]
    assert len(found) == 250
    assert all(_highest(partition.raw.colStats) == 9 for partition in found)
    for number, partition in enumerate(found):
        partition.raw.writeId = 4 + number % 2
        partition.raw.colStats = partition.raw.colStats if number % 3 else None
    copies = [partition.copied(there, None, {**partition.parameters, "mark": "1"}) for partition in found]
    copied = table.copied(there, None, table.parameters)
    add_partitions(target, copied, copies)
    add_partitions(target, copied, copies[:3])
    made = list(find_partitions(target, there, names))
    assert len(made) == 250
    expected = {partition.values: (partition.raw.writeId, partition.raw.colStats is None) for partition in found}
    assert {partition.values: (partition.raw.writeId, partition.raw.colStats is None) for partition in made} == expected
    assert {_highest(partition.raw.colStats) for partition in made if partition.raw.colStats} == {9}
    assert all({key: partition.parameters.get(key) for key in QUICK} == QUICK for partition in made)
    assert all(partition.parameters["COLUMN_STATS_ACCURATE"] == ACCURATE for partition in made)
    assert all(str(replica.target.warehouse) in partition.location for partition in made)
    drop_partitions(target, there, [*names[:240], "day=unknown"], delete_data=True)
    assert sorted(all_partition_names(target, there)) == sorted(names[240:])


def _partition(table: TableObject, day: str) -> PartitionObject:
    raw = ttypes.Partition(
        values=[day],
        dbName=table.name.database,
        tableName=table.name.table,
        sd=ttypes.StorageDescriptor(**{**vars(table.raw.sd), "location": None}),
        parameters={**QUICK, "COLUMN_STATS_ACCURATE": ACCURATE},
        writeId=4,
        colStats=_statistics(table.name, table.partition_name([day])),
    )
    return PartitionObject(raw)


def test_functions_when_created_twice_then_exist_once(replica: Replica) -> None:
    name, there = replica.name("here"), replica.name("there")
    make_database(replica.source.metastore, name)
    make_database(replica.target.metastore, there)
    create_function(
        replica.source.metastore,
        FunctionObject(
            ttypes.Function(
                functionName="twice",
                dbName=name,
                className="com.example.Twice",
                ownerName="me",
                ownerType=ttypes.PrincipalType.USER,
                functionType=ttypes.FunctionType.JAVA,
                resourceUris=[ttypes.ResourceUri(ttypes.ResourceType.JAR, "file:///tmp/twice.jar")],
            )
        ),
    )
    (found,) = list_functions(replica.source.metastore, name)
    assert found.resources == ("file:///tmp/twice.jar",)
    for _ in range(2):
        create_function(replica.target.metastore, FunctionObject.parse(found.text).copied(there))
    assert [function.name for function in list_functions(replica.target.metastore, there)] == ["twice"]
    for _ in range(2):
        drop_function(replica.target.metastore, there, "twice")
    assert list_functions(replica.target.metastore, there) == []


def test_constraints_when_copied_then_keep_their_names_and_columns(replica: Replica) -> None:
    name, there = replica.name("here"), replica.name("there")
    source, target = replica.source.metastore, replica.target.metastore
    for metastore, database in ((source, name), (target, there)):
        make_database(metastore, database)
        for table in ("parent", "child"):
            make_table(metastore, TableName(database, table))
    for table in ("parent", "child"):
        add_constraints(source, TableName(name, table), _constraints(name, table))
    found = {table: list_constraints(source, TableName(name, table)) for table in ("parent", "child")}
    assert [constraint.kind for constraint in found["child"]] == [ConstraintKind.NOT_NULL, ConstraintKind.FOREIGN_KEY]
    for _ in range(2):
        for table, constraints in found.items():
            copies = [
                Constraint.parse(constraint.kind, constraint.texts).copied(name, there) for constraint in constraints
            ]
            add_constraints(target, TableName(there, table), copies)
    made = [constraint for table in found for constraint in list_constraints(target, TableName(there, table))]
    assert [(constraint.kind, constraint.name) for constraint in made] == [
        (constraint.kind, constraint.name) for constraints in found.values() for constraint in constraints
    ]
    (key,) = (constraint for constraint in made if constraint.kind is ConstraintKind.FOREIGN_KEY)
    assert (key.columns[0].pktable_db, key.columns[0].fktable_db) == (there, there)
    assert key.table == TableName(there, "child")
    for _ in range(2):
        drop_constraint(target, key.table, key.name)
    assert [constraint.name for constraint in list_constraints(target, key.table)] == ["child_id"]


def _on_missing_column(name: TableName) -> list[Constraint]:
    """Return a constraint of each kind on a column that the table does not have."""
    state = {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}
    place, values = (name.database, name.table, "missing"), tuple(state.values())
    return [
        Constraint(ConstraintKind.PRIMARY_KEY, (ttypes.SQLPrimaryKey(*place, 1, "a_key", **state),)),
        Constraint(ConstraintKind.UNIQUE, (ttypes.SQLUniqueConstraint("hive", *place, 1, "a_unique", *values),)),
        Constraint(ConstraintKind.NOT_NULL, (ttypes.SQLNotNullConstraint("hive", *place, "a_not_null", *values),)),
        Constraint(ConstraintKind.DEFAULT, (ttypes.SQLDefaultConstraint("hive", *place, "1", "a_default", *values),)),
        Constraint(
            ConstraintKind.FOREIGN_KEY,
            (ttypes.SQLForeignKey(name.database, "parent", "id", *place, 1, 0, 0, "a_reference", "the_key", **state),),
        ),
    ]


def test_constraints_when_the_metastore_refuses_some_then_the_table_has_the_others(replica: Replica) -> None:
    metastore, there = replica.target.metastore, replica.name("there")
    make_database(metastore, there)
    for table in ("parent", "child"):
        make_table(metastore, TableName(there, table))
    own, state = TableName(there, "child"), {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}
    keys = {
        name: Constraint(ConstraintKind.PRIMARY_KEY, (ttypes.SQLPrimaryKey(there, table, "id", 1, name, **state),))
        for name, table in (("the_key", "parent"), ("theirs", "child"), ("another", "child"))
    }
    add_constraints(metastore, TableName(there, "parent"), [keys["the_key"]])
    for constraint in _on_missing_column(own):
        with pytest.raises(ConstraintsRefused, match=f"the constraints {constraint.name}: .*missing"):
            add_constraints(metastore, own, [constraint])
    add_constraints(metastore, own, [keys["theirs"]])
    uniques = [
        Constraint(
            ConstraintKind.UNIQUE,
            (ttypes.SQLUniqueConstraint("hive", there, "child", column, 1, f"unique_{column}", *state.values()),),
        )
        for column in ("missing", "id", "day")
    ]
    with pytest.raises(ConstraintsRefused, match="unique_missing, another: the column missing does not exist"):
        add_constraints(metastore, own, [keys["another"], *uniques])
    assert {constraint.name for constraint in list_constraints(metastore, own)} == {"theirs", "unique_id", "unique_day"}


def _constraints(database: str, table: str) -> list[Constraint]:
    state = {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}
    here = {"table_db": database, "table_name": table}
    if table == "parent":
        columns = [
            ttypes.SQLPrimaryKey(**here, column_name=column, key_seq=number, pk_name="parent_key", **state)
            for number, column in enumerate(("id", "day"), 1)
        ]
        unique = ttypes.SQLUniqueConstraint("hive", database, table, "day", 1, "parent_day", *state.values())
        return [Constraint(ConstraintKind.PRIMARY_KEY, tuple(columns)), Constraint(ConstraintKind.UNIQUE, (unique,))]
    not_null = ttypes.SQLNotNullConstraint("hive", database, table, "id", "child_id", *state.values())
    keys = [
        ttypes.SQLForeignKey(
            database, "parent", column, database, table, column, number, 0, 0, "child_parent", "parent_key", **state
        )
        for number, column in enumerate(("id", "day"), 1)
    ]
    return [Constraint(ConstraintKind.NOT_NULL, (not_null,)), Constraint(ConstraintKind.FOREIGN_KEY, tuple(keys))]
