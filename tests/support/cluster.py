"""A standalone Spark cluster: a master and two workers with one core each, as processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from ingestd.sandbox import Sandbox, SandboxOptions
from ingestd.sandbox.options import SPARK_MASTER, SPARK_WORKERS
from tests.support.stack import Stack

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Executors of half the memory that a worker has, so that a worker can start one while another one ends.
_CONF = {
    "spark.executor.memory": "480m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
# Refuses what a process on another machine cannot reach, and shows that it is active.
_ELSEWHERE = """
import os, sys
open(f"{FOLDER}/python-{os.getpid()}", "w").close()
def refuse(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][1] == PORT:
        open(f"{FOLDER}/refused", "w").close()
        raise ConnectionRefusedError("executors cannot reach the metastore")
    if event == "open" and LOCAL and str(arguments[0]).startswith(LOCAL):
        open(f"{FOLDER}/refused", "w").close()
        raise FileNotFoundError("executors have no Hadoop configuration")
sys.addaudithook(refuse)
"""


class Cluster:
    """The master and the workers. They have no Kafka or metastore of their own."""

    workers = SPARK_WORKERS[:2]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sandbox = Sandbox(SandboxOptions(state_dir=folder / "sandbox", spark_workers=2))
        try:
            self._sandbox.start_service(SPARK_MASTER, *self.workers)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The URL of the master for `spark.master`."""
        url = self._sandbox.addresses().spark
        assert url is not None
        return url

    def options(self, conf: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
        """Return the section `spark` of a configuration."""
        return {"master": self.url, "conf": _CONF | dict(conf or {})} | options

    def executors(self, worker: str) -> list[psutil.Process]:
        """Return the JVMs of the executors that a worker has started and that run."""
        [state] = [service for service in self._sandbox.status() if service.name == worker]
        children = psutil.Process(state.pid).children() if state.pid else []
        return [child for child in children if _is_executor(child)]

    def logs(self) -> list[Path]:
        """Return the log files of the master, the workers and the executors."""
        return [*self.folder.glob("sandbox/logs/*"), *self.folder.glob("sandbox/run/*/app-*/*/std*")]

    def start(self, *workers: str) -> None:
        """Start stopped workers."""
        self._sandbox.start_service(*workers)

    def kill(self, worker: str) -> None:
        """Kill a worker with SIGKILL. Its executors end by themselves."""
        self._sandbox.stop_service(worker, kill=True)

    def close(self) -> None:
        """Stop all processes."""
        self._sandbox.down()


def _is_executor(process: psutil.Process) -> bool:
    try:
        return _EXECUTOR in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def elsewhere(folder: Path, stack: Stack) -> dict[str, str]:
    """Return the properties with which the Python processes of executors reach neither metastore nor Hadoop's files.

    Each such process creates a file `python-*` in the folder, and the file `refused` if it tries to.
    """
    folder.mkdir()
    port, local = stack.addresses.metastore.rpartition(":")[2], stack.addresses.hadoop_conf_dir
    text = f"FOLDER, PORT, LOCAL = {str(folder)!r}, {port}, {local!r}\n{_ELSEWHERE}"
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return {"spark.executorEnv.PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"}


def other_version(folder: Path) -> dict[str, str]:
    """Return the properties with which the Python processes of executors have ingestd 0.0.9."""
    (folder / "sitecustomize.py").write_text("import ingestd\ningestd.__version__ = '0.0.9'\n", encoding="utf-8")
    return {"spark.executorEnv.PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"}


def tree(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and its descendants."""
    return [process, *process.children(recursive=True)]
