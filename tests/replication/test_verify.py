"""The comparison of a copy with its source finds what differs, and nothing else."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hive_metastore import ttypes
from pyarrow import orc

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.objects import alter_table, drop_partitions, drop_table
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import begin_writing, commit
from ingestd.replication.cluster import Cluster
from ingestd.replication.load.table_load import loading_name
from ingestd.replication.statements.scope import Scope
from ingestd.replication.verify.checksum_jobs import ColumnChecks
from ingestd.replication.verify.content import Verdict
from ingestd.replication.verify.tables import TableReport, compare_write_ids, verify
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.replica import Replica, Side
from tests.support.replica_copying import TABLES, Copying, fill, new_copying
from tests.support.replica_following import Following
from tests.support.replica_rows import compact, delete_like, insert, table_of
from tests.support.replica_tables import ACID, EXTERNAL, make_table

BASIC = '{"BASIC_STATS":"true"}'


@pytest.fixture
def copied(replica: Replica, tmp_path: Path) -> Copying:
    """Yield a database with tables of all kinds, and its copy."""
    made = new_copying(replica, tmp_path)
    fill(made)
    made.dump()
    made.load()
    return made


def _verify(copying: Copying, *names: str, columns: ColumnChecks | None = None) -> dict[str, TableReport]:
    source, target = (Cluster(side.metastore, Storages()) for side in (copying.replica.source, copying.replica.target))
    reports = verify(source, target, Scope(copying.database), copying.target, columns)
    return {report.table: report for report in reports if not names or report.table in names}


def _location(side: Side, database: str, table: str) -> Path:
    return local_path(table_of(side.metastore, TableName(database, table)).location)


def test_copy_when_complete_then_is_equal_file_by_file(copied: Copying) -> None:
    reports = _verify(copied)
    assert [name for name, report in reports.items() if (report.verdict, report.findings) != (Verdict.EQUAL, ())] == []
    assert reports.keys() == TABLES.keys()
    assert reports["parted"].locations == 3
    plain = reports["plain"]
    assert (plain.files, plain.rows, plain.target_rows) == (2, 3, 3)
    assert plain.write_ids.partition(":")[2] == f"4:{2**63 - 1}::2,4"
    assert plain.target_write_ids.partition(":")[2] == f"4:{2**63 - 1}::"  # ids without files count as valid


def test_copy_when_a_file_is_missing_then_is_different(copied: Copying) -> None:
    shutil.rmtree(_location(copied.replica.target, copied.target, "plain") / "delta_0000003_0000003_0000")
    report = _verify(copied, "plain")["plain"]
    assert report.verdict is Verdict.DIFFERENT
    assert "the source has 3 rows, and the target 2" in report.findings[0]


def test_copy_when_rows_and_their_deletes_are_missing_then_is_different(replica: Replica, tmp_path: Path) -> None:
    copying = new_copying(replica, tmp_path)
    side, name = replica.source, TableName(copying.database, "t")
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")], [(2, "b")])
    deletes = delete_like(side, name, write_id=2)
    copying.dump()
    copying.load()
    assert _verify(copying)["t"].verdict is Verdict.EQUAL
    location = _location(replica.target, copying.target, "t")
    for delta in ("delta_0000002_0000002_0000", deletes):
        shutil.rmtree(location / delta)
    report = _verify(copying)["t"]
    assert (report.verdict, report.rows, report.target_rows) == (Verdict.DIFFERENT, 1, 1)
    assert "2 files are missing on the target: delete_delta_0000003" in report.findings[0]


def test_copy_when_its_statistics_are_wrong_then_is_different(replica: Replica, tmp_path: Path) -> None:
    copying = new_copying(replica, tmp_path)
    side, name = replica.source, TableName(copying.database, "t")
    make_table(side.metastore, name, parameters={**ACID, "numRows": "2", "COLUMN_STATS_ACCURATE": BASIC})
    insert(side, name, [(1, "a"), (2, "b")])
    copying.dump()
    copying.load()
    assert _verify(copying)["t"].verdict is Verdict.EQUAL
    metastore, copied = replica.target.metastore, TableName(copying.target, "t")
    found = table_of(metastore, copied)
    claim = {"numRows": "3", "COLUMN_STATS_ACCURATE": BASIC}
    wrong = found.copied(copied, found.raw.sd.location, {**found.parameters, **claim})
    wrong.raw.writeId = 1
    alter_table(metastore, copied, wrong)
    report = _verify(copying)["t"]
    assert (report.verdict, report.findings) == (
        Verdict.DIFFERENT,
        ("the statistics of the target count 3 rows, but it has 2",),
    )


def test_copy_when_a_partition_is_missing_then_names_it(copied: Copying) -> None:
    metastore = copied.replica.target.metastore
    metastore.call("drop_partition_by_name", copied.target, "parted", "day=a", True)
    report = _verify(copied, "parted")["parted"]
    assert report.verdict is Verdict.DIFFERENT
    assert report.findings[0].startswith("partition day=a: the source has 2 rows, and the target 0")


def test_copy_when_tables_were_dropped_and_created_then_is_different(copied: Copying) -> None:
    drop_table(copied.replica.target.metastore, TableName(copied.target, "plain"), delete_data=True)
    make_table(copied.replica.target.metastore, TableName(copied.target, "other"))
    reports = _verify(copied, "plain", "other")
    assert reports["plain"].findings == ("the target has no such table",)
    assert reports["other"].findings == ("the source has no such table",)


def test_copy_when_changes_are_not_replayed_yet_then_is_not_comparable(copied: Copying) -> None:
    metastore = copied.replica.source.metastore
    plain, parted, only, later = (TableName(copied.database, name) for name in ("plain", "parted", "only", "later"))
    drop_table(metastore, plain, delete_data=True)
    drop_partitions(metastore, parted, ["day=a"], delete_data=True)
    changed = table_of(metastore, only)
    changed.raw.sd.cols[0].comment = "the key"
    alter_table(metastore, only, changed)
    make_table(metastore, later)
    make_table(copied.replica.target.metastore, TableName(copied.target, loading_name("plain")))
    reports = _verify(copied)
    assert {name: one.verdict for name, one in reports.items() if one.verdict is not Verdict.EQUAL} == dict.fromkeys(
        ("plain", "parted", "later"), Verdict.NOT_COMPARABLE
    )
    changed.raw.sd.cols.append(changed.raw.sd.cols[0].__class__(name="added", type="int"))
    alter_table(metastore, only, changed)
    report = _verify(copied, "only")["only"]
    assert report.verdict is Verdict.NOT_COMPARABLE
    assert report.findings[-1] == "the target has not replayed all changes of the source yet"


def test_copy_when_it_lags_behind_then_is_equal_as_far_as_it_goes(copied: Copying) -> None:
    insert(copied.replica.source, TableName(copied.database, "plain"), [(7, "g")], [(8, "h")])
    report = _verify(copied, "plain")["plain"]
    assert (report.verdict, report.behind) == (Verdict.EQUAL, 2)


def test_copy_when_one_side_is_compacted_then_rows_are_compared(copied: Copying) -> None:
    compact(copied.replica.source, TableName(copied.database, "only"), write_id=1, of_write_id=1)
    compact(copied.replica.target, TableName(copied.target, "plain"), write_id=1, of_write_id=1)
    reports = _verify(copied, "plain", "only")
    assert {report.verdict for report in reports.values()} == {Verdict.EQUAL}


def test_columns_when_compared_then_are_equal_although_each_side_is_compacted(copied: Copying) -> None:
    compact(copied.replica.source, TableName(copied.database, "only"), write_id=1, of_write_id=1)
    compact(copied.replica.target, TableName(copied.target, "plain"), write_id=1, of_write_id=1)
    reports = _verify(copied, columns=ColumnChecks())
    assert {(report.verdict, report.findings) for report in reports.values()} == {(Verdict.EQUAL, ())}
    assert {name: (report.rows, report.target_rows) for name, report in reports.items()} == {
        name: (len(rows), len(rows)) for name, rows in TABLES.items()
    }


def test_columns_when_a_value_differs_then_names_the_column_and_the_partition(copied: Copying) -> None:
    def bucket(side: Side, database: str, table: str) -> Path:
        [file] = (_location(side, database, table) / "day=a" / "delta_0000002_0000002_0000").glob("bucket_*")
        return file

    def copy_of(identity: int) -> Path:
        name = TableName(copied.database, f"other{identity}")
        make_table(copied.replica.source.metastore, name, partitioned=True)
        insert(copied.replica.source, name, [(1, "a")], [(identity, "a")])
        return bucket(copied.replica.source, copied.database, name.table)

    file = bucket(copied.replica.target, copied.target, "parted")
    # Files are compressed, so not every other number makes a file of the same length.
    wrong = next(path for path in map(copy_of, range(4, 60)) if path.stat().st_size == file.stat().st_size)
    shutil.copy(wrong, file)
    assert _verify(copied, "parted")["parted"].verdict is Verdict.EQUAL
    report = _verify(copied, "parted", columns=ColumnChecks())["parted"]
    assert report.verdict is Verdict.DIFFERENT
    assert report.findings == ("partition day=a: the values of these columns are different: id",)


def test_copy_when_the_source_is_compacted_beyond_it_then_is_not_comparable(copied: Copying) -> None:
    name = TableName(copied.database, "plain")
    insert(copied.replica.source, name, [(7, "g")])
    compact(copied.replica.source, name, write_id=5, of_write_id=3)
    report = _verify(copied, "plain")["plain"]
    assert report.verdict is Verdict.NOT_COMPARABLE
    assert "compacted after the last write" in report.findings[0]


def test_copy_when_another_client_wrote_to_it_then_is_different(copied: Copying) -> None:
    name = TableName(copied.target, "plain")
    metastore = copied.replica.target.metastore
    txn, write_id = begin_writing(metastore, name, "test")
    commit(metastore, txn)
    insert(copied.replica.source, TableName(copied.database, "plain"), [(7, "g")])
    location = _location(copied.replica.target, copied.target, "plain")
    delta = f"delta_{write_id:07d}_{write_id:07d}_0000"
    shutil.copytree(location / "delta_0000001_0000001_0000", location / delta)
    report = _verify(copied, "plain")["plain"]
    assert report.verdict is Verdict.DIFFERENT
    assert "the source has 4 rows, and the target 5" in report.findings[0]


def test_external_table_when_its_source_has_changed_then_is_behind_and_not_different(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    name = TableName(copying.database, "t")
    make_table(replica.source.metastore, name, parameters=EXTERNAL, location=f"file:{tmp_path}/t")
    orc.write_table(pa.table({"id": [1, 2]}), tmp_path / "t" / "a")
    copying.dump()
    copying.load()
    report = _verify(copying, columns=ColumnChecks())["t"]
    assert (report.verdict, report.behind, report.rows, report.target_rows) == (Verdict.EQUAL, 0, 2, 2)

    orc.write_table(pa.table({"id": [3]}), tmp_path / "t" / "b")
    report = _verify(copying)["t"]
    assert (report.verdict, report.behind, report.rows, report.target_rows) == (Verdict.EQUAL, 1, None, 2)
    report = _verify(copying, columns=ColumnChecks())["t"]
    assert (report.verdict, report.findings) == (
        Verdict.NOT_COMPARABLE,
        ("1 files have changed on the source since they were copied",),
    )

    (_location(replica.target, copying.target, "t") / "a").unlink()
    report = _verify(copying)["t"]
    assert report.verdict is Verdict.DIFFERENT
    assert "2 files are missing on the target: a, b" in report.findings[0]


def test_external_partitions_when_in_any_directory_then_are_copied(replica: Replica, tmp_path: Path) -> None:
    root = tmp_path / "dumps"
    root.mkdir()
    copying = new_copying(replica, root)
    metastore, name = replica.source.metastore, TableName(copying.database, "t")
    location = tmp_path / "50% ü:x"
    make_table(metastore, name, partitioned=True, parameters=EXTERNAL, location=f"file:{location}")
    table = table_of(metastore, name)

    def add(day: str, place: Path) -> None:
        place.mkdir(parents=True)
        orc.write_table(pa.table({"id": [1]}), place / "000000_0")
        storage = copy.copy(table.raw.sd)
        storage.location = f"file:{place}"
        raw = ttypes.Partition(values=[day], dbName=name.database, tableName="t", sd=storage, parameters={})
        metastore.call("add_partition", raw)

    places = [location / "a", location / "_hidden" / "b c", location / ".d", tmp_path / "_else where" / "%41"]
    for number, place in enumerate(places):
        add(f"{number} ü%:/", place)
    copying.dump()
    copying.load()
    add("5", location / "_hidden" / "more")
    Following(replica, copying.database, copying.target, root).cycle()
    report = _verify(copying)["t"]
    assert (report.verdict, report.findings, report.behind) == (Verdict.EQUAL, (), 0)
    assert (report.locations, report.rows, report.target_rows) == (5, 5, 5)


@pytest.mark.parametrize(
    ("high", "opened", "aborted", "findings"),
    [
        (4, {4}, {2}, []),
        (4, {4}, set(), []),
        (5, {4}, {2, 3}, []),
        (5, set(), {2}, ["write ids that are open on the source have ended on the target: 4"]),
        (8, {4}, {2}, ["the target has write ids that the source has not allocated: 7, 8"]),
    ],
)
def test_write_ids_when_they_differ_then_says_where(
    high: int, opened: set[int], aborted: set[int], findings: Sequence[str]
) -> None:
    source = ValidWriteIds("a.t", 6, open=frozenset({4}), aborted=frozenset({2, 5}))
    target = ValidWriteIds("b.t", high, open=frozenset(opened), aborted=frozenset(aborted))
    assert compare_write_ids(source, target) == findings
