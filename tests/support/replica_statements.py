"""Statements in HiveServer2 on the source of a replication test, and queries on both sides."""

from __future__ import annotations

from typing import Any

from tests.support.replica_following import Following

# HiveServer2 compacts a table of a few small files at once, which removes files that are still to be copied.
_PROPERTIES = "'transactional'='true', 'no_auto_compaction'='true'"
ACID = f"STORED AS ORC TBLPROPERTIES ({_PROPERTIES})"
INSERT_ONLY = f"STORED AS ORC TBLPROPERTIES ({_PROPERTIES}, 'transactional_properties'='insert_only')"


def run(following: Following, *statements: str) -> None:
    """Run statements on the source; `{db}` stands for the database."""
    for statement in statements:
        following.replica.source.sql(statement.replace("{db}", following.database))


def answers(following: Following, query: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the sorted rows of a query on the source and on the target."""
    sides = (following.replica.source, following.database), (following.replica.target, following.target)
    before, after = (sorted(side.sql(query.replace("{db}", database)), key=str) for side, database in sides)
    return before, after


def assert_equal(following: Following, *queries: str) -> None:
    """Assert that queries have the same rows on both sides."""
    for query in queries:
        source, target = answers(following, query)
        assert target == source, query


def assert_answered_from_statistics(following: Following, query: str) -> None:
    """Assert that a query has the same rows on both sides, and that neither reads a file for it."""
    assert_equal(following, query)
    plans = ["\n".join(str(row[0]) for row in plan) for plan in answers(following, f"EXPLAIN {query}")]
    assert ["TableScan" in plan for plan in plans] == [False, False], "\n\n".join(plans)
