"""Finds out whether the masters of a standalone cluster answer, and whether they know this application.

Invariant: an application counts as forgotten only if a master that serves the cluster has said so. With other kinds of
clusters, no fault is ever found.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from ingestd.spark.errors import GATEWAY_ERRORS, calling

if TYPE_CHECKING:
    from pyspark import SparkContext

_SCHEME = "spark://"
_ANSWER_SECONDS = 5
_CONNECT_SECONDS = 3.0
# The id that Spark itself gives to an application that no master has registered (`TaskScheduler.applicationId`).
_OWN_ID = "spark-application-"


def is_standalone(master: str) -> bool:
    """Return whether `spark.master` names the masters of a standalone cluster."""
    return master.startswith(_SCHEME)


def is_registered(context: SparkContext, master: str) -> bool:
    """Return whether a standalone master has accepted this application. With other clusters, Spark starts only then."""
    return not (is_standalone(master) and str(context.applicationId).startswith(_OWN_ID))


def connection_fault(master: str) -> str:
    """Return why no standalone master accepts connections, or '' if one does.

    Waits up to three seconds for each address.
    """
    faults = []
    for address in _addresses(master):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            faults.append(f"cannot connect to the Spark master {address}: {getattr(error, 'strerror', None) or error}")
        else:
            return ""
    return "; ".join(faults)


def is_forgotten(context: SparkContext, master: str) -> bool:
    """Return whether the master was restarted without its state: it then starts no executors for this application.

    Applications do not register again. `master` is `spark.master`, with one or more addresses. A master that hangs
    delays the answer by `spark.rpc.lookupTimeout` at most. Returns False for other clusters.
    """
    for address in _addresses(master):
        try:
            with calling(context):
                state = _state(context, _SCHEME + address)
                if str(state.status()) == "ALIVE":
                    return context.applicationId not in [str(app.id()) for app in state.activeApps()]
        except GATEWAY_ERRORS:  # noqa: PERF203 - this master does not answer, and another one may
            continue
    return False


def _addresses(master: str) -> list[str]:
    return master.removeprefix(_SCHEME).split(",") if is_standalone(master) else []


def _state(context: SparkContext, url: str) -> Any:
    """Return the answer of the master at `url`, as its web page receives it (`DeployMessages.MasterStateResponse`)."""
    spark: Any = context._jsc.sc()
    machine: Any = context._jvm
    address = machine.org.apache.spark.rpc.RpcAddress.fromSparkURL(url)
    # Py4J cannot call `spark.env()`: methods of SparkEnv have types that PySpark does not contain.
    endpoint = spark.schedulerBackend().rpcEnv().setupEndpointRef(address, "Master")
    request = getattr(getattr(machine.org.apache.spark.deploy, "DeployMessages$RequestMasterState$"), "MODULE$")
    duration = machine.scala.concurrent.duration.FiniteDuration(
        _ANSWER_SECONDS, machine.java.util.concurrent.TimeUnit.SECONDS
    )
    limit = machine.org.apache.spark.rpc.RpcTimeout(duration, "ingestd")
    return endpoint.askSync(request, limit, machine.scala.reflect.ClassTag.Any())
