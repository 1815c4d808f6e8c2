"""The preview of a new position: for each partition, what it skips and what it reads again.

Invariant: a preview contains only offsets between the first offset that Kafka has and the last stable offset, and only
partitions whose position changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingestd.errors import IngestdError
from ingestd.ingest.control import PositionChange
from ingestd.ingest.options import MappingOptions, StartOptions
from ingestd.ingest.plan import start_offsets
from ingestd.ingest.stored import PartitionOffsets, StoredMapping
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import Offsets, TopicPartition


class InvalidPosition(IngestdError):
    """A requested position cannot be committed, because Kafka does not have it or the mapping does not read it."""

    exit_code = 65


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The change of one partition's next offset from `before` to `after`."""

    partition: TopicPartition
    before: int
    after: int

    @property
    def skipped(self) -> int:
        """The number of offsets that are never read."""
        return max(0, self.after - self.before)

    @property
    def read_again(self) -> int:
        """The number of offsets that are read a second time. Their rows are then in the table twice."""
        return max(0, self.before - self.after)


def offsets_at(options: MappingOptions, partitions: Sequence[TopicPartition], where: StartOptions) -> Offsets:
    """Return the first offset, the last stable offset, or the offset at a time, of each of the partitions."""
    return start_offsets(Broker(options.kafka), partitions, where)


def preview(stored: StoredMapping, offsets: Offsets) -> list[PartitionMove]:
    """Return the moves of the partitions whose next offset would change.

    Raises InvalidPosition if the mapping has no committed position or does not read a partition, or if Kafka does not
    have an offset.
    """
    where = f"mapping {stored.options.name}"
    if stored.state is None:
        hint = "the first run starts where the key `start` of the mapping says"
        raise InvalidPosition("the mapping has no committed position yet", where=where, hint=hint)
    known = {one.partition: one for one in stored.offsets}
    unknown = sorted(offsets.keys() - known.keys())
    if unknown:
        names = ", ".join(map(str, unknown))
        raise InvalidPosition(f"the mapping does not read {names}", where=where, hint="see `ingestd offsets show`")
    moves = [_move(known[partition], offset) for partition, offset in sorted(offsets.items())]
    return [move for move in moves if move.before != move.after]


def change(moves: Iterable[PartitionMove]) -> PositionChange:
    """Return the request that carries out a preview, unless the committed position has changed since."""
    moves = list(moves)
    return PositionChange({m.partition: m.before for m in moves}, {m.partition: m.after for m in moves})


def _move(known: PartitionOffsets, offset: int) -> PartitionMove:
    if not known.earliest <= offset <= known.end:
        raise InvalidPosition(
            f"Kafka does not have the offset {offset}: the partition has {known.earliest}..{known.end}",
            where=str(known.partition),
            hint=f"use an offset from {known.earliest} to {known.end}",
        )
    if known.committed is None:
        hint = "a running mapping commits a position for a new partition with its next transaction"
        raise InvalidPosition("the partition has no committed position yet", where=str(known.partition), hint=hint)
    return PartitionMove(known.partition, known.committed, offset)
