"""Settings of Kafka clients: validation, fixed values, and the translation of librdkafka's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from ingestd.errors import (
    BrokerDeclined,
    BrokerUnavailable,
    ConfigError,
    IngestdError,
    LoginFailed,
    RangeLost,
    TopicDenied,
)
from ingestd.hive.tables import TableName
from ingestd.ingest.options import MappingOptions
from ingestd.kafka.settings import (
    REFUSED,
    client_faults,
    client_key,
    create_client,
    is_missing,
    reader_settings,
    setting_faults,
    shared_settings,
    time_limit,
    translate_error,
)

SERVERS = {"bootstrap.servers": "localhost:9092"}
CANARY = "hunter2hunter2"
Check = Callable[[Mapping[str, object], Callable[[str], str]], Iterator[ConfigError]]


def _faults(settings: Mapping[str, object], check: Check = setting_faults) -> list[ConfigError]:
    return list(check(settings, lambda _key: "kafka"))


def test_settings_when_they_are_valid_then_reports_no_fault() -> None:
    settings = SERVERS | {"client.id": "me", "fetch.wait.max.ms": 10, "socket.keepalive.enable": True}
    assert not _faults(settings)
    assert not _faults(settings, client_faults)


@pytest.mark.parametrize("settings", [{}, {"bootstrap.servers": ""}])
def test_settings_when_no_broker_is_listed_then_reports_a_fault(settings: dict[str, object]) -> None:
    assert "bootstrap.servers is missing" in _faults(settings)[0].what


@pytest.mark.parametrize(
    "servers",
    [
        "a",
        "a:1",
        "a:65535, b:9092 ,",
        "SSL://a.example.com:9093",
        "[::1]:9092",
        "[fe80::1%eth0]",
        "::1",
        "ssl://[::1]:1",
    ],
)
def test_settings_when_addresses_of_brokers_are_valid_then_reports_no_fault(servers: str) -> None:
    assert not _faults({"bootstrap.servers": servers})


@pytest.mark.parametrize(
    "servers", ["a:0", "a:65536", "a:99999", "a:port", "a:1,b:", "[::1]:99999", "a b:9092", "a:9092;b"]
)
def test_settings_when_an_address_of_a_broker_is_invalid_then_reports_a_fault(servers: str) -> None:
    (fault,) = _faults({"bootstrap.servers": servers})
    assert fault.where == "kafka.bootstrap.servers"
    assert "a port up to 65535" in fault.what


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_settings_when_they_would_break_exactly_once_or_have_no_effect_then_fault_contains_the_reason(key: str) -> None:
    (fault,) = _faults(SERVERS | {key: "x"})
    assert fault.where == f"kafka.{key}"
    assert REFUSED[key] in fault.what


def test_settings_when_librdkafka_rejects_several_then_reports_one_fault_for_each() -> None:
    faults = _faults(SERVERS | {"sasl.foo": 1, "fetch.wait.max.ms": "long", "socket.timeout.ms": 5, "error_cb": "x"})
    assert {fault.where: fault.what for fault in faults} == {
        "kafka.sasl.foo": "librdkafka has no such property",
        "kafka.fetch.wait.max.ms": "librdkafka does not accept this value",
        "kafka.socket.timeout.ms": "librdkafka does not accept this value: outside allowed range 10..300000",
        "kafka.error_cb": "librdkafka does not accept this value",
    }


@pytest.mark.parametrize(
    ("settings", "where", "what"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "CRAM"}, "kafka", "Unsupported SASL mechanism"),
        ({"security.protocol": "SSL", "ssl.key.location": "/no"}, "kafka.ssl.key.location", "ssl.key.location failed"),
        ({"fetch.max.bytes": 5}, "kafka.fetch.max.bytes", "`fetch.max.bytes` must be >= `message.max.bytes`"),
    ],
)
def test_settings_when_only_a_client_finds_the_fault_then_validation_accepts_them(
    settings: dict[str, object], where: str, what: str
) -> None:
    assert not _faults(SERVERS | settings)
    (fault,) = _faults(SERVERS | settings, client_faults)
    assert fault.where == where
    assert fault.what.startswith(what)
    with pytest.raises(ConfigError) as caught:
        create_client(Consumer, reader_settings(SERVERS | settings))
    assert (caught.value.where, caught.value.what) == (fault.where, fault.what)


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
def test_settings_when_librdkafka_rejects_one_then_no_fault_contains_its_value(setting: dict[str, object]) -> None:
    faults = _faults(SERVERS | setting) or _faults(SERVERS | setting, client_faults)
    assert faults
    faults += _faults(SERVERS | setting, client_faults)
    assert CANARY not in "".join(f"{fault} {fault!r}" for fault in faults).lower()


@pytest.mark.parametrize("key", ["metadata.broker.list", "go.auto.commit"])
def test_reader_settings_when_the_user_sets_fixed_properties_then_overrides_them(key: str) -> None:
    settings = reader_settings(SERVERS | dict.fromkeys(REFUSED, "x") | {key: "x"})
    assert settings["isolation.level"] == "read_committed"
    assert settings["enable.auto.commit"] is False
    assert settings["auto.offset.reset"] == "error"
    assert settings["allow.auto.create.topics"] is False


def test_reader_settings_when_mappings_have_other_groups_then_each_uses_its_own_and_clients_are_shared() -> None:
    mappings = [MappingOptions(name, ("t",), TableName("d", "t"), kafka=SERVERS) for name in ("clicks", "orders")]
    assert [reader_settings(mapping.reader)["group.id"] for mapping in mappings] == ["ingestd-clicks", "ingestd-orders"]
    assert len({client_key(mapping.reader) for mapping in mappings}) == 1


def test_reader_settings_when_answers_are_limited_then_a_fetch_is_not_larger() -> None:
    limited = reader_settings(SERVERS | {"receive.message.max.bytes": 2_000_000})
    assert limited["fetch.max.bytes"] == 1_999_488
    assert not _faults(SERVERS | {"receive.message.max.bytes": 2_000_000}, client_faults)


def test_reader_settings_when_the_user_tunes_the_fetch_then_uses_the_value() -> None:
    assert reader_settings(SERVERS | {"fetch.wait.max.ms": 7})["fetch.wait.max.ms"] == 7


@pytest.mark.parametrize(("value", "seconds"), [(3000, 3.0), ("500", 0.5), (60000, 15.0)])
def test_time_limit_when_the_socket_timeout_is_lower_then_uses_it(value: object, seconds: float) -> None:
    assert time_limit(SERVERS, 15.0) == 15.0
    assert time_limit(SERVERS | {"socket.timeout.ms": value}, 15.0) == seconds


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, BrokerUnavailable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TopicDenied),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, TopicDenied),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, TopicDenied),
        (KafkaError.UNSUPPORTED_VERSION, BrokerDeclined),
        (KafkaError.NOT_LEADER_FOR_PARTITION, BrokerUnavailable),
        (KafkaError._AUTHENTICATION, LoginFailed),
        (KafkaError.SASL_AUTHENTICATION_FAILED, LoginFailed),
        (KafkaError.OFFSET_OUT_OF_RANGE, RangeLost),
        (KafkaError._AUTO_OFFSET_RESET, RangeLost),
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnavailable),
        (KafkaError._TIMED_OUT, BrokerUnavailable),
    ],
)
def test_translate_error_when_given_a_code_then_returns_the_error_of_that_code(
    code: int, kind: type[IngestdError]
) -> None:
    for error in (KafkaError(code), KafkaException(KafkaError(code))):
        translated = translate_error(error, "topic orders")
        assert type(translated) is kind
        assert translated.where == "topic orders"


def test_is_missing_when_the_broker_does_not_know_the_topic_then_returns_true() -> None:
    assert is_missing(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    assert not is_missing(KafkaError(KafkaError._TIMED_OUT))


def test_shared_settings_when_properties_of_tls_and_consumers_are_set_then_only_those_of_all_clients_remain() -> None:
    connection = {"ssl.ca.location": "/ca", "enable.ssl.certificate.verification": False, "reconnect.backoff.ms": 50}

    assert shared_settings(SERVERS | connection | {"fetch.min.bytes": 1}) == SERVERS | connection
