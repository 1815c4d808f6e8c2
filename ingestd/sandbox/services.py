"""The configuration, command line and readiness criteria of each service.

Invariant: the configuration is written from the package's templates at each start and never edited in place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from ingestd.sandbox import ports as port_names
from ingestd.sandbox import probe
from ingestd.sandbox.database import Database
from ingestd.sandbox.lockfile import data_file
from ingestd.sandbox.options import HIVESERVER2, KAFKA, METASTORE, SandboxOptions
from ingestd.sandbox.state import Layout

_HIVE_OPENS = (
    *("java.lang", "java.util", "java.io", "java.net", "java.nio", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "java.util.regex", "java.time", "java.text", "sun.nio.ch"),
    *("java.lang.reflect", "java.math", "jdk.internal.ref"),
)
_TEMPLATES = {
    KAFKA: {"server.properties": "kafka.server.properties"},
    METASTORE: {"hive-site.xml": "metastore.hive-site.xml", "log4j.properties": "log4j.properties"},
    HIVESERVER2: {"hive-site.xml": "hiveserver2.hive-site.xml", "log4j.properties": "log4j.properties"},
}
_MAIN = {
    KAFKA: "kafka.Kafka",
    METASTORE: "org.apache.hadoop.hive.metastore.HiveMetaStore",
    HIVESERVER2: "org.apache.hive.service.server.HiveServer2",
}
PROBES: dict[str, Callable[[int], bool]] = {
    KAFKA: probe.kafka_answers,
    METASTORE: probe.metastore_answers,
    HIVESERVER2: probe.hiveserver2_answers,
}
# A service that has logged its pattern keeps running but never works.
FATAL = {
    KAFKA: re.compile(r"Exiting Kafka due to fatal exception"),
    METASTORE: re.compile(r"Failure when starting the leader tasks"),
    HIVESERVER2: re.compile(r"Error starting HiveServer2 on attempt"),
}
# A service works when it has logged all of these. The metastore opens its port one to three seconds before its
# background threads start, and even when they fail to start.
COMPLETE = {
    KAFKA: (),
    METASTORE: ("compactor.Initiator", "compactor.Cleaner", "AcidHouseKeeperService", "HiveProtoEventsCleanerTask"),
    HIVESERVER2: (),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that determines the command lines and configurations of the services."""

    options: SandboxOptions
    layout: Layout
    ports: dict[str, int]
    database: Database
    java: Path
    jars: Path

    def configure(self, service: str) -> None:
        """Write the configuration folder of `service`."""
        folder = self.layout.conf(service)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may contain a database password
        values = self._values(service)
        for name, template in {**_TEMPLATES[service], "log4j2.properties": "log4j2.properties"}.items():
            (folder / name).write_text(fill(data_file(template).read_text(), values, xml=name.endswith(".xml")))

    def command(self, service: str) -> list[str]:
        """Return the command line that runs `service`."""
        jvm = [f"-Xmx{self.options.heap_mb(service)}m", f"-Djava.io.tmpdir={self.layout.work(service)}"]
        # C2 compilation costs more than it saves in services that live for minutes and do little.
        jvm += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        if service == KAFKA:
            return self.java_command(service, jvm, str(self.layout.conf(KAFKA) / "server.properties"))
        jvm.append(f"-Dderby.stream.error.file={self.layout.log(f'{service}-derby')}")
        jvm += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _HIVE_OPENS]
        jvm.append("--add-opens=java.sql/java.sql=ALL-UNNAMED")
        if service == HIVESERVER2:
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
        """Return the command line of a JVM with the jars and the configuration of `service`."""
        class_path = f"{self.layout.conf(service)}:{self.jars / service}/*"
        return [str(self.java / "bin" / "java"), *jvm, "-cp", class_path, main or _MAIN[service], *arguments]

    def _values(self, service: str) -> dict[str, object]:
        other = service == HIVESERVER2
        return {
            "DATA": self.layout.data,
            "KAFKA_PORT": self.ports[KAFKA],
            "CONTROLLER_PORT": self.ports[port_names.CONTROLLER],
            "HMS_PORT": self.ports[METASTORE],
            "HS2_PORT": self.ports[HIVESERVER2],
            "DB_URL": self.database.other_process_url if other else self.database.url,
            "DB_DRIVER": self.database.other_process_driver if other else self.database.driver,
            "DB_USER": self.database.user,
            "DB_PASSWORD": self.database.password,
            "TXN_TIMEOUT": self.options.txn_timeout_seconds,
            "HOUSEKEEPER": self.options.housekeeper_seconds,
            "COMPACTOR_CHECK": self.options.compactor_check_seconds,
        }


def fill(template: str, values: dict[str, object], *, xml: bool) -> str:
    """Return the template with each @NAME@ replaced by its value. Raises KeyError for a name without a value."""

    def value(match: re.Match[str]) -> str:
        text = str(values[match[1]])
        return escape(text) if xml else text

    return re.sub(r"@([A-Z][A-Z0-9_]*)@", value, template)
