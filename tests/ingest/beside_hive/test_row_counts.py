"""An overwritten row count is repaired without another commit, and no commit waits for the repair."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ingestd.clock import Deadline, now
from ingestd.hive import transactions
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import Wait
from ingestd.hive.write_ids import read_snapshot
from tests.streaming.support import connect, rows
from tests.support.compaction import request_compaction
from tests.support.counters import end_analyze, number, read_parameters, write_parameters
from tests.support.daemon import Daemon
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

PARTITIONED = pytest.mark.parametrize("partition", ["", "dt=a"], ids=["table", "partition"])


class _Tables:
    """An unpartitioned and a partitioned table, and the configuration of a daemon that writes one topic to both."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        # The partition of each table, or "" for the table itself.
        self.partitions = {f"{stack.name}_{'p' if partition else 'u'}": partition for partition in ("", "dt=a")}
        self._asked = 0
        stack.topic(1)
        for name, partition in self.partitions.items():
            stack.table("id bigint", "dt string" if partition else "", f"default.{name}")
        self.config = stack.config(
            *(
                {"name": name[-40:], "table": f"default.{name}", "commit": {"interval": "300ms"}}
                for name in self.partitions
            )
        )

    def rows(self, daemon: Daemon) -> int:
        assert daemon.is_running, daemon.text()
        return sum(int(event["rows"]) for event in daemon.events("committed"))

    def commit(self, daemon: Daemon, ids: range) -> None:
        """Commit a row per id to each table."""
        wanted = self.rows(daemon) + len(ids) * len(self.partitions)
        self.stack.produce({"id": identity, "dt": "a"} for identity in ids)
        eventually("the commits of the daemon", lambda: self.rows(daemon) == wanted)

    def parameters(self) -> dict[str, dict[str, str]]:
        return {name: read_parameters(self.stack, partition, name) for name, partition in self.partitions.items()}

    def numbers(self) -> list[int]:
        return [number(self.stack, partition, name) for name, partition in self.partitions.items()]

    def uncached_counts(self) -> list[int]:
        """Return `count(*)` of each table. HiveServer2 caches answers by the text of the query."""
        self._asked += 1
        asked = f"SELECT count(*) AS n{self._asked}"
        return [int(self.stack.sql(f"{asked} FROM {name}")[0][0]) for name in self.partitions]

    def revert(self, parameters: dict[str, dict[str, str]]) -> None:
        """Write back these older parameters."""
        for name, partition in self.partitions.items():
            write_parameters(self.stack, parameters[name], partition, name)


@pytest.fixture
def tables(stack: Stack) -> _Tables:
    return _Tables(stack)


@pytest.fixture
def leases(stack: Stack, tables: _Tables) -> Iterator[threading.Event]:
    """Hold the counting leases of the test's tables in an idle client, and yield an event that releases them."""
    free = threading.Event()
    txn = transactions.begin(stack.metastore, stack.name)
    for name in tables.partitions:
        lease = TableName("default", f"{name}#ingestd.counting")
        transactions.take_lease(stack.metastore, txn, lease, Wait(Deadline.after(LIMIT), threading.Event()))

    def release() -> None:
        free.wait(LIMIT)
        transactions.abort(stack.metastore, txn.id)
        stack.metastore.close()

    thread = threading.Thread(target=release)
    thread.start()
    yield free
    free.set()
    thread.join()


def test_analyze_when_it_writes_old_parameters_back_then_repaired_without_another_commit(
    stack: Stack, tables: _Tables
) -> None:
    daemon = stack.start(tables.config)
    tables.commit(daemon, range(10))
    eventually("the first counts", lambda: all("ingestd.counted" in found for found in tables.parameters().values()))
    old = tables.parameters()
    tables.commit(daemon, range(10, 30))
    tables.revert(old)
    eventually("the repair while the daemon runs", lambda: tables.numbers() == [30, 30])
    repaired = eventually("the log lines", lambda: len(found := _repaired(daemon)) == len(tables.partitions) and found)
    assert repaired == {name[-40:]: [partition] for name, partition in tables.partitions.items()}
    daemon.terminate()
    assert daemon.wait() == 0

    tables.revert(old)
    assert tables.numbers() == [10, 10]
    daemon = stack.start(tables.config)
    eventually("the repair after a restart", lambda: tables.numbers() == [30, 30])
    daemon.terminate()
    assert daemon.wait() == 0

    tables.revert(old)
    assert tables.numbers() == [10, 10]
    waits = [
        request_compaction(stack, f"default.{name}", "major", "dt='a'" if partition else "")
        for name, partition in tables.partitions.items()
    ]
    for wait in waits:
        wait()
    # The compaction runs ANALYZE after it has succeeded.
    eventually(
        "COLUMN_STATS_ACCURATE to be set",
        lambda: all("COLUMN_STATS_ACCURATE" in found for found in tables.parameters().values()),
    )
    # No daemon has repaired the counts yet. Hive uses them when the transactions of the compactions have ended.
    eventually("the old counts to be used", lambda: tables.uncached_counts() == [10, 10])
    assert [stack.count("", name) for name in tables.partitions] == [10, 10]  # HiveServer2 caches these answers
    stack.drain(tables.config)
    assert tables.numbers() == [30, 30]
    for name in tables.partitions:
        assert stack.count("", name) == 30
        assert len(stack.ids(name)) == 30


def _repaired(daemon: Daemon) -> dict[str, list[str]]:
    """Return the partitions of each mapping's last repair, which is that of its table."""
    events = daemon.events("row_counts_repaired")
    assert all(event["table"].endswith(event["mapping"]) for event in events)
    return {event["mapping"]: event["partitions"] for event in events}


@PARTITIONED
def test_analyze_when_it_ends_after_a_commit_that_it_did_not_see_then_hive_scans(stack: Stack, partition: str) -> None:
    stack.table("id int, note string", "dt string" if partition else "")
    with connect(stack, static_partition_values=["a"] if partition else None) as connection:
        with connection.transaction():
            connection.write(rows(0))
        old, seen = read_parameters(stack, partition), read_snapshot(stack.metastore, TableName("default", stack.name))
        with connection.transaction():
            connection.write(rows(10))
    end_analyze(stack, old, seen, partition)
    assert number(stack, partition) == 10
    assert stack.count() == 20


def test_revert_when_another_writer_commits_next_then_the_wrong_count_is_repaired(stack: Stack) -> None:
    stack.table("id int, note string")
    with connect(stack) as connection, connect(stack) as two:
        with connection.transaction():
            connection.write(rows(0))
        old = read_parameters(stack)
        with connection.transaction():
            connection.write(rows(10))
        write_parameters(stack, old)
        with two.transaction():
            two.write(rows(20))
        eventually("the repair", lambda: number(stack) == 30)
    assert read_parameters(stack)["ingestd.rows"] == "30"


def test_connection_when_closed_right_after_a_revert_then_repairs_before_it_ends(stack: Stack) -> None:
    stack.table("id int, note string", "dt string")
    with connect(stack, static_partition_values=["a"]) as connection:
        with connection.transaction():
            connection.write(rows(0))
        old = read_parameters(stack, "dt=a")
        with connection.transaction():
            connection.write(rows(10))
        write_parameters(stack, old, "dt=a")
    assert number(stack, "dt=a") == 20


def test_batch_when_its_transactions_write_different_partitions_then_each_count_is_correct(stack: Stack) -> None:
    """Shared files do not show which write id wrote to which partition, so the connection must record it."""
    stack.table("id int, note string", "dt string")
    with connect(stack, transaction_batch_size=20) as connection:
        for turn in range(9):
            with connection.transaction():
                connection.write(rows(turn * 10, dt=["abc"[turn % 3]] * 10))
            assert read_parameters(stack, f"dt={'abc'[turn % 3]}")["ingestd.rows"] == str(10 * (turn // 3 + 1))
    assert [number(stack, f"dt={value}") for value in "abc"] == [30, 30, 30]


def test_partition_when_recreated_with_old_parameters_then_counts_its_rows(stack: Stack) -> None:
    stack.table("id int, note string", "dt string")
    with connect(stack, static_partition_values=["a"]) as connection:
        with connection.transaction():
            connection.write(rows(0))
        old = read_parameters(stack, "dt=a")
        stack.sql(f"ALTER TABLE {stack.name} DROP PARTITION (dt='a')")
        stack.sql(f"ALTER TABLE {stack.name} ADD PARTITION (dt='a')")
        write_parameters(stack, old, "dt=a")
        with connection.transaction():
            connection.write(rows(10, 5))
        assert number(stack, "dt=a") == 5
    assert stack.count("WHERE dt = 'a'") == 5


def test_counting_lease_when_held_by_an_idle_client_then_commits_continue_and_count_is_repaired(
    stack: Stack, leases: threading.Event, tables: _Tables
) -> None:
    daemon = stack.start(tables.config)
    for turn in range(3):
        tables.commit(daemon, range(turn * 10, turn * 10 + 10))
        assert [stack.count("", name) for name in tables.partitions] == [turn * 10 + 10] * 2
    for name in tables.partitions:
        commits = [event for event in daemon.events("committed") if event["mapping"] == name[-40:] and event["rows"]]
        first, *others = [event["ms"]["counted"] for event in commits]
        assert min(others) < first  # only the first commit waits for 5 s; another one may be slow on a busy machine
    assert {event["mapping"] for event in daemon.events("row_counts_delayed")} == {n[-40:] for n in tables.partitions}
    leases.set()
    eventually("the counts", lambda: tables.numbers() == [30, 30])
    daemon.terminate()
    assert daemon.wait() == 0
    assert [found["ingestd.rows"] for found in tables.parameters().values()] == ["30", "30"]


def test_last_ddl_time_when_in_the_future_then_commits_do_not_wait_for_it(stack: Stack) -> None:
    stack.table("id int, note string")
    stack.sql(f"ALTER TABLE {stack.name} SET TBLPROPERTIES ('owner.team'='blue')")
    with connect(stack) as connection:
        for turn in range(3):
            ahead = read_parameters(stack) | {"transient_lastDdlTime": str(int(now()) + 3600 + turn)}
            write_parameters(stack, ahead)
            with connection.transaction():
                connection.write(rows(turn * 10))
        assert int(read_parameters(stack)["transient_lastDdlTime"]) > now() + 3000
        assert read_parameters(stack)["owner.team"] == "blue"
    assert number(stack) == 30
