"""Transactions with many partitions and buckets: the files that they write, and every row exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from ingestd.acid.buckets import bucket_of_rows
from ingestd.acid.writer_pool import StagingFile
from ingestd.errors import StorageUnavailable, TransactionAborted
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.ingest.stage.exchange import require_all
from ingestd.ingest.stage.task import StageResult
from ingestd.sandbox import Addresses
from ingestd.schema import Column, HiveType
from ingestd.storage.local import local_path
from tests.support.daemon import DaemonThread
from tests.support.stack import Stack, eventually
from tests.support.tables import visible_ids

PARTITIONS = 70
# Half of the rows are in one partition. A transaction has two tasks.
RECORDS = 120_000
COMMIT = {"rows": RECORDS // 2, "bytes": "1GiB", "interval": "10m"}
REJECTED = 70_001
# A record of the first transaction from which a query computes a row that the table cannot store.
UNFIT = 30_001
_COMPUTED = "SELECT -id AS id, p FROM records WHERE id % 3 > 0"
_UNFIT = f"SELECT id, IF(id = {UNFIT}, 'long', 't') AS t, p FROM records"


class _Tables:
    """One topic of two Kafka partitions, and the tables that one daemon fills from it, by the name of the case."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        stack.topic(2)
        for partition in range(2):
            stack.produce(map(_record, range(partition, RECORDS, 2)), partition=partition)
        self.none = self._table("none", "")
        self.auto = self._table("auto", "")
        self.bucketed = self._table("bucketed", "CLUSTERED BY (id) INTO 3 BUCKETS")
        self.stopped = self._table("stopped", "")
        self.killed = [self._table("killed", ""), self._table("killed_sql", "")]
        self.computed = self._table("computed", "")
        self.unfit = self._table("unfit", "", "id bigint, t varchar(3)")
        mappings = [
            self.mapping(self.none, distribution="none"),
            self.mapping(self.auto),
            self.mapping(self.bucketed, distribution="hash"),
            self.mapping(self.stopped, distribution="hash", on_error="stop"),
        ]
        with_sql = [
            self.mapping(self.computed, where="id % 11 > 0", transform={"select": _COMPUTED}),
            self.mapping(self.unfit, distribution="hash", transform={"select": _UNFIT}),
        ]
        self.daemon: DaemonThread = stack.drain(stack.config(*mappings), expect=65)
        self.sql_daemon: DaemonThread = stack.drain(stack.config(*with_sql), expect=65)

    def _table(self, case: str, clustered: str, columns: str = "id bigint") -> str:
        name = f"{self.stack.name}_{case}"
        self.stack.sql(
            f"CREATE TABLE {name} ({columns}) PARTITIONED BY (p int) {clustered} STORED AS ORC"
            " TBLPROPERTIES ('transactional'='true', 'no_auto_compaction'='true')"
        )
        return name

    def mapping(self, table: str, **keys: Any) -> dict[str, Any]:
        """Return the mapping of a table; it has the name of the table."""
        target = {"name": table[-40:], "topics": [self.stack.name], "table": f"default.{table}"}
        return target | {"commit": COMMIT, "on_error": "skip"} | keys

    def files(self, table: str) -> Counter[tuple[str, str]]:
        """Return the number of files of each transaction and partition."""
        places = (path.parts[-3:-1] for path in self.paths(table))
        return Counter((delta.rpartition("_")[0], partition) for partition, delta in places)

    def paths(self, table: str) -> list[Path]:
        """Return the files of a table in an order that mixes its partitions."""
        found = load_acid_table(self.stack.metastore, TableName("default", table))
        return sorted(local_path(found.location).glob("p=*/delta_*/bucket_*"), key=lambda path: path.parts[-2:])

    def ids(self, table: str) -> list[int]:
        """Return the ids of the table in ascending order."""
        return sorted(visible_ids(self.stack.metastore, TableName("default", table)))


def _record(number: int) -> Any:
    return {"id": number, "p": number // 4 % PARTITIONS if number % 4 < 2 else 0} if number != REJECTED else b"{"


@pytest.fixture(scope="module")
def tables(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Tables]:
    with Stack(addresses, "distribution", tmp_path_factory.mktemp("distribution")) as stack:
        yield _Tables(stack)


def test_distribution_when_a_transaction_has_many_partitions_then_each_has_one_file_by_default(tables: _Tables) -> None:
    for table in (tables.none, tables.auto, tables.bucketed):
        assert tables.ids(table) == [n for n in range(RECORDS) if n != REJECTED], table
        skipped = [event for event in tables.daemon.events("rejects_skipped") if event["mapping"] == table[-40:]]
        assert [event["rejects"] for event in skipped] == [1]
    assert set(tables.files(tables.none).values()) == {2}
    shown = tables.stack.sql(f"SELECT count(*), sum(id), count(DISTINCT p) FROM {tables.auto}")
    assert shown == [(RECORDS - 1, sum(range(RECORDS)) - REJECTED, PARTITIONS)]
    files = tables.files(tables.auto)
    assert len(files) == 2 * PARTITIONS
    # The large partition has several writers if the first stage ends before the second begins.
    assert {partition for (_, partition), count in files.items() if count > 1} <= {"p=0"}


def test_distribution_when_the_table_is_bucketed_then_each_row_is_in_its_bucket(tables: _Tables) -> None:
    assert set(tables.files(tables.bucketed).values()) == {3}
    column = Column("id", HiveType.parse("bigint"))
    for path in tables.paths(tables.bucketed)[::20]:
        ids = orc.ORCFile(path).read(columns=["row.id"]).column("row").combine_chunks().field("id")
        buckets = bucket_of_rows(pa.record_batch({"id": ids}), (column,), 3, version=2)
        assert set(buckets.tolist()) == {int(path.name.removeprefix("bucket_"))}, path


def test_distribution_when_a_record_stops_the_mapping_then_no_row_of_its_transaction_is_stored(tables: _Tables) -> None:
    [failed] = tables.daemon.events("failed")
    assert failed["mapping"] == tables.stopped[-40:]
    assert f"offset {REJECTED // 2}" in failed["error"]
    assert len(tables.ids(tables.stopped)) == RECORDS // 2


def test_distribution_when_sql_computes_the_rows_then_each_partition_has_one_file_by_default(tables: _Tables) -> None:
    ids = [-n for n in range(RECORDS) if n != REJECTED and n % 3 and n % 11]
    assert tables.ids(tables.computed) == sorted(ids)
    files = tables.files(tables.computed)
    partitions = {n // 4 % PARTITIONS if n % 4 < 2 else 0 for n in map(abs, ids)}
    assert {partition for _, partition in files} == {f"p={p}" for p in partitions}
    assert len(files) == 2 * len(partitions)
    assert {partition for (_, partition), count in files.items() if count > 1} <= {"p=0"}
    commits = [event for event in tables.sql_daemon.events("committed") if event["mapping"] == tables.computed[-40:]]
    # `decoded` is the number of rows before the SQL.
    sums = [sum(event.get(key, 0) for event in commits) for key in ("records", "decoded", "rejects", "rows")]
    assert sums == [RECORDS, RECORDS - 1, 1, len(ids)]
    shown = tables.stack.sql(f"SELECT count(*), min(id), max(id), count(DISTINCT p) FROM {tables.computed}")
    assert shown == [(len(ids), min(ids), max(ids), len(partitions))]


def test_distribution_when_sql_computes_a_row_that_does_not_fit_then_the_error_names_its_record(
    tables: _Tables,
) -> None:
    [failed] = tables.sql_daemon.events("failed")
    assert (failed["mapping"], failed["reason"]) == (tables.unfit[-40:], "RecordError")
    assert "a text of 4 characters is longer than varchar(3)" in failed["error"]
    assert f"{tables.stack.name}[{UNFIT % 2}] offset {UNFIT // 2}" in failed["error"]
    assert tables.ids(tables.unfit) == []


def test_rows_when_fewer_are_written_than_decoded_then_the_transaction_is_aborted() -> None:
    file = StagingFile(("a",), 0, 0, "file:///f", 3, 100)
    results = [StageResult(decoded=4), StageResult(files=(file,)), StageResult(decoded=2), StageResult(files=(file,))]
    require_all(results)
    require_all([*results[:3], StorageUnavailable("the disk is full")])
    for wrong in (results[:3], results[1:]):
        with pytest.raises(TransactionAborted, match=r"sent \d rows, but written \d"):
            require_all(wrong)


def test_distribution_when_a_transaction_has_few_partitions_then_the_next_one_is_not_distributed(stack: Stack) -> None:
    stack.topic(2)
    stack.table("id bigint", "t int, p int")
    # Each transaction has two tasks, and both have rows of all partitions.
    numbers, rows = [70, 33, 32, 32], 50_000

    def produce(transaction: int) -> None:
        for partition in range(2):
            records = ({"id": n, "t": transaction, "p": n % numbers[transaction]} for n in range(rows // 2))
            stack.produce(records, partition=partition)

    # The first plan is due at once, so it must not see only the first of these records.
    produce(0)
    daemon = stack.start(stack.config({"commit": COMMIT | {"rows": rows}}))
    for transaction in range(len(numbers)):
        if transaction:
            produce(transaction)
        total = rows * (transaction + 1)
        eventually(f"{total} rows", lambda: sum(event["rows"] for event in daemon.events("committed")) == total)  # noqa: B023
    location = local_path(load_acid_table(stack.metastore, TableName("default", stack.name)).location)
    paths = [path.relative_to(location).parts for path in location.glob("t=*/p=*/delta_*/bucket_*")]
    files = Counter((transaction, partition) for transaction, partition, *_ in paths)
    assert len(files) == sum(numbers)
    counts = [{files[f"t={t}", f"p={p}"] for p in range(partitions)} for t, partitions in enumerate(numbers)]
    assert counts == [{1}, {1}, {1}, {2}]


@pytest.mark.soak
@pytest.mark.parametrize("sql", [{}, {"transform": {"select": "SELECT id, p FROM records"}}], ids=["plain", "sql"])
def test_distribution_when_killed_after_the_stage_then_every_id_is_stored_once(
    tables: _Tables, sql: dict[str, Any]
) -> None:
    stack, table = tables.stack, tables.killed[len(sql)]
    config = stack.config(tables.mapping(table, distribution="hash", **sql))
    killed = stack.start_process(config, "--until-caught-up", INGESTD_TESTING="1", INGESTD_FAILPOINT="placed@2=kill")
    assert killed.wait() == -9, killed.text()
    assert tables.ids(table) == []
    stack.drain(config)
    assert tables.ids(table) == [n for n in range(RECORDS) if n != REJECTED]
