"""Separate metastore processes that use the sandbox's jars and configuration templates with other properties."""

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
from ingestd.sandbox import HIVESERVER2, METASTORE, SandboxOptions, jars, ports
from ingestd.sandbox.database import Database, derby
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.release import PLAIN, Release
from ingestd.sandbox.schema import SchemaTool
from ingestd.sandbox.services import Plan
from ingestd.sandbox.state import Layout, locked
from tests.support.patience import LIMIT
from tests.support.stack import eventually


class Home:
    """A folder for metastores of one release that share one database. The constructor creates the schema."""

    def __init__(self, folder: Path, database: Database | None = None, release: Release = PLAIN) -> None:
        layout = Layout(folder)
        for place in (layout.warehouse, layout.data / "external"):
            place.mkdir(parents=True)
        self.database = database or derby(layout.data, free_port())
        self.folder = folder
        runtime = java.find_java()
        with locked(folder / "lock", "the test") as handle, Guard(handle) as guard:
            home = jars.ensure(jars.groups_for((METASTORE,), release.group), runtime, guard, no_progress)
            SchemaTool(runtime, home, layout, guard, release).prepare(self.database)
        options = SandboxOptions(state_dir=folder, metastore_heap_mb=256)
        self._plan = Plan(options, layout, {}, self.database, runtime, home, release=release)

    def plan(self, name: str, port: int, service: str = METASTORE) -> Plan:
        """Return the plan of the metastore or HiveServer2 `name`. All those of a home share one warehouse."""
        listening = {METASTORE: 0, ports.DERBY: free_port(), "kafka": 0, "controller": 0, HIVESERVER2: 0, service: port}
        layout = _Named(self.folder, name)
        return replace(self._plan, ports=listening, layout=layout)


@dataclass(frozen=True, slots=True)
class _Named(Layout):
    """A layout with separate configuration, log and working folders for each metastore of a home."""

    name: str

    def conf(self, service: str) -> Path:
        return self.root / "conf" / self.name

    def work(self, service: str) -> Path:
        return self.root / "run" / self.name

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{self.name}.log"


class Process:
    """One metastore process, or another `service` of Hive. Its port is the same after `stop` and `start`.

    `starter` is a command that runs its arguments, such as one that changes the user.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        properties: Mapping[str, str],
        jvm: tuple[str, ...] = (),
        service: str = METASTORE,
        starter: tuple[str, ...] = (),
    ) -> None:
        self._starter = starter
        self.port = free_port()
        self.properties = dict(properties)
        self._jvm = jvm
        self._service = service
        self._plan = home.plan(name, self.port, service)
        self.log = self._plan.layout.log(service)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The address of the metastore, with the host name in its certificate and principal."""
        return f"thrift://localhost:{self.port}"

    def start(self) -> Process:
        """Start the service without waiting until it listens."""
        self._plan.configure(self._service)
        conf, work = self._plan.layout.conf(self._service), self._plan.layout.work(self._service)
        work.mkdir(parents=True, exist_ok=True)
        properties = properties_xml(self.properties)
        site = conf / "hive-site.xml"
        site.write_text(site.read_text().replace("</configuration>", f"{properties}</configuration>"))
        # Hadoop's login only reads this file.
        (conf / "core-site.xml").write_text(f"<configuration>{properties}</configuration>")
        program, *arguments = self._plan.command(self._service)
        command = [*self._starter, program, *self._jvm, *arguments]
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=work, start_new_session=True
            )
        return self

    def wait(self) -> Process:
        """Wait until the service listens."""
        eventually(f"the service of {self.log} to listen", self._listens)
        return self

    def stop(self) -> None:
        """Stop the metastore if it is running."""
        process, self._process = self._process, None
        if process:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            process.wait(LIMIT)

    def kill(self) -> None:
        """Send SIGKILL, as in a crash, and wait until the metastore has ended."""
        assert self._process
        process, self._process = self._process, None
        process.kill()
        process.wait(LIMIT)

    def pause(self) -> None:
        """Send SIGSTOP and wait until every thread has stopped. Connections stay open but receive no answer."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        # The parent is notified when the last thread has stopped.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Send SIGCONT if the metastore is running."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def said(self) -> str:
        """Return the text of the log."""
        return self.log.read_text(errors="replace")

    def _listens(self) -> bool:
        assert self._process
        assert self._process.poll() is None, f"the service exited: {self.said()[-2000:]}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def metastore(home: Home, name: str, properties: Mapping[str, str], jvm: tuple[str, ...] = ()) -> Iterator[Process]:
    """Run a metastore and stop it at the end of the `with` block."""
    made = Process(home, name, properties, jvm)
    try:
        yield made.start().wait()
    finally:
        made.stop()


def free_port() -> int:
    """Return a free port of the loopback address, outside the range of outgoing connections."""
    return next(port for port in iter(lambda: random.randint(20_000, 32_000), None) if ports.is_free(port))


def properties_xml(properties: Mapping[str, str]) -> str:
    """Return properties for a configuration file of Hadoop."""
    lines = (f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in properties.items())
    return "\n".join(lines)
