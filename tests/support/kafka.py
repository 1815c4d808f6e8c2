"""Separate Kafka brokers that use the sandbox's jars and configuration templates."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AclBinding, AclBindingFilter, AdminClient, NewTopic

from ingestd import java
from ingestd.sandbox import KAFKA, SandboxOptions, jars, ports, probe
from ingestd.sandbox.broker import format_storage
from ingestd.sandbox.database import derby
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.services import Plan
from ingestd.sandbox.state import Layout, locked
from tests.support.metastore import free_port
from tests.support.patience import LIMIT
from tests.support.stack import eventually, wait_for_topic

_LOGIN = """
listener.security.protocol.map=LOGIN:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_ann="right";
"""


class KafkaBroker:
    """A broker that forms its own cluster. Its port and records are the same after `stop` and `start`.

    `properties` are added to its configuration, and `listeners` to its listeners: addresses by name, whose protocols
    `properties` contains. `login_servers` is the address at which clients log in as the user
    `ann` with the password `right`.
    """

    def __init__(
        self, folder: Path, properties: Mapping[str, str] | None = None, listeners: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        layout = Layout(folder)
        self._port = free_port()
        self.servers = f"127.0.0.1:{self._port}"
        self.login_servers = f"127.0.0.1:{free_port()}"
        self.data = layout.data / "kafka"
        self._log = layout.log(KAFKA)
        self._process: subprocess.Popen[bytes] | None = None
        runtime = java.find_java()
        numbers = {KAFKA: self._port, ports.CONTROLLER: free_port(), "metastore": 0, "hiveserver2": 0, ports.DERBY: 0}
        with locked(folder / "lock", "the test") as handle, Guard(handle) as guard:
            home = jars.ensure(jars.groups_for((KAFKA,)), runtime, guard, no_progress)
            options = SandboxOptions(state_dir=folder, kafka_heap_mb=256)
            self._plan = Plan(options, layout, numbers, derby(layout.data, 0), runtime, home)
            self._plan.configure(KAFKA)
            settings = layout.conf(KAFKA) / "server.properties"
            # The sandbox disables automatic topic creation. Here Kafka's default applies, which allows it.
            more = "".join(f"{key}={value}\n" for key, value in (properties or {}).items())
            text = re.sub(r"auto\.create\.topics\.enable=.*\n", "", settings.read_text()) + _LOGIN + more
            added = {"LOGIN": self.login_servers} | dict(listeners or {})
            names = ",".join(f"{name}://{address}" for name, address in added.items())
            settings.write_text(text.replace("listeners=PLAIN", f"listeners={names},PLAIN"))
            format_storage(self._plan, guard)
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})

    def start(self) -> KafkaBroker:
        """Start the broker and wait until it answers."""
        work = self._plan.layout.work(KAFKA)
        work.mkdir(parents=True, exist_ok=True)
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._plan.command(KAFKA),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=work,
                start_new_session=True,
            )
        eventually(f"the broker of {self._log} to answer", lambda: probe.kafka_answers(self._port))
        return self

    def stop(self) -> None:
        """Stop the broker if it is running."""
        process, self._process = self._process, None
        if process:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT)

    def pause(self) -> None:
        """Send SIGSTOP and wait until every thread has stopped. Connections stay open but receive no answer."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Send SIGCONT if the broker is running."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def topics(self) -> set[str]:
        """Return the names of all topics. A request for all topics never creates a topic."""
        return set(self.admin.list_topics(timeout=LIMIT).topics)

    def create(self, name: str, partitions: int = 1) -> None:
        """Create a topic that clients can use at once. Waits while a deleted topic of that name still exists."""
        eventually(f"topic {name} to be created", lambda: self._try_create(name, partitions))
        wait_for_topic(self.admin, name, partitions)

    def delete(self, name: str) -> None:
        """Delete a topic and wait until it no longer exists."""
        self.admin.delete_topics([name])[name].result(LIMIT)
        eventually(f"topic {name} to be deleted", lambda: name not in self.topics())

    def add_rules(self, *bindings: AclBinding) -> None:
        """Add access rules, and wait until the broker applies them."""
        for answer in self.admin.create_acls(list(bindings)).values():
            answer.result(LIMIT)
        for binding in bindings:
            rule = AclBindingFilter(
                binding.restype,
                binding.name,
                binding.resource_pattern_type,
                binding.principal,
                binding.host,
                binding.operation,
                binding.permission_type,
            )
            eventually(f"{binding} to apply", lambda rule=rule: self.admin.describe_acls(rule).result(LIMIT))  # type: ignore[misc]

    def truncate_log(self, name: str) -> None:
        """Remove all records of partition 0 from the disk of the stopped broker.

        For a client this is an unclean leader election: the log of the new leader ends before offsets already read.
        """
        for segment in (self.data / f"{name}-0").glob("*.log"):
            segment.write_bytes(b"")

    def _try_create(self, name: str, partitions: int) -> bool:
        try:
            self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(LIMIT)
        except KafkaException:
            return False
        return True


@contextmanager
def kafka_broker(folder: Path, properties: Mapping[str, str] | None = None) -> Iterator[KafkaBroker]:
    """Run a broker and stop it at the end of the `with` block."""
    broker = KafkaBroker(folder, properties)
    try:
        yield broker.start()
    finally:
        broker.stop()
