"""Reads a few records of topics: the last ones, or the first ones of given offset ranges.

Invariant: nothing is stored, no position is committed, and no consumer group is joined. The records of a partition are
consecutive. The number of records is limited, not that of offsets: compaction and transactions in Kafka leave gaps. An
offset of records that cannot be read counts as a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ingestd.clock import Deadline
from ingestd.ingest.options import OnUnreadable
from ingestd.kafka.ranges import OffsetRange, TopicIdentity, TopicPartition, cap
from ingestd.kafka.reader import Batch, ReadLimits, read
from ingestd.kafka.unreadable import UnreadableBatch, stop_before

# How long Kafka may take to answer. A user is waiting for the result.
ANSWER_SECONDS = 10.0
# How much longer the ranges become if they contain too few records, and for how long.
_GROWTH, _GROWTH_SECONDS = 4, 10.0

End = Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class ExcerptLimits:
    """How many records are read, and how many bytes of them, because they are in memory at the same time."""

    records: int
    bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Records with their messages, and what cannot be read among them, which a mapping would reject."""

    batches: tuple[Batch, ...]
    unreadable: tuple[UnreadableBatch, ...] = ()

    @property
    def records(self) -> int:
        """The number of records and of offsets that cannot be read."""
        return sum(len(batch.values) for batch in self.batches) + sum(bad.next - bad.first for bad in self.unreadable)

    def offsets(self) -> dict[TopicPartition, NDArray[np.int64]]:
        """Return the offsets that `records` counts by partition, ascending."""
        by_partition: dict[TopicPartition, list[NDArray[np.int64]]] = {}
        for batch in self.batches:
            for partition in np.unique(batch.partitions).tolist():
                offsets = batch.offsets[batch.partitions == partition]
                by_partition.setdefault(TopicPartition(batch.topic, partition), []).append(offsets)
        for bad in self.unreadable:
            by_partition.setdefault(bad.partition, []).append(np.arange(bad.first, bad.next))
        return {key: np.sort(np.concatenate(parts)) for key, parts in by_partition.items()}


def read_excerpt(
    settings: Mapping[str, Any],
    ranges: Sequence[OffsetRange],
    limits: ExcerptLimits,
    end: End,
    *,
    topics: Mapping[str, TopicIdentity] | None = None,
    on_unreadable: OnUnreadable = "stop",
) -> Excerpt:
    """Return the first or last records of the ranges within `limits`, shared evenly among the partitions.

    The result may have fewer records if the search for them in the gaps of a large range takes too long. `settings` are
    librdkafka properties, and `topics` is as in `read`, whose errors are raised; RecordsUnreadable only if
    `on_unreadable` is stop.
    """
    count, deadline = limits.records, Deadline.after(_GROWTH_SECONDS)
    total, offsets = sum(part.length for part in ranges), count
    while True:
        chosen = _shortened(ranges, offsets, end)
        excerpt = _read(settings, chosen, topics, limits.bytes, on_unreadable)
        if excerpt.records > count:
            part = _without_surplus(chosen, excerpt, count, end)
            return _read(settings, part, topics, limits.bytes, on_unreadable)
        if excerpt.records == count or offsets >= total or _is_full(excerpt.batches, limits.bytes) or deadline.passed:
            return excerpt
        offsets *= _GROWTH


def _read(
    settings: Mapping[str, Any],
    ranges: Sequence[OffsetRange],
    topics: Mapping[str, TopicIdentity] | None,
    max_bytes: int,
    on_unreadable: OnUnreadable,
) -> Excerpt:
    batches: list[Batch] = []
    unreadable: list[UnreadableBatch] = []
    skip = unreadable.append if on_unreadable == "reject" else stop_before
    limits = ReadLimits(silence_seconds=ANSWER_SECONDS)
    for batch in read(settings, ranges, limits, topics=topics, keep_messages=True, on_unreadable=skip):
        batches.append(batch)
        if _is_full(batches, max_bytes):
            break
    return Excerpt(tuple(_by_topic(batches)), tuple(unreadable))


def _by_topic(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield one batch of each topic. The order in which partitions were fetched differs from one read to the next."""
    for topic in sorted({batch.topic for batch in batches}):
        parts = [batch for batch in batches if batch.topic == topic]
        values = [value for part in parts for value in part.values]
        messages = [message for part in parts for message in part.messages]
        partitions = np.concatenate([part.partitions for part in parts])
        offsets = np.concatenate([part.offsets for part in parts])
        order = np.lexsort((offsets, partitions))
        yield Batch(
            topic,
            [values[row] for row in order],
            partitions[order],
            offsets[order],
            sum(part.size for part in parts),
            messages=[messages[row] for row in order],
        )


def _is_full(batches: Sequence[Batch], max_bytes: int) -> bool:
    return sum(batch.held_bytes() for batch in batches) >= max_bytes


def _shortened(ranges: Sequence[OffsetRange], offsets: int, end: End) -> list[OffsetRange]:
    """Return the first or last offsets of the ranges, `offsets` in all if there are so many."""
    first = cap(ranges, offsets)
    if end == "first":
        return first
    lengths = {(part.topic, part.partition): part.length for part in first}
    return [
        replace(part, first=part.next - lengths[part.topic, part.partition])
        for part in ranges
        if (part.topic, part.partition) in lengths
    ]


def _without_surplus(ranges: Sequence[OffsetRange], excerpt: Excerpt, count: int, end: End) -> list[OffsetRange]:
    """Return the parts of the ranges that contain exactly `count` of the records."""
    by_partition = excerpt.offsets()
    wanted = cap([OffsetRange(*partition, 0, len(offsets)) for partition, offsets in by_partition.items()], count)
    numbers = {TopicPartition(part.topic, part.partition): part.length for part in wanted}
    parts = []
    for part in ranges:
        partition = TopicPartition(part.topic, part.partition)
        if partition in numbers:
            number = numbers[partition]
            kept = by_partition[partition][:number] if end == "first" else by_partition[partition][-number:]
            parts.append(replace(part, first=int(kept[0]), next=int(kept[-1]) + 1))
    return parts
