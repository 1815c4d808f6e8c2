"""Clients' settings: what is refused, what is ours, and how librdkafka's errors are told."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from ingestd.errors import BrokerUnavailable, ConfigError, IngestdError, InvalidTopic, LoginFailed, OffsetsLost
from ingestd.kafka.client import REFUSED, check_settings, is_missing, reader_settings, translated

SERVERS = {"bootstrap.servers": "localhost:9092"}


def test_settings_when_harmless_then_are_taken() -> None:
    check_settings(SERVERS | {"client.id": "me", "fetch.wait.max.ms": 10}, "kafka")


@pytest.mark.parametrize("settings", [{}, {"bootstrap.servers": ""}])
def test_settings_when_no_broker_is_named_then_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        check_settings(settings, "kafka")


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_settings_when_they_would_break_exactly_once_then_are_refused_with_the_reason(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings(SERVERS | {key: "x"}, "kafka")
    assert caught.value.where == f"kafka.{key}"
    assert REFUSED[key] in caught.value.what


@pytest.mark.parametrize("key", ["metadata.broker.list", "go.auto.commit", "group.instance.id"])
def test_reader_settings_then_our_own_always_win(key: str) -> None:
    settings = reader_settings(SERVERS | dict.fromkeys(REFUSED, "x") | {key: "x"})
    assert settings["isolation.level"] == "read_committed"
    assert settings["enable.auto.commit"] is False
    assert settings["auto.offset.reset"] == "error"


def test_reader_settings_when_the_user_tunes_then_the_user_wins() -> None:
    assert reader_settings(SERVERS | {"fetch.wait.max.ms": 7})["fetch.wait.max.ms"] == 7


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, BrokerUnavailable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, InvalidTopic),
        (KafkaError._AUTHENTICATION, LoginFailed),
        (KafkaError.SASL_AUTHENTICATION_FAILED, LoginFailed),
        (KafkaError.OFFSET_OUT_OF_RANGE, OffsetsLost),
        (KafkaError._AUTO_OFFSET_RESET, OffsetsLost),
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


@pytest.mark.parametrize("setting", [{"sasl.foo": 1}, {"fetch.wait.max.ms": "long"}])
def test_settings_when_librdkafka_refuses_them_then_is_a_config_error(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))) as caught:
        check_settings(SERVERS | setting, "kafka")
    assert caught.value.where == "kafka"
