"""Targets that Hive refuses to write: a mapping stops, with Hive's sentence, before it allocates a write id."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ingestd.config.document import load
from ingestd.hive.creation import exists
from ingestd.hive.tables import TableName, load_acid_table, read_table
from ingestd.ingest.inspection.checks import check_control, check_locations
from ingestd.ingest.letters.table import definition
from tests.support.daemon import Daemon
from tests.support.stack import Stack, eventually
from tests.support.tables import next_write_id

VIEW = "a view cannot be used as target table for LOAD or INSERT"


def _mapping(stack: Stack, case: str, table: str, **more: Any) -> dict[str, Any]:
    return {"name": f"{stack.name}_{case}"[-40:], "table": table} | more


def _with_letters(table: str) -> dict[str, Any]:
    return {"on_error": "dead_letter", "dead_letter": {"table": table}}


def _errors(daemon: Daemon) -> dict[str, str]:
    """Return the errors of the mappings that have stopped because of their tables, by the last part of their names."""
    return {
        event["mapping"].rpartition("_")[2]: event["error"]
        for event in daemon.events("failed")
        if event["reason"] == "InvalidTable"
    }


def _committed(daemon: Daemon, case: str) -> int:
    return sum(event["rows"] for event in daemon.events("committed") if event["mapping"].endswith(f"_{case}"))


def test_targets_when_hive_refuses_them_at_the_start_then_their_mappings_stop_without_a_write_id(stack: Stack) -> None:
    name = stack.name
    stack.topic(1)
    stack.produce([{"id": 1}])
    for case, properties in (
        ("replica", "'repl.target.for'='p1'"),
        ("fixed", "'readonly'='TRUE'"),
        ("former", "'repl.target.for'='', 'readonly'='false'"),  # after a failover
    ):
        stack.sql(f"CREATE DATABASE {name}_{case} WITH DBPROPERTIES ({properties})")
        stack.table("id int", name=f"{name}_{case}.t")
    stack.table("id int")
    stack.table("id int", name=f"default.{name}_immutable", immutable="true")
    stack.sql(f"CREATE VIEW {name}_view AS SELECT id FROM {name}")
    stack.sql(
        f"CREATE MATERIALIZED VIEW {name}_materialized DISABLE REWRITE STORED AS ORC"
        f" TBLPROPERTIES ('transactional'='true') AS SELECT id FROM {name}"
    )
    stack.sql(definition(TableName(f"{name}_replica", "dead")))
    targets = [TableName.parse(f"{name}_{kind}.t") for kind in ("replica", "fixed")]
    targets += [TableName("default", f"{name}_{kind}") for kind in ("immutable", "materialized")]
    targets += [TableName(f"{name}_replica", "dead"), TableName("default", name)]
    before = {target: next_write_id(stack.metastore, target) for target in targets}

    config = stack.config(
        _mapping(stack, "replica", f"{name}_replica.t"),
        _mapping(stack, "fixed", f"{name}_fixed.t"),
        _mapping(stack, "immutable", f"default.{name}_immutable"),
        _mapping(stack, "view", f"default.{name}_view"),
        _mapping(stack, "materialized", f"default.{name}_materialized"),
        _mapping(stack, "new", f"{name}_fixed.new", create_table={"columns": {"id": "int"}}),
        _mapping(stack, "letters", f"default.{name}", **_with_letters(f"{name}_replica.dead")),
        _mapping(stack, "first", f"default.{name}", **_with_letters(f"{name}_fixed.dead")),
        _mapping(stack, "former", f"{name}_former.t"),
    )
    errors = _errors(stack.drain(config, expect=65))

    assert set(errors) == {"replica", "fixed", "immutable", "view", "materialized", "new", "letters", "first"}
    for case in ("replica", "letters"):
        assert f"database {name}_replica is a target of replication (repl.target.for)" in errors[case]
        assert "write to the source database" in errors[case]
    for case in ("fixed", "new", "first"):
        assert f"database {name}_fixed is read-only" in errors[case]
    assert f"ALTER DATABASE {name}_fixed SET DBPROPERTIES ('readonly'='false')" in errors["fixed"]
    assert "inserting into a non-empty immutable table is not allowed" in errors["immutable"]
    assert f"the table is a view: {VIEW}" in errors["view"]
    assert f"the table is a materialized view: {VIEW}" in errors["materialized"]

    assert {target: next_write_id(stack.metastore, target) for target in targets} == {
        target: write_id + 1 for target, write_id in before.items()
    }
    assert stack.ids(f"{name}_former.t") == [1]
    for table in (f"{name}_replica.t", f"{name}_fixed.t", f"{name}_immutable", f"{name}_materialized", name):
        assert stack.ids(table) == []
    for table in ("new", "dead"):
        assert not exists(lambda table=table: read_table(stack.metastore, TableName(f"{name}_fixed", table)))  # type: ignore[misc]


def test_database_when_it_becomes_a_replica_while_the_daemon_runs_then_only_its_mapping_stops(stack: Stack) -> None:
    database = f"{stack.name}_db"
    target = TableName(database, "t")
    stack.topic(1)
    stack.sql(f"CREATE DATABASE {database}")
    stack.table("id int", name=f"{database}.t")
    stack.table("id int")
    config = stack.config(
        _mapping(stack, "inside", f"{database}.t"),
        _mapping(stack, "outside", f"default.{stack.name}"),
    )
    daemon = stack.start(config)
    stack.produce([{"id": 1}])
    for case in ("inside", "outside"):
        eventually(f"the first row of {case}", lambda case=case: _committed(daemon, case) == 1)  # type: ignore[misc]

    stack.sql(f"ALTER DATABASE {database} SET DBPROPERTIES ('repl.target.for'='p1')")
    before = next_write_id(stack.metastore, target)
    stack.produce([{"id": 2}])
    eventually("the mapping to stop", lambda: _errors(daemon))
    eventually("the second row of the other mapping", lambda: _committed(daemon, "outside") == 2)
    assert list(_errors(daemon)) == ["inside"]
    assert f"database {database} is a target of replication (repl.target.for)" in _errors(daemon)["inside"]
    assert next_write_id(stack.metastore, target) == before + 1
    assert stack.ids(f"{database}.t") == [1]
    daemon.kill()

    stack.sql(f"ALTER DATABASE {database} SET DBPROPERTIES ('repl.target.for'='')")
    stack.drain(config)
    assert stack.ids(f"{database}.t") == [1, 2]
    assert stack.ids() == [1, 2]


def test_tables_when_their_locations_are_the_same_or_nested_then_check_warns(stack: Stack) -> None:
    stack.topic(1)
    names = [f"default.{stack.name}_{case}" for case in ("outer", "same", "inner", "separate")]
    stack.table("id int", name=names[0])
    location = load_acid_table(stack.metastore, TableName.parse(names[0])).location
    acid = "STORED AS ORC LOCATION '{}' TBLPROPERTIES ('transactional'='true')"
    stack.sql(f"CREATE TABLE {names[1]} (id int) {acid.format(location)}")
    stack.sql(f"CREATE TABLE {names[2]} (id int) {acid.format(location + '/sub/t')}")
    stack.table("id int", name=names[3])
    outer, same, inner, separate = load(
        [stack.config(*(_mapping(stack, name.rpartition("_")[2], name) for name in names))]
    ).mappings
    for mappings in ([outer, same], [same]):  # also if the other table is not one of this configuration
        [found] = check_locations(stack.metastore, mappings)
        assert found.is_warning
        assert re.search(
            f"{stack.name}_[a-z]+ and default.{stack.name}_[a-z]+ have the same location", str(found.error)
        )
    [nested] = check_locations(stack.metastore, [inner])
    assert f"the location of {names[2]} is inside that of {names[0]}, {location}" in str(nested.error)
    [passed] = check_locations(stack.metastore, [separate])
    assert passed.error is None
    assert passed.detail.startswith("1 table, each in a directory of its own; compared with")
    stack.sql(f"DROP TABLE {names[1]}")
    [around] = check_locations(stack.metastore, [outer])
    assert f"the location of {names[2]} is inside that of {names[0]}, {location}" in str(around.error)


def test_control_database_when_it_is_a_target_of_replication_then_check_and_the_mapping_say_so(stack: Stack) -> None:
    control = f"{stack.name}_control"
    stack.topic(1)
    stack.table("id int")
    stack.produce([{"id": 1}])
    stack.sql(f"CREATE DATABASE {control} WITH DBPROPERTIES ('repl.target.for'='p1')")
    config = stack.config({"name": stack.name[:40]}, control={"database": control})

    [options] = load([config]).mappings
    [found] = check_control(stack.metastore, options)
    assert f"database {control} is a target of replication (repl.target.for)" in str(found.error)
    [usual] = check_control(stack.metastore, replace(options, control_database=f"{control}_missing"))
    assert (usual.error, usual.detail) == (None, "does not exist; the mapping creates it")
    [failed] = stack.drain(config, expect=65).events("failed")

    assert (failed["reason"], stack.ids()) == ("InvalidTable", [])
    assert f"database {control} is a target of replication (repl.target.for)" in failed["error"]

    stack.sql(f"ALTER DATABASE {control} SET DBPROPERTIES ('repl.target.for'='')")
    daemon = stack.start(config)
    eventually("the first row", lambda: stack.ids() == [1])
    stack.sql(f"ALTER DATABASE {control} SET DBPROPERTIES ('repl.target.for'='p1')")
    stack.produce([{"id": 2}])
    eventually("the mapping to stop", lambda: daemon.events("failed"))
    daemon.kill()
    [failed] = daemon.events("failed")
    assert (failed["reason"], stack.ids()) == ("InvalidTable", [1])
    assert f"database {control} is a target of replication (repl.target.for)" in failed["error"]
