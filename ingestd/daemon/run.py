"""Configuration to a running daemon, and from signals to its end.

Invariant: a signal handler only sets a flag; the first lets what is open finish, the second aborts it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

from ingestd.config.document import Document
from ingestd.daemon.supervisor import Supervisor
from ingestd.errors import IngestdError
from ingestd.ingest import failpoints
from ingestd.ingest.mapping import Signals
from ingestd.spark.engine import Engine, EngineLimits


def run_daemon(document: Document, *, drain: bool) -> list[IngestdError]:
    """Run until stopped, or with `drain` until caught up; returns the errors that ended mappings.

    After a StillRunning among them only `os._exit` ends the process.
    """
    failpoints.check()
    metastore = document.metastore.connect()
    signals = install_signals()
    try:
        engine = Engine(
            document.spark.master,
            document.spark.properties,
            EngineLimits(job_seconds=document.spark.stage_timeout),
            unwanted=signals.stop,
        )
    except IngestdError:
        if signals.stop.is_set():  # nothing has begun
            return []
        raise
    try:
        supervisor = Supervisor(
            metastore, engine, document.mappings, signals, drain=drain, shutdown_seconds=document.shutdown.timeout
        )
        return supervisor.run()
    finally:
        engine.stop()
        # What Python does at its end would be cut short by a signal that comes late.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def install_signals() -> Signals:
    """SIGTERM and SIGINT: the first sets `stop`, the second `abort`."""
    signals = Signals(threading.Event(), threading.Event())

    def handle(_number: int, _frame: FrameType | None) -> None:
        (signals.abort if signals.stop.is_set() else signals.stop).set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return signals
