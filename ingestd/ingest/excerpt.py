"""Reads a few records of topics: the last ones, or the first ones of given offset ranges.

Invariant: nothing is stored, no position is committed, and no consumer group is joined. The records of a partition are
consecutive. The number of records is limited, not that of offsets: compaction and transactions in Kafka leave gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ingestd.clock import Deadline
from ingestd.kafka.ranges import OffsetRange, TopicIdentity, TopicPartition, cap
from ingestd.kafka.reader import Batch, ReadLimits, read

# How long Kafka may take to answer. A user is waiting for the result.
ANSWER_SECONDS = 10.0
# The records are in memory at the same time. More bytes are not read.
MAX_BYTES = 256 << 20
# How much longer the ranges become if they contain too few records, and for how long.
_GROWTH, _GROWTH_SECONDS = 4, 10.0

End = Literal["first", "last"]


def read_excerpt(
    settings: Mapping[str, Any],
    ranges: Sequence[OffsetRange],
    count: int,
    end: End,
    *,
    topics: Mapping[str, TopicIdentity] | None = None,
    max_bytes: int = MAX_BYTES,
) -> list[Batch]:
    """Return the first or last records of the ranges, at most `count`, shared evenly among the partitions.

    The result may have fewer records than the ranges contain if they exceed `max_bytes`, or if the search for
    records in the gaps of a large range takes too long. The batches have their messages. `settings` are librdkafka
    properties, and `topics` is as in `read`, whose errors are raised.
    """
    limit = Deadline.after(_GROWTH_SECONDS)
    total, offsets = sum(part.length for part in ranges), count
    while True:
        chosen = _shortened(ranges, offsets, end)
        batches = _read(settings, chosen, topics, max_bytes)
        found = sum(len(batch.values) for batch in batches)
        if found > count:
            return _read(settings, _without_surplus(chosen, batches, count, end), topics, max_bytes)
        if found == count or offsets >= total or _is_full(batches, max_bytes) or limit.passed:
            return batches
        offsets *= _GROWTH


def _read(
    settings: Mapping[str, Any],
    ranges: Sequence[OffsetRange],
    topics: Mapping[str, TopicIdentity] | None,
    max_bytes: int,
) -> list[Batch]:
    batches: list[Batch] = []
    limits = ReadLimits(silence_seconds=ANSWER_SECONDS)
    for batch in read(settings, ranges, limits, topics=topics, keep_messages=True):
        batches.append(batch)
        if _is_full(batches, max_bytes):
            break
    return batches


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


def _without_surplus(
    ranges: Sequence[OffsetRange], batches: Sequence[Batch], count: int, end: End
) -> list[OffsetRange]:
    """Return the parts of the ranges that contain exactly `count` of the records."""
    found = _offsets(batches)
    wanted = cap([OffsetRange(*partition, 0, len(offsets)) for partition, offsets in found.items()], count)
    numbers = {TopicPartition(part.topic, part.partition): part.length for part in wanted}
    parts = []
    for part in ranges:
        partition = TopicPartition(part.topic, part.partition)
        if partition in numbers:
            number = numbers[partition]
            kept = found[partition][:number] if end == "first" else found[partition][-number:]
            parts.append(replace(part, first=int(kept[0]), next=int(kept[-1]) + 1))
    return parts


def _offsets(batches: Sequence[Batch]) -> dict[TopicPartition, NDArray[np.int64]]:
    """Return the offsets of the records of each partition, ascending."""
    found: dict[TopicPartition, list[NDArray[np.int64]]] = {}
    for batch in batches:
        for partition in np.unique(batch.partitions).tolist():
            offsets = batch.offsets[batch.partitions == partition]
            found.setdefault(TopicPartition(batch.topic, partition), []).append(offsets)
    return {key: np.concatenate(parts) for key, parts in found.items()}
