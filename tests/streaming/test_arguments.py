"""Arguments of the wrong type or out of range raise a StreamingException that names the correct form."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ingestd.errors import ConfigError
from ingestd.formats.decoder import DecodeResult, Reject
from ingestd.hive.security import Kerberos, Plain, Security, Tls
from ingestd.schema import Column, HiveType
from ingestd.streaming import (
    ArrowWriter,
    HiveStreamingConnection,
    InvalidConnection,
    RecordWriter,
    StreamingException,
    StrictDelimitedInputWriter,
    StrictJsonWriter,
    StrictRegexWriter,
    v1,
)
from tests.streaming.support import connect, rows, sees
from tests.support.metastore import free_port
from tests.support.stack import Stack


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            {"record_writer": StrictJsonWriter},
            r"record_writer is the class StrictJsonWriter → pass an instance: StrictJsonWriter\(",
        ),
        ({"record_writer": "json"}, "record_writer must be a RecordWriter or an ArrowWriter, not str"),
        (
            {"static_partition_values": [2024, 1]},
            r'\[0\]: a partition value must be text \(str\), not int 2024 → pass "2024"',
        ),
        ({"static_partition_values": [None]}, 'not NoneType None → pass "" for NULL'),
        ({"static_partition_values": {"day": True}}, 'not bool True → pass "true"'),
        ({"static_partition_values": {5: "a"}}, "column name must be text"),
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
        ({"lock_seconds": float("nan")}, "finite number of seconds, not nan"),
        ({"batch_seconds": 0}, "batch_seconds must be a positive, finite number of seconds"),
        ({"metastore_timeout_seconds": -1}, "metastore_timeout_seconds must be a positive, finite number of seconds"),
        ({"streaming_optimizations": "false"}, "streaming_optimizations must be True or False, not str 'false'"),
        ({"table": b"t"}, "table must be text"),
        ({"database": 5}, "database must be text"),
        ({"agent_info": object()}, "agent_info must be text"),
        ({"metastore_uri": ""}, "metastore_uri is empty → omit it .* or pass thrift://localhost:9083"),
        ({"metastore_uri": None}, "no metastore address is configured"),
        ({"metastore_uri": 9083}, "metastore_uri must be text"),
        ({"metastore_uri": "localhost:9083"}, "is not a metastore address"),
        ({"security": "kerberos"}, "security must be of the type Security, not str"),
        ({"configuration": 5}, "must be a mapping or the path of a hive-site.xml, not int"),
        ({"configuration": {"hive.txn.timeout": 5}}, "configuration, hive.txn.timeout must be text"),
        ({"configuration": "a\0b"}, "cannot read the configuration"),
        ({"configuration": Path("/nowhere/hive-site.xml")}, "cannot read the configuration"),
        ({"configuration": {"hive.metastore.client.socket.timeout": "soon"}}, "'soon' is not a positive duration"),
        ({"tabel": "t"}, "there is no option 'tabel' → did you mean table"),
    ],
)
def test_options_when_invalid_then_invalid_connection_names_the_correct_form(
    options: dict[str, Any], what: str
) -> None:
    unused = f"thrift://localhost:{free_port()}"
    given: dict[str, Any] = {"table": "t", "record_writer": ArrowWriter(), "metastore_uri": unused} | options
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
        (lambda: v1.HiveEndPoint(None, "default", "t").new_connection(), "no metastore address is configured"),
        (lambda: v1.HiveEndPoint("thrift://h", "default", WRONG["number"]).new_connection(), "table must be text"),
        (lambda: v1.HiveEndPoint("thrift://h", "default", "t", "day").new_connection(), "must be a list of values"),
        (
            lambda: v1.HiveEndPoint("thrift://h", "d", "t").new_connection(WRONG["number"]),
            "create_partitions must be Tr",
        ),
    ],
)
def test_writers_and_end_points_when_given_wrong_types_then_streaming_exception(
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
def test_security_when_given_wrong_types_then_config_error_without_the_value(
    make: Callable[[], object], what: str
) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        make()
    assert "b','" not in str(caught.value)


def test_field_delimiter_when_equal_to_an_unused_delimiter_then_accepted() -> None:
    decoder = StrictDelimitedInputWriter(field_delimiter="\x02").decoder(INTS)
    assert decoder.decode([b"1\x022"]).batches[0].to_pydict() == {"a": [1], "b": [2]}


def test_field_reordering_when_the_case_differs_then_names_match() -> None:
    assert v1.get_field_reordering(["B", "a", ""], ["A", "b", "c"]) == [1, 0, -1]


class Text(str):
    """A subclass of str."""


class Record(bytes):
    """A subclass of bytes."""


def test_partition_values_when_passed_by_name_or_in_order_then_they_select_the_same_partition(stack: Stack) -> None:
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
                "partition_values has length 1, but the partition columns",
            ),
            (lambda: connection.create_partition_if_not_exists(text), "must be a list of values"),
            (lambda: connection.create_partition_if_not_exists({"country": "a"}), "name each partition column once"),
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
        with pytest.raises(InvalidConnection, match=r"columns of the table are .'continent', 'country'.* name each"):
            connect(stack, static_partition_values=wrong)
    names = [row[0] for row in stack.sql(f"SHOW PARTITIONS {stack.name}")]
    assert names == ["continent=Asia/country=India", "continent=Asia/country=Japan"]
    sees(stack, [0, 1, 2])


class Unread:
    """Looks like a stream, but its `read` does not accept a size."""

    def read(self) -> bytes:
        return b""


def test_records_when_of_any_bytes_type_then_accepted_and_other_types_rejected(stack: Stack) -> None:
    stack.table("id int")
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
        with pytest.raises(StreamingException, match=r"a stream must have a method read\(size\)"):
            connection.write(Unread())

    sees(stack, [1, 2, 3, 4, 5])


class Own(RecordWriter):
    """A custom writer that never calls `RecordWriter.__init__`."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def decoder(self, columns: Sequence[Column]) -> Any:
        return self._decoder


class Answers:
    """A decoder that returns what `answer` returns."""

    def __init__(self, answer: Callable[[Sequence[bytes | None]], Any]) -> None:
        self.decode = answer


ONE = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32()), "note": pa.array(["a"])})


def test_custom_decoder_when_it_breaks_its_contract_then_rejected_and_nothing_is_written(stack: Stack) -> None:
    stack.table("id int, note string")
    answers: list[tuple[Any, str]] = [
        (lambda _: None, "the decoder returned NoneType, not DecodeResult"),
        (lambda _: DecodeResult([], [], 0), "0 rows, 0 rejects and 0 skipped tombstones for 1 records"),
        (lambda _: DecodeResult([ONE.rename_columns(["id", "x"])], [], 0), "columns .'id', 'x'., not .'id', 'note'."),
        (lambda _: DecodeResult([ONE], [], 0, np.array([0, 0])), "1 rows, but the records of 2"),
        (lambda _: DecodeResult([ONE], [], 0, np.array([1])), "rows of 1 records, 0 rejects and 0 skipped"),
        (lambda _: DecodeResult([ONE], [Reject(0, "", "", b"")], 0, np.array([0])), "rows of 1 records, 1 rejects"),
    ]
    for answer, what in answers:
        with connect(stack, record_writer=Own(Answers(answer))) as connection:
            connection.begin_transaction()
            with pytest.raises(StreamingException, match=what):
                connection.write([b"x"])
    with pytest.raises(StreamingException, match=r"Own\.decoder returned int, which has no method decode"):
        connect(stack, record_writer=Own(5))
    own = Own(Answers(lambda _: DecodeResult([ONE], [], 0)))
    with connect(stack, record_writer=own) as connection, connection.transaction():
        connection.write(io.BytesIO(b"x"))
    two = Own(Answers(lambda _: DecodeResult([ONE, ONE], [], 0, np.array([0, 0]))))
    with connect(stack, record_writer=two) as connection, connection.transaction():
        connection.write([b"x"])

    sees(stack, [1, 1, 1])
