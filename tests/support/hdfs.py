"""A real HDFS for tests: one NameNode and its DataNodes, without Kafka and Hive."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingestd import java
from ingestd.sandbox import HDFS, NAMENODE, Sandbox, SandboxOptions, jars
from ingestd.sandbox.options import DATANODES
from ingestd.sandbox.services import CLIENT
from ingestd.sandbox.state import Layout, load
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.options import StorageOptions

_TOOLS = "org.apache.hadoop.hdfs.tools"


class Cluster:
    """A running cluster with a number of DataNodes. `box` stops, suspends and starts its services."""

    def __init__(self, folder: Path, datanodes: int = 1) -> None:
        self._layout = Layout(folder)
        self.box = Sandbox(SandboxOptions(state_dir=folder, storage=HDFS, datanodes=datanodes))
        self.box.start_service(NAMENODE, *DATANODES[:datanodes])
        self.root = f"hdfs://127.0.0.1:{load(folder).ports[NAMENODE]}"

    def options(self, timeout: float = 30.0) -> StorageOptions:
        """The options of a client."""
        return StorageOptions(timeout=timeout, hadoop_conf_dir=self._layout.conf(CLIENT))

    def storage(self, timeout: float = 30.0) -> HdfsStorage:
        """Return a new storage; `timeout` limits each of its requests, in seconds."""
        return HdfsStorage(self.root, self.options(timeout))

    def admin(self, *arguments: str) -> None:
        """Run a command of `hdfs dfsadmin`."""
        dfsadmin(self._layout.conf(CLIENT), *arguments)

    def erasure_code(self, *arguments: str) -> None:
        """Run a command of `hdfs ec`."""
        _run(self._layout.conf(CLIENT), "ECAdmin", *arguments)


def dfsadmin(conf: Path, *arguments: str) -> None:
    """Run a command of `hdfs dfsadmin` with the configuration in a directory."""
    _run(conf, "DFSAdmin", *arguments)


def _run(conf: Path, tool: str, *arguments: str) -> None:
    jvm = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
    command = [str(java.find_java() / "bin" / "java"), *jvm, "-cp", f"{conf}:{jars.folder()}/hdfs/*"]
    done = subprocess.run([*command, f"{_TOOLS}.{tool}", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"


def stage(storage: HdfsStorage, directory: str, task: str, *contents: bytes) -> list[str]:
    """Stage files as a task does, and return their URIs; after an error, abandon them."""
    outbox = storage.outbox(directory, task)
    try:
        uris = []
        for number, content in enumerate(contents):
            (outbox.directory / f"f{number}").write_bytes(content)
            uris.append(outbox.send(outbox.directory / f"f{number}"))
        outbox.finish()
    except BaseException:
        outbox.abandon()
        raise
    return uris


@contextmanager
def hdfs(folder: Path, datanodes: int = 1) -> Iterator[Cluster]:
    """Run a cluster and stop it at the end of the `with` block."""
    try:
        yield Cluster(folder, datanodes)
    finally:
        Sandbox(SandboxOptions(state_dir=folder)).down()
