"""Offset ranges and positions, which determine the records of a transaction before any of them is read.

Invariant: a range is `first <= offset < next`. Its end is an offset, not a record count, because compaction, aborted
transactions and control records leave gaps. An offset is valid for one topic id only, so a position has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


# The next offset of each partition.
Offsets = Mapping[TopicPartition, int]


class EpochOffset(NamedTuple):
    """An offset of a partition, and the epoch of a leader whose log contained all records before it.

    Each election of a leader increments the epoch (KIP-101). None means unknown, as for some Kafka-compatible services.
    """

    offset: int
    epoch: int | None = None


class TopicIdentity(NamedTuple):
    """The cluster and the topic that a topic name refers to.

    Kafka assigns a unique id to each topic when it is created (KIP-516). '' means unknown: brokers before Kafka 2.8 and
    some Kafka-compatible services have no topic ids.
    """

    cluster_id: str = ""
    topic_id: str = ""

    def differs(self, other: TopicIdentity) -> bool:
        """Return whether the topics are known to differ: by topic id, or by cluster id if a topic id is unknown."""
        if self.topic_id and other.topic_id:
            return self.topic_id != other.topic_id
        return bool(self.cluster_id and other.cluster_id and self.cluster_id != other.cluster_id)

    def merged(self, newer: TopicIdentity) -> TopicIdentity:
        """Return the ids of `newer`, with unknown ones taken from `self`."""
        return TopicIdentity(newer.cluster_id or self.cluster_id, newer.topic_id or self.topic_id)

    def __str__(self) -> str:
        return f"topic id {self.topic_id or 'unknown'} in cluster {self.cluster_id or 'unknown'}"


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset of each partition, and the identity of each topic by name.

    `epochs` contains, for a partition whose records were read, the epoch of a leader whose log contained them all. If
    the current leader's log leaves the history of this epoch before the offset, the partition was truncated.

    A topic with offsets but without an identity comes from the state of an older version, which stored no identities;
    such states have no epochs either.
    """

    offsets: Offsets = field(default_factory=dict)
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of one partition from `first`, inclusive, to `next`, exclusive.

    `epoch` is that of the leader whose log had these offsets when the range was planned; None if unknown.
    """

    topic: str
    partition: int
    first: int
    next: int
    epoch: int | None = None

    @property
    def length(self) -> int:
        """The number of offsets in the range, which may contain fewer records."""
        return self.next - self.first

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.first}..{self.next}"


def cap(backlog: Sequence[OffsetRange], offsets: int) -> list[OffsetRange]:
    """Select at most `offsets` offsets from the start of the backlog's ranges, shared evenly among the partitions.

    Offsets that a short range does not need are shared among the longer ranges.
    """
    left, chosen = offsets, []
    for rank, part in enumerate(sorted(backlog, key=lambda r: r.length)):
        take = min(part.length, left // (len(backlog) - rank))
        left -= take
        if take:
            chosen.append(replace(part, next=part.first + take))
    return sorted(chosen, key=lambda r: (r.topic, r.partition))


def split(ranges: Sequence[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Distribute the ranges over `tasks` shares whose sizes differ by at most one offset; empty shares are omitted.

    A range is divided where a share is full. No share contains two ranges of one partition.
    """
    total = sum(r.length for r in ranges)
    shares: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    done = 0
    for whole in ranges:
        first = whole.first
        while first < whole.next:
            index = min(done * tasks // total, tasks - 1)
            room = -(-total * (index + 1) // tasks) - done
            piece = replace(whole, first=first, next=min(whole.next, first + max(1, room)))
            shares[index].append(piece)
            done += piece.length
            first = piece.next
    return [share for share in shares if share]


def cut(ranges: Sequence[OffsetRange], places: range) -> list[OffsetRange]:
    """Select the offsets at these places, if the offsets of all ranges are numbered from 0."""
    pieces, start = [], 0
    for whole in ranges:
        first, end = max(places.start - start, 0), min(places.stop - start, whole.length)
        if first < end:
            pieces.append(replace(whole, first=whole.first + first, next=whole.first + end))
        start += whole.length
    return pieces
