"""A replicated transaction that the metastore of the target ends, because it was open for too long."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from pathlib import Path

import pytest

from ingestd.errors import BootstrapRequired
from ingestd.hive.objects import find_database
from ingestd.replication import cycle
from ingestd.replication.directory.protocol import NonRecoverable
from ingestd.replication.load.incremental import ReplayStep
from ingestd.replication.marks import INCOMPATIBLE
from ingestd.replication.policies.policy_status import State
from ingestd.sandbox import Sandbox, SandboxOptions
from ingestd.sandbox.release import with_events
from ingestd.sandbox.state import Layout
from tests.support.metastore import Home, metastore
from tests.support.patience import LIMIT
from tests.support.replica import Replica, Side
from tests.support.replica_kills import process
from tests.support.replica_policies import Pair, new_pair
from tests.support.stack import eventually

# The default is eleven days. The housekeeper never ends if it is shorter than the time-out of other transactions.
_IMPATIENT = {
    "hive.repl.txn.timeout": "30s",
    "hive.txn.timeout": "30s",
    "metastore.acid.housekeeper.interval": "1s",
}


class _Impatient(Replica):
    """The shared source, and a target whose metastore soon ends replicated transactions."""

    def __init__(self, source: Side, target: Side) -> None:
        self.source, self.target = source, target


@pytest.fixture(scope="module")
def target(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("impatient")
    with metastore(Home(folder / "home", release=with_events()), "impatient", _IMPATIENT) as server:
        sandbox = Sandbox(SandboxOptions(folder))
        with closing(Side("target", server.uri, Layout(folder / "home").warehouse.as_uri(), sandbox)) as side:
            yield side


@pytest.fixture
def pair(replica: Replica, target: Side, tmp_path: Path) -> Pair:
    return new_pair(_Impatient(replica.source, target), tmp_path)


@pytest.mark.parametrize("step", [pytest.param(ReplayStep.ALLOCATED, id="16-timed-out")])
def test_load_when_killed_and_its_transaction_times_out_then_a_bootstrap_is_required(pair: Pair, step: Enum) -> None:
    target = pair.replica.target
    pair.insert([(1, "a")])
    for _ in range(2):
        pair.dump()
        pair.load()
    pair.insert([(2, "b")])
    pair.dump()
    given = {"uri": target.uri, "root": pair.root_uri, "database": pair.database, "target": pair.target}
    ending = {"external": f"file:{target.external}", "step": step.value, "count": 1, "signal": signal.SIGKILL}
    with process("incremental_process", "load", {**given, **ending}) as load:
        assert load.wait(LIMIT) == -signal.SIGKILL
    eventually("the housekeeper", lambda: _is_incompatible(pair))
    for error in (BootstrapRequired, NonRecoverable):
        with pytest.raises(error):
            pair.load()
    assert pair.rows() == [(1, "a")]
    pair.create()
    assert pair.status(target).state is State.NEEDS_BOOTSTRAP
    cycle.resume(pair.cluster(pair.replica.source), pair.dump_statement, bootstrap=True)
    for _ in range(2):
        pair.dump()
        pair.load()
    assert pair.rows() == [(1, "a"), (2, "b")]


def _is_incompatible(pair: Pair) -> bool:
    database = find_database(pair.replica.target.metastore, pair.target)
    return database is not None and database.parameters.get(INCOMPATIBLE) == "true"
