"""A bootstrap copies statistics that the target's HiveServer2 accepts as exact, so it answers from them."""

from __future__ import annotations

import pytest

from tests.support.replica import Replica, Side
from tests.support.replica_copying import Copying, new_copying
from tests.support.replica_statements import ACID, INSERT_ONLY

TABLES = {
    "plain": f"(id int, note string) {ACID}",
    "parted": f"(id int, note string) PARTITIONED BY (day string) {ACID}",
    "inserts": f"(id int, note string) {INSERT_ONLY}",
}
ANSWERS = {"plain": (3, 2, 4), "parted": (3, 1, 4), "inserts": (2, 5, 6)}


@pytest.fixture(scope="module")
def copied(replica: Replica, tmp_path_factory: pytest.TempPathFactory) -> Copying:
    """Return a database with exact statistics, and its copy."""
    made = new_copying(replica, tmp_path_factory.mktemp("dumps"))
    _fill(replica.source, made.database)
    made.dump()
    made.load()
    return made


def _fill(source: Side, database: str) -> None:
    for table, definition in TABLES.items():
        source.sql(f"CREATE TABLE {database}.{table} {definition}")
    source.sql(f"INSERT INTO {database}.plain VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    source.sql(f"DELETE FROM {database}.plain WHERE id = 1")
    source.sql(f"INSERT INTO {database}.plain VALUES (4, 'd')")
    source.sql(f"INSERT INTO {database}.parted VALUES (1, 'a', 'x'), (2, 'b', 'x'), (4, 'c', 'y:z')")
    source.sql(f"INSERT INTO {database}.inserts VALUES (5, 'e'), (6, 'f')")
    for table in TABLES:
        source.sql(f"ANALYZE TABLE {database}.{table} COMPUTE STATISTICS FOR COLUMNS")


def _plan(side: Side, query: str) -> str:
    return "\n".join(str(line) for (line,) in side.sql(f"EXPLAIN {query}"))


@pytest.mark.parametrize("table", TABLES)
def test_statistics_when_bootstrapped_then_target_answers_from_them_without_a_scan(copied: Copying, table: str) -> None:
    for side, database in ((copied.replica.source, copied.database), (copied.replica.target, copied.target)):
        for columns, answer in (("count(*)", ANSWERS[table][:1]), ("min(id), max(id)", ANSWERS[table][1:])):
            query = f"SELECT {columns} FROM {database}.{table}"
            plan = _plan(side, query)
            assert "TableScan" not in plan, f"{side.name}:\n{plan}"
            assert side.sql(query) == [answer]


def test_partition_when_bootstrapped_then_target_answers_from_its_statistics(copied: Copying) -> None:
    query = f"SELECT count(*), min(id), max(id) FROM {copied.target}.parted WHERE day = 'x'"
    plan = _plan(copied.replica.target, query)
    assert "TableScan" not in plan, plan
    assert copied.replica.target.sql(query) == [(2, 1, 2)]
