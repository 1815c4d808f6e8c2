"""Insert-only tables: HiveServer2 reads and compacts the files of a mapping beside its own."""

from __future__ import annotations

from hive_metastore import ttypes

from ingestd.hive.transactions import open_transactions
from tests.support.compaction import request_compaction
from tests.support.daemon import Hold
from tests.support.stack import Stack

COLUMNS = "id int, at timestamp, code char(4), deep struct<a:int,b:array<string>>"
INSERT_ONLY = (
    "STORED AS ORC TBLPROPERTIES"
    " ('transactional'='true', 'transactional_properties'='insert_only', 'no_auto_compaction'='true')"
)
TIMES = ["2026-11-21 10:11:12.123456789", "1500-01-02 03:04:05", "1969-12-31 23:59:58.5"]


def _record(number: int) -> dict[str, object]:
    deep = None if number % 5 == 0 else {"a": None if number % 3 else number, "b": ["x", None]}
    return {"id": number, "at": TIMES[number % 3], "code": f"c{number % 7}", "deep": deep, "p": "ab"[number % 2]}


def _row(number: int) -> tuple[object, ...]:
    code, a = f"c{number % 7}".ljust(4), None if number % 3 or number % 5 == 0 else number
    return number, TIMES[number % 3], code, a, -1 if number % 5 == 0 else 2


class _InsertOnly:
    """An unpartitioned table, and one with partitions and buckets, filled from one topic."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.plain, self.parts = f"{stack.name}_plain", f"{stack.name}_parts"
        stack.topic(2)
        stack.sql(f"CREATE TABLE {self.plain} ({COLUMNS}) {INSERT_ONLY}")
        stack.sql(
            f"CREATE TABLE {self.parts} ({COLUMNS}) PARTITIONED BY (p string) CLUSTERED BY (id) INTO 3 BUCKETS"
            f" {INSERT_ONLY}"
        )
        tables = {"plain": self.plain, "parts": self.parts}
        self._config = stack.config(
            *({"name": f"{stack.name[-34:]}_{key}", "table": f"default.{table}"} for key, table in tables.items())
        )
        self._numbers: list[int] = []

    def load(self, first: int, rows: int) -> None:
        """Store the records of these numbers in both tables."""
        self._produce(first, rows)
        self.stack.drain(self._config)
        self._numbers += range(first, first + rows)

    def load_after_abort(self, first: int, rows: int) -> None:
        """Do the same, but abort the first transactions after they have placed files, which must not be visible."""
        self._produce(first, rows)
        hold = Hold("placed", mappings=2)
        daemon = self.stack.start(self._config, "--until-caught-up", hold=hold)
        hold.wait()
        self.check()
        staged = open_transactions(self.stack.metastore, f"ingestd/ingestd/{self.stack.name[-34:]}_")
        self.stack.metastore.call("abort_txns", ttypes.AbortTxnsRequest(txn_ids=staged))
        self.check()
        hold.release()
        assert daemon.wait() == 0, daemon.text()
        self._numbers += range(first, first + rows)

    def _produce(self, first: int, rows: int) -> None:
        self.stack.produce(map(_record, range(first, first + rows)))

    def check(self, *more: int) -> None:
        """Check the rows of both tables; `more` are the ids that Hive has inserted into the first."""
        for table, ids in ((self.plain, [*self._numbers, *more]), (self.parts, self._numbers)):
            found = self.stack.sql(f"SELECT id, cast(at as string), code, deep.a, size(deep.b) FROM {table}")
            assert sorted(row for row in found if row[0] not in more) == sorted(map(_row, self._numbers))
            assert sorted(row[0] for row in found) == sorted(ids)
            assert self.stack.count(name=table) == len(ids)
        assert self.stack.count("WHERE p = 'a'", self.parts) == sum(number % 2 == 0 for number in self._numbers)

    def files(self, table: str) -> set[str]:
        """Return the names of the files that contain rows."""
        names = f"SELECT DISTINCT regexp_extract(INPUT__FILE__NAME, '[^/]*$', 0) FROM {table}"
        return {row[0] for row in self.stack.sql(names)}


def test_rows_when_the_table_is_insert_only_then_hive_reads_and_compacts_them_beside_its_own(stack: Stack) -> None:
    tables = _InsertOnly(stack)
    tables.load(0, 60)
    assert tables.files(tables.plain) == {"000000_0"}
    assert tables.files(tables.parts) == {f"{bucket:06d}_0" for bucket in range(3)}
    tables.load_after_abort(1_000, 40)
    one = f"SELECT id + 90000, at, code, deep FROM {tables.plain} WHERE id = 1"
    stack.sql(f"INSERT INTO {tables.plain} {one} UNION ALL {one}")
    tables.check(90_001, 90_001)
    jobs = [(tables.plain, "minor", ""), (tables.parts, "major", "p='a'")]
    for wait in [request_compaction(stack, f"default.{table}", kind, part) for table, kind, part in jobs]:
        wait()
    tables.load(100, 20)
    tables.check(90_001, 90_001)
