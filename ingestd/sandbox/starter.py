"""Starts services in order and waits until they work.

Invariant: each process is in the state file before its program runs. When a start fails, the guard ends the processes,
and this module does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ingestd.java import find_java
from ingestd.sandbox import archives, database, jars, ports, release, warehouse
from ingestd.sandbox.archives import Classes
from ingestd.sandbox.broker import format_storage
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.hdfs import format_namenode
from ingestd.sandbox.options import (
    BROKERS,
    DATANODES,
    HIVESERVER2,
    METASTORE,
    NAMENODE,
    S3_SERVER,
    SPARK_MASTER,
    SPARK_WORKERS,
    TARGET,
    Progress,
    SandboxOptions,
    program,
)
from ingestd.sandbox.readiness import Started
from ingestd.sandbox.s3 import create_bucket, require_server
from ingestd.sandbox.schema import SchemaTool
from ingestd.sandbox.services import Plan
from ingestd.sandbox.state import Child, Layout, TargetLayout, load, save

_CLASS_LIST = "classes.lst"


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts the services of one state folder."""

    options: SandboxOptions
    layout: Layout
    guard: Guard
    progress: Progress

    def start(self, names: Sequence[str]) -> None:
        """Start `names`: the storage and Kafka, then the metastore, which needs the storage, and then HiveServer2."""
        if S3_SERVER in names:
            require_server(self.options.versitygw)
        plan = self._plan(names)
        plan.configure_client()
        for name in names:
            _side(plan, name).configure(_name_on_side(name))
        self._launch_storage(plan, names)
        brokers = [name for name in names if name in BROKERS]
        if brokers:
            self._say("preparing kafka")
            format_storage(plan, self.guard)
            for broker in brokers:
                self._launch(plan, broker)
        self._launch_spark(plan, names)
        self._launch_hive(plan, names)
        for name in names:
            self._say(f"waiting for {name}")
            self._started(name).wait_until_it_works()
        archives.learn(self._recorded(plan, names))

    def _launch_storage(self, plan: Plan, names: Sequence[str]) -> None:
        if NAMENODE in names:
            self._say("preparing namenode")
            format_namenode(plan, self.guard)
        for name in (NAMENODE, *DATANODES, S3_SERVER):
            if name in names:
                self._launch(plan, name)
        if S3_SERVER in names:
            self._say(f"waiting for {S3_SERVER}")
            self._started(S3_SERVER).wait_until_it_works()
            create_bucket(plan.ports[S3_SERVER])

    def _launch_spark(self, plan: Plan, names: Sequence[str]) -> None:
        if SPARK_MASTER in names:
            self._launch(plan, SPARK_MASTER)
        workers = [name for name in names if name in SPARK_WORKERS]
        if workers:
            self._say(f"waiting for {SPARK_MASTER}")
            self._started(SPARK_MASTER).wait_until_it_works()  # a worker tries again only after several seconds
        for worker in workers:
            self._launch(plan, worker)

    def _launch_hive(self, plan: Plan, names: Sequence[str]) -> None:
        metastores = [name for name in names if program(name) == METASTORE]
        if metastores:
            self._say("preparing metastore")
            for name in metastores:
                self._prepare_database(_side(plan, name))
            for name in self.options.storage_services(plan.storage):
                self._say(f"waiting for {name}")
                self._started(name).wait_until_it_works()
            for name in metastores:
                self._launch(plan, name)
        for name in names:
            if program(name) == HIVESERVER2:
                metastore = name.replace(HIVESERVER2, METASTORE)
                self._say(f"waiting for {metastore}")
                self._started(metastore).wait_until_it_answers()
                self._launch(plan, name)

    def _say(self, step: str) -> None:
        self.progress(step, 0, 0)

    def _plan(self, names: Sequence[str]) -> Plan:
        self._say("looking for Java")
        java = find_java()
        state = load(self.layout.root)
        hive = release.with_events() if self.options.replica else release.PLAIN
        needed = jars.groups_for(names, hive.group)
        groups = (*needed, *warehouse.find(state.storage, self.layout, state.ports).groups)
        home = jars.ensure(groups, java, self.guard, self.progress)
        layouts = [self.layout, *([TargetLayout(self.layout.root)] if self.options.replica else [])]
        for layout in layouts:
            for folder in (layout.warehouse, layout.data / "external"):
                folder.mkdir(parents=True, exist_ok=True)
        if state.metastore_db:
            base = database.postgres(state.metastore_db)
        else:
            base = database.derby(self.layout.data, state.ports[ports.DERBY])
        return Plan(self.options, self.layout, state.ports, base, java, home, state.storage, hive)

    def _prepare_database(self, plan: Plan) -> None:
        SchemaTool(plan.java, plan.jars, plan.layout, self.guard, plan.release).prepare(plan.database)
        save(self.layout.root, replace(load(self.layout.root), schema_ready=True))

    def _launch(self, plan: Plan, name: str) -> None:
        def record(child: Child) -> None:
            save(self.layout.root, load(self.layout.root).with_child(name, child))

        side, service = _side(plan, name), _name_on_side(name)
        command = side.command(service)
        if side.unarchived(service):
            command[1:1] = [f"-XX:DumpLoadedClassList={self.layout.work(name) / _CLASS_LIST}", "-Xlog:cds=off"]
        self.guard.start(
            command,
            log=self.layout.log(name),
            cwd=self.layout.work(name),
            record=record,
            environment=side.environment(service),
        )

    def _recorded(self, plan: Plan, names: Sequence[str]) -> dict[Classes, Path]:
        """Return the files in which JVMs without an archive record their classes."""
        unarchived = ((name, _side(plan, name).unarchived(_name_on_side(name))) for name in names)
        return {classes: self.layout.work(name) / _CLASS_LIST for name, classes in unarchived if classes}

    def _started(self, name: str) -> Started:
        state = load(self.layout.root)
        return Started(name, state.children[name], state.ports[name], self.layout.log(name))


def _side(plan: Plan, name: str) -> Plan:
    """Return the plan of the cluster to which the service `name` belongs."""
    if not name.startswith(TARGET):
        return plan
    layout, own = TargetLayout(plan.layout.root), ports.on_target(plan.ports)
    return replace(plan, layout=layout, ports=own, database=database.derby(layout.data, own[ports.DERBY]))


def _name_on_side(name: str) -> str:
    """Return the name of a service in the plan of its cluster."""
    return name.removeprefix(TARGET)
