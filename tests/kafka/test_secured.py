"""Logins, certificates and permissions that a broker rejects are named by `check --online` and by the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from ingestd.config.document import load
from ingestd.errors import BrokerUnavailable, IngestdError, LoginFailed, TopicDenied
from ingestd.hive.tables import TableName
from ingestd.ingest.inspection.checks import Finding, check_group, check_topics
from ingestd.ingest.options import MappingOptions
from ingestd.kafka.admin import OffsetMirror
from ingestd.kafka.ranges import OffsetRange, TopicPartition
from ingestd.kafka.reader import read
from tests.support.daemon import Daemon, Event
from tests.support.flow import wait_for_rows
from tests.support.patience import LIMIT
from tests.support.secured_kafka import SecuredKafka, secured_kafka
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table, visible_ids

PASSWORD = "canary-of-ann"
# Rejected logins are reported after this time, and not after 15 s.
_SHORT = {"socket.timeout.ms": 3000}


@pytest.fixture(scope="module")
def kafka(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("secured")) as broker:
        for topic in ("open", "listed"):
            broker.create(topic)
            _send(broker, topic, 1)
        for user in ("ann", "bob"):
            broker.set_password(user, PASSWORD)
        for user in ("ann", "CN=client"):
            broker.allow(user, "TOPIC", "open", "READ")
            broker.allow(user, "GROUP", "lag", "READ")
        broker.allow("bob", "TOPIC", "listed", "DESCRIBE")
        yield broker


@dataclass(frozen=True)
class _Case:
    """A mapping that the broker rejects: and what is reported."""

    name: str
    settings: dict[str, Any]
    error: type[IngestdError]
    what: str
    where: str
    hint: str
    topic: str = "open"

    def is_named(self, told: Event) -> bool:
        """Return whether an event reports this rejection."""
        says_all = self.what in told["error"] and self.hint in told["error"]
        return says_all and told["reason"] == self.error.__name__


def _cases(kafka: SecuredKafka) -> list[_Case]:
    broker, ca = "broker ", "ssl.ca.location"
    scram, mtls = broker + kafka.scram, broker + kafka.mtls
    stranger = {ca: str(kafka.certificates / "other.pem")}
    by_address = kafka.mtls.replace("localhost", "127.0.0.1")
    invalid, sasl = "invalid credentials with SASL mechanism SCRAM-SHA-512", "check the sasl.*"
    old, rejected = kafka.certificate("old"), "the certificate of the broker was rejected: "
    expired = kafka.certificate("client", **{"bootstrap.servers": kafka.expired})
    unlike = kafka.certificate("client", **{"bootstrap.servers": by_address})
    bob = kafka.login("bob", PASSWORD)
    return [
        _Case("password", kafka.login("ann", "canary-wrong"), LoginFailed, invalid, scram, sasl),
        _Case("user", kafka.login("nobody", PASSWORD), LoginFailed, invalid, scram, sasl),
        _Case("old", old, LoginFailed, "the client certificate expired on 2", mtls, "renew "),
        _Case("none", kafka.certificate(""), LoginFailed, "requires a client certificate", mtls, "ssl.key.location"),
        _Case("stranger", kafka.certificate("stranger"), LoginFailed, "rejected the client cert", mtls, "truststore"),
        _Case("ca", kafka.certificate("client", **stranger), BrokerUnavailable, rejected + "unable to", mtls, ca),
        _Case(
            "expired", expired, BrokerUnavailable, rejected + "certificate has expired", broker + kafka.expired, "renew"
        ),
        _Case("name", unlike, BrokerUnavailable, rejected + "IP address mismatch", broker + by_address, "advertised"),
        _Case("describe", bob, TopicDenied, "permission denied: DESCRIBE on the topic", "topic open", "grant READ"),
        _Case("read", bob, TopicDenied, "permission denied: READ on the topic", "listed[0]", "grant READ", "listed"),
    ]


def _mapping(stack: Stack, name: str, kafka: dict[str, Any], topic: str = "open") -> dict[str, Any]:
    name = f"{stack.name[-20:]}_{name}"
    make_table(stack.metastore, TableName("default", name))
    return {"name": name, "topics": [topic], "table": f"default.{name}", "group": "lag", "kafka": kafka}


def _checked(options: MappingOptions) -> Finding:
    """Return the finding of the check, repeated while a busy machine needs longer than `_SHORT` for a connection."""

    def answered() -> Finding | None:
        finding = next(check_topics(options))
        return None if "Failed while waiting" in str(finding.error) else finding

    found: Finding = eventually(f"an answer of the broker for {options.name}", answered)
    return found


def _told(daemon: Daemon, mapping: dict[str, Any], event: str) -> list[Event]:
    return [one for one in daemon.events(event) if one["mapping"] == mapping["name"]]


def test_rejected_connections_then_each_is_named_by_the_check_and_by_the_daemon_and_others_continue(
    stack: Stack, kafka: SecuredKafka
) -> None:
    cases = _cases(kafka)
    mappings = [_mapping(stack, case.name, case.settings | _SHORT, case.topic) for case in cases]
    good = [
        _mapping(stack, "scram", kafka.login("ann", PASSWORD)),
        _mapping(stack, "mtls", kafka.certificate("client")),
    ]
    config = stack.config(*mappings, *good)
    options = load([config]).mappings
    with ThreadPoolExecutor(len(options)) as threads:
        findings = list(threads.map(_checked, options))
    for case, found in zip(cases, findings, strict=False):
        error = found.error
        assert error is not None, case.name
        assert type(error) is case.error, (case.name, error)
        assert case.what in error.what, (case.name, error)
        assert case.where in error.where, (case.name, error)
        assert case.hint in error.hint, (case.name, error)
    assert [found.error for found in findings[len(cases) :]] == [None, None]
    with pytest.raises(BrokerUnavailable, match="invalid credentials"):  # as a task of a stage, which is retried
        list(read(cases[0].settings | _SHORT, [OffsetRange("open", 0, 0, 1)]))
    daemon = stack.start(config)
    for mapping in good:
        eventually("the record", lambda mapping=mapping: _told(daemon, mapping, "committed"))  # type: ignore[misc]
    for case, mapping in zip(cases, mappings, strict=True):
        event = "waiting" if case.error.is_retriable else "failed"
        # Other problems may precede it, such as an answer that came too late.
        eventually(
            f"{case.name} to be named",
            lambda case=case, m=mapping, e=event: any(case.is_named(one) for one in _told(daemon, m, e)),  # type: ignore[misc]
        )
    monitor = daemon.supervisor.monitors[mappings[0]["name"]]
    eventually("the state of the first", lambda: monitor.snapshot().state == "failed")
    daemon.terminate()
    daemon.wait()
    assert "canary" not in daemon.text() + "".join(str(found) for found in findings)
    assert "Traceback" not in daemon.text()


def test_password_when_it_is_wrong_then_the_exit_code_of_daemon_and_check_is_77(
    stack: Stack, kafka: SecuredKafka
) -> None:
    config = stack.config(_mapping(stack, "only", kafka.login("ann", "canary-wrong", **_SHORT)))
    stack.drain(config, expect=77)
    command = [sys.executable, "-m", "ingestd", "check", "--config", str(config), "--online"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert checked.returncode == 77, checked.stdout + checked.stderr
    assert "invalid credentials" in checked.stdout
    assert "canary" not in checked.stdout + checked.stderr


def test_password_when_it_is_changed_while_the_mapping_runs_then_waits_and_later_stops(
    stack: Stack, kafka: SecuredKafka
) -> None:
    kafka.set_password("eve", PASSWORD)
    kafka.allow("eve", "TOPIC", "eve", "READ")
    kafka.create("eve")
    # Long enough for a busy machine to set the password again before the mapping gives up.
    login = kafka.login("eve", PASSWORD, **{"socket.timeout.ms": 8000, "bootstrap.servers": kafka.brief})
    mapping = _mapping(stack, "eve", login, "eve")
    daemon = stack.start(stack.config(mapping))
    _send(kafka, "eve", 1)
    wait_for_rows(daemon, mapping["name"], 1)
    kafka.remove_user("eve")
    told = eventually(
        "the rejected login to be named",
        lambda: next((event for event in daemon.events("waiting") if "invalid credentials" in event["error"]), None),
    )
    assert told["reason"] == "BrokerUnavailable"
    assert "gives up if it is rejected for 32 s" in told["error"]
    kafka.set_password("eve", PASSWORD)
    _send(kafka, "eve", 2)
    wait_for_rows(daemon, mapping["name"], 2)
    kafka.remove_user("eve")
    assert daemon.wait() == 77
    [failed] = daemon.events("failed")
    assert failed["reason"] == "LoginFailed"
    name = TableName.parse(mapping["table"])
    assert visible_ids(stack.metastore, name) == [1, 2]


def test_permission_when_it_is_revoked_while_the_mapping_runs_then_it_is_named_and_the_mapping_stops(
    stack: Stack, kafka: SecuredKafka
) -> None:
    mappings = {}
    for operation in ("READ", "DESCRIBE"):
        user = topic = f"until-{operation.lower()}"
        kafka.set_password(user, PASSWORD)
        kafka.allow(user, "TOPIC", topic, "READ")
        kafka.create(topic)
        mapping = _mapping(stack, operation.lower(), kafka.login(user, PASSWORD, **_SHORT), topic)
        mappings[operation] = mapping | {"refusals": {"retries": 2, "period": "300ms"}}
    daemon = stack.start(stack.config(*mappings.values()))
    for operation, mapping in mappings.items():
        [topic] = mapping["topics"]
        _send(kafka, topic, 1)
        wait_for_rows(daemon, mapping["name"], 1)
        kafka.deny(topic, "TOPIC", topic, operation)
        _send(kafka, topic, 2)
    assert daemon.wait() == 77
    for operation, mapping in mappings.items():
        [failed] = _told(daemon, mapping, "failed")
        assert failed["reason"] == "TopicDenied"
        assert f"permission denied: {operation} on the topic" in failed["error"]
        assert "TopicDenied" in {event["reason"] for event in _told(daemon, mapping, "waiting")}
        assert visible_ids(stack.metastore, TableName.parse(mapping["table"])) == [1]


def test_group_when_the_permission_is_missing_then_it_is_named_and_the_mapping_works(
    stack: Stack, kafka: SecuredKafka
) -> None:
    mapping = _mapping(stack, "other", kafka.login("ann", PASSWORD)) | {"group": "other"}
    config = stack.config(mapping)
    [finding] = check_group(load([config]).mappings[0])
    assert finding.is_warning
    assert finding.error is not None
    assert finding.error.what == "permission denied: DESCRIBE on the consumer group"
    kafka.allow("ann", "GROUP", "other", "DESCRIBE")
    [finding] = check_group(load([config]).mappings[0])
    assert finding.error is not None
    assert finding.error.what == "permission denied: READ on the consumer group"
    daemon = stack.drain(config)
    denied = "permission denied: READ on the consumer group"
    assert any(denied in event["error"] for event in daemon.events("mirror_failed"))
    assert visible_ids(stack.metastore, TableName.parse(mapping["table"])) == [1]


def test_group_when_commits_are_denied_then_each_says_so_until_they_are_allowed(kafka: SecuredKafka) -> None:
    mirror = OffsetMirror(kafka.login("ann", PASSWORD), "late")
    topic = TopicPartition("open", 0)

    def is_stored() -> bool:
        try:
            mirror.commit({topic: 3})
            return mirror.committed([topic]) == {topic: 3}
        except TopicDenied:
            return False

    with closing(mirror):
        for offset in (1, 2):
            with pytest.raises(TopicDenied, match="READ on the consumer group"):
                mirror.commit({topic: offset})
        kafka.allow("ann", "GROUP", "late", "READ")
        eventually("the offset in the group", is_stored)


def test_permissions_when_given_for_prefixes_of_topics_and_groups_then_nothing_else_is_needed(
    stack: Stack, kafka: SecuredKafka
) -> None:
    prefix, user = "own-", "owner-of-a-prefix"
    kafka.set_password(user, PASSWORD)
    kafka.allow(user, "TOPIC", f"{prefix}*", "READ", "WRITE")
    kafka.allow(user, "GROUP", f"{prefix}*", "READ")
    for topic in (f"{prefix}in", f"{prefix}dead"):
        kafka.create(topic)
    mapping = _mapping(stack, "prefix", kafka.login(user, PASSWORD), f"{prefix}in")
    mapping |= {"group": f"{prefix}lag", "on_error": "dead_letter", "dead_letter": {"topic": f"{prefix}dead"}}
    config = stack.config(mapping)
    _send(kafka, f"{prefix}in", 1)
    _send(kafka, f"{prefix}in", "no number")
    [options] = load([config]).mappings
    assert [finding.error for finding in (*check_topics(options), *check_group(options))] == [None] * 3
    daemon = stack.drain(config)
    told = [event["error"] for event in (*daemon.events("mirror_failed"), *daemon.events("waiting"))]
    assert not [error for error in told if "denied" in error.lower() or "authorization" in error.lower()]
    [letters] = daemon.events("dead_letters")
    assert letters["rejects"] == 1
    assert visible_ids(stack.metastore, TableName.parse(mapping["table"])) == [1]


def _send(kafka: SecuredKafka, topic: str, number: int | str) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 2})
    producer.produce(topic, json.dumps({"id": number}))
    assert producer.flush(LIMIT) == 0
