"""Arguments of wrong types and values: each is an error of the streaming API that says how to write it."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pandas as pd
import pyarrow as pa
import pytest

from ingestd.clock import Stopwatch
from ingestd.errors import ConfigError
from ingestd.hive import transactions
from ingestd.hive.security import Kerberos, Plain, Security, Tls
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.records.block import Decoded, Reject
from ingestd.schema import Column, HiveType
from ingestd.streaming import (
    ArrowWriter,
    ConnectionError,  # noqa: A004
    HiveStreamingConnection,
    InvalidConnection,
    RecordWriter,
    SerializationError,
    StreamingException,
    StrictDelimitedInputWriter,
    StrictJsonWriter,
    StrictRegexWriter,
    v1,
)
from ingestd.streaming.configuration import Configuration
from tests.streaming.support import connect, rows, sees
from tests.support.metastore import free_port
from tests.support.stack import Stack


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            {"record_writer": StrictJsonWriter},
            r"record_writer is the class StrictJsonWriter → write StrictJsonWriter\(",
        ),
        ({"record_writer": "json"}, "record_writer must be a RecordWriter or an ArrowWriter, not str"),
        (
            {"static_partition_values": [2024, 1]},
            r'\[0\]: a partition value is text \(str\), not int 2024 → write "2024"',
        ),
        ({"static_partition_values": [None]}, 'not NoneType None → write "" for NULL'),
        ({"static_partition_values": {"day": True}}, 'not bool True → write "true"'),
        ({"static_partition_values": {5: "a"}}, "a column's name must be text"),
        ({"static_partition_values": "Asia"}, "must be a list of values or a mapping by name, not str"),
        ({"static_partition_values": b"Asia"}, "must be a list of values or a mapping by name, not bytes"),
        ({"static_partition_values": {"Asia", "India"}}, "must be a list of values or a mapping by name, not set"),
        ({"static_partition_values": iter(["Asia"])}, "must be a list of values or a mapping by name"),
        ({"static_partition_values": ["\udcff"]}, "not valid Unicode"),
        ({"transaction_batch_size": "2"}, "transaction_batch_size must be an integer, not str '2'"),
        ({"transaction_batch_size": 2.0}, "must be an integer, not float"),
        ({"transaction_batch_size": True}, "must be an integer, not bool"),
        ({"transaction_batch_size": -1}, "must be 1 or more, not -1"),
        ({"auto_flush_check_interval_size": 0}, "must be 1 or more"),
        ({"write_id": "5", "table_object": object()}, "write_id must be an integer"),
        ({"write_id": 5, "table_object": object()}, "table_object must be the metastore's Thrift table, not object"),
        ({"statement_id": 4096}, "must be -1 to 4095"),
        ({"lock_seconds": "5"}, "lock_seconds must be a number of seconds, not str"),
        ({"lock_seconds": float("nan")}, "above 0, not nan"),
        ({"batch_seconds": 0}, "batch_seconds must be a finite number of seconds above 0"),
        ({"metastore_timeout_seconds": -1}, "metastore_timeout_seconds must be a finite number of seconds above 0"),
        ({"streaming_optimizations": "false"}, "streaming_optimizations must be True or False, not str 'false'"),
        ({"table": b"t"}, "table must be text"),
        ({"database": 5}, "database must be text"),
        ({"agent_info": object()}, "agent_info must be text"),
        ({"metastore_uri": ""}, "metastore_uri is empty → leave it out .* or say thrift://localhost:9083"),
        ({"metastore_uri": None}, "no metastore is named"),
        ({"metastore_uri": 9083}, "metastore_uri must be text"),
        ({"metastore_uri": "localhost:9083"}, "is not a metastore address"),
        ({"security": "kerberos"}, "security must be a Security, not str"),
        ({"configuration": 5}, "must be a mapping or the path of a hive-site.xml, not int"),
        ({"configuration": {"hive.txn.timeout": 5}}, "configuration, hive.txn.timeout must be text"),
        ({"configuration": "a\0b"}, "cannot read the configuration"),
        ({"configuration": Path("/nowhere/hive-site.xml")}, "cannot read the configuration"),
        ({"configuration": {"hive.metastore.client.socket.timeout": "soon"}}, "'soon' is not a time above 0"),
        ({"tabel": "t"}, "there is no option 'tabel' → did you mean table"),
    ],
)
def test_options_when_they_cannot_be_then_invalid_connection_says_how_to_write_them(
    options: dict[str, Any], what: str
) -> None:
    nobody = f"thrift://localhost:{free_port()}"
    given = {"table": "t", "record_writer": ArrowWriter(), "metastore_uri": nobody} | options
    with pytest.raises(InvalidConnection, match=what):
        HiveStreamingConnection(**given)


INTS = [Column(name, HiveType.parse("int")) for name in ("a", "b")]
LISTS = [Column("a", HiveType.parse("array<int>"))]
WRONG: dict[str, Any] = {
    "bytes": b",",
    "number": 5,
    "path": Path("x"),
}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: StrictDelimitedInputWriter(field_delimiter=WRONG["bytes"]), "field_delimiter must be text, not bytes"),
        (lambda: StrictDelimitedInputWriter(null_text=WRONG["number"]), "null_text must be text"),
        (lambda: StrictDelimitedInputWriter(escape=WRONG["number"]), "escape must be text"),
        (
            lambda: StrictDelimitedInputWriter(line_delimiter_pattern=WRONG["bytes"]),
            "line_delimiter_pattern must be te",
        ),
        (
            lambda: StrictDelimitedInputWriter(collection_delimiter=";", map_key_delimiter="59"),
            "collection_delimiter and map_key_delimiter are both ';'",
        ),
        (lambda: StrictDelimitedInputWriter(field_delimiter=",", map_key_delimiter=","), "are both ','"),
        (
            lambda: StrictDelimitedInputWriter(field_delimiter=",", escape=","),
            "escape and field_delimiter are both ','",
        ),
        (lambda: StrictDelimitedInputWriter(field_delimiter="\x02").decoder(LISTS), "needs 2 different delimiters"),
        (lambda: StrictRegexWriter(WRONG["bytes"]), "regex must be text"),
        (lambda: StrictRegexWriter("(a)", ignore_case=WRONG["number"]), "ignore_case must be True or False"),
        (lambda: v1.DelimitedInputWriter(WRONG["path"]), "field_names must be a list of names"),
        (lambda: v1.DelimitedInputWriter("id"), "field_names must be a list of names, not str"),
        (lambda: v1.DelimitedInputWriter(["id", WRONG["number"]]), r"field_names\[1\] must be text"),
        (lambda: v1.get_field_reordering("ab", ["a", "b"]), "field_names must be a list of names"),
        (lambda: v1.HiveEndPoint("", "default", "t").new_connection(), "metastore_uri is empty"),
        (lambda: v1.HiveEndPoint(None, "default", "t").new_connection(), "no metastore is named"),
        (lambda: v1.HiveEndPoint("thrift://h", "default", WRONG["number"]).new_connection(), "table must be text"),
        (lambda: v1.HiveEndPoint("thrift://h", "default", "t", "day").new_connection(), "must be a list of values"),
        (
            lambda: v1.HiveEndPoint("thrift://h", "d", "t").new_connection(WRONG["number"]),
            "create_partitions must be Tr",
        ),
    ],
)
def test_writers_and_end_points_when_given_wrong_types_then_streaming_errors_say_so(
    make: Callable[[], object], what: str
) -> None:
    with pytest.raises(StreamingException, match=what):
        make()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Kerberos(WRONG["number"]), "principal: must be str, not int"),
        (lambda: Kerberos("hive/_HOST@A.B", user=WRONG["number"]), "user: must be str"),
        (lambda: Kerberos("hive/_HOST@A.B", user="a", keytab=WRONG["bytes"]), "keytab: must be str or Path, not bytes"),
        (lambda: Plain("me", WRONG["bytes"]), "password: must be str, not bytes"),
        (lambda: Tls(WRONG["number"]), "ca_file: must be str or Path"),
        (lambda: Security(WRONG["path"]), "login: must be Kerberos or Plain"),
        (lambda: Security.from_hive_conf(WRONG["path"]), "conf: must be Mapping"),
    ],
)
def test_security_when_given_wrong_types_then_config_error_says_so_and_tells_no_value(
    make: Callable[[], object], what: str
) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        make()
    assert "b','" not in str(caught.value)


def test_delimiters_when_a_flat_table_never_needs_the_others_then_their_defaults_may_be_the_same() -> None:
    decoder = StrictDelimitedInputWriter(field_delimiter="\x02").decoder(INTS)
    assert decoder.decode([b"1\x022"]).batches[0].to_pydict() == {"a": [1], "b": [2]}


def test_field_reordering_when_the_case_differs_then_it_does_not_count() -> None:
    assert v1.get_field_reordering(["B", "a", ""], ["A", "b", "c"]) == [1, 0, -1]


class Text(str):
    """A str of one's own."""


class Record(bytes):
    """Bytes of one's own."""


def test_partition_values_when_given_by_name_or_in_order_then_the_same_partition(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="continent string, country string")
    values: list[Any] = [
        {"country": "India", "CONTINENT": "Asia"},
        ["Asia", "India"],
        ("Asia", Text("India")),
    ]
    for turn, given in enumerate(values):
        with connect(stack, static_partition_values=given) as connection, connection.transaction():
            assert connection.static_partition_values == ("Asia", "India")
            connection.write(rows(turn, 1))
    with connect(stack, static_partition_values={}) as connection:
        assert connection.is_dynamic_partitioning
        connection.begin_transaction()
        by_name = {"country": "Japan", "continent": "Asia"}
        assert connection.create_partition_if_not_exists(by_name).name == "continent=Asia/country=Japan"
        text: Any = "ab"
        number: Any = 5
        calls: list[tuple[Callable[[], object], str]] = [
            (
                lambda: connection.create_partition_if_not_exists(["a"]),
                "1 partition values, but the table is partitioned",
            ),
            (lambda: connection.create_partition_if_not_exists(text), "must be a list of values"),
            (lambda: connection.create_partition_if_not_exists({"country": "a"}), "each partition column once"),
            (lambda: connection.commit_transaction(text), "partitions must be a list, not str"),
            (lambda: connection.commit_transaction([text]), "must be a list of values"),
            (lambda: connection.commit_transaction([number]), "must be a list of values"),
            (lambda: connection.commit_transaction(key=number, value="1"), "key must be text"),
            (lambda: connection.commit_transaction(key="_meta.x", value=number), "value must be text"),
            (lambda: connection.delta_file_location(["a", "b"], text, 1, 1), "bucket must be an integer"),
            (lambda: connection.delta_file_location(["a", "b"], 4096, 1, 1), "bucket must be 0 to 4095"),
            (lambda: connection.delta_file_location(["a", "b"], 0, 2, 1), "max_write_id must be 2 or more"),
            (lambda: connection.add_write_notification_events(text), "txn_id must be an integer"),
        ]
        for call, what in calls:
            with pytest.raises(StreamingException, match=what):
                call()
        connection.commit_transaction([by_name])

    for wrong in ({"continent": "Asia"}, {"continent": "a", "Continent": "b"}, {"continent": "a", "land": "b"}):
        with pytest.raises(InvalidConnection, match=r"partitioned by .'continent', 'country'.* each partition column"):
            connect(stack, static_partition_values=wrong)
    names = [row[0] for row in stack.sql(f"SHOW PARTITIONS {stack.name}")]
    assert names == ["continent=Asia/country=India", "continent=Asia/country=Japan"]
    sees(stack, [0, 1, 2])


class Unread:
    """Not a stream: its `read` takes no size."""

    def read(self) -> bytes:
        return b""


def test_records_when_they_are_bytes_of_any_kind_then_taken_and_nothing_else_is(stack: Stack) -> None:
    stack.table("id int, note string")
    released = memoryview(b"9")
    released.release()

    with connect(stack, record_writer=StrictDelimitedInputWriter(field_delimiter=",")) as connection:
        connection.begin_transaction()
        connection.write([Record(b"1"), bytearray(b"2"), memoryview(b"3"), b"4"])
        connection.write(Record(b"5"))
        wrong: list[Any] = [
            [b"1", released],
            released,
            {"id": 1},
            {b"1": b"2"},
            io.StringIO("1"),
            pa.table({"id": [1]}),
        ]
        for data in wrong:
            with pytest.raises(StreamingException, match="write"):
                connection.write(data)
        connection.commit_transaction()
        connection.begin_transaction()
        with pytest.raises(StreamingException, match=r"a stream has read\(size\)"):
            connection.write(Unread())

    sees(stack, [1, 2, 3, 4, 5])


class Own(RecordWriter):
    """A writer of one's own that never calls `RecordWriter.__init__`, with the decoder that it is given."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def decoder(self, columns: Sequence[Column]) -> Any:
        return self._decoder


class Answers:
    """A decoder that answers what it was told to."""

    def __init__(self, answer: Callable[[Sequence[bytes | None]], Any]) -> None:
        self.decode = answer


ONE = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32()), "note": pa.array(["a"])})


def test_decoder_of_ones_own_when_it_breaks_its_contract_then_told_and_nothing_is_written(stack: Stack) -> None:
    stack.table("id int, note string")
    answers: list[tuple[Any, str]] = [
        (lambda _: None, "the decoder returned NoneType, not Decoded"),
        (lambda _: Decoded([], [], 0), "0 rows, 0 rejects and 0 skipped tombstones of 1 records"),
        (lambda _: Decoded([ONE.rename_columns(["id", "x"])], [], 0), "columns .'id', 'x'., not .'id', 'note'."),
    ]
    for answer, what in answers:
        with connect(stack, record_writer=Own(Answers(answer))) as connection:
            connection.begin_transaction()
            with pytest.raises(StreamingException, match=what):
                connection.write([b"x"])
    with pytest.raises(StreamingException, match=r"Own\.decoder returned int, which has no method decode"):
        connect(stack, record_writer=Own(5))
    one = Own(Answers(lambda _: Decoded([ONE], [], 0)))
    with connect(stack, record_writer=one) as connection, connection.transaction():
        connection.write(io.BytesIO(b"x"))

    sees(stack, [1])


def test_rejects_when_records_are_bad_then_have_index_and_the_whole_record(stack: Stack) -> None:
    stack.table("id int, note string")
    long = b'{"id": "%s"}' % (b"x" * 500)

    with connect(stack, record_writer=StrictJsonWriter()) as connection:
        connection.begin_transaction()
        connection.write(b'{"id": 0}')
        with pytest.raises(SerializationError) as caught:
            connection.write(long)
        assert [(one.row, one.index, one.record) for one in caught.value.rejects] == [(1, 0, long)]
        many = [b'{"id": 1}', b"[]", b'{"id": 2}', long]
        with pytest.raises(SerializationError) as caught:
            connection.write(many)
        assert [(one.row, one.index) for one in caught.value.rejects] == [(3, 1), (5, 3)]
        assert caught.value.rejects[1].record is long
        with pytest.raises(SerializationError) as caught:
            connection.write(io.BytesIO(b'{"id": 3}\nbad\n{"id": 4}\n'))
        assert [(one.row, one.index, one.record) for one in caught.value.rejects] == [(7, 1, b"bad")]
        connection.commit_transaction()

    sees(stack, [0, 1, 2, 3, 4])


def test_rejects_of_a_stream_when_there_are_too_many_bytes_then_the_last_are_named_by_their_beginning(
    stack: Stack,
) -> None:
    stack.table("id int, note string")
    bad = b'{"id": "%s"}' % (b"x" * (5 << 20))

    with connect(stack, record_writer=StrictJsonWriter()) as connection:
        connection.begin_transaction()
        with pytest.raises(SerializationError) as caught:
            connection.write(io.BytesIO(b"\n".join([bad] * 16)))
        kept = [one.record is not None for one in caught.value.rejects]
        assert kept == [True] * 12 + [False] * 4
        assert all(one.head == bad[:80] for one in caught.value.rejects)


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


def test_batch_when_it_is_larger_than_the_metastore_opens_at_once_then_all_its_transactions_are_there(
    stack: Stack,
) -> None:
    stack.table("id int, note string")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))

    opened = transactions.begin_batch(stack.metastore, table.name, stack.name, 1003)
    try:
        assert len({txn.id for txn in opened}) == 1003
        write_ids = [txn.write_id for txn in opened]
        assert write_ids == list(range(write_ids[0], write_ids[0] + 1003))
    finally:
        transactions.abort(stack.metastore, opened[0].id)
        transactions.abort_all(stack.metastore, [txn.id for txn in opened])
    assert transactions.open_transactions(stack.metastore, stack.name) == []


def test_stats_when_transactions_fail_then_counted_and_what_was_asked_for_does_not_change(stack: Stack) -> None:
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
        with pytest.raises(AttributeError):
            last.records_written = 5  # type: ignore[misc]


def test_partition_when_clients_race_to_make_it_then_just_one_has_created_it(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string")
    start = threading.Barrier(4)
    days = [f"day {number}" for number in range(4)]
    created: list[int] = []

    def race() -> None:
        with connect(stack) as connection:
            for day in days:
                start.wait(60)
                connection.create_partition_if_not_exists([day])
            created.append(connection.stats.created_partitions)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(created) == 4
    assert sum(created) == len(days)


def test_v1_connection_when_it_is_closed_then_no_batch_can_be_fetched(stack: Stack) -> None:
    stack.table("id int, note string")
    connection = v1.HiveEndPoint(stack.addresses.metastore, "default", stack.name).new_connection()
    connection.close()
    connection.close()
    with pytest.raises(StreamingException, match="the connection is closed"):
        connection.fetch_transaction_batch(1, StrictJsonWriter())


@pytest.mark.parametrize(
    "options",
    [
        {"metastore_timeout_seconds": 1},
        {"configuration": {"hive.metastore.client.socket.timeout": "1000ms"}},
    ],
    ids=["option", "configuration"],
)
def test_metastore_when_it_is_silent_then_waited_for_no_longer_than_said(options: dict[str, Any]) -> None:
    watch = Stopwatch()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"thrift://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionError):
            HiveStreamingConnection(table="t", record_writer=ArrowWriter(), metastore_uri=uri, **options)
    watch.lap("refused")
    assert watch.steps["refused"] < 30_000  # 60 s and more without the setting


def test_timeout_when_the_option_and_the_configuration_say_one_then_the_option_counts(stack: Stack) -> None:
    stack.table("id int, note string")
    settings = {"metastore.client.socket.timeout": "2m"}
    assert Configuration.of({}).timeout_seconds() == 60.0
    for options, wanted in (({}, 120.0), ({"metastore_timeout_seconds": 7}, 7)):
        with connect(stack, configuration=settings, **options) as connection:
            assert connection._metastore.timeout_seconds == wanted


def test_msgpack_writer_of_the_page_when_records_have_wrong_shapes_then_each_is_refused(
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
    mixed: list[bytes | None] = [one for pair in zip(good, wrong, strict=False) for one in pair]
    decoded = decoder.decode(mixed)

    assert [reject.row for reject in decoded.rejects] == list(range(1, len(mixed), 2))
    assert all(reject.reason for reject in decoded.rejects)
    found = [number for batch in decoded.batches for number in batch.column("id").to_pylist()]
    assert found == list(range(len(wrong)))
    assert decoded.rejects[0] == Reject.of(1, wrong[0], "", "not a msgpack map: list is not a map")


@pytest.fixture
def page_writer() -> RecordWriter:
    """The record writer that docs/streaming.md shows."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")
    code = text.split("## A record writer of your own", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    page: dict[str, Any] = {}
    exec(code, page)  # the page is ours
    writer: RecordWriter = page["MsgpackWriter"]()
    return writer
