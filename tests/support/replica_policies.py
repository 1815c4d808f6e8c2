"""A source database, its copy, and the policies that keep the copy up to date, for tests of policies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingestd.hive.client import Metastore
from ingestd.hive.objects import find_table, table_names
from ingestd.hive.replay import Replay
from ingestd.hive.schedules import Schedules
from ingestd.hive.tables import TableName
from ingestd.replication import cycle
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Result, Step
from ingestd.replication.policies.options import ReplicationOptions
from ingestd.replication.policies.policy_status import PolicyStatus, State, read_runs, read_status
from ingestd.replication.policies.runs import Run, Status
from ingestd.replication.policies.store import Policies
from ingestd.replication.policies.worker import PolicyWorker
from ingestd.replication.statements.grammar import CreatePolicy, ReplDump, ReplLoad
from ingestd.replication.statements.schedule import Cron, Schedule
from ingestd.replication.statements.scope import Scope
from ingestd.replication.statements.settings import Settings
from ingestd.replication.verify.checksum_jobs import ColumnChecks
from ingestd.replication.verify.content import Verdict
from ingestd.replication.verify.tables import verify
from ingestd.spark.engine import Engine
from ingestd.storage.storages import Storages
from tests.support.replica import Replica, Side
from tests.support.replica_rows import Rows, insert, read_rows
from tests.support.replica_tables import EXTERNAL, make_database, make_table
from tests.support.stack import eventually

# Policies that run only when they are executed.
NEVER = Cron("0 0 0 1 1 ? *")


@dataclass(frozen=True)
class Pair:
    """A source database with an empty table `t`, a target database, and the root of dumps.

    The policies `dump` and `load` have a namespace and a control database of their own. `settings` are those of the
    dump besides its root.
    """

    replica: Replica
    root: Path
    database: str
    target: str
    namespace: str
    stop: threading.Event = field(default_factory=threading.Event)
    settings: Settings = field(default_factory=dict, hash=False)

    @property
    def table(self) -> TableName:
        return TableName(self.database, "t")

    def cluster(self, side: Side) -> Cluster:
        return Cluster(side.metastore, Storages())

    def assert_equal(self) -> None:
        """Assert that both sides have the same tables and rows, and that no replicated transaction is open."""
        source, target = self.replica.source, self.replica.target
        names = table_names(source.metastore, self.database)
        assert sorted(table_names(target.metastore, self.target)) == sorted(names)
        scope = Scope(self.database)
        reports = list(verify(self.cluster(source), self.cluster(target), scope, self.target, ColumnChecks()))
        assert [report for report in reports if report.verdict is not Verdict.EQUAL or report.behind] == []
        for name in names:
            before, after = (
                sorted(side.sql(f"SELECT * FROM {database}.{name}"), key=str)
                for side, database in ((source, self.database), (target, self.target))
            )
            assert after == before, name
        assert Replay(target.metastore, self.target, accepts_gaps=lambda _: False).open_transactions == frozenset()

    @property
    def root_uri(self) -> str:
        return f"file:{self.root}"

    @property
    def external_base(self) -> str:
        """The base directory of external tables."""
        return f"file:{self.replica.target.external}"

    @property
    def dump_statement(self) -> ReplDump:
        return ReplDump(Scope(self.database), {"hive.repl.rootdir": self.root_uri, **self.settings})

    @property
    def load_statement(self) -> ReplLoad:
        base = {"hive.repl.replica.external.table.base.dir": self.external_base}
        return ReplLoad(self.database, self.target, {"hive.repl.rootdir": self.root_uri, **base})

    def dump(self, step: Step | None = None) -> Result:
        """Run a dump in this thread."""
        return cycle.dump(self.cluster(self.replica.source), self.dump_statement, step or Step(), self.stop)

    def load(self, step: Step | None = None, engine: Engine | None = None) -> Result:
        """Run a load in this thread."""
        target = self.cluster(self.replica.target)
        return cycle.load(target, self.load_statement, {}, engine, step or Step(), self.stop)

    def insert(self, rows: Rows) -> None:
        insert(self.replica.source, self.table, rows)

    def rows(self) -> Rows:
        """Return the rows of the copy; none if it has no table yet."""
        name = TableName(self.target, "t")
        found = find_table(self.replica.target.metastore, name)
        return [] if found is None else read_rows(self.replica.target.metastore, name)

    def schedules(self, side: Side) -> Schedules:
        return Schedules(side.metastore, self.namespace, "tests")

    def policies(self, side: Side) -> Policies:
        return Policies(side.metastore, self.schedules(side), self.namespace)

    def create(self, schedule: Schedule = NEVER) -> None:
        """Create both policies."""
        self.policies(self.replica.source).create(CreatePolicy("dump", schedule, self.dump_statement))
        self.policies(self.replica.target).create(CreatePolicy("load", schedule, self.load_statement))

    def status(self, side: Side) -> PolicyStatus:
        """Return the status of the policy of one side."""
        policy = self.policies(side).get("dump" if side.name == "source" else "load")
        return read_status(self.cluster(side), policy, self.schedules(side), 20.0)

    def ended(self, side: Side, executions: int = 1) -> Run:
        """Wait until so many executions of a side have ended, and return the last one."""

        def last() -> Run | None:
            runs = self.status(side).runs
            is_complete = len(runs) >= executions and runs[0].status is not Status.IN_PROGRESS
            return runs[0] if is_complete else None

        found: Run = eventually(f"{executions} executions on the {side.name}", last)
        return found

    def finished(self, side: Side, policy: str) -> Run:
        """Wait until an execution of a policy has ended, and return it."""
        schedules = self.schedules(side)
        (run,) = eventually("the execution", lambda: [found for found in read_runs(schedules, policy) if found.ended])
        return run  # type: ignore[no-any-return]

    def running(self, side: Side) -> None:
        """Wait until the policy of a side runs."""
        eventually("the execution", lambda: self.status(side).state is State.RUNNING)

    @contextmanager
    def worker(
        self, side: Side, options: ReplicationOptions | None = None, engine: Engine | None = None
    ) -> Iterator[PolicyWorker]:
        """Run the policies of one side during the `with` block."""
        given = options or ReplicationOptions(self.namespace, poll=0.2)
        made = PolicyWorker(self.cluster(side), engine, given, self.namespace)
        made.start()
        try:
            yield made
        finally:
            made.stop()
            eventually("the end of the executions", lambda: not made.is_running)


def add_large_table(pair: Pair, place: Path) -> int:
    """Create the external table `large` with so many directories, of a file each, that a load lists and copies it by
    Spark jobs, if it has an engine. Return the number of files.
    """
    name = TableName(pair.database, "large")
    make_table(pair.replica.source.metastore, name, parameters=EXTERNAL, location=f"file:{place}")
    for number in range(2000):
        (place / f"{number}").mkdir(parents=True)
        (place / f"{number}" / "file").write_bytes(b"content")
    return 2000


class Defective(Metastore):
    """A metastore client of which one method has a defect."""

    def __init__(self, uri: str, method: str) -> None:
        super().__init__(uri)
        self._defective = method

    def call(self, method: str, *arguments: object) -> Any:
        if method == self._defective:
            raise KeyError(method)
        return super().call(method, *arguments)


def new_pair(replica: Replica, folder: Path) -> Pair:
    """Create a source database with a table."""
    root = folder / "dumps"
    root.mkdir()
    made = Pair(replica, root, replica.name("here"), replica.name("there"), replica.name("policies"))
    make_database(replica.source.metastore, made.database)
    make_table(replica.source.metastore, made.table)
    return made
