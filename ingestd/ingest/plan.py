"""When the next transaction is due and which offset ranges it takes.

Invariant: ranges are contiguous from the position, so the end of one plan is the position of the next; a plan never
reaches past the last stable offset, and a gap between the position and what Kafka still has is never stepped over
unless the policy says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import OffsetsLost
from ingestd.ingest.options import MappingOptions, OnLoss, StartOptions
from ingestd.kafka.broker import Broker
from ingestd.kafka.ranges import OffsetRange, Position, TopicPartition, cap

_LOOK_SECONDS = 0.1
_PARTITIONS_SECONDS = 10.0
# Until a stage has shown how large records are they are taken for large: the first transactions are small, not huge.
_FIRST_GUESS_BYTES = 8192.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of one transaction; `before` is the stored position that it follows, `after` what it will store."""

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
        self._partitions: list[TopicPartition] = []
        self._partitions_known = Deadline.after(0.0)
        self._last = monotonic() - options.commit.interval_seconds

    def first_position(self) -> dict[TopicPartition, int]:
        """Where the very first run begins."""
        return start_position(self._broker, self._options.topics, self._options.start)

    def ends(self) -> dict[TopicPartition, int]:
        """The last stable offsets of all partitions, now; which partitions there are is asked again now and then."""
        if self._partitions_known.passed:
            self._partitions = self._broker.partitions(self._options.topics)
            self._partitions_known = Deadline.after(_PARTITIONS_SECONDS)
        return self._broker.ends(self._partitions)

    def observe(self, records: int, size: int) -> None:
        """Learn the records' size from a finished stage."""
        if records:
            self._record_bytes = max(1.0, size / records)

    def next(self, stored: Position, until: Position | None, is_over: Callable[[], bool]) -> Plan | None:
        """Wait for the next plan; None once `is_over` says so, or when `until` was given and has been reached.

        `stored` is the position that the last commit stores. Raises OffsetsLost where Kafka no longer has it and the
        policy is to stop.
        """
        position = dict(stored)
        while not is_over():
            ends = self.ends()
            self._take_in(position, ends)
            goal = ends if until is None else {p: min(end, until.get(p, 0)) for p, end in ends.items()}
            waiting = sum(max(0, end - position[p]) for p, end in goal.items())
            if until is not None and not waiting:
                return None
            if waiting and (until is not None or self._is_due(waiting)):
                self._pass_over_lost(position, goal)
                backlog = [OffsetRange(*p, position[p], end) for p, end in goal.items() if end > position[p]]
                if backlog:
                    return self._plan(stored, position, backlog)
            pause(min(_LOOK_SECONDS, self._options.commit.interval_seconds / 4))
        return None

    def _is_due(self, waiting: int) -> bool:
        return monotonic() - self._last >= self._options.commit.interval_seconds or waiting >= self._most_offsets()

    def _most_offsets(self) -> int:
        commit = self._options.commit
        return max(1, min(commit.rows, int(commit.bytes / self._record_bytes)))

    def _plan(self, stored: Position, position: Position, backlog: list[OffsetRange]) -> Plan:
        self._last = monotonic()
        ranges = tuple(cap(backlog, self._most_offsets()))
        after = dict(position) | {TopicPartition(r.topic, r.partition): r.next for r in ranges}
        return Plan(ranges, dict(stored), after)

    def _take_in(self, position: dict[TopicPartition, int], ends: Position) -> None:
        """New partitions begin at their beginning; one that ends before our position was made anew or cut."""
        position |= self._broker.earliest(p for p in ends if p not in position)
        for partition, end in ends.items():
            if position[partition] > end:
                gap = f"Kafka ends at {end}, before {position[partition]}: the topic was made anew or cut"
                first = self._broker.earliest([partition])[partition]
                position[partition] = self._resolve(partition, gap, first, end)

    def _pass_over_lost(self, position: dict[TopicPartition, int], goal: Position) -> None:
        """Answer gaps at the beginning, where retention passed us."""
        first = self._broker.earliest(p for p, end in goal.items() if end > position[p])
        for partition, earliest in first.items():
            if position[partition] < earliest:
                gap = f"offsets {position[partition]}..{earliest} are gone: retention passed them"
                position[partition] = self._resolve(partition, gap, earliest, goal[partition])

    def _resolve(self, partition: TopicPartition, gap: str, earliest: int, latest: int) -> int:
        policy: OnLoss = self._options.on_offset_loss
        if policy == "stop":
            hint = "set on_offset_loss: earliest or latest to go on without them"
            raise OffsetsLost(gap, where=str(partition), hint=hint)
        self._on_gap(f"{partition}: {gap}; going on at {policy}")
        return earliest if policy == "earliest" else latest


def start_position(broker: Broker, topics: tuple[str, ...], start: StartOptions) -> dict[TopicPartition, int]:
    """Next offsets of a first run."""
    partitions = broker.partitions(topics)
    if start.at == "earliest":
        return broker.earliest(partitions)
    if start.at == "latest":
        return broker.ends(partitions)
    return broker.at_time(partitions, start.timestamp_ms)
