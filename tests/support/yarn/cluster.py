"""YARN: a ResourceManager and a NodeManager of the Hadoop release that PySpark contains, as processes of this machine.

Their jars are those with which Spark tests itself on YARN. Containers run as the user of the test.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from ingestd import java
from ingestd.sandbox import jars, spark_cluster
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.lockfile import Listing
from ingestd.sandbox.options import NAMENODE, no_progress
from ingestd.sandbox.state import locked
from tests.support.metastore import free_port, properties_xml
from tests.support.patience import LIMIT
from tests.support.stack import eventually

_HERE = Path(__file__).parent
# The group of the jars has the name of that of HDFS.
_LISTING = Listing(_HERE / "jars.lock", _HERE / "ivy.xml")
_SERVER = "org.apache.hadoop.yarn.server"
_RESOURCE_MANAGER = f"{_SERVER}.resourcemanager.ResourceManager"
_NODE_MANAGER = f"{_SERVER}.nodemanager.NodeManager"
_EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_CORE, _YARN, _CAPACITY = "core-site.xml", "yarn-site.xml", "capacity-scheduler.xml"
_LOG = """
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c: %m%n
"""
_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "480m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.yarn.am.memory": "256m",
}


class Yarn:
    """A running cluster of one node. `folder` receives its configuration, logs and containers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._java = java.find_java()
        with locked(folder / "lock", "the test") as handle, Guard(handle) as guard:
            home = jars.ensure((jars.group_of(NAMENODE),), self._java, guard, no_progress, _LISTING)
        self._class_path = f"{self.conf}:{home}/hdfs/*"
        self._web = f"127.0.0.1:{free_port()}"
        self._configure()
        try:
            for main in (_RESOURCE_MANAGER, _NODE_MANAGER):
                self.start(main)
            eventually(f"a node of YARN; see {folder}", lambda: self.nodes() == 1)
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the daemon needs."""
        return {"HADOOP_CONF_DIR": str(self.conf), "JAVA_HOME": str(self._java)}

    def options(self, conf: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
        """Return the section `spark` of a configuration."""
        own = {
            "spark.yarn.jars": f"local:{spark_cluster.jars()}",
            "spark.yarn.stagingDir": (self.folder / "spark-staging").as_uri(),
        }
        return {"master": "yarn", "conf": _CONF | own | dict(conf or {})} | options

    def start(self, main: str = _NODE_MANAGER) -> None:
        """Start a server."""
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *spark_cluster.JVM_OPTIONS]
        with (self.folder / f"{main.rpartition('.')[2]}.log").open("ab") as log:
            self._processes[main] = subprocess.Popen(
                [str(self._java / "bin" / "java"), *options, "-cp", self._class_path, main], stdout=log, stderr=log
            )

    def kill(self, main: str = _NODE_MANAGER) -> None:
        """Kill a server with SIGKILL."""
        process = self._processes.pop(main)
        process.kill()
        process.wait()

    def nodes(self) -> int:
        """Return the number of nodes that run containers."""
        return int(self._metrics()["activeNodes"])

    def applications(self) -> int:
        """Return the number of running applications."""
        return int(self._metrics()["appsRunning"])

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs of executors."""
        found = [process for process in psutil.process_iter() if str(self.folder) in _command_line(process)]
        return [process for process in found if _EXECUTOR in _command_line(process) and process.name() == "java"]

    def logs(self) -> list[Path]:
        """Return the log files of the servers and the containers."""
        return [*self.folder.glob("*.log"), *(path for path in self.folder.glob("logs/**/*") if path.is_file())]

    def scripts(self) -> list[Path]:
        """Return the scripts with the command lines and environments of the running containers."""
        return list(self.folder.glob("local/**/launch_container.sh"))

    def close(self) -> None:
        """Stop all processes."""
        for main in reversed(list(self._processes)):
            process = self._processes.pop(main)
            process.terminate()
            process.wait(LIMIT)
        for executor in self.executors():
            executor.kill()

    def _metrics(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{self._web}/ws/v1/cluster/metrics", timeout=LIMIT) as answer:
                found: dict[str, Any] = json.loads(answer.read())["clusterMetrics"]
        except OSError:
            return {"activeNodes": 0, "appsRunning": 0}
        return found

    def _configure(self) -> None:
        self.conf.mkdir()
        addresses = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        yarn = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{free_port()}" for name in addresses}
        yarn |= {f"yarn.nodemanager.{name}": f"127.0.0.1:{free_port()}" for name in ("address", "localizer.address")}
        yarn |= {
            "yarn.resourcemanager.webapp.address": self._web,
            "yarn.nodemanager.webapp.address": f"127.0.0.1:{free_port()}",
            "yarn.nodemanager.local-dirs": str(self.folder / "local"),
            "yarn.nodemanager.log-dirs": str(self.folder / "logs"),
            "yarn.nodemanager.resource.memory-mb": "4096",
            "yarn.nodemanager.resource.cpu-vcores": "4",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.delete.debug-delay-sec": "0",
            "yarn.log-aggregation-enable": "false",
        }
        capacity = {"root.queues": "default", "root.default.capacity": "100", "maximum-am-resource-percent": "1"}
        capacity = {f"yarn.scheduler.capacity.{key}": value for key, value in capacity.items()}
        for name, properties in ((_CORE, {"fs.defaultFS": "file:///"}), (_YARN, yarn), (_CAPACITY, capacity)):
            text = f"<configuration>{properties_xml(properties)}</configuration>"
            (self.conf / name).write_text(text, encoding="utf-8")
        (self.conf / "log4j.properties").write_text(_LOG, encoding="utf-8")


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


@contextmanager
def yarn(folder: Path) -> Iterator[Yarn]:
    """Run a cluster. Its processes end with the `with` block."""
    made = Yarn(folder)
    try:
        yield made
    finally:
        made.close()
