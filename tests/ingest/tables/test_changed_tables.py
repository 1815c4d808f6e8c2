"""Columns of a table change while a mapping runs: rows are exact, and what no longer fits stops the mapping."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ingestd.errors import SandboxError
from ingestd.hive.control import find_control_table, read_state
from ingestd.hive.objects import alter_table, find_table
from ingestd.hive.tables import TableName
from ingestd.ingest.state import MappingState
from tests.support.compaction import compact
from tests.support.daemon import Daemon, Hold
from tests.support.stack import Stack, eventually

BIG = 2**40


def _committed(daemon: Daemon) -> int:
    return sum(event["rows"] for event in daemon.events("committed"))


def _state(stack: Stack) -> MappingState:
    control = find_control_table(stack.metastore, TableName("ingestd", f"mapping_{stack.name[-40:]}"))
    assert control is not None
    state = MappingState.parse(read_state(stack.metastore, control))
    assert state is not None
    return state


def _drop_last_column(stack: Stack) -> None:
    """Drop the last column, as a client of the metastore can; HiveServer2 refuses it for ORC tables."""
    name = TableName("default", stack.name)
    table = find_table(stack.metastore, name)
    assert table is not None
    table.raw.sd.cols = table.raw.sd.cols[:-1]
    alter_table(stack.metastore, name, table)


def test_columns_when_added_and_widened_under_a_staged_transaction_then_every_row_is_exact(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, n int, s struct<x:int>", "dt string")
    hold = Hold("staged", times=2)
    daemon = stack.start(stack.config({"commit": {"interval": "300ms"}}), hold=hold)
    stack.produce([{"id": 1, "n": 1, "s": {"x": 1, "y": "early"}, "extra": "early", "dt": "a"}])
    eventually("the first row", lambda: _committed(daemon) == 1)
    stack.produce([{"id": 2, "n": 2, "s": {"x": 2, "y": "held"}, "extra": "held", "dt": "a"}])
    hold.wait()
    # Without CASCADE: partition a keeps its old columns in the metastore.
    stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (extra string)")
    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN n n bigint")
    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN s s struct<x:bigint,y:string>")
    hold.release()
    late = {"n": BIG, "s": {"x": BIG, "y": "late"}, "extra": "late"}
    stack.produce([{"id": 3, **late, "dt": "a"}, {"id": 4, **late, "dt": "b"}])
    eventually("the other rows", lambda: _committed(daemon) == 4)

    assert "TableChanged" in {event["reason"] for event in daemon.events("waiting")}
    found = stack.sql(f"SELECT id, n, s.x, s.y, extra, dt FROM {stack.name} ORDER BY id")
    assert found == [
        (1, 1, 1, None, None, "a"),
        (2, 2, 2, "held", "held", "a"),
        (3, BIG, BIG, "late", "late", "a"),
        (4, BIG, BIG, "late", "late", "b"),
    ]
    assert stack.sql(f"SELECT id FROM {stack.name} WHERE extra IN ('held', 'late') AND dt = 'a' ORDER BY id") == [
        (2,),
        (3,),
    ]
    compact(stack, f"default.{stack.name}", "major", "dt='a'")
    assert stack.sql(f"SELECT id, n, s.x, s.y, extra, dt FROM {stack.name} ORDER BY id") == found


def test_columns_when_renamed_or_dropped_then_the_mapping_stops_until_resumed(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, note string, s struct<x:int,y:string>, gone string")
    config = stack.config()
    daemon = stack.start(config)
    stack.produce([{"id": 1, "note": "a", "s": {"x": 1, "y": "y"}, "gone": "g"}])
    eventually("the first row", lambda: _committed(daemon) == 1)
    with pytest.raises(SandboxError, match="cannot drop columns"):
        stack.sql(f"ALTER TABLE {stack.name} REPLACE COLUMNS (id int, note string)")
    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN note title varchar(10)")
    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN s s struct<x:int>")
    _drop_last_column(stack)
    stack.produce([{"id": 2, "note": "b", "title": "t", "s": {"x": 2, "y": "y"}, "gone": "g"}])

    assert daemon.wait() == 65
    before = _state(stack)
    again = stack.drain(config, expect=65)
    for stopped in (daemon, again):
        (event,) = stopped.events("failed")
        assert event["reason"] == "InvalidTable"
        for loss in ("note string was removed", "s.y string was removed", "gone string was removed"):
            assert loss in event["error"]
    assert _state(stack) == before
    assert stack.ids() == [1]

    resume = [sys.executable, "-m", "ingestd", "mappings", "resume", stack.name[-40:], "--config", str(config)]
    subprocess.run(resume, check=True)
    state = _state(stack)
    assert state.change.startswith("resume with changed columns: note string was removed or renamed; s.y string")
    assert state.columns == {"id": "int", "title": "varchar(10)", "s": "struct<x:int>"}
    stack.drain(config)
    assert stack.sql(f"SELECT id, title, s.x FROM {stack.name} ORDER BY id") == [(1, "a", 1), (2, "t", 2)]


def test_column_when_its_type_becomes_narrower_then_the_error_names_both_types(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, note string")
    stack.produce([{"id": 1, "note": "a"}])
    stack.drain()
    stack.sql(f"DROP TABLE {stack.name}")
    stack.table("id smallint, note string, extra string")
    stack.produce([{"id": 2}])
    daemon = stack.drain(expect=65)
    assert "the type of id changed from int to smallint" in daemon.events("failed")[0]["error"]
    assert stack.ids() == []


def test_table_when_converted_to_acid_then_it_is_written_and_rows_of_both_are_right(stack: Stack) -> None:
    name = stack.name
    stack.topic(1)
    stack.sql(f"CREATE EXTERNAL TABLE {name} (id bigint, note string) STORED AS ORC")
    stack.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    stack.produce({"id": n, "note": "k"} for n in range(3, 6))
    stack.drain(expect=65)
    stack.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('EXTERNAL'='FALSE', 'transactional'='true')")
    stack.drain()
    assert stack.ids() == [1, 2, 3, 4, 5]
    assert stack.count() == 5
    stack.sql(f"UPDATE {name} SET note = 'u' WHERE id IN (2, 5)")
    compact(stack, f"default.{name}", "major")
    assert sorted(stack.sql(f"SELECT id, note FROM {name}")) == [(1, "a"), (2, "u"), (3, "k"), (4, "k"), (5, "u")]
    assert stack.count() == 5


def test_transform_when_columns_change_while_the_mapping_is_idle_then_the_result_is_checked_again(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, v double, s struct<a:int>")
    columns = {"id": "int", "v": "double"}
    select = "SELECT id, v, named_struct('a', id) AS s FROM records"
    config = stack.config({"transform": {"columns": columns, "select": select}})
    daemon = stack.start(config)
    stack.produce([{"id": 1, "v": 1}])
    eventually("the first row", lambda: _committed(daemon) == 1)

    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN s s struct<a:int,b:int>")
    stack.produce([{"id": 2, "v": 1}])
    eventually("the second row", lambda: _committed(daemon) == 2)

    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN v v string")  # which holds every double, in Hive's notation
    stack.produce([{"id": 3, "v": 1e20}])
    assert daemon.wait() == 78
    again = stack.drain(config, expect=78)
    for stopped in (daemon, again):
        (event,) = stopped.events("failed")
        assert event["reason"] == "ConfigError"
        assert "the result has the type double, but the column of the table has the type string" in event["error"]
        assert "transform.select, column v" in event["error"]
    assert stack.sql(f"SELECT id, s.a, s.b FROM {stack.name} ORDER BY id") == [(1, 1, None), (2, 2, None)]
    assert stack.group_offsets(f"ingestd-{stack.name[-40:]}", stack.name, 1) == [2]


def test_where_when_a_type_changes_while_the_mapping_is_idle_then_the_predicate_is_checked_again(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, v array<int>")
    daemon = stack.start(stack.config({"where": "aggregate(v, 0, (sum, n) -> sum + n) > 0"}))
    stack.produce([{"id": 1, "v": [1]}])
    eventually("the first row", lambda: _committed(daemon) == 1)
    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN v v array<string>")
    stack.produce([{"id": 2, "v": ["a"]}])
    assert daemon.wait() == 78
    (event,) = daemon.events("failed")
    assert event["reason"] == "ConfigError"
    assert "DATATYPE_MISMATCH" in event["error"]
    assert stack.ids() == [1]
