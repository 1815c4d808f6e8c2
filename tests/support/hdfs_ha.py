"""A real nameservice for tests: two NameNodes with shared edits in a folder, one of which is active, and a DataNode."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingestd import java
from ingestd.errors import IngestdError
from ingestd.sandbox import jars
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.lockfile import data_file
from ingestd.sandbox.options import NAMENODE, no_progress
from ingestd.sandbox.state import locked
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.options import StorageOptions
from tests.support.metastore import free_port, properties_xml
from tests.support.patience import LIMIT
from tests.support.stack import eventually

NAME = "pair"
ROOT = f"hdfs://{NAME}"
FIRST, SECOND = "first", "second"
_DATANODE = "datanode"
_HADOOP = "org.apache.hadoop.hdfs"
_MAIN = {
    FIRST: f"{_HADOOP}.server.namenode.NameNode",
    SECOND: f"{_HADOOP}.server.namenode.NameNode",
    _DATANODE: f"{_HADOOP}.server.datanode.DataNode",
}
_PROVIDER = f"{_HADOOP}.server.namenode.ha.ConfiguredFailoverProxyProvider"


class Pair:
    """The processes of the nameservice `ROOT`. Nothing fails over by itself: tests make a NameNode active."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        runtime = java.find_java()
        self._java = str(runtime / "bin" / "java")
        with locked(folder / "lock", "the test") as handle, Guard(handle) as guard:
            jars.ensure(jars.groups_for((NAMENODE,)), runtime, guard, no_progress)
        client = {
            "fs.defaultFS": ROOT,
            "dfs.nameservices": NAME,
            f"dfs.ha.namenodes.{NAME}": f"{FIRST}, {SECOND}",
            f"dfs.client.failover.proxy.provider.{NAME}": _PROVIDER,
            "dfs.replication": "1",
            **{
                f"dfs.namenode.{kind}-address.{NAME}.{server}": f"127.0.0.1:{free_port()}"
                for server in (FIRST, SECOND)
                for kind in ("rpc", "http")
            },
        }
        self.conf = self._configure("client", client)
        for name in _MAIN:
            self._configure(name, client | self._properties(name))
        self._tool(FIRST, _MAIN[FIRST], "-format", "-nonInteractive")
        shutil.copytree(folder / FIRST, folder / SECOND)

    def _properties(self, name: str) -> dict[str, str]:
        """Return the properties of one process, besides those of clients."""
        ports = {f"dfs.datanode.{server}address": "127.0.0.1:0" for server in ("", "http.", "ipc.")}
        return ports | {
            "dfs.ha.namenode.id": name,
            "dfs.namenode.name.dir": (self._folder / name).as_uri(),
            "dfs.namenode.shared.edits.dir": (self._folder / "edits").as_uri(),
            "dfs.datanode.data.dir": (self._folder / _DATANODE).as_uri(),
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.safemode.extension": "0",
            "dfs.heartbeat.interval": "1",
            # A standby that becomes active at once need not read edits first.
            "dfs.ha.tail-edits.period": "1",
        }

    def _configure(self, name: str, properties: dict[str, str]) -> Path:
        conf = self._folder / "conf" / name
        for part in ("hdfs", "datanode", "static"):  # of Hadoop's pages, which are not in its jars
            (conf / "webapps" / part).mkdir(parents=True)
        (conf / "log4j.properties").write_text(data_file("log4j.properties").read_text(), encoding="utf-8")
        for file in ("core-site.xml", "hdfs-site.xml"):
            (conf / file).write_text(f"<configuration>{properties_xml(properties)}</configuration>", encoding="utf-8")
        return conf

    def _command(self, name: str, main: str) -> list[str]:
        jvm = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        return [self._java, *jvm, "-cp", f"{self._folder / 'conf' / name}:{jars.folder()}/hdfs/*", main]

    def _tool(self, name: str, main: str, *arguments: str) -> None:
        done = subprocess.run([*self._command(name, main), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"

    def start(self, *names: str) -> None:
        """Start processes without waiting until they work."""
        for name in names:
            with (self._folder / f"{name}.log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    self._command(name, _MAIN[name]), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    def kill(self, name: str) -> None:
        """Kill a process."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(LIMIT)

    def pause(self, name: str) -> None:
        """Suspend a process, and wait until every thread of it has stopped."""
        process = self._processes[name]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def make_active(self, name: str) -> None:
        """Let a NameNode that is a standby become active; the other one must be a standby, or not run."""
        self._tool("client", f"{_HADOOP}.tools.DFSHAAdmin", "-transitionToActive", "--forceactive", name)

    def make_standby(self, name: str) -> None:
        """Let a NameNode that is active become a standby."""
        self._tool("client", f"{_HADOOP}.tools.DFSHAAdmin", "-transitionToStandby", name)

    def options(self, timeout: float) -> StorageOptions:
        """The options of a client, which finds the NameNodes in its Hadoop configuration."""
        return StorageOptions(timeout=timeout, hadoop_conf_dir=self.conf)

    def wait(self) -> None:
        """Wait until files can be written."""
        storage = HdfsStorage(ROOT, self.options(20.0))

        def works() -> bool:
            assert all(process.poll() is None for process in self._processes.values()), self._folder
            try:
                storage.write(f"{ROOT}/probe", b"x")
            except IngestdError:
                return False
            finally:
                storage.discard(f"{ROOT}/probe")
            return True

        eventually("the nameservice to work", works)

    def stop(self) -> None:
        """Kill all processes."""
        for name in list(self._processes):
            self.kill(name)


@contextmanager
def hdfs_pair(folder: Path) -> Iterator[Pair]:
    """Run a nameservice whose first NameNode is active, and stop it at the end of the `with` block."""
    pair = Pair(folder)
    try:
        pair.start(FIRST, SECOND, _DATANODE)
        eventually("a NameNode to become active", lambda: _becomes_active(pair))
        pair.wait()
        yield pair
    finally:
        pair.stop()


def _becomes_active(pair: Pair) -> bool:
    try:
        pair.make_active(FIRST)
    except AssertionError:
        return False
    return True
