"""What Hive and Kafka know about mappings, read without a daemon.

Invariant: reading changes nothing. It creates no control table and requests no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ingestd.errors import IngestdError, InvalidTopic
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.hive.control import find_control_table, read_state
from ingestd.hive.leases import Claim
from ingestd.hive.tables import TableName
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.claims import last_heartbeat
from ingestd.ingest.state import MappingState
from ingestd.kafka.hidden import find_hidden
from ingestd.kafka.ranges import Offsets, TopicIdentity, TopicPartition
from ingestd.kafka.shared import KafkaClients
from ingestd.keys import Setting

# Mappings that are read at the same time. Each takes about ten requests.
_READERS = 8
# The time limit of one request to Kafka. A user is waiting for the result.
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets of one partition: the first that Kafka has, the last stable offset, and the committed position.

    `committed` is None if no transaction has stored a position for the partition. `hidden` is the number of offsets
    after the last stable one, which an open Kafka transaction hides.
    """

    partition: TopicPartition
    earliest: int
    end: int
    committed: int | None
    hidden: int = 0

    @property
    def lag(self) -> int:
        """The number of offsets that are not committed."""
        return max(0, self.end - (self.earliest if self.committed is None else self.committed))


@dataclass(frozen=True, slots=True)
class StoredMapping:
    """The stored state of a mapping, the claim that holds its lease, and the offsets of its partitions.

    `state` is None if the mapping has never committed. The daemon of `owner` may have ended: its last heartbeat was at
    the Unix time `heartbeat`, by the metastore's clock. `problem` is the error that prevented reading the rest.
    """

    options: MappingOptions
    state: MappingState | None = None
    owner: Claim | None = None
    heartbeat: float | None = None
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    offsets: tuple[PartitionOffsets, ...] = ()
    problem: IngestdError | None = None

    @property
    def lag(self) -> int | None:
        """The number of offsets that are not committed; None if the offsets are unknown."""
        return sum(offset.lag for offset in self.offsets) if self.offsets else None

    def is_recreated(self, topic: str) -> bool:
        """Return whether the committed position belongs to another topic with the same name."""
        known = self.state.position.topics.get(topic) if self.state else None
        return known is not None and topic in self.topics and self.topics[topic].differs(known)

    @property
    def committed(self) -> Offsets:
        """The committed position."""
        return self.state.position.offsets if self.state else {}


def read_mappings(metastore: Metastore, mappings: Sequence[MappingOptions]) -> list[StoredMapping]:
    """Read the mappings from Hive and Kafka. An error is the `problem` of its mapping; none is raised."""
    kafka = KafkaClients(timeout_seconds=_ANSWER_SECONDS)
    with ThreadPoolExecutor(min(_READERS, max(1, len(mappings))), "status") as readers:
        return list(readers.map(lambda options: _read(metastore, kafka, options), mappings))


def read_mapping(metastore: Metastore, options: MappingOptions) -> StoredMapping:
    """Read one mapping. Raises the IngestdError that `read_mappings` stores."""
    mapping = _read(metastore, KafkaClients(timeout_seconds=_ANSWER_SECONDS), options)
    if mapping.problem is not None:
        raise mapping.problem
    return mapping


def read_retirable(metastore: Metastore, options: MappingOptions) -> StoredMapping:
    """Read one mapping, whose topics may have been deleted. Raises the other errors of `read_mapping`."""
    mapping = _read(metastore, KafkaClients(timeout_seconds=_ANSWER_SECONDS), options)
    if mapping.problem is not None and not isinstance(mapping.problem, InvalidTopic):
        raise mapping.problem
    return mapping


def find_options(
    metastore: Metastore, name: str, control_database: str, kafka: Mapping[str, Setting]
) -> MappingOptions | None:
    """Return the options of a mapping that is known only from its stored state; None if there is no such state."""
    if name != name.lower():  # the metastore ignores the case of table names, but leases and groups do not
        return None
    control = find_control_table(metastore, TableName(control_database, f"mapping_{name}"))
    state = MappingState.parse(read_state(metastore, control)) if control else None
    if state is None:
        return None
    topics = tuple(sorted({partition.topic for partition in state.position.offsets}))
    return MappingOptions(name, topics, TableName.parse(state.table), kafka=kafka, control_database=control_database)


def _read(metastore: Metastore, kafka: KafkaClients, options: MappingOptions) -> StoredMapping:
    state: MappingState | None = None
    owner: Claim | None = None
    heartbeat: float | None = None
    try:
        control = find_control_table(metastore, options.control)
        state = MappingState.parse(read_state(metastore, control)) if control else None
        owner = next((claim for claim in leases.claims(metastore, options.owner_lease) if claim.is_held), None)
        heartbeat = last_heartbeat(metastore, owner) if owner else None
        broker = kafka.broker(options.kafka)
        with broker.explained():
            topics = broker.topics(options.topics)
        partitions = [partition for topic in topics.values() for partition in topic.partitions]
        earliest, ends = broker.earliest(partitions), broker.ends(partitions)
        hidden = {partition: records.count for partition, records in find_hidden(broker, partitions).items()}
    except IngestdError as error:
        return StoredMapping(options, state, owner, heartbeat, problem=error)
    committed = state.position.offsets if state else {}
    offsets = tuple(PartitionOffsets(p, earliest[p], ends[p], committed.get(p), hidden.get(p, 0)) for p in partitions)
    identities = {name: topic.identity for name, topic in topics.items()}
    return StoredMapping(options, state, owner, heartbeat, identities, offsets)
