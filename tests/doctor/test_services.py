"""A metastore and a broker that are configured wrongly, forbid access, hang or have ended: each is named correctly."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from hive_metastore import ttypes

from ingestd.config.document import load
from ingestd.errors import LoginFailed
from ingestd.hive import health
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.ingest.inspection.checks import readable_topic
from tests.doctor.conftest import Examine
from tests.support.kafka import KafkaBroker, kafka_broker
from tests.support.metastore import Home, Process, metastore
from tests.support.patience import LIMIT
from tests.support.stack import eventually
from tests.support.tables import make_table

CANARY = "hunter2canary"
_PATIENCE = (1, 1)
# Everything that an administrator may forget or set wrongly.
_PROPERTIES = {
    "hive.txn.timeout": f"{_PATIENCE[0]}s",
    "metastore.acid.housekeeper.interval": f"{_PATIENCE[1]}s",
    "metastore.housekeeping.threads.on": "false",
    "hive.compactor.worker.timeout": "1s",
    "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DummyTxnManager",
    "metastore.compactor.initiator.on": "false",
    "metastore.compactor.cleaner.on": "false",
    "metastore.compactor.worker.threads": "0",
    "hive.metastore.runworker.in": "metastore",
}
_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def services(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, KafkaBroker]]:
    with ExitStack() as running, ThreadPoolExecutor() as starting:
        broker = starting.submit(running.enter_context, kafka_broker(tmp_path_factory.mktemp("broker"), _AUTHORIZER))
        home = Home(tmp_path_factory.mktemp("metastore") / "home")
        hive = running.enter_context(metastore(home, "broken", _PROPERTIES))
        _neglect(Metastore(hive.uri))
        yield hive, broker.result()


def _neglect(client: Metastore) -> None:
    """Leave open transactions, a compaction that has failed, and one whose worker does not end."""
    for _ in range(2):  # at most 1000 with one call
        client.call("open_txns", ttypes.OpenTxnRequest(num_txns=600, user="leaky", hostname="client-7"))
    for table in ("fine", "slow"):
        make_table(client, TableName("default", table))
        request = ttypes.CompactionRequest(dbname="default", tablename=table, type=ttypes.CompactionType.MAJOR)
        client.call("compact2", request)
    failed, _ = (client.call("find_next_compact", "worker-1").ci for _ in range(2))
    failed.errorMessage = "java.io.IOException: the disk is full\n\tat Worker.run"
    client.call("mark_failed", failed)


def _age(client: Metastore) -> float:
    """Return the seconds since the first transaction has begun."""
    return health.read_clock(client).database_time - health.uncommitted(client)[0].started


@pytest.fixture
def hive(services: tuple[Process, KafkaBroker]) -> Process:
    return services[0]


@pytest.fixture
def broker(services: tuple[Process, KafkaBroker]) -> KafkaBroker:
    return services[1]


def _config(folder: Path, hive: Process, broker: KafkaBroker, *mappings: dict[str, Any], **keys: Any) -> Path:
    path = folder / "doctor.yaml"
    document = {
        "metastore": {"uri": hive.uri, "timeout": "20s"} | keys,
        "kafka": {"bootstrap.servers": broker.servers, "socket.timeout.ms": 3000},
        "mappings": list(mappings) or [{"name": "fine", "topics": ["fine"], "table": "default.fine"}],
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_kafka_when_it_forbids_reading_or_the_login_then_names_topic_group_and_login(
    examine: Examine, hive: Process, broker: KafkaBroker, tmp_path: Path
) -> None:
    for topic in ("secret", "open"):
        broker.create(topic)
        producer = Producer({"bootstrap.servers": broker.servers, "log_level": 2})
        producer.produce(topic, b'{"id": 1}')
        assert producer.flush(LIMIT) == 0
    acls = [
        _acl(ResourceType.TOPIC, "secret", AclOperation.READ, AclPermissionType.DENY),
        _acl(ResourceType.GROUP, "mine", AclOperation.ALL, AclPermissionType.DENY),
        # It allows DESCRIBE too, but not DESCRIBE_CONFIGS.
        _acl(ResourceType.TOPIC, "open", AclOperation.READ, AclPermissionType.ALLOW),
    ]
    broker.add_rules(*acls)
    report = examine(
        _config(
            tmp_path,
            hive,
            broker,
            {"name": "topic", "topics": ["secret"], "table": "default.fine"},
            {"name": "group", "topics": ["open"], "table": "default.fine", "group": "mine"},
            _logged_in(broker, CANARY),
        )
    )
    assert "permission denied" in report.one("kafka.topic", "mapping topic")["evidence"]
    assert "grant READ" in report.one("kafka.topic", "mapping topic")["fix"]
    assert report.one("kafka.topic", "mapping group")["status"] == "ok"
    group, retention = (report.one(name, "mapping group") for name in ("kafka.group", "kafka.retention"))
    assert (group["status"], retention["status"]) == ("warning", "skipped")
    assert "permission denied" in group["evidence"]
    assert "grant DESCRIBE_CONFIGS" in retention["evidence"]
    login = report.one("kafka.cluster", broker.login_servers)
    assert login["exit_code"] == 77
    assert "Invalid username or password" in login["evidence"]
    assert "check the sasl.*" in login["fix"]
    assert CANARY not in report.text


def test_topic_when_the_password_is_wrong_then_names_it_instead_of_a_timeout(
    hive: Process, broker: KafkaBroker, tmp_path: Path
) -> None:
    broker.create("login")
    [options] = load([_config(tmp_path, hive, broker, _logged_in(broker, "right"))]).mappings
    assert readable_topic(options, "login") == "1 partition, 0 offsets, readable"
    [options] = load([_config(tmp_path, hive, broker, _logged_in(broker, CANARY))]).mappings
    with pytest.raises(LoginFailed, match="Invalid username or password") as raised:
        readable_topic(options, "login")
    assert CANARY not in str(raised.value)


def _logged_in(broker: KafkaBroker, password: str) -> dict[str, Any]:
    """Return the mapping `login`, which logs in to the broker with this password."""
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
    kafka = {"bootstrap.servers": broker.login_servers, "sasl.password": password} | login
    return {"name": "login", "topics": ["login"], "table": "default.fine", "kafka": kafka}


def test_login_when_the_keytab_is_wrong_then_names_it_and_prints_no_secret(
    examine: Examine, hive: Process, broker: KafkaBroker, tmp_path: Path
) -> None:
    keytab = tmp_path / "ingestd.keytab"
    keytab.write_bytes(CANARY.encode())
    login = {"principal": "hive/_HOST@INGESTD.TEST", "user": "ingestd@INGESTD.TEST", "keytab": str(keytab)}
    report = examine(_config(tmp_path, hive, broker, kerberos=login))
    assert report.one("login.keytab")["exit_code"] == 77
    assert "is not a keytab" in report.one("login.keytab")["evidence"]
    assert CANARY not in report.text


def test_services_when_they_hang_then_each_is_named_within_the_time_limit(
    examine: Examine, hive: Process, broker: KafkaBroker, tmp_path: Path
) -> None:
    hive.pause()
    broker.pause()
    try:
        report = examine(_config(tmp_path, hive, broker, timeout="5s"), "--timeout", "4")
    finally:
        hive.resume()
        broker.resume()
    assert report.code == 69
    assert report.one("metastore.version")["status"] == "fault"
    assert report.one("kafka.cluster")["status"] == "fault"
    assert report.one("table.row_counts")["status"] == "skipped"


def test_metastore_when_it_is_configured_wrongly_then_each_fault_is_named(
    examine: Examine, hive: Process, broker: KafkaBroker, tmp_path: Path
) -> None:
    client = Metastore(hive.uri)
    limit = 2 * sum(_PATIENCE)
    eventually("the transactions to be silent", lambda: _age(client) > limit)
    report = examine(_config(tmp_path, hive, broker))
    assert report.one("metastore.transaction_timeout")["status"] == "fault"
    assert report.bad >= {
        "metastore.transaction_timeout",
        "metastore.locks",
        "metastore.transactions",
        "compaction.initiator",
        "compaction.worker",
        "compaction.cleaner",
        "compaction.history",
    }
    assert "of default.slow has been running" in report.all("compaction.worker")[-1]["evidence"]
    assert "hive.txn.timeout is 1 s" in report.one("metastore.transaction_timeout")["evidence"]
    many, silent = report.all("metastore.transactions")
    assert "leaky at client-7 (1,200)" in many["evidence"]
    assert "of leaky at client-7 is open, although its last heartbeat was" in silent["evidence"]
    assert "housekeeping.threads.on=true" in silent["fix"]
    assert "default.fine failed: java.io.IOException: the disk is full" in report.one("compaction.history")["evidence"]
    assert "DummyTxnManager" in report.all("metastore.locks")[0]["evidence"]


def _acl(kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, "User:*", "*", operation, permission)
