"""What a caller asks of the sandbox and what it answers, as plain values.

Invariant: nothing here touches a file, a port or a process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ingestd.java import cache_folder

KAFKA = "kafka"
METASTORE = "metastore"
HIVESERVER2 = "hiveserver2"
SERVICES = (KAFKA, METASTORE, HIVESERVER2)  # the order of starting; they stop in the reverse order

Progress = Callable[[str, int, int], None]
"""Told `(step, done, total)`; bytes while jars come, and 0 of 0 for a step without a measure."""


def no_progress(step: str, done: int, total: int) -> None:
    """The Progress of callers that do not want to know."""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """How to start. Heaps are in MiB; a port of None is chosen once and then remembered in the state folder."""

    state_dir: Path | None = None
    hiveserver2: bool = False
    metastore_db: str | None = None
    kafka_port: int | None = None
    metastore_port: int | None = None
    hiveserver2_port: int | None = None
    kafka_heap_mb: int = 512
    metastore_heap_mb: int = 512
    hiveserver2_heap_mb: int = 1024
    txn_timeout_seconds: int = 300
    housekeeper_seconds: int = 5
    compactor_check_seconds: int = 2

    @property
    def folder(self) -> Path:
        """The state folder, absolute."""
        return (self.state_dir or cache_folder() / "sandbox" / "default").expanduser().absolute()

    @property
    def services(self) -> tuple[str, ...]:
        """The services that `up` starts, in order."""
        return SERVICES if self.hiveserver2 else SERVICES[:2]

    def heap_mb(self, service: str) -> int:
        """The heap of `service` in MiB."""
        return {KAFKA: self.kafka_heap_mb, METASTORE: self.metastore_heap_mb}.get(service, self.hiveserver2_heap_mb)

    def asked_port(self, service: str) -> int | None:
        """The port the caller fixed for `service`, if any."""
        return {KAFKA: self.kafka_port, METASTORE: self.metastore_port}.get(service, self.hiveserver2_port)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running sandbox answers; `hiveserver2` is None when it was not started."""

    kafka: str
    metastore: str
    hiveserver2: str | None
    warehouse: str
    state_dir: str

    def as_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One service as `status` sees it: `answers` is a real request, `memory_mb` is resident memory in MiB."""

    name: str
    address: str
    pid: int | None
    answers: bool
    memory_mb: int
    log: str

    @property
    def word(self) -> str:
        """running, silent (alive, but does not answer) or stopped."""
        if self.pid is None:
            return "stopped"
        return "running" if self.answers else "silent"
