"""When the next transaction is due and which offset ranges it takes.

Invariant: ranges are contiguous from the position, so the end of one plan is the position of the next; a plan never
reaches past the last stable offset, and a gap between the position and what Kafka still has is never stepped over
unless the policy says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ingestd.clock import monotonic, pause
from ingestd.errors import OffsetsLost
from ingestd.ingest.options import MappingOptions, OnLoss, StartOptions
from ingestd.kafka.broker import Broker
from ingestd.kafka.ranges import OffsetRange, Position, TopicPartition, cap

_LOOK_SECONDS = 0.1
# Until records have been seen their size is guessed; a guess too high only makes the first transaction smaller.
_FIRST_GUESS_BYTES = 512.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of one transaction and the positions around it; `before` and `after` hold every partition."""

    ranges: tuple[OffsetRange, ...]
    before: Position
    after: Position


class Planner:
    """Watches the ends of a mapping's topics; not thread-safe, one per mapping."""

    def __init__(self, broker: Broker, options: MappingOptions, on_gap: Callable[[str], None]) -> None:
        self._broker = broker
        self._options = options
        self._on_gap = on_gap
        self._record_bytes = _FIRST_GUESS_BYTES
        self._last = monotonic() - options.commit.interval_seconds

    def first_position(self) -> dict[TopicPartition, int]:
        """Where the very first run begins."""
        return start_position(self._broker, self._options.topics, self._options.start)

    def ends(self) -> dict[TopicPartition, int]:
        """The last stable offsets of all partitions, now."""
        return self._broker.ends(self._broker.partitions(self._options.topics))

    def observe(self, records: int, size: int) -> None:
        """Learn the records' size from a finished stage."""
        if records:
            self._record_bytes = max(1.0, size / records)

    def next(self, position: Position, until: Position | None, is_over: Callable[[], bool]) -> Plan | None:
        """Wait for the next plan; None once `is_over` says so, or when `until` was given and has been reached.

        Raises OffsetsLost where Kafka no longer has the position and the policy is to stop.
        """
        while not is_over():
            ends = self.ends()
            position = self._complete(position, ends)
            reachable = {p: min(end, until.get(p, 0)) for p, end in ends.items()} if until is not None else ends
            backlog = [OffsetRange(*p, position[p], end) for p, end in reachable.items() if end > position[p]]
            if until is not None and not backlog:
                return None
            if backlog and (until is not None or self._is_due(backlog)):
                return self._plan(backlog, position)
            pause(min(_LOOK_SECONDS, self._options.commit.interval_seconds / 4))
        return None

    def _is_due(self, backlog: list[OffsetRange]) -> bool:
        waiting = monotonic() - self._last >= self._options.commit.interval_seconds
        return waiting or sum(r.span for r in backlog) >= self._most_offsets()

    def _most_offsets(self) -> int:
        commit = self._options.commit
        return max(1, min(commit.rows, int(commit.bytes / self._record_bytes)))

    def _plan(self, backlog: list[OffsetRange], position: Position) -> Plan:
        self._last = monotonic()
        ranges = tuple(cap(backlog, self._most_offsets()))
        after = dict(position) | {TopicPartition(r.topic, r.partition): r.next for r in ranges}
        return Plan(ranges, dict(position), after)

    def _complete(self, position: Position, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The position with new partitions added, from their beginning, and gaps answered as the policy says."""
        complete = dict(position)
        new = [p for p in ends if p not in complete]
        complete |= self._broker.earliest(new)
        first = self._broker.earliest(p for p in ends if complete[p] < ends[p])
        for partition, end in ends.items():
            at = complete[partition]
            if at > end:
                complete[partition] = self._resolve(partition, at, end, first.get(partition, 0), end)
            elif at < first.get(partition, 0):
                complete[partition] = self._resolve(partition, at, first[partition], first[partition], end)
        return complete

    def _resolve(self, partition: TopicPartition, at: int, gap_end: int, earliest: int, latest: int) -> int:
        gap = f"offsets {at}..{gap_end} are gone" if gap_end > at else f"Kafka ends at {gap_end}, before {at}"
        policy: OnLoss = self._options.on_offset_loss
        if policy == "stop":
            raise OffsetsLost(
                f"{gap}: retention passed them or the topic was made anew",
                where=str(partition),
                hint="set on_offset_loss: earliest or latest to go on without them",
            )
        self._on_gap(f"{partition}: {gap}, going on at {policy}")
        return earliest if policy == "earliest" else latest


def start_position(broker: Broker, topics: tuple[str, ...], start: StartOptions) -> dict[TopicPartition, int]:
    """Next offsets of a first run."""
    partitions = broker.partitions(topics)
    if start.at == "earliest":
        return broker.earliest(partitions)
    if start.at == "latest":
        return broker.ends(partitions)
    return broker.at_time(partitions, start.timestamp_ms)
