"""The example of the source documents: two threads write a bucketed, partitioned table, which HiveServer2 reads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ingestd.streaming import HiveStreamingConnection, StrictDelimitedInputWriter
from tests.support.stack import Stack

ALERTS = (
    "(id int, msg string) PARTITIONED BY (continent string, country string) CLUSTERED BY (id) INTO 5 BUCKETS "
    "STORED AS ORC TBLPROPERTIES ('transactional'='true', 'no_auto_compaction'='true')"
)


def static(uri: str, database: str) -> None:
    """Write with static partition values, as the first thread does."""
    writer = StrictDelimitedInputWriter(field_delimiter=",")
    with HiveStreamingConnection(
        database=database,
        table="alerts",
        static_partition_values=["Asia", "India"],
        agent_info="example-agent-1",
        record_writer=writer,
        metastore_uri=uri,
    ) as connection:
        with connection.transaction():
            connection.write(b"1,val1")
            connection.write(b"2,val2")
        with connection.transaction():
            connection.write(b"3,val3")
            connection.write(b"4,val4")


def dynamic(uri: str, database: str) -> None:
    """Write with dynamic partitioning and a connection from the builder, as the second thread does."""
    connection = (
        HiveStreamingConnection.new_builder()
        .with_database(database)
        .with_table("alerts")
        .with_agent_info("example-agent-1")
        .with_record_writer(StrictDelimitedInputWriter(field_delimiter=","))
        .with_hive_conf({"hive.metastore.uris": uri})
        .connect()
    )
    connection.begin_transaction()
    connection.write(b"11,val11,Asia,China")
    connection.write(b"12,val12,Asia,India")
    connection.commit_transaction()
    connection.begin_transaction()
    connection.write(b"13,val13,Europe,Germany")
    connection.write(b"14,val14,Asia,India")
    connection.commit_transaction()
    connection.close()


def test_example_of_the_documents_when_two_threads_write_then_hive_reads_every_row(stack: Stack) -> None:
    database = f"testing_{stack.name}"
    stack.sql(f"CREATE DATABASE {database}")
    stack.sql(f"CREATE TABLE {database}.alerts {ALERTS}")

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(program, stack.addresses.metastore, database) for program in (static, dynamic)]:
            done.result()

    rows = stack.sql(f"SELECT id, msg, continent, country FROM {database}.alerts")
    assert sorted(rows) == [
        (1, "val1", "Asia", "India"),
        (2, "val2", "Asia", "India"),
        (3, "val3", "Asia", "India"),
        (4, "val4", "Asia", "India"),
        (11, "val11", "Asia", "China"),
        (12, "val12", "Asia", "India"),
        (13, "val13", "Europe", "Germany"),
        (14, "val14", "Asia", "India"),
    ]
    assert stack.sql(f"SELECT count(*) FROM {database}.alerts") == [(8,)]
    for bucket in range(1, 6):
        sampled = stack.sql(f"SELECT id FROM {database}.alerts TABLESAMPLE(BUCKET {bucket} OUT OF 5 ON id)")
        files = stack.sql(f"SELECT id FROM {database}.alerts WHERE INPUT__FILE__NAME LIKE '%bucket_{bucket - 1:05d}'")
        assert sorted(sampled) == sorted(files)
