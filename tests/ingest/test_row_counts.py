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
from tests.support.compaction import compact
from tests.support.counters import end_analyze, number, read_parameters, write_parameters
from tests.support.daemon import Daemon
from tests.support.stack import Stack, eventually

PARTITIONED = pytest.mark.parametrize("partition", ["", "dt=a"], ids=["table", "partition"])


def _rows(daemon: Daemon) -> int:
    assert daemon.is_running, daemon.text()
    return sum(int(event["rows"]) for event in daemon.events("committed"))


def _commit(stack: Stack, daemon: Daemon, ids: range) -> None:
    before = _rows(daemon)
    stack.produce({"id": one, "dt": "a"} for one in ids)
    eventually("the commit of the daemon", lambda: _rows(daemon) == before + len(ids))


def _make(stack: Stack, partition: str) -> None:
    stack.topic(1)
    stack.table("id bigint", "dt string" if partition else "")


@pytest.fixture
def lease(stack: Stack) -> Iterator[threading.Event]:
    """Hold the counting lease of the test's table in an idle client, and yield an event that releases it."""
    free = threading.Event()
    txn = transactions.begin(stack.metastore, stack.name)
    lease = TableName("default", f"{stack.name}#ingestd.counting")
    transactions.take_lease(stack.metastore, txn, lease, Wait(Deadline.after(5), threading.Event()))

    def release() -> None:
        free.wait(300)
        transactions.abort(stack.metastore, txn.id)
        stack.metastore.close()

    thread = threading.Thread(target=release)
    thread.start()
    yield free
    free.set()
    thread.join()


@PARTITIONED
def test_analyze_when_it_writes_old_parameters_back_then_repaired_without_another_commit(
    stack: Stack, partition: str
) -> None:
    _make(stack, partition)
    config = stack.config({"commit": {"interval": "300ms"}})
    daemon = stack.start(config)
    _commit(stack, daemon, range(10))
    eventually("the first count", lambda: read_parameters(stack, partition).get("ingestd.counted"))
    old = read_parameters(stack, partition)
    _commit(stack, daemon, range(10, 30))
    write_parameters(stack, old, partition)
    assert number(stack, partition) == 10
    eventually("the repair while the daemon runs", lambda: number(stack, partition) == 30)
    eventually("the log line of the repair", lambda: daemon.events("row_counts_repaired"))
    assert daemon.events("row_counts_repaired")[-1]["partitions"] == [partition]
    daemon.terminate()
    assert daemon.wait() == 0

    write_parameters(stack, old, partition)
    daemon = stack.start(config)
    eventually("the repair after a restart", lambda: number(stack, partition) == 30)
    daemon.terminate()
    assert daemon.wait() == 0

    write_parameters(stack, old, partition)
    compact(stack, f"default.{stack.name}", "major", "dt='a'" if partition else "")
    # The compaction runs ANALYZE after it has succeeded.
    eventually("COLUMN_STATS_ACCURATE to be set", lambda: "COLUMN_STATS_ACCURATE" in read_parameters(stack, partition))
    assert stack.count() == 10  # no daemon has repaired it yet, and HiveServer2 caches this answer
    stack.drain(config)
    assert number(stack, partition) == 30
    assert stack.count() == 30
    assert len(stack.ids()) == 30


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
    with connect(stack) as one, connect(stack) as two:
        with one.transaction():
            one.write(rows(0))
        old = read_parameters(stack)
        with one.transaction():
            one.write(rows(10))
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


@pytest.mark.parametrize("partition", ["", "dt=a"], ids=["table", "partition"])
def test_counting_lease_when_held_by_an_idle_client_then_commits_continue_and_count_is_repaired(
    stack: Stack, lease: threading.Event, partition: str
) -> None:
    _make(stack, partition)
    daemon = stack.start(stack.config({"commit": {"interval": "300ms"}}))
    for turn in range(3):
        _commit(stack, daemon, range(turn * 10, turn * 10 + 10))
        assert stack.count() == turn * 10 + 10
    first, *others = [event["ms"]["counted"] for event in daemon.events("committed") if event["rows"]]
    assert first < 15_000  # a wait of 5 s and the time of the commit on a busy machine
    assert max(others) < 5_000
    assert daemon.events("row_counts_delayed")
    lease.set()
    eventually("the count", lambda: number(stack, partition) == 30)
    daemon.terminate()
    assert daemon.wait() == 0
    assert read_parameters(stack, partition)["ingestd.rows"] == "30"


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
