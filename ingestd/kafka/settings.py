"""Clients' settings and the translation of librdkafka's errors.

Invariant: settings by which a user could break exactly-once are refused, not overridden in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException

from ingestd.errors import (
    BrokerUnavailable,
    ConfigError,
    IngestdError,
    InvalidTopic,
    LoginFailed,
    RangeLost,
    masked,
)

C = TypeVar("C")
# Key -> why it may not be set: ingestd itself decides where to read and what to commit.
REFUSED = {
    "enable.auto.commit": "offsets are committed in Hive first",
    "enable.auto.offset.store": "offsets are committed in Hive first",
    "auto.offset.reset": "use `start` and `on_offset_loss` of the mapping",
    "isolation.level": "records of aborted transactions must not be read",
    "group.id": "the group is named after the mapping: use `group` of the mapping",
    "enable.partition.eof": "the end of a range is found by it",
    "default.topic.config": "its keys are written directly under `kafka`",
    "allow.auto.create.topics": "ingestd never creates a topic",
}
# librdkafka repeats its failed dials twenty times a second; what matters of them comes as an error and is told once.
QUIET = {"log_level": 2}
# Measured: with these a task over-reads 5-25 % instead of several times its ranges.
_READER = {
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 65_536,
    "max.partition.fetch.bytes": 1_048_576,
    "fetch.max.bytes": 16_777_216,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
}
_OURS = {*_READER, *QUIET, *REFUSED, "bootstrap.servers"}  # values that are no secrets
_REFUSALS = (KafkaException, TypeError, ValueError, AttributeError)
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_FORBIDDEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
_LOST = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}


def setting_faults(settings: Mapping[str, object], section: Callable[[str], str]) -> Iterator[ConfigError]:
    """A missing broker list, settings that would break exactly-once, and what librdkafka does not take.

    `section(key)` names the section of the configuration that holds `key`. No value is repeated.
    """
    servers = "bootstrap.servers"
    if not settings.get(servers):
        yield ConfigError(
            f"{servers} is missing", where=section(servers), hint='kafka: {bootstrap.servers: "host:9092"}'
        )
    for key in REFUSED.keys() & settings.keys():
        yield ConfigError(f"{key} may not be set: {REFUSED[key]}", where=f"{section(key)}.{key}", hint="remove it")
    # Without an address the client checks its settings and connects to nothing.
    known = (servers, "default.topic.config")
    left = {key: value for key, value in reader_settings(settings).items() if key not in known}
    while True:
        try:
            Consumer(left).close()
            return
        except _REFUSALS as error:
            named, fault = _refusal(error, left, section)
        yield fault
        if named is None:
            return
        del left[named]


def reader_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings of a consumer that reads ranges; the user's own win over ours where they are a matter of speed."""
    return {
        **_READER,
        **QUIET,
        **settings,
        "group.id": "ingestd-reader",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
    }


def made(client: Callable[[Mapping[str, object]], C], settings: Mapping[str, object]) -> C:
    """A client of these settings. Raises ConfigError for a key or value that librdkafka does not take."""
    try:
        return client(dict(settings))
    except _REFUSALS as error:
        fault = _refusal(error, settings, lambda _key: "kafka")[1]
    raise fault


def _refusal(
    error: Exception, settings: Mapping[str, object], section: Callable[[str], str]
) -> tuple[str | None, ConfigError]:
    """The key that librdkafka refuses, if it names one, and a sentence without any value."""
    cause = error.args[0] if error.args else error
    text = " ".join((cause.str() if isinstance(cause, KafkaError) else str(cause)).split())
    quoted = re.search(r'"([^"]+)"(?: value \S+ is (outside allowed range \S+))?[^"]*$', text)
    if quoted and quoted[1] in settings:
        key: str | None = quoted[1]
        what = "librdkafka does not take this value" + (f": {quoted[2]}" if quoted[2] else "")
        if text.startswith("No such configuration property"):
            what = "librdkafka has no such key"
    else:
        users = {name: value for name, value in settings.items() if name not in _OURS}
        key = max((name for name in users if name in text), key=len, default=None)
        what = masked(text, users.values()).removeprefix("Failed to create consumer: ")
    where = f"{section(key)}.{key}" if key else section("")
    return key, ConfigError(what, where=where, hint="see librdkafka's CONFIGURATION.md")


def is_missing(error: KafkaException | KafkaError) -> bool:
    """True when the broker says that it has no such topic or partition; one that restarts may say so for a while."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    return cause.code() in _MISSING


def translated(error: KafkaException | KafkaError, where: str) -> IngestdError:
    """The error in our words: InvalidTopic (no right), RangeLost, LoginFailed, else BrokerUnavailable."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    code, text = cause.code(), cause.str()
    if code in _FORBIDDEN:
        return InvalidTopic(f"reading is not allowed: {text}", where=where, hint="grant READ and DESCRIBE")
    if code in _LOGIN:
        return LoginFailed(text, where=where, hint="see the sasl.* keys of `kafka`")
    if code in _LOST:
        return RangeLost(f"Kafka does not have the offset any more: {text}", where=where)
    if code == KafkaError._TIMED_OUT:
        text = f"no answer in time ({text})"
    return BrokerUnavailable(text, where=where, hint="is the broker running, and is bootstrap.servers right?")
