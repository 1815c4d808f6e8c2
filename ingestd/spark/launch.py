"""Starts the driver JVM of a Spark session with its properties.

Invariant: no value of `spark.conf` appears on a command line, where every user of the machine could read it. The JVM
reads the values from a file that only its owner can read and that is removed once the JVM runs. A JVM that fails to
start, or whose start is cancelled, is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from ingestd.clock import pause
from ingestd.errors import masked
from ingestd.spark.errors import EngineLost

_LOG4J = Path(__file__).with_name("log4j2.properties")
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_CHECK_SECONDS = 0.1
_MAX_MESSAGE = 300
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# The driver only schedules tasks; C2 compilation and a parallel collector never pay off.
DEFAULT_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DEFAULTS = {
    "spark.app.name": "ingestd",
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    JAVA_OPTIONS: DEFAULT_JAVA_OPTIONS,
    "spark.python.worker.reuse": "true",
    # A speculative copy of a task would double the load, and its files would be discarded.
    "spark.speculation": "false",
}
# With a local master all processes are on this machine. Executors of a cluster must be able to reach the driver.
_LOCAL_DEFAULTS = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def spark_properties(
    master: str, conf: Mapping[str, str], scratch: Path, jvm_options: Sequence[str] = ()
) -> dict[str, str]:
    """Return all properties of a session: ingestd's defaults for this master, overridden by `conf`.

    `scratch` is the directory for temporary files of Spark and of the JVM. `jvm_options` precede those of `conf`.
    """
    defaults = _DEFAULTS | (_LOCAL_DEFAULTS if master.startswith("local") else {})
    properties = {"spark.master": master, "spark.local.dir": str(scratch)} | defaults | dict(conf)
    own = (f"-Djava.io.tmpdir={scratch}", *jvm_options)
    properties[JAVA_OPTIONS] = " ".join((*(f'"{option}"' for option in own), properties[JAVA_OPTIONS]))
    return properties


def launch(
    java: Path,
    properties: Mapping[str, str],
    scratch: Path,
    cancelled: threading.Event,
    secrets: Iterable[str] = (),
) -> SparkContext:
    """Start Spark with these properties and the Java home `java`. Setting `cancelled` interrupts the start.

    Raises EngineLost, whose message contains none of the `secrets`, and leaves no process behind.
    """
    is_main = threading.current_thread() is threading.main_thread()
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with _killed_on_failure(cancelled):
            context = _start(java, properties, scratch)
    except (RuntimeError, OSError, EOFError) as error:
        message = masked(" ".join(str(error).split()), secrets)[:_MAX_MESSAGE]
        master = properties["spark.master"]
        raise EngineLost(
            f"Spark did not start: {message}",
            where=f"spark.master {master}",
            hint="check spark.master, spark.conf and the Java installation",
        ) from None
    finally:
        if is_main:  # Spark installs a handler that raises KeyboardInterrupt
            signal.signal(signal.SIGINT, interrupt)
    # The accumulator server prints a traceback when the JVM's connection breaks; the driver's supervision reports that.
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_request: None
    return context


def _start(java: Path, properties: Mapping[str, str], scratch: Path) -> SparkContext:
    # PySpark prints this warning at each start, between lines of JSON; ingestd does not use pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ["JAVA_HOME"] = str(java)
    # Spark would start its Python workers as `python3` from PATH, which lacks ingestd and its dependencies.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Errors are raised through py4j; Spark's own log would only repeat them.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}")
    with _properties_file(properties, scratch):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    try:
        return SparkContext(conf=SparkConf().setAll(list(properties.items())), gateway=gateway)
    except Py4JError as error:
        raise RuntimeError(_message(error)) from None


def _message(error: Py4JError) -> str:
    """Return the error's message, or its class name if the JVM, which would send the message, has ended."""
    try:
        return str(error)
    except (Py4JError, OSError, EOFError):
        return type(error).__name__


@contextmanager
def _properties_file(properties: Mapping[str, str], scratch: Path) -> Iterator[None]:
    """Make PySpark start its JVM with a properties file and create its own temporary files under `scratch`."""
    file = scratch / "spark.properties"
    file.touch(mode=0o600)
    file.write_text(_site_defaults() + properties_text(properties), encoding="utf-8")
    arguments, folder = os.environ.get(_ARGUMENTS), tempfile.tempdir
    os.environ[_ARGUMENTS] = f'--properties-file "{file}" {arguments or "pyspark-shell"}'
    tempfile.tempdir = str(scratch)
    try:
        yield
    finally:
        tempfile.tempdir = folder
        del os.environ[_ARGUMENTS]
        if arguments is not None:
            os.environ[_ARGUMENTS] = arguments
        file.unlink()


def _site_defaults() -> str:
    """Return the site's spark-defaults.conf, which Spark does not read itself if it is given a properties file."""
    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    try:
        return Path(folder, "spark-defaults.conf").read_text(encoding="utf-8") + "\n"
    except FileNotFoundError:
        return ""


def properties_text(properties: Mapping[str, str]) -> str:
    """Return the properties in the format of a Java properties file."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(text: str) -> str:
    r"""Return the text with all characters except ASCII letters, digits and dots as \uXXXX."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(c) if c < 128 and (chr(c).isalnum() or c == ord(".")) else f"\\u{c:04x}" for c in codes)


@contextmanager
def _killed_on_failure(cancelled: threading.Event) -> Iterator[None]:
    """Run the body, and kill the processes that it has started if `cancelled` is set or the body raises an error."""
    before = set(psutil.Process().children())
    ended = threading.Event()

    def watch() -> None:
        while not pause(_CHECK_SECONDS, ended):
            if cancelled.is_set():
                _kill_since(before)

    watcher = threading.Thread(target=watch, name="spark-start", daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        _kill_since(before)
        raise
    finally:
        ended.set()
        watcher.join()


def _kill_since(before: set[psutil.Process]) -> None:
    for child in set(psutil.Process().children()) - before:
        kill_process_tree(child)


def kill_process_tree(parent: psutil.Process) -> None:
    """Send SIGKILL to a process and then to its descendants. The parent is first, so that it cannot start others."""
    with suppress(psutil.Error):
        children = parent.children()
        parent.kill()
        for child in children:
            kill_process_tree(child)
