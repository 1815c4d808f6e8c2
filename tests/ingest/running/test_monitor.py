"""What a mapping reports about itself while it runs (`Monitor`)."""

from __future__ import annotations

from typing import Any

from ingestd.errors import BrokerUnavailable, MetastoreUnavailable, TransactionAborted
from ingestd.hive.tables import TableName
from ingestd.ingest.monitoring.monitor import Limits, Monitor, Snapshot, is_stuck
from ingestd.ingest.options import MappingOptions
from tests.support.daemon import DaemonThread, Hold
from tests.support.http import options
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually


def _monitor(daemon: DaemonThread, mapping: str) -> Monitor:
    eventually("the mapping", lambda: mapping in daemon.supervisor.monitors)
    return daemon.supervisor.monitors[mapping]


def _reaches(monitor: Monitor, state: str) -> Snapshot:
    eventually(f"the state {state}", lambda: monitor.snapshot().state == state)
    return monitor.snapshot()


def _rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": n, "dt": f"2026-01-{n % 28 + 1:02}"} for n in ids]


def test_monitor_when_kafka_does_not_answer_after_a_recovery_then_the_mapping_does_not_run() -> None:
    monitor = Monitor(MappingOptions("clicks", ("clicks",), TableName("web", "clicks")))
    monitor.failed(BrokerUnavailable("no answer"), again_in=0.2)
    monitor.entered("recovering")
    problem = monitor.snapshot().problem
    assert problem
    assert problem.reason == "BrokerUnavailable"
    monitor.planned()
    assert (monitor.snapshot().state, monitor.snapshot().problem) == ("running", None)
    # The outcome of a commit is not known yet, while Kafka answers.
    monitor.failed(MetastoreUnavailable("no answer"), again_in=0.2)
    monitor.planned()
    assert monitor.snapshot().state == "waiting"


def test_monitor_when_a_mapping_commits_waits_and_stops_then_reports_it(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint", "dt string")
    stack.produce(_rows(*range(40)))
    hold = Hold("locked", times=2)
    daemon = stack.start(stack.config(), hold=hold)
    monitor = _monitor(daemon, stack.name)
    hold.wait()
    assert stack.name in _reaches(monitor, "running").owner
    eventually("the lag", lambda: monitor.snapshot().lag == 40)
    assert monitor.snapshot().open_transactions == 1
    # A mapping is stuck once it has made no progress for longer than its longest wait. It still polls Kafka.
    eventually("no progress", lambda: is_stuck(monitor, Limits(0.2, 0.0)))
    assert not is_stuck(monitor, Limits(600.0, 0.0))
    assert daemon.supervisor.stuck() == []
    hold.release()
    eventually("the commit", lambda: monitor.snapshot().totals.rows == 40)
    seen = monitor.snapshot()
    assert (seen.lag, seen.lag_seconds, seen.open_transactions, seen.totals.aborts) == (0, 0.0, 0, 0)
    assert seen.polled_at is not None
    eventually("a heartbeat", lambda: monitor.snapshot().metastore_at)
    first, last = seen.commits[0], seen.commits[-1]
    assert (first.records, first.ranges) == (0, ())
    assert (last.rows, last.ranges, last.partition_count) == (40, (f"{stack.name}[0] 0..40",), 28)
    assert len(last.partitions) == 16
    assert {"opened", "staged", "committed", "mirrored"} <= set(last.steps)
    stack.produce([{"id": "many", "dt": "x"}])
    failed = _reaches(monitor, "failed")
    assert failed.problem
    assert (failed.problem.reason, failed.totals.rejects, failed.totals.aborts) == ("RecordError", 1, 1)
    assert not is_stuck(monitor, Limits(0.0, 0.0))


def test_stuck_when_a_transaction_only_waits_for_the_stages_of_others_then_is_not() -> None:
    monitor = Monitor(options("orders"))
    with monitor.doing("queued"):
        assert not is_stuck(monitor, Limits(0.0, 0.0))
        with monitor.doing("committing"):
            assert is_stuck(monitor, Limits(0.0, 0.0))
    with monitor.doing("staging"):
        assert not is_stuck(monitor, Limits(0.0, 600.0))
        monitor.polled({}, {})
        assert is_stuck(monitor, Limits(0.0, 0.0))


def test_monitor_when_the_answer_to_a_commit_is_lost_then_counts_the_adopted_commit_once(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint", "dt string")
    with proxy(stack.addresses.metastore) as between:
        daemon = stack.start(stack.config(metastore={"uri": between.uri}))
        monitor = _monitor(daemon, stack.name)
        _reaches(monitor, "running")
        between.lose_answer("commit_txn")
        stack.produce(_rows(*range(10)))
        eventually("the commit", lambda: monitor.snapshot().totals.rows == 10)
        _reaches(monitor, "running")
        daemon.terminate()
        assert daemon.wait() == 0
    seen = monitor.snapshot()
    assert (seen.totals.rows, seen.totals.aborts, seen.state) == (10, 0, "stopped")
    assert seen.totals.retries["MetastoreUnavailable"] >= 1
    rows = [e["rows"] for e in daemon.events("committed")]
    assert (len(rows), sum(rows)) == (seen.totals.commits, 10)


class _AbortAfterCommit(Hold):
    """Lets the mapping fail after its second commit, as if the outcome of the commit were never determined."""

    def __init__(self) -> None:
        super().__init__("committed", times=2)
        self._commits = 0

    def __call__(self, step: str) -> None:
        super().__call__(step)
        self._commits += step == "committed"
        if step == "committed" and self._commits == 2:
            raise TransactionAborted("aborted by the test")


def test_monitor_when_a_recovery_finds_that_a_transaction_has_committed_then_counts_its_rows(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint", "dt string")
    stack.produce(_rows(*range(10)))
    config, hold = stack.config(), _AbortAfterCommit()
    daemon = stack.start(config, hold=hold)
    monitor = _monitor(daemon, stack.name)
    hold.wait()
    # Before it continues, the recovery commits the name of another table of dead letters.
    letters = {"on_error": "dead_letter", "dead_letter": {"table": f"default.{stack.name}_letters"}}
    stack.config(letters).replace(config)
    daemon.supervisor.reload().result()
    hold.release()
    eventually("the commits", lambda: monitor.snapshot().totals.commits == 3)
    eventually("the recovery", lambda: monitor.snapshot().state == "running")
    totals = monitor.snapshot().totals
    assert (totals.commits, totals.records, totals.aborts) == (3, 10, 0)
    assert monitor.snapshot().open_transactions == 0
    assert stack.ids() == list(range(10))


def test_monitor_when_another_daemon_owns_the_mapping_then_is_standby_until_the_takeover(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint", "dt string")
    config = stack.config()
    first = stack.start(config)
    owner = _reaches(_monitor(first, stack.name), "running").owner
    second = stack.start(config)
    monitor = _monitor(second, stack.name)
    standby = _reaches(monitor, "standby")
    assert standby.owner == owner
    assert standby.metastore_at is not None
    first.terminate()
    taken = _reaches(monitor, "running")
    assert taken.owner != owner
    assert taken.totals.takeovers == 1
    second.terminate()
    assert (first.wait(), second.wait()) == (0, 0)
    assert _monitor(first, stack.name).snapshot().totals.takeovers == 0
