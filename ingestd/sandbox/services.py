"""The configuration, command line and readiness criteria of each service.

Invariant: the configuration is written from the package's templates at each start and never edited in place.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from ingestd.sandbox import ports as port_names
from ingestd.sandbox import probe, s3, spark_cluster, templates, warehouse
from ingestd.sandbox.archives import Classes
from ingestd.sandbox.database import Database
from ingestd.sandbox.jars import group_of
from ingestd.sandbox.lockfile import data_file
from ingestd.sandbox.options import (
    BROKERS,
    DATANODE,
    DATANODES,
    HDFS,
    HIVESERVER2,
    KAFKA,
    LOCAL,
    METASTORE,
    NAMENODE,
    S3_SERVER,
    SPARK_MASTER,
    SPARK_WORKER,
    SPARK_WORKERS,
    SandboxOptions,
    program,
)
from ingestd.sandbox.release import PLAIN, Release
from ingestd.sandbox.state import Layout
from ingestd.sandbox.warehouse import Warehouse

_HIVE_OPENS = (
    *("java.lang", "java.util", "java.io", "java.net", "java.nio", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "java.util.regex", "java.time", "java.text", "sun.nio.ch"),
    *("java.lang.reflect", "java.math", "jdk.internal.ref"),
)
# Hadoop's HTTP servers need folders for their pages, which are not in its jars.
_WEB_APPLICATIONS = ("hdfs", "datanode", "static")
_TEMPLATES = {
    KAFKA: {"server.properties": "kafka.server.properties"},
    METASTORE: {"hive-site.xml": "metastore.hive-site.xml", "log4j.properties": "log4j.properties"},
    HIVESERVER2: {"hive-site.xml": "hiveserver2.hive-site.xml", "log4j.properties": "log4j.properties"},
    NAMENODE: {"hdfs-site.xml": "namenode.hdfs-site.xml", "log4j.properties": "log4j.properties"},
    DATANODE: {"hdfs-site.xml": "datanode.hdfs-site.xml", "log4j.properties": "log4j.properties"},
    S3_SERVER: {},
    SPARK_MASTER: {},
    SPARK_WORKER: {},
}
_MAIN = {
    KAFKA: "kafka.Kafka",
    METASTORE: "org.apache.hadoop.hive.metastore.HiveMetaStore",
    HIVESERVER2: "org.apache.hive.service.server.HiveServer2",
    NAMENODE: "org.apache.hadoop.hdfs.server.namenode.NameNode",
    DATANODE: "org.apache.hadoop.hdfs.server.datanode.DataNode",
    SPARK_MASTER: "org.apache.spark.deploy.master.Master",
    SPARK_WORKER: "org.apache.spark.deploy.worker.Worker",
}
PROBES: dict[str, Callable[[int], bool]] = {
    KAFKA: probe.kafka_answers,
    METASTORE: probe.metastore_answers,
    HIVESERVER2: probe.hiveserver2_answers,
    NAMENODE: probe.hadoop_answers,
    DATANODE: probe.hadoop_answers,
    S3_SERVER: probe.http_answers,
    SPARK_MASTER: probe.spark_answers,
    SPARK_WORKER: probe.spark_answers,
}
# A service that has logged its pattern keeps running but never works.
FATAL = {
    KAFKA: re.compile(r"Exiting Kafka due to fatal exception"),
    METASTORE: re.compile(r"Failure when starting the leader tasks"),
    HIVESERVER2: re.compile(r"Error starting HiveServer2 on attempt"),
    NAMENODE: re.compile(r"Failed to start namenode"),
    DATANODE: re.compile(r"Exception in secureMain|Initialization failed for Block pool"),
    S3_SERVER: re.compile(r"Address already in use"),
    SPARK_MASTER: re.compile(r"Exception in thread \"main\""),
    SPARK_WORKER: re.compile(r"All masters are unresponsive"),
}
# A service works when it has logged all of these. The metastore opens its port one to three seconds before its
# background threads start, and even when they fail to start.
COMPLETE = {
    KAFKA: (),
    METASTORE: ("compactor.Initiator", "compactor.Cleaner", "AcidHouseKeeperService", "HiveProtoEventsCleanerTask"),
    HIVESERVER2: (),
    NAMENODE: (),
    DATANODE: ("successfully registered with NN",),
    S3_SERVER: (),
    SPARK_MASTER: ("New state: ALIVE",),
    SPARK_WORKER: ("Successfully registered with master",),
}
CLIENT = "client"
"""The name of the configuration folder for clients of the warehouse."""
_HIVE = (METASTORE, HIVESERVER2)
# For each vertex of a query, Tez copies the jar from which HiveServer2 has loaded this class: 83 MB, although the tasks
# run in the same process. So it loads the class from a jar that contains nothing else.
_COPIED_BY_TEZ = "org/apache/hadoop/hive/ql/exec/tez/DagUtils"
_TEZ, _TEZ_JAR = "tez", "tez.jar"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that determines the command lines and configurations of the services.

    The plan of the second cluster differs in `layout`, `ports` and `database`, and its services have the names of the
    first one's.
    """

    options: SandboxOptions
    layout: Layout
    ports: dict[str, int]
    database: Database
    java: Path
    jars: Path
    storage: str = LOCAL
    release: Release = PLAIN

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse on the storage of the sandbox."""
        return warehouse.find(self.storage, self.layout, self.ports)

    def configure(self, service: str) -> None:
        """Write the configuration folder of `service`."""
        folder = self._folder(service)
        values = self._values(service)
        for name, template in {**_TEMPLATES[program(service)], "log4j2.properties": "log4j2.properties"}.items():
            (folder / name).write_text(fill(data_file(template).read_text(), values, xml=name.endswith(".xml")))
        if service == HIVESERVER2 and templates.find(self.jars, _TEZ) is None:
            self._write_tez_jar()
        if service in self.release.properties:
            site = folder / "hive-site.xml"
            properties = {**self.release.properties[service], **self.warehouse.replicated}
            site.write_text(site.read_text().replace("</configuration>", _lines(properties)))
        if group_of(service) == HDFS:
            for name in _WEB_APPLICATIONS:
                (folder / "webapps" / name).mkdir(parents=True, exist_ok=True)

    def _write_tez_jar(self) -> None:
        """Write the jar that Tez copies into the user's cache, because Java archives only classes of unchanged jars."""
        (hive_exec,) = (self.jars / HIVESERVER2).glob("hive-exec-*.jar")
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(hive_exec) as whole, zipfile.ZipFile(Path(folder) / _TEZ_JAR, "w") as part:
                for name in whole.namelist():
                    if name.startswith(_COPIED_BY_TEZ):
                        part.writestr(name, whole.read(name))
            templates.keep(self.jars, _TEZ, Path(folder))

    def configure_client(self) -> None:
        """Write the configuration folder for clients of the warehouse."""
        if self.warehouse.files:
            self._folder(CLIENT)

    def _folder(self, name: str) -> Path:
        """Create a configuration folder with the files that clients of the warehouse need, and return its path."""
        folder = self.layout.conf(name)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may contain passwords
        for file, properties in self.warehouse.files.items():
            (folder / file).write_text(_site(properties))
        return folder

    def environment(self, service: str) -> dict[str, str]:
        """Return the variables that are added to the environment of `service`."""
        if program(service) == SPARK_WORKER:
            return spark_cluster.environment(self.java)
        if service == S3_SERVER:
            return s3.ENVIRONMENT
        return self.warehouse.environment if service in _HIVE else {}

    def command(self, service: str) -> list[str]:
        """Return the command line that runs `service`."""
        if service == S3_SERVER:
            return s3.command(self.options.versitygw, self.ports[S3_SERVER], self.layout.data)
        jvm = [f"-Xmx{self.options.heap_mb(service)}m", f"-Djava.io.tmpdir={self.layout.work(service)}"]
        # C2 compilation costs more than it saves in services that live for minutes and do little.
        jvm += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # By default, JVMs count their collections in mapped files, so a busy disk can stop all threads for seconds.
        jvm += ["-XX:+PerfDisableSharedMem"]
        if service in BROKERS:
            return self.java_command(service, jvm, str(self.layout.conf(service) / "server.properties"))
        if service == SPARK_MASTER or service in SPARK_WORKERS:
            return self._spark_command(service, jvm)
        if group_of(service) == HDFS:
            return self.java_command(service, [*jvm, "--add-opens=java.base/java.lang=ALL-UNNAMED"])
        jvm.append(f"-Dderby.stream.error.file={self.layout.log(f'{service}-derby')}")
        jvm += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _HIVE_OPENS]
        jvm.append("--add-opens=java.sql/java.sql=ALL-UNNAMED")
        if service == HIVESERVER2:
            # Without Hadoop's native library, it runs chmod and readlink dozens of times for each statement. By
            # default, Java runs a helper each time, which then runs the program.
            jvm.append("-Djdk.lang.Process.launchMechanism=VFORK")
            return self.java_command(service, jvm)
        if self.database.is_derby:
            derby = {"startNetworkServer": "true", "host": "127.0.0.1", "portNumber": self.ports[port_names.DERBY]}
            jvm += [f"-Dderby.drda.{key}={value}" for key, value in derby.items()]
            # Concurrent commits sometimes deadlock in Derby, which blocks all transactions until it checks for
            # deadlocks, by default after 20 s. The metastore repeats the statement that Derby rolls back.
            jvm.append("-Dderby.locks.deadlockTimeout=2")
            # `check_lock` holds a row lock in Derby while it waits for a lock of the JVM, and `commit_txn` holds that
            # one while it waits for the row, ten times in a row (SqlRetryHandler). By default, Derby waits for 60 s.
            jvm.append("-Dderby.locks.waitTimeout=5")
        return self.java_command(service, jvm, "-p", str(self.ports[METASTORE]))

    def java_command(self, service: str, jvm: list[str], *arguments: str, main: str = "") -> list[str]:
        """Return the command line of a JVM with the jars and the configuration of `service`.

        The configuration folder is last in the class path, because Java archives only classes of the jars before it. No
        jar contains a file with the name of one in that folder.
        """
        classes = self._classes(service)
        start = [f"{classes.java}/bin/java", *classes.archive.options, *jvm]
        class_path = f"{classes.class_path}:{self.layout.conf(service)}"
        return [*start, "-cp", class_path, main or _MAIN[program(service)], *arguments]

    def unarchived(self, service: str) -> Classes | None:
        """Return the classes of `service` if an archive of them would be used but does not exist."""
        if service == S3_SERVER or program(service) in (SPARK_MASTER, SPARK_WORKER):
            return None
        classes = self._classes(service)
        return None if classes.archive.options else classes

    def _classes(self, service: str) -> Classes:
        java, group = self.java, group_of(service)
        if service == METASTORE:
            java, group = self.release.java or java, self.release.group
        groups = [*(self.warehouse.groups if service in _HIVE else ()), group]
        tez = templates.find(self.jars, _TEZ) if service == HIVESERVER2 else None
        jars = [jar for group in groups for jar in sorted((self.jars / group).glob("*.jar"), key=_place)]
        class_path = ":".join(map(str, [*([tez / _TEZ_JAR] if tez else []), *jars]))
        return Classes(program(service), str(java), class_path)

    def _spark_command(self, service: str, jvm: list[str]) -> list[str]:
        class_path = f"{self.layout.conf(service)}:{spark_cluster.jars()}"
        start = [str(self.java / "bin" / "java"), *jvm, *spark_cluster.JVM_OPTIONS, "-cp", class_path]
        arguments = ["--port", str(self.ports[service]), "--host"]
        if service == SPARK_MASTER:
            arguments += [port_names.HOST, "--webui-port", str(self.ports[port_names.SPARK_MASTER_HTTP])]
            return [*start, _MAIN[service], *arguments]
        # Spark starts a speculative copy of a task only on a host with another name.
        arguments += ["localhost" if SPARK_WORKERS.index(service) % 2 else port_names.HOST]
        arguments += ["--webui-port", "0", "--work-dir", str(self.layout.work(service))]
        arguments += ["--cores", str(self.options.spark_worker_cores)]
        arguments += ["--memory", f"{self.options.spark_worker_memory_mb}M"]
        return [*start, _MAIN[SPARK_WORKER], *arguments, f"spark://{port_names.HOST}:{self.ports[SPARK_MASTER]}"]

    def log_folder(self, broker: str) -> Path:
        """Return the folder with the records of a broker."""
        return self.layout.data / broker

    def _values(self, service: str) -> dict[str, object]:
        other = service == HIVESERVER2
        return {
            **(self._broker_values(service) if service in BROKERS else {}),
            **(self._hdfs_values(service) if group_of(service) == HDFS else {}),
            "WAREHOUSE": self.warehouse.warehouse,
            "EXTERNAL": self.warehouse.external,
            "DEFAULT_FS": self.warehouse.default_fs,
            "SCRATCH": self.warehouse.scratch,
            "DATA": self.layout.data,
            "HMS_PORT": self.ports[METASTORE],
            "HS2_PORT": self.ports[HIVESERVER2],
            "DB_URL": self.database.other_process_url if other else self.database.url,
            "DB_DRIVER": self.database.other_process_driver if other else self.database.driver,
            "DB_USER": self.database.user,
            "DB_PASSWORD": self.database.password,
            "TXN_TIMEOUT": self.options.txn_timeout_seconds,
            "HOUSEKEEPER": self.options.housekeeper_seconds,
            "COMPACTOR_CHECK": self.options.compactor_check_seconds,
            "COMPACTOR_THREADS": self.options.compactor_threads,
        }

    def _hdfs_values(self, service: str) -> dict[str, object]:
        values: dict[str, object] = {
            "NAMENODE_PORT": self.ports[NAMENODE],
            "NAMENODE_HTTP_PORT": self.ports[port_names.NAMENODE_HTTP],
            "SERVICE": service,
            "REPLICATION": warehouse.replication(self.ports),
        }
        if service in DATANODES:
            http, data = port_names.datanode_ports(service)
            values |= {"PORT": self.ports[service], "HTTP_PORT": self.ports[http], "DATA_PORT": self.ports[data]}
        return values

    def _broker_values(self, service: str) -> dict[str, object]:
        number = self.options.brokers
        controllers = [self.ports[name] for name in port_names.CONTROLLERS[:number]]
        node = BROKERS.index(service)
        return {
            "NODE_ID": node + 1,
            "VOTERS": ",".join(f"{i}@127.0.0.1:{port}" for i, port in enumerate(controllers, 1)),
            "KAFKA_PORT": self.ports[service],
            "CONTROLLER_PORT": controllers[node],
            "LOGS": self.log_folder(service),
            "REPLICAS": number,
            # With three brokers, one may be down and records are still acknowledged by two.
            "IN_SYNC": max(1, number - 1),
        }


def _site(properties: Mapping[str, str]) -> str:
    """Return a configuration file of Hadoop."""
    return f"<configuration>\n{_lines(properties)}"


def _lines(properties: Mapping[str, str]) -> str:
    """Return the end of a configuration file of Hadoop."""
    lines = (f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in properties.items())
    return "\n".join((*lines, "</configuration>\n"))


def fill(template: str, values: dict[str, object], *, xml: bool) -> str:
    """Return the template with each @NAME@ replaced by its value. Raises KeyError for a name without a value."""

    def value(match: re.Match[str]) -> str:
        text = str(values[match[1]])
        return escape(text) if xml else text

    return re.sub(r"@([A-Z][A-Z0-9_]*)@", value, template)


def _place(jar: Path) -> tuple[bool, str]:
    """Return the sort key of a jar in the class path.

    Java ignores an archive if the manifest of a jar, here cron-utils, names one after it, here slf4j-api. Kerberos
    needs hadoop-common before hadoop-yarn-common, whose classes for logins need a jar that a metastore does not have.
    """
    return not jar.name.startswith("slf4j-api-"), jar.name
