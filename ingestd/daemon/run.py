"""Runs the mappings of a validated configuration, and stops them on signals.

Invariant: a signal handler only sets a flag. The first signal lets open transactions finish. The second aborts them.
`run_daemon` contains everything that concerns the whole process: signals, failpoints, the HTTP server and Spark's JVM.
Several supervisors can run in one process at the same time and share an engine.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType

from ingestd.config.document import Document
from ingestd.daemon import failpoints
from ingestd.daemon.http.server import open_server
from ingestd.daemon.metrics import CONTENT_TYPE, Metrics
from ingestd.daemon.notify import Notifier
from ingestd.daemon.supervisor import Supervisor
from ingestd.errors import IngestdError
from ingestd.ingest.clients import Clients
from ingestd.ingest.lag_watch import LagWatch
from ingestd.ingest.liveness import Liveness
from ingestd.ingest.signals import Signals
from ingestd.spark.engine import Engine, EngineLimits


def run_daemon(document: Document, read: Callable[[], Document], *, drain: bool) -> list[IngestdError]:
    """Run the daemon of this process until a signal stops it or, with `drain`, until it has caught up.

    `read` reads the configuration again when a reload is requested, by SIGHUP or over HTTP.
    Returns the errors that ended mappings. The first error decides the exit code. If StillRunning is among them,
    threads are still running, and only `os._exit` can end the process. Raises ConfigError or EngineLost.
    """
    observe = failpoints.from_environment()
    http = open_server(document.http)
    signals = install_signals()
    notifier = Notifier()
    notifier.starting()
    try:
        engine = _start_engine(document, signals.stop)
    except IngestdError:
        if signals.stop.is_set():  # a signal arrived during the start, before any mapping ran
            return []
        raise
    metrics = Metrics(document.metastore.kerberos)
    metastore = document.metastore.connect(metrics.on_call)
    clients = Clients(metastore, engine, Liveness(metastore, document.control.database))

    def read_again() -> Document:
        notifier.reloading()
        try:
            return read()
        finally:
            notifier.reloaded()

    supervisor = Supervisor(document, clients, signals, drain=drain, read=read_again, observe=observe)

    def render() -> tuple[bytes, str]:
        return metrics.text(supervisor.monitors.values(), engine), CONTENT_TYPE

    try:
        serving = nullcontext() if http is None else http.serving(supervisor, render)
        with serving, LagWatch(lambda: supervisor.monitors):
            return supervisor.run(on_check=lambda: notifier.check(supervisor, signals))
    finally:
        notifier.stopping()
        engine.stop()
        metastore.close()
        # A late signal must not interrupt the interpreter's own shutdown.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def install_signals() -> Signals:
    """Install handlers: the first SIGTERM or SIGINT sets `stop`, the second `abort`, and SIGHUP sets `reload`.

    Must be called in the main thread.
    """
    signals = Signals()

    def handle(_number: int, _frame: FrameType | None) -> None:
        (signals.abort if signals.stop.is_set() else signals.stop).set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGHUP, lambda _number, _frame: signals.reload.set())
    return signals


def _start_engine(document: Document, cancelled: threading.Event) -> Engine:
    spark = document.spark
    limits = EngineLimits(job_seconds=spark.stage_timeout, silence_seconds=spark.answer_timeout)
    return Engine(spark.master, spark.properties, limits, cancelled)
