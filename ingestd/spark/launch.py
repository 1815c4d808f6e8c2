"""Starts the driver JVM of a Spark session with its properties, without importing PySpark, which takes time.

Invariant: no value of `spark.conf` appears on a command line, where every user of the machine could read it. The JVM
reads the values from a file that only its owner can read and that is removed once the JVM runs. After `close`, neither
a process nor a file is left.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ingestd import class_archive
from ingestd.class_archive import ClassArchive
from ingestd.clock import pause
from ingestd.errors import masked
from ingestd.java import cache_folder, find_java
from ingestd.spark.errors import EngineLost, EngineUnavailable
from ingestd.spark.output import Output
from ingestd.spark.scratch import Scratch

# Options of the driver's JVM, by which a user replaces the configuration of Spark's log.
_LOG_VARIABLE = "SPARK_SUBMIT_OPTS"
_LOG4J = Path(__file__).with_name("log4j2.properties")
_CHECK_SECONDS = 0.02
_KILL_SECONDS = 5.0
# How long a process may take to end after its sockets have closed.
_END_SECONDS = 1.0
_MAX_MESSAGE = 600
# What to check, by a pattern of the cause that the JVM has printed. The first one that matches applies.
_HINTS = {
    r"\boptions?\b|heap size|agent library": "check the JVM's options: spark.driver.extraJavaOptions,"
    " spark.driver.memory, and the environment variables JAVA_TOOL_OPTIONS, JDK_JAVA_OPTIONS and SPARK_SUBMIT_OPTS",
    "memory|could not reserve": "give the machine or container more memory, or change spark.driver.memory",
    "": "check spark.master, spark.conf and the Java installation",
}
# The port and the length of the password, which precede it in the file that the JVM writes.
_SIZES = struct.Struct(">ii")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# With a local master, the driver evaluates queries. By default, a JVM counts its collections in a mapped file, so a
# busy disk can stop all its threads for seconds.
QUERY_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:+PerfDisableSharedMem"
# Otherwise, the driver only schedules tasks; C2 compilation and a parallel collector never pay off.
DEFAULT_JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 {QUERY_JAVA_OPTIONS}"
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
# If all processes are on this machine. Executors on other machines must be able to reach the driver.
_LOCAL_DEFAULTS = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# If the driver runs the tasks. By default, Spark ends the JVM of a task that runs out of memory; this one would end all
# mappings. An executor of a cluster is replaced.
_DRIVER_DEFAULTS = {"spark.executor.killOnFatalError.depth": "0"}
# Unix domain sockets between the JVM and the processes of its tasks. Over TCP, a message may wait 40 ms for a delayed
# acknowledgement.
_SOCKETS = "spark.python.unix.domain.socket"
UNIX_SOCKETS = f"{_SOCKETS}.enabled"
_SOCKETS_SINCE = (4, 1)
# In bytes: Spark's limit of the path of a socket, below that of the kernel, less the name that Spark makes up.
_MAX_FOLDER = 61


def driver_archive(java: Path) -> ClassArchive:
    """Return the archive of the classes that a driver with the Java home `java` and the installed Spark loads."""
    package = importlib.util.find_spec("pyspark")  # without importing it, which takes time
    place = os.fsencode(package.origin or "") if package is not None else b""
    version = importlib.metadata.version("pyspark").encode()
    return class_archive.find(cache_folder() / "spark", "classes", java, version, place)


def spark_properties(
    master: str, conf: Mapping[str, str], scratch: Path, jvm_options: Sequence[str] = ()
) -> dict[str, str]:
    """Return all properties of a session: ingestd's defaults for this master, overridden by `conf`.

    `scratch` is the directory for temporary files of Spark and of the JVM. `jvm_options` precede those of `conf`.
    """
    defaults = _DEFAULTS | (_LOCAL_DEFAULTS if _is_on_this_machine(master) else {})
    if re.match(r"local(\[|\Z)", master):
        defaults |= _DRIVER_DEFAULTS | _sockets(scratch)
    properties = {"spark.master": master, "spark.local.dir": str(scratch)} | defaults | dict(conf)
    own = (f"-Djava.io.tmpdir={scratch}", *jvm_options)
    properties[JAVA_OPTIONS] = " ".join((*(f'"{option}"' for option in own), properties[JAVA_OPTIONS]))
    return properties


def _sockets(folder: Path) -> dict[str, str]:
    """Return the properties of the sockets between the driver and the processes of its tasks, which are in `folder`."""
    version = importlib.metadata.version("pyspark").split(".")
    if (int(version[0]), int(version[1])) < _SOCKETS_SINCE:
        return {}
    if len(os.fsencode(folder)) > _MAX_FOLDER or not _has_sockets(folder):
        return {UNIX_SOCKETS: "false"}
    return {UNIX_SOCKETS: "true", f"{_SOCKETS}.dir": str(folder)}


def _has_sockets(folder: Path) -> bool:
    """Return whether Unix domain sockets can be created in a folder. Some file systems, as of networks, have none."""
    place = folder / "socket"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(place))
            probe.listen()
        place.unlink()
    except OSError:
        return False
    return True


def _is_on_this_machine(master: str) -> bool:
    """Return whether only processes of this machine can be executors, as with a standalone master on loopback."""
    return re.match(r"local|spark://(localhost|127\.)", master) is not None


class Launch:
    """A driver JVM. The constructor launches it and returns; `address` waits until it accepts connections.

    `master` is a Spark master URL, and `conf` overrides ingestd's defaults. Raises ConfigError if no Java is found, and
    EngineLost if the process cannot be created.
    """

    def __init__(self, master: str, conf: Mapping[str, str]) -> None:
        self.master = master
        self._secrets = tuple(conf.values())
        try:
            self._scratch = Scratch()
        except OSError as error:
            raise EngineLost(f"cannot create a temporary directory: {error}", hint="check TMPDIR") from error
        self._address = self._scratch.path / "address"
        self._file = self._scratch.path / "spark.properties"
        try:
            java = find_java()
            self.properties = spark_properties(master, conf, self._scratch.path, driver_archive(java).options)
            self.process = self._started(java)
            assert self.process.stdout is not None
            # A user who configures Spark's log wants to read it, also if the start fails.
            self._output = Output(self.process.stdout, is_held=_LOG_VARIABLE not in os.environ)
        except OSError as error:
            self._scratch.remove()
            raise self._error(str(error)) from None
        except BaseException:
            self._scratch.remove()
            raise

    def address(self) -> tuple[int, str]:
        """Wait until the JVM accepts connections; return its port and its password. Raises EngineLost if it ends."""
        while not self._address.exists():
            if self.process.poll() is not None:
                raise self.failed("")
            pause(_CHECK_SECONDS)
        self._file.unlink()
        content = self._address.read_bytes()
        self._address.unlink()
        port, size = _SIZES.unpack_from(content)
        return port, content[_SIZES.size : _SIZES.size + size].decode()

    def failed(self, reason: str) -> EngineLost:
        """Return the error of a start that failed, whose message contains no value of `conf`.

        If the JVM has ended, the error says how, and the cause that the JVM has printed, instead of `reason`.
        """
        cause = ""
        if ended := self.exit_reason():
            cause = self._output.cause() or ("out of memory?" if self.process.returncode == -signal.SIGKILL else "")
            reason = f"its JVM {ended}: {cause}" if cause else f"its JVM {ended}"
        return self._error(reason, cause)

    def unavailable(self, what: str) -> EngineUnavailable:
        """Return the error of a start for which a service does not answer. It contains no value of `conf`."""
        return EngineUnavailable(
            self._without_secrets(what),
            where=f"spark.master {self.master}",
            hint="check the address, and that the Spark master or cluster manager runs and is reachable",
        )

    def show_output(self) -> None:
        """Write what the JVM has printed to stderr, and from now on each line at once."""
        self._output.release()

    def exit_reason(self) -> str:
        """Return how the process ended, such as `was killed by signal 9`, or '' while it runs."""
        try:
            code = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def print_threads(self) -> None:
        """Ask the JVM to print the stack of each thread and the use of its heap, which it does if it can still run."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)

    def kill(self) -> None:
        """Send SIGKILL, which also ends suspended processes, to the JVM and its child processes. Never raises."""
        # After `wait` the process id may belong to another process.
        if self.process.returncode is not None:
            return
        with suppress(psutil.Error):
            kill_process_tree(psutil.Process(self.process.pid))
        with suppress(subprocess.TimeoutExpired):  # it is in uninterruptible sleep, for example waiting for a disk
            self.process.wait(_KILL_SECONDS)

    def close(self) -> None:
        """Kill the JVM if it runs, and remove its temporary files. Never raises."""
        self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._scratch.remove()
        self._output.wait()

    def _error(self, reason: str, cause: str = "") -> EngineLost:
        hints = (hint for pattern, hint in _HINTS.items() if re.search(pattern, cause, re.IGNORECASE))
        what = self._without_secrets(f"Spark did not start: {reason}")
        return EngineLost(what, where=f"spark.master {self.master}", hint=next(hints))

    def _without_secrets(self, text: str) -> str:
        return masked(" ".join(text.split()), self._secrets)[:_MAX_MESSAGE]

    def _started(self, java: Path) -> subprocess.Popen[bytes]:
        home = spark_home()
        self._file.touch(mode=0o600)
        self._file.write_text(_site_defaults(home) + properties_text(self.properties), encoding="utf-8")
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        return subprocess.Popen(
            [home / "bin" / "spark-submit", "--properties-file", self._file, *arguments],
            stdin=subprocess.PIPE,  # the JVM ends when this pipe breaks
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(java, home, self.master) | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._address)},
            preexec_fn=_ignore_interrupts,  # noqa: PLW1509 - nothing that the child needs is locked by a thread
        )


def _environment(java: Path, home: Path, master: str) -> dict[str, str]:
    # Otherwise Spark resolves the name of this machine, and does not start if that fails.
    local = {"SPARK_LOCAL_IP": "127.0.0.1"} if _is_on_this_machine(master) else {}
    defaults = local | {
        # Errors are raised through py4j; Spark's own log would only repeat them.
        _LOG_VARIABLE: f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
        # For the JVM that only computes the command line of the driver.
        "SPARK_LAUNCHER_OPTS": DEFAULT_JAVA_OPTIONS,
    }
    own = {"JAVA_HOME": str(java), "SPARK_HOME": str(home), "SPARK_CONNECT_MODE": "0"}
    return defaults | os.environ | own


def _ignore_interrupts() -> None:
    """Let the JVM ignore Ctrl-C, which a terminal sends to all processes: the daemon decides when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def spark_home() -> Path:
    """Return `SPARK_HOME`, or the directory of the package pyspark, without importing it."""
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    return Path(os.environ.get("SPARK_HOME") or Path(package.origin).parent)


def _site_defaults(home: Path) -> str:
    """Return the site's spark-defaults.conf, which Spark does not read itself if it is given a properties file."""
    folder = os.environ.get("SPARK_CONF_DIR") or home / "conf"
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


def kill_process_tree(parent: psutil.Process) -> None:
    """Send SIGKILL to a process and then to its descendants. The parent is first, so that it cannot start others."""
    with suppress(psutil.Error):
        children = parent.children()
        parent.kill()
        for child in children:
            kill_process_tree(child)
