"""Examines whether the executors of a cluster can run stages: they exist, have this ingestd, and reach services.

Invariant: nothing is left running. Executors receive no secret.
"""

from __future__ import annotations

import platform
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ingestd.clock import Deadline
from ingestd.errors import BrokerUnavailable, RegistryUnavailable
from ingestd.spark.engine import Engine, EngineLimits, JobGroup
from ingestd.spark.errors import JobTimeout, NoExecutors, StartCancelled
from ingestd.spark.options import SparkOptions
from ingestd.spark.session import Session
from ingestd.spark.standalone import connection_fault

_CONNECT_SECONDS = 3.0
_STOP_SECONDS = 3.0
_LEAST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one executor reports. `unreached` contains the services of which it reaches no address."""

    machine: str
    python: str
    unreached: tuple[str, ...]


def examine_executors(options: SparkOptions, clusters: Sequence[str], registries: Sequence[str], seconds: float) -> str:
    """Start Spark, run a small job on the executors, and return what was found.

    Call it once per process: PySpark keeps its first JVM. `clusters` contains `bootstrap.servers` of each Kafka
    cluster, and `registries` the addresses of schema registries. The start may take half of `seconds`, and the job the
    rest. Raises EngineLost if Spark does not start, NoExecutors, JobTimeout, JobFailed if executors cannot run
    functions of this ingestd, BrokerUnavailable if an executor reaches no broker of a cluster, and RegistryUnavailable.
    """
    limit = Deadline.after(seconds)
    session = _started(options, seconds / 2)
    left = max(limit.left, _LEAST_SECONDS)
    engine = Engine(session, EngineLimits(job_seconds=left, executor_seconds=left - 1, stop_seconds=_STOP_SECONDS))
    try:
        answers = engine.run(JobGroup("check"), partial(_look, (*clusters, *registries)), range(engine.parallelism))
        _require_reached(answers, registries)
        return _summary(options.master, answers, engine.slots)
    except NoExecutors as error:
        raise NoExecutors(
            f"the cluster has not started an executor within {left - 1:.0f} s",
            where=f"spark.master {options.master}",
            hint="if a running daemon occupies all cores, none is left for this examination: its metric"
            " ingestd_spark_slots is the number of its cores, and spark.cores.max limits it; otherwise, no worker has"
            " the cores and the memory of an executor, or executors do not reach this machine (spark.driver.host):"
            " their logs say why they ended",
        ) from error
    except JobTimeout as error:
        raise JobTimeout(
            f"the executors have started, but did not finish a small job within {left:.0f} s",
            where=f"spark.master {options.master}",
            hint="if the machines are only slow, `ingestd doctor --timeout` extends the limit; otherwise, see the logs"
            " of the executors",
        ) from error
    finally:
        engine.stop()


def _started(options: SparkOptions, seconds: float) -> Session:
    """Start Spark. Raises EngineLost, which is EngineUnavailable if it has not started after `seconds`."""
    cancelled = threading.Event()
    timer = threading.Timer(seconds, cancelled.set)
    timer.daemon = True
    timer.start()
    session = Session(options.master, options.properties, cancelled)
    try:
        session.context()
    except StartCancelled as error:
        session.close()
        fault = connection_fault(options.master)
        text = f"Spark did not start within {seconds:.0f} s"
        raise session.launch.unavailable(f"{text}: {fault}" if fault else text) from error
    except BaseException:
        session.close()
        raise
    finally:
        timer.cancel()
    return session


def _look(services: Sequence[str], _number: int) -> _Answer:
    """Run on an executor, and return what it finds there."""
    unreached = tuple(service for service in services if not any(map(_is_reached, service.split(","))))
    return _Answer(socket.gethostname(), platform.python_version(), unreached)


def _is_reached(address: str) -> bool:
    host, _, port = address.strip().rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _require_reached(answers: Sequence[_Answer], registries: Sequence[str]) -> None:
    """Raise BrokerUnavailable or RegistryUnavailable if an executor cannot ingest."""
    for answer in answers:
        where, hint = f"executor on {answer.machine}", "check names, routes and firewalls from that machine; executors"
        for service in answer.unreached:
            if service in registries:
                what = f"the executor cannot connect to the schema registry at {service}"
                raise RegistryUnavailable(what, where=where, hint=f"{hint} read schemas themselves")
            what = f"the executor cannot connect to any Kafka broker of {service}"
            raise BrokerUnavailable(what, where=where, hint=f"{hint} read Kafka themselves")


def _summary(master: str, answers: Sequence[_Answer], slots: int) -> str:
    """Return one line about the executors."""
    machines = len({answer.machine for answer in answers})
    return (
        f"{master} runs {slots} tasks at the same time; {machines} machine(s) answered with Python {answers[0].python}"
    )
