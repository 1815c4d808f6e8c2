"""Clients' settings: what is refused, what is ours, and how librdkafka's errors are told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka import KafkaError, KafkaException

from ingestd.errors import BrokerUnavailable, ConfigError, IngestdError, InvalidTopic, LoginFailed, RangeLost
from ingestd.kafka.settings import REFUSED, is_missing, reader_settings, setting_faults, translated

SERVERS = {"bootstrap.servers": "localhost:9092"}
CANARY = "hunter2hunter2"


def _faults(settings: Mapping[str, object]) -> list[ConfigError]:
    return list(setting_faults(settings, lambda _key: "kafka"))


def test_settings_when_harmless_then_are_taken() -> None:
    assert not _faults(SERVERS | {"client.id": "me", "fetch.wait.max.ms": 10})


@pytest.mark.parametrize("settings", [{}, {"bootstrap.servers": ""}])
def test_settings_when_no_broker_is_named_then_are_refused(settings: dict[str, object]) -> None:
    assert "bootstrap.servers is missing" in _faults(settings)[0].what


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_settings_when_they_would_break_exactly_once_then_are_refused_with_the_reason(key: str) -> None:
    (fault,) = _faults(SERVERS | {key: "x"})
    assert fault.where == f"kafka.{key}"
    assert REFUSED[key] in fault.what


@pytest.mark.parametrize("key", ["metadata.broker.list", "go.auto.commit", "group.instance.id"])
def test_reader_settings_then_our_own_always_win(key: str) -> None:
    settings = reader_settings(SERVERS | dict.fromkeys(REFUSED, "x") | {key: "x"})
    assert settings["isolation.level"] == "read_committed"
    assert settings["enable.auto.commit"] is False
    assert settings["auto.offset.reset"] == "error"
    assert settings["allow.auto.create.topics"] is False


def test_reader_settings_when_the_user_tunes_then_the_user_wins() -> None:
    assert reader_settings(SERVERS | {"fetch.wait.max.ms": 7})["fetch.wait.max.ms"] == 7


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, BrokerUnavailable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, InvalidTopic),
        (KafkaError._AUTHENTICATION, LoginFailed),
        (KafkaError.SASL_AUTHENTICATION_FAILED, LoginFailed),
        (KafkaError.OFFSET_OUT_OF_RANGE, RangeLost),
        (KafkaError._AUTO_OFFSET_RESET, RangeLost),
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnavailable),
        (KafkaError._TIMED_OUT, BrokerUnavailable),
    ],
)
def test_translated_then_the_class_says_what_to_do(code: int, kind: type[IngestdError]) -> None:
    for error in (KafkaError(code), KafkaException(KafkaError(code))):
        told = translated(error, "topic orders")
        assert type(told) is kind
        assert told.where == "topic orders"


def test_is_missing_when_the_broker_knows_no_such_topic_then_true() -> None:
    assert is_missing(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    assert not is_missing(KafkaError(KafkaError._TIMED_OUT))


def test_settings_when_librdkafka_refuses_several_then_each_is_named() -> None:
    faults = _faults(SERVERS | {"sasl.foo": 1, "fetch.wait.max.ms": "long", "socket.timeout.ms": 5})
    assert {fault.where: fault.what for fault in faults} == {
        "kafka.sasl.foo": "librdkafka has no such key",
        "kafka.fetch.wait.max.ms": "librdkafka does not take this value",
        "kafka.socket.timeout.ms": "librdkafka does not take this value: outside allowed range 10..300000",
    }


@pytest.mark.parametrize(
    "setting",
    [
        {"security.protocol": CANARY},
        {"fetch.wait.max.ms": CANARY},
        {"debug": CANARY},
        {"error_cb": CANARY},
        {"on_commit": CANARY},
        {"enable.auto.commit": CANARY},
        {"default.topic.config": CANARY},
        {"plugin.library.paths": CANARY},
        {"partition.assignment.strategy": CANARY},
        {"client.dns.lookup": CANARY},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": CANARY},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": CANARY},
        {"security.protocol": "SSL", "ssl.ca.pem": CANARY},
        {"security.protocol": "SSL", "ssl.ca.location": f"/{CANARY}"},
        {"security.protocol": "SSL", "ssl.key.pem": CANARY, "ssl.key.password": CANARY},
        {"security.protocol": "SSL", "ssl.certificate.pem": CANARY},
        {"security.protocol": "SSL", "ssl.keystore.location": "/etc/hostname", "ssl.key.password": CANARY},
        {"security.protocol": "SSL", "ssl.cipher.suites": CANARY},
    ],
    ids=str,
)
def test_settings_when_librdkafka_refuses_one_then_no_value_is_told(setting: dict[str, object]) -> None:
    faults = _faults(SERVERS | setting)
    assert faults
    assert CANARY not in "".join(f"{fault} {fault!r}" for fault in faults).lower()
