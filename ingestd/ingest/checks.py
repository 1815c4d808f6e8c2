"""Checks against the running services whether a mapping can work. No record is ingested.

Invariant: a check removes every lock and directory that it creates.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ingestd.errors import IngestdError, MetastoreUnavailable
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.target import load_target, static_values
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import OffsetRange
from ingestd.kafka.reader import ReadLimits, read
from ingestd.storage import local
from ingestd.storage.local import Location

# Short, because a user is waiting for the result.
_ANSWER_SECONDS, _RECORD_SECONDS = 5.0, 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `error` is None if it passed."""

    subject: str
    detail: str
    error: IngestdError | None


def check_metastore(metastore: Metastore) -> Iterator[Finding]:
    """Check that the metastore answers and grants locks. Yields one finding per check."""
    yield _finding("metastore", lambda: f"answers, version {metastore.call('getVersion')}")
    yield _finding("metastore locks", lambda: grants_locks(metastore))


def check_topics(options: MappingOptions) -> Iterator[Finding]:
    """Check the topics of one mapping. Yields one finding per topic."""
    for topic in options.topics:
        subject = f"mapping {options.name}, topic {topic}"
        yield _finding(subject, lambda topic=topic: readable_topic(options, topic))  # type: ignore[misc]


def check_table(metastore: Metastore, options: MappingOptions) -> Iterator[Finding]:
    """Check the table and the storage of one mapping. Yields one finding per check."""
    subject = f"mapping {options.name}"
    yield _finding(f"{subject}, table {options.table}", lambda: usable_table(metastore, options))
    yield _finding(f"{subject}, storage", lambda: writable_storage(metastore, options))


def _finding(subject: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, probe(), None)
    except IngestdError as error:
        return Finding(subject, "", error)


def grants_locks(metastore: Metastore) -> str:
    """Acquire and release a lock on an unused name; return what was found. Raises MetastoreUnavailable."""
    name = TableName("ingestd", f"check_{uuid.uuid4().hex[:8]}")
    lock_id = leases.try_acquire(metastore, name, "ingestd/check")
    if lock_id is None:
        raise MetastoreUnavailable(
            "the metastore did not grant a lock on an unused name",
            hint="set hive.txn.manager to DbTxnManager in the metastore; SHOW LOCKS lists the locks",
        )
    leases.release(metastore, lock_id)
    return "granted"


def readable_topic(options: MappingOptions, topic: str) -> str:
    """Describe a topic and read its last record; return what was found.

    Raises InvalidTopic if it is missing or must not be read, LoginFailed and BrokerUnavailable.
    """
    broker = Broker(options.kafka, timeout_seconds=_ANSWER_SECONDS)
    with broker.explained():
        partitions = broker.partitions([topic])
    first, ends = broker.earliest(partitions), broker.ends(partitions)
    for partition in partitions:
        if ends[partition] > first[partition]:
            last = OffsetRange(*partition, ends[partition] - 1, ends[partition])
            list(read(options.kafka, [last], ReadLimits(silence_seconds=_RECORD_SECONDS)))
            break
    waiting = sum(ends[p] - first[p] for p in partitions)
    return f"{counted(len(partitions), 'partition')}, {counted(waiting, 'offset')}, readable"


def usable_table(metastore: Metastore, options: MappingOptions) -> str:
    """Check that the mapping can write to its table; return what was found. Raises InvalidTable."""
    table = load_target(metastore, options)
    static = static_values(table, options)
    by = ", ".join(c.name for c in table.partition_columns)
    how = "" if not by else f", partition {table.partition_name(static)}" if static else f", partitioned by {by}"
    return f"full ACID ORC, {counted(len(table.columns), 'column')}{how}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 offset` or `2,000 offsets`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def writable_storage(metastore: Metastore, options: MappingOptions) -> str:
    """Write and remove a file in a hidden directory of the table; return what was found. Raises StorageUnavailable."""
    location = Location.of(load_acid_table(metastore, options.table).location)
    probe = location.make_directory(f".ingestd-check-{uuid.uuid4().hex[:8]}")
    try:
        local.write_bytes(probe / "probe", b"ingestd")
    finally:
        local.remove_tree(probe)
    return f"{location.path} is writable for user id {os.geteuid()}"
