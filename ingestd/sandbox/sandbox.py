"""The sandbox: Kafka, Hive and the storage of the warehouse as local processes that outlive the command.

Invariant: when `up` returns, every requested service answers. When it fails, it leaves none of its processes running.
`down` ends only the processes in the state file. Only one command at a time changes a state folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from ingestd.errors import SandboxError
from ingestd.java import cache_folder
from ingestd.sandbox import memory, ports, process, warehouse
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import (
    BROKERS,
    HIVESERVER2,
    LOCAL,
    METASTORE,
    S3,
    S3_SERVER,
    SERVICES,
    SPARK_MASTER,
    TARGET_HIVESERVER2,
    TARGET_METASTORE,
    Addresses,
    Progress,
    SandboxOptions,
    ServiceState,
    no_progress,
    program,
)
from ingestd.sandbox.services import CLIENT, PROBES
from ingestd.sandbox.starter import Starter
from ingestd.sandbox.state import Child, Layout, State, TargetLayout, load, locked, save

_GRACE_SECONDS = 15.0
_LEAST_FREE_BYTES = 16 << 20


class Sandbox:
    """The services of one state folder. Methods raise SandboxError, or ConfigError when no suitable Java is found."""

    def __init__(self, options: SandboxOptions | None = None) -> None:
        self.options = options or SandboxOptions()
        self._layout = Layout(self.options.folder)

    def up(self, progress: Progress = no_progress) -> Addresses:
        """Start the services that are not running, and return the addresses when all services answer."""
        with self._disk_watched(), self._locked() as lock:
            state = self._choose_storage(self._responsive(SERVICES))
            missing = [name for name in self.options.services(state.storage) if name not in state.children]
            state = self._settle(state, missing)
            if missing:
                memory.require(self.options, missing)
                with Guard(lock) as guard:
                    Starter(self.options, self._layout, guard, progress).start(missing)
                    guard.release()
            return self._addresses(load(self._layout.root))

    def down(self, progress: Progress = no_progress) -> list[str]:
        """End the processes of this state folder, HiveServer2 first. Return the names of those that were running."""
        if not (self._layout.root / "state.json").exists():
            return []
        with self._locked():
            state = load(self._layout.root)
            ended = [name for name in reversed(SERVICES) if name in state.children]
            ended = [name for name in ended if process.find(state.children[name])]
            for kind, names in groupby(ended, program):
                progress(f"stopping {kind}", 0, 0)
                # All brokers at once: the last one would wait for the others, without which no controller is elected.
                process.end([state.children[name] for name in names], grace_seconds=_GRACE_SECONDS)
            save(self._layout.root, replace(state, children={}))
            return ended

    def status(self) -> list[ServiceState]:
        """Return the state of all services after sending a request to each running one. Acquires no lock."""
        state = load(self._layout.root)
        known = {*self.options.possible_services(state.storage), *state.ports}
        return [self._look(name, state) for name in SERVICES if name in known]

    def addresses(self) -> Addresses:
        """Return the addresses of the last `up`. Raises SandboxError when this folder has no sandbox."""
        state = load(self._layout.root)
        if METASTORE not in state.ports:
            raise SandboxError(
                "there is no sandbox in this folder", where=str(self._layout.root), hint="run `ingestd sandbox up`"
            )
        return self._addresses(state)

    def log_path(self, service: str) -> Path:
        """Return the path of the log that `service` has written since its last start."""
        return self._layout.log(service)

    def stop_service(self, name: str, *, kill: bool = False) -> None:
        """End one service with SIGTERM, or with SIGKILL if `kill` is set, as in a crash."""
        child = self._running(name)
        with self._locked():
            if kill:
                process.crash(child)
            else:
                process.end([child], grace_seconds=_GRACE_SECONDS)
            save(self._layout.root, load(self._layout.root).without_child(name))

    def start_service(self, *names: str) -> None:
        """Start stopped services on their previous ports and wait until they answer.

        Brokers answer only while most of them run. Other services continue, even if they do not answer at present:
        HiveServer2 opens no session while the NameNode is stopped.
        """
        with self._disk_watched(), self._locked() as lock:
            self._settle(self._choose_storage(self._responsive(names)), list(names))
            with Guard(lock) as guard:
                Starter(self.options, self._layout, guard, no_progress).start(names)
                guard.release()

    def pause_service(self, name: str) -> None:
        """Send SIGSTOP to a service, which then keeps its connections open but does not answer."""
        process.suspend(self._running(name))

    def resume_service(self, name: str) -> None:
        """Send SIGCONT to a service that was paused with `pause_service`."""
        process.resume(self._running(name))

    @contextmanager
    def _disk_watched(self) -> Iterator[None]:
        """Turn file errors into SandboxError, and report any failure on a full disk as a full disk."""
        try:
            yield
        except (OSError, SandboxError) as error:
            for folder in (self._layout.root, cache_folder()):
                if folder.is_dir() and shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
                    hint = "free 1 GB, or use another disk: --state-dir and INGESTD_CACHE"
                    raise SandboxError("the disk is full", where=str(folder), hint=hint) from error
            if isinstance(error, OSError):
                where = str(error.filename or self._layout.root)
                raise SandboxError(error.strerror or str(error), where=where) from error
            raise

    @contextmanager
    def _locked(self) -> Iterator[int]:
        with locked(self._layout.root / "lock", "the state folder") as lock:
            yield lock

    def _responsive(self, names: Sequence[str]) -> State:
        """End those of `names` that do not answer, and return the state without them and without ended services."""
        state = load(self._layout.root)
        for name, child in state.children.items():
            if not process.find(child) or (name in names and not PROBES[program(name)](state.ports[name])):
                process.end([child], grace_seconds=_GRACE_SECONDS)
                state = state.without_child(name)
        return state

    def _choose_storage(self, state: State) -> State:
        """Return the state with the storage of this start."""
        asked = self.options.storage
        if state.schema_ready and asked not in (None, state.storage):
            raise SandboxError(
                f"the warehouse of this state folder is on the storage {state.storage}",
                where=str(self._layout.root),
                hint="use another --state-dir",
            )
        if state.schema_ready and state.storage == S3 and S3_SERVER not in state.children:
            raise SandboxError(
                "the objects of this sandbox are lost: its S3 server has stopped",
                where=str(self._layout.root),
                hint="remove this folder, or use another --state-dir",
            )
        return state if state.schema_ready else replace(state, storage=asked or LOCAL)

    def _settle(self, state: State, starting: list[str]) -> State:
        """Choose the ports and the database of this start, save the new state and return it."""
        asked = self.options.metastore_db
        if asked and self.options.replica:
            raise SandboxError(
                "a sandbox with a source and a target has two metastores, which cannot share a database",
                hint="omit --metastore-db",
            )
        if asked and state.schema_ready and asked != state.metastore_db:
            raise SandboxError(
                "the metastore of this state folder already uses another database",
                where=str(self._layout.root),
                hint="use another --state-dir",
            )
        settled = ports.settle(self.options, state.storage, state.ports, starting, frozenset(state.children))
        bound = state.metastore_db if state.schema_ready else ""
        state = replace(state, ports=settled, metastore_db=asked or bound)
        save(self._layout.root, state)
        return state

    def _running(self, name: str) -> Child:
        child = load(self._layout.root).children.get(name)
        if not child or not process.find(child):
            raise SandboxError(f"{name} is not running", where=str(self._layout.root), hint="run `ingestd sandbox up`")
        return child

    def _look(self, name: str, state: State) -> ServiceState:
        child = state.children.get(name)
        live = process.find(child) if child else None
        port = state.ports.get(name)
        return ServiceState(
            name=name,
            address=f"{ports.HOST}:{port}" if port else "",
            pid=live.pid if live else None,
            answers=bool(live and port and PROBES[program(name)](port)),
            memory_mb=process.resident_mb(child) if child else 0,
            log=str(self._layout.log(name)),
        )

    def _addresses(self, state: State) -> Addresses:
        place = warehouse.find(state.storage, self._layout, state.ports)
        target = warehouse.find(state.storage, TargetLayout(self._layout.root), state.ports)

        def address(name: str, scheme: str = "") -> str | None:
            return f"{scheme}{ports.HOST}:{state.ports[name]}" if name in state.children else None

        return Addresses(
            kafka=",".join(f"{ports.HOST}:{state.ports[name]}" for name in BROKERS if name in state.ports),
            metastore=f"thrift://{ports.HOST}:{state.ports[METASTORE]}",
            hiveserver2=address(HIVESERVER2),
            warehouse=place.warehouse,
            state_dir=str(self._layout.root),
            storage=state.storage,
            hadoop_conf_dir=str(self._layout.conf(CLIENT)) if place.files else None,
            spark=address(SPARK_MASTER, "spark://"),
            target_metastore=address(TARGET_METASTORE, "thrift://"),
            target_hiveserver2=address(TARGET_HIVESERVER2),
            target_warehouse=target.warehouse if TARGET_METASTORE in state.ports else None,
        )
