"""Starts services in order and waits until they work.

Invariant: each process is in the state file before its program runs. When a start fails, the guard ends the processes,
and this module does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingestd.java import find_java
from ingestd.sandbox import database, jars, ports
from ingestd.sandbox.broker import format_storage
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import HIVESERVER2, KAFKA, METASTORE, Progress, SandboxOptions
from ingestd.sandbox.readiness import Started
from ingestd.sandbox.schema import SchemaTool
from ingestd.sandbox.services import Plan
from ingestd.sandbox.state import Child, Layout, load, save


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts the services of one state folder."""

    options: SandboxOptions
    layout: Layout
    guard: Guard
    progress: Progress

    def start(self, names: Sequence[str]) -> None:
        """Start `names`: Kafka and the metastore concurrently, then HiveServer2, which needs the metastore."""
        plan = self._plan(names)
        for name in names:
            plan.configure(name)
        if KAFKA in names:
            self._say("preparing kafka")
            format_storage(plan, self.guard)
            self._launch(plan, KAFKA)
        if METASTORE in names:
            self._say("preparing metastore")
            self._prepare_database(plan)
            self._launch(plan, METASTORE)
        if HIVESERVER2 in names:
            self._say("waiting for metastore")
            self._started(METASTORE).wait_until_it_answers()
            self._launch(plan, HIVESERVER2)
        for name in names:
            self._say(f"waiting for {name}")
            self._started(name).wait_until_it_works()

    def _say(self, step: str) -> None:
        self.progress(step, 0, 0)

    def _plan(self, names: Sequence[str]) -> Plan:
        self._say("looking for Java")
        java = find_java()
        home = jars.ensure(jars.groups_for(names), java, self.guard, self.progress)
        for folder in (self.layout.warehouse, self.layout.data / "external"):
            folder.mkdir(parents=True, exist_ok=True)
        state = load(self.layout.root)
        if state.metastore_db:
            base = database.postgres(state.metastore_db)
        else:
            base = database.derby(self.layout.data, state.ports[ports.DERBY])
        return Plan(self.options, self.layout, state.ports, base, java, home)

    def _prepare_database(self, plan: Plan) -> None:
        SchemaTool(plan.java, plan.jars, self.layout, self.guard).prepare(plan.database)
        save(self.layout.root, replace(load(self.layout.root), schema_ready=True))

    def _launch(self, plan: Plan, name: str) -> None:
        def record(child: Child) -> None:
            save(self.layout.root, load(self.layout.root).with_child(name, child))

        self.guard.start(plan.command(name), log=self.layout.log(name), cwd=self.layout.work(name), record=record)

    def _started(self, name: str) -> Started:
        state = load(self.layout.root)
        return Started(name, state.children[name], state.ports[name], self.layout.log(name))
