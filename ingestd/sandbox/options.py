"""The options and results of the sandbox as plain values. This module accesses no file, port or process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ingestd.java import cache_folder

KAFKA = "kafka"
METASTORE = "metastore"
HIVESERVER2 = "hiveserver2"
SERVICES = (KAFKA, METASTORE, HIVESERVER2)  # in start order; they stop in reverse order

Progress = Callable[[str, int, int], None]
"""Called with `(step, done, total)`, in bytes while jars are fetched. Both numbers are 0 for all other steps."""


def no_progress(step: str, done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """The options of `up`. Heaps are in MiB. A port that is None is chosen once and then stored in the state folder."""

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
        """The absolute path of the state folder."""
        return (self.state_dir or cache_folder() / "sandbox" / "default").expanduser().absolute()

    @property
    def services(self) -> tuple[str, ...]:
        """The services that `up` starts, in order."""
        return SERVICES if self.hiveserver2 else SERVICES[:2]

    def heap_mb(self, service: str) -> int:
        """Return the maximum heap of `service` in MiB."""
        return {KAFKA: self.kafka_heap_mb, METASTORE: self.metastore_heap_mb}.get(service, self.hiveserver2_heap_mb)

    def asked_port(self, service: str) -> int | None:
        """Return the port that the caller chose for `service`, or None."""
        return {KAFKA: self.kafka_port, METASTORE: self.metastore_port}.get(service, self.hiveserver2_port)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a running sandbox. `hiveserver2` is None when HiveServer2 was not started."""

    kafka: str
    metastore: str
    hiveserver2: str | None
    warehouse: str
    state_dir: str

    def as_json(self) -> str:
        """Return the addresses as one JSON object on one line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of one service. `answers` is True if it answered a request. `memory_mb` is its resident memory."""

    name: str
    address: str
    pid: int | None
    answers: bool
    memory_mb: int
    log: str

    @property
    def word(self) -> str:
        """The state in one word: `running`, `silent` (alive but not answering) or `stopped`."""
        if self.pid is None:
            return "stopped"
        return "running" if self.answers else "silent"
