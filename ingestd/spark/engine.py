"""One Spark session, which runs a function over a few values as one job, several jobs side by side.

Invariant: jobs of different mappings share the cores fairly and one can be cancelled without touching the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext

from ingestd.errors import IngestdError, Reaction, masked
from ingestd.java import find_java

A = TypeVar("A")
B = TypeVar("B")


_QUIET = Path(__file__).with_name("log4j2.properties")


class JobFailed(IngestdError):
    """A Spark job failed for a reason that ingestd does not know; `what` holds the last lines of its trace."""

    reaction = Reaction.STOP_ONE
    exit_code = 70


class EngineLost(IngestdError):
    """The Spark driver's JVM is gone; only a new process can mend that."""

    exit_code = 70


class Engine:
    """A running Spark session. `master` as Spark writes it, such as `local[*]`; `conf` wins over our defaults."""

    def __init__(self, master: str, conf: Mapping[str, str]) -> None:
        os.environ["JAVA_HOME"] = str(find_java())
        # Spark would start its Python workers as `python3` of the PATH, which lacks our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Errors of Spark come back through py4j; what it logs about itself would drown our lines.
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={_QUIET.as_uri()}")
        settings = SparkConf().setMaster(master).setAppName("ingestd").setAll(list((_DEFAULTS | dict(conf)).items()))
        try:
            self._context = SparkContext.getOrCreate(settings)
        except (Py4JError, RuntimeError) as error:
            words = masked(" ".join(str(error).split()), conf.values())[:300]
            raise EngineLost(f"Spark did not start: {words}", where=f"spark.master {master}") from None
        self.parallelism = self._context.defaultParallelism

    def run(self, group: str, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """`function` of each item, each as one task; `group` names the job for fair shares and for `cancel`.

        Raises JobFailed, or EngineLost when the JVM is gone.
        """
        self._context.setLocalProperty("spark.scheduler.pool", group)
        self._context.setJobGroup(group, f"ingestd {group}", interruptOnCancel=False)
        try:
            return self._context.parallelize(items, len(items)).map(function).collect()
        except Py4JJavaError as error:
            raise JobFailed(_last_lines(error), where=f"spark job of {group}") from error
        except (Py4JError, OSError, EOFError) as error:
            raise EngineLost("the Spark driver's JVM is gone", where=f"spark job of {group}") from error

    def cancel(self, group: str) -> None:
        """Cancel the running jobs of a group; their `run` raises JobFailed."""
        self._context.cancelJobGroup(group)

    def stop(self) -> None:
        """End the session and its processes."""
        self._context.stop()


_DEFAULTS = {
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    # The driver only hands out tasks: what its JVM would compile better does not come up again.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.worker.reuse": "true",
    # A second copy of a task would only double the load: its files would be thrown away.
    "spark.speculation": "false",
    "spark.ui.showConsoleProgress": "false",
}


def _last_lines(error: Py4JJavaError) -> str:
    """What a person needs of a Spark trace: the Python error at its heart."""
    lines = [line.strip() for line in str(error.java_exception.getMessage() or error).splitlines() if line.strip()]
    python = [line for line in lines if "Error" in line or "Exception" in line]
    return " | ".join((python or lines)[-3:])[:600]
