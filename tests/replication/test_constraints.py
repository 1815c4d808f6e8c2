"""Constraints of a copy are those of its source; a foreign key exists where both of its tables do."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.hive.attachments import Constraint, ConstraintKind, add_constraints, drop_constraint, list_constraints
from ingestd.hive.objects import table_names
from ingestd.hive.tables import TableName
from ingestd.replication.directory.manifest import ConstraintRecord, Manifest
from ingestd.replication.load.table_load import LoadStep
from ingestd.replication.statements.scope import Scope
from ingestd.storage.contract import child
from ingestd.storage.storages import Storages
from tests.support.replica import Replica
from tests.support.replica_changes import INSERT, alter, assert_same, renamed
from tests.support.replica_copying import Copying, new_copying
from tests.support.replica_following import Following, write
from tests.support.replica_rows import compact
from tests.support.replica_tables import make_database, make_table

_STATE = {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}


@pytest.fixture
def copying(replica: Replica, tmp_path: Path) -> Copying:
    return new_copying(replica, tmp_path)


def _make_pair(following: Following, parent: TableName, dependent: TableName) -> None:
    """Create two tables of the source, and a foreign key of the second one."""
    side = following.replica.source
    for name in (parent, dependent):
        make_table(side.metastore, name)
        write(side, name, INSERT)
    _add_keys(following, parent, dependent)


def _add_keys(following: Following, parent: TableName, dependent: TableName) -> None:
    """Add a primary key and a foreign key to two tables of the source. Names and columns are in upper case."""
    side = following.replica.source
    of_parent, of_child = ((name.database.upper(), name.table.upper(), "ID") for name in (parent, dependent))
    key = ttypes.SQLPrimaryKey(*of_parent, 1, "The_Key", **_STATE)
    add_constraints(side.metastore, parent, [Constraint(ConstraintKind.PRIMARY_KEY, (key,))])
    foreign = ttypes.SQLForeignKey(*of_parent, *of_child, 1, 0, 0, "The_Reference", "The_Key", **_STATE)
    side.metastore.call("add_foreign_key", ttypes.AddForeignKeyRequest(foreignKeyCols=[foreign]))


def _constraints(following: Following, table: str) -> list[str]:
    """Return the names of the constraints of a table of the target."""
    name = TableName(following.target, table)
    return [constraint.name for constraint in list_constraints(following.replica.target.metastore, name)]


def test_foreign_key_when_a_table_of_it_is_copied_again_then_target_keeps_it(following: Following) -> None:
    side = following.replica.source
    _make_pair(following, following.name("parent"), following.name("child"))
    following.dump()
    following.load_interrupted()
    for tables, write_id in ((["parent"], 2), (["child"], 2), (["child", "parent"], 3)):
        for table in tables:
            write(side, following.name(table), INSERT)
            compact(side, following.name(table), write_id, of_write_id=write_id)
        assert following.cycle().bootstrapped == tuple(tables)
        assert _constraints(following, "parent") == ["the_key"]
        assert _constraints(following, "child") == ["the_reference"]
    dump = following.directory.dumps()[-1]
    manifest = Manifest(Storages().at(dump.uri), child(dump.uri, following.directory.metadata(dump).payload or ""))
    listed = [record.constraint for record in manifest.read(ConstraintRecord)]
    assert sorted(listed) == ["foreignKeys", "primaryKeys"]
    request = ttypes.DropConstraintRequest(following.database.upper(), "CHILD", "The_Reference")
    side.metastore.call("drop_constraint", request)
    following.cycle()
    assert _constraints(following, "child") == []
    assert_same(following)


@pytest.mark.parametrize("scope", ["parent", "child"])
def test_foreign_key_when_a_table_of_it_is_not_in_scope_then_it_comes_with_the_table(
    following: Following, scope: str
) -> None:
    _make_pair(following, following.name("parent"), following.name("child"))
    following.dump(Scope(following.database, scope))
    following.load()
    assert table_names(following.replica.target.metastore, following.target) == [scope]
    following.dump(Scope(following.database))
    following.load()
    assert _constraints(following, "child") == ["the_reference"]
    assert_same(following)


def test_foreign_key_when_it_refers_to_another_database_then_the_table_is_copied_without_it(copying: Copying) -> None:
    following = Following(copying.replica, copying.database, copying.target, copying.root)
    parent = TableName(following.replica.name("other"), "parent")
    make_database(following.replica.source.metastore, parent.database)
    _make_pair(following, parent, following.name("child"))
    copying.dump()
    copying.load()
    following.cycle()
    assert (_constraints(following, "child"), following.marks().get("hive.repl.first.inc.pending")) == ([], None)
    assert_same(following)


def _key(name: TableName, column: str, key: str) -> Constraint:
    """Return a primary key of a table."""
    return Constraint(
        ConstraintKind.PRIMARY_KEY, (ttypes.SQLPrimaryKey(name.database, name.table, column, 1, key, **_STATE),)
    )


def _unique(name: TableName, key: str) -> Constraint:
    """Return a unique key of a table."""
    column = ttypes.SQLUniqueConstraint("hive", name.database, name.table, "day", 1, key, *_STATE.values())
    return Constraint(ConstraintKind.UNIQUE, (column,))


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about constraints."""
    return [record.getMessage() for record in caplog.records if "lacks constraints" in record.getMessage()]


def _allow(following: Following, table: str) -> None:
    """Drop the primary key that another client has added on the target."""
    drop_constraint(following.replica.target.metastore, TableName(following.target, table), "theirs")


@pytest.mark.parametrize("is_copied", [False, True], ids=["added", "copied"])
def test_constraint_when_the_target_refuses_it_then_the_table_follows_and_gets_it_when_possible(
    following: Following, caplog: pytest.LogCaptureFixture, *, is_copied: bool
) -> None:
    side, target = following.replica.source, following.replica.target.metastore
    name, copy = following.name("t"), TableName(following.target, "t")
    make_table(side.metastore, name)
    write(side, name, INSERT)
    following.cycle()

    def add_another(step: Enum | None = None) -> None:
        if step is LoadStep.REPLACED or not is_copied:
            add_constraints(target, copy, [_key(copy, "day", "theirs")])

    add_constraints(side.metastore, name, [_key(name, "id", "the_key"), _unique(name, "unique_day")])
    if is_copied:
        write(side, name, INSERT)
        compact(side, name, write_id=2, of_write_id=2)
        following.dump()
        assert following.load(add_another).bootstrapped == ("t",)
    else:
        add_another()
        following.cycle()
    alter(following, name, renamed("u"))
    for _ in range(2):
        write(side, following.name("u"), INSERT)
        report = following.cycle()
        assert (report.bootstrapped, report.lost) == ((), ())
        assert _constraints(following, "u") == ["theirs", "unique_day"]
        assert_same(following)
    (warning,) = _warnings(caplog)
    assert "t lacks constraints" in warning
    assert "the_key" in warning
    _allow(following, "u")
    for _ in range(2):
        following.cycle()
        assert _constraints(following, "u") == ["the_key", "unique_day"]
    assert following.directory.dumps()[-1].unconstrained == ()


def test_foreign_key_when_the_target_has_refused_the_key_of_its_parent_then_it_comes_with_the_key(
    following: Following,
) -> None:
    parent, dependent = following.name("parent"), following.name("child")
    for name in (parent, dependent):
        make_table(following.replica.source.metastore, name)
    following.cycle()
    copy = TableName(following.target, "parent")
    add_constraints(following.replica.target.metastore, copy, [_key(copy, "day", "theirs")])
    _add_keys(following, parent, dependent)
    following.cycle()
    assert _constraints(following, "child") == []
    _allow(following, "parent")
    following.cycle()
    assert (_constraints(following, "parent"), _constraints(following, "child")) == (["the_key"], ["the_reference"])


def test_bootstrap_when_the_target_refuses_a_constraint_then_a_cycle_creates_it_when_possible(copying: Copying) -> None:
    following = Following(copying.replica, copying.database, copying.target, copying.root)
    name, copy = following.name("t"), TableName(following.target, "t")
    make_table(following.replica.source.metastore, name)
    add_constraints(following.replica.source.metastore, name, [_key(name, "id", "the_key")])
    copying.dump()

    def add_another(step: LoadStep) -> None:
        if step is LoadStep.COMPLETE:
            add_constraints(following.replica.target.metastore, copy, [_key(copy, "day", "theirs")])

    copying.load(observe=add_another)
    assert _constraints(following, "t") == ["theirs"]
    following.cycle()
    _allow(following, "t")
    assert following.cycle().bootstrapped == ()
    assert _constraints(following, "t") == ["the_key"]
