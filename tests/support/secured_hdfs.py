"""A real HDFS with Kerberos for tests: one NameNode and one DataNode that accept only logins of a realm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingestd import java
from ingestd.errors import IngestdError
from ingestd.sandbox import DATANODE, HDFS, NAMENODE, SandboxOptions, jars, ports
from ingestd.sandbox.database import derby
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.hdfs import format_namenode
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.services import Plan
from ingestd.sandbox.state import Layout, locked
from ingestd.storage.hdfs import HdfsStorage
from ingestd.storage.hdfs_client import HdfsClient
from ingestd.storage.options import HdfsOptions, StorageOptions
from tests.support import kerberos
from tests.support.metastore import free_port, properties_xml
from tests.support.patience import LIMIT
from tests.support.stack import eventually

_PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
_FETCH = "org.apache.hadoop.hdfs.tools.DelegationTokenFetcher"
_PORTS = (NAMENODE, DATANODE, ports.NAMENODE_HTTP, *ports.datanode_ports(DATANODE))


class SecuredCluster:
    """A running cluster. Its superuser is the principal `hdfs`, and `protection` is that of transferred data.

    The metastore, which logs in as `hive`, may act for its clients. The users `hive` and `etl` are in the group `etl`.
    """

    def __init__(self, folder: Path, realm: kerberos.Realm, protection: str) -> None:
        self._layout = Layout(folder)
        self.port = free_port()
        numbers = {name: free_port() for name in _PORTS} | dict.fromkeys(("kafka", "metastore", "hiveserver2"), 0)
        numbers[NAMENODE] = self.port
        self.root = f"hdfs://localhost:{self.port}"
        self._client = _client(protection)
        self.properties = self._client | _server(realm)
        self._superuser = HdfsOptions(f"hdfs/localhost@{kerberos.NAME}", realm.folder / "hdfs.keytab", self._client)
        self._jvm = [f"-Djava.security.krb5.conf={realm.conf}"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        runtime = java.find_java()
        options = SandboxOptions(state_dir=folder, storage=HDFS)
        with locked(folder / "lock", "the test") as handle, Guard(handle) as guard:
            home = jars.ensure(jars.groups_for((NAMENODE,)), runtime, guard, no_progress)
            self._plan = Plan(options, self._layout, numbers, derby(folder, 0), runtime, home, HDFS)
            self._plan.configure(NAMENODE)
            format_namenode(self._plan, guard)

    def start(self, *names: str) -> None:
        """Start services without waiting until they work."""
        for name in names:
            self._plan.configure(name)
            conf, work = self._layout.conf(name), self._layout.work(name)
            work.mkdir(parents=True, exist_ok=True)
            addition = properties_xml(self.properties)
            for file in ("core-site.xml", "hdfs-site.xml"):
                text = (conf / file).read_text().replace("127.0.0.1:" + str(self.port), f"localhost:{self.port}")
                (conf / file).write_text(text.replace("</configuration>", f"{addition}</configuration>"))
            program, *arguments = self._plan.command(name)
            log = self._layout.log(name)
            log.parent.mkdir(exist_ok=True)
            with log.open("ab") as out:
                command = [program, *self._jvm, *arguments]
                self._processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=work, start_new_session=True
                )

    def client(self, address: str | None = None) -> dict[str, str]:
        """Return the properties of a client that knows the cluster as `hdfs://secured`.

        `address` is the host and port of its NameNode, by default the real one.
        """
        addresses = {"dfs.nameservices": "secured", "dfs.ha.namenodes.secured": "only"}
        addresses["dfs.namenode.rpc-address.secured.only"] = address or f"localhost:{self.port}"
        addresses["dfs.client.failover.proxy.provider.secured"] = _PROVIDER
        return self._client | addresses

    def make_directory(self, path: str, owner: str, mode: int) -> None:
        """Create a directory that belongs to `owner` and the group `etl`."""
        client = HdfsClient(self.root, StorageOptions(timeout=LIMIT, hdfs=self._superuser))
        client.run(path, lambda cluster: cluster.mkdirs(path, mode, create_parent=True))
        client.run(path, lambda cluster: cluster.set_owner(path, owner, "etl"))
        client.run(path, lambda cluster: cluster.set_permission(path, mode))

    def token(self, folder: Path, ticket: str, *arguments: str, root: str = "hdfs://secured") -> Path:
        """Run `hdfs fetchdt` for the cluster at `root` with a ticket, and return its file of tokens in `folder`.

        By default, it obtains a delegation token; `--cancel` cancels that in the file.
        """
        # By default, the token of a cluster without nameservice names the IP address of the NameNode.
        properties = self.client() | {"fs.defaultFS": root, "hadoop.security.token.service.use_ip": "false"}
        for name in ("core-site.xml", "hdfs-site.xml"):
            text = f"<configuration>{properties_xml(properties)}</configuration>"
            (folder / name).write_text(text, encoding="utf-8")
        file = folder / "tokens"
        command = [self._plan.command(NAMENODE)[0], *self._jvm, "-cp", f"{folder}:{jars.folder()}/hdfs/*", _FETCH]
        done = subprocess.run(
            [*command, *arguments, str(file)],
            env=os.environ | {"KRB5CCNAME": ticket},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return file

    def kill(self, name: str) -> None:
        """Kill a service."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(LIMIT)

    def storage(self, principal: str | None = None, keytab: Path | None = None, timeout: float = LIMIT) -> HdfsStorage:
        """Return a new storage that logs in with a keytab, or else with the ticket cache."""
        hdfs = HdfsOptions(principal=principal, keytab=keytab, properties=self._client)
        return HdfsStorage(self.root, StorageOptions(timeout=timeout, hdfs=hdfs))

    def wait(self, storage: HdfsStorage) -> None:
        """Wait until files can be written."""

        def works() -> bool:
            assert all(process.poll() is None for process in self._processes.values()), self._errors()
            try:
                storage.write(f"{self.root}/probe", b"x")
                storage.remove(f"{self.root}/probe")
            except IngestdError:
                storage.discard(f"{self.root}/probe")
                return False
            return True

        eventually("the secured HDFS to work", works)

    def stop(self) -> None:
        """Kill all services."""
        for name in list(self._processes):
            self.kill(name)

    def _errors(self) -> str:
        texts = [self._layout.log(name).read_text(errors="replace")[-3000:] for name in (NAMENODE, DATANODE)]
        return "\n".join(texts)


def _client(protection: str) -> dict[str, str]:
    """Return the properties that clients need as well."""
    return {
        "hadoop.security.authentication": "kerberos",
        "dfs.data.transfer.protection": protection,
        "dfs.encrypt.data.transfer.cipher.suites": "AES/CTR/NoPadding",
        "dfs.namenode.kerberos.principal": f"hdfs/localhost@{kerberos.NAME}",
        "fs.permissions.umask-mode": "002",
    }


def _server(realm: kerberos.Realm) -> dict[str, str]:
    """Return the properties of the services."""
    for principal in ("hdfs/localhost", "HTTP/localhost"):
        realm.add(principal)
    keytab = str(realm.keytab("hdfs", "hdfs/localhost", "HTTP/localhost"))
    return {
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.kerberos.principal": f"hdfs/localhost@{kerberos.NAME}",
        "dfs.datanode.keytab.file": keytab,
        "dfs.web.authentication.kerberos.principal": f"HTTP/localhost@{kerberos.NAME}",
        "dfs.web.authentication.kerberos.keytab": keytab,
        "dfs.block.access.token.enable": "true",
        # The DataNode does not run as root on ports below 1024.
        "ignore.secure.ports.for.testing": "true",
        "dfs.http.policy": "HTTP_ONLY",
        "hadoop.proxyuser.ingestd.hosts": "*",
        "hadoop.proxyuser.ingestd.groups": "*",
        "hadoop.proxyuser.hive.hosts": "*",
        "hadoop.proxyuser.hive.groups": "*",
        "hadoop.user.group.static.mapping.overrides": "hdfs=supergroup;hive=etl;etl=etl",
    }


@contextmanager
def secured_hdfs(folder: Path, realm: kerberos.Realm, protection: str = "privacy") -> Iterator[SecuredCluster]:
    """Run a cluster whose root directory everybody may write to, and stop it at the end of the `with` block."""
    made = SecuredCluster(folder, realm, protection)
    try:
        made.start(NAMENODE, DATANODE)
        made.wait(made.storage(f"hdfs/localhost@{kerberos.NAME}", realm.folder / "hdfs.keytab"))
        yield made
    finally:
        made.stop()
