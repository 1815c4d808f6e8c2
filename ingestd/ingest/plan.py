"""When the next transaction is due and which offset ranges it takes.

Invariant: ranges are contiguous from the position, so the end of one plan is the position of the next; a plan never
reaches past the last stable offset, and a gap between the position and what Kafka still has is never stepped over
unless the policy says so. A position is used only with the topic that it was stored for: topic ids are unique, so when
`confirm` finds the id of the position after the records were read, all of them came from that topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import OffsetsLost, RangeLost
from ingestd.ingest.options import MappingOptions, OnLoss, StartOptions
from ingestd.kafka.admin import Broker, Topic
from ingestd.kafka.ranges import OffsetRange, Offsets, Position, TopicIdentity, TopicPartition, cap

_LOOK_SECONDS = 0.1
_TOPICS_SECONDS = 10.0
# A new leader may for a moment report an end that is lower than what its predecessor had already served.
_BEHIND_SECONDS = 5.0
# Until a stage has shown how large records are they are taken for large: the first transactions are small, not huge.
_FIRST_GUESS_BYTES = 8192.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of one transaction; `before` is the stored position that it follows, `after` what it will store.

    `gaps` says which lost offsets it passes over. A plan without ranges only stores a position: one that replaces a
    lost one, or one whose topics were unknown.
    """

    ranges: tuple[OffsetRange, ...]
    before: Position
    after: Position
    gaps: tuple[str, ...] = ()


class Planner:
    """Watches the ends of a mapping's topics; not thread-safe, one per mapping."""

    def __init__(self, broker: Broker, options: MappingOptions) -> None:
        self._broker = broker
        self._options = options
        self._record_bytes = _FIRST_GUESS_BYTES
        self._topics: dict[str, Topic] = {}
        self._topics_known = Deadline.after(0.0)
        self._behind: dict[TopicPartition, Deadline] = {}
        self._last = monotonic() - options.commit.interval

    def first_position(self) -> Position:
        """Where the very first run begins."""
        topics = self._broker.topics(self._options.topics)
        partitions = [partition for topic in topics.values() for partition in topic.partitions]
        offsets = start_offsets(self._broker, partitions, self._options.start)
        return Position(offsets, {name: topic.identity for name, topic in topics.items()})

    def ends(self) -> dict[TopicPartition, int]:
        """The last stable offsets of all partitions, now; the topics are described again every few seconds."""
        if self._topics_known.passed:
            self._describe()
        return self._broker.ends(p for topic in self._topics.values() for p in topic.partitions)

    def confirm(self, plan: Plan) -> None:
        """Raise RangeLost when a topic is no longer the one that was planned; call it after the ranges were read."""
        for name, topic in self._broker.topics(sorted({r.topic for r in plan.ranges})).items():
            planned = plan.after.topics[name]
            if topic.identity.differs(planned):
                raise RangeLost(
                    f"the topic was recreated while it was read: planned {planned}, found {topic.identity}",
                    where=f"topic {name}",
                )

    def observe(self, records: int, size: int) -> None:
        """Learn the records' size from a finished stage."""
        if records:
            self._record_bytes = max(1.0, size / records)

    def next(self, stored: Position, until: Offsets | None, is_over: Callable[[], bool]) -> Plan | None:
        """Wait for the next plan; None once `is_over` says so, or when `until` was given and has been reached.

        `stored` is the position that the last commit stores. Raises OffsetsLost where Kafka no longer has it and the
        policy is to stop.
        """
        self._topics_known = Deadline.after(0.0)  # described below, unless it is over: a silent broker takes its time
        draft = _Draft(dict(stored.offsets), dict(stored.topics))
        while not is_over():
            ends = self.ends()
            self._follow_topics(draft)
            self._take_in(draft, ends)
            goal = ends if until is None else {p: min(end, until.get(p, 0)) for p, end in ends.items()}
            waiting = sum(max(0, end - draft.offsets[p]) for p, end in goal.items())
            must_store = bool(draft.gaps) or draft.topics != stored.topics
            if until is not None and not (waiting or must_store or self._behind):
                return None
            if must_store or (waiting and (until is not None or self._is_due(waiting))):
                self._pass_over_lost(draft, goal)
                backlog = [OffsetRange(*p, draft.offsets[p], end) for p, end in goal.items() if end > draft.offsets[p]]
                if backlog or must_store or draft.gaps:
                    return self._plan(stored, draft, backlog)
            pause(min(_LOOK_SECONDS, self._options.commit.interval / 4))
        return None

    def _describe(self) -> None:
        self._topics = self._broker.topics(self._options.topics)
        self._topics_known = Deadline.after(_TOPICS_SECONDS)

    def _is_due(self, waiting: int) -> bool:
        return monotonic() - self._last >= self._options.commit.interval or waiting >= self._most_offsets()

    def _most_offsets(self) -> int:
        commit = self._options.commit
        return max(1, min(commit.rows, int(commit.bytes / self._record_bytes)))

    def _plan(self, stored: Position, draft: _Draft, backlog: list[OffsetRange]) -> Plan:
        self._last = monotonic()
        ranges = tuple(cap(backlog, self._most_offsets()))
        after = draft.offsets | {TopicPartition(r.topic, r.partition): r.next for r in ranges}
        return Plan(ranges, stored, Position(after, draft.topics), tuple(draft.gaps))

    def _follow_topics(self, draft: _Draft) -> None:
        """Give up the offsets of a topic that was recreated, or that another cluster has under the same name."""
        for name, topic in self._topics.items():
            known = draft.topics.get(name, TopicIdentity())
            if topic.identity.differs(known):
                gap = (
                    f"the topic was recreated, or this is another cluster: the committed position belongs to {known}, "
                    f"found {topic.identity}"
                )
                policy = self._policy(draft, f"topic {name}", gap)
                at = self._broker.earliest if policy == "earliest" else self._broker.ends
                kept = {p: offset for p, offset in draft.offsets.items() if p.topic != name}
                draft.offsets = kept | at(topic.partitions)
                draft.topics[name] = topic.identity
            else:
                draft.topics[name] = known.merged(topic.identity)

    def _take_in(self, draft: _Draft, ends: Offsets) -> None:
        """New partitions begin at their beginning; one that ends before our position for some seconds was truncated."""
        draft.offsets |= self._broker.earliest(p for p in ends if p not in draft.offsets)
        behind = {p: end for p, end in ends.items() if draft.offsets[p] > end}
        self._behind = {p: self._behind[p] if p in self._behind else self._look_again() for p in behind}
        for partition in [p for p, limit in self._behind.items() if limit.passed]:
            self._resolve_truncated(draft, partition, ends[partition])
            del self._behind[partition]

    def _look_again(self) -> Deadline:
        # Whether the topic was recreated must not be answered from what is remembered.
        self._topics_known = Deadline.after(0.0)
        return Deadline.after(_BEHIND_SECONDS)

    def _resolve_truncated(self, draft: _Draft, partition: TopicPartition, end: int) -> None:
        """Go on at the end: what lies before it was ingested already, unless it may be another topic's."""
        gap = f"Kafka ends at {end}, before the committed position {draft.offsets[partition]}"
        if draft.topics[partition.topic].topic_id:
            gap += ": the partition was truncated; what was ingested is not read again"
            self._policy(draft, str(partition), gap)
            draft.offsets[partition] = end
        else:
            policy = self._policy(draft, str(partition), f"{gap}: the topic was recreated or truncated")
            draft.offsets[partition] = self._broker.earliest([partition])[partition] if policy == "earliest" else end

    def _pass_over_lost(self, draft: _Draft, goal: Offsets) -> None:
        """Answer gaps at the beginning, where retention passed us."""
        first = self._broker.earliest(p for p, end in goal.items() if end > draft.offsets[p])
        for partition, earliest in first.items():
            position = draft.offsets[partition]
            if position < earliest:
                gap = f"offsets {position}..{earliest} are gone: retention passed them"
                policy = self._policy(draft, str(partition), gap)
                draft.offsets[partition] = earliest if policy == "earliest" else goal[partition]

    def _policy(self, draft: _Draft, where: str, gap: str) -> Literal["earliest", "latest"]:
        """How to go on. Raises OffsetsLost when the policy is to stop."""
        policy: OnLoss = self._options.on_offset_loss
        if policy == "stop":
            raise OffsetsLost(gap, where=where, hint="set on_offset_loss: earliest or latest to continue")
        draft.gaps.append(f"{where}: {gap}; continuing with on_offset_loss: {policy}")
        return policy


@dataclass(slots=True)
class _Draft:
    """The position that the next plan begins at, and the gaps that it passes over, which must be stored."""

    offsets: dict[TopicPartition, int]
    topics: dict[str, TopicIdentity]
    gaps: list[str] = field(default_factory=list)


def start_offsets(
    broker: Broker, partitions: Sequence[TopicPartition], start: StartOptions
) -> dict[TopicPartition, int]:
    """Next offsets of a first run."""
    if start.at == "earliest":
        return broker.earliest(partitions)
    if start.at == "latest":
        return broker.ends(partitions)
    return broker.at_time(partitions, start.timestamp_ms)
