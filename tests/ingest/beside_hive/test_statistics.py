"""HiveServer2 answers correctly from statistics after ingestd commits, even with concurrent writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.support.compaction import request_compaction
from tests.support.daemon import Daemon, DaemonThread, Hold
from tests.support.stack import Stack, eventually


class _Table:
    """A table, its expected ids, and checks of the queries that Hive may answer from statistics."""

    def __init__(self, stack: Stack, suffix: str, partitioned: str = "") -> None:
        self.stack = stack
        self.name = f"{stack.name}_{suffix}"
        self.partitioned = partitioned
        self.ids: list[int] = []
        stack.table("id bigint, note string", partitioned, f"default.{self.name}")

    @property
    def mapping(self) -> dict[str, object]:
        """The mapping that writes to this table. All tables of a test share the topic."""
        return {"name": self.name[-40:], "table": f"default.{self.name}", "commit": {"interval": "300ms"}}

    @property
    def _part(self) -> str:
        return " PARTITION (dt='a')" if self.partitioned else ""

    def insert(self, count: int) -> None:
        """Insert the ids -1, -2, … with Hive."""
        lowest = min([0, *self.ids])
        added = range(lowest - count, lowest)
        values = ", ".join(f"({i}, 'hive')" for i in added)
        self.stack.sql(f"INSERT INTO {self.name}{self._part} VALUES {values}")
        self.ids.extend(added)

    def change(self) -> None:
        """Delete the smallest id and update the largest."""
        self.stack.sql(f"DELETE FROM {self.name} WHERE id = {min(self.ids)}")
        self.ids.remove(min(self.ids))
        self.stack.sql(f"UPDATE {self.name} SET note = 'changed' WHERE id = {max(self.ids)}")

    def analyze(self) -> None:
        part = " PARTITION (dt)" if self.partitioned else ""
        self.stack.sql(f"ANALYZE TABLE {self.name}{part} COMPUTE STATISTICS FOR COLUMNS")

    def compact(self, kind: str) -> Callable[[], None]:
        """Request a compaction and return a function that waits for it."""
        return request_compaction(self.stack, f"default.{self.name}", kind, "dt='a'" if self.partitioned else "")

    def check_statistics(self) -> None:
        """Check the answers for which Hive reads no rows if it trusts the statistics."""
        assert self.stack.count("", self.name) == len(self.ids)
        assert self.stack.sql(f"SELECT min(id), max(id) FROM {self.name}") == [(min(self.ids), max(self.ids))]

    def check(self) -> None:
        """Check those answers and the rows themselves."""
        self.check_statistics()
        assert self.stack.ids(self.name) == sorted(self.ids)
        if self.partitioned:
            assert self.stack.count("WHERE dt = 'a'", self.name) == len(self.ids)


class _Tables:
    """Tables that one daemon writes to from one topic, with a mapping for each table."""

    def __init__(self, stack: Stack, *tables: _Table) -> None:
        self.stack = stack
        self.tables = tables
        stack.topic(1)
        self.config = stack.config(*(table.mapping for table in tables))
        self.daemon: DaemonThread | None = None
        self._produced = 0

    def ours(self, count: int) -> None:
        """Commit `count` rows to each table with a daemon that keeps running, then check the statistics."""
        daemon = self.daemon = self.daemon or self.stack.start(self.config)
        before = _committed(daemon)
        self.produce(count)
        eventually("the commits", lambda: _committed(daemon) == before + count * len(self.tables))
        for table in self.tables:
            table.check_statistics()

    def stop(self) -> None:
        """Stop the running daemon."""
        if self.daemon is not None:
            self.daemon.terminate()
            assert self.daemon.wait() == 0
        self.daemon = None

    def produce(self, count: int) -> None:
        """Produce the next ids, which start at 1."""
        added = range(self._produced + 1, self._produced + count + 1)
        self.stack.produce(_records(added))
        self._produced += count
        for table in self.tables:
            table.ids.extend(added)

    def held(self, step: str, between: Callable[[], object], count: int = 3) -> DaemonThread:
        """Commit `count` rows to each table in transactions that are all blocked after `step` while `between` runs."""
        self.stop()
        self.produce(count)
        hold = Hold(step, mappings=len(self.tables))
        daemon = self.stack.start(self.config, "--until-caught-up", hold=hold)
        hold.wait()
        between()
        hold.release()
        assert daemon.wait() == 0
        return daemon

    def each(self, act: Callable[[_Table], object]) -> None:
        """Call `act` with each table, then check all tables."""
        for table in self.tables:
            act(table)
        self.check()

    def compact(self, kind: str) -> None:
        """Compact all tables, then check them."""
        for wait in [table.compact(kind) for table in self.tables]:
            wait()
        self.check()

    def check(self) -> None:
        for table in self.tables:
            table.check()


def _committed(daemon: Daemon) -> int:
    assert daemon.is_running, daemon.text()
    return sum(event["rows"] for event in daemon.events("committed"))


def _records(ids: range) -> Iterator[dict[str, object]]:
    return ({"id": i, "note": "ours", "dt": "a"} for i in ids)


def _plain_and_partitioned(stack: Stack) -> tuple[_Table, _Table]:
    return _Table(stack, "plain"), _Table(stack, "part", "dt string")


def test_count_when_hive_writes_and_compacts_between_commits_then_correct(stack: Stack) -> None:
    tables = _Tables(stack, *_plain_and_partitioned(stack))
    tables.each(lambda table: table.insert(2))
    tables.ours(5)
    tables.each(lambda table: table.insert(3))
    tables.ours(4)
    tables.compact("minor")
    tables.ours(3)
    tables.each(_Table.change)
    tables.ours(2)
    tables.each(_Table.analyze)
    tables.ours(2)
    tables.compact("major")


def test_count_when_hive_writes_between_count_and_commit_then_correct_even_after_compaction(stack: Stack) -> None:
    analyzed, inserted = _plain_and_partitioned(stack), _Table(stack, "inserted")
    tables = _Tables(stack, *analyzed, inserted)
    for table in analyzed:
        table.insert(2)
    tables.ours(5)

    def between() -> None:
        for table in analyzed:
            table.analyze()
        inserted.insert(2)

    daemon = tables.held("counted", between)
    tables.check()
    repaired = {event["mapping"] for event in daemon.events("row_counts_repaired")}
    assert repaired >= {table.mapping["name"] for table in analyzed}
    tables.compact("major")


def test_count_when_killed_between_count_and_commit_then_correct_even_after_compaction(stack: Stack) -> None:
    tables = _Tables(stack, *_plain_and_partitioned(stack))
    for table in tables.tables:
        table.insert(2)
    tables.ours(5)
    tables.stop()
    late = range(100, 107)
    stack.produce(_records(late))
    # The transaction of one mapping waits after the step until that of the other one has completed it.
    failpoints = f"counted=hold:{stack.directory / 'never'},counted=kill"
    killed = stack.start_process(tables.config, INGESTD_TESTING="1", INGESTD_FAILPOINT=failpoints)
    assert killed.wait() == -9, killed.text()
    killed.kill()
    tables.check()
    for table in tables.tables:
        table.ids.extend(late)
    stack.drain(tables.config)
    tables.check()
    tables.compact("major")


def test_ddl_when_concurrent_with_a_commit_then_not_undone(stack: Stack) -> None:
    table = _Table(stack, "plain")
    tables = _Tables(stack, table)
    tables.ours(2)
    steps = ("locked", "placed", "counted")
    for step in steps:
        tables.held(step, partial(stack.sql, f"ALTER TABLE {table.name} SET TBLPROPERTIES ('owner.{step}'='blue')"))
        table.check_statistics()
    table.check()
    found = [row[:2] for row in stack.sql(f"SHOW TBLPROPERTIES {table.name}")]
    assert [step for step in steps if (f"owner.{step}", "blue") not in found] == []


def test_column_when_added_between_two_transactions_then_filled_in_later_rows(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    daemon = stack.start(stack.config({"commit": {"interval": "300ms"}}))
    stack.produce([{"id": 1, "extra": "early"}])
    eventually("the first row", lambda: _committed(daemon) == 1)
    stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (extra string)")
    stack.produce([{"id": 2, "extra": "late"}])
    eventually("the second row", lambda: _committed(daemon) == 2)
    assert stack.sql(f"SELECT id, extra FROM {stack.name} ORDER BY id") == [(1, None), (2, "late")]
    daemon.terminate()
    assert daemon.wait() == 0


def test_two_mappings_when_they_commit_to_one_table_concurrently_then_count_is_correct(stack: Stack) -> None:
    topics = [stack.topic(1, f"{stack.name}_{side}") for side in "ab"]
    stack.table("id bigint, note string", "dt string")
    mappings = [
        {"name": f"{topic[-38:]}", "topics": [topic], "commit": {"rows": 20, "interval": "100ms"}} for topic in topics
    ]
    for side, topic in enumerate(topics):
        stack.produce(({"id": side * 1000 + i, "dt": "a"} for i in range(120)), topic)
    daemon = stack.drain(stack.config(*mappings))
    assert len([e for e in daemon.events("committed") if e["rows"]]) == 12
    assert stack.count() == 240
    rows = stack.sql(f"DESCRIBE FORMATTED {stack.name} PARTITION (dt='a')")
    assert [value.strip() for _, name, value in rows if name and name.strip() == "numRows"] == ["240"]
