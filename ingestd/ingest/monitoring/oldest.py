"""Remembers when the first records that are not committed were produced, for the lag of a mapping in seconds.

Invariant: a timestamp is exact once the first uncommitted record has been read, by a stage or by `lag_watch.py`. Until
then it is that of an earlier record of the partition, or the last moment when the partition had no uncommitted record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ingestd.clock import now
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.kafka.timestamps import FirstRecord


class OldestRecords:
    """The known first records of the partitions of one mapping.

    For each partition it remembers the last one at or before the committed position, and those of transactions that are
    staged and not yet committed. The caller ensures that only one thread at a time uses it.
    """

    def __init__(self) -> None:
        self._known: dict[TopicPartition, list[FirstRecord]] = {}

    def learn(self, records: Iterable[FirstRecord]) -> None:
        """Remember first records that were read from Kafka. One with a timestamp in the future counts as new."""
        at = now()
        for record in records:
            others = [known for known in self._known.get(record.partition, ()) if known.offset != record.offset]
            seen = replace(record, timestamp=min(at, record.timestamp))
            self._known[record.partition] = sorted([*others, seen], key=lambda known: known.offset)

    def moved(self, before: Offsets, position: Offsets) -> None:
        """Forget the partitions whose position was set back, which may now belong to another topic of the same name."""
        for partition, offset in before.items():
            if position.get(partition, 0) < offset:
                self._known.pop(partition, None)

    def polled(self, position: Offsets, ends: Offsets) -> None:
        """Note the partitions that end at the committed position, and forget the records before it."""
        for partition, end in ends.items():
            offset = position.get(partition, end)
            if offset >= end:
                self._known[partition] = [FirstRecord(partition, offset, now(), exists=False)]
            elif (last := self._last(partition, offset)) is not None:
                self._known[partition] = [known for known in self._known[partition] if known.offset >= last.offset]

    def oldest(self, position: Offsets, ends: Offsets) -> float | None:
        """Return the timestamp of the oldest record that is not committed; None if it is not known.

        Partitions of which nothing is known are ignored; `unread` contains them.
        """
        known = [self._last(partition, offset) for partition, offset in _lagging(position, ends).items()]
        return min((record.timestamp for record in known if record is not None), default=None)

    def unread(self, position: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Return the committed position of the partitions whose first uncommitted record is not known exactly."""
        return {p: offset for p, offset in _lagging(position, ends).items() if not self._is_exact(p, offset)}

    def _last(self, partition: TopicPartition, offset: int) -> FirstRecord | None:
        return next((known for known in reversed(self._known.get(partition, [])) if known.offset <= offset), None)

    def _is_exact(self, partition: TopicPartition, offset: int) -> bool:
        last = self._last(partition, offset)
        return last is not None and last.offset == offset and last.exists


def _lagging(position: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
    return {p: position[p] for p, end in ends.items() if position.get(p, end) < end}
