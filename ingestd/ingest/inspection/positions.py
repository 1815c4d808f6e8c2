"""The preview of a new position: for each partition, what it skips and what it reads again.

Invariant: a preview contains only offsets between the first offset that Kafka has and the last stable offset, and only
partitions whose position changes, or whose topic was recreated: a position in its new topic must be complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ingestd.errors import IngestdError
from ingestd.ingest.control import PositionChange
from ingestd.ingest.inspection.stored import PartitionOffsets, StoredMapping
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import Offsets, TopicPartition


class InvalidPosition(IngestdError):
    """A requested position cannot be committed, because Kafka does not have it or the mapping does not read it."""

    exit_code = 65


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The change of one partition's next offset from `before` to `after`.

    `before` is None if no position is committed. `read_to` is where a transaction would start without the change.
    """

    partition: TopicPartition
    before: int | None
    after: int
    read_to: int

    @property
    def skipped(self) -> int:
        """The number of offsets that are never read."""
        return max(0, self.after - self.read_to)

    @property
    def read_again(self) -> int:
        """The number of offsets that are read a second time. Their rows are then in the table twice."""
        return max(0, self.read_to - self.after)


@dataclass(frozen=True, slots=True)
class NewPosition:
    """Where every partition continues: the first offset that Kafka has, the last stable offset, a time, or an offset.

    `value` is the time in milliseconds since 1970 (UTC), or the offset.
    """

    at: Literal["earliest", "latest", "timestamp", "offset"]
    value: int = 0

    def offsets(self, stored: StoredMapping, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the offset in each of the partitions, at most the end that `stored` contains.

        Records may have arrived since then. Raises InvalidPosition if the mapping does not read a partition,
        BrokerUnavailable or InvalidTopic.
        """
        known = _known(stored, partitions)
        if self.at == "offset":
            return dict.fromkeys(partitions, self.value)
        if self.at == "earliest":
            return {offsets.partition: offsets.earliest for offsets in known}
        ends = {offsets.partition: offsets.end for offsets in known}
        if self.at == "latest":
            return ends
        at_time = Broker(stored.options.kafka).at_time(partitions, self.value)
        return {partition: min(at_time[partition], end) for partition, end in ends.items()}


def preview(stored: StoredMapping, offsets: Offsets) -> list[PartitionMove]:
    """Return the moves of the partitions whose next offset would change.

    Raises InvalidPosition if the mapping has never run or does not read a partition, or if Kafka does not have an
    offset.
    """
    if stored.state is None:
        hint = "the first run starts where the key `start` of the mapping says"
        raise InvalidPosition("the mapping has no committed position yet", where=_where(stored), hint=hint)
    moves = [_move(stored, known, offsets[known.partition]) for known in _known(stored, sorted(offsets))]
    return [
        move
        for move in moves
        if move.before != move.after or move.read_to != move.after or stored.is_recreated(move.partition.topic)
    ]


def position_change(moves: Iterable[PartitionMove]) -> PositionChange:
    """Return the request that carries out a preview, unless the committed position has changed since."""
    moves = list(moves)
    expected = {move.partition: move.before for move in moves if move.before is not None}
    return PositionChange(expected, {move.partition: move.after for move in moves})


def _known(stored: StoredMapping, partitions: Sequence[TopicPartition]) -> list[PartitionOffsets]:
    """Return what is known about the partitions, in their order."""
    known = {offset.partition: offset for offset in stored.offsets}
    if unknown := sorted(set(partitions) - known.keys()):
        names = ", ".join(map(str, unknown))
        hint = "see `ingestd offsets show`"
        raise InvalidPosition(f"the mapping does not read {names}", where=_where(stored), hint=hint)
    return [known[partition] for partition in partitions]


def _where(stored: StoredMapping) -> str:
    return f"mapping {stored.options.name}"


def _move(stored: StoredMapping, known: PartitionOffsets, offset: int) -> PartitionMove:
    if not known.earliest <= offset <= known.end:
        raise InvalidPosition(
            f"Kafka does not have the offset {offset}: the partition has {known.earliest}..{known.end}",
            where=str(known.partition),
            hint=f"use an offset from {known.earliest} to {known.end}",
        )
    before = known.committed
    # A position in the old topic says nothing about the records of the recreated one, and a position after the end of a
    # truncated partition says nothing about the records that will follow.
    is_new = before is None or stored.is_recreated(known.partition.topic)
    read_to = known.earliest if is_new else min(known.end, before or 0)
    return PartitionMove(known.partition, before, offset, read_to)
