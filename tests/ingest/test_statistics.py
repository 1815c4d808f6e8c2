"""HiveServer2 answers correctly from statistics after ingestd commits, even with concurrent writers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.compaction import compact
from tests.support.daemon import Daemon, Hold
from tests.support.stack import Stack, eventually

PARTITIONED = pytest.mark.parametrize("partitioned", ["", "dt string"], ids=["table", "partition"])


class _Table:
    """A table, its expected ids, and a check of the queries that Hive may answer from statistics."""

    def __init__(self, stack: Stack, partitioned: str) -> None:
        self.stack = stack
        self.partitioned = partitioned
        self.ids: list[int] = []
        stack.topic(1)
        stack.table("id bigint, note string", partitioned)
        self.config = stack.config({"commit": {"interval": "300ms"}})
        self.daemon: Daemon | None = None

    def ours(self, count: int) -> None:
        """Commit `count` rows with a daemon that keeps running, then check the table."""
        self.daemon = self.daemon or self.stack.start(self.config)
        before = self._committed(self.daemon)
        self._produce(count)
        eventually("the commit of the daemon", lambda: self._committed(self.daemon) == before + count)
        self.check()

    @staticmethod
    def _committed(daemon: Daemon | None) -> int:
        assert daemon is not None
        assert daemon.is_running, daemon.text()
        return sum(event["rows"] for event in daemon.events("committed"))

    def stop(self) -> None:
        """Stop the running daemon."""
        if self.daemon is not None:
            self.daemon.terminate()
            assert self.daemon.wait() == 0
        self.daemon = None

    def _produce(self, count: int) -> None:
        first = max(self.ids, default=0) + 1
        added = range(first, first + count)
        self.stack.produce({"id": i, "note": "ours", "dt": "a"} for i in added)
        self.ids.extend(added)

    def held(self, step: str, between: Callable[[], object], count: int = 3) -> Daemon:
        """Commit `count` rows in a transaction that is blocked after `step` while `between` runs. Return the daemon."""
        self.stop()
        self._produce(count)
        hold = Hold(step)
        daemon = self.stack.start(self.config, "--until-caught-up", hold=hold)
        hold.wait()
        between()
        hold.release()
        assert daemon.wait() == 0
        return daemon

    def insert(self, count: int) -> None:
        first = max(self.ids, default=0) + 1
        part = " PARTITION (dt='a')" if self.partitioned else ""
        values = ", ".join(f"({i}, 'hive')" for i in range(first, first + count))
        self.stack.sql(f"INSERT INTO {self.stack.name}{part} VALUES {values}")
        self.ids.extend(range(first, first + count))

    def delete_smallest(self) -> None:
        self.stack.sql(f"DELETE FROM {self.stack.name} WHERE id = {min(self.ids)}")
        self.ids.remove(min(self.ids))

    def update_largest(self) -> None:
        self.stack.sql(f"UPDATE {self.stack.name} SET note = 'changed' WHERE id = {max(self.ids)}")

    def analyze(self) -> None:
        part = " PARTITION (dt)" if self.partitioned else ""
        self.stack.sql(f"ANALYZE TABLE {self.stack.name}{part} COMPUTE STATISTICS FOR COLUMNS")

    def compact(self, kind: str) -> None:
        compact(self.stack, f"default.{self.stack.name}", kind, "dt='a'" if self.partitioned else "")

    def check(self) -> None:
        answer = self.stack.sql(f"SELECT count(*) FROM {self.stack.name}")
        assert answer == [(len(self.ids),)]
        assert self.stack.sql(f"SELECT min(id), max(id) FROM {self.stack.name}") == [(min(self.ids), max(self.ids))]
        assert self.stack.ids() == sorted(self.ids)
        if self.partitioned:
            assert self.stack.count("WHERE dt = 'a'") == len(self.ids)


@PARTITIONED
def test_count_when_hive_writes_and_compacts_between_commits_then_correct(stack: Stack, partitioned: str) -> None:
    table = _Table(stack, partitioned)
    table.insert(2)
    table.ours(5)
    table.insert(3)
    table.check()
    table.ours(4)
    table.compact("minor")
    table.check()
    table.ours(3)
    table.delete_smallest()
    table.update_largest()
    table.check()
    table.ours(2)
    table.analyze()
    table.check()
    table.ours(2)
    table.compact("major")
    table.check()
    table.ours(1)
    table.insert(1)
    table.check()


@PARTITIONED
def test_count_when_analyze_runs_between_count_and_commit_then_correct_even_after_compaction(
    stack: Stack, partitioned: str
) -> None:
    table = _Table(stack, partitioned)
    table.insert(2)
    table.ours(5)
    daemon = table.held("counted", table.analyze)
    table.check()
    assert daemon.events("row_counts_repaired")
    table.compact("major")
    table.check()


@PARTITIONED
def test_count_when_killed_between_count_and_commit_then_correct_even_after_compaction(
    stack: Stack, partitioned: str
) -> None:
    table = _Table(stack, partitioned)
    table.insert(2)
    table.ours(5)
    table.stop()
    stack.produce({"id": i, "note": "ours", "dt": "a"} for i in range(100, 107))
    killed = stack.start_process(table.config, INGESTD_TESTING="1", INGESTD_FAILPOINT="counted=kill")
    assert killed.wait() == -9
    killed.kill()
    table.check()
    table.ids.extend(range(100, 107))
    stack.drain(table.config)
    table.check()
    table.compact("major")
    table.check()


def test_count_when_hive_inserts_between_count_and_commit_then_correct(stack: Stack) -> None:
    table = _Table(stack, "")
    table.ours(5)
    table.held("counted", lambda: table.insert(2))
    table.check()
    table.compact("major")
    table.check()


@pytest.mark.parametrize("step", ["locked", "placed", "counted"])
def test_ddl_when_concurrent_with_a_commit_then_not_undone(stack: Stack, step: str) -> None:
    table = _Table(stack, "")
    table.ours(2)
    table.held(step, lambda: stack.sql(f"ALTER TABLE {stack.name} SET TBLPROPERTIES ('owner.team'='blue')"))
    table.check()
    assert ("owner.team", "blue") in [row[:2] for row in stack.sql(f"SHOW TBLPROPERTIES {stack.name}")]


def test_column_when_added_between_two_transactions_then_filled_in_later_rows(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    config = stack.config()
    daemon = stack.start(config)
    stack.produce([{"id": 1, "extra": "early"}])
    eventually("the first row", lambda: stack.count() == 1)
    stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (extra string)")
    stack.produce([{"id": 2, "extra": "late"}])
    eventually("the second row", lambda: stack.count() == 2)
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
        stack.produce(({"id": side * 1000 + i, "dt": "a"} for i in range(200)), topic)
    daemon = stack.drain(stack.config(*mappings))
    assert len([e for e in daemon.events("committed") if e["rows"]]) == 20
    assert stack.count() == 400
    rows = stack.sql(f"DESCRIBE FORMATTED {stack.name} PARTITION (dt='a')")
    assert [value.strip() for _, name, value in rows if name and name.strip() == "numRows"] == ["400"]
