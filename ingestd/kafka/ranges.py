"""Offset ranges: which records belong to a transaction, stated before any is read.

Invariant: a range is `first <= offset < next`; it ends at its end, not at a count, because compaction, aborted
transactions and control records leave gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


# Next offset of each partition.
Position = Mapping[TopicPartition, int]


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
