"""A metastore and a broker that are configured wrongly, forbid access, hang or have ended: each is named correctly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from hive_metastore import ttypes

from ingestd.clock import monotonic
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from tests.doctor.conftest import Examine
from tests.support.kafka import KafkaBroker, kafka_broker
from tests.support.metastore import Home, Process, metastore
from tests.support.tables import make_table

CANARY = "hunter2canary"
# Everything that an administrator may forget or set wrongly.
_PROPERTIES = {
    "hive.txn.timeout": "20s",
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
def hive(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    home = Home(tmp_path_factory.mktemp("metastore") / "home")
    with metastore(home, "broken", _PROPERTIES) as made:
        yield made


@pytest.fixture(scope="module")
def broker(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with kafka_broker(tmp_path_factory.mktemp("broker"), _AUTHORIZER) as made:
        yield made


def _config(folder: Path, hive: Process, broker: KafkaBroker, *mappings: dict[str, Any], **keys: Any) -> Path:
    path = folder / "doctor.yaml"
    document = {
        "metastore": {"uri": hive.uri, "timeout": "5s"} | keys,
        "kafka": {"bootstrap.servers": broker.servers, "socket.timeout.ms": 3000},
        "mappings": list(mappings) or [{"name": "fine", "topics": ["fine"], "table": "default.fine"}],
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_metastore_when_it_is_configured_wrongly_then_each_fault_is_named(
    examine: Examine, hive: Process, broker: KafkaBroker, tmp_path: Path
) -> None:
    client = Metastore(hive.uri)
    for _ in range(2):  # at most 1000 with one call
        client.call("open_txns", ttypes.OpenTxnRequest(num_txns=600, user="leaky", hostname="client-7"))
    make_table(client, TableName("default", "fine"))
    request = ttypes.CompactionRequest(dbname="default", tablename="fine", type=ttypes.CompactionType.MAJOR)
    client.call("compact2", request)
    failed = client.call("find_next_compact", "worker-1").ci
    failed.errorMessage = "java.io.IOException: the disk is full\n\tat Worker.run"
    client.call("mark_failed", failed)
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
    assert "hive.txn.timeout is 20 s" in report.one("metastore.transaction_timeout")["evidence"]
    assert "leaky at client-7 (1,200)" in report.one("metastore.transactions")["evidence"]
    assert "default.fine failed: java.io.IOException: the disk is full" in report.one("compaction.history")["evidence"]
    assert "DummyTxnManager" in report.all("metastore.locks")[0]["evidence"]


def test_kafka_when_it_forbids_reading_then_topic_and_group_are_named(
    examine: Examine, hive: Process, broker: KafkaBroker, tmp_path: Path
) -> None:
    for topic in ("secret", "open"):
        broker.create(topic)
        producer = Producer({"bootstrap.servers": broker.servers, "log_level": 2})
        producer.produce(topic, b'{"id": 1}')
        assert producer.flush(30) == 0
    acls = [_deny(ResourceType.TOPIC, "secret", AclOperation.READ), _deny(ResourceType.GROUP, "mine", AclOperation.ALL)]
    for answer in broker.admin.create_acls(acls).values():
        answer.result(30)
    report = examine(
        _config(
            tmp_path,
            hive,
            broker,
            {"name": "topic", "topics": ["secret"], "table": "default.fine"},
            {"name": "group", "topics": ["open"], "table": "default.fine", "group": "mine"},
        )
    )
    assert "permission denied" in report.one("kafka.topic", "mapping topic")["evidence"]
    assert "grant READ" in report.one("kafka.topic", "mapping topic")["fix"]
    assert report.one("kafka.topic", "mapping group")["status"] == "ok"
    assert "permission denied" in report.one("kafka.group", "mapping group")["evidence"]


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
        began = monotonic()
        report = examine(_config(tmp_path, hive, broker), "--timeout", "4")
        took = monotonic() - began
    finally:
        hive.resume()
        broker.resume()
    assert took < 20
    assert report.code == 69
    assert report.one("metastore.version")["status"] == "fault"
    assert report.one("kafka.cluster")["status"] == "fault"
    assert report.one("table.row_counts")["status"] == "skipped"


def _deny(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    pattern, everyone = ResourcePatternType.LITERAL, "User:*"
    return AclBinding(kind, name, pattern, everyone, "*", operation, AclPermissionType.DENY)
