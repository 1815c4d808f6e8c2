"""Checks of one mapping in Kafka, the registry and the metastore: topics, group, retention, clock, schemas, and lease.

Invariant: a check of a mapping that has never run creates neither its control table nor its consumer group.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from ingestd.clock import now
from ingestd.doctor.finding import Check, Verdict, fault, ok, skipped, warning
from ingestd.errors import BrokerUnavailable, IngestdError, InvalidTopic, OffsetsLost
from ingestd.formats.options import uses_registry
from ingestd.hive import health, leases
from ingestd.hive.client import Metastore
from ingestd.ingest.inspection.checks import counted, mirrored_group, readable_topic, usable_registry, writable_topic
from ingestd.ingest.inspection.excerpt import ExcerptLimits
from ingestd.ingest.inspection.preview import NothingToPreview, take_sample
from ingestd.ingest.inspection.stored import PartitionOffsets, read_mapping
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.claims import last_heartbeat
from ingestd.kafka.admin import Broker
from ingestd.kafka.hidden import BRIEF_SECONDS, Hidden, find_hidden
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.kafka.timestamps import FirstRecord, RecordTimestamps
from ingestd.publish.warehouse import Warehouse

_ANSWER_SECONDS = 5.0
# Records that are not stored in Hive yet are reported if they are older than this part of the retention time.
_EXPIRING = 0.8
_FUTURE_SECONDS = 60.0
_MOST_HIDDEN = 5
# An owner sends a heartbeat every two seconds, and standbys take over after six.
_STALE_SECONDS = 6.0
# A few records may lack a field by chance. The bytes are limited, because mappings are examined at the same time.
_SAMPLE, _ENOUGH_ROWS, _SHOWN = ExcerptLimits(records=1_000, bytes=16 << 20), 10, 10


@dataclass(frozen=True, slots=True)
class Examined:
    """A mapping and the warehouse of its table."""

    options: MappingOptions
    warehouse: Warehouse

    @property
    def metastore(self) -> Metastore:
        """The metastore, which also stores the state of the mapping."""
        return self.warehouse.metastore

    @property
    def cluster(self) -> tuple[tuple[str, str], ...]:
        """The properties that determine the connections to Kafka."""
        chosen = ("bootstrap.servers", "security.", "sasl.", "ssl.")
        return tuple(sorted((key, str(value)) for key, value in self.options.kafka.items() if key.startswith(chosen)))

    def broker(self) -> Broker:
        """Return a client of the mapping's Kafka cluster, which waits a few seconds for an answer."""
        return Broker(self.options.kafka, timeout_seconds=_ANSWER_SECONDS)


def _cluster(mapping: Examined) -> Iterator[Verdict]:
    broker = mapping.broker()
    with broker.explained():
        cluster, brokers = broker.describe_cluster()
    yield ok(f"cluster {cluster or 'without an id'}, {counted(brokers, 'broker')}")


def _topic(mapping: Examined) -> Iterator[Verdict]:
    for topic in mapping.options.topics:
        yield ok(f"topic {topic}: {readable_topic(mapping.options, topic)}")
    if (letters := mapping.options.dead_letter) is not None and letters.topic:
        yield ok(f"dead letters in topic {letters.topic}: {writable_topic(mapping.options, letters.topic)}")


def _registry(mapping: Examined) -> Iterator[Verdict]:
    if uses_registry(mapping.options.format):
        yield ok(f"the schema registry {usable_registry(mapping.options)}")


def _group(mapping: Examined) -> Iterator[Verdict]:
    """A mapping works without its group, which only mirrors the offsets for lag tools."""
    mapping.broker().partitions(mapping.options.topics)  # a fault of a topic is not one of the group
    try:
        group = mirrored_group(mapping.options)
    except (InvalidTopic, BrokerUnavailable) as error:
        yield warning(f"{error.where}: {error.what}; the mapping works without it", error.hint)
        return
    yield ok(f"consumer group {mapping.options.consumer_group}: {group}")


def _transactions(mapping: Examined) -> Iterator[Verdict]:
    """Records behind an open Kafka transaction are no part of the lag, because no consumer can read them yet."""
    broker = mapping.broker()
    hidden = {
        p: behind
        for p, behind in find_hidden(broker, broker.partitions(mapping.options.topics)).items()
        if behind.count
    }
    if not hidden:
        yield ok("no record is behind an open Kafka transaction")
        return
    begins = {record.partition: record.timestamp for record in _first_hidden(mapping, hidden) if record.exists}
    for partition, behind in sorted(hidden.items(), key=lambda item: begins.get(item[0], 0.0))[:_MOST_HIDDEN]:
        age = now() - begins[partition] if partition in begins else None
        text = (
            f"{partition}: {counted(behind.count, 'offset')} from {behind.first} on, behind an open Kafka transaction"
        )
        text += "" if age is None else f" whose first record is {age:,.0f} s old"
        if age is not None and age < BRIEF_SECONDS:
            yield ok(text)
            continue
        tool = f"kafka-transactions.sh --bootstrap-server {mapping.options.kafka['bootstrap.servers']}"
        place = f"--topic {partition.topic} --partition {partition.partition}"
        yield warning(
            text,
            f"`{tool} describe-producers {place}` prints the id of its producer, with {behind.first} as "
            "CurrentTransactionStartOffset; this client cannot ask for it. The transaction ends after the producer's "
            f"transaction.timeout.ms; to abort it now, run `{tool} abort {place} --start-offset {behind.first}`",
        )
    if len(hidden) > _MOST_HIDDEN:
        yield ok(f"{len(hidden) - _MOST_HIDDEN:,} more partitions have records behind open Kafka transactions")


def _first_hidden(mapping: Examined, hidden: Mapping[TopicPartition, Hidden]) -> list[FirstRecord]:
    """Return the first record of the open transaction of each partition, of those that are read in time."""
    offsets = {partition: behind.first for partition, behind in hidden.items()}
    with closing(RecordTimestamps(mapping.options.reader, "read_uncommitted")) as client:
        return client.read(offsets, seconds=_ANSWER_SECONDS, stop=threading.Event())


def _retention(mapping: Examined) -> Iterator[Verdict]:
    broker, stored = mapping.broker(), read_mapping(mapping.metastore, mapping.options)
    for topic in mapping.options.topics:
        offsets = [offset for offset in stored.offsets if offset.partition.topic == topic]
        position = {offset.partition: _position(mapping.options, offset) for offset in offsets}
        lag = sum(max(0, offset.end - position[offset.partition]) for offset in offsets)
        text = f"topic {topic}: {lag:,} offsets are not stored yet"
        deleted = {offset.partition: offset.earliest - position[offset.partition] for offset in offsets}
        beyond = {offset.partition: position[offset.partition] - offset.end for offset in offsets}
        if stored.is_recreated(topic):
            yield _lost(mapping.options, f"{text}: the committed position is that of an earlier topic of this name")
        elif lost := _positive(deleted):
            yield _lost(mapping.options, f"{text}: Kafka has deleted {_listed(lost)} before they were stored")
        elif lost := _positive(beyond):
            yield _lost(mapping.options, f"{text}: Kafka has lost {_listed(lost)} that were stored already")
        else:
            yield _kept(broker, text, position, topic)


def _kept(broker: Broker, text: str, position: Offsets, topic: str) -> Verdict:
    """Judge the age of the records that are not stored yet. Mappings work without the permission that this needs."""
    try:
        settings = broker.topic_settings(topic)
    except InvalidTopic as error:
        return skipped(f"{text}; their age is not examined: {error.what}; grant DESCRIBE_CONFIGS on the topic")
    return _expiring(broker, text, position, _retention_ms(settings))


_TIME = "retention.ms"


def _expiring(broker: Broker, text: str, position: Offsets, keep_ms: int | None) -> Verdict:
    """Return the verdict on how much of the retention time has passed for records that are not stored yet."""
    if keep_ms is None:
        return ok(f"{text}; the topic has no retention time")
    text = f"{text}; {_TIME} is {_days(keep_ms)}"
    now_ms = int(now() * 1000)
    fix = f"raise {_TIME} of the topic until the mapping has caught up, and find out why it lags"
    expired = _older(broker, position, now_ms - keep_ms)
    if expired:
        return fault(f"{text}: {_listed(expired)} have expired, and Kafka may delete them now", fix, OffsetsLost)
    soon = _older(broker, position, now_ms - int(keep_ms * _EXPIRING))
    if soon:
        left = _days(int(keep_ms * (1 - _EXPIRING)))
        return warning(f"{text}: {_listed(soon)} expire within {left}", fix)
    return ok(text)


def _older(broker: Broker, position: Offsets, time_ms: int) -> dict[TopicPartition, int]:
    """Return how many offsets from `position` have records with an earlier timestamp, for partitions with some."""
    later = broker.at_time(position, max(0, time_ms))
    return {p: later[p] - offset for p, offset in position.items() if later[p] > offset}


def _lost(options: MappingOptions, text: str) -> Verdict:
    if options.on_offset_loss != "stop":
        return warning(text, f"no action is needed: the mapping continues at {options.on_offset_loss} (on_offset_loss)")
    return fault(text, "restore the records, or set on_offset_loss of the mapping to earliest or latest", OffsetsLost)


def _positive(counts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {partition: count for partition, count in counts.items() if count > 0}


def _position(options: MappingOptions, offsets: PartitionOffsets) -> int:
    """Return the committed position, or where the first run starts; the end if only the run itself determines it."""
    if offsets.committed is not None:
        return offsets.committed
    return offsets.earliest if options.start.at == "earliest" else offsets.end


def _retention_ms(settings: Mapping[str, str]) -> int | None:
    """Return the retention time in milliseconds; None if records do not expire by their age."""
    value = settings.get(_TIME, "-1")
    if "delete" not in settings.get("cleanup.policy", "delete") or not value.isdigit():
        return None
    return int(value)


def _listed(counts: Mapping[TopicPartition, int]) -> str:
    shown = [f"{counted(count, 'offset')} of {p}" for p, count in sorted(counts.items())[:3]]
    return ", ".join(shown) + (f" and of {len(counts) - 3} more partitions" if len(counts) > 3 else "")


def _days(milliseconds: int) -> str:
    hours = milliseconds / 3_600_000
    if hours < 2:
        return f"{milliseconds / 60_000:,.1f} min"
    return f"{hours:,.0f} h" if hours < 72 else f"{hours / 24:,.1f} days"


def _record_clock(mapping: Examined) -> Iterator[Verdict]:
    """Compare the newest timestamps of records, which producers or brokers set, with the clock of this machine."""
    broker = mapping.broker()
    newest = broker.newest_times(broker.partitions(mapping.options.topics))
    if not newest:
        yield ok("there is no record")
        return
    partition, time_ms = max(newest.items(), key=lambda item: item[1])
    ahead = time_ms / 1000 - now()
    if ahead > _FUTURE_SECONDS:
        yield warning(
            f"the newest timestamp, in {partition}, is {ahead:,.0f} s ahead of this machine's clock",
            "synchronize the clocks of producers, brokers and this machine: retention and lag in seconds depend on"
            " the timestamps of records",
        )
    else:
        yield ok(f"the newest timestamp, in {partition}, is {-ahead:,.1f} s old")


def _lease(mapping: Examined) -> Iterator[Verdict]:
    claims = leases.claims(mapping.metastore, mapping.options.owner_lease)
    time = health.read_clock(mapping.metastore).database_time
    if not claims:
        yield ok("no daemon runs the mapping")
    for claim in claims:
        age = max(0.0, time - last_heartbeat(mapping.metastore, claim))
        text = f"{claim.agent} {'owns' if claim.is_held else 'waits for'} the mapping; last heartbeat {age:,.1f} s ago"
        if age > _STALE_SECONDS:
            yield warning(
                f"{text} (lock {claim.lock_id})",
                "the process has ended, is suspended, or cannot reach the metastore: end it; another daemon with this"
                " mapping then takes over",
            )
        else:
            yield ok(text)


def _columns(mapping: Examined) -> Iterator[Verdict]:
    """Compare the fields of the last records with the columns. Other checks report why they cannot be decoded."""
    try:
        sample = take_sample(mapping.metastore, mapping.options, _SAMPLE)
    except NothingToPreview:
        yield ok("there is no record")
        return
    except IngestdError as error:
        yield skipped(f"not examined: {error.where}: {error.what}")
        return
    rows, records = counted(sample.rows, "row"), counted(sample.records, "record")
    columns = counted(len(sample.unfilled), "column")
    if sample.unfilled and sample.rows >= _ENOUGH_ROWS:
        names = ", ".join(sample.unfilled[:_SHOWN]) + (", …" if len(sample.unfilled) > _SHOWN else "")
        yield warning(
            f"no field in the last {records} for {columns}, NULL in all {rows}: {names}",
            "if producers send these values, rename the columns, or correct `format`, for example with paths in"
            " format.fields; `ingestd preview` shows the rows",
        )
    else:
        unreadable = f"; {sample.unreadable:,} cannot be read, and are rejects" if sample.unreadable else ""
        yield ok(f"{rows} of the last {records} examined{unreadable}")


CLUSTER = Check("kafka.cluster", _cluster)
KAFKA_CHECKS: tuple[Check[Examined], ...] = (
    Check("kafka.topic", _topic),
    Check("kafka.group", _group),
    Check("kafka.clock", _record_clock),
    Check("kafka.transactions", _transactions),
)
REGISTRY_CHECKS: tuple[Check[Examined], ...] = (Check("registry.schemas", _registry),)
LEASE_CHECKS: tuple[Check[Examined], ...] = (Check("mapping.lease", _lease),)
SAMPLE_CHECKS: tuple[Check[Examined], ...] = (Check("mapping.columns", _columns),)
# They need both Kafka and the metastore, as those of samples do.
RETENTION_CHECKS: tuple[Check[Examined], ...] = (Check("kafka.retention", _retention),)
