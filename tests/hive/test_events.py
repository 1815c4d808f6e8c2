"""Events are read without gaps, and metastore objects in them are decoded."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.errors import BootstrapRequired
from ingestd.hive import thrift_json, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.events import Event, EventLog, EventsExpired, EventsReplaced
from ingestd.hive.notifications import WrittenPartition, notify_writes
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.publish.deltas import create_partitions
from ingestd.storage.local import LocalLocation
from tests.support.replica import Replica
from tests.support.tables import make_table


@pytest.fixture
def source(replica: Replica) -> Metastore:
    return replica.source.metastore


def _table(replica: Replica, *, partitioned: bool = False) -> TableName:
    database = replica.name("events")
    replica.source.metastore.call("create_database", ttypes.Database(name=database))
    name = TableName(database, "t")
    make_table(replica.source.metastore, name, partitioned=partitioned)
    return name


def test_events_when_a_table_is_created_and_written_then_all_are_read_in_order(replica: Replica) -> None:
    metastore = replica.source.metastore
    log = EventLog(metastore)
    start = log.current_id()
    name = _table(replica)
    txn, write_id = transactions.begin_writing(metastore, name, "tests")
    transactions.commit(metastore, txn)
    everything = log.read(start, 1000)
    assert [event.id for event in everything] == list(range(start + 1, everything[-1].id + 1))
    # The metastore itself may end transactions of other tests meanwhile.
    found = [event for event in everything if event.database == name.database or txn.id in _transactions(event)]
    assert [event.type for event in found] == [
        "CREATE_DATABASE", "CREATE_TABLE", "OPEN_TXN", "ALLOC_WRITE_ID_EVENT", "COMMIT_TXN"
    ]  # fmt: skip
    _, created, opened, allocated, committed = found
    assert (created.database, created.table) == (name.database, name.table)
    assert (opened.database, opened.table, opened.message["fromTxnId"]) == ("", "", txn.id)
    assert (allocated.message["txnIdList"], allocated.message["writeIdList"]) == ([txn.id], [write_id])
    assert committed.message["txnid"] == txn.id
    assert log.read(start, 2) == everything[:2]
    assert all(event.id > everything[-1].id for event in log.read(everything[-1].id, 10))


def _transactions(event: Event) -> list[int]:
    """Return the transactions that an event names."""
    message = event.message
    return [*message.get("txnIdList", []), message.get("fromTxnId", 0), message.get("txnid", 0)]


def test_table_in_an_event_when_decoded_and_encoded_then_is_the_metastores(replica: Replica) -> None:
    metastore = replica.source.metastore
    log = EventLog(metastore)
    start = log.current_id()
    name = _table(replica, partitioned=True)
    [text] = [
        event.message["tableObjJson"]
        for event in log.read(start, 1000)
        if event.database == name.database and event.table
    ]
    table = thrift_json.decode(text, ttypes.Table)
    stored = load_acid_table(metastore, name).raw
    assert (table.tableName, table.sd.location, table.sd.cols) == (name.table, stored.sd.location, stored.sd.cols)
    assert table.partitionKeys == stored.partitionKeys
    assert thrift_json.decode(thrift_json.encode(table), ttypes.Table) == table
    assert thrift_json.decode(thrift_json.encode(stored), ttypes.Table) == stored


def test_commit_when_its_writes_were_announced_then_they_name_files_and_partitions(replica: Replica) -> None:
    metastore = replica.source.metastore
    log = EventLog(metastore)
    name = _table(replica, partitioned=True)
    table = load_acid_table(metastore, name)
    txn, write_id = transactions.begin_writing(metastore, name, "tests")
    days = ["a b", "50%", "c#d"]
    names = [table.partition_name([day]) for day in days]
    create_partitions(metastore, table, LocalLocation.of(table.location), [[day] for day in days])
    uris = [f"{table.location}/{partition}/delta_1_1/bucket_0" for partition in names]
    written = [WrittenPartition((day,), [(uri, "delta_1_1")]) for day, uri in zip(days, uris, strict=True)]
    notify_writes(metastore, txn, table, write_id, written)
    transactions.commit(metastore, txn)
    found = {write.partition: write for write in log.writes(txn.id, name.database)}
    assert {partition: [file.uri for file in write.files] for partition, write in found.items()} == {
        partition: [uri] for partition, uri in zip(names, uris, strict=True)
    }
    for write in found.values():
        assert (write.table, write.write_id, write.files[0].folder) == (name, write_id, "delta_1_1")
        assert thrift_json.decode(write.table_object, ttypes.Table).tableName == name.table
        assert thrift_json.decode(write.partition_object, ttypes.Partition).sd.location.endswith(write.partition)
    assert log.writes(txn.id, "another") == []


def test_values_when_encoded_then_every_type_is_decoded() -> None:
    statistics = ttypes.ColumnStatisticsData(
        doubleStats=ttypes.DoubleColumnStatsData(
            lowValue=-0.5, highValue=float("inf"), numNulls=2**40, numDVs=1, bitVectors=b"\x00\xff\x10"
        )
    )
    assert thrift_json.decode(thrift_json.encode(statistics), ttypes.ColumnStatisticsData) == statistics
    order = ttypes.SkewedInfo(skewedColNames=["é"], skewedColValues=[["a"], []], skewedColValueLocationMaps={})
    assert thrift_json.decode(thrift_json.encode(order), ttypes.SkewedInfo) == order


def test_text_when_it_is_no_struct_then_rejected() -> None:
    with pytest.raises(ValueError, match="not a Table"):
        thrift_json.decode('{"1": 5}', ttypes.Table)


def test_position_when_ahead_of_the_log_then_expired(source: Metastore) -> None:
    log = EventLog(source)
    with pytest.raises(EventsExpired, match="has already been read"):
        log.read(log.current_id() + 1000, 10)
    assert issubclass(EventsExpired, BootstrapRequired)


class _Cleaned(Metastore):
    """A metastore whose cleaner has removed the events in `removed`."""

    removed: range = range(0)

    def call(self, method: str, *arguments: object) -> Any:
        answer = super().call(method, *arguments)
        if method == "get_next_notification":
            answer.events = [event for event in answer.events if event.eventId not in self.removed]
        return answer


def test_events_when_the_cleaner_has_removed_some_then_expired(replica: Replica) -> None:
    log = EventLog(replica.source.metastore)
    start = log.current_id()
    _table(replica)
    with closing(_Cleaned(replica.source.uri)) as cleaned:
        assert len(EventLog(cleaned).read(start, 2)) == 2
        for removed in (range(start + 1, start + 2), range(start + 2, start + 3), range(start + 1, start + 3)):
            cleaned.removed = removed
            if removed.start == start + 2:  # only the end is missing, as in an answer with a limit
                assert [event.id for event in EventLog(cleaned).read(start, 2)] == [start + 1]
                continue
            with pytest.raises(EventsExpired, match="missing"):
                EventLog(cleaned).read(start, 2)


def test_fingerprint_when_stored_by_an_earlier_release_then_is_the_same() -> None:
    event = Event(7, 1_700_000_000, "ALTER_TABLE", "db1", "t", "{}")
    assert event.fingerprint == "ALTER_TABLE db1.t 2023-11-14T22:13:20Z 44136fa355b3678a"
    assert replace(event, database="", table="").fingerprint == "ALTER_TABLE 2023-11-14T22:13:20Z 44136fa355b3678a"


def test_position_when_its_event_is_another_one_than_before_then_replaced(replica: Replica) -> None:
    log = EventLog(replica.source.metastore)
    _table(replica)
    last = log.current_id()
    before, current = (log.fingerprint(last - ago) for ago in (1, 0))
    log.require_same(last, current)
    log.require_same(last, "")
    log.require_same(last + 1000, current)
    with pytest.raises(EventsReplaced) as raised:
        log.require_same(last, before)
    assert f"event {last} was [{before}], and is now [{current}]" in str(raised.value)
    assert "restored from a backup" in str(raised.value)
    with closing(_Cleaned(replica.source.uri)) as cleaned:
        cleaned.removed = range(last, last + 1)
        EventLog(cleaned).require_same(last, current)
        removed = EventLog(cleaned).fingerprint(last)
        EventLog(cleaned).require_same(last, removed)
    with pytest.raises(EventsReplaced, match=r"was \[no event\]"):
        log.require_same(last, removed)
