"""Events that the cleaner of the source's metastore removes before they are dumped, or while they are read."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog, EventsExpired
from ingestd.hive.tables import TableName
from ingestd.replication import cycle
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Progress, Result, Step
from ingestd.replication.directory.protocol import NonRecoverable
from ingestd.replication.statements.grammar import ReplDump, ReplLoad
from ingestd.replication.statements.scope import Scope
from ingestd.sandbox import Sandbox, SandboxOptions
from ingestd.sandbox.release import with_events
from ingestd.storage.storages import Storages
from tests.support.metastore import Home, metastore
from tests.support.patience import LIMIT
from tests.support.replica import Replica, Side
from tests.support.replica_kills import ProcessStep, process
from tests.support.replica_rows import Rows, insert, read_rows
from tests.support.replica_tables import make_database, make_table
from tests.support.stack import eventually

_LISTENER = "metastore.event.db.listener"
_EXPIRING = {
    f"hive.{_LISTENER}.timetolive": "12s",
    f"{_LISTENER}.clean.interval": "1s",
    f"{_LISTENER}.clean.startup.wait.interval": "0s",
}


@dataclass(frozen=True)
class _Expiring:
    """A source whose metastore keeps events for some seconds, and a database with the table `t` in it."""

    source: Side
    replica: Replica
    root: Path
    database: str
    target: str

    @property
    def _given(self) -> dict[str, str]:
        return {"hive.repl.rootdir": f"file:{self.root}"}

    def dump(self, step: Step | None = None) -> Result:
        statement = ReplDump(Scope(self.database), self._given)
        return cycle.dump(Cluster(self.source.metastore, Storages()), statement, step or Step(), threading.Event())

    def load(self) -> Result:
        statement = ReplLoad(self.database, self.target, self._given)
        target = Cluster(self.replica.target.metastore, Storages())
        return cycle.load(target, statement, {}, None, Step(), threading.Event())

    def resume(self) -> None:
        statement = ReplDump(Scope(self.database), self._given)
        cycle.resume(Cluster(self.source.metastore, Storages()), statement, bootstrap=True)

    def kill_dump(self, step: Enum) -> int:
        """Dump in a process that kills itself after the step; return its exit code."""
        given = {"uri": self.source.uri, "root": f"file:{self.root}", "database": self.database}
        ending = {"step": step.value, "count": 1, "signal": signal.SIGKILL}
        with process("incremental_process", "dump", {**given, **ending}) as killed:
            return killed.wait(LIMIT)

    def insert(self, rows: Rows) -> None:
        insert(self.source, TableName(self.database, "t"), rows)

    def rows(self) -> Rows:
        return read_rows(self.replica.target.metastore, TableName(self.target, "t"))

    def expire(self, after: int) -> None:
        """Wait until the cleaner has removed an event after `after`."""
        log = EventLog(self.source.metastore)

        def is_missing() -> bool:
            try:
                log.read(after, 1)
            except EventsExpired:
                return True
            return False

        eventually("the cleaner of events", is_missing)


@pytest.fixture(scope="module")
def source(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("expiring")
    home = Home(folder / "home", release=with_events())
    with metastore(home, "expiring", _EXPIRING) as server:
        side = Side("source", server.uri, (folder / "warehouse").as_uri(), Sandbox(SandboxOptions(folder)))
        with closing(side):
            yield side


@pytest.fixture
def expiring(source: Side, replica: Replica, tmp_path: Path) -> _Expiring:
    """Yield a database that a target follows."""
    (tmp_path / "dumps").mkdir()
    made = _Expiring(source, replica, tmp_path / "dumps", replica.name("here"), replica.name("there"))
    make_database(source.metastore, made.database)
    make_table(source.metastore, TableName(made.database, "t"))
    made.insert([(1, "a")])
    for _ in range(2):
        made.dump()
        made.load()
    return made


def _id(metastore: Metastore) -> int:
    return EventLog(metastore).current_id()


def test_dump_when_the_cleaner_has_removed_events_then_a_bootstrap_is_required_and_repairs_the_copy(
    expiring: _Expiring,
) -> None:
    last = _id(expiring.source.metastore)
    expiring.insert([(2, "b")])
    expiring.expire(last)
    _assert_is_repaired(expiring)


@pytest.mark.parametrize("step", [pytest.param(ProcessStep.BEGUN, id="14-begun")])
def test_dump_when_killed_and_the_cleaner_removes_its_events_then_a_bootstrap_is_required(
    expiring: _Expiring, step: Enum
) -> None:
    last = _id(expiring.source.metastore)
    expiring.insert([(2, "b")])
    assert expiring.kill_dump(step) == -signal.SIGKILL
    expiring.expire(last)
    _assert_is_repaired(expiring)


def _assert_is_repaired(expiring: _Expiring) -> None:
    """Assert that a dump and a load require a bootstrap, and that it repairs the copy."""
    with pytest.raises(EventsExpired, match="the event log is incomplete"):
        expiring.dump()
    with pytest.raises(NonRecoverable, match="EventsExpired"):
        expiring.load()
    assert expiring.rows() == [(1, "a")]
    expiring.resume()
    for _ in range(2):
        expiring.dump()
        expiring.load()
    assert expiring.rows() == [(1, "a"), (2, "b")]


def test_dump_when_the_cleaner_removes_all_events_of_an_idle_source_then_nothing_is_missing(
    expiring: _Expiring,
) -> None:
    last = _id(expiring.source.metastore)
    eventually("the cleaner of events", lambda: not list(EventLog(expiring.source.metastore).scan(last - 1, [])))
    expiring.dump()
    expiring.load()
    expiring.insert([(2, "b")])
    expiring.dump()
    expiring.load()
    assert expiring.rows() == [(1, "a"), (2, "b")]


def test_dump_when_the_cleaner_removes_events_while_they_are_read_then_a_bootstrap_is_required(
    expiring: _Expiring,
) -> None:
    last = _id(expiring.source.metastore)
    expiring.insert([(2, "b")])

    def wait(progress: Progress) -> None:
        if progress.counts.get("EVENTS", (0, 0))[0]:
            expiring.expire(last)

    with pytest.raises(EventsExpired, match="was removed while the events were read"):
        expiring.dump(Step(on_progress=wait))
