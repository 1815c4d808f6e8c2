"""Starts the JVM of a Spark driver.

Invariant: values of `spark.conf` are on nobody's command line, where every user of the machine could read them: they
reach the JVM in a file that only its owner reads and that is gone when the JVM runs. A JVM that is not wanted any more
before it has started, or that failed to start, is killed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from ingestd.clock import pause
from ingestd.java import find_java

_QUIET = Path(__file__).with_name("log4j2.properties")
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_LOOK_SECONDS = 0.1


def launch(values: Mapping[str, str], scratch: Path, unwanted: threading.Event) -> SparkContext:
    """A Spark context with these settings; `scratch` is for temporary files. `unwanted` ends an attempt that waits.

    Raises ConfigError without Java, RuntimeError, OSError or EOFError; then no process is left.
    """
    # Two lines of text at each start, among JSON: nothing here uses PySpark's pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    with _killed_unless_started(unwanted):
        os.environ["JAVA_HOME"] = str(find_java())
        # Spark would start its Python workers as `python3` of the PATH, which lacks our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Errors of Spark come back through py4j; what it logs about itself would drown our lines.
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={_QUIET.as_uri()}")
        with _given_in_a_file(values, scratch):
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        try:
            return SparkContext(conf=SparkConf().setAll(list(values.items())), gateway=gateway)
        except Py4JError as error:
            raise RuntimeError(_words(error)) from None


def _words(error: Py4JError) -> str:
    """What the error says, for which the JVM is asked: it may be gone."""
    try:
        return str(error)
    except (Py4JError, OSError, EOFError):
        return type(error).__name__


@contextmanager
def _given_in_a_file(values: Mapping[str, str], scratch: Path) -> Iterator[None]:
    """Let PySpark start its JVM with a file of properties, and put its own temporary files below `scratch`."""
    file = scratch / "spark.properties"
    file.touch(mode=0o600)
    file.write_text(_site_defaults() + _properties(values), encoding="utf-8")
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
    """What Spark reads when it is given no file of properties; what follows it in the file wins."""
    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    try:
        return Path(folder, "spark-defaults.conf").read_text(encoding="utf-8") + "\n"
    except FileNotFoundError:
        return ""


def _properties(values: Mapping[str, str]) -> str:
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in values.items())


def _escaped(text: str) -> str:
    r"""A key or value of a Java properties file: \uXXXX for all but letters, digits and points."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(c) if c < 128 and (chr(c).isalnum() or c == ord(".")) else f"\\u{c:04x}" for c in codes)


@contextmanager
def _killed_unless_started(unwanted: threading.Event) -> Iterator[None]:
    """Kill what is started meanwhile when `unwanted` is set or when the start fails."""
    before = set(psutil.Process().children())
    ended = threading.Event()

    def watch() -> None:
        while not pause(_LOOK_SECONDS, ended):
            if unwanted.is_set():
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
        kill_family(child)


def kill_family(parent: psutil.Process) -> None:
    """SIGKILL for a process, then for what it started: what is dead starts nothing more."""
    with suppress(psutil.Error):
        children = parent.children()
        parent.kill()
        for child in children:
            kill_family(child)
