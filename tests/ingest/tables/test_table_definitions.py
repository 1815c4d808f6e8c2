"""NOT NULL constraints and ORC properties of a table are applied, and unsupported properties are logged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyorc
import pytest
from pyarrow import orc

from ingestd.hive.tables import TableName, load_acid_table
from ingestd.storage.local import local_path
from ingestd.streaming import SerializationError, StrictDelimitedInputWriter
from tests.streaming.support import connect
from tests.support.compaction import request_compaction
from tests.support.stack import Stack, eventually

PROPERTIES = {
    "orc.compress": "LZ4",
    "orc.stripe.size": "524288",
    "orc.row.index.stride": "1000",
    "orc.compress.size": "1048576",
    "orc.bloom.filter.columns": "id, Word,v,day,big,note",
    "orc.bloom.filter.fpp": "0.02",
    "orc.compression.strategy": "COMPRESSION",
}
COLUMNS = "s struct<x:int,y:string>, id int, word string, v varchar(20), day date, big bigint, note char(5)"
ROWS = 20_000


def _record(n: int) -> dict[str, Any]:
    day = f"20{n % 90:02d}-01-{n % 28 + 1:02d}"
    # Neighbouring values are far apart, so that only bloom filters show which index entries contain a value.
    apart = n * 7919 % ROWS
    return {
        "s": {"x": n, "y": "y"}, "id": apart, "word": f"word {apart}", "v": f"v{apart}", "day": day,
        "big": apart * 10**12, "note": f"n{n % 100}",
    }  # fmt: skip


def _files(stack: Stack, name: str) -> list[Path]:
    root = local_path(load_acid_table(stack.metastore, TableName("default", name)).location)
    return sorted(root.glob("delta_*/bucket_*"))


def _sees_rows(stack: Stack, name: str) -> None:
    for value in (0, 12_345):
        literals = (f"id = {value}", f"word = 'word {value}'", f"v = 'v{value}'", f"big = {value * 10**12}L")
        for where in (*literals, f"id IN ({value}, -1)", f"word IN ('word {value}', 'none')"):
            assert stack.sql(f"SELECT id FROM {name} WHERE {where}") == [(value,)], where
    for day in ("2003-01-04", "2089-01-01"):
        expected = sum(_record(n)["day"] == day for n in range(ROWS))
        assert stack.count(f"WHERE day = '{day}' AND word <> ''", name) == expected
    assert stack.sql(f"SELECT id FROM {name} WHERE word = 'absent'") == []
    assert stack.count("WHERE note = 'n7' AND word <> ''", name) == ROWS // 100


def test_properties_when_set_then_applied_to_files_that_hive_reads_and_compacts(stack: Stack) -> None:
    flat, nested = f"{stack.name}_f", f"{stack.name}_n"  # tables with and without nested types use different writers
    stack.topic(2)
    stack.table(COLUMNS.partition(", ")[2], "", f"default.{flat}", **PROPERTIES)
    stack.table(COLUMNS, "", f"default.{nested}", **PROPERTIES, **{"orc.zone": "x"})
    stack.produce(_record(n) for n in range(ROWS))
    mappings = [{"name": name[-40:], "table": f"default.{name}"} for name in (flat, nested)]
    daemon = stack.drain(stack.config(*mappings))
    told = {event["table"]: event["warnings"] for event in daemon.events("table_properties")}
    assert "orc.zone is not supported and was ignored" in told[f"default.{nested}"]
    (text,) = told[f"default.{flat}"]
    assert "orc.bloom.filter.columns was ignored: note has type char(5)" in text
    for name in (flat, nested):
        files = _files(stack, name)
        assert files
        for path in files:
            made = orc.ORCFile(path)
            assert (made.compression, made.row_index_stride, made.compression_size) == ("LZ4", 1000, 131072)
            with path.open("rb") as file:
                filters = set(pyorc.Reader(file).read_stripe(0).bloom_filter_columns)
            first = 7 if name == flat else 10  # after the ACID columns, `row`, and the struct
            assert filters == set(range(first, first + 5))
        _sees_rows(stack, name)
        stack.sql(f"DELETE FROM {name} WHERE id = 5")
    for wait in [request_compaction(stack, f"default.{name}", "major") for name in (flat, nested)]:
        wait()
    for name in (flat, nested):
        assert stack.count("", name) == ROWS - 1
        assert stack.sql(f"SELECT id FROM {name} WHERE word = 'word 7'") == [(7,)]


def test_not_null_when_a_record_has_null_then_rejected_until_the_constraint_is_dropped(stack: Stack) -> None:
    stack.topic(1)
    stack.sql(
        f"CREATE TABLE {stack.name} (id int NOT NULL, note string CONSTRAINT {stack.name}_c NOT NULL ENABLE,"
        " free int NOT NULL DISABLE) STORED AS ORC TBLPROPERTIES ('transactional'='true')"
    )
    stack.produce([{"id": 0, "note": "a"}, {"id": 1, "note": "b", "free": None}])
    stack.drain()
    stack.produce([{"id": 2, "note": "c"}, {"id": 3}, {"id": 4, "note": "e"}])
    daemon = stack.drain(expect=65)
    stopped = daemon.events("failed")[0]
    assert stopped["reason"] == "RecordError"
    assert "offset 3, column note: is NULL, but the column is NOT NULL" in stopped["error"]
    assert stack.ids() == [0, 1]

    with connect(stack) as connection:
        connection.begin_transaction()
        with pytest.raises(SerializationError, match="row 1, column id: is NULL"):
            connection.write(pa.table({"id": pa.array([5, None], pa.int32()), "note": ["x", "y"]}))
        connection.write(pa.table({"id": pa.array([6], pa.int32()), "note": ["z"]}))
        connection.commit_transaction()
    with connect(stack, record_writer=StrictDelimitedInputWriter(field_delimiter=",")) as connection:
        connection.begin_transaction()
        with pytest.raises(SerializationError, match="column note: is NULL") as caught:
            connection.write(io.BytesIO(b"7,seven,1\n8,\\N\n9,nine\nten,ten\n"))
        assert [(reject.row, reject.column) for reject in caught.value.rejects] == [(1, "note"), (3, "id")]
        connection.commit_transaction()
    assert stack.ids() == [0, 1, 6, 7, 9]

    stack.sql(f"ALTER TABLE {stack.name} DROP CONSTRAINT {stack.name}_c")
    stack.drain()
    assert stack.ids() == [0, 1, 2, 3, 4, 6, 7, 9]
    assert stack.sql(f"SELECT id FROM {stack.name} WHERE note IS NULL") == [(3,)]


def test_not_null_when_added_while_the_daemon_runs_then_applies_to_the_next_transaction(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, note string")
    stack.produce([{"id": 0}])
    daemon = stack.start(stack.config())
    eventually("the first commit", lambda: [e for e in daemon.events("committed") if e["rows"]])
    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN note note string CONSTRAINT {stack.name}_c NOT NULL ENABLE")
    stack.produce([{"id": 1, "note": "x"}, {"id": 2}])
    assert daemon.wait() == 65
    assert "offset 2, column note: is NULL" in daemon.events("failed")[0]["error"]
    assert stack.ids() == [0]
