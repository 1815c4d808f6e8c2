"""A metastore on PostgreSQL can compare parameters, so no table property of a user is overwritten."""

from __future__ import annotations

from functools import partial

from ingestd.clock import Deadline
from ingestd.errors import SandboxError
from ingestd.hive.parameters import write_table_back
from ingestd.hive.tables import TableName, read_table
from tests.support.stack import Stack, eventually

_QUICK_SECONDS = 0.8


def test_table_changed_since_it_was_read_when_written_back_then_refused(on_postgres: Stack) -> None:
    on_postgres.table("id bigint")
    name = TableName("default", on_postgres.name)
    read = read_table(on_postgres.metastore, name)
    touched = read.parameters["transient_lastDdlTime"]

    def changed() -> bool:
        on_postgres.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('owner.team'='blue')")
        return bool(read_table(on_postgres.metastore, name).parameters["transient_lastDdlTime"] != touched)

    eventually("a change in a later second", changed)
    assert not write_table_back(on_postgres.metastore, read, touched)
    assert on_postgres.metastore.compares_parameters
    assert read_table(on_postgres.metastore, name).parameters["owner.team"] == "blue"
    fresh = read_table(on_postgres.metastore, name)
    assert write_table_back(on_postgres.metastore, fresh, fresh.parameters["transient_lastDdlTime"])


def test_properties_when_set_concurrently_with_commits_then_none_is_lost(on_postgres: Stack) -> None:
    """A statement that takes a second may store its property with the time of a second that has passed.

    Then the comparison cannot find it, so such a property may be lost.
    """
    on_postgres.topic(1)
    on_postgres.table("id bigint")
    daemon = on_postgres.start(on_postgres.config({"commit": {"interval": "100ms"}}))
    eventually("the daemon to become owner", lambda: daemon.events("owner"))
    quick = set[str]()
    for number in range(30):
        on_postgres.produce([{"id": number}])
        eventually(f"property {number}", partial(_is_set, on_postgres, f"p{number}", quick))
    eventually("all rows", lambda: sum(e["rows"] for e in daemon.events("committed")) == 30)
    daemon.terminate()
    assert daemon.wait() == 0
    assert on_postgres.count() == 30
    properties = [row[0] for row in on_postgres.sql(f"SHOW TBLPROPERTIES {on_postgres.name}")]
    assert quick <= set(properties)


def _is_set(stack: Stack, key: str, quick: set[str]) -> bool:
    """Set a table property, and add it to `quick` if that took less than a second.

    Return False when Hive refuses because the first commit changed the table concurrently.
    """
    quickly = Deadline.after(_QUICK_SECONDS)
    try:
        stack.sql(f"ALTER TABLE {stack.name} SET TBLPROPERTIES ('{key}'='set')")
    except SandboxError as error:
        if "Cannot change stats state" in error.what:
            return False
        raise
    if not quickly.passed:
        quick.add(key)
    return True
