"""The columns of partitions follow those of the source, although no event of ALTER TABLE … CASCADE has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.hive.client import Metastore
from ingestd.hive.objects import (
    PartitionObject,
    alter_partitions,
    drop_partitions,
    drop_table,
    find_partitions,
    rename_partition,
)
from ingestd.hive.tables import TableName
from ingestd.replication.cluster import Cluster
from ingestd.replication.directory.event_records import PartitionColumnsRecord
from ingestd.replication.directory.manifest import Manifest
from ingestd.replication.directory.protocol import Dump
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.replication.statements.scope import Scope
from ingestd.replication.verify.content import Verdict
from ingestd.replication.verify.tables import TableReport, verify
from ingestd.storage.contract import child
from ingestd.storage.storages import Storages
from tests.support.proxy import proxy
from tests.support.replica import Side
from tests.support.replica_changes import alter, renamed, with_column
from tests.support.replica_following import Following
from tests.support.replica_rows import insert, table_of
from tests.support.replica_statements import INSERT_ONLY, assert_equal, run
from tests.support.replica_tables import ACID, EXTERNAL, make_table

_DAYS = ("a", "b", "c")


def _make(following: Following, table: str, parameters: dict[str, str] = EXTERNAL) -> TableName:
    """Create a table with three partitions on the source."""
    side, name = following.replica.source, following.name(table)
    location = f"file:{side.external}/{following.database}/{table}" if parameters == EXTERNAL else None
    make_table(side.metastore, name, partitioned=True, parameters=parameters, location=location)
    if parameters == EXTERNAL:
        for day in _DAYS:
            side.metastore.call("append_partition", name.database, name.table, [day])
    else:
        insert(side, name, [(number, day) for number, day in enumerate(_DAYS)])
    return name


def _partitions(side: Side, name: TableName, *days: str) -> Iterator[PartitionObject]:
    return find_partitions(side.metastore, name, [f"day={day}" for day in days])


def _alter_partition(following: Following, name: TableName, day: str, column: str) -> None:
    """Give a partition of the source another column."""
    (partition,) = _partitions(following.replica.source, name, day)
    partition.raw.sd.cols.append(ttypes.FieldSchema(column, "string"))
    alter_partitions(following.replica.source.metastore, name, [partition])


def _columns(following: Following, table: str, *days: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the columns of each partition on the source and on the target."""
    sides = (following.replica.source, following.database), (following.replica.target, following.target)
    before, after = (
        [
            [f"{field.name} {field.type}" for field in partition.columns]
            for partition in sorted(_partitions(side, TableName(database, table), *days), key=lambda each: each.values)
        ]
        for side, database in sides
    )
    return before, after


def _assert_columns(following: Following, table: str, *columns: list[str], days: tuple[str, ...] = _DAYS) -> None:
    expected = list(columns)
    assert _columns(following, table, *days) == (expected, expected)
    assert _report(following, table).verdict is Verdict.EQUAL


def _report(following: Following, table: str) -> TableReport:
    source, target = (
        Cluster(side.metastore, Storages()) for side in (following.replica.source, following.replica.target)
    )
    reports = verify(source, target, Scope(following.database), following.target)
    return next(report for report in reports if report.table == table)


@pytest.mark.parametrize("parameters", [EXTERNAL, ACID], ids=["external", "acid"])
def test_partitions_when_an_alteration_is_cascaded_then_have_its_columns(
    following: Following, parameters: dict[str, str]
) -> None:
    name = _make(following, "t", parameters)
    following.cycle()
    alter(following, name, with_column, cascade=True)
    assert following.cycle().bootstrapped == ()
    _assert_columns(following, "t", *[["id bigint", "c1 int"]] * 3)
    alter(following, name, with_column)
    following.cycle()
    _assert_columns(following, "t", *[["id bigint", "c1 int"]] * 3)
    copied = table_of(following.replica.target.metastore, TableName(following.target, "t"))
    assert [field.name for field in copied.columns] == ["id", "c1", "c2"]


def test_partitions_when_the_table_and_they_change_in_one_cycle_then_have_the_last_columns(
    following: Following,
) -> None:
    side, name = following.replica.source, _make(following, "t")
    following.cycle()
    _alter_partition(following, name, "a", "own")
    alter(following, name, with_column, cascade=True)
    _alter_partition(following, name, "a", "own")
    (partition,) = _partitions(side, name, "b")
    partition.raw.values = ["d"]
    rename_partition(side.metastore, name, ["b"], partition)
    drop_partitions(side.metastore, name, ["day=c"], delete_data=True)
    side.metastore.call("append_partition", name.database, name.table, ["e"])
    alter(following, name, with_column)
    alter(following, name, renamed("u"))
    alter(following, following.name("u"), with_column, cascade=True)
    _alter_partition(following, following.name("u"), "e", "later")
    following.dump()
    assert following.load_interrupted() > 3
    every = ["id bigint", "c1 int", "c2 int", "c3 int"]
    _assert_columns(following, "u", every, every, [*every, "later string"], days=("a", "d", "e"))


def test_partitions_when_their_table_is_dropped_after_the_dump_then_the_next_cycles_make_them_equal(
    following: Following,
) -> None:
    side, dropped, again = following.replica.source, *(_make(following, name) for name in ("gone", "again"))
    following.cycle()
    for name in (dropped, again):
        alter(following, name, with_column, cascade=True)

    def change(step: DumpStep) -> None:
        """Drop the tables after the last event of the dump."""
        if step is DumpStep.EVENTS:
            for name in (dropped, again):
                drop_table(side.metastore, name, delete_data=False)
            _make(following, "again")

    following.dump(observe=change)
    assert following.load().bootstrapped == ("again",)
    following.cycle()
    _assert_columns(following, "again", *[["id bigint"]] * 3)


def test_columns_when_not_cascaded_then_no_partition_of_the_target_is_read(following: Following) -> None:
    name = _make(following, "t", ACID)
    following.cycle()
    for _ in range(3):
        alter(following, name, with_column)
    following.dump()
    calls = _calls_of_load(following)
    assert calls["alter_table_req"] == 3
    assert not calls["get_partitions_by_names_req"] + calls["alter_partitions_req"]
    _assert_columns(following, "t", *[["id bigint"]] * 3)


def test_columns_when_cascaded_several_times_in_a_cycle_then_each_side_handles_the_partitions_once(
    following: Following,
) -> None:
    name = _make(following, "t", ACID)
    following.cycle()
    for _ in range(3):
        alter(following, name, with_column, cascade=True)
    with proxy(following.replica.source.uri) as between, closing(Metastore(between.uri)) as source:
        dump = following.dump(metastore=source)
        assert between.calls["get_partitions_by_names_req"] == 1
    (record,) = _manifest(following, dump).read(PartitionColumnsRecord)
    assert record.partitions == ()
    calls = _calls_of_load(following)
    assert not calls["get_partitions_by_names_req"] + calls["alter_partitions_req"]
    _assert_columns(following, "t", *[["id bigint", "c1 int", "c2 int", "c3 int"]] * 3)


def test_columns_when_some_partitions_have_those_of_a_change_then_only_these_are_changed(following: Following) -> None:
    side, name = following.replica.source, _make(following, "t")
    following.cycle()
    alter(following, name, with_column, cascade=True)
    for day in _DAYS:
        _alter_partition(following, name, day, "own")
    alter(following, name, with_column)
    side.metastore.call("append_partition", name.database, name.table, ["new"])
    (record,) = _manifest(following, following.dump()).read(PartitionColumnsRecord)
    assert record.partitions == ("day=new",)
    following.load()
    own = ["id bigint", "c1 int", "own string"]
    _assert_columns(following, "t", own, own, own, ["id bigint", "c1 int", "c2 int"], days=(*_DAYS, "new"))


def _manifest(following: Following, dump: Dump) -> Manifest:
    payload = following.directory.metadata(dump).payload
    assert payload
    return Manifest(Storages().at(dump.uri), child(dump.uri, payload))


def _calls_of_load(following: Following) -> Counter[str]:
    """Load the dump that is not loaded; return how often each method of the metastore was called."""
    with proxy(following.replica.target.uri) as between, closing(Metastore(between.uri)) as target:
        following.load(metastore=target)
        return between.calls.copy()


def test_verification_when_definitions_of_partitions_differ_then_says_so(following: Following) -> None:
    target, name = following.replica.target.metastore, _make(following, "t")
    copied = TableName(following.target, "t")
    following.cycle()
    alter(following, name, with_column, cascade=True)
    assert _report(following, "t").verdict is Verdict.NOT_COMPARABLE
    following.cycle()
    assert _report(following, "t").verdict is Verdict.EQUAL
    _alter_partition(following, name, "a", "own")
    report = _report(following, "t")
    (finding,) = report.findings
    columns = "the columns of the source: id bigint, c1 int, own string; of the target: id bigint, c1 int"
    assert report.verdict is Verdict.NOT_COMPARABLE
    assert finding == f"partition day=a: {columns}; the target has not replayed all changes of the source yet"
    following.cycle()
    (partition,) = _partitions(following.replica.target, copied, "b")
    partition.raw.sd.serdeInfo.parameters = {"field.delim": ";"}
    alter_partitions(target, copied, [partition])
    report = _report(following, "t")
    assert report.verdict is Verdict.DIFFERENT
    assert "partition day=b: the serde of the source: " in report.findings[0]
    assert report.findings[0].endswith("OrcSerde field.delim=;")


def test_rows_when_columns_of_partitions_change_by_statements_then_target_has_them(
    following: Following, tmp_path: Path
) -> None:
    run(
        following,
        "CREATE EXTERNAL TABLE {db}.e (id INT) PARTITIONED BY (day STRING)"
        f" ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' STORED AS TEXTFILE LOCATION 'file:{tmp_path}/e'",
        *(f"ALTER TABLE {{db}}.e ADD PARTITION (day='{day}')" for day in _DAYS),
        f"CREATE TABLE {{db}}.o (id INT, v INT) PARTITIONED BY (day STRING) {INSERT_ONLY}",
        "INSERT INTO {db}.o PARTITION (day='a') VALUES (1, 2)",
        "ANALYZE TABLE {db}.o PARTITION (day) COMPUTE STATISTICS FOR COLUMNS",
    )
    for day in _DAYS:
        (tmp_path / "e" / f"day={day}" / "f").write_text("1,x;7,5\n2,y,6\n")
    following.cycle()
    queries = [
        "SELECT * FROM {db}.e",
        "SELECT * FROM {db}.o",
        "SELECT count(*), max(v), min(v) FROM {db}.o",
        "DESCRIBE {db}.o PARTITION (day='a')",
        *(f"DESCRIBE {{db}}.e PARTITION (day='{day}')" for day in _DAYS),
    ]
    assert_equal(following, *queries)
    for statements in (
        ["ALTER TABLE {db}.e ADD COLUMNS (name STRING) CASCADE", "ALTER TABLE {db}.o ADD COLUMNS (n STRING) CASCADE"],
        ["ALTER TABLE {db}.e ADD COLUMNS (size INT)", "ALTER TABLE {db}.e PARTITION (day='a') ADD COLUMNS (size INT)"],
        ["ALTER TABLE {db}.e PARTITION (day='b') SET SERDEPROPERTIES ('field.delim'=';')"],
        [
            "ALTER TABLE {db}.e CHANGE COLUMN id number BIGINT",
            "ALTER TABLE {db}.e PARTITION (day='c') SET FILEFORMAT ORC",
        ],
        ["ALTER TABLE {db}.e CHANGE COLUMN number number STRING COMMENT 'a text' CASCADE"],
        ["ALTER TABLE {db}.o CHANGE COLUMN v v BIGINT CASCADE"],
        ["ALTER TABLE {db}.o PARTITION (day='a') CHANGE COLUMN v v STRING"],
    ):
        if "FILEFORMAT" in statements[-1]:
            (tmp_path / "e" / "day=c" / "f").unlink()
        run(following, *statements)
        following.cycle()
        assert_equal(following, *queries)
        assert {_report(following, table).verdict for table in ("e", "o")} == {Verdict.EQUAL}, statements
