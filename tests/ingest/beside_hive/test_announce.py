"""A metastore with an event log is notified of the files of each transaction, and any other metastore is not."""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hive_metastore import ttypes

from ingestd.acid.layout import Delta, parse_directory
from ingestd.hive.answers import UnknownCall
from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.notifications import keeps_event_log
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import begin_writing, commit, register_partitions
from ingestd.publish.deltas import DeltaFiles, announce
from ingestd.sandbox import Addresses
from ingestd.storage.local import local_path
from ingestd.streaming import ArrowWriter, HiveStreamingConnection, InvalidTransactionState
from tests.support.replica import Replica
from tests.support.stack import Stack

_ORC = "org.apache.hadoop.hive.ql.io.orc."
# Characters that Hive escapes in directory names, and one that separates fields in its list of file names.
DAYS = ("2026-11-01 10:00", "50%", "a#b")
Files = dict[int, set[str]]


@pytest.fixture(scope="module")
def with_events(addresses: Addresses, replica: Replica) -> Addresses:
    """Return the addresses of the shared Kafka and of a metastore with an event log."""
    return replace(addresses, metastore=replica.source.uri, hiveserver2=None)


@pytest.fixture
def logged(with_events: Addresses, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    with Stack(with_events, request.node.name, tmp_path) as made:
        yield made


class _Recording(Metastore):
    """Records the names of the called methods. Methods in `unknown` fail as if the metastore did not have them."""

    def __init__(self, uri: str, *unknown: str) -> None:
        super().__init__(uri)
        self.unknown = unknown
        self.methods: list[str] = []

    def call(self, method: str, *arguments: object) -> Any:
        self.methods.append(method)
        if method in self.unknown:
            raise UnknownCall(f"{method}: Invalid method name: '{method}'")
        return super().call(method, *arguments)


def _make_table(stack: Stack, *, partitioned: bool = True) -> None:
    """Create the table with the request that HiveServer2 would send, because there is no HiveServer2."""
    fields = [ttypes.FieldSchema(name=name, type=kind) for name, kind in (("id", "bigint"), ("day", "string"))]
    storage = ttypes.StorageDescriptor(
        cols=fields[:1] if partitioned else fields,
        inputFormat=f"{_ORC}OrcInputFormat",
        outputFormat=f"{_ORC}OrcOutputFormat",
        serdeInfo=ttypes.SerDeInfo(serializationLib=f"{_ORC}OrcSerde"),
    )
    table = ttypes.Table(
        dbName="default",
        tableName=stack.name,
        owner=stack.metastore.user,
        sd=storage,
        partitionKeys=fields[1:] if partitioned else [],
        parameters={"transactional": "true"},
        tableType="MANAGED_TABLE",
    )
    request = ttypes.CreateTableRequest(table=table, processorCapabilities=CAPABILITIES, processorIdentifier="ingestd")
    stack.metastore.call("create_table_req", request)


def _write(stack: Stack, size: int, *days: tuple[str, ...]) -> None:
    """Write one transaction for each element of `days`, with one row per day in it."""
    connection = HiveStreamingConnection(
        table=stack.name,
        metastore_uri=stack.addresses.metastore,
        record_writer=ArrowWriter(),
        transaction_batch_size=size,
    )
    try:
        for chosen in days:
            connection.begin_transaction()
            connection.write(pa.table({"id": range(len(chosen)), "day": list(chosen)}))
            connection.commit_transaction()
    finally:
        connection.close()


def _committed(stack: Stack) -> list[int]:
    """Return the ids of the transactions whose commits are in the event log, in the order of the log."""
    request = ttypes.NotificationEventRequest(lastEvent=0)
    events = stack.metastore.call("get_next_notification", request).events
    return [_message(event)["txnid"] for event in events if event.eventType == "COMMIT_TXN"]


def _message(event: Any) -> Any:
    assert event.messageFormat == "gzip(json-2.0)"
    return json.loads(gzip.decompress(base64.b64decode(event.message)))


def _announced(stack: Stack) -> Files:
    """Return the paths that the metastore lists for committed transactions on the table, by write id."""
    found: Files = defaultdict(set)
    for txn in _committed(stack):
        request = ttypes.GetAllWriteEventInfoRequest(txnId=txn, dbName="default", tableName=stack.name)
        for info in stack.metastore.call("get_all_write_event_info", request):
            paths = [_path(entry, info.partition) for entry in info.files.split("]") if entry]
            assert len(paths) == len(set(paths))
            found[info.writeId].update(paths)
    return found


def _path(entry: str, partition: str) -> str:
    """Parse `URI#CHECKSUM#CHANGE_MANAGER_ROOT#SUBDIRECTORY` (ReplChangeManager.encodeFileUri). Return the path."""
    uri, checksum, root, delta = entry.split("#")
    assert (checksum, root) == ("", "")
    path = local_path(uri)
    assert path.parent.name == delta
    assert str(path.parent.parent).endswith(partition)
    return str(path)


def _on_disk(stack: Stack) -> Files:
    """Return the paths of the files in the table's deltas, by the first write id of the delta."""
    found: Files = defaultdict(set)
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    for path in local_path(table.location).rglob("*"):
        if path.is_file():
            delta = parse_directory(path.parent.name)
            assert isinstance(delta, Delta), path
            found[delta.min_write_id].add(str(path))
    return found


def test_topic_when_drained_into_partitions_then_each_commit_names_its_files(logged: Stack) -> None:
    _make_table(logged)
    logged.topic(2)
    logged.produce([{"id": i, "day": DAYS[i % len(DAYS)]} for i in range(600)])
    daemon = logged.drain(logged.config({"commit": {"rows": 200, "interval": "1s"}}))
    files = _on_disk(logged)
    assert len(files) >= 3
    assert len({Path(path).parents[1] for path in set().union(*files.values())}) == len(DAYS)
    assert _announced(logged) == files
    assert all("announced" in event["ms"] for event in daemon.events("committed")), daemon.events("committed")


def test_unpartitioned_table_when_streamed_to_then_each_commit_names_its_files(logged: Stack) -> None:
    _make_table(logged, partitioned=False)
    _write(logged, 1, ("a",), ("b", "c"))
    files = _on_disk(logged)
    assert len(files) == 2
    assert _announced(logged) == files


def test_transactions_when_they_have_separate_files_then_each_commit_names_its_files(logged: Stack) -> None:
    _make_table(logged)
    _write(logged, 1, DAYS, DAYS[:1])
    files = _on_disk(logged)
    assert sorted(map(len, files.values())) == [2, 2 * len(DAYS)]
    assert _announced(logged) == files


def test_transactions_when_they_share_files_then_each_commit_names_the_files_it_wrote_to(logged: Stack) -> None:
    _make_table(logged)
    _write(logged, 3, DAYS[:1], DAYS[:2], DAYS[2:])
    ((first, files),) = _on_disk(logged).items()
    one, two, three = ({path for path in files if f"/day={name}/" in path} for name in _directories(logged))
    assert files == one | two | three
    assert _announced(logged) == {first: one, first + 1: one | two, first + 2: three}


def test_joined_transaction_when_its_events_are_added_then_the_owners_commit_names_its_files(logged: Stack) -> None:
    _make_table(logged)
    table = load_acid_table(logged.metastore, TableName("default", logged.name))
    owner, write_id = begin_writing(logged.metastore, table.name, "owner")
    with HiveStreamingConnection(
        write_id=write_id,
        table_object=table.raw,
        metastore_uri=logged.addresses.metastore,
        record_writer=ArrowWriter(),
    ) as joined:
        joined.begin_transaction()
        joined.write(pa.table({"id": range(3), "day": list(DAYS)}))
        with pytest.raises(InvalidTransactionState):
            joined.add_write_notification_events(owner.id)
        joined.commit_transaction()
        joined.add_write_notification_events(owner.id)
    register_partitions(logged.metastore, owner, table.name, write_id, [table.partition_name([day]) for day in DAYS])
    commit(logged.metastore, owner)
    assert _announced(logged) == _on_disk(logged)


def _directories(stack: Stack) -> list[str]:
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    return [table.partition_name([day]).removeprefix("day=") for day in DAYS]


def test_metastore_when_it_has_no_batch_call_then_single_calls_are_used_and_repeated_calls_add_nothing(
    logged: Stack,
) -> None:
    _make_table(logged)
    _write(logged, 1, DAYS)
    with closing(_Recording(logged.addresses.metastore, "add_write_notification_log_in_batch")) as metastore:
        table = load_acid_table(metastore, TableName("default", logged.name))
        txn, write_id = begin_writing(metastore, table.name, "test")
        placed = [
            DeltaFiles((day,), f"{table.location}/{table.partition_name([day])}", "delta_x", ("f",)) for day in DAYS
        ]
        for _ in range(2):
            announce(metastore, txn, table, write_id, placed)
        commit(metastore, txn)
        assert metastore.methods.count("add_write_notification_log") == 2 * len(DAYS)
    assert _announced(logged)[write_id] == {str(local_path(f"{p.location}/delta_x/f")) for p in placed}


def test_metastore_when_it_has_neither_call_then_is_not_notified(logged: Stack) -> None:
    _make_table(logged, partitioned=False)
    single, batch = "add_write_notification_log", "add_write_notification_log_in_batch"
    with closing(_Recording(logged.addresses.metastore, single, batch)) as metastore:
        table = load_acid_table(metastore, TableName("default", logged.name))
        txn, write_id = begin_writing(metastore, table.name, "test")
        announce(metastore, txn, table, write_id, [DeltaFiles((), table.location, "delta_x", ("f",))])
        commit(metastore, txn)
    assert _announced(logged) == {}


def test_metastore_when_it_has_no_event_log_then_queried_once_and_not_notified(stack: Stack) -> None:
    stack.table("id bigint")
    with closing(_Recording(stack.addresses.metastore)) as metastore:
        table = load_acid_table(metastore, TableName("default", stack.name))
        txn, write_id = begin_writing(metastore, table.name, "test")
        metastore.methods.clear()
        for _ in range(3):
            announce(metastore, txn, table, write_id, [DeltaFiles((), table.location, "delta_x", ("f",))])
        assert not keeps_event_log(metastore)
        assert metastore.methods == ["get_config_value"] * 2
        commit(metastore, txn)
