"""Bucketed tables: HiveServer2 finds every row of a mapping in the bucket in which its own INSERT stores it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from ingestd.acid.layout import bucket_name, bucket_property, delta_name
from tests.support.compaction import request_compaction
from tests.support.stack import Row, Stack

ALERTS = (
    "(id int, msg string) PARTITIONED BY (continent string, country string) CLUSTERED BY (id) INTO 5 BUCKETS "
    "STORED AS ORC TBLPROPERTIES ('transactional'='true', 'no_auto_compaction'='true')"
)
ROWS = 60_000  # enough for two Spark tasks
BUCKETS = 3
VERSIONS = (1, 2)
ACID = "'transactional'='true', 'no_auto_compaction'='true'"
BUCKET = "regexp_extract(INPUT__FILE__NAME, 'bucket_([0-9]+)', 1)"
SUMS = "count(*), count(DISTINCT id), sum(id), sum(k), sum(length(s)), sum(length(note))"
VALUES = "s = 's4é' AND k = 2409 OR s IS NULL AND k = -5000"


def _record(number: int) -> dict[str, object]:
    return {
        "id": number,
        "k": number * 7_919 % 10_007 - 5_000,
        "s": None if number % 50 == 0 else f"s{number % 13}é",
        "note": f"n{number % 97}",
        "p": "ab"[number % 2],
    }


class _Bucketed:
    """A table of each bucketing version, filled by one transaction each, and its copy that Hive has written."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        stack.topic(2)
        tables = {version: f"{stack.name}_v{version}" for version in VERSIONS}
        for version, table in tables.items():
            for name in (table, f"{table}_hive"):
                stack.sql(
                    f"CREATE TABLE {name} (id int, k bigint, s string, note string) PARTITIONED BY (p string)"
                    f" CLUSTERED BY (s, k) INTO {BUCKETS} BUCKETS STORED AS ORC"
                    f" TBLPROPERTIES ({ACID}, 'bucketing_version'='{version}')"
                )
        stack.produce(map(_record, range(ROWS)))
        # Until a stage has measured the size of a record, `bytes` limits the number of records of a transaction.
        commit = {"bytes": "1GiB"}
        mappings = ({"name": t[-40:], "table": f"default.{t}", "commit": commit} for t in tables.values())
        stack.drain(stack.config(*mappings))
        self.tables = list(tables.values())
        for table in self.tables:
            stack.sql(f"INSERT INTO {table}_hive SELECT * FROM {table}")

    def compare(self, deleted: str = "false", changed: str = "false") -> None:
        """Check that rows and buckets are those of the copy, whose rows have been `deleted` and `changed` since."""
        for table in self.tables:
            copy = (
                f"(SELECT id, k, s, if({changed}, 'new', note) note, p, INPUT__FILE__NAME"
                f" FROM {table}_hive WHERE NOT ({deleted})) q"
            )
            found, wanted = self._both(f"SELECT p, {BUCKET}, {SUMS} FROM {{}} GROUP BY p, {BUCKET}", table, copy)
            assert found == wanted
            assert len(found) == 2 * BUCKETS
            # Hive reads only the buckets of these values.
            found, wanted = self._both(f"SELECT id, note FROM {{}} WHERE {VALUES}", table, copy)
            assert found == wanted
            assert len(found) == 2

    def _both(self, query: str, *tables: str) -> list[list[Row]]:
        """Run a query with each table for `{}`, and return the sorted rows of each."""
        texts = (f"SELECT {n}, * FROM ({query.format(table)}) q{n}" for n, table in enumerate(tables))
        rows = self.stack.sql(" UNION ALL ".join(texts))
        return [sorted((row[1:] for row in rows if row[0] == n), key=repr) for n in range(len(tables))]


def test_rows_when_two_tasks_write_each_bucket_then_hive_reads_changes_and_compacts_them_as_its_own(
    stack: Stack,
) -> None:
    bucketed = _Bucketed(stack)
    for table in bucketed.tables:
        files = stack.sql(
            "SELECT p, INPUT__FILE__NAME, ROW__ID.bucketid, ROW__ID.writeid, count(*), count(DISTINCT ROW__ID.rowid)"
            f" FROM {table} GROUP BY p, INPUT__FILE__NAME, ROW__ID.bucketid, ROW__ID.writeid"
        )
        [write_id] = {write_id for _, _, _, write_id, _, _ in files}
        assert {(p, *PurePosixPath(str(file)).parts[-2:], key) for p, file, key, *_ in files} == {
            (p, delta_name(write_id, task), bucket_name(bucket), bucket_property(bucket, task))
            for p in "ab"
            for bucket in range(BUCKETS)
            for task in range(2)
        }
        assert all(rows == row_ids for *_, rows, row_ids in files)
        assert sum(rows for *_, rows, _ in files) == stack.count(name=table) == ROWS
    bucketed.compare()
    deleted, changed = "id % 7 = 3", "id % 11 = 1"
    for table in bucketed.tables:
        stack.sql(
            f"MERGE INTO {table} t USING (SELECT id i FROM {table}_hive WHERE {deleted} OR {changed}) q ON t.id = q.i"
            f" WHEN MATCHED AND t.{deleted} THEN DELETE WHEN MATCHED THEN UPDATE SET note = 'new'"
        )
    jobs = zip(bucketed.tables, ("minor", "major"), "ab", strict=True)
    for wait in [request_compaction(stack, f"default.{table}", kind, f"p='{p}'") for table, kind, p in jobs]:
        wait()
    bucketed.compare(deleted, changed)


def test_alerts_when_mappings_have_static_and_dynamic_partitions_then_each_record_is_a_row_or_a_reject(
    stack: Stack,
) -> None:
    """The table is that of the example of Hive Streaming."""
    stack.sql(f"CREATE TABLE {stack.name} {ALERTS}")
    fixed, dynamic = f"{stack.name}_fixed", f"{stack.name}_dynamic"
    for topic in (fixed, dynamic):
        stack.topic(1, topic)
    stack.produce([b"1,val1", b"2,val2", b"x,val3", b"4,val4"], fixed)
    stack.produce([b"11,val11,Asia,China", b"12,val12,Asia,India", b"13,val13,Europe,Germany", b"14"], dynamic)
    common = {"table": f"default.{stack.name}", "on_error": "dead_letter"}
    delimited = {"type": "delimited", "field_delimiter": ","}
    static = {"continent": "Asia", "country": "India"}
    mappings: tuple[dict[str, Any], ...] = (
        {"topics": [fixed], "partition": static, "format": delimited | {"fields": ["id", "msg"]}},
        {"topics": [dynamic], "format": delimited | {"fields": ["id", "msg", *static]}},
    )
    stack.drain(stack.config(*(common | {"name": mapping["topics"][0][-40:]} | mapping for mapping in mappings)))

    assert sorted(stack.sql(f"SELECT * FROM {stack.name}")) == [
        (1, "val1", "Asia", "India"),
        (2, "val2", "Asia", "India"),
        (4, "val4", "Asia", "India"),
        (11, "val11", "Asia", "China"),
        (12, "val12", "Asia", "India"),
        (13, "val13", "Europe", "Germany"),
    ]
    letters = stack.sql(f"SELECT record_topic, record_offset, error_column FROM {stack.name}_rejects")
    assert sorted(letters) == [(dynamic, 3, ""), (fixed, 2, "id")]
    for bucket in range(1, 6):
        sampled = stack.sql(f"SELECT id FROM {stack.name} TABLESAMPLE(BUCKET {bucket} OUT OF 5 ON id)")
        stored = stack.sql(f"SELECT id FROM {stack.name} WHERE INPUT__FILE__NAME LIKE '%bucket_{bucket - 1:05d}'")
        assert sorted(sampled) == sorted(stored)
