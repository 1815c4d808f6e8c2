"""The rows, counters and errors of one connection."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from ingestd.errors import IngestdError
from ingestd.hive import transactions
from ingestd.hive.tables import TableName, as_acid_table, load_acid_table, read_table
from ingestd.publish.deltas import create_partitions
from ingestd.storage.local import LocalLocation, local_path
from ingestd.storage.storages import Storages
from ingestd.streaming import (
    ArrowWriter,
    ConnectionError,  # noqa: A004
    ConnectionOptions,
    HiveStreamingConnection,
    InvalidConnection,
    InvalidTable,
    SerializationError,
    StreamingException,
    StrictDelimitedInputWriter,
    StrictJsonWriter,
    TransactionError,
    TxnState,
)
from ingestd.streaming.session import check_storage
from ingestd.streaming.v1 import HiveEndPoint, InvalidPartition
from tests.streaming.support import connect, rows, sees
from tests.support.stack import Stack


def name_of(stack: Stack) -> TableName:
    return TableName("default", stack.name)


def write_and_fail(connection: HiveStreamingConnection) -> None:
    with connection.transaction():
        connection.write(rows(10))
        _ = 1 // (connection.stats.committed_transactions - 1)


def test_transactions_when_committed_or_aborted_then_only_committed_rows_are_visible(stack: Stack) -> None:
    stack.table("id int, note string")

    with connect(stack) as connection:
        with connection.transaction():
            connection.write(rows(0))
        with pytest.raises(ZeroDivisionError):
            write_and_fail(connection)
        with connection.transaction():
            connection.write(rows(20))
        stats = connection.stats

    sees(stack, [*range(10), *range(20, 30)])
    assert (stats.committed_transactions, stats.aborted_transactions, stats.records_written) == (2, 1, 30)
    assert stats.metastore_calls > 10
    assert stats.records_size > 100


def test_partitions_when_dynamic_then_null_and_empty_go_to_the_default_partition(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string, hour int")
    writer = StrictDelimitedInputWriter(field_delimiter=",")

    with connect(stack, record_writer=writer) as connection:
        assert connection.is_dynamic_partitioning
        with connection.transaction():
            connection.write([b"1,a,2026-01-01,5", b"2,b,,", b"3,c,\\N,7", b"4,d,a/b=c,5"])
        assert sorted(connection.partitions) == [
            "day=2026-01-01/hour=5",
            "day=__HIVE_DEFAULT_PARTITION__/hour=7",
            "day=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__",
            "day=a%2Fb%3Dc/hour=5",
        ]
        assert connection.stats.created_partitions == 4
        assert connection.stats.total_partitions == 4

    found = stack.sql(f"SELECT id, note, day, hour FROM {stack.name}")
    assert sorted(found) == [
        (1, "a", "2026-01-01", 5),
        (2, "b", "__HIVE_DEFAULT_PARTITION__", None),  # as Hive shows the default partition of a string column
        (3, "c", "__HIVE_DEFAULT_PARTITION__", 7),
        (4, "d", "a/b=c", 5),
    ]


def test_json_when_the_record_contains_partition_columns_then_they_are_matched_by_name(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string, hour int")

    with connect(stack, record_writer=StrictJsonWriter()) as connection, connection.transaction():
        connection.write([b'{"hour": 5, "ID": 1, "Day": "a/b"}', b'{"id": 2, "note": "x"}'])
        connection.write(b'{"day": "", "hour": null, "id": 3}')

    found = stack.sql(f"SELECT id, note, day, hour FROM {stack.name}")
    missing = "__HIVE_DEFAULT_PARTITION__"
    assert sorted(found) == [(1, None, "a/b", 5), (2, "x", missing, None), (3, None, missing, None)]


def test_stream_when_line_ends_are_mixed_then_one_record_per_line(stack: Stack) -> None:
    stack.table("id int, note string")
    writer = StrictDelimitedInputWriter(field_delimiter=",")

    with connect(stack, record_writer=writer) as connection, connection.transaction():
        connection.write(io.BytesIO(b"1,a\r\n2,b\n3,c\r4,d"))
        connection.write(io.BytesIO(b"5,e\n"))
    with (
        connect(
            stack, record_writer=StrictDelimitedInputWriter(field_delimiter=",", line_delimiter_pattern=";+")
        ) as connection,
        connection.transaction(),
    ):
        connection.write(io.BytesIO(b"6,f;;;7,g;"))

    sees(stack, [1, 2, 3, 4, 5, 6, 7])


def test_bad_json_when_written_one_by_one_then_rejected_immediately_and_the_rest_commits(stack: Stack) -> None:
    stack.table("id int, note string")

    with connect(stack, record_writer=StrictJsonWriter()) as connection:
        connection.begin_transaction()
        connection.write(b'{"id": 1, "note": "good"}')
        with pytest.raises(SerializationError, match=r"record 1.*column id.*is not a number") as caught:
            connection.write(b'{"id": "x"}')
        assert caught.value.rejects[0].head == b'{"id": "x"}'
        with pytest.raises(SerializationError, match="not JSON"):
            connection.write(b"{nonsense")
        connection.write(b'{"ID": 4, "other": [1]}')
        with pytest.raises(SerializationError) as caught:
            connection.write([b'{"id": 5}', b"[]", b'{"id": 6}', b'{"id": 1e99}'])
        assert [reject.row for reject in caught.value.rejects] == [5, 7]
        connection.commit_transaction()

    assert sorted(stack.sql(f"SELECT id, note FROM {stack.name}")) == [(1, "good"), (4, None), (5, None), (6, None)]


def test_arrow_when_a_column_does_not_fit_then_the_call_is_rejected_and_the_error_names_it(stack: Stack) -> None:
    stack.table("id int, note varchar(5)")

    with connect(stack) as connection:
        connection.begin_transaction()
        with pytest.raises(SerializationError, match="column other"):
            connection.write(pa.table({"id": [1], "other": [2]}))
        with pytest.raises(SerializationError, match="column id int"):
            connection.write(pa.table({"id": [1, 2**40]}))
        with pytest.raises(SerializationError, match="longer than varchar"):
            connection.write(pa.table({"id": [1], "note": ["123456"]}))
        with pytest.raises(SerializationError, match="cannot write list"):
            connection.write([1, 2])
        connection.write(pa.record_batch({"NOTE": ["12345"], "Id": pa.array([7], pa.int64())}))
        connection.commit_transaction()

    assert stack.sql(f"SELECT id, note FROM {stack.name}") == [(7, "12345")]


def test_tables_and_arguments_when_wrong_then_a_specific_error_is_raised(stack: Stack) -> None:
    stack.sql(f"CREATE EXTERNAL TABLE {stack.name}_plain (id int) STORED AS ORC")
    stack.table("id int", partitioned="day string")

    with pytest.raises(InvalidTable, match="does not exist"):
        connect(stack, table=f"{stack.name}_missing")
    with pytest.raises(InvalidTable, match="not a transactional table"):
        connect(stack, table=f"{stack.name}_plain")
    with pytest.raises(ConnectionError, match="static_partition_values has length 2"):
        connect(stack, static_partition_values=["a", "b"])
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1"):
        connect(stack, metastore_uri="thrift://127.0.0.1:1")
    with pytest.raises(StreamingException, match="must be given together"):
        connect(stack, write_id=7)
    with pytest.raises(StreamingException, match="1 or more"):
        connect(stack, transaction_batch_size=0)
    with pytest.raises(StreamingException, match="hive-site"):
        connect(stack, configuration=stack.directory / "hive-site.xml")


def test_partition_values_when_not_in_normal_form_then_normalized_or_rejected(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    stack.table("id int, note string", partitioned="p int")
    with pytest.raises(InvalidConnection, match="column p: 'abc' is not a value of type int"):
        connect(stack, static_partition_values=["abc"])
    with pytest.raises(InvalidPartition, match="'abc' is not a value of type int"):
        HiveEndPoint(stack.addresses.metastore, "default", stack.name, ["abc"]).new_connection()
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    create_partitions(stack.metastore, table, LocalLocation.of(table.location), [["08"]])

    with caplog.at_level(logging.WARNING):
        connection = connect(stack, static_partition_values=["007"])
    assert "1 partitions are not in Hive's normal form: p=08" in caplog.text
    with connection:
        assert connection.static_partition_values == ("7",)
        assert connection.create_partition_if_not_exists(["+9"]).name == "p=9"
        with pytest.raises(InvalidConnection, match="'9x' is not a value"):
            connection.create_partition_if_not_exists(["9x"])
        with pytest.raises(InvalidConnection, match="partition_values has length 2"):
            connection.create_partition_if_not_exists(["9", "9"])
        with connection.transaction():
            connection.write(rows(0))
        connection.begin_transaction()
        with pytest.raises(InvalidConnection, match="'x' is not a value"):
            connection.commit_transaction([["x"]])
        connection.commit_transaction([["010"]])

    sees(stack, list(range(10)), "WHERE p = 7")
    assert [row[0] for row in stack.sql(f"SHOW PARTITIONS {stack.name}")] == ["p=08", "p=10", "p=7", "p=9"]


def test_configuration_when_read_from_hive_site_then_forced_settings_are_logged(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    stack.table("id int, note string")
    site = stack.directory / "hive-site.xml"
    site.write_text(
        "<configuration><property><name>hive.metastore.uris</name>"
        f"<value>{stack.addresses.metastore}</value></property>"
        "<property><name>hive.support.concurrency</name><value>false</value></property></configuration>",
        encoding="utf-8",
    )

    with caplog.at_level(logging.WARNING):
        connection = HiveStreamingConnection(table=stack.name, record_writer=ArrowWriter(), configuration=site)
    with connection, connection.transaction():
        connection.write(rows(0))

    assert connection.metastore_uri == stack.addresses.metastore
    assert connection.configuration["hive.support.concurrency"] == "true"
    assert "hive.support.concurrency is set to true instead of" in caplog.text
    sees(stack, list(range(10)))


def test_memory_when_short_then_buffered_rows_are_flushed(stack: Stack) -> None:
    stack.table("id int, note string")
    short = {"hive.heap.memory.monitor.usage.threshold": "0"}
    flushes = []
    for number, settings in enumerate([short, {}, short | {"hive.streaming.auto.flush.enabled": "false"}]):
        with connect(stack, configuration=settings, auto_flush_check_interval_size=1000) as connection:
            with connection.transaction():
                for turn in range(3):
                    connection.write(rows(number * 3000 + turn * 1000, 1000))
            flushes.append(connection.stats.auto_flushes)

    assert flushes == [3, 0, 0]
    sees(stack, list(range(9000)))


def test_write_directories_when_committed_then_list_deltas_and_files(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string")

    with connect(stack) as connection, connection.transaction():
        connection.write(rows(0, day=["a"] * 5 + ["b"] * 5))
    with connect(stack, transaction_batch_size=2) as shared, shared.transaction():
        shared.write(rows(10, day=["a"] * 10))
        assert shared.write_directories == ()

    for found, days in ((connection.write_directories, ["a", "b"]), (shared.write_directories, ["a"])):
        assert [delta.partition for delta in found] == [(day,) for day in days]
        for delta in found:
            assert all((local_path(delta.location) / delta.delta / file).is_file() for file in delta.files)


@pytest.mark.parametrize(
    ("location", "what"),
    [
        ("s3a://bucket/there", "read while they are being written, which s3a: does not support"),
        ("hdfs://namenode:8020/there", "read while they are being written, which hdfs: does not support"),
    ],
)
def test_batch_when_files_cannot_be_appended_to_then_rejected(stack: Stack, location: str, what: str) -> None:
    stack.table("id int, note string")
    raw = read_table(stack.metastore, name_of(stack))
    raw.sd.location = location
    options = ConnectionOptions(record_writer=ArrowWriter(), table=stack.name, transaction_batch_size=2)

    with pytest.raises(InvalidConnection, match=what) as refused:
        check_storage(as_acid_table(raw, frozenset()), Storages(), options)
    assert refused.value.hint == "use transaction_batch_size=1"
    check_storage(as_acid_table(raw, frozenset()), Storages(), replace(options, transaction_batch_size=1))
    check_storage(load_acid_table(stack.metastore, name_of(stack)), Storages(), options)


def test_connection_when_called_by_another_thread_then_rejected(stack: Stack) -> None:
    stack.table("id int, note string")
    caught: list[BaseException] = []

    with connect(stack) as connection:
        connection.begin_transaction()

        def intrude() -> None:
            calls: list[Callable[[], object]] = [
                lambda: connection.write(rows(0)),
                connection.commit_transaction,
                connection.close,
            ]
            for call in calls:
                with pytest.raises(StreamingException) as refused:
                    call()
                caught.append(refused.value)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        connection.abort_transaction()

    assert len(caught) == 3
    assert all("belongs to one thread" in str(error) for error in caught)
    with pytest.raises(StreamingException, match="closed"):
        connection.begin_transaction()


def test_transaction_when_aborted_by_the_metastore_then_the_next_call_fails_and_nothing_is_visible(
    stack: Stack,
) -> None:
    stack.table("id int, note string")

    with connect(stack) as connection:
        connection.begin_transaction()
        connection.write(rows(0))
        assert connection.current_txn_id
        transactions.abort(stack.metastore, connection.current_txn_id)
        with pytest.raises(TransactionError) as caught:
            connection.commit_transaction()
        assert caught.value.is_retriable
        assert isinstance(caught.value, IngestdError)
        assert connection.current_transaction_state is TxnState.ABORTED
        with connection.transaction():
            connection.write(rows(10))

    sees(stack, list(range(10, 20)))
