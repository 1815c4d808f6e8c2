"""The V1 API: end points, transaction batches, fields in any order."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ingestd.formats.decoder import DecodeResult, Reject
from ingestd.schema import Column, HiveType
from ingestd.streaming import RecordWriter, StreamingException, StrictDelimitedInputWriter, v1
from tests.streaming.support import sees
from tests.support.patience import LIMIT
from tests.support.stack import Stack

COLUMNS = ["col1", "col2", "col3", "col4", "col5"]


@pytest.mark.parametrize(
    ("fields", "mapping"),
    [
        ([None, "col2", None, "col4", None], [-1, 1, -1, 3, -1]),
        (["", "col2", "", "COL4", ""], [-1, 1, -1, 3, -1]),
        (["col5", "col4", "col3", "col2", "col1"], [4, 3, 2, 1, 0]),
        (["col3", "col4"], [2, 3]),
    ],
)
def test_field_reordering_when_fields_are_dropped_moved_or_fewer_then_as_in_java(
    fields: Sequence[str | None], mapping: list[int]
) -> None:
    assert v1.get_field_reordering(fields, COLUMNS) == mapping


@pytest.mark.parametrize(
    "fields", [["xyz", "abc", "col3", "col4", "as"], ["col5", "col4", "col3", "col2", "col1", "col1"]]
)
def test_field_reordering_when_names_are_unknown_or_too_many_then_invalid_column(fields: list[str]) -> None:
    with pytest.raises(v1.InvalidColumn):
        v1.get_field_reordering(fields, COLUMNS)


NOTES = [Column("id", HiveType.parse("int")), Column("note", HiveType.parse("string"))]
DEEP = [Column("deep", HiveType.parse("array<" * 9 + "int" + ">" * 9))]


@pytest.mark.parametrize(
    ("writer", "good", "bad", "column"),
    [
        (v1.DelimitedInputWriter(["note", "id"], ","), b"one,1", b"\xff,1", "note"),
        (v1.DelimitedInputWriter(["note", "id"], ",", bad_values="reject"), b"one,\\N", b"one,x", "id"),
        (StrictDelimitedInputWriter(field_delimiter=","), b"1,one", b"1,\xff", "note"),
        (v1.StrictJsonWriter(), b'{"id": 1}', b'{"id": "x"}', "id"),
        (v1.StrictRegexWriter("(.*) (.*)"), b"1 one", b"one", ""),
    ],
)
def test_checker_of_a_built_in_writer_then_is_that_of_its_decoder_and_agrees_with_decode(
    writer: RecordWriter, good: bytes, bad: bytes, column: str
) -> None:
    decoder = writer.decoder(NOTES)
    (reject,) = decoder.decode([bad]).rejects

    check = writer.checker(NOTES)

    assert inspect.ismethod(check)
    assert (type(check.__self__), check.__name__) == (type(decoder), "check")
    assert check(good) is None
    assert check(bad) == reject
    assert reject.column == column


class Refusing:
    """A custom decoder without `check`."""

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        return DecodeResult([], [Reject.of(row, value, "", "no") for row, value in enumerate(values) if value], 0)


class Quick(Refusing):
    """A custom decoder with `check`."""

    def check(self, value: bytes) -> Reject | None:
        return Reject.of(0, value, "", "at a glance")


@pytest.mark.parametrize(("decoder", "reason"), [(Refusing(), "no"), (Quick(), "at a glance")])
def test_checker_when_the_decoder_has_no_check_then_decodes_one_record(decoder: Refusing, reason: str) -> None:
    class Writer(RecordWriter):
        def decoder(self, columns: Sequence[Column]) -> Refusing:
            return decoder

    check = Writer().checker(NOTES)

    assert check(b"") == (None if reason == "no" else Reject.of(0, b"", "", reason))
    assert check(b"bad") == Reject.of(0, b"bad", "", reason)


WRONG: dict[str, Any] = {"bad_values": "drop"}
UNMATCHED: dict[str, Any] = {"unmatched": "drop"}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (
            lambda: StrictDelimitedInputWriter(field_delimiter=";;"),
            "field_delimiter ';;' is not a single ASCII character",
        ),
        (lambda: StrictDelimitedInputWriter(**WRONG), "bad_values cannot be 'drop'"),
        (
            lambda: StrictDelimitedInputWriter(line_delimiter_pattern="("),
            r"'\(' is not a valid Python regular expression",
        ),
        (lambda: StrictDelimitedInputWriter(line_delimiter_pattern="(a)"), "has groups"),
        (
            lambda: StrictDelimitedInputWriter(line_delimiter_pattern=f"a{{{2**70}}}"),
            "not a valid Python regular expression",
        ),
        (lambda: StrictDelimitedInputWriter().decoder(DEEP), "array<array<"),
        (lambda: v1.DelimitedInputWriter(["id"], ";;"), "field_delimiter ';;' is not a single ASCII character"),
        (lambda: v1.DelimitedInputWriter(["id"], escape="ab"), "escape 'ab' is not a single ASCII character"),
        (lambda: v1.DelimitedInputWriter(["deep"]).decoder(DEEP), "array<array<"),
        (lambda: v1.StrictRegexWriter("(").decoder(NOTES), r"'\(' must be a regular expression of RE2"),
        (lambda: v1.StrictRegexWriter("(a)").checker(NOTES), "groups is 1, but the number of columns is 2"),
        (lambda: v1.StrictRegexWriter("(a)(b)", **UNMATCHED).decoder(NOTES), "unmatched cannot be 'drop'"),
    ],
)
def test_writers_when_given_unusable_options_then_streaming_exception(make: Callable[[], Any], what: str) -> None:
    with pytest.raises(StreamingException, match=what):
        make()


def test_batch_when_fields_are_in_another_order_then_rows_are_correct(stack: Stack) -> None:
    stack.table("id int, note string, other double", partitioned="day string")
    end_point = v1.HiveEndPoint(stack.addresses.metastore, "default", stack.name, ("today",))

    with end_point.new_connection(create_partitions=True, agent_info="v1 test") as connection:
        writer = v1.DelimitedInputWriter(["note", None, "id"], ",")
        batch = connection.fetch_transaction_batch(3, writer)
        assert batch.remaining_transactions() == 3
        batch.begin_next_transaction()
        batch.write(b"one,dropped,1")
        batch.write([b"two,,2", b"three,x,3"])
        assert batch.current_txn_id()
        assert batch.current_transaction_state() is v1.TxnState.OPEN
        batch.commit()
        batch.begin_next_transaction()
        batch.write(b"gone,,4")
        batch.abort()
        batch.begin_next_transaction()
        batch.write(b"five,,5")
        batch.commit()
        assert batch.remaining_transactions() == 0
        with pytest.raises(v1.InvalidTransactionState):
            batch.begin_next_transaction()
        batch.close()
        assert batch.is_closed()
        batch.abort()

    found = stack.sql(f"SELECT id, note, other, day FROM {stack.name}")
    assert sorted(found) == [
        (1, "one", None, "today"),
        (2, "two", None, "today"),
        (3, "three", None, "today"),
        (5, "five", None, "today"),
    ]
    sees(stack, [1, 2, 3, 5])


def test_end_points_when_they_do_not_fit_then_the_documented_errors_are_raised(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string")
    uri = stack.addresses.metastore

    with pytest.raises(v1.InvalidTable):
        v1.HiveEndPoint(uri, "default", f"{stack.name}_missing").new_connection()
    with pytest.raises(v1.InvalidPartition, match="partition columns of the table are"):
        v1.HiveEndPoint(uri, "default", stack.name).new_connection()
    with pytest.raises(v1.InvalidPartition, match="no partition day=never"):
        v1.HiveEndPoint(uri, "default", stack.name, ("never",)).new_connection(create_partitions=False)
    with pytest.raises(v1.ConnectionError):
        v1.HiveEndPoint("thrift://127.0.0.1:1", "default", stack.name, ("x",)).new_connection()
    connection = v1.HiveEndPoint(uri, "default", stack.name, ("x",)).new_connection(create_partitions=True)
    with pytest.raises(v1.InvalidColumn):
        connection.fetch_transaction_batch(2, v1.DelimitedInputWriter(["nonsense"], ","))


def test_partition_when_many_clients_race_to_create_it_then_none_fails(stack: Stack) -> None:
    stack.table("id int, note string", partitioned="day string")
    start = threading.Barrier(6)
    failures: list[BaseException] = []

    def race(number: int) -> None:
        end_point = v1.HiveEndPoint(stack.addresses.metastore, "default", stack.name, ("same day",))
        try:
            start.wait(LIMIT)
            with end_point.new_connection(create_partitions=True) as connection:
                batch = connection.fetch_transaction_batch(1, v1.DelimitedInputWriter(["id"], ","))
                batch.begin_next_transaction()
                batch.write(str(number).encode())
                batch.commit()
                batch.close()
        except BaseException as error:  # noqa: BLE001 - the main thread reports it
            failures.append(error)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    assert [row[0] for row in stack.sql(f"SHOW PARTITIONS {stack.name}")] == ["day=same day"]
    sees(stack, list(range(6)))
