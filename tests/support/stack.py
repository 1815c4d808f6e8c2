"""A test's own topics, tables and daemons on the real stack."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ingestd.clock import Deadline, pause
from ingestd.hive.client import Metastore
from ingestd.sandbox import Addresses
from ingestd.sandbox.hiveserver2 import query

Row = tuple[Any, ...]


def eventually(what: str, check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true answer of `check`; fails naming `what` when none comes in time."""
    limit = Deadline.after(seconds)
    while True:
        answer = check()
        if answer:
            return answer
        if limit.passed:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        pause(0.1)


class Daemon:
    """One `ingestd run` process, its log lines in a file."""

    def __init__(self, config: Path, log: Path, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ingestd", "run", "--config", str(config), "--log-format", "json", *arguments],
                stdout=sink,
                stderr=sink,
                env=os.environ | environment,
                # A group of its own: kill() below ends the Spark workers with it.
                start_new_session=True,
            )

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log lines so far, those of one event when named."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        parsed = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [e for e in parsed if name is None or e["event"] == name]

    def text(self) -> str:
        """All that it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = 120.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the daemon runs still after {seconds:.0f} s:\n{self.text()[-3000:]}") from error

    def terminate(self) -> None:
        """SIGTERM, as systemd sends it to the main process."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9 of the whole daemon."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait(30)


class Stack:
    """Names of its own for each test; `name` makes topic, table and mapping."""

    def __init__(self, addresses: Addresses, test: str, directory: Path) -> None:
        self.addresses = addresses
        short = re.sub(r"[^a-z0-9]+", "_", test.lower().removeprefix("test_"))[:24].strip("_")
        self.name = f"{short}_{uuid.uuid4().hex[:6]}"
        self.directory = directory
        self.metastore = Metastore(addresses.metastore)
        self._daemons: list[Daemon] = []
        self._admin = AdminClient({"bootstrap.servers": addresses.kafka})

    # --- Kafka

    def topic(self, partitions: int = 4, name: str | None = None, **settings: str) -> str:
        """Make a topic."""
        name = name or self.name
        made = self._admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
        for answer in made.values():
            answer.result(30)
        return name

    def produce(self, records: Iterable[Any], topic: str | None = None, partition: int | None = None) -> int:
        """Send records (bytes as they are, None as tombstone, else as JSON) and wait until all are stored."""
        producer = Producer({"bootstrap.servers": self.addresses.kafka, "linger.ms": 5, "compression.type": "lz4"})
        count = 0
        where = {} if partition is None else {"partition": partition}
        for count, record in enumerate(records, 1):
            value = record if record is None or isinstance(record, bytes) else json.dumps(record).encode()
            while True:
                try:
                    producer.produce(topic or self.name, value, key=str(count).encode(), **where)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        return count

    def group_offsets(self, group: str, topic: str, partitions: int) -> list[int]:
        """Next offsets that the group has in Kafka."""
        consumer = Consumer({"bootstrap.servers": self.addresses.kafka, "group.id": group})
        try:
            asked = [TopicPartition(topic, p) for p in range(partitions)]
            return [p.offset for p in consumer.committed(asked, timeout=30)]
        finally:
            consumer.close()

    # --- Hive

    def sql(self, statement: str) -> list[Row]:
        """Run a statement in HiveServer2 with its default settings."""
        assert self.addresses.hiveserver2
        return query(self.addresses.hiveserver2, statement)[1]

    def table(self, columns: str, partitioned: str = "", name: str | None = None, **properties: str) -> str:
        """Make a full ACID table through HiveServer2; automatic compaction is off unless asked for."""
        wanted = {"transactional": "true", "no_auto_compaction": "true"} | properties
        text = ", ".join(f"'{k}'='{v}'" for k, v in wanted.items())
        by = f" PARTITIONED BY ({partitioned})" if partitioned else ""
        name = name or f"default.{self.name}"
        self.sql(f"CREATE TABLE {name} ({columns}){by} STORED AS ORC TBLPROPERTIES ({text})")
        return name

    def count(self, where: str = "", name: str | None = None) -> int:
        """`select count(*)`."""
        return int(self.sql(f"SELECT count(*) FROM {name or self.name} {where}")[0][0])

    def ids(self, name: str | None = None) -> list[int]:
        """All ids of the table, sorted, duplicates included."""
        return sorted(row[0] for row in self.sql(f"SELECT id FROM {name or self.name}"))

    # --- daemons

    def config(self, *mappings: dict[str, Any], **sections: Any) -> Path:
        """Write a configuration; a mapping that says nothing takes the test's topic and table."""
        wanted = [
            {"name": self.name[-40:], "topics": [self.name], "table": f"default.{self.name}"} | mapping
            for mapping in (mappings or ({},))
        ]
        document: dict[str, Any] = {
            "metastore": {"uri": self.addresses.metastore},
            "kafka": {"bootstrap.servers": self.addresses.kafka},
            "spark": {"master": "local[2]"},
            "defaults": {"commit": {"interval": "1s"}},
            "mappings": wanted,
        } | sections
        path = self.directory / f"ingestd-{uuid.uuid4().hex[:6]}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    def start(self, config: Path, *arguments: str, **environment: str) -> Daemon:
        """Start a daemon."""
        log = self.directory / f"daemon-{len(self._daemons)}.log"
        daemon = Daemon(config, log, arguments, environment)
        self._daemons.append(daemon)
        return daemon

    def drain(self, config: Path | None = None, expect: int = 0, **environment: str) -> Daemon:
        """Run a daemon until it has caught up and see its exit code."""
        daemon = self.start(config or self.config(), "--until-caught-up", **environment)
        code = daemon.wait()
        assert code == expect, f"exit {code}, expected {expect}:\n{daemon.text()[-3000:]}"
        return daemon

    def close(self) -> None:
        """End what the test started."""
        for daemon in self._daemons:
            daemon.kill()
        self.metastore.close()
