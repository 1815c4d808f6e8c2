"""Workers run the policies that are due, one execution at a time, and recover from errors, kills and drops."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from ingestd.clock import now
from ingestd.daemon.policy_metrics import PolicyMetrics, policy_lines
from ingestd.errors import ConfigError
from ingestd.hive.objects import change_database
from ingestd.hive.replay import Replay
from ingestd.hive.schedules import ScheduledQuery
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import open_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Step, dump, resume
from ingestd.replication.directory.protocol import DumpDirectory
from ingestd.replication.marks import LAST_ID
from ingestd.replication.policies.options import PolicyOptions, ReplicationOptions
from ingestd.replication.policies.policy_status import Lag, State, read_runs
from ingestd.replication.policies.runs import Run, Stage, Status
from ingestd.replication.policies.store import ANY_USER
from ingestd.replication.policies.worker import PolicyWorker, Totals
from ingestd.replication.statements.grammar import CreatePolicy, PolicyChange
from ingestd.replication.statements.schedule import Every, Unit
from ingestd.storage.storages import Storages
from tests.support.replica import Side
from tests.support.replica_following import write
from tests.support.replica_policies import NEVER, Defective, Pair
from tests.support.replica_tables import EXTERNAL, make_table
from tests.support.stack import eventually


def _execute(pair: Pair, side: Side) -> Run:
    """Execute the policy of a side, and return the execution when it has ended."""
    before = len(pair.status(side).runs)
    pair.policies(side).execute("dump" if side.name == "source" else "load")
    return pair.ended(side, before + 1)


def test_policies_when_scheduled_on_both_sides_then_the_copy_follows(pair: Pair) -> None:
    source, target = pair.replica.source, pair.replica.target
    pair.insert([(1, "a")])
    pair.create(Every(1, Unit.SECOND))
    with pair.worker(source), pair.worker(target):
        eventually("the bootstrap", lambda: pair.status(target).last and pair.rows() == [(1, "a")])
        for number in range(2, 5):
            pair.insert([(number, "b")])
        eventually("the changes", lambda: len(pair.rows()) == 4)
        eventually("no lag", lambda: _lag(pair, source) == 0)
    for side in (source, target):
        runs = pair.status(side).runs
        assert {run.status for run in runs} <= {Status.SUCCESS, Status.SKIPPED, Status.IN_PROGRESS}
        assert {run.phase for run in runs if run.status is Status.SUCCESS} == {"BOOTSTRAP", "INCREMENTAL"}
        assert len({run.execution for run in runs}) == len(runs)
    loads = [run for run in pair.status(target).runs if run.status is Status.SUCCESS]
    dumps = {run.execution for run in pair.status(source).runs}
    assert {run.dump_execution for run in loads} <= dumps


def test_execution_when_it_ends_then_metrics_have_the_form_of_hive(pair: Pair) -> None:
    source = pair.replica.source
    pair.create()
    with pair.worker(source):
        run = _execute(pair, source)
        row = pair.schedules(source).metrics("dump")[0]
        skipped = _execute(pair, source)
    assert (run.stage, run.status, run.database) == (Stage.DUMP, Status.SUCCESS, pair.database)
    assert (
        f'"dbName": "{pair.database}", "replicationType": "BOOTSTRAP", "stagingDir": "{pair.root_uri}' in row.metadata
    )
    assert f'"lastReplId": {run.last_event}' in row.metadata
    assert '"status": "SUCCESS", "stages": [{"name": "REPL_DUMP", "status": "SUCCESS", ' in row.progress
    assert f'"startTime": {round(run.began * 1000)}, "endTime": {round((run.ended or 0) * 1000)}' in row.progress
    assert '{"name": "TABLES", "currentCount": 1, "totalCount": 1}' in row.progress
    assert (skipped.status, skipped.reason) == (Status.SKIPPED, "the target has not loaded dump 1 yet")


def test_state_when_a_policy_runs_fails_and_resumes_then_is_shown(pair: Pair) -> None:
    source, target = pair.replica.source, pair.replica.target
    pair.create()
    place = source.external / pair.database
    make_table(source.metastore, TableName(pair.database, "ext"), parameters=EXTERNAL, location=f"file:{place}")
    place.rmdir()
    copy = target.external / str(place)[1:]
    copy.mkdir(parents=True)
    (copy / "file").write_bytes(b"kept")
    assert (pair.status(source).state, pair.status(source).last, pair.status(source).lag) == (State.IDLE, None, None)
    with pair.worker(source), pair.worker(target):
        _execute(pair, source)
        assert _execute(pair, target).status is Status.SUCCESS
        assert pair.status(target).problem.endswith(f"whose copies keep their files: file:{place}")
        metrics = "".join(policy_lines(PolicyMetrics([pair.status(target)], Totals())))
        assert 'ingestd_policy_missing_directories{policy="load"} 1\n' in metrics
        assert 'ingestd_policy_unreadable_tables{policy="load"} 0\n' in metrics
        place.mkdir()
        lag = pair.status(target).lag
        assert lag
        assert lag.events == 0
        pair.insert([(1, "a")])
        behind = pair.status(source).lag
        assert behind
        assert behind.events > 0
        _execute(pair, source)
        waiting = pair.status(source).lag  # the dump is not loaded
        assert waiting
        assert waiting.events >= behind.events
        missing = pair.status(target).lag
        assert missing
        assert missing.events > 0
        change_database(target.metastore, pair.target, {"repl.incompatible": "true"})
        run = _execute(pair, target)
        assert (run.status, run.error_class) == (Status.FAILED_ADMIN, "BootstrapRequired")
        for side in (source, target):
            assert pair.status(side).state is State.NEEDS_BOOTSTRAP
            assert "was ended by another client" in pair.status(side).problem
        again = _execute(pair, source)
        assert (again.status, again.error_class) == (Status.FAILED_ADMIN, "NonRecoverable")
        assert again.marker.endswith("/_non_recoverable")
        resume(pair.cluster(source), pair.dump_statement, bootstrap=True)
        assert _execute(pair, source).phase == "BOOTSTRAP"
        assert _execute(pair, target).status is Status.SUCCESS
        assert {(pair.status(side).state, pair.status(side).problem) for side in (source, target)} == {(State.IDLE, "")}
    assert pair.rows() == [(1, "a")]
    pair.policies(source).alter("dump", PolicyChange(is_enabled=False))
    assert pair.status(source).state is State.DISABLED


def test_dump_when_a_worker_runs_it_then_the_source_is_held_until_the_next_load(pair: Pair) -> None:
    source, target = pair.replica.source, pair.replica.target
    pair.create()

    def open_holds() -> set[int]:
        return set(open_transactions(source.metastore, "ingestd repl hold dump"))

    # The worker of an earlier test may have been killed, or may have failed to end its hold.
    earlier = open_holds()

    def holds() -> set[int]:
        return open_holds() - earlier

    with pair.worker(source), pair.worker(target):
        _execute(pair, source)
        (first,) = holds()
        for side in (target, source):
            _execute(pair, side)
            assert first in holds()
        _execute(pair, target)
        pair.policies(source).execute("dump")
        eventually("the end of the first hold", lambda: first not in holds())
        assert holds()
    assert not holds()


def test_lag_when_the_next_dump_is_planned_then_is_overdue_from_that_time_on(pair: Pair) -> None:
    source, target = pair.replica.source, pair.replica.target

    def lags(seconds: float) -> list[Lag]:
        """Return the lags of both sides when the target has been behind for so many seconds."""

        def waited(side: Side) -> Lag | None:
            lag = pair.status(side).lag
            return lag if lag is not None and lag.seconds > seconds else None

        return [eventually("a lag", partial(waited, side)) for side in (source, target)]

    pair.create()
    with pair.worker(source), pair.worker(target):
        _execute(pair, source)
        _execute(pair, target)
    pair.insert([(1, "a")])
    assert [lag.overdue for lag in lags(1.0)] == [0.0, 0.0]
    due = int(now()) + 2
    pair.dump(Step("dump", next_time=due))
    pair.load()
    eventually("the planned time", lambda: now() > due)
    pair.insert([(2, "b")])
    (dumped,) = DumpDirectory(Storages(), pair.root_uri, pair.database).dumps()
    planned, late = max(0.0, due - dumped.state.began), now() - due
    dump_lag, load_lag = lags(planned)
    assert dump_lag.overdue >= min(dump_lag.seconds, late)
    assert load_lag.overdue == pytest.approx(load_lag.seconds - planned)
    pair.dump()
    pair.load()
    pair.insert([(3, "c")])
    for lag in lags(1.0):
        assert lag.overdue == lag.seconds


def test_status_when_another_client_has_changed_the_last_event_then_is_the_problem(pair: Pair) -> None:
    target = pair.replica.target
    pair.create()
    pair.dump()
    pair.load()
    change_database(target.metastore, pair.target, {LAST_ID: "x"})
    with pair.worker(target) as worker:
        (seen,) = eventually("the status", lambda: worker.statuses)
        assert seen.problem.startswith("the property repl.last.id is 'x', which is not a number")


def test_state_when_a_worker_was_killed_then_says_that_the_execution_has_no_result(pair: Pair) -> None:
    source = pair.replica.source
    pair.create()
    pair.policies(source).execute("dump")
    execution = eventually("the execution", pair.schedules(source).claim)
    ago = now() - 60.0
    stored = Run(execution.id, "dump", Stage.DUMP, Status.IN_PROGRESS, pair.database, ago, ago, pair.namespace)
    pair.schedules(source).store(stored.row())
    status = pair.status(source)
    assert status.state is State.FAILED
    assert status.problem.startswith(f"execution {execution.id} has ended without a result")


def test_execution_when_an_error_is_retriable_then_is_retried_and_reported(pair: Pair) -> None:
    source = pair.replica.source
    pair.create()
    hidden = pair.root.with_name("hidden")
    pair.root.rename(hidden)
    with pair.worker(source):
        pair.policies(source).execute("dump")
        eventually("the execution", lambda: pair.status(source).runs)
        first = pair.status(source).runs[0]
        assert first.status is Status.IN_PROGRESS
        hidden.rename(pair.root)
        assert pair.ended(source).status is Status.SUCCESS
        assert len(pair.status(source).runs) == 1


def test_execution_when_it_was_retried_long_enough_then_fails_until_the_next_time(pair: Pair) -> None:
    source = pair.replica.source
    pair.create()
    hidden = pair.root.with_name("hidden")
    pair.root.rename(hidden)
    with pair.worker(source, ReplicationOptions(pair.namespace, poll=0.2, retry=0.1)):
        run = _execute(pair, source)
        assert (run.status, run.error_class) == (Status.FAILED, "NotFound")
        assert "the root directory of dumps does not exist" in run.error
        assert pair.status(source).state is State.FAILED
        hidden.rename(pair.root)
        assert _execute(pair, source).status is Status.SUCCESS


@pytest.mark.soak
def test_execution_when_the_storage_says_no_then_fails_after_a_few_retries(pair: Pair) -> None:
    """The retries take half a minute; without the limit of refusals they would take a day."""
    refused, source = replace(pair, root=Path("/sys")), pair.replica.source  # not even root may write there
    refused.policies(source).create(CreatePolicy("dump", NEVER, refused.dump_statement))
    with refused.worker(source):
        run = _execute(refused, source)
    assert (run.status, run.error_class) == (Status.FAILED, "PermissionDenied")


def test_policy_when_it_cannot_run_here_then_fails_with_the_reason(pair: Pair) -> None:
    source, schedules = pair.replica.source, pair.schedules(pair.replica.source)
    pair.policies(source).create(CreatePolicy("dump", NEVER, pair.dump_statement, user="somebody"))
    schedules.create(ScheduledQuery("select", NEVER.cron, "SELECT 1", ANY_USER))
    with pair.worker(source):
        run = _execute(pair, source)
        assert run.status is Status.FAILED
        assert "policy dump: it is executed as somebody, and this daemon is" in run.error
        schedules.alter(ScheduledQuery("select", NEVER.cron, "SELECT 1", ANY_USER, next_execution=1))
        run = eventually("its execution", lambda: [run for run in read_runs(schedules, "select") if run.ended])[0]
        assert run.status is Status.FAILED
        assert "'SELECT' where REPL" in run.error
        # Names that other clients have created are recorded when they run.
        eventually("its name", lambda: "select" in {policy.name for policy in pair.policies(source).all()})


def test_policies_when_several_are_due_then_run_at_the_same_time_in_two_processes(pair: Pair) -> None:
    source = pair.replica.source
    pair.create()
    names = [f"p{number}" for number in range(4)]
    policies = pair.policies(source)
    for name in names:
        given = {**pair.dump_statement.given, "hive.repl.rootdir": f"{pair.root_uri}/{name}"}
        (pair.root / name).mkdir()
        policies.create(CreatePolicy(name, NEVER, replace(pair.dump_statement, given=given)))
        policies.execute(name)
    with pair.worker(source), pair.worker(source):
        for name in names:
            rows = eventually(name, partial(_successes, pair, name))
            assert len(rows) == 1


def _successes(pair: Pair, name: str) -> list[Run]:
    return [run for run in read_runs(pair.schedules(pair.replica.source), name) if run.status is Status.SUCCESS]


def test_policy_when_dropped_while_it_runs_then_releases_what_it_holds(pair: Pair) -> None:
    source, target = pair.replica.source, pair.replica.target
    pair.create()
    with pair.worker(source), pair.worker(target):
        _execute(pair, source)
        _execute(pair, target)
        write(source, pair.table, "delta_{w}_{w}_0000", then=lambda _: None)
        _execute(pair, source)
        _execute(pair, target)
        assert Replay(target.metastore, pair.target, accepts_gaps=lambda _: False).open_transactions
        hidden = pair.root.with_name("hidden")
        pair.root.rename(hidden)  # the next execution retries until the directory is back
        pair.policies(target).execute("load")
        pair.running(target)
        pair.policies(target).drop("load")
        hidden.rename(pair.root)
        eventually(
            "the end of the transactions",
            lambda: not Replay(target.metastore, pair.target, accepts_gaps=lambda _: False).open_transactions,
        )


def test_policies_when_a_dump_was_limited_then_continue_without_their_schedules_until_there_is_no_backlog(
    pair: Pair,
) -> None:
    source, target = pair.replica.source, pair.replica.target
    pair.create()
    pair.dump()
    pair.load()
    given = {**pair.dump_statement.given, "ingestd.repl.events": "4"}
    limited = replace(pair.dump_statement, given=given)
    pair.policies(source).alter("dump", PolicyChange(statement=limited))
    rows = [(number, "a") for number in range(6)]
    for row in rows:
        pair.insert([row])
    dump(pair.cluster(source), limited, Step(), pair.stop)
    assert (pair.status(source).continues, pair.status(target).continues) == (False, True)
    with pair.worker(source), pair.worker(target):
        eventually("the rows", lambda: pair.rows() == rows)
        eventually("no lag", lambda: _lag(pair, source) == 0)
        eventually("the end of the backlog", lambda: not any(pair.status(side).continuing for side in (source, target)))
    for side in (source, target):
        runs = [run for run in pair.status(side).runs if run.status is Status.SUCCESS]
        assert len(runs) > 2
        assert {run.phase for run in runs} == {"INCREMENTAL"}
        assert not pair.status(side).continues


def test_worker_when_stopped_then_its_execution_is_continued_at_once(pair: Pair) -> None:
    source = pair.replica.source
    pair.create()
    hidden = pair.root.with_name("hidden")
    pair.root.rename(hidden)
    with pair.worker(source) as worker:
        pair.policies(source).execute("dump")
        eventually("the execution", lambda: worker.active == ["dump"])
        worker.stop()
        eventually("the end", lambda: not worker.is_running)
    assert pair.status(source).last
    hidden.rename(pair.root)
    with pair.worker(source):
        assert pair.ended(source, 2).status is Status.SUCCESS


@pytest.mark.parametrize("method", ["scheduled_query_poll", "get_replication_metrics", "add_replication_metrics"])
def test_worker_when_a_thread_has_a_defect_then_ends_with_it(pair: Pair, method: str) -> None:
    source = pair.replica.source
    pair.create()
    with closing(Defective(source.uri, method)) as defective:
        options = ReplicationOptions(pair.namespace, poll=0.2)
        worker = PolicyWorker(Cluster(defective, Storages()), None, options, pair.namespace)
        pair.policies(source).execute("dump")
        worker.start()
        eventually("the end", lambda: not worker.is_running)
        assert worker.error
        assert re.fullmatch(rf"replication: KeyError: '{method}' \(replica_policies.py:\d+\)", str(worker.error))


def test_policies_of_the_configuration_when_different_then_are_created_and_altered(pair: Pair) -> None:
    source, policies = pair.replica.source, pair.policies(pair.replica.source)
    wanted = PolicyOptions("dump", NEVER, pair.dump_statement)
    conflict = PolicyOptions("same", NEVER, pair.dump_statement)
    options = ReplicationOptions(pair.namespace, poll=0.2, policies=(wanted, conflict))
    with pair.worker(source, options) as worker:
        made = eventually("the policy", lambda: policies.find("dump"))
        assert (made.statement, made.is_enabled) == (pair.dump_statement, True)
        policies.alter("dump", PolicyChange(is_enabled=False, schedule=Every(5, Unit.MINUTE)))
        worker.define([wanted])
        changed = eventually("the change", lambda: policies.get("dump").schedule == NEVER and policies.get("dump"))
        assert not changed.is_enabled, "a policy that an operator has disabled stays disabled"
        worker.define([replace(wanted, enabled=True)])
        eventually("the change", lambda: policies.get("dump").is_enabled)
        eventually("the status", lambda: [status.policy.name for status in worker.statuses] == ["dump"])
        totals = worker.totals
        _execute(pair, source)
        assert totals.executions == {}
        eventually("the total", lambda: worker.totals.executions == {("dump", "SUCCESS"): 1})
        assert worker.totals.counts == {("dump", "TABLES"): 1}
    with pytest.raises(ConfigError):
        policies.get("same")


def test_workers_when_many_executions_follow_each_other_then_none_overlaps(pair: Pair) -> None:
    source, target = pair.replica.source, pair.replica.target
    pair.create(Every(1, Unit.SECOND))
    stopped = threading.Event()

    def write_rows() -> None:
        number = 0
        while not stopped.wait(0.05):
            number += 1
            pair.insert([(number, "x")])

    writer = threading.Thread(target=write_rows)
    writer.start()
    try:
        with pair.worker(source), pair.worker(source), pair.worker(target), pair.worker(target):
            eventually("five loads", lambda: len(_loads(pair)) >= 5)
    finally:
        stopped.set()
        writer.join()
    for side in (source, target):
        ordered = sorted(pair.status(side).runs, key=lambda run: run.execution)
        for earlier, later in pairwise(ordered):
            assert earlier.ended
            assert earlier.ended <= later.began + 0.5
        assert not [run.error for run in ordered if run.status.has_failed and "stopped" not in run.error]


def _lag(pair: Pair, side: Side) -> int | None:
    lag = pair.status(side).lag
    return None if lag is None else lag.events


def _loads(pair: Pair) -> list[Run]:
    return [run for run in pair.status(pair.replica.target).runs if run.status is Status.SUCCESS]
