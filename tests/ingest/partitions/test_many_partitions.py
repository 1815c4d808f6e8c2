"""Partitions that the metastore cannot create, and transactions with more partitions than one call can name."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from hive_metastore import ttypes

from ingestd.hive.answers import MetastoreRefusal
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import ensure_partitions, read_partitions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.publish.deltas import create_partitions
from ingestd.storage.local import LocalLocation, local_path
from ingestd.streaming import SerializationError
from tests.streaming.support import connect
from tests.support.metastore import Home, metastore
from tests.support.stack import Row, Stack
from tests.support.tables import make_table, visible_ids


def test_partition_when_its_name_is_too_long_for_a_directory_then_the_error_names_the_record(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, note string", "p string, q int")
    # `p=` and 126 letters of two bytes are 254 bytes, and so are `p=` and 84 escaped characters of three bytes.
    fitting = ["a" * 253, "é" * 126, "/" * 84]
    stack.produce({"id": n, "note": "n", "p": p, "q": 1} for n, p in enumerate(fitting))
    stack.drain()
    assert stack.ids() == [0, 1, 2]
    assert {row[0] for row in stack.sql(f"SELECT p FROM {stack.name}")} == set(fitting)

    stack.produce([{"id": 3, "p": "b", "q": 1}, {"id": 4, "p": "é" * 127, "q": 1}])
    daemon = stack.drain(expect=65)
    stopped = daemon.events("failed")[0]
    assert stopped["reason"] == "RecordError"
    assert "longer than 255 bytes" in stopped["error"]
    assert f"{stack.name}[0]" in stopped["error"] or f"{stack.name}-0" in stopped["error"]
    assert "offset 4, column p" in stopped["error"]
    assert "RecordError" not in [event["reason"] for event in daemon.events("waiting")]

    one = pa.array([1, 1], pa.int32())
    with connect(stack) as connection:
        connection.begin_transaction()
        with pytest.raises(SerializationError, match="row 1, column p: makes the directory name"):
            connection.write(pa.table({"id": one, "note": ["n", "n"], "p": ["p", "/" * 85], "q": one}))
        connection.commit_transaction()
    assert stack.ids() == [0, 1, 2]


def test_partitions_when_too_many_for_a_transaction_then_the_error_names_the_setting(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, note string", "p int")
    stack.produce({"id": n, "p": n} for n in range(500))
    daemon = stack.drain(stack.config({"commit": {"partitions": 499}}), expect=65)
    stopped = daemon.events("failed")[0]
    assert stopped["reason"] == "TooManyPartitions"
    assert "more than 499 partitions" in stopped["error"]
    assert "raise commit.partitions" in stopped["error"]
    stack.drain(stack.config({"commit": {"partitions": 500}}))
    assert visible_ids(stack.metastore, TableName("default", stack.name)) == list(range(500))
    assert [row[0] for row in stack.sql(f"SELECT id FROM {stack.name} WHERE p IN (0, 499)")] == [0, 499]


def test_request_when_it_overflows_the_stack_of_the_metastore_then_refused_with_a_short_message(
    processes: None, tmp_path: Path
) -> None:
    # Only queries in Derby overflow it.
    with metastore(Home(tmp_path / "home"), "shallow", {}) as server, closing(Metastore(server.uri)) as client:
        name = TableName("default", "shallow")
        make_table(client, name, partitioned=True)
        names = [f"day={n}" for n in range(800)]
        assert read_partitions(client, load_acid_table(client, name), names) == []
        request = ttypes.GetPartitionsByNamesRequest(db_name=name.database, tbl_name=name.table, names=names)
        with pytest.raises(MetastoreRefusal, match="StackOverflowError") as caught:
            client.call("get_partitions_by_names_req", request)
    assert len(caught.value.what) < 600
    assert not caught.value.is_retriable


def test_partitions_when_one_has_no_value_for_a_column_then_refused(stack: Stack) -> None:
    stack.table("id int", "p string, q int")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    with pytest.raises(MetastoreRefusal, match="Invalid partition key"):
        ensure_partitions(stack.metastore, table, {"p=1": ["1"]}, lambda _names: None)


def test_partitions_when_some_of_them_exist_then_only_the_others_are_created(stack: Stack) -> None:
    stack.table("id int", "p string, q int")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    values = [[str(n), "1"] for n in range(4)]
    made = create_partitions(stack.metastore, table, LocalLocation.of(table.location), values[:3])
    again = create_partitions(stack.metastore, table, LocalLocation.of(table.location), values)
    assert [info.existed for info in made.values()] == [False] * 3
    assert {info.name: info.existed for info in again.values()} == {f"p={n}/q=1": n < 3 for n in range(4)}


def test_partition_when_its_directory_contains_a_file_then_the_metastore_does_not_count_it(stack: Stack) -> None:
    stack.table("id int", "p string")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    location = LocalLocation.of(table.location)
    (Path(location.make_directory("p=1")) / "left").write_bytes(b"1")
    create_partitions(stack.metastore, table, location, [["1"]])
    [created] = read_partitions(stack.metastore, table, ["p=1"])
    # For statistics that ingestd does not provide, the metastore lists the directory.
    assert [created.parameters[key] for key in ("numRows", "numFiles", "totalSize", "rawDataSize")] == ["0"] * 4


def _unlocked(stack: Stack, query: str) -> list[Row]:
    """Return the rows of a query without read locks, of which the metastore cannot grant thousands at once."""
    stack.sql("SET hive.txn.read.locks=false")
    try:
        return stack.sql(query)
    finally:
        stack.sql("SET hive.txn.read.locks=true")


@pytest.mark.soak
def test_partitions_when_a_backlog_has_three_thousand_then_one_transaction_writes_one_file_for_each(
    stack: Stack,
) -> None:
    stack.topic(2)
    stack.table("id int", "p string")
    # Enough for two tasks. Each of them reads rows of all partitions.
    partitions, records = 3_000, 60_000
    mapping = {"distribution": "auto", "commit": {"rows": records, "bytes": "512MiB", "interval": "10m"}}
    for run in range(2):  # the partitions are new in the first one and exist in the second
        numbers = range(run * records, (run + 1) * records)
        for part in range(2):
            values = ({"id": n, "p": f"number {n // 2 % partitions:05d}"} for n in numbers[part::2])
            stack.produce(values, partition=part)
        daemon = stack.drain(stack.config(mapping))
        [commit] = [event for event in daemon.events("committed") if event["rows"]]
        assert [commit[key] for key in ("rows", "files", "partitions")] == [records, partitions, partitions]
        location = local_path(load_acid_table(stack.metastore, TableName("default", stack.name)).location)
        files = Counter(path.parts[-3] for path in location.glob("p=*/delta_*/bucket_*"))
        assert (len(files), set(files.values())) == (partitions, {run + 1})
        stored = numbers.stop
        shown = _unlocked(
            stack, f"SELECT count(*), count(DISTINCT id), min(id), max(id), count(DISTINCT p) FROM {stack.name}"
        )
        assert shown == [(stored, stored, 0, stored - 1, partitions)]
        assert visible_ids(stack.metastore, TableName("default", stack.name)) == list(range(stored))
