"""Queries on the target while the source changes: compactions of both sides, writers of every kind, and readers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ingestd.hive.compactions import read_compactions, request_compaction
from ingestd.hive.objects import find_table
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import abort_all, open_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.copy import Copier
from ingestd.replication.load.bootstrap import load_bootstrap
from ingestd.replication.statements.scope import Scope
from ingestd.replication.verify.checksum_jobs import ColumnChecks
from ingestd.replication.verify.content import Verdict
from ingestd.replication.verify.tables import TableReport, verify
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.replication.test_copy import Meddler
from tests.support.compaction import compact
from tests.support.replica import Replica
from tests.support.replica_copying import new_copying
from tests.support.replica_following import Following
from tests.support.replica_rows import insert, table_of
from tests.support.replica_statements import ACID, INSERT_ONLY, assert_equal, run
from tests.support.replica_tables import make_table
from tests.support.stack import Stack, eventually


def test_query_when_transactions_write_two_tables_then_it_never_sees_one_without_the_other(
    following: Following,
) -> None:
    run(
        following,
        f"CREATE TABLE {{db}}.left_side (id INT) {ACID}",
        f"CREATE TABLE {{db}}.right_side (id INT) {ACID}",
        f"CREATE TABLE {{db}}.ids (id INT) {ACID}",
        "INSERT INTO {db}.ids VALUES (1), (2)",
    )
    following.cycle()
    query = (
        "SELECT l.n, l.s, r.n, r.s FROM (SELECT count(*) AS n, sum(id) AS s FROM {db}.left_side) l"
        " CROSS JOIN (SELECT count(*) AS n, sum(id) AS s FROM {db}.right_side) r"
    ).replace("{db}", following.target)

    def follow() -> None:
        for number in range(4):
            run(
                following,
                f"FROM {{db}}.ids INSERT INTO {{db}}.left_side SELECT id + {number}"
                f" INSERT INTO {{db}}.right_side SELECT id + {number}",
            )
            if number % 2:
                following.cycle()

    seen = set()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(follow)
        while not work.done():
            seen.update(following.replica.target.sql(query))
        work.result()
    seen.update(following.replica.target.sql(query))
    assert all((left, left_sum) == (right, right_sum) for left, left_sum, right, right_sum in seen), seen
    assert (8, 24, 8, 24) in seen


def test_compactions_when_they_run_on_either_side_then_the_next_cycle_makes_it_equal(following: Following) -> None:
    run(
        following,
        f"CREATE TABLE {{db}}.t (id INT, v INT) {ACID}",
        "INSERT INTO {db}.t VALUES (1, 1), (2, 2)",
        "INSERT INTO {db}.t VALUES (3, 3)",
    )
    following.cycle()
    compact(following.replica.target, f"{following.target}.t", "major")
    run(following, "UPDATE {db}.t SET v = 10 WHERE id < 3", "DELETE FROM {db}.t WHERE id = 3")
    following.cycle()
    assert_equal(following, "SELECT * FROM {db}.t")
    source = following.replica.source.metastore
    # The cleaner waits for all older transactions, and other tests leave some open.
    abort_all(source, open_transactions(source, ""))
    run(following, "INSERT INTO {db}.t VALUES (4, 4)")
    compact(following.replica.source, f"{following.database}.t", "major")
    table = find_table(source, following.name("t"))
    assert table is not None
    place = local_path(table.location)
    eventually("the cleaner removes the deltas", lambda: not list(place.glob("delta_*")))
    assert following.cycle().bootstrapped == ("t",)
    assert_equal(following, "SELECT * FROM {db}.t")
    run(following, "UPDATE {db}.t SET v = 11 WHERE id = 4")
    assert following.cycle().bootstrapped == ()
    assert_equal(following, "SELECT * FROM {db}.t", "SELECT count(*), max(v) FROM {db}.t")


def test_bootstrap_when_the_target_is_compacted_before_the_last_file_then_has_all_rows(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    metastore, name = replica.target.metastore, TableName(copying.target, "t")
    make_table(replica.source.metastore, TableName(copying.database, "t"))
    insert(replica.source, TableName(copying.database, "t"), [(1, "a")], [(2, "b")], [(3, "c")])
    dump = copying.dump()
    replica.target.sql("SHOW DATABASES")  # its HiveServer2 compacts

    def compact_before(file: Path) -> None:
        if file.parent.name == "delta_0000001_0000001_0000":
            place = local_path(table_of(metastore, name).location)
            eventually("the other files", lambda: len(list(place.glob("delta_*/bucket_*"))) == 2)
            made = request_compaction(metastore, name, WHOLE_TABLE, "major", "tests")
            eventually(
                "its end",
                lambda: (
                    made.id
                    not in {compaction.id for compaction in read_compactions(metastore) if compaction.is_pending}
                ),
            )

    cluster, copier = Cluster(metastore, Storages()), Copier(Meddler(compact_before))
    load_bootstrap(cluster, dump, copying.directory.metadata(dump), copier, copying.loading, threading.Event())
    assert copying.rows("t") == {"t": [(1, "a"), (2, "b"), (3, "c")]}


def test_tables_when_a_daemon_fills_them_then_target_has_their_rows(following: Following, source_stack: Stack) -> None:
    run(
        following,
        f"CREATE TABLE {{db}}.plain (id INT, day STRING) {ACID}",
        f"CREATE TABLE {{db}}.parted (id INT) PARTITIONED BY (day STRING) {ACID}",
        f"CREATE TABLE {{db}}.bucketed (id INT, day STRING) CLUSTERED BY (id) INTO 3 BUCKETS {ACID}",
        f"CREATE TABLE {{db}}.inserted (id INT, day STRING) {INSERT_ONLY}",
    )
    source_stack.topic(2)
    tables = ("plain", "parted", "bucketed", "inserted")
    mappings = [
        {
            "name": f"{source_stack.name[-30:]}_{table}",
            "table": f"{following.database}.{table}",
            "commit": {"rows": 100},
            "on_error": "dead_letter",
            "dead_letter": {"table": f"{following.database}.dead"},
        }
        for table in tables
    ]
    for number in range(1, 3):
        source_stack.produce([{"id": n, "day": f"2026-11-0{n % 3 + 1}"} for n in range(300)])
        source_stack.produce([{"id": "none"}, b"no JSON \xff"])
        source_stack.drain(source_stack.config(*mappings))
        report = following.cycle()
        assert (report.bootstrapped, report.lost) == ((), ())
        for table in tables:
            assert_equal(
                following,
                f"SELECT id, day FROM {{db}}.{table}",
                f"SELECT count(*), min(id), max(id) FROM {{db}}.{table}",
            )
        assert_equal(following, "SELECT *, hex(record_value) FROM {db}.dead", "SELECT count(*) FROM {db}.dead")
        reports = {report.table: report for report in _verify(following)}
        assert {report.verdict for report in reports.values()} == {Verdict.EQUAL}, reports
        assert {report.target_rows for report in reports.values()} == {300 * number, 2 * len(tables) * number}
    run(following, "UPDATE {db}.bucketed SET day = 'x' WHERE id < 10", "DELETE FROM {db}.dead WHERE record_offset < 2")
    following.cycle()
    assert_equal(following, "SELECT * FROM {db}.bucketed", "SELECT id, error_reason FROM {db}.dead")


def _verify(following: Following) -> list[TableReport]:
    source, target = (
        Cluster(side.metastore, Storages()) for side in (following.replica.source, following.replica.target)
    )
    return list(verify(source, target, Scope(following.database), following.target, ColumnChecks()))
