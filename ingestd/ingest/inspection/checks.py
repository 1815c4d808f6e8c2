"""Checks against the running services whether a mapping can work. No record is ingested.

Invariant: a check removes every lock and directory that it creates.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product, takewhile

from ingestd.clock import Deadline
from ingestd.errors import IngestdError, InvalidTable, MetastoreUnavailable, TableMissing, TopicDenied
from ingestd.formats.options import examine_registry, uses_registry
from ingestd.formats.registry import Registry
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.hive.control import is_created
from ingestd.hive.partitions import partition_locations, partition_names
from ingestd.hive.tables import Table, TableName, load_acid_table, require_writable_database, table_locations
from ingestd.ingest.inspection.permissions import changeable_directories, hidden_directory, levels, require_writable
from ingestd.ingest.letters.table import load_letter_table
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.table.creation import find_target
from ingestd.ingest.table.target import check_query, existing_tables, letters_name
from ingestd.kafka.admin import Broker, OffsetMirror
from ingestd.kafka.ranges import OffsetRange
from ingestd.kafka.reader import ReadLimits, read
from ingestd.kafka.unreadable import UnreadableBatch, stop_before
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.engine import Engine
from ingestd.storage.contract import child, split

# Short, because a user is waiting for the result.
_ANSWER_SECONDS, _RECORD_SECONDS = 5.0, 10.0
# How many directories of partitions are examined, and for how long.
_MOST_PARTITIONS, _PARTITIONS_SECONDS = 100, 5.0
# How long the locations of other tables are read.
_TABLES_SECONDS = 5.0
_LATER = "is examined once the mapping has created the table"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `error` is None if it passed. Mappings work although a check failed if `is_warning`."""

    subject: str
    detail: str
    error: IngestdError | None
    is_warning: bool = False


def check_metastore(metastore: Metastore) -> Iterator[Finding]:
    """Check that the metastore answers and grants locks. Yields one finding per check."""
    yield _finding("metastore", lambda: f"answers, version {metastore.call('getVersion')}")
    yield _finding("metastore locks", lambda: grants_locks(metastore))


def check_topics(options: MappingOptions) -> Iterator[Finding]:
    """Check the topics of one mapping, and the topic of its dead letters. Yields one finding per topic."""
    for topic in options.topics:
        subject = f"mapping {options.name}, topic {topic}"
        yield _finding(subject, lambda topic=topic: readable_topic(options, topic))  # type: ignore[misc]
    if (letters := options.dead_letter) is not None and letters.topic:
        subject = f"mapping {options.name}, dead letters in topic {letters.topic}"
        yield _finding(subject, lambda: writable_topic(options, letters.topic))


def check_registry(options: MappingOptions) -> Iterator[Finding]:
    """Check the schema registry of one mapping. Yields no finding if its records do not refer to schemas there."""
    if uses_registry(options.format):
        yield _finding(f"mapping {options.name}, schema registry", lambda: usable_registry(options))


def check_group(options: MappingOptions) -> Iterator[Finding]:
    """Check the consumer group of one mapping, without which the mapping works. Yields one finding."""
    yield _prediction(
        f"mapping {options.name}, consumer group {options.consumer_group}", lambda: mirrored_group(options)
    )


def check_table(warehouse: Warehouse, options: MappingOptions) -> Iterator[Finding]:
    """Check the table and the storage of one mapping, and its table of dead letters. Yields one finding per check."""
    subject = f"mapping {options.name}"
    yield _finding(f"{subject}, table {options.table}", lambda: usable_table(warehouse.metastore, options))
    storage = _finding(f"{subject}, storage", lambda: writable_storage(warehouse, options))
    yield storage
    if storage.error is None:
        yield _prediction(f"{subject}, permissions", lambda: changeable_directories(warehouse, options.table))
    if options.dead_letter is not None and (letters := options.dead_letter.table) is not None:
        yield _finding(
            f"{subject}, dead letters in table {letters}", lambda: usable_letters(warehouse.metastore, letters)
        )
        storage = _finding(f"{subject}, storage of dead letters", lambda: writable_letters(warehouse, letters))
        yield storage
        if storage.error is None:
            where = f"{subject}, permissions of dead letters"
            yield _prediction(where, lambda: changeable_directories(warehouse, letters))


def check_locations(metastore: Metastore, mappings: Sequence[MappingOptions]) -> Iterator[Finding]:
    """Check that the tables of all mappings share their directories with no other table. Yields one finding."""
    names = dict.fromkeys(filter(None, (name for each in mappings for name in (str(each.table), letters_name(each)))))
    yield _prediction("locations of tables", lambda: separate_locations(metastore, list(names)))


def check_control(metastore: Metastore, options: MappingOptions) -> Iterator[Finding]:
    """Check the control database and the control table of one mapping. Yields one finding."""
    yield _finding(
        f"mapping {options.name}, control table {options.control}", lambda: usable_control(metastore, options.control)
    )


def check_sql(metastore: Metastore, options: MappingOptions, engine: Callable[[], Engine]) -> Iterator[Finding]:
    """Check the SQL of one mapping, for which `engine` starts Spark. Yields no finding if it has none."""
    if not (options.where or options.transform):
        return
    subject = f"mapping {options.name}, {'transform' if options.transform else 'where'}"
    yield _finding(subject, lambda: valid_sql(metastore, options, engine))


def _finding(subject: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, probe(), None)
    except IngestdError as error:
        return Finding(subject, "", error)


def _prediction(subject: str, probe: Callable[[], str]) -> Finding:
    """Return the finding of a check without which the mapping works, at least for now."""
    finding = _finding(subject, probe)
    return replace(finding, is_warning=finding.error is not None)


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

    Raises InvalidTopic if it is missing or must not be read, LoginFailed, BrokerUnavailable, and RecordsUnreadable
    unless such records are rejects.
    """
    broker = Broker(options.kafka, timeout_seconds=_ANSWER_SECONDS)
    with broker.explained():
        partitions = broker.partitions([topic])
    first, ends = broker.earliest(partitions), broker.ends(partitions)
    last = next((OffsetRange(*p, ends[p] - 1, ends[p]) for p in partitions if ends[p] > first[p]), None)
    rejected: list[UnreadableBatch] = []
    if last is not None:
        skip = rejected.append if options.on_unreadable == "reject" else stop_before
        list(read(options.reader, [last], ReadLimits(silence_seconds=_RECORD_SECONDS), on_unreadable=skip))
    waiting = sum(ends[p] - first[p] for p in partitions)
    text = f"{counted(len(partitions), 'partition')}, {counted(waiting, 'offset')}, readable"
    return "; ".join([text, *(f"rejects in {bad.partition}: {bad.reason}" for bad in rejected)])


def writable_topic(options: MappingOptions, topic: str) -> str:
    """Describe a topic and the permission to write to it; return what was found. No record is written.

    Raises InvalidTopic if it is missing or the permission to write is denied, LoginFailed and BrokerUnavailable.
    """
    broker = Broker(options.kafka, timeout_seconds=_ANSWER_SECONDS)
    with broker.explained():
        partitions = broker.partitions([topic])
    if not broker.may_write(topic):
        raise TopicDenied(
            "permission denied: WRITE on the topic",
            where=f"topic {topic}",
            hint="grant WRITE and DESCRIBE on the topic",
        )
    return f"{counted(len(partitions), 'partition')}, writable"


def usable_registry(options: MappingOptions) -> str:
    """Read the latest schema of each topic from the registry; return what was found.

    A schema may be missing, because producers can use other subjects. Raises RegistryUnavailable, LoginFailed, and
    ConfigError for a server that cannot be used.
    """
    given = options.registry
    limited = given and replace(given, timeout=min(given.timeout, _ANSWER_SECONDS))
    unusable = examine_registry(options.format, Registry.required(Registry.of(limited)), options.topics)
    text = f"answers; {len(options.topics) - len(unusable):,} of {counted(len(options.topics), 'topic')} have a schema"
    return "; ".join([f"{text} under the subject TOPIC-value", *unusable.values()])


def mirrored_group(options: MappingOptions) -> str:
    """Read the offsets that the consumer group has committed; return what was found.

    Raises InvalidTopic without permission to commit offsets to the group, LoginFailed and BrokerUnavailable.
    """
    broker = Broker(options.kafka, timeout_seconds=_ANSWER_SECONDS)
    with broker.explained():
        partitions = broker.partitions(options.topics)
    mirror = OffsetMirror(options.kafka, options.consumer_group, timeout_seconds=broker.timeout_seconds)
    try:
        count = len(mirror.committed(partitions))
    finally:
        mirror.close()
    if not broker.may_commit(options.consumer_group):
        raise TopicDenied(
            "permission denied: READ on the consumer group",
            where=f"consumer group {options.consumer_group}",
            hint="grant READ on the consumer group",
        )
    return f"offsets of {counted(count, 'partition')} are mirrored"


def usable_table(metastore: Metastore, options: MappingOptions) -> str:
    """Check that the mapping can write to its table, or create it; return what was found. Raises InvalidTable."""
    table, statement = find_target(metastore, options)
    if statement:
        return f"does not exist; the mapping creates it: {' '.join(statement.split())}"
    given = {name.lower(): text for name, text in options.partition.items()}
    by = [f"{c.name} = {given[c.name]}" if c.name in given else c.name for c in table.partition_columns]
    how = f", partitioned by {', '.join(by)}" if by else ""
    buckets = f", {counted(table.bucketing.count, 'bucket')}" if table.bucketing else ""
    kind = "insert-only ORC" if table.is_insert_only else "full ACID ORC"
    return f"{kind}, {counted(len(table.columns), 'column')}{how}{buckets}"


def usable_control(metastore: Metastore, control: TableName) -> str:
    """Check that the state of a mapping can be stored; return what was found. Creates nothing. Raises InvalidTable.

    A database or table that is missing passes, because the mapping creates it.
    """
    return "exists" if is_created(metastore, control) else "does not exist; the mapping creates it"


def separate_locations(metastore: Metastore, names: Sequence[str]) -> str:
    """Compare the locations of tables with those of all tables of their databases; return what was found.

    Hive 4 creates ACID tables only in the directory of their database. Raises InvalidTable if the location of one of
    `names` is that of another table, or is inside or around it.
    """
    ours = {table.name: table.location for table in existing_tables(metastore, names)}
    if not ours:
        return _LATER
    databases = dict.fromkeys(name.database for name in ours)
    others = chain.from_iterable(table_locations(metastore, database) for database in databases)
    limit = Deadline.after(_TABLES_SECONDS)
    locations = ours | dict(takewhile(lambda _: not limit.passed, others))
    owners: dict[tuple[str, ...], list[TableName]] = {}
    for name, location in locations.items():
        owners.setdefault(split(location).levels, []).append(name)
    for place, inner in owners.items():
        around = (owners.get(place[:count], ()) for count in range(len(place), 0, -1))
        for outer, name in product(chain.from_iterable(around), inner):
            if outer != name and (outer in ours or name in ours):
                raise _shared_location(outer, locations[outer], name, locations[name])
    return (
        f"{counted(len(ours), 'table')}, each in a directory of its own;"
        f" compared with {len(locations) - len(ours)} others"
    )


def _shared_location(outer: TableName, around: str, inner: TableName, location: str) -> InvalidTable:
    if split(around).levels == split(location).levels:
        what = f"{outer} and {inner} have the same location, so queries of each also show rows of the other"
    else:
        what = f"the location of {inner} is inside that of {outer}, {around}, whose queries may also show its rows"
    return InvalidTable(
        what, where=f"location {location}", hint="set the location of one of them to a directory of its own"
    )


def valid_sql(metastore: Metastore, options: MappingOptions, engine: Callable[[], Engine]) -> str:
    """Check that Spark can evaluate the SQL and the table can store the result; return what was found.

    Raises the errors of `find_target` and `check_query`.
    """
    table, _ = find_target(metastore, options)
    check_query(table, options, engine().examine)
    return "valid, evaluated row by row"


def usable_letters(metastore: Metastore, name: TableName) -> str:
    """Check that dead letters can be written to a table; return what was found. Raises InvalidTable.

    A table that is missing passes, because the mapping creates it, but its database must exist.
    """
    text = "full ACID ORC, with the columns of dead letters"
    try:
        load_letter_table(metastore, name)
    except TableMissing:
        text = "does not exist; the mapping creates it"
    require_writable_database(metastore, name)
    return text


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 offset` or `2,000 offsets`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def writable_storage(warehouse: Warehouse, options: MappingOptions) -> str:
    """Write and remove a file in a hidden directory of the table, and examine the directories of partitions.

    Returns what was found. Partitions may belong to another user or file system than their table. Examines the newest
    ones by name, for a few seconds at most. Raises StorageUnavailable.
    """
    try:
        table = load_acid_table(warehouse.metastore, options.table)
    except TableMissing:
        if options.create_table is None:
            raise
        return _LATER
    return f"{_write_probe(warehouse, table)} is writable{_writable_partitions(warehouse, table)}"


def writable_letters(warehouse: Warehouse, name: TableName) -> str:
    """Write and remove a file in a hidden directory of a table of dead letters, and return what was found.

    Raises InvalidTable and StorageUnavailable.
    """
    try:
        table = load_letter_table(warehouse.metastore, name)
    except TableMissing:
        return _LATER
    return f"{_write_probe(warehouse, table)} is writable"


def _write_probe(warehouse: Warehouse, table: Table) -> str:
    """Write and remove a file in a hidden directory of a table; return the URI of the table's directory."""
    with hidden_directory(warehouse, table) as probe:
        warehouse.storages.at(table.location).write(child(probe, "probe"), b"ingestd")
    return table.location


def _writable_partitions(warehouse: Warehouse, table: Table) -> str:
    """Examine the directories of the newest partitions; return how many are writable, or '' if there is none."""
    limit = Deadline.after(_PARTITIONS_SECONDS)
    names = partition_names(warehouse.metastore, table) if table.partition_columns else []
    examined, known = 0, set[str]()
    for _name, location in partition_locations(warehouse.metastore, table, names[-_MOST_PARTITIONS:]):
        if limit.passed:
            break
        directories = set(levels(table.location, location)) - known
        require_writable(warehouse, directories)
        known |= directories
        examined += 1
    return f"; so are {examined:,} of {len(names):,} directories of partitions" if names else ""
