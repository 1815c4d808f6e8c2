"""Counts the records behind open Kafka transactions, which no consumer of committed records can see yet (KIP-98).

Invariant: high watermarks are requested before the last stable offsets, so records that arrive in between never count.

The last stable offset is the first offset of the oldest open transaction. It hides all later records, also those of
other producers and those of transactions that have committed, until this transaction commits, aborts or times out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingestd.errors import IngestdError
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import TopicPartition

BRIEF_SECONDS = 60.0
"""A shorter time is nothing special: producers that use transactions hide records for a moment all the time."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden offsets of a partition: from the last stable offset, `first`, to the high watermark, `end`."""

    first: int
    end: int

    @property
    def count(self) -> int:
        """The number of hidden offsets."""
        return max(0, self.end - self.first)


def find_hidden(
    broker: Broker, partitions: Iterable[TopicPartition], seconds: float | None = None
) -> dict[TopicPartition, Hidden]:
    """Return the hidden offsets of the partitions that answer, which may be none, with a time limit of `seconds`."""
    highs = broker.find_high_watermarks(partitions, seconds)
    known = {p: high for p, high in highs.items() if not isinstance(high, IngestdError)}
    ends = broker.find_ends(known, seconds)
    return {p: Hidden(end.offset, known[p].offset) for p, end in ends.items() if not isinstance(end, IngestdError)}
