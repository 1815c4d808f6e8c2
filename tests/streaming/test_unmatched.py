"""Records none of whose fields is a column: SerializationError, or with an option the row that Java writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ingestd.streaming import (
    RecordWriter,
    SerializationError,
    StreamingException,
    StrictDelimitedInputWriter,
    StrictJsonWriter,
    v1,
)
from tests.streaming.support import connect
from tests.support.decoding import columns_of
from tests.support.stack import Stack

COLUMNS = columns_of(id="int", note="string", other="double")
UNKNOWN = b'{"before":null,"after":{"id":2},"op":"c"}'
INVALID: dict[str, Any] = {"unmatched": "drop"}


@pytest.mark.parametrize(
    ("strict", "as_java", "record", "usual"),
    [
        (StrictJsonWriter(), StrictJsonWriter(unmatched="null"), UNKNOWN, [b'{"id":1,"x":2}', b"{}"]),
        (
            StrictDelimitedInputWriter(field_delimiter=","),
            StrictDelimitedInputWriter(field_delimiter=",", unmatched="null"),
            b"1;a",
            [b"1,a", b""],
        ),
        (
            v1.DelimitedInputWriter(["note", None, "id"], ","),
            v1.DelimitedInputWriter(["note", None, "id"], ",", unmatched="null"),
            b"a;b;1",
            [b"a,b,1", b"a,"],
        ),
    ],
    ids=["json", "delimited", "v1"],
)
def test_writer_when_no_field_of_a_record_is_a_column_then_it_is_a_reject_by_default(
    strict: RecordWriter, as_java: RecordWriter, record: bytes, usual: list[bytes]
) -> None:
    decoded = strict.decoder(COLUMNS).decode([*usual, record])
    assert [reject.row for reject in decoded.rejects] == [2]
    check = strict.checker(COLUMNS)
    found = check(record)
    assert found is not None
    assert found.reason == decoded.rejects[0].reason
    assert [check(value) for value in usual] == [None, None]
    assert as_java.decoder(COLUMNS).decode([*usual, record]).rows == 3
    assert as_java.checker(COLUMNS)(record) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: StrictJsonWriter(**INVALID),
        lambda: StrictDelimitedInputWriter(**INVALID),
        lambda: v1.DelimitedInputWriter(["id"], **INVALID),
    ],
)
def test_writer_when_the_option_has_another_value_then_streaming_exception(make: Callable[[], RecordWriter]) -> None:
    with pytest.raises(StreamingException, match="unmatched cannot be 'drop'"):
        make()


def test_write_when_no_field_of_a_record_is_a_column_then_the_other_records_are_kept(stack: Stack) -> None:
    stack.table("id int, note string")
    with connect(stack, record_writer=StrictJsonWriter()) as connection, connection.transaction():
        with pytest.raises(SerializationError, match=r"set format\.envelope: debezium"):
            connection.write(UNKNOWN)
        with pytest.raises(SerializationError):
            connection.write([b'{"id":1}', UNKNOWN])
    with connect(stack, record_writer=StrictJsonWriter(unmatched="null")) as connection, connection.transaction():
        connection.write([UNKNOWN])
    assert sorted(stack.sql(f"SELECT id, note FROM {stack.name}"), key=str) == [(1, None), (None, None)]
