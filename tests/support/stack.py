"""The topics, tables and daemons of one test on the real services."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from hive_metastore import ttypes

from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import SandboxError
from ingestd.hive.client import Metastore
from ingestd.sandbox import Addresses
from ingestd.sandbox.hiveserver2 import Session
from tests.support.daemon import SPARK_MASTER, Daemon, DaemonProcess, DaemonThread, Hold
from tests.support.observation import observed, summary
from tests.support.patience import LIMIT

Row = tuple[Any, ...]
T = TypeVar("T")
# States of a compaction whose result readers use. The cleaner removes what it has replaced in the first one.
COMPACTED = ("ready for cleaning", "succeeded")
# The pause between two checks of a condition. A check may be a query that takes a whole core, so the pause is longer
# after a longer check: most of the time is left to what the test waits for.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_PAUSE_PER_CHECK = 3
# How often a statement is repeated that HiveServer2 has failed by accident.
_MOST_REPETITIONS = 5
# Hive's errors if a directory of rows disappears while it lists a table. The group is the name of the table.
_LOST_DIRECTORY = re.compile(
    r"(?:ORC split generation failed|cannot access).*?/(\w+)(?:/[^/=]+=[^/]*)*/(?:base|delta|delete_delta)_\d",
    re.DOTALL,
)
_FAILED_VERTEX = "Vertex failed"
# Sessions that no test uses, by the address of HiveServer2. A new session would start Tez again for its first job.
_idle_sessions: dict[str, list[Session]] = {}


def eventually(what: str, check: Callable[[], Any], seconds: float = LIMIT) -> Any:
    """Call `check` until its result is true, and return that result. Fails after `seconds` and then reports `what`.

    Fails at once if the daemons whose output `check` reads have ended with an error. If it reads none, this applies to
    the daemons that the test has neither ended nor waited for.
    """
    limit = Deadline.after(seconds)
    while True:
        began = monotonic()
        with observed() as daemons:
            answer = check()
        if answer:
            return answer
        has_failed = bool(daemons) and all(daemons.values())
        if has_failed or limit.passed:
            reason = "no daemon is left" if has_failed else f"timed out after {seconds:.0f} s"
            raise AssertionError("\n".join([f"{reason}, waiting for {what}", *map(summary, daemons)]))
        pause(min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, _PAUSE_PER_CHECK * (monotonic() - began))))


def wait_for_topic(admin: AdminClient, name: str, partitions: int) -> None:
    """Wait until every broker knows the partitions of a topic that was just created, and their leaders answer."""
    eventually(f"the brokers to know the topic {name}", lambda: _is_ready(admin, name, partitions))


def _is_ready(admin: AdminClient, name: str, partitions: int) -> bool:
    found = admin.list_topics(name, timeout=LIMIT)
    # A client gets its first metadata from the only broker that it knows.
    others = [] if len(found.brokers) == 1 else [f"{broker.host}:{broker.port}" for broker in found.brokers.values()]
    answers = [
        AdminClient({"bootstrap.servers": other, "log_level": 2}).list_topics(name, timeout=LIMIT) for other in others
    ]
    for known in (answer.topics[name].partitions for answer in (found, *answers)):
        if len(known) < partitions or any(partition.leader < 0 for partition in known.values()):
            return False
    # A broker knows that it is a leader shortly before it can answer as such.
    latest = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}
    try:
        for end in admin.list_offsets(latest).values():
            end.result(LIMIT)
    except KafkaException:
        return False
    return True


def repeated(run: Callable[[], T], metastore: Metastore) -> T:
    """Return the result of a statement, which `run` runs again if HiveServer2 failed it by accident."""
    for _ in range(_MOST_REPETITIONS):
        try:
            return run()
        except SandboxError as error:  # noqa: PERF203 - the loop is there to repeat the statement
            if not _is_accident(str(error), metastore):
                raise
    return run()


def _is_accident(message: str, metastore: Metastore) -> bool:
    """Return whether HiveServer2 failed a statement, before it had an effect, because of concurrent changes.

    It lists a table's directory with `ls`, which fails if a staging file disappears meanwhile. It also lists the
    directories that a compaction has replaced (AcidUtils.getHdfsDirSnapshots), although the cleaner may remove
    them meanwhile. If a transaction commits between the compilation and the lock of a statement with an exclusive
    lock, it may try to release this lock. And on Derby, the metastore may be unable to open a transaction for minutes.
    """
    is_staging = "cannot access" in message and ".ingestd-staging" in message
    lost = _LOST_DIRECTORY.search(message)
    is_cleaned = lost is not None and _is_compacted(lost[1], metastore)
    other = (
        "Unlocking locks associated with transaction not permitted",
        "LockException [Error 10280]: Error communicating with the",
    )
    return is_staging or is_cleaned or any(text in message for text in other)


def require_rows(hiveserver2: str) -> None:
    """Raise AssertionError if the jobs of this HiveServer2 no longer read rows.

    With Tez in local mode, one job that fails while it reads rows is enough: all later jobs of the process read nothing
    and report no error (IOContext keeps the exception). Tests that share the process would get wrong results.
    """
    with closing(Session(hiveserver2)) as session:
        session.query("SET hive.compute.query.using.stats=false")
        session.query("SET hive.query.results.cache.enabled=false")
        session.query("CREATE TEMPORARY TABLE one_row AS SELECT 1 AS id")
        rows = session.query("SELECT count(*) FROM one_row")[1]
    assert rows == [(1,)], (
        f"HiveServer2 {hiveserver2} counts {rows[0][0]} rows in a table of one row, because a job has failed there. "
        "Run statements that fail while they read rows on a HiveServer2 of the test's own."
    )


def _is_compacted(table: str, metastore: Metastore) -> bool:
    answer = metastore.call("show_compact", ttypes.ShowCompactRequest())
    return any(compact.tablename == table and compact.state in COMPACTED for compact in answer.compacts)


class Stack:
    """The services as one test uses them. `name` is unique, and the default name of topic, table and mapping."""

    def __init__(self, addresses: Addresses, test: str, directory: Path) -> None:
        self.addresses = addresses
        short = re.sub(r"[^a-z0-9]+", "_", test.lower().removeprefix("test_"))[:24].strip("_")
        self.name = f"{short}_{uuid.uuid4().hex[:6]}"
        self.directory = directory
        self.metastore = Metastore(addresses.metastore)
        self._daemons: list[Daemon] = []
        # One session for each thread, because a session runs one statement at a time.
        self._sessions: dict[int, Session] = {}
        self.admin = AdminClient({"bootstrap.servers": addresses.kafka, "log_level": 2})

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Kafka

    def topic(self, partitions: int = 4, name: str | None = None, **settings: str) -> str:
        """Create a topic with as many replicas as the brokers have by default, and return its name.

        All brokers know it then, and clients can use it at once. Its records are kept, whatever their timestamps are.
        """
        name = name or self.name
        config = {"retention.ms": "-1", **settings}
        created = self.admin.create_topics([NewTopic(name, partitions, config=config)])
        for answer in created.values():
            answer.result(LIMIT)
        wait_for_topic(self.admin, name, partitions)
        return name

    def produce(self, records: Iterable[Any], topic: str | None = None, partition: int | None = None) -> int:
        """Produce records and return their number when Kafka has stored them.

        Bytes are sent unchanged, None as a tombstone, and any other value as JSON.
        """
        producer = Producer({"bootstrap.servers": self.addresses.kafka, "linger.ms": 5, "compression.type": "lz4"})
        count = self._send(producer, records, topic or self.name, partition)
        assert producer.flush(LIMIT) == 0
        return count

    def _send(self, producer: Producer, records: Iterable[Any], topic: str, partition: int | None) -> int:
        count = 0
        where = {} if partition is None else {"partition": partition}
        for count, record in enumerate(records, 1):
            value = record if record is None or isinstance(record, bytes) else json.dumps(record).encode()
            while True:
                try:
                    producer.produce(topic, value, key=str(count).encode(), **where)
                    break
                except BufferError:
                    producer.poll(0.1)
        return count

    def produce_at_once(self, records: Iterable[Any], topic: str | None = None, partition: int | None = None) -> int:
        """Produce records as JSON in one transaction, so that one plan of a mapping contains them all."""
        topic = topic or self.name
        producer = Producer({"bootstrap.servers": self.addresses.kafka, "transactional.id": topic})
        producer.init_transactions()
        producer.begin_transaction()
        count = self._send(producer, records, topic, partition)
        producer.commit_transaction()
        return count

    def group_offsets(self, group: str, topic: str, partitions: int) -> list[int]:
        """Return the offset that the group has committed to Kafka for each partition."""
        consumer = Consumer({"bootstrap.servers": self.addresses.kafka, "group.id": group})
        try:
            asked = [TopicPartition(topic, p) for p in range(partitions)]
            return [p.offset for p in consumer.committed(asked, timeout=LIMIT)]
        finally:
            consumer.close()

    # --- Hive

    def sql(self, statement: str) -> list[Row]:
        """Run a statement in HiveServer2 with its default settings and return all rows.

        A thread uses one session until a statement fails. One that fails by accident is repeated a few times.
        """
        return repeated(lambda: self._sql(statement), self.metastore)

    def _sql(self, statement: str) -> list[Row]:
        assert self.addresses.hiveserver2
        thread = threading.get_ident()
        if thread not in self._sessions:
            try:
                self._sessions[thread] = _idle_sessions[self.addresses.hiveserver2].pop()
            except LookupError:
                self._sessions[thread] = Session(self.addresses.hiveserver2)
        try:
            return self._sessions[thread].query(statement)[1]
        except BaseException as error:
            self._sessions.pop(thread).close()
            if _FAILED_VERTEX in str(error):
                require_rows(self.addresses.hiveserver2)
            raise

    def table(self, columns: str, partitioned: str = "", name: str | None = None, **properties: str) -> str:
        """Create a full ACID table, by default without automatic compaction, and return its name."""
        wanted = {"transactional": "true", "no_auto_compaction": "true"} | properties
        text = ", ".join(f"'{k}'='{v}'" for k, v in wanted.items())
        by = f" PARTITIONED BY ({partitioned})" if partitioned else ""
        name = name or f"default.{self.name}"
        self.sql(f"CREATE TABLE {name} ({columns}){by} STORED AS ORC TBLPROPERTIES ({text})")
        return name

    def count(self, where: str = "", name: str | None = None) -> int:
        """Return the result of `SELECT count(*)`."""
        return int(self.sql(f"SELECT count(*) FROM {name or self.name} {where}")[0][0])

    def ids(self, name: str | None = None) -> list[int]:
        """Return all ids of the table, sorted and including duplicates."""
        return sorted(row[0] for row in self.sql(f"SELECT id FROM {name or self.name}"))

    # --- daemons

    def config(self, *mappings: dict[str, Any], **sections: Any) -> Path:
        """Write a configuration and return its path. The default topic and table of a mapping are those of the test."""
        wanted = [
            {"name": self.name[-40:], "topics": [self.name], "table": f"default.{self.name}"} | mapping
            for mapping in (mappings or ({},))
        ]
        document: dict[str, Any] = {
            "http": {"listen": "off"},
            "metastore": {"uri": self.addresses.metastore},
            "kafka": {"bootstrap.servers": self.addresses.kafka},
            "spark": {"master": SPARK_MASTER},
            "defaults": {"commit": {"interval": "1s"}},
            "mappings": wanted,
        }
        if self.addresses.hadoop_conf_dir:
            document["storage"] = {"hadoop_conf_dir": self.addresses.hadoop_conf_dir}
        document |= sections
        path = self.directory / f"ingestd-{uuid.uuid4().hex[:6]}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    def start(self, config: Path, *arguments: str, hold: Hold | None = None) -> DaemonThread:
        """Start a daemon in threads of this process, with the Spark session that all tests share."""
        daemon = DaemonThread(config, arguments, hold)
        self._daemons.append(daemon)
        return daemon

    def start_process(self, config: Path, *arguments: str, **environment: str) -> DaemonProcess:
        """Start a daemon as a process, which the test or a failpoint can signal or kill."""
        log = self.directory / f"daemon-{len(self._daemons)}.log"
        daemon = DaemonProcess(config, log, arguments, environment)
        self._daemons.append(daemon)
        return daemon

    def start_held(self, config: Path, steps: Iterable[str]) -> tuple[DaemonProcess, list[Path]]:
        """Start a daemon; return when after each of the steps one transaction waits until a file is created.

        A step is its name, or `MAPPING:STEP` for that of a mapping. Returns the daemon, and the paths of these files.
        There must be a mapping for each step.
        """
        gates = {step: self.directory / step.replace(":", "-") for step in steps}
        failpoints = ",".join(f"{step}=hold:{gate}" for step, gate in gates.items())
        daemon = self.start_process(config, INGESTD_TESTING="1", INGESTD_FAILPOINT=failpoints)
        for step, gate in gates.items():
            eventually(f"a transaction to wait after {step}", Path(f"{gate}.held").exists)
        return daemon, list(gates.values())

    def drain(self, config: Path | None = None, expect: int = 0) -> DaemonThread:
        """Run a daemon until it has caught up. Fails unless its exit code is `expect`."""
        daemon = self.start(config or self.config(), "--until-caught-up")
        code = daemon.wait()
        assert code == expect, f"exit code {code} instead of {expect}:\n{daemon.text()[-3000:]}"
        return daemon

    def close(self) -> None:
        """Stop the daemons, close the connection to the metastore, and leave the sessions to the next test.

        All of this happens even if a daemon cannot be stopped, which then fails the test.
        """
        with ExitStack() as closing:
            closing.callback(self.metastore.close)
            closing.callback(self._leave_sessions)
            for daemon in reversed(self._daemons):  # the last callback runs first
                closing.callback(daemon.kill)

    def _leave_sessions(self) -> None:
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        for thread, session in self._sessions.items():
            if thread in others:  # it may be running a statement
                session.close()
            else:
                _idle_sessions.setdefault(self.addresses.hiveserver2 or "", []).append(session)
