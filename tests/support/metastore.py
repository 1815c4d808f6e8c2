"""A single real metastore process with properties that a test chooses, from the sandbox's jars and templates."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

from ingestd import java
from ingestd.sandbox import METASTORE, SandboxOptions, jars, ports
from ingestd.sandbox.database import Database, derby
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.schema import SchemaTool
from ingestd.sandbox.services import Plan
from ingestd.sandbox.state import Layout, locked
from tests.support.stack import eventually


class Home:
    """A folder for metastores over one database; the schema is laid when it is made."""

    def __init__(self, folder: Path, database: Database | None = None) -> None:
        layout = Layout(folder)
        for place in (layout.warehouse, layout.data / "external"):
            place.mkdir(parents=True)
        self.database = database or derby(layout.data, free_port())
        self.folder = folder
        runtime = java.find_java()
        with locked(folder / "lock", "the test") as handle, Guard(handle) as guard:
            home = jars.ensure(jars.groups_for((METASTORE,)), runtime, guard, no_progress)
            SchemaTool(runtime, home, layout, guard).prepare(self.database)
        self._plan = Plan(
            SandboxOptions(state_dir=folder, metastore_heap_mb=256), layout, {}, self.database, runtime, home
        )

    def plan(self, name: str, port: int) -> Plan:
        """What the process `name` is made of; its warehouse is the one of all."""
        listening = {METASTORE: port, ports.DERBY: free_port(), "kafka": 0, "controller": 0, "hiveserver2": 0}
        layout = _Named(self.folder, name)
        return replace(self._plan, ports=listening, layout=layout)


@dataclass(frozen=True, slots=True)
class _Named(Layout):
    """A layout with a configuration, a log and a working folder for each of several metastores."""

    name: str

    def conf(self, service: str) -> Path:
        return self.root / "conf" / self.name

    def work(self, service: str) -> Path:
        return self.root / "run" / self.name

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{self.name}.log"


class Process:
    """One metastore on a port of its own, which stays the same over `stop` and `start`."""

    def __init__(self, home: Home, name: str, properties: Mapping[str, str], jvm: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self.properties = dict(properties)
        self._jvm = jvm
        self._plan = home.plan(name, self.port)
        self.log = self._plan.layout.log(METASTORE)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """Its address by the host name that its certificate and its principal have."""
        return f"thrift://localhost:{self.port}"

    def start(self) -> Process:
        """Start it; `wait` waits."""
        self._plan.configure(METASTORE)
        conf, work = self._plan.layout.conf(METASTORE), self._plan.layout.work(METASTORE)
        work.mkdir(parents=True, exist_ok=True)
        properties = "".join(_property(key, value) for key, value in self.properties.items())
        site = conf / "hive-site.xml"
        site.write_text(site.read_text().replace("</configuration>", f"{properties}</configuration>"))
        # Hadoop's own login looks only here.
        (conf / "core-site.xml").write_text(f"<configuration>{properties}</configuration>")
        program, *arguments = self._plan.command(METASTORE)
        # Only the answers are looked at, so the JVM may spare the work for speed later on.
        command = [program, "-XX:TieredStopAtLevel=1", *self._jvm, *arguments]
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=work, start_new_session=True
            )
        return self

    def wait(self) -> Process:
        """Return when it listens."""
        eventually(f"the metastore of {self.log} to listen", self._listens, 60)
        return self

    def start_if_stopped(self) -> Process:
        """Start it unless it runs."""
        return self if self._process else self.start()

    def stop(self) -> None:
        """End it, if it runs."""
        process, self._process = self._process, None
        if process:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            process.wait(30)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing. Returns when every thread has stopped."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        # The parent learns of the stop when the last thread has stopped.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """SIGCONT, if it runs."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")

    def _listens(self) -> bool:
        assert self._process
        assert self._process.poll() is None, f"the metastore ended: {self.said()[-2000:]}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def metastore(home: Home, name: str, properties: Mapping[str, str], jvm: tuple[str, ...] = ()) -> Iterator[Process]:
    """A metastore that lives as long as the block."""
    made = Process(home, name, properties, jvm)
    try:
        yield made.start().wait()
    finally:
        made.stop()


def free_port() -> int:
    """A port of the loopback address that nobody listens on, nor gets for an outgoing connection meanwhile."""
    return next(port for port in iter(lambda: random.randint(20_000, 32_000), None) if ports.is_free(port))


def _property(key: str, value: str) -> str:
    return f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
