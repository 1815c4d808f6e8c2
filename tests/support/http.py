"""An HTTP server with real monitors and controls, but without mappings, and a client of it."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingestd.compaction.pacing import Pacing
from ingestd.compaction.watch import CompactionStatus
from ingestd.config.document import Scope
from ingestd.config.http import Address, HttpOptions
from ingestd.daemon.http.history import History
from ingestd.daemon.http.server import HttpServer
from ingestd.errors import IngestdError
from ingestd.hive.creation import NewTable
from ingestd.hive.tables import TableName
from ingestd.ingest.control import Control
from ingestd.ingest.inspection.preview import AtOffset, AtTime, Origin, Preview, PreviewRow
from ingestd.ingest.monitoring.monitor import CommitRecord, Monitor
from ingestd.ingest.options import MappingOptions
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.timestamps import FirstRecord
from ingestd.replication.policies.policy_status import PolicyStatus
from ingestd.schema import Column, HiveType
from ingestd.spark.engine import JobGroup
from tests.support.daemon import DaemonProcess
from tests.support.patience import LIMIT
from tests.support.stack import eventually

LOOPBACK = Address("127.0.0.1", 0)
JSON = {"Content-Type": "application/json"}


def options(name: str) -> MappingOptions:
    """Return the options of a mapping with one topic."""
    return MappingOptions(name, (name,), TableName("default", name))


@dataclass
class StaticFleet:
    """A fleet whose monitors and controls a test sets."""

    monitors: dict[str, Monitor] = field(default_factory=dict)
    controls: dict[str, Control] = field(default_factory=dict)
    stuck_names: list[str] = field(default_factory=list)
    reload_error: Exception | None = None
    reload_hangs: bool = False
    reloads: int = 0
    scope: Scope = field(default_factory=lambda: Scope(("127.0.0.1:1",), "ingestd"))
    policies: Sequence[PolicyStatus] = ()
    policies_read_at: float | None = None
    policies_error: IngestdError | None = None

    def add(self, name: str) -> Monitor:
        """Add a mapping and return its monitor."""
        # The server may be iterating over the old dictionaries.
        self.monitors = {**self.monitors, name: Monitor(options(name))}
        self.controls = {**self.controls, name: Control()}
        return self.monitors[name]

    def remove(self, name: str) -> None:
        """Remove a mapping."""
        self.monitors = {known: monitor for known, monitor in self.monitors.items() if known != name}
        self.controls = {known: control for known, control in self.controls.items() if known != name}

    def run(self, name: str, rows: int = 1000, lag: int = 0) -> Monitor:
        """Add a mapping that runs, has committed once, and has the given lag."""
        monitor = self.add(name)
        monitor.entered("running", owner="here:1")
        monitor.metastore_answered()
        commit(monitor, name, rows, end=rows + lag)
        return monitor

    def stuck(self) -> list[str]:
        """Return the names that the test has set."""
        return self.stuck_names

    def preview(self, name: str, limit: int, start: AtTime | AtOffset | None, group: JobGroup) -> Preview:
        """Return a preview of one row, which contains what was requested."""
        table = NewTable(TableName("default", name), (Column("start", HiveType("string")),)).checked()
        row = PreviewRow(Origin(name, 0, 7), "", 0, (str(start),))
        return Preview(table, (), limit, 0, (row,), (), None, (), ())

    def cancel(self, group: JobGroup) -> None:
        """Do nothing: a preview of this fleet has no jobs."""

    def reload(self) -> Future[None]:
        """Count the reload, or fail with the error that the test has set. With `reload_hangs`, never end."""
        done: Future[None] = Future()
        if self.reload_error is not None:
            done.set_exception(self.reload_error)
        elif not self.reload_hangs:
            self.reloads += 1
            done.set_result(None)
        return done


def commit(monitor: Monitor, topic: str, rows: int, end: int, *, txn: int = 7, at: float = 1_790_000_000.0) -> None:
    """Note a commit of `rows` rows of partition 0, which ends at the offset `end`, and a poll after it."""
    partition = TopicPartition(topic, 0)
    first = monitor.snapshot().position.get(partition, 0)
    position = {partition: first + rows}
    monitor.committed(
        CommitRecord(
            txn=txn,
            write_id=txn - 4,
            at=at,
            rows=rows,
            records=rows,
            skipped=0,
            bytes=rows * 100,
            files=2,
            ranges=(f"{topic}[0] {first}..{first + rows}",),
            range_count=1,
            offsets=rows,
            partitions=("dt=2026-11-21", "dt=2026-11-22"),
            partition_count=2,
            steps={"opened": 12, "staged": 340, "locked": 15, "placed": 8, "committed": 21},
            oldest=at - 1.5,
        ),
        position,
    )
    monitor.polled(position, {partition: end})
    monitor.learned([FirstRecord(partition, first + rows, at)])
    monitor.paced(Pacing(30.0))
    monitor.compacted(CompactionStatus())


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.text)


@dataclass(frozen=True)
class Client:
    """Sends requests to a server; each has its own connection."""

    address: Address
    ca_file: Path | None = None

    @classmethod
    def of(cls, daemon: DaemonProcess) -> Client:
        """Return a client of a daemon, when its server listens."""
        [listening] = eventually("the HTTP server", lambda: daemon.events("http_listening"))
        return cls(Address("127.0.0.1", int(listening["url"].rstrip("/").rpartition(":")[2])))

    def open(self, seconds: float = LIMIT) -> http.client.HTTPConnection:
        """Return a connection that is opened by its first request."""
        if self.ca_file is None:
            return http.client.HTTPConnection(self.address.host, self.address.port, timeout=seconds)
        trusted = ssl.create_default_context(cafile=str(self.ca_file))
        return http.client.HTTPSConnection("localhost", self.address.port, timeout=seconds, context=trusted)

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request and return the answer. `body` is sent unchanged if it is text or bytes, else as JSON."""
        connection = self.open()
        try:
            data = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
            connection.request(method, path, data, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Send a GET request."""
        return self.send("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a POST request with the content type JSON."""
        return self.send("POST", path, body, JSON | {name.replace("_", "-"): value for name, value in headers.items()})


@contextmanager
def serving(
    fleet: StaticFleet, listen: Address = LOOPBACK, *, history: History | None = None, **settings: Any
) -> Iterator[Client]:
    """Run a server for `fleet` and yield a client of it. `settings` are keys of the section `http`."""
    server = HttpServer(listen, HttpOptions(**settings))
    with server.serving(fleet, lambda: (b"ingestd_up 1\n", "text/plain; version=0.0.4"), history):
        yield Client(Address("127.0.0.1", server.address.port))


def server_threads(others: set[threading.Thread]) -> list[threading.Thread]:
    """Return the threads of servers, without those in `others`."""
    return [thread for thread in threading.enumerate() if thread.name == "http" and thread not in others]
