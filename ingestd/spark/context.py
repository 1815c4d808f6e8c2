"""Connects PySpark to a driver JVM that is starting, and creates its Spark context.

Invariant: no call changes the signal handlers of the process. Errors contain no value of `spark.conf`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from ingestd.spark.launch import Launch

_PORT, _PASSWORD = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


def connect(launch: Launch) -> SparkContext:
    """Wait for the JVM, and start Spark in it. Raises EngineLost.

    Must not be called in the main thread, where Spark would install a handler of SIGINT.
    """
    try:
        context = _connected(launch)
    except (RuntimeError, OSError, EOFError) as error:
        raise launch.failed(str(error)) from None
    # The accumulator server prints a traceback when the JVM's connection breaks; the driver's supervision reports that.
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_request: None
    return context


def _connected(launch: Launch) -> SparkContext:
    # PySpark prints this warning at each start, between lines of JSON; ingestd does not use pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _gateway_of(*launch.address()):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    try:
        return SparkContext(conf=SparkConf().setAll(list(launch.properties.items())), gateway=gateway)
    except Py4JError as error:
        raise RuntimeError(_message(error)) from None


@contextmanager
def _gateway_of(port: int, password: str) -> Iterator[None]:
    """Make PySpark connect to this JVM instead of starting another."""
    os.environ |= {_PORT: str(port), _PASSWORD: password}
    try:
        yield
    finally:
        del os.environ[_PORT], os.environ[_PASSWORD]


def _message(error: Py4JError) -> str:
    """Return the error's message, or its class name if the JVM, which would send the message, has ended."""
    try:
        return str(error)
    except (Py4JError, OSError, EOFError):
        return type(error).__name__
