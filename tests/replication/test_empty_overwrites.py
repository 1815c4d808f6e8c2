"""An overwrite without rows empties the copy, although no event names its directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.acid.layout import base_name
from ingestd.hive import thrift_json
from ingestd.hive.events import Write
from ingestd.hive.notifications import WrittenPartition, notify_writes
from ingestd.hive.objects import alter_partitions, alter_table, find_partitions
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import Transaction, abort, commit
from ingestd.replication.directory.event_records import EventRecord
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.replication.dump.unannounced_writes import Candidate, candidates
from ingestd.replication.dump.written_files import CommittedWrite
from ingestd.replication.statements.scope import Scope
from ingestd.storage.local import local_path
from tests.support.replica import Replica, Side
from tests.support.replica_changes import alter, renamed
from tests.support.replica_copying import new_copying
from tests.support.replica_following import Following
from tests.support.replica_rows import (
    Rows,
    begin_locked,
    compact,
    forget_aborted_transactions,
    insert,
    read_rows,
    table_of,
)
from tests.support.replica_statements import ACID, INSERT_ONLY, assert_equal, run
from tests.support.replica_tables import make_table

_Announce = Callable[[Side, TableName, str, Transaction, int], None]


def _announce(side: Side, name: TableName, partition: str, txn: Transaction, write_id: int) -> None:
    """Announce a write without files."""
    raw = table_of(side.metastore, name)
    table = Table(name, 0, raw.location, (), (), None, frozenset(), {}, raw.raw)
    values = (partition.partition("=")[2],) if partition else ()
    notify_writes(side.metastore, txn, table, write_id, [WrittenPartition(values, [])])


def _alter(side: Side, name: TableName, partition: str, _txn: Transaction, write_id: int) -> None:
    """Alter the table or partition under the write id, as HiveServer2 does."""
    if partition:
        (found,) = find_partitions(side.metastore, name, [partition])
        alter_partitions(side.metastore, name, [found.with_write_id(write_id)])
    else:
        alter_table(side.metastore, name, table_of(side.metastore, name).with_write_id(write_id))


def _overwrite(
    side: Side, name: TableName, partition: str, tell: _Announce, end: Callable[[Side, Transaction], None]
) -> None:
    """Overwrite a table or partition without rows."""
    txn, write_id = begin_locked(side, name, partition)
    (local_path(table_of(side.metastore, name).location) / partition / base_name(write_id)).mkdir()
    tell(side, name, partition, txn, write_id)
    end(side, txn)


def _commit(side: Side, txn: Transaction) -> None:
    commit(side.metastore, txn)


def _abort(side: Side, txn: Transaction) -> None:
    abort(side.metastore, txn.id)


def _leave_open(_side: Side, _txn: Transaction) -> None:
    pass


def _rows(following: Following, table: str) -> tuple[Rows, Rows]:
    """Return the rows on both sides."""
    source, target = following.replica.source, following.replica.target
    return read_rows(source.metastore, following.name(table)), read_rows(
        target.metastore, TableName(following.target, table)
    )


def _table(partitioned: bool, rows: str | None) -> str:
    """Return the text of a transactional table; `rows` is the count in its statistics."""
    keys = [ttypes.FieldSchema("day", "string")] if partitioned else []
    storage = ttypes.StorageDescriptor(location="file:/w/t")
    parameters = {"transactional": "true", **({} if rows is None else {"numRows": rows})}
    table = ttypes.Table(dbName="d", tableName="t", sd=storage, partitionKeys=keys, parameters=parameters)
    return thrift_json.encode(table)


def _partition(day: str, write_id: int = 0) -> str:
    storage = ttypes.StorageDescriptor(location=f"file:/w/t/day={day}")
    return thrift_json.encode(ttypes.Partition(values=[day], sd=storage, parameters={}, writeId=write_id))


def _event(event: int, kind: str, **message: object) -> EventRecord:
    return EventRecord(event, kind, "t", json.dumps({"writeId": 3, "isTruncateOp": "false", **message}))


def _write(partition: str, location: str = "") -> CommittedWrite:
    return CommittedWrite(9, Write(TableName("d", "t"), partition, 3, (), "", ""), location)


def test_candidates_when_altered_under_a_write_id_without_files_then_are_looked_up() -> None:
    before, after = _table(partitioned=False, rows="7"), _table(partitioned=False, rows="0")
    loaded = _event(5, "ALTER_TABLE", tableObjBeforeJson=before, tableObjAfterJson=before)
    counted = _event(6, "ALTER_TABLE", tableObjBeforeJson=before, tableObjAfterJson=after)
    assert candidates([loaded], []) == [Candidate(5, "t", "", 3, "file:/w/t", has_rows=True)]
    emptied = Candidate(6, "t", "", 3, "file:/w/t")
    assert candidates([loaded, counted], []) == [emptied]
    assert candidates(
        [loaded, counted, _event(7, "ALTER_TABLE", tableObjBeforeJson=after, tableObjAfterJson=after)], []
    ) == [replace(emptied, event=7)]
    assert candidates([loaded, counted], [_write("")]) == []
    assert candidates([], [_write("", "file:/w/t")]) == [Candidate(9, "t", "", 3, "file:/w/t")]
    others: list[dict[str, str | int]] = [{"isTruncateOp": "true"}, {"writeId": 0}]
    names = {"tableObjBeforeJson": before, "tableObjAfterJson": after}
    assert candidates([_event(5, "ALTER_TABLE", **names, **other) for other in others], []) == []


@pytest.mark.parametrize(("count", "has_rows"), [("7", True), ("0", False), ("-1", False), (None, False)])
def test_candidate_when_statistics_do_not_count_rows_then_may_be_empty(count: str | None, *, has_rows: bool) -> None:
    table = _table(partitioned=False, rows=count)
    event = _event(5, "ALTER_TABLE", tableObjBeforeJson=table, tableObjAfterJson=table)
    assert candidates([event], []) == [Candidate(5, "t", "", 3, "file:/w/t", has_rows)]


def test_candidates_when_of_partitions_then_are_those_without_files() -> None:
    table = _table(partitioned=True, rows="0")
    both = _event(5, "ALTER_PARTITIONS", tableObjJson=table, partitionListJson=[_partition("a"), _partition("b")])
    one = _event(6, "ALTER_PARTITION", tableObjJson=table, partitionObjAfterJson=_partition("b"))
    whole = _event(7, "ALTER_TABLE", tableObjBeforeJson=table, tableObjAfterJson=table)
    assert candidates([both, one, whole], [_write("day=a")]) == [Candidate(6, "t", "day=b", 3, "file:/w/t/day=b")]


def test_candidates_when_partitions_are_renamed_or_added_then_only_a_new_write_id_tells_of_a_write() -> None:
    table = _table(partitioned=True, rows="0")
    before = {"partitionObjBeforeJson": _partition("a", 3), "partitionObjAfterJson": _partition("b", 3)}
    moved = _event(6, "ALTER_PARTITION", tableObjJson=table, **before)
    assert [found.is_repeated for found in candidates([moved], [])] == [True]
    after = {"partitionObjBeforeJson": _partition("b", 2), "partitionObjAfterJson": _partition("b", 3)}
    written = _event(7, "ALTER_PARTITION", tableObjJson=table, **after)
    assert [found.is_repeated for found in candidates([written, replace(moved, event=8)], [])] == [False]
    added = _event(5, "ADD_PARTITION", tableObjJson=table, partitionListJson=[_partition("b", 3), _partition("c")])
    (candidate,) = candidates([added, moved], [])
    assert (candidate.partition, candidate.is_repeated) == ("day=b", False)


@pytest.mark.parametrize("tell", [_announce, _alter])
@pytest.mark.parametrize("partition", ["", "day=a"])
def test_overwrite_when_it_has_no_rows_then_target_has_none(
    following: Following, partition: str, tell: _Announce
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=bool(partition))
    insert(side, name, [(1, "a"), (2, "a" if partition else "b")])
    insert(side, name, [(3, "b")] if partition else [(3, "c")])
    following.cycle()
    _overwrite(side, name, partition, tell, _commit)
    following.dump()
    following.load_interrupted()
    left = [(3, "b")] if partition else []
    assert _rows(following, "t") == (left, left)
    _overwrite(side, name, partition, tell, _commit)
    insert(side, name, [(4, "a")])
    alter(following, name, renamed("u"))
    _overwrite(side, following.name("u"), partition, tell, _commit)
    insert(side, following.name("u"), [(5, "a")])
    assert following.cycle().bootstrapped == ()
    left = sorted([*left, (5, "a")])
    assert _rows(following, "u") == (left, left)


@pytest.mark.parametrize("tell", [_announce, _alter])
def test_overwrite_when_it_aborts_then_target_keeps_the_rows(following: Following, tell: _Announce) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")])
    following.cycle()
    _overwrite(side, name, "", tell, _abort)
    insert(side, name, [(2, "b")])
    assert following.cycle().bootstrapped == ()
    forget_aborted_transactions(following.replica.target.metastore)
    assert _rows(following, "t") == ([(1, "a"), (2, "b")], [(1, "a"), (2, "b")])


def test_overwrite_when_it_has_not_ended_then_the_table_is_copied(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")])
    following.cycle()
    _overwrite(side, name, "", _alter, _leave_open)
    assert following.cycle().bootstrapped == ("t",)
    following.cycle()
    assert _rows(following, "t") == ([(1, "a")], [(1, "a")])


def test_overwrite_when_compacted_before_the_dump_then_the_table_is_copied(following: Following) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name)
    insert(side, name, [(1, "a")])
    following.cycle()
    _overwrite(side, name, "", _alter, _commit)
    insert(side, name, [(2, "b")])
    (local_path(table_of(side.metastore, name).location) / base_name(2)).rmdir()
    compact(side, name, write_id=3, of_write_id=3)
    assert following.cycle().bootstrapped == ("t",)
    assert _rows(following, "t") == ([(2, "b")], [(2, "b")])


@pytest.mark.parametrize("partition", ["", "day=a"])
def test_overwrite_when_it_commits_while_its_table_is_listed_then_target_has_no_rows(
    following: Following, partition: str
) -> None:
    side, name = following.replica.source, following.name("t")
    make_table(side.metastore, name, partitioned=bool(partition))
    following.dump(Scope(following.database, "other"))
    following.load()
    insert(side, name, [(1, "a"), (2, "a")])

    def overwrite(step: DumpStep) -> None:
        if step is DumpStep.SNAPSHOT:
            _overwrite(side, name, partition, _alter, _commit)

    following.dump(Scope(following.database), observe=overwrite)
    assert following.load().bootstrapped == ("t",)
    insert(side, name, [(3, "b")])
    following.dump()
    following.load_interrupted()
    assert _rows(following, "t") == ([(3, "b")], [(3, "b")])


def test_overwrite_when_it_commits_while_a_bootstrap_lists_its_table_then_target_has_no_rows(
    replica: Replica, tmp_path: Path
) -> None:
    copying = new_copying(replica, tmp_path)
    following = Following(replica, copying.database, copying.target, tmp_path)
    side, name = replica.source, following.name("t")
    make_table(side.metastore, name)
    insert(side, name, [(1, "a"), (2, "b")])

    def overwrite(step: DumpStep) -> None:
        if step is DumpStep.SNAPSHOT:
            _overwrite(side, name, "", _alter, _commit)

    copying.dump(observe=overwrite)
    copying.load()
    following.cycle()
    assert _rows(following, "t") == ([], [])


def test_tables_when_overwritten_by_queries_without_rows_then_target_has_none(following: Following) -> None:
    partitioned = "PARTITIONED BY (day STRING)"
    kinds = {"t": ("", ACID), "o": ("", INSERT_ONLY), "p": (partitioned, ACID), "q": (partitioned, INSERT_ONLY)}
    run(
        following,
        *(f"CREATE TABLE {{db}}.{table} (id INT) {columns} {kind}" for table, (columns, kind) in kinds.items()),
    )
    places = [table + (" PARTITION (day='a')" if columns else "") for table, (columns, _) in kinds.items()]
    queries = [f"SELECT {what} FROM {{db}}.{table}" for table in kinds for what in ("*", "count(*)")]
    for condition in ("WHERE false", "WHERE id > 5"):
        run(following, *(f"INSERT INTO {{db}}.{place} VALUES (1), (2)" for place in places))
        following.cycle()
        assert_equal(following, *queries)
        for place, table in zip(places, kinds, strict=True):
            run(following, f"INSERT OVERWRITE TABLE {{db}}.{place} SELECT id FROM {{db}}.{table} {condition}")
        following.cycle()
        assert_equal(following, *queries)
        for table in kinds:
            assert following.replica.target.sql(f"SELECT id FROM {following.target}.{table}") == []
