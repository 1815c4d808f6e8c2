"""What a connection reports: rejects, positions in Arrow data, counters, created partitions and time limits."""

from __future__ import annotations

import io
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pandas as pd
import pyarrow as pa
import pytest

from ingestd.formats.decoder import Reject
from ingestd.hive import transactions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.schema import Column, HiveType
from ingestd.streaming import (
    ArrowWriter,
    ConnectionError,  # noqa: A004
    HiveStreamingConnection,
    RecordWriter,
    SerializationError,
    StreamingException,
    StrictJsonWriter,
    v1,
)
from ingestd.streaming.configuration import Configuration
from tests.streaming.support import connect, rows, sees
from tests.support.patience import LIMIT
from tests.support.stack import Stack


def test_rejects_when_records_are_bad_then_have_index_and_the_whole_record(stack: Stack) -> None:
    stack.table("id int, note string")
    long = b'{"id": "%s"}' % (b"x" * 500)

    with connect(stack, record_writer=StrictJsonWriter()) as connection:
        connection.begin_transaction()
        connection.write(b'{"id": 0}')
        with pytest.raises(SerializationError) as caught:
            connection.write(long)
        assert [(reject.row, reject.index, reject.record) for reject in caught.value.rejects] == [(1, 0, long)]
        many = [b'{"id": 1}', b"[]", b'{"id": 2}', long]
        with pytest.raises(SerializationError) as caught:
            connection.write(many)
        assert [(reject.row, reject.index) for reject in caught.value.rejects] == [(3, 1), (5, 3)]
        assert caught.value.rejects[1].record is long
        with pytest.raises(SerializationError) as caught:
            connection.write(io.BytesIO(b'{"id": 3}\nbad\n{"id": 4}\n'))
        assert [(reject.row, reject.index, reject.record) for reject in caught.value.rejects] == [(7, 1, b"bad")]
        connection.commit_transaction()

    sees(stack, [0, 1, 2, 3, 4])


def test_rejects_of_a_stream_when_above_the_size_limit_then_the_last_have_only_their_head(
    stack: Stack,
) -> None:
    stack.table("id int, note string")
    bad = b'{"id": "%s"}' % (b"x" * (5 << 20))

    with connect(stack, record_writer=StrictJsonWriter()) as connection:
        connection.begin_transaction()
        with pytest.raises(SerializationError) as caught:
            connection.write(io.BytesIO(b"\n".join([bad] * 16)))
        kept = [reject.record is not None for reject in caught.value.rejects]
        assert kept == [True] * 12 + [False] * 4
        assert all(reject.head == bad[:80] for reject in caught.value.rejects)


@pytest.mark.parametrize(
    ("data", "kind", "where"),
    [
        (pa.table({"a": [*range(300_000), 2**40, 2**41]}), "int", "row 300000, column a"),
        (pa.table({"a": ["x"]}), "int", "Arrow data, column a"),
        (pa.table({"a": ["abc", None, "abcdef"]}), "varchar(5)", "row 2, column a"),
        (pa.table({"a": [[1], [2, 2**40]]}), "array<int>", r"row 1, column a\[\]"),
        (pd.DataFrame({"a": [1, 2, "x"]}), "int", "row 2, column a"),
        (
            pd.DataFrame({"a": [pd.Timestamp("2026-01-01").date(), pd.Timestamp("2026-01-01 05:00")]}),
            "date",
            "row 1, c",
        ),
    ],
)
def test_arrow_when_a_value_does_not_fit_then_row_and_column_are_named(data: object, kind: str, where: str) -> None:
    with pytest.raises(SerializationError, match=where):
        list(ArrowWriter().batches(data, [Column("a", HiveType.parse(kind))]))


def test_batch_when_larger_than_the_metastores_limit_then_opened_by_several_calls(
    stack: Stack,
) -> None:
    stack.table("id int, note string")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))

    opened = transactions.begin_batch(stack.metastore, table.name, stack.name, 1003)
    try:
        assert len({txn.id for txn, _ in opened}) == 1003
        write_ids = [write_id for _, write_id in opened]
        assert write_ids == list(range(write_ids[0], write_ids[0] + 1003))
    finally:
        transactions.abort(stack.metastore, opened[0][0].id)
        transactions.abort_all(stack.metastore, [txn.id for txn, _ in opened])
    assert transactions.open_transactions(stack.metastore, stack.name) == []


def test_stats_when_transactions_fail_then_they_are_counted_and_a_snapshot_does_not_change(stack: Stack) -> None:
    stack.table("id int, note string")

    with connect(stack) as connection:
        first = connection.stats
        connection.begin_transaction()
        connection.write(rows(0))
        assert connection.current_txn_id
        transactions.abort(stack.metastore, connection.current_txn_id)
        with pytest.raises(StreamingException):
            connection.commit_transaction()
        second = connection.stats
        with connection.transaction():
            connection.write(rows(10))
        assert (first.aborted_transactions, first.records_written) == (0, 0)
        assert (second.aborted_transactions, second.committed_transactions, second.records_written) == (1, 0, 10)
        last = connection.stats
        assert (last.aborted_transactions, last.committed_transactions, last.records_written) == (1, 1, 20)


def test_partition_when_clients_race_to_create_it_then_exactly_one_counts_it(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string")
    start = threading.Barrier(4)
    days = [f"day {number}" for number in range(4)]
    created: list[int] = []

    def race() -> None:
        with connect(stack) as connection:
            for day in days:
                start.wait(LIMIT)
                connection.create_partition_if_not_exists([day])
            created.append(connection.stats.created_partitions)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(created) == 4
    assert sum(created) == len(days)


def test_v1_connection_when_closed_then_no_batch_can_be_fetched(stack: Stack) -> None:
    stack.table("id int, note string")
    connection = v1.HiveEndPoint(stack.addresses.metastore, "default", stack.name).new_connection()
    connection.close()
    connection.close()
    with pytest.raises(StreamingException, match="the connection is closed"):
        connection.fetch_transaction_batch(1, StrictJsonWriter())


@pytest.mark.parametrize(
    "options",
    [
        {"metastore_timeout_seconds": 0.2},
        {"configuration": {"hive.metastore.client.socket.timeout": "200ms"}},
        {"metastore_timeout_seconds": 0.2, "configuration": {"metastore.client.socket.timeout": "2m"}},
    ],
    ids=["option", "configuration", "option overrides configuration"],
)
def test_metastore_when_it_does_not_answer_then_connection_error_after_the_time_limit(options: dict[str, Any]) -> None:
    def connect_to(server: socket.socket, **options: Any) -> None:
        uri = f"thrift://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError):
            HiveStreamingConnection(table="t", record_writer=ArrowWriter(), metastore_uri=uri, **options)

    with ThreadPoolExecutor(1) as threads, ExitStack() as ends:
        silent, other = (ends.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        usual = threads.submit(connect_to, other)
        accepted = ends.enter_context(other.accept()[0])
        connect_to(silent, **options)
        assert not usual.done()  # without the setting, it waits for 60 s
        other.close()
        accepted.close()


def test_metastore_timeout_when_configured_then_converted_to_seconds_and_otherwise_60() -> None:
    assert Configuration.of({}).timeout_seconds() == 60.0
    assert Configuration.of({"metastore.client.socket.timeout": "2m"}).timeout_seconds() == 120.0


def test_msgpack_writer_of_the_page_when_records_are_malformed_then_each_is_rejected(
    page_writer: RecordWriter,
) -> None:
    columns = [Column(name, HiveType.parse(kind)) for name, kind in (("id", "int"), ("note", "varchar(5)"))]
    decoder = page_writer.decoder(columns)
    good = [msgpack.packb({"id": number, "note": "x", "more": 1}) for number in range(1000)]
    assert [batch.num_rows for batch in decoder.decode(good).batches] == [1000]

    wrong = [
        msgpack.packb([1, 2]),
        msgpack.packb(5),
        b"\xc1",
        b"",
        good[0] + b"x",
        *map(msgpack.packb, [{"id": "x"}, {"id": 2**40}, {"id": 2**63}, {"id": 1.5}, {"id": True}, {"note": "abcdef"}]),
        *map(msgpack.packb, [{"note": {"a": 1}}, {"note": [1]}, {5: 1}, {"id": msgpack.ExtType(5, b"1")}]),
    ]
    mixed: list[bytes | None] = [record for pair in zip(good, wrong, strict=False) for record in pair]
    decoded = decoder.decode(mixed)

    assert [reject.row for reject in decoded.rejects] == list(range(1, len(mixed), 2))
    assert all(reject.reason for reject in decoded.rejects)
    found = [number for batch in decoded.batches for number in batch.column("id").to_pylist()]
    assert found == list(range(len(wrong)))
    assert decoded.rejects[0] == Reject.of(1, wrong[0], "", "not a msgpack map: list is not a map")


@pytest.fixture
def page_writer() -> RecordWriter:
    """Return the record writer shown in docs/streaming.md."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")
    code = text.split("## A custom record writer", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    page: dict[str, Any] = {}
    exec(code, page)  # trusted: part of this repository
    writer: RecordWriter = page["MsgpackWriter"]()
    return writer
