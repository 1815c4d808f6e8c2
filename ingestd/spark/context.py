"""Connects PySpark to a driver JVM that is starting, and creates its Spark context.

Invariant: no call changes the signal handlers of the process. Errors contain no value of `spark.conf`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from ingestd.spark.errors import EngineLost, first_line
from ingestd.spark.launch import UNIX_SOCKETS, Launch
from ingestd.spark.standalone import is_registered, is_standalone

# Exceptions of Java about a service that does not answer.
_UNAVAILABLE = tuple(
    f"java.net.{name}Exception" for name in ("Connect", "UnknownHost", "NoRouteToHost", "SocketTimeout")
)
_MAX_CAUSES = 10
_NO_MASTER = "Spark did not start: no Spark master has accepted this application within a minute"
# Spark stops itself when no master has answered, possibly before it has started completely.
_STOPPED = "stopped SparkContext"
_PORT, _PASSWORD = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
# With one of these properties, Spark creates sockets for each job or task. If they are Unix domain sockets, it keeps
# their paths until it ends.
_MANY_SOCKETS = {"spark.io.encryption.enabled": "true", "spark.python.use.daemon": "false"}


def connect(launch: Launch) -> SparkContext:
    """Wait for the JVM, and start Spark in it. Raises EngineLost.

    Must not be called in the main thread, where Spark would install a handler of SIGINT.
    """
    try:
        context = _connected(launch)
        if not is_registered(context, launch.master):
            raise launch.unavailable(_NO_MASTER)
    except Py4JJavaError as error:
        raise _translated(launch, _causes(error)) from None
    except (Py4JError, RuntimeError, OSError, EOFError) as error:
        raise launch.failed(first_line(error)) from None
    launch.show_output()
    # The accumulator server prints a traceback when the JVM's connection breaks; the driver's supervision reports that.
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_request: None
    return context


def _connected(launch: Launch) -> SparkContext:
    # PySpark prints this warning at each start, between lines of JSON; ingestd does not use pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    address = launch.address()
    if SparkContext._active_spark_context is None:
        # PySpark would otherwise connect to the JVM of an earlier session of this process.
        SparkContext._gateway = SparkContext._jvm = None
    with _gateway_of(*address):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    conf = SparkConf(_jvm=gateway.jvm).setAll(list(launch.properties.items()))  # the JVM has those of the site
    if any(conf.get(key, "").strip().lower() == value for key, value in _MANY_SOCKETS.items()):
        conf.set(UNIX_SOCKETS, "false")
    context = SparkContext(conf=conf, gateway=gateway)
    # PySpark itself reads only the environment variable. Executors on other machines may have another path.
    default = os.environ.get("PYSPARK_PYTHON") or sys.executable
    context.pythonExec = context.getConf().get("spark.pyspark.python", default) or default
    return context


@contextmanager
def _gateway_of(port: int, password: str) -> Iterator[None]:
    """Make PySpark connect to this JVM instead of starting another."""
    os.environ |= {_PORT: str(port), _PASSWORD: password}
    try:
        yield
    finally:
        del os.environ[_PORT], os.environ[_PASSWORD]


def _translated(launch: Launch, causes: Sequence[str]) -> EngineLost:
    """Convert Spark's exception and its causes, the innermost last, to an error without stack trace."""
    if any(text.startswith(_UNAVAILABLE) for text in causes):
        return launch.unavailable(f"Spark did not start: {causes[-1]}")
    if is_standalone(launch.master) and any(_STOPPED in text for text in causes):
        return launch.unavailable(_NO_MASTER)
    return launch.failed(": ".join(dict.fromkeys((causes[0], causes[-1]))))


def _causes(error: Py4JJavaError) -> list[str]:
    """Return the class and the message of an exception of the JVM and of each of its causes."""
    causes: list[str] = []
    try:
        cause = error.java_exception
        while cause is not None and len(causes) < _MAX_CAUSES:
            causes.append(str(cause.toString()))
            cause = cause.getCause()
    except (Py4JError, OSError, EOFError):  # the JVM, which would send the messages, has ended
        pass
    return causes or [type(error).__name__]
