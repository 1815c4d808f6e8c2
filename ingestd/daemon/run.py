"""Runs the mappings of a validated configuration, and stops them on signals.

Invariant: a signal handler only sets a flag. The first signal lets open transactions finish. The second aborts them.
`run_daemon` contains everything that concerns the whole process: failpoints, the HTTP server and Spark.
Several supervisors can run in one process at the same time and share an engine.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext

from ingestd.config.document import Document
from ingestd.daemon import failpoints
from ingestd.daemon.http.server import open_server
from ingestd.daemon.metrics import CONTENT_TYPE, Metrics
from ingestd.daemon.notify import Notifier
from ingestd.daemon.policy_metrics import PolicyMetrics
from ingestd.daemon.supervisor import Supervisor
from ingestd.errors import IngestdError
from ingestd.ingest.control import Signals
from ingestd.ingest.monitoring.lag_watch import LagWatch
from ingestd.ingest.ownership.liveness import Liveness
from ingestd.ingest.services import Clients
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.engine import Engine, EngineLimits
from ingestd.spark.session import Session
from ingestd.storage.storages import Storages

# After an abort, Spark has only this long for an orderly stop, because the process must end within 10 s.
_ABORT_STOP_SECONDS = 1.5


def run_daemon(
    document: Document, session: Session, signals: Signals, read: Callable[[], Document], *, drain: bool
) -> list[IngestdError]:
    """Run the daemon of this process until a signal stops it or, with `drain`, until it has caught up.

    `session` may still be starting; the mappings already acquire their leases, recover and plan. It is closed at the
    end. `read` reads the configuration again when a reload is requested, by SIGHUP or over HTTP. Returns the errors
    that ended mappings. The first error decides the exit code. If StillRunning is among them, threads are still
    running, and only `os._exit` can end the process. Raises ConfigError.
    """
    observer_of = failpoints.from_environment()
    http = open_server(document.http)
    notifier = Notifier()
    notifier.starting()
    spark = document.spark
    limits = EngineLimits(
        job_seconds=spark.stage_timeout,
        executor_seconds=spark.executor_timeout,
        silence_seconds=spark.answer_timeout,
    )
    engine = Engine(session, limits)
    metrics = Metrics(document.metastore.kerberos)
    metastore = document.metastore.connect(metrics.on_call)
    clients = Clients(
        Warehouse(metastore, Storages(document.storage)), engine, Liveness(metastore, document.control.database)
    )

    def read_again() -> Document:
        with notifier.reloading():
            return read()

    supervisor = Supervisor(document, clients, signals, drain=drain, read=read_again, observer_of=observer_of)

    def render() -> tuple[bytes, str]:
        policies = PolicyMetrics(supervisor.policies, supervisor.policy_totals) if document.replication else None
        started = engine if engine.has_started else None
        return metrics.text(supervisor.monitors.values(), started, policies), CONTENT_TYPE

    try:
        serving = nullcontext() if http is None else http.serving(supervisor, render)
        with serving, LagWatch(lambda: supervisor.monitors, clients.kafka):
            return supervisor.run(on_check=lambda: notifier.check(supervisor, signals, has_spark=engine.has_started))
    finally:
        notifier.stopping()
        engine.stop(_ABORT_STOP_SECONDS if signals.abort.is_set() else None)
        metastore.close()
        # A late signal must not interrupt the interpreter's shutdown.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
