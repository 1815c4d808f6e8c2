"""The effects of statements on a source: after a cycle, HiveServer2 answers the same on the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.hive.attachments import ConstraintKind, list_constraints
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from tests.support.replica import Replica
from tests.support.replica_following import Following, new_following
from tests.support.replica_statements import (
    ACID,
    INSERT_ONLY,
    answers,
    assert_answered_from_statistics,
    assert_equal,
    run,
)


def test_rows_when_written_by_every_statement_then_target_has_them(following: Following) -> None:
    run(
        following,
        f"CREATE TABLE {{db}}.t (id INT, name STRING, v INT) {ACID}",
        f"CREATE TABLE {{db}}.s (id INT, name STRING, v INT) {ACID}",
        "INSERT INTO {db}.t VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)",
        "INSERT INTO {db}.s VALUES (2, 'B', 21), (3, 'C', 31), (4, 'D', 41)",
        "UPDATE {db}.t SET v = v + 1 WHERE id < 3",
        "DELETE FROM {db}.t WHERE id = 2",
    )
    following.cycle()
    assert_equal(following, "SELECT * FROM {db}.t", "SELECT * FROM {db}.s")
    run(
        following,
        "MERGE INTO {db}.t AS t USING {db}.s AS s ON t.id = s.id WHEN MATCHED AND s.id = 3 THEN UPDATE SET v = s.v"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.name, s.v)",
        "INSERT OVERWRITE TABLE {db}.s SELECT * FROM {db}.t",
        "FROM {db}.s INSERT INTO TABLE {db}.s SELECT id, name, v WHERE id = 1"
        " INSERT INTO TABLE {db}.t SELECT id + 10, name, v",
    )
    following.cycle()
    assert_equal(following, "SELECT * FROM {db}.t", "SELECT * FROM {db}.s", "SELECT count(*) FROM {db}.t")
    run(following, "TRUNCATE TABLE {db}.t", "INSERT INTO {db}.t VALUES (9, 'z', 90)")
    following.cycle()
    assert_equal(following, "SELECT * FROM {db}.t", "SELECT count(*) FROM {db}.s")


def test_transaction_when_it_writes_two_databases_then_each_target_has_its_rows(
    following: Following, replica: Replica, tmp_path: Path
) -> None:
    root = tmp_path / "other"
    root.mkdir()
    other = new_following(replica, root)
    for follower in (following, other):
        run(follower, f"CREATE TABLE {{db}}.t (id INT) {ACID}", "INSERT INTO {db}.t VALUES (1), (2)")
    run(following, f"FROM {{db}}.t INSERT INTO {{db}}.t SELECT id + 10 INSERT INTO {other.database}.t SELECT id + 20")
    other.cycle()
    following.cycle()
    run(
        other,
        f"FROM {following.database}.t INSERT INTO {{db}}.t SELECT id + 30 INSERT INTO {following.database}.t SELECT 5",
    )
    following.cycle()
    other.cycle()
    for follower, count in ((following, 8), (other, 8)):
        assert_equal(follower, "SELECT * FROM {db}.t")
        assert follower.replica.target.sql(f"SELECT count(*) FROM {follower.target}.t") == [(count,)]


def test_partitions_when_changed_by_every_statement_then_target_has_them(following: Following) -> None:
    run(
        following,
        f"CREATE TABLE {{db}}.p (id INT) PARTITIONED BY (day STRING) {ACID}",
        "INSERT INTO {db}.p PARTITION (day) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd e:f')",
        "INSERT INTO {db}.p PARTITION (day='a') VALUES (5)",
    )
    following.cycle()
    assert_equal(following, "SELECT * FROM {db}.p", "SHOW PARTITIONS {db}.p")
    run(
        following,
        "ALTER TABLE {db}.p PARTITION (day='a') RENAME TO PARTITION (day='x')",
        "INSERT INTO {db}.p PARTITION (day='x') VALUES (6)",
        "ALTER TABLE {db}.p DROP PARTITION (day='b')",
        "ALTER TABLE {db}.p ADD PARTITION (day='n')",
        "TRUNCATE TABLE {db}.p PARTITION (day='c')",
        "ALTER TABLE {db}.p ADD COLUMNS (extra STRING) CASCADE",
        "INSERT INTO {db}.p PARTITION (day='c') VALUES (7, 'new')",
        "INSERT OVERWRITE TABLE {db}.p PARTITION (day='d e:f') VALUES (8, 'over')",
        "UPDATE {db}.p SET extra = 'u' WHERE id = 1",
    )
    following.cycle()
    assert_equal(following, "SELECT * FROM {db}.p", "SHOW PARTITIONS {db}.p", "SELECT count(*) FROM {db}.p")


def test_partitions_when_one_name_begins_with_another_then_each_has_its_rows(following: Following) -> None:
    keys = {"month": ("INT", "1", "10"), "name": ("STRING", "'q'", "'q1'")}
    tables = [(f"{{db}}.{kind}_{key}", key) for kind in ("acid", "inserts") for key in keys]
    queries = [f"SELECT * FROM {table}" for table, _ in tables]
    for table, key in tables:
        kind, (short, long) = INSERT_ONLY if "inserts" in table else ACID, keys[key][1:]
        run(
            following,
            f"CREATE TABLE {table} (id INT) PARTITIONED BY ({key} {keys[key][0]}) {kind}",
            f"INSERT INTO {table} PARTITION ({key}) SELECT stack(2, 1, {short}, 2, {long}) AS (id, {key})",
        )
    following.cycle()
    assert_equal(following, *queries)
    for table, key in tables:
        run(following, f"INSERT INTO {table} PARTITION ({key}) SELECT id + 10, {key} FROM {table}")
        if "acid" in table:
            run(following, f"UPDATE {table} SET id = id + 100")
    assert following.cycle().bootstrapped == ()
    assert_equal(following, *queries)
    for table, key in tables:
        short, long = (f"{key}={value}" for value in keys[key][1:])
        run(
            following,
            f"FROM {table} INSERT OVERWRITE TABLE {table} PARTITION ({short}) SELECT id WHERE id < 0"
            f" INSERT OVERWRITE TABLE {table} PARTITION ({long}) SELECT id + 1000",
        )
    assert following.cycle().bootstrapped == ()
    assert_equal(following, *queries)


def test_tables_when_created_renamed_and_dropped_then_target_has_them(following: Following) -> None:
    run(
        following,
        f"CREATE TABLE {{db}}.t (id INT) {ACID}",
        "INSERT INTO {db}.t VALUES (1)",
        f"CREATE TABLE {{db}}.gone (id INT) {ACID}",
        "INSERT INTO {db}.gone VALUES (1)",
    )
    following.cycle()
    run(
        following,
        f"CREATE TABLE {{db}}.made {ACID} AS SELECT id, id * 2 AS twice FROM {{db}}.t",
        f"CREATE TABLE {{db}}.inserts {INSERT_ONLY} AS SELECT id FROM {{db}}.t UNION ALL SELECT id + 1 FROM {{db}}.t",
        "ALTER TABLE {db}.t RENAME TO {db}.u",
        "INSERT INTO {db}.u VALUES (2)",
        "DROP TABLE {db}.gone",
        f"CREATE TABLE {{db}}.gone (name STRING) {ACID}",
        "INSERT INTO {db}.gone VALUES ('again')",
        "CREATE VIEW {db}.v AS SELECT 1 AS one",
        "CREATE MATERIALIZED VIEW {db}.mv AS SELECT id FROM {db}.u",
    )
    following.cycle()
    queries = [f"SELECT * FROM {{db}}.{name}" for name in ("made", "inserts", "u", "gone", "v")]
    assert_equal(following, *queries)
    run(
        following,
        "INSERT INTO {db}.inserts SELECT id FROM {db}.u UNION ALL SELECT id + 5 FROM {db}.u",
        "ALTER MATERIALIZED VIEW {db}.mv REBUILD",
    )
    following.cycle()
    run(following, "DROP MATERIALIZED VIEW {db}.mv")
    following.cycle()
    assert_equal(following, *queries)


@pytest.mark.parametrize("partitioned", [False, True])
def test_statistics_when_exact_on_the_source_then_target_answers_from_them(
    following: Following, *, partitioned: bool
) -> None:
    columns = "(id INT) PARTITIONED BY (day STRING)" if partitioned else "(id INT, day STRING)"
    into, query = "PARTITION (day)" if partitioned else "", "SELECT count(*), min(id), max(id) FROM {db}.t"
    run(
        following,
        f"CREATE TABLE {{db}}.t {columns} {ACID}",
        f"INSERT INTO {{db}}.t {into} VALUES (1, 'a'), (2, 'b')",
        f"INSERT INTO {{db}}.t {into} VALUES (7, 'a'), (3, 'c')",
    )
    following.cycle()
    assert_answered_from_statistics(following, query)
    run(following, "DELETE FROM {db}.t WHERE id = 7")
    following.cycle()
    assert answers(following, query) == ([(3, 1, 3)], [(3, 1, 3)])
    run(following, "ANALYZE TABLE {db}.t COMPUTE STATISTICS FOR COLUMNS")
    following.cycle()
    assert_answered_from_statistics(following, query)


def test_definitions_when_changed_by_statements_then_target_has_them(following: Following, tmp_path: Path) -> None:
    run(
        following,
        "CREATE TABLE {db}.c (id INT NOT NULL ENABLE, k INT DEFAULT 7, v INT CHECK (v > 0), name STRING,"
        f" PRIMARY KEY (id) DISABLE NOVALIDATE, UNIQUE (name) DISABLE NOVALIDATE) {ACID}",
        f"CREATE TABLE {{db}}.r (id INT, FOREIGN KEY (id) REFERENCES {{db}}.c (id) DISABLE NOVALIDATE) {ACID}",
        "INSERT INTO {db}.c (id, v, name) VALUES (1, 1, 'a'), (2, 2, 'b')",
        "CREATE EXTERNAL TABLE {db}.e (id INT) PARTITIONED BY (day STRING) STORED AS ORC"
        f" LOCATION 'file:{tmp_path}/e'",
        "INSERT INTO {db}.e PARTITION (day='a') VALUES (1), (2)",
        "CREATE VIEW {db}.v AS SELECT id FROM {db}.c",
    )
    following.cycle()
    queries = [
        "SELECT * FROM {db}.v",
        "SELECT * FROM {db}.c",
        "SELECT count(*), max(k) FROM {db}.c",
        "DESCRIBE {db}.c",
        "SELECT * FROM {db}.e",
    ]
    assert_equal(following, *queries, "SELECT count(*) FROM {db}.e")
    assert _constraints(following.replica.target.metastore, following.target) == _constraints(
        following.replica.source.metastore, following.database
    )
    run(
        following,
        "ALTER DATABASE {db} SET DBPROPERTIES ('team'='web')",
        "ALTER TABLE {db}.c CHANGE COLUMN k k BIGINT",
        "ALTER TABLE {db}.c SET TBLPROPERTIES ('a'='b')",
        "ALTER VIEW {db}.v AS SELECT id FROM {db}.c WHERE id > 1",
        f"ALTER TABLE {{db}}.e ADD PARTITION (day='b') LOCATION 'file:{tmp_path}/outside'",
        "INSERT INTO {db}.e PARTITION (day='b') VALUES (3)",
        "INSERT OVERWRITE TABLE {db}.e PARTITION (day='a') VALUES (4)",
        "INSERT INTO {db}.c (id, v, name) VALUES (3, 3, 'c')",
    )
    following.cycle()
    assert_equal(following, *queries, "SELECT count(*) FROM {db}.e")
    assert following.marks()["team"] == "web"
    run(following, "ALTER TABLE {db}.e DROP PARTITION (day='a')", "DROP TABLE {db}.r")
    following.cycle()
    assert_equal(following, "SELECT * FROM {db}.e", "SHOW TABLES IN {db}")


def _constraints(metastore: Metastore, database: str) -> list[tuple[ConstraintKind, str]]:
    """Return the kind and the column of each constraint of both tables."""
    found = [
        constraint for table in ("c", "r") for constraint in list_constraints(metastore, TableName(database, table))
    ]
    columns = [(constraint.kind, vars(constraint.columns[0])) for constraint in found]
    return [(kind, str(column.get("column_name") or column["fkcolumn_name"])) for kind, column in columns]
