"""Daemons for tests: separate processes for tests that kill or signal them, and threads for all other tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import structlog
from pyspark import SparkContext

from ingestd.config.document import load
from ingestd.daemon import log
from ingestd.daemon.http.server import open_server
from ingestd.daemon.metrics import CONTENT_TYPE, Metrics
from ingestd.daemon.supervisor import Supervisor
from ingestd.errors import IngestdError
from ingestd.ingest.control import Signals
from ingestd.ingest.ownership.liveness import Liveness
from ingestd.ingest.services import Clients
from ingestd.ingest.steps import STEPS, ignore
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.engine import Engine
from ingestd.spark.options import SparkOptions
from ingestd.spark.session import Session
from ingestd.storage.storages import Storages
from tests.support import observation
from tests.support.patience import LIMIT

Event = dict[str, Any]
# `Stack.config` writes this value, so that all daemons in threads can share one Spark session.
SPARK_MASTER = "local[2]"


def _events(lines: str, name: str | None) -> list[Event]:
    # Tests ask for few of many events, and ask again and again.
    text = "" if name is None else f'"{name}"'
    chosen = (line for line in lines.splitlines() if text in line and line.startswith("{") and line.endswith("}"))
    return [event for event in map(json.loads, chosen) if name is None or event["event"] == name]


class DaemonProcess:
    """One `ingestd run` process that logs to a file."""

    def __init__(self, config: Path, log: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ingestd", "run", "--config", str(config), "--log-format", "json", *arguments],
                stdout=sink,
                stderr=sink,
                env={**os.environ, **environment},
                # The new process group contains the Spark workers, so `kill` ends them as well.
                start_new_session=True,
            )
        observation.started(self)

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs; negative if a signal ended it."""
        return self.process.poll()

    def events(self, name: str | None = None) -> list[Event]:
        """Return the parsed log lines so far, or only those of the event `name`."""
        return _events(self.text(), name)

    def text(self) -> str:
        """Return everything that the process has printed so far."""
        observation.read(self)
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = LIMIT) -> int:
        """Wait until the process has ended and return its exit code."""
        observation.expect_end(self)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"the daemon is still running after {seconds:.0f} s:\n{self.text()[-3000:]}"
            ) from error

    def terminate(self) -> None:
        """Send SIGTERM to the main process, as systemd does."""
        observation.expect_end(self)
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the whole process group."""
        observation.expect_end(self)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait(LIMIT)


class Hold:
    """An observer that blocks a mapping after the given number of completions of `step`, until `release` is called.

    With `mappings`, it blocks that many mappings of the daemon, each after its first completion of `step`.
    """

    def __init__(self, step: str, times: int = 1, mappings: int = 1) -> None:
        assert step in STEPS
        assert times == 1 or mappings == 1
        self._step = step
        self._left = times + mappings - 1
        self._mappings = mappings
        self._guard = threading.Lock()
        self._reached, self._released = threading.Event(), threading.Event()

    def __call__(self, step: str) -> None:
        """Observe a completed step (`ingestd.ingest.steps.Observe`)."""
        if step != self._step:
            return
        with self._guard:
            is_chosen = 0 < self._left <= self._mappings
            self._left -= 1
            if self._left == 0:
                self._reached.set()
        if is_chosen:
            self._released.wait()

    def wait(self, seconds: float = LIMIT) -> None:
        """Wait until all these mappings are blocked."""
        assert self._reached.wait(seconds), f"the step {self._step} was not reached within {seconds:.0f} s"

    def release(self) -> None:
        """Let the mapping continue."""
        self._released.set()


class DaemonThread:
    """Runs the mappings of one configuration in threads of this process, on the Spark session that all tests share.

    It does all that `ingestd run` does between reading the configuration and exiting.
    """

    def __init__(self, config: Path, arguments: Sequence[str], hold: Hold | None) -> None:
        document = load([config])
        assert document.spark == SparkOptions(master=SPARK_MASTER), "other Spark options need `start_process`"
        self._lines: list[str] = []
        self._hold = hold
        self._signals = Signals()
        _capture_log_lines()
        for mapping in document.mappings:
            _sinks[mapping.name] = self
        drain = "--until-caught-up" in arguments
        self._metrics = Metrics(document.metastore.kerberos)
        self._metastore = document.metastore.connect(self._metrics.on_call)
        self.http = open_server(document.http)
        clients = Clients(
            Warehouse(self._metastore, Storages(document.storage)),
            shared_engine(),
            Liveness(self._metastore, document.control.database),
        )
        self.supervisor = Supervisor(
            document,
            clients,
            self._signals,
            drain=drain,
            read=lambda: load([config]),
            observer_of=lambda _mapping: hold or ignore,
        )
        self._errors: Future[list[IngestdError]] = Future()
        self._thread = threading.Thread(target=self._run, name=f"daemon {config.stem}")
        self._thread.start()
        observation.started(self)

    def _render(self) -> tuple[bytes, str]:
        return self._metrics.text(self.supervisor.monitors.values(), shared_engine()), CONTENT_TYPE

    def _run(self) -> None:
        try:
            with nullcontext() if self.http is None else self.http.serving(self.supervisor, self._render):
                self._errors.set_result(self.supervisor.run())
        except BaseException as error:  # noqa: BLE001  # `wait` raises it
            self._errors.set_exception(error)
        finally:
            self._metastore.close()

    def write(self, line: str) -> None:
        """Store a log line of this daemon's mappings."""
        self._lines.append(line)

    @property
    def is_running(self) -> bool:
        """True while any mapping runs."""
        return self._thread.is_alive()

    @property
    def exit_code(self) -> int | None:
        """The exit code that the command would have, or None while any mapping runs."""
        if self.is_running:
            return None
        errors = self._errors.result()
        return errors[0].exit_code if errors else 0

    def events(self, name: str | None = None) -> list[Event]:
        """Return the parsed log lines so far, or only those of the event `name`."""
        return _events(self.text(), name)

    def text(self) -> str:
        """Return all log lines. When the daemon has ended, its errors follow, as the command prints them."""
        observation.read(self)
        errors = self._errors.result() if self._errors.done() else []
        return "\n".join([*self._lines, *(f"ingestd: {log.shortened(str(error))}" for error in errors)])

    def wait(self, seconds: float = LIMIT) -> int:
        """Wait until all mappings have ended and return the exit code that the command would have."""
        observation.expect_end(self)
        self._thread.join(seconds)
        code = self.exit_code
        assert code is not None, f"the daemon is still running after {seconds:.0f} s:\n{self.text()[-3000:]}"
        return code

    def terminate(self) -> None:
        """Do what the first SIGTERM does, or in later calls what the second SIGTERM does."""
        observation.expect_end(self)
        (self._signals.abort if self._signals.stop.is_set() else self._signals.stop).set()

    def kill(self) -> None:
        """Abort all mappings and wait until they have ended. Unlike a killed process, they release their leases."""
        observation.expect_end(self)
        self._signals.stop.set()
        self._signals.abort.set()
        if self._hold is not None:
            self._hold.release()
        self._thread.join(LIMIT)
        assert not self.is_running, f"the daemon has not ended after {LIMIT:.0f} s:\n{self.text()[-3000:]}"


Daemon = DaemonProcess | DaemonThread

# The daemon that runs a mapping in a thread, by the mapping's name.
_sinks: dict[str, DaemonThread] = {}


class _Router:
    """A logger that passes each line to the daemon of its mapping."""

    def msg(self, line: str) -> None:
        daemon = _sinks.get(json.loads(line).get("mapping", ""))
        if daemon is not None:
            daemon.write(line)

    log = debug = info = warning = error = critical = msg


def _capture_log_lines() -> None:
    """Send the log lines of `ingestd` to the daemons of this process as JSON, instead of to stderr."""
    log.configure("json", "debug")
    structlog.configure(logger_factory=lambda *_: _Router())


def shared_engine() -> Engine:
    """Return the only Spark session of this process, which is started if none runs."""
    if _engine.cache_info().currsize and _engine().lost is not None:
        stop_engine()  # the test that lost it has failed, the others need another one
        # Otherwise PySpark connects to the JVM that has ended.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    return _engine()


def jobs_of_shared_engine(name: str) -> int:
    """Return how many jobs of groups of this name the shared Spark session has begun."""
    context: Any = shared_engine()._session.context()
    jobs = context._jsc.sc().statusStore().jobsList(context._jvm.java.util.ArrayList())
    groups = [jobs.apply(number).jobGroup() for number in range(jobs.size())]
    return sum(group.isDefined() and group.get().startswith(f"{name}-") for group in groups)


@cache
def _engine() -> Engine:
    return Engine(Session(SPARK_MASTER, {}))


def stop_engine() -> None:
    """End the shared Spark session if it was started."""
    if _engine.cache_info().currsize:
        _engine().stop()
        _engine.cache_clear()
