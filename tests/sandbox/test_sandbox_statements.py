"""Common HiveQL statements work in the sandbox, which shows that the class paths of its services are complete."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyhive.exc import Error

from ingestd.sandbox import Addresses
from ingestd.sandbox.hiveserver2 import connect
from tests.support.compaction import wait_for_cleaner
from tests.support.stack import Stack

_DATABASE = f"everyday_{uuid.uuid4().hex[:6]}"
_ACID = "STORED AS ORC TBLPROPERTIES ('transactional'='true')"
# Run in this order in one session. Each expected text must be in the first column of a row.
_STATEMENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (f"CREATE DATABASE {_DATABASE}", ()),
    ("SHOW DATABASES", ("default", _DATABASE)),
    (f"DESCRIBE DATABASE EXTENDED {_DATABASE}", (_DATABASE,)),
    (f"ALTER DATABASE {_DATABASE} SET DBPROPERTIES ('a'='b')", ()),
    (f"USE {_DATABASE}", ()),
    (f"CREATE TABLE t (id int, name string, amount decimal(10,2)) PARTITIONED BY (dt date) {_ACID}", ()),
    ("CREATE TABLE u (id int, name string)", ()),
    ("SHOW TABLES", ("t", "u")),
    (f"SHOW TABLES IN {_DATABASE} LIKE 't%'", ("t",)),
    ("SHOW EXTENDED TABLES", ("t", "u")),
    ("SHOW TABLE EXTENDED LIKE 't'", ("tableName:t",)),
    ("SHOW CREATE TABLE t", ("CREATE TABLE `t`(",)),
    ("SHOW TBLPROPERTIES t", ("transactional",)),
    ("SHOW COLUMNS IN t", ("amount", "dt")),
    ("SHOW FUNCTIONS LIKE 'conc%'", ("concat",)),
    ("DESCRIBE FUNCTION EXTENDED concat", ()),
    ("INSERT INTO t VALUES (1,'a',1.5,'2026-01-01'), (2,'b',2.5,'2026-01-02'), (3,'c',3.5,'2026-01-02')", ()),
    ("INSERT OVERWRITE TABLE u SELECT id, name FROM t", ()),
    ("SHOW PARTITIONS t", ("dt=2026-01-01", "dt=2026-01-02")),
    ("SHOW LOCKS", ()),
    ("SHOW TRANSACTIONS", ()),
    ("SHOW COMPACTIONS", ()),
    ("SHOW CONF 'hive.txn.timeout'", ("300s",)),
    ("SHOW CURRENT ROLES", ("public",)),
    ("SHOW RESOURCE PLANS", ()),
    ("DESCRIBE t", ("id", "dt")),
    ("DESCRIBE EXTENDED t", ("id",)),
    ("DESCRIBE FORMATTED t", ("# Detailed Table Information",)),
    ("DESCRIBE FORMATTED t PARTITION (dt='2026-01-02')", ("# Detailed Partition Information",)),
    ("DESCRIBE FORMATTED t id", ("col_name",)),
    ("EXPLAIN SELECT count(*) FROM t WHERE dt = '2026-01-02'", ("Stage-0",)),
    ("EXPLAIN EXTENDED SELECT * FROM t WHERE id > 1", ("STAGE DEPENDENCIES:",)),
    ("EXPLAIN CBO SELECT t.id FROM t JOIN u ON t.id = u.id", ("CBO PLAN:",)),
    ("EXPLAIN VECTORIZATION SELECT sum(amount) FROM t", ("PLAN VECTORIZATION:",)),
    ("UPDATE t SET name = 'bb' WHERE id = 2", ()),
    ("DELETE FROM t WHERE id = 3", ()),
    (
        """MERGE INTO t USING u ON t.id = u.id
           WHEN MATCHED AND t.id = 1 THEN UPDATE SET name = 'merged'
           WHEN MATCHED THEN DELETE
           WHEN NOT MATCHED THEN INSERT VALUES (u.id, u.name, 9.9, DATE '2026-01-03')""",
        (),
    ),
    ("SELECT id, name FROM t", ("1", "3")),
    ("CREATE VIEW v AS SELECT id, upper(name) AS n FROM t", ()),
    ("SELECT n FROM v", ("MERGED", "C")),
    ("SHOW VIEWS", ("v",)),
    ("ALTER VIEW v AS SELECT id FROM t", ()),
    (f"CREATE TABLE c {_ACID} AS SELECT id, name FROM t", ()),
    ("CREATE TABLE l LIKE t", ()),
    ("CREATE MATERIALIZED VIEW mv AS SELECT dt, count(*) AS n FROM t GROUP BY dt", ()),
    ("ALTER MATERIALIZED VIEW mv REBUILD", ()),
    ("DROP MATERIALIZED VIEW mv", ()),
    ("ALTER TABLE t ADD COLUMNS (note string)", ()),
    ("ALTER TABLE u CHANGE COLUMN name title string", ()),
    ("ALTER TABLE u RENAME TO renamed", ()),
    ("ALTER TABLE t ADD PARTITION (dt='2026-02-01')", ()),
    ("ALTER TABLE t DROP PARTITION (dt='2026-02-01')", ()),
    ("ALTER TABLE t PARTITION (dt='2026-01-01') COMPACT 'minor'", ()),
    ("MSCK REPAIR TABLE t", ()),
    ("ANALYZE TABLE t PARTITION (dt) COMPUTE STATISTICS", ()),
    ("ANALYZE TABLE t PARTITION (dt) COMPUTE STATISTICS FOR COLUMNS", ()),
    ("SELECT dt, count(*), sum(amount), avg(amount), max(name) FROM t GROUP BY dt ORDER BY dt", ("2026-01-01",)),
    ("SELECT id, row_number() OVER (PARTITION BY dt ORDER BY id), lag(id) OVER (ORDER BY id) FROM t", ("1", "3")),
    ("SELECT a.id FROM t a LEFT JOIN renamed b ON a.id = b.id FULL OUTER JOIN c ON c.id = a.id", ("1", "3")),
    ("WITH q AS (SELECT id FROM t) SELECT count(*) FROM q WHERE id IN (SELECT id FROM c)", ("2",)),
    ("SELECT get_json_object('{\"a\":{\"b\":1}}', '$.a.b')", ("1",)),
    ("SELECT regexp_replace('abc', 'b', 'x'), split('a,b', ','), md5('a'), date_add('2026-01-01', 3)", ("axc",)),
    ("SELECT date_format(DATE '2026-01-31', 'yyyy'), from_unixtime(0), add_months('2026-01-31', 1)", ("2026",)),
    (
        "SELECT mask('abc'), uuid() IS NOT NULL, current_database(), version(), parse_url('http://h/p', 'HOST')",
        ("xxx",),
    ),
    ("SELECT e FROM t LATERAL VIEW explode(array(1, 2)) x AS e", ("1", "2")),
    ("SELECT ds_hll_estimate(ds_hll_sketch(id)), percentile_approx(id, 0.5), collect_set(id) FROM c", ()),
    (f"CREATE SCHEDULED QUERY {_DATABASE} CRON '0 0 0 1 1 ? 2099' AS SELECT 1", ()),
    (f"DROP SCHEDULED QUERY {_DATABASE}", ()),
    ("CREATE TABLE parquet_table STORED AS PARQUET AS SELECT id, name FROM t", ()),
    ("CREATE TABLE avro_table STORED AS AVRO AS SELECT id, name FROM t", ()),
    ("SELECT p.id FROM parquet_table p JOIN avro_table a ON p.id = a.id", ("1", "3")),
    ("TRUNCATE TABLE c", ()),
    ("DROP VIEW v", ()),
    ("DROP TABLE l PURGE", ()),
    (f"DROP DATABASE {_DATABASE} CASCADE", ()),
)


@pytest.fixture
def session(addresses: Addresses) -> Iterator[Any]:
    assert addresses.hiveserver2
    connection = connect(addresses.hiveserver2)
    try:
        yield connection.cursor()
    finally:
        connection.close()


def test_common_statements_when_run_in_order_then_all_work(session: Any, stack: Stack) -> None:
    failed = []
    for statement, expected in _STATEMENTS:
        try:
            session.execute(statement)
            rows = [str(row[0]).strip() for row in session.fetchall()] if session.description else []
        except Error as error:  # the test reports all failing statements
            failed.append(f"{statement}: {str(error)[:300]}")
            continue
        if " COMPACT " in statement:
            wait_for_cleaner(stack, f"{_DATABASE}.t")
        failed += [f"{statement}: no {text!r} in {rows}" for text in expected if not any(text in row for row in rows)]
    assert not failed, "\n".join(failed)


def test_query_when_tez_runs_it_then_the_jar_that_it_copies_is_small_and_in_the_state_folder(
    addresses: Addresses, session: Any
) -> None:
    table = f"copied_{uuid.uuid4().hex[:6]}"
    session.execute(f"CREATE TABLE {table} (id int) {_ACID}")
    session.execute(f"INSERT INTO {table} VALUES (1)")
    copied = list(Path(addresses.state_dir).rglob(".hiveJars/*.jar"))
    assert copied
    assert [jar for jar in copied if jar.stat().st_size > 1 << 20] == []
