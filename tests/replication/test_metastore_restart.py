"""A metastore is killed and started again in the middle of a step, and the execution of the policy completes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from enum import Enum
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from ingestd.errors import MetastoreUnavailable, OwnershipLost
from ingestd.hive.events import EventLog, EventsExpired, EventsReplaced
from ingestd.hive.replay import Replay
from ingestd.replication import cycle
from ingestd.replication.cycle import Progress, Step
from ingestd.replication.directory.protocol import NonRecoverable
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.replication.policies.policy_status import State
from ingestd.replication.policies.runs import Status
from ingestd.sandbox import Sandbox, SandboxOptions
from ingestd.sandbox.release import with_events
from ingestd.sandbox.state import Layout
from tests.support.metastore import Home, Process, metastore
from tests.support.patience import LIMIT
from tests.support.replica import Replica, Side
from tests.support.replica_kills import process
from tests.support.replica_policies import Pair, new_pair


class _Restartable(Replica):
    """Two clusters whose metastores are those of a test alone."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._folder = folder
        self.processes: dict[str, Process] = {}
        self.source, self.target = (self._side(name, folder / name, ends) for name in ("source", "target"))

    def _side(self, name: str, folder: Path, ends: ExitStack) -> Side:
        # A restart may take longer than the time-out of the sandbox, and nobody continues an execution at once. If the
        # answer to a claim is lost, the policy waits for the time-out.
        patient = {"metastore.scheduled.queries.execution.timeout": "60s"}
        self.processes[name] = ends.enter_context(metastore(Home(folder, release=with_events()), name, patient))
        sandbox = Sandbox(SandboxOptions(folder))
        return ends.enter_context(
            closing(Side(name, self.processes[name].uri, Layout(folder).warehouse.as_uri(), sandbox))
        )

    def restart(self, name: str) -> None:
        """Kill the metastore of a side, and start it again."""
        self.processes[name].kill()
        self.processes[name].start().wait()

    def back_up(self, name: str) -> None:
        """Stop the metastore of a side, copy its database and warehouse, and start it again."""
        self.processes[name].stop()
        copytree(Layout(self._folder / name).data, self._folder / f"{name}-backup")
        self.processes[name].start().wait()

    def restore(self, name: str) -> None:
        """Kill the metastore of a side, and start it with the database and the warehouse of the backup."""
        self.processes[name].kill()
        rmtree(Layout(self._folder / name).data)
        (self._folder / f"{name}-backup").rename(Layout(self._folder / name).data)
        self.processes[name].start().wait()


@pytest.fixture(scope="module")
def clusters(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Restartable]:
    with ExitStack() as ends:
        yield _Restartable(tmp_path_factory.mktemp("restartable"), ends)


@pytest.fixture
def pair(clusters: _Restartable, tmp_path: Path) -> Pair:
    made = new_pair(clusters, tmp_path)
    made.insert([(1, "a")])
    for _ in range(2):
        made.dump()
        made.load()
    return made


@pytest.mark.parametrize("name", [pytest.param("source", marks=pytest.mark.soak), "target"])
def test_step_when_its_metastore_restarts_then_it_or_its_repetition_completes(
    clusters: _Restartable, pair: Pair, name: str
) -> None:
    for number in range(2, 7):
        pair.insert([(number, "b")])
    if name == "target":
        pair.dump()
    is_done = False

    def restart(progress: Progress) -> None:
        nonlocal is_done
        if not is_done and progress.counts.get("EVENTS", (0, 0))[0]:
            is_done = True
            clusters.restart(name)

    run = pair.dump if name == "source" else pair.load
    try:
        run(Step(on_progress=restart))
    except (MetastoreUnavailable, OwnershipLost):  # the lease of a load survives an outage of a few seconds only
        run()
    assert is_done
    if name == "source":
        pair.load()
    assert pair.rows() == [(1, "a"), *((number, "b") for number in range(2, 7))]
    replay = Replay(clusters.target.metastore, pair.target, accepts_gaps=lambda _: False)
    assert replay.open_transactions == frozenset()


def test_policies_when_both_metastores_restart_then_the_copy_follows(clusters: _Restartable, pair: Pair) -> None:
    pair.create()
    pair.insert([(2, "b")])
    with pair.worker(clusters.source), pair.worker(clusters.target):
        pair.policies(clusters.source).execute("dump")
        clusters.restart("source")
        assert pair.ended(clusters.source).status in {Status.SUCCESS, Status.FAILED}
        pair.policies(clusters.source).execute("dump")
        pair.ended(clusters.source, 2)
        pair.policies(clusters.target).execute("load")
        clusters.restart("target")
        pair.ended(clusters.target)
        pair.policies(clusters.target).execute("load")
        pair.ended(clusters.target, 2)
    assert pair.rows() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("step", [pytest.param(DumpStep.EVENTS, id="17-restored")])
def test_source_when_its_metastore_is_restored_from_a_backup_then_a_bootstrap_is_required(
    clusters: _Restartable, pair: Pair, step: Enum
) -> None:
    clusters.back_up("source")
    pair.insert([(2, "b")])
    pair.dump()
    pair.load()
    pair.insert([(3, "c")])
    given = {"uri": clusters.source.uri, "root": pair.root_uri, "database": pair.database}
    ending = {"step": step.value, "count": 1, "signal": signal.SIGKILL}
    with process("incremental_process", "dump", {**given, **ending}) as dump:
        assert dump.wait(LIMIT) == -signal.SIGKILL
    clusters.restore("source")
    with pytest.raises(EventsExpired, match="has already been read"):
        pair.dump()
    with pytest.raises(NonRecoverable, match="EventsExpired"):
        pair.load()
    assert pair.rows() == [(1, "a"), (2, "b")]
    pair.insert([(4, "d")])
    cycle.resume(pair.cluster(clusters.source), pair.dump_statement, bootstrap=True)
    for _ in range(2):
        pair.dump()
        pair.load()
    assert pair.rows() == [(1, "a"), (4, "d")]


@pytest.mark.parametrize("events", [pytest.param(10_000, id="17-replaced"), pytest.param(1, id="17-replaced-limited")])
def test_source_when_it_was_restored_and_has_the_ids_of_lost_events_again_then_a_bootstrap_is_required(
    clusters: _Restartable, pair: Pair, events: int
) -> None:
    clusters.back_up("source")
    pair.insert([(2, "b")])
    limit = {"ingestd.repl.events": str(events)}
    statement = replace(pair.dump_statement, given={**pair.dump_statement.given, **limit})
    cycle.dump(pair.cluster(clusters.source), statement, Step(), pair.stop)
    pair.load()
    lost = EventLog(clusters.source.metastore).current_id()
    clusters.restore("source")
    rows = [(1, "a")]
    while EventLog(clusters.source.metastore).current_id() <= lost:
        rows.append((len(rows) + 2, "c"))
        pair.insert(rows[-1:])
    before = pair.rows()
    with pytest.raises(EventsReplaced, match=r"event \d+ was \[.+\], and is now \[.+\]; the metastore was probably"):
        pair.dump()
    with pytest.raises(NonRecoverable, match="EventsReplaced"):
        pair.load()
    assert pair.rows() == before
    pair.create()
    assert {pair.status(side).state for side in (clusters.source, clusters.target)} == {State.NEEDS_BOOTSTRAP}
    cycle.resume(pair.cluster(clusters.source), pair.dump_statement, bootstrap=True)
    for _ in range(2):
        pair.dump()
        pair.load()
    assert pair.rows() == rows
