"""Every writer stores the values of every column type unchanged."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ingestd.streaming import (
    ArrowWriter,
    SerializationError,
    StrictDelimitedInputWriter,
    StrictJsonWriter,
    StrictRegexWriter,
)
from tests.streaming.support import connect
from tests.support.stack import Stack

COLUMNS = (
    "id int, a tinyint, b smallint, c bigint, d float, e double, f decimal(10,2), g boolean, h string, i varchar(5), "
    "j char(3), k date, l timestamp, m array<int>, n map<string,int>, o struct<x:int,y:string>, "
    "p binary"
)
READ = (
    "SELECT id, a, b, c, d, e, cast(f AS string), g, h, i, j, cast(k AS string), cast(l AS string), size(m), m[1], "
    "n['q'], o.x, o.y, base64(p) FROM "
)
ROW = (1, -128, 32767, -(2**63), 1.5, 2.5e-3, "12.30", True, "ü", "abc", "x  ", "1500-01-02", "0001-01-01 00:00:00")
EXPECTED = (*ROW, 2, 7, 9, 5, "why", "AAH/")
NULLS = (2, *[None] * 12, -1, *[None] * 5)
TEXT = [
    (
        b"1|-128|32767|-9223372036854775808|1.5|0.0025|12.30|true|\xc3\xbc|abc|x|1500-01-02|0001-01-01 00:00:00|"
        b"6,7|p:8,q:9|5,why|AAH/"
    ),
    b"2|" + b"|".join([rb"\N"] * 16),
]
JSON = [
    b"""{"id":1,"a":-128,"b":32767,"c":-9223372036854775808,"d":1.5,"e":0.0025,"f":12.30,"g":true,"h":"\xc3\xbc",
    "i":"abc","j":"x","k":"1500-01-02","l":"0001-01-01 00:00:00","m":[6,7],"n":{"p":8,"q":9},"o":{"X":5,"y":"why"},
    "p":"AAH/"}""",
    b'{"id":2}',
]
ARROW = pa.table(
    {
        "id": [1, 2],
        "a": [-128, None],
        "b": [32767, None],
        "c": [-(2**63), None],
        "d": [1.5, None],
        "e": [0.0025, None],
        "f": [Decimal("12.3"), None],
        "g": [True, None],
        "h": ["ü", None],
        "i": ["abc", None],
        "j": ["x", None],
        "k": [date(1500, 1, 2), None],
        "l": pa.array([datetime(1, 1, 1), None], pa.timestamp("us")),
        "m": [[6, 7], None],
        "n": pa.array([[("p", 8), ("q", 9)], None], pa.map_(pa.string(), pa.int32())),
        "o": pa.array([{"x": 5, "y": "why"}, None], pa.struct([("x", pa.int32()), ("y", pa.string())])),
        "p": [b"\x00\x01\xff", None],
    }
)


@pytest.mark.parametrize(
    ("writer", "data"),
    [
        (
            StrictDelimitedInputWriter(field_delimiter="|", collection_delimiter=",", map_key_delimiter=":"),
            TEXT,
        ),
        (StrictJsonWriter(), JSON),
        (ArrowWriter(), ARROW),
    ],
    ids=["delimited", "json", "arrow"],
)
def test_every_type_when_written_then_hive_reads_it_unchanged(stack: Stack, writer: Any, data: Any) -> None:
    stack.table(COLUMNS)

    with connect(stack, record_writer=writer) as connection, connection.transaction():
        connection.write(data)

    assert sorted(stack.sql(READ + stack.name)) == [EXPECTED, NULLS]


def test_regex_when_it_matches_then_groups_are_columns_otherwise_rejected(stack: Stack) -> None:
    stack.table("id int, word string", partitioned="day string")
    writer = StrictRegexWriter(r"(\d+) (?:\[(\w+)\])? on (.*)")

    with connect(stack, record_writer=writer) as connection:
        connection.begin_transaction()
        connection.write(b"1 [one] on monday")
        with pytest.raises(SerializationError):
            connection.write(b"one")
        connection.write([b"2  on tuesday", b"3 [three] on monday"])
        connection.commit_transaction()

    found = stack.sql(f"SELECT id, word, day FROM {stack.name}")
    assert sorted(found) == [(1, "one", "monday"), (2, None, "tuesday"), (3, "three", "monday")]
