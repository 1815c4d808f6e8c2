"""Constraints of a copy are those of its source; a foreign key exists where both of its tables do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.hive.attachments import Constraint, ConstraintKind, add_constraints, list_constraints
from ingestd.hive.objects import table_names
from ingestd.hive.tables import TableName
from ingestd.replication.directory.manifest import ConstraintRecord, Manifest
from ingestd.replication.statements.scope import Scope
from ingestd.storage.contract import child
from ingestd.storage.storages import Storages
from tests.support.replica import Replica
from tests.support.replica_changes import INSERT, assert_same
from tests.support.replica_copying import Copying, new_copying
from tests.support.replica_following import Following, write
from tests.support.replica_rows import compact
from tests.support.replica_tables import make_database, make_table

_STATE = {"enable_cstr": False, "validate_cstr": False, "rely_cstr": True}


@pytest.fixture
def copying(replica: Replica, tmp_path: Path) -> Copying:
    return new_copying(replica, tmp_path)


def _make_pair(following: Following, parent: TableName, dependent: TableName) -> None:
    """Create two tables of the source, and a foreign key of the second one. Names and columns are in upper case."""
    side = following.replica.source
    for name in (parent, dependent):
        make_table(side.metastore, name)
        write(side, name, INSERT)
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
