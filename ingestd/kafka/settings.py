"""Settings of Kafka clients, their validation, and the translation of librdkafka's errors.

Invariant: a setting that would break exactly-once is rejected; it is never overridden silently.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, cimpl

from ingestd.errors import (
    BrokerDeclined,
    BrokerUnavailable,
    ConfigError,
    IngestdError,
    LoginFailed,
    RangeLost,
    TopicDenied,
    masked,
)
from ingestd.keys import PORT

C = TypeVar("C")
# The properties of a client, sorted. Clients with equal keys can be shared.
ClientKey = tuple[tuple[str, str], ...]
_NO_MEMBER = "ingestd reads offset ranges and never joins a consumer group"
_OWN_PRODUCER = "it belongs to producers, and ingestd writes dead letters with properties of its own"
# Properties that only ingestd may set, or that would have no effect, and the reason.
REFUSED = {
    "enable.auto.commit": "ingestd commits offsets to Kafka only after Hive has committed",
    "enable.auto.offset.store": "ingestd commits offsets to Kafka only after Hive has committed",
    "auto.offset.reset": "use `start` and `on_offset_loss` of the mapping",
    "isolation.level": "records of aborted Kafka transactions must not be read",
    "group.id": "use `group` of the mapping",
    "enable.partition.eof": "ingestd needs it to detect the end of an offset range",
    "default.topic.config": "write its properties directly under `kafka`",
    "allow.auto.create.topics": "ingestd never creates topics",
    **dict.fromkeys(
        (
            *("auto.commit.interval.ms", "group.instance.id", "group.protocol", "group.protocol.type"),
            *("group.remote.assignor", "heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms"),
            *("coordinator.query.interval.ms", "partition.assignment.strategy"),
        ),
        _NO_MEMBER,
    ),
    **dict.fromkeys(
        (
            *("acks", "request.required.acks", "retries", "message.send.max.retries", "enable.idempotence"),
            *("enable.gapless.guarantee", "transactional.id", "transaction.timeout.ms", "partitioner"),
            *("linger.ms", "queue.buffering.max.ms", "queue.buffering.max.messages", "queue.buffering.max.kbytes"),
            *("queue.buffering.backpressure.threshold", "queuing.strategy", "sticky.partitioning.linger.ms"),
            *("batch.size", "batch.num.messages", "compression.type", "compression.codec", "compression.level"),
            *("message.timeout.ms", "delivery.timeout.ms", "request.timeout.ms"),
            *("delivery.report.only.error", "produce.offset.report"),
        ),
        _OWN_PRODUCER,
    ),
}
# librdkafka logs each failed reconnect, up to twenty a second. The errors that matter are raised or reported anyway.
QUIET = {"log_level": 2}
# With these values a task fetches 5 to 25 % more than its ranges, instead of several times their size (measured).
_READER = {
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 65_536,
    "max.partition.fetch.bytes": 1_048_576,
    "fetch.max.bytes": 16_777_216,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
    # Otherwise a bit that has changed on a disk would change a value silently.
    "check.crcs": True,
}
_LARGEST_ANSWER, _ANSWER_OVERHEAD = "receive.message.max.bytes", 512
_SERVERS = "bootstrap.servers"
# librdkafka accepts a listener's protocol before a host, and an IPv6 address without brackets if no port follows.
_ADDRESS = re.compile(
    rf"\s*(?:\w+://)?(?:(?:\[[^\s\[\]]+\]|[^\s:\[\]]*)(?::{PORT})?|(?:[\da-fA-F.]*:){{2,}}[\da-fA-F.]*)\s*"
)
# librdkafka requires and looks up a group. This one is for readers without a mapping; no permission on it is needed.
_NO_GROUP = "ingestd"
# Properties that every kind of client accepts; librdkafka warns about those of other kinds.
_SHARED = (
    _SERVERS,
    *("client.", "broker.", "security.", "sasl.", "ssl.", "socket.", "enable.ssl.", "enable.sasl.", "reconnect."),
)
_OURS = {*_READER, *QUIET, *REFUSED, _SERVERS}  # their values are not secrets
_REFUSALS = (KafkaException, TypeError, ValueError, AttributeError)
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
# Denied permissions, and the resource of each.
_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
# Answers that a repetition probably does not change. All others that are not listed here are regarded as temporary.
_DECLINED = {
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.INVALID_REQUEST,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
    KafkaError.SECURITY_DISABLED,
}
_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
_LOST = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}
_BROKER_HINT = "check that the broker is running and that bootstrap.servers is correct"
_HINT = "see librdkafka's CONFIGURATION.md for the names and values of its properties"


def setting_faults(settings: Mapping[str, object], section: Callable[[str], str]) -> Iterator[ConfigError]:
    """Yield the faults of a `kafka` section that can be found without a client.

    These are a missing broker list, properties that would break exactly-once, and properties whose name or value
    librdkafka rejects. `section(key)` returns the path of the section that contains `key`. No message contains a value.
    `client_faults` finds the remaining faults.
    """
    if not settings.get(_SERVERS):
        yield ConfigError(
            f"{_SERVERS} is missing", where=section(_SERVERS), hint='write kafka: {bootstrap.servers: "host:9092"}'
        )
    elif not all(map(_ADDRESS.fullmatch, str(settings[_SERVERS]).split(","))):
        yield ConfigError(
            "must be host:port, with a port up to 65535, or several of them, separated by commas",
            where=f"{section(_SERVERS)}.{_SERVERS}",
            hint="write for example broker-1:9092,broker-2:9092",
        )
    for key in sorted(REFUSED.keys() & settings.keys()):
        yield ConfigError(f"{key} cannot be set: {REFUSED[key]}", where=f"{section(key)}.{key}", hint="remove it")
    for key in settings.keys() - REFUSED.keys() - {_SERVERS}:
        if text := _rejected(key, str(settings[key])):
            what = _explained(text) or masked(text, [settings[key]])
            yield ConfigError(what, where=f"{section(key)}.{key}", hint=_HINT)


def client_faults(settings: Mapping[str, object], section: Callable[[str], str]) -> Iterator[ConfigError]:
    """Yield the fault that librdkafka finds when it creates a client, if any.

    Examples are properties that contradict each other, certificates that cannot be read, and unknown SASL mechanisms.
    Creates a consumer without brokers, which does not connect, and closes it. Call this function only after
    `setting_faults` has found no fault. `section` has the same meaning as in `setting_faults`.
    """
    try:
        Consumer({key: value for key, value in reader_settings(settings).items() if key != _SERVERS}).close()
    except _REFUSALS as error:
        fault = _client_fault(error, settings, section)
    else:
        return
    yield fault


@cache
def _librdkafka() -> ctypes.CDLL | None:
    """Return the librdkafka that confluent_kafka has loaded; None if its functions cannot be called from here."""
    library = ctypes.CDLL(cimpl.__file__)  # symbols are also looked up in the libraries on which this one depends
    try:
        library.rd_kafka_conf_new.restype = ctypes.c_void_p
        library.rd_kafka_conf_destroy.argtypes = [ctypes.c_void_p]
        library.rd_kafka_conf_set.argtypes = [ctypes.c_void_p, *[ctypes.c_char_p] * 3, ctypes.c_size_t]
    except AttributeError:
        return None
    return library


def _rejected(key: str, value: str) -> str:
    """Return librdkafka's reason for rejecting a property; '' if librdkafka accepts the property."""
    library = _librdkafka()
    if library is None:
        return ""  # then only `client_faults` reports it
    reason = ctypes.create_string_buffer(512)
    properties = library.rd_kafka_conf_new()
    try:
        texts = [text.encode(errors="replace") for text in (key, value)]
        result = library.rd_kafka_conf_set(properties, *texts, reason, len(reason))
    finally:
        library.rd_kafka_conf_destroy(properties)
    return " ".join(reason.value.decode(errors="replace").split()) if result else ""


def _explained(text: str) -> str:
    """Rephrase librdkafka's reason for rejecting a property, omitting the value; return '' if no property is named."""
    quoted = re.search(r'"([^"]+)"(?: value \S+ is (outside allowed range \S+))?[^"]*$', text)
    if not quoted:
        return ""
    if text.startswith("No such configuration property"):
        return "librdkafka has no such property"
    return "librdkafka does not accept this value" + (f": {quoted[2]}" if quoted[2] else "")


def time_limit(settings: Mapping[str, object], seconds: float) -> float:
    """Return the limit of a wait for the broker: `seconds`, or `socket.timeout.ms` if the user has set a lower one."""
    return min(seconds, float(str(settings.get("socket.timeout.ms", "inf"))) / 1000)


def reader_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a consumer of offset ranges. The user can override only those that affect the speed.

    The consumer never joins the group, which `settings` may contain.
    """
    limits = dict(_READER)
    if _LARGEST_ANSWER in settings:
        # librdkafka rejects a limit that an answer might exceed. Only a single batch of records may be larger.
        room = int(str(settings[_LARGEST_ANSWER])) - _ANSWER_OVERHEAD
        limits["fetch.max.bytes"] = max(1, min(_READER["fetch.max.bytes"], room))
    return {
        **limits,
        **QUIET,
        **settings,
        "group.id": settings.get("group.id", _NO_GROUP),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
    }


def shared_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the properties that every kind of client accepts."""
    return {key: value for key, value in settings.items() if key.startswith(_SHARED)}


def client_key(settings: Mapping[str, object]) -> ClientKey:
    """Return a key that is equal for equal properties of a client. Readers of different groups share one."""
    return tuple(sorted((key, str(value)) for key, value in settings.items() if key != "group.id"))


def create_client(client: Callable[[Mapping[str, object]], C], settings: Mapping[str, object]) -> C:
    """Create a consumer, producer or admin client. Raises ConfigError when librdkafka rejects a property."""
    try:
        return client(dict(settings))
    except _REFUSALS as error:
        fault = _client_fault(error, settings, lambda _key: "kafka")
    raise fault


def _client_fault(error: Exception, settings: Mapping[str, object], section: Callable[[str], str]) -> ConfigError:
    """Convert the error of a client that could not be created to a ConfigError whose message contains no value."""
    cause = error.args[0] if error.args else error
    text = " ".join((cause.str() if isinstance(cause, KafkaError) else str(cause)).split())
    text = text.removeprefix("Failed to create consumer: ")
    key = max((name for name in settings if name in text), key=len, default="")
    secrets = secret_values(settings)
    # The key is never masked, even if a value is a part of it, as `ssl` is of `ssl.ca.location`.
    what = key.join(masked(part, secrets) for part in text.split(key)) if key else masked(text, secrets)
    if f'"{key}"' in text:
        what = _explained(text) or what
    return ConfigError(what, where=f"{section(key)}.{key}" if key else section(""), hint=_HINT)


def secret_values(settings: Mapping[str, object]) -> list[object]:
    """Return the values that messages must not contain: those of all properties that a user may set, except brokers."""
    return [value for name, value in settings.items() if name not in _OURS]


def is_missing(error: KafkaException | KafkaError) -> bool:
    """Return whether the broker reports that the topic or partition does not exist.

    A broker may briefly report this while it restarts.
    """
    return _cause(error).code() in _MISSING


def is_group_denied(error: KafkaException | KafkaError) -> bool:
    """Return whether a broker denied a permission on the consumer group."""
    return bool(_cause(error).code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def is_login_error(error: KafkaException | KafkaError) -> bool:
    """Return whether a broker rejected the login by SASL."""
    return _cause(error).code() in _LOGIN


def translate_error(error: KafkaException | KafkaError, where: str, operation: str = "") -> IngestdError:
    """Translate an error of librdkafka. `operation` is the permission that the request needs, such as `READ`.

    The result is TopicDenied, RangeLost, LoginFailed, BrokerDeclined, or BrokerUnavailable for other errors.
    """
    cause = _cause(error)
    code, text = cause.code(), cause.str()
    if code in _FORBIDDEN:
        hint = "grant READ and DESCRIBE on the topic, and READ on the consumer group"
        denied = f"{operation} on the {_FORBIDDEN[code]}" if operation else text
        return TopicDenied(f"permission denied: {denied}", where=where, hint=hint)
    if code in _DECLINED:
        hint = "compare the version and the configuration of the brokers with what the answer says"
        return BrokerDeclined(f"Kafka declines the request: {text}", where=where, hint=hint)
    if code in _LOGIN:
        return LoginFailed(text, where=where, hint="check the sasl.* and ssl.* properties of `kafka`")
    if code in _LOST:
        return RangeLost(f"Kafka no longer has the offset: {text}", where=where)
    if code == KafkaError._TIMED_OUT:
        text = f"request timed out ({text})"
    return BrokerUnavailable(text, where=where, hint=_BROKER_HINT)


def _cause(error: KafkaException | KafkaError) -> KafkaError:
    cause: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return cause
