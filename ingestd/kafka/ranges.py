"""Offset ranges and positions: which records belong to a transaction, stated before any is read.

Invariant: a range is `first <= offset < next`; it ends at its end, not at a count, because compaction, aborted
transactions and control records leave gaps. An offset is valid for one topic id only, so a position holds both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


# Next offset of each partition.
Offsets = Mapping[TopicPartition, int]


class TopicIdentity(NamedTuple):
    """The topic that a name referred to when it was described.

    Kafka gives each topic a unique id when it creates it (KIP-516). '' stands for unknown: brokers before Kafka 2.8
    and some services that speak Kafka's protocol have no topic ids.
    """

    cluster_id: str = ""
    topic_id: str = ""

    def differs(self, other: TopicIdentity) -> bool:
        """True when both are certainly not the same topic: by topic id, or by cluster id where an id is unknown."""
        if self.topic_id and other.topic_id:
            return self.topic_id != other.topic_id
        return bool(self.cluster_id and other.cluster_id and self.cluster_id != other.cluster_id)

    def merged(self, newer: TopicIdentity) -> TopicIdentity:
        """What `newer` knows, and what only `self` knows."""
        return TopicIdentity(newer.cluster_id or self.cluster_id, newer.topic_id or self.topic_id)

    def __str__(self) -> str:
        return f"topic id {self.topic_id or 'unknown'} in cluster {self.cluster_id or 'unknown'}"


@dataclass(frozen=True, slots=True)
class Position:
    """Next offset of each partition, and by name the topics that these offsets belong to.

    A topic with offsets but without an identity comes from a state that did not store identities yet.
    """

    offsets: Offsets = field(default_factory=dict)
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `first` up to, not including, `next` of one partition."""

    topic: str
    partition: int
    first: int
    next: int

    @property
    def span(self) -> int:
        """Offsets in the range: at least as many as its records."""
        return self.next - self.first

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.first}..{self.next}"


def cap(backlog: Sequence[OffsetRange], offsets: int) -> list[OffsetRange]:
    """At most `offsets` of the backlog, level by level, so that no partition waits behind a bigger one."""
    left, chosen = offsets, []
    for rank, part in enumerate(sorted(backlog, key=lambda r: r.span)):
        take = min(part.span, left // (len(backlog) - rank))
        left -= take
        if take:
            chosen.append(OffsetRange(part.topic, part.partition, part.first, part.first + take))
    return sorted(chosen, key=lambda r: (r.topic, r.partition))


def split(ranges: Sequence[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Share the ranges among `tasks`, equal to within one offset; a hot partition is cut where a share is full.

    A task never gets two ranges of one partition.
    """
    total = sum(r.span for r in ranges)
    shares: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    done = 0
    for whole in ranges:
        first = whole.first
        while first < whole.next:
            index = min(done * tasks // total, tasks - 1)
            room = -(-total * (index + 1) // tasks) - done
            piece = OffsetRange(whole.topic, whole.partition, first, min(whole.next, first + max(1, room)))
            shares[index].append(piece)
            done += piece.span
            first = piece.next
    return [share for share in shares if share]
