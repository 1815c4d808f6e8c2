"""Of the alterations that only change statistics, a load replays the last one, and readers never trust a wrong one."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum

from hive_metastore import ttypes

from ingestd.hive.client import CAPABILITIES
from ingestd.hive.objects import PartitionObject, TableObject, alter_table, table_names
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import Transaction, abort, begin_writing, commit
from ingestd.hive.write_ids import as_text, read_snapshot
from ingestd.replication.directory.event_records import ABORT, ALLOCATE, COMMIT, EventRecord
from ingestd.replication.load.incremental import ReplayStep
from ingestd.replication.load.statistics_runs import StatisticsRuns
from tests.support.replica import Side
from tests.support.replica_changes import INSERT, alter, assert_same, visible_write_ids, with_column
from tests.support.replica_following import Following, place_files, write
from tests.support.replica_rows import table_of
from tests.support.replica_tables import make_table


def _storage() -> ttypes.StorageDescriptor:
    return ttypes.StorageDescriptor(cols=[ttypes.FieldSchema(name="id", type="int")], location="file:/t")


def _table_altered(event: int, write_id: int, **parameters: str) -> EventRecord:
    texts = [
        TableObject(ttypes.Table(tableName="t", dbName="d", sd=_storage(), parameters=some, writeId=write_id)).text
        for some in ({}, {"numRows": str(write_id), **parameters})
    ]
    message = {"tableObjBeforeJson": texts[0], "tableObjAfterJson": texts[1], "writeId": write_id}
    return EventRecord(event, "ALTER_TABLE", "t", json.dumps(message))


def _partitions_altered(event: int, write_id: int, *days: str) -> EventRecord:
    parts = [
        ttypes.Partition(values=[day], sd=_storage(), parameters={"numRows": str(write_id)}, writeId=write_id)
        for day in days
    ]
    message = {"partitionListJson": [PartitionObject(part).text for part in parts], "writeId": write_id}
    return EventRecord(event, "ALTER_PARTITIONS", "t", json.dumps(message))


def _allocated(event: int, write_id: int) -> EventRecord:
    return EventRecord(event, ALLOCATE, "t", json.dumps({"txnIdList": [write_id + 50], "writeIdList": [write_id]}))


def _ended(event: int, write_id: int, how: str = COMMIT) -> EventRecord:
    return EventRecord(event, how, "", json.dumps({"txnid": write_id + 50}))


def _replayed(*records: EventRecord, after: int = 0) -> list[tuple[int, int]]:
    """Return the events of the alterations that are replayed, each with the write id of its statistics."""
    runs = StatisticsRuns.of(records, after)
    replayed = [
        runs.replayed(record) for record in records if record.type.startswith("ALTER_") and record.event > after
    ]
    return [(record.event, record.message["writeId"]) for record in replayed if record is not None]


def test_alterations_when_one_table_has_several_then_the_first_has_the_last_statistics() -> None:
    records = []
    for number in range(1, 5):
        records += [_allocated(number * 10, number), _table_altered(number * 10 + 1, number)]
        records.append(_ended(number * 10 + 2, number))
    assert _replayed(*records) == [(11, 4)]
    assert _replayed(*records, after=22) == [(31, 4)]
    assert _replayed(*records[:3]) == [(11, 1)]


def test_alterations_when_the_last_transaction_does_not_commit_then_the_one_before_is_the_last() -> None:
    begun = [
        record
        for number in (1, 2, 3)
        for record in (_allocated(number * 10, number), _table_altered(number * 10 + 1, number))
    ]
    assert _replayed(*begun, _ended(40, 1), _ended(41, 2)) == [(11, 2), (31, 3)]
    assert _replayed(*begun, _ended(40, 2), _ended(41, 1), _ended(42, 3, ABORT)) == [(11, 2), (31, 3)]
    assert _replayed(*begun) == [(11, 1), (21, 2), (31, 3)]


def test_alterations_when_another_event_is_between_then_all_are_replayed() -> None:
    for between in (
        EventRecord(15, "UPDATE_TBL_COL_STAT_EVENT", "t", "{}"),
        EventRecord(15, "DROP_DATABASE", "", "{}"),
        _table_altered(15, 0),
        _partitions_altered(15, 2, "a"),
    ):
        records = [_allocated(9, 1), _allocated(10, 2), _table_altered(11, 1), between, _table_altered(20, 2)]
        found = _replayed(*records, _ended(21, 1), _ended(22, 2))
        assert found[0] == (11, 1)
        assert found[-1] == (20, 2)
    changed = _allocated(9, 1), _allocated(10, 2), _table_altered(11, 1), _table_altered(20, 2, comment="new")
    assert _replayed(*changed, _ended(21, 1), _ended(22, 2)) == [(11, 1), (20, 2)]


def test_alterations_when_of_partitions_then_each_set_of_them_has_its_last_statistics() -> None:
    def records(*sets: str) -> list[EventRecord]:
        found = []
        for number, days in enumerate(sets, 1):
            found += [_allocated(number * 10, number), _partitions_altered(number * 10 + 1, number, *days)]
            found.append(_ended(number * 10 + 2, number))
        return found

    assert _replayed(*records("a", "b", "a", "b")) == [(11, 3), (21, 4)]
    assert _replayed(*records("ab", "ba", "c")) == [(11, 2), (31, 3)]
    assert _replayed(*records("ab", "a", "ab")) == [(11, 1), (21, 2), (31, 3)]


def _trusted(side: Side, name: TableName) -> int | None:
    """Return the number of rows that a query which begins now takes from the statistics, None if it reads the rows."""
    request = ttypes.GetTableRequest(
        dbName=name.database,
        tblName=name.table,
        capabilities=ttypes.ClientCapabilities(values=[ttypes.ClientCapability.INSERT_ONLY_TABLES]),
        validWriteIdList=as_text(read_snapshot(side.metastore, name)),
        processorCapabilities=CAPABILITIES,
        processorIdentifier="test",
    )
    table = side.metastore.call("get_table_req", request).table
    is_accurate = table.isStatsCompliant and "BASIC_STATS" in table.parameters.get("COLUMN_STATS_ACCURATE", "")
    return int(table.parameters["numRows"]) if is_accurate else None


def _write_counted(side: Side, name: TableName, ends: Callable[[Transaction], None]) -> None:
    """Add a file in a transaction that states the number of files as the number of rows, as HiveServer2 would."""
    txn, write_id = begin_writing(side.metastore, name, "tests/counted")
    place_files(side, name, txn, write_id, (INSERT,))
    table = table_of(side.metastore, name)
    rows = int(table.parameters.get("numRows", 0)) + 1
    table.raw.parameters |= {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}', "numRows": str(rows)}
    table.raw.writeId = write_id
    alter_table(side.metastore, name, table)
    ends(txn)


def test_statistics_when_a_cycle_has_many_commits_then_readers_trust_none_that_differ_from_the_rows(
    following: Following,
) -> None:
    side, target = following.replica.source, following.replica.target
    name, copied = following.name("t"), TableName(following.target, "t")
    make_table(side.metastore, name)
    for _ in range(4):
        _write_counted(side, name, lambda txn: commit(side.metastore, txn))
    assert _trusted(side, name) == 4
    seen = []

    def look(step: Enum) -> None:
        if step in {ReplayStep.DEFINED, ReplayStep.ALLOCATED, ReplayStep.COMMITTED} and table_names(
            target.metastore, following.target
        ):
            seen.append((_trusted(target, copied), len(visible_write_ids(target, [copied])[0])))

    following.dump()
    following.load(look)
    assert {rows for _, rows in seen} == {0, 1, 2, 3, 4}
    assert all(count in {None, rows} for count, rows in seen), seen
    assert seen[-1] == (4, 4)
    left_open: list[Transaction] = []
    _write_counted(side, name, lambda txn: commit(side.metastore, txn))
    _write_counted(side, name, left_open.append)
    following.cycle()
    assert _trusted(target, copied) in {None, 5}
    commit(side.metastore, left_open[0])
    following.cycle()
    assert _trusted(target, copied) is None  # its statistics were replayed when it was not known to commit
    _write_counted(side, name, lambda txn: commit(side.metastore, txn))
    following.cycle()
    assert _trusted(target, copied) == 7


def test_table_when_altered_between_commits_then_each_definition_comes_with_its_event(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name)
    for _ in range(2):
        _write_counted(side, name, lambda txn: commit(side.metastore, txn))
    alter(following, name, with_column)
    _write_counted(side, name, lambda txn: commit(side.metastore, txn))
    write(side, name, INSERT, then=lambda txn: abort(side.metastore, txn.id))
    following.cycle()
    assert_same(following)
