"""Plans transactions: decides when the next one is due and which offset ranges it reads.

Invariant: each plan starts where the previous one ends, and no plan reads beyond the last stable offset. A gap between
the position and the first offset that Kafka still has is skipped only if `on_offset_loss` allows it. A position is used
only with the topic that it was stored for. Topic ids are unique, so if `confirm` still finds the id of the position
after the records were read, all of them came from that topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ingestd.clock import Deadline, monotonic, pause
from ingestd.compaction.pacing import Pace
from ingestd.errors import OffsetsLost, RangeLost
from ingestd.ingest.options import MappingOptions, OnLoss, StartOptions
from ingestd.kafka.admin import Broker, Topic
from ingestd.kafka.ranges import OffsetRange, Offsets, Position, TopicIdentity, TopicPartition, cap

# How often the ends of the partitions are read, and how often the topics are described.
_POLL_SECONDS = 0.1
_TOPICS_SECONDS = 10.0
# A new leader may briefly report an end below offsets that the former leader has already served.
_BEHIND_SECONDS = 5.0
# The assumed size of a record until a stage has measured it. A high value keeps the first transactions small.
_ASSUMED_RECORD_BYTES = 8192.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The offset ranges of one transaction, the committed position before it, and the position that it commits.

    `gaps` describes the lost offsets that the plan skips. A plan without ranges only commits a position: the start
    position of the first run, the position after a gap, or a position with new topic ids.
    """

    ranges: tuple[OffsetRange, ...]
    before: Position
    after: Position
    gaps: tuple[str, ...] = ()


class Planner:
    """Plans the transactions of one mapping. `pace` says how long after the previous transaction the next one is due.

    `confirm` and `learn_size` may be called from other threads.
    """

    def __init__(self, broker: Broker, options: MappingOptions, pace: Pace) -> None:
        self._broker = broker
        self._options = options
        self._pace = pace
        self._record_bytes = _ASSUMED_RECORD_BYTES
        self._topics: dict[str, Topic] = {}
        self._topics_expire = Deadline.after(0.0)
        self._behind: dict[TopicPartition, Deadline] = {}
        self._last_plan_at = monotonic() - options.commit.interval

    def first_position(self) -> Position:
        """Return the position where the first run of the mapping starts, according to the option `start`."""
        topics = self._broker.topics(self._options.topics)
        partitions = [partition for topic in topics.values() for partition in topic.partitions]
        offsets = start_offsets(self._broker, partitions, self._options.start)
        return Position(offsets, {name: topic.identity for name, topic in topics.items()})

    def ends(self) -> dict[TopicPartition, int]:
        """Return the last stable offset of every partition. Re-reads the partitions of the topics every 10 s."""
        if self._topics_expire.passed:
            self._describe()
        return self._broker.ends(p for topic in self._topics.values() for p in topic.partitions)

    def confirm(self, plan: Plan) -> None:
        """Raise RangeLost if a topic has been recreated since the plan was made.

        Call this after the ranges have been read.
        """
        for name, topic in self._broker.topics(sorted({r.topic for r in plan.ranges})).items():
            planned = plan.after.topics[name]
            if topic.identity.differs(planned):
                raise RangeLost(
                    f"the topic was recreated while it was being read: expected {planned}, found {topic.identity}",
                    where=f"topic {name}",
                )

    def learn_size(self, records: int, size: int) -> None:
        """Estimate the size of a record from a stage that read `records` records with `size` bytes of values."""
        if records:
            self._record_bytes = max(1.0, size / records)

    def next(
        self,
        stored: Position,
        until: Offsets | None,
        is_over: Callable[[], bool],
        on_poll: Callable[[Offsets], None] = lambda _ends: None,
    ) -> Plan | None:
        """Wait until a transaction is due and return its plan. Return None if `is_over` is true or `until` is reached.

        `stored` is the position that the previous plan commits. `is_over` is called before each poll of Kafka, and
        `on_poll` after it, with the last stable offsets. Raises InvalidTopic or BrokerUnavailable, or
        OffsetsLost if Kafka no longer has this position and `on_offset_loss` is `stop`.
        """
        # Makes `ends` re-read the topics, but only after `is_over`: an unavailable broker would delay a shutdown.
        self._topics_expire = Deadline.after(0.0)
        draft = _Draft(dict(stored.offsets), dict(stored.topics))
        while not is_over():
            ends = self.ends()
            on_poll(ends)
            self._check_topics(draft)
            self._check_partitions(draft, ends)
            goal = ends if until is None else {p: min(end, until.get(p, 0)) for p, end in ends.items()}
            waiting = sum(max(0, end - draft.offsets[p]) for p, end in goal.items())
            must_store = bool(draft.gaps) or draft.topics != stored.topics
            if until is not None and not (waiting or must_store or self._behind):
                return None
            if must_store or (waiting and (until is not None or self._is_due(waiting))):
                self._skip_expired(draft, goal)
                backlog = [OffsetRange(*p, draft.offsets[p], end) for p, end in goal.items() if end > draft.offsets[p]]
                if backlog or must_store or draft.gaps:
                    return self._plan(stored, draft, backlog)
            pause(min(_POLL_SECONDS, self._options.commit.interval / 4))
        return None

    def _describe(self) -> None:
        self._topics = self._broker.topics(self._options.topics)
        self._topics_expire = Deadline.after(_TOPICS_SECONDS)

    def _is_due(self, waiting: int) -> bool:
        return monotonic() - self._last_plan_at >= self._pace.now.interval or waiting >= self._max_offsets()

    def _max_offsets(self) -> int:
        commit = self._options.commit
        return max(1, min(commit.rows, int(commit.bytes / self._record_bytes)))

    def _plan(self, stored: Position, draft: _Draft, backlog: list[OffsetRange]) -> Plan:
        self._last_plan_at = monotonic()
        ranges = tuple(cap(backlog, self._max_offsets()))
        after = draft.offsets | {TopicPartition(r.topic, r.partition): r.next for r in ranges}
        return Plan(ranges, stored, Position(after, draft.topics), tuple(draft.gaps))

    def _check_topics(self, draft: _Draft) -> None:
        """Replace the offsets of a topic that was recreated, or that belongs to another cluster."""
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

    def _check_partitions(self, draft: _Draft, ends: Offsets) -> None:
        """Start new partitions at their first offset, and handle truncated partitions.

        A partition counts as truncated if its end has been lower than the position for a few seconds.
        """
        draft.offsets |= self._broker.earliest(p for p in ends if p not in draft.offsets)
        behind = {p: end for p, end in ends.items() if draft.offsets[p] > end}
        self._behind = {p: self._behind[p] if p in self._behind else self._recheck_later() for p in behind}
        for partition in [p for p, limit in self._behind.items() if limit.passed]:
            self._resolve_truncated(draft, partition, ends[partition])
            del self._behind[partition]

    def _recheck_later(self) -> Deadline:
        # Makes `ends` re-read the topics, which may have been recreated.
        self._topics_expire = Deadline.after(0.0)
        return Deadline.after(_BEHIND_SECONDS)

    def _resolve_truncated(self, draft: _Draft, partition: TopicPartition, end: int) -> None:
        """Continue at the end of a truncated partition, because the records before it have been ingested.

        Without a topic id, the topic may be a new one. Then `on_offset_loss: earliest` continues at its first offset.
        """
        gap = f"the partition ends at {end}, before the committed position {draft.offsets[partition]}"
        if draft.topics[partition.topic].topic_id:
            gap += ": it was truncated, and records that were already ingested are not read again"
            self._policy(draft, str(partition), gap)
            draft.offsets[partition] = end
        else:
            policy = self._policy(
                draft, str(partition), f"{gap}: the topic was recreated, or the partition was truncated"
            )
            draft.offsets[partition] = self._broker.earliest([partition])[partition] if policy == "earliest" else end

    def _skip_expired(self, draft: _Draft, goal: Offsets) -> None:
        """Skip offsets that retention removed before they were ingested."""
        first = self._broker.earliest(p for p, end in goal.items() if end > draft.offsets[p])
        for partition, earliest in first.items():
            position = draft.offsets[partition]
            if position < earliest:
                gap = f"offsets {position}..{earliest} were removed by retention"
                policy = self._policy(draft, str(partition), gap)
                draft.offsets[partition] = earliest if policy == "earliest" else goal[partition]

    def _policy(self, draft: _Draft, where: str, gap: str) -> Literal["earliest", "latest"]:
        """Record a gap and return the policy for it. Raises OffsetsLost if the policy is `stop`."""
        policy: OnLoss = self._options.on_offset_loss
        if policy == "stop":
            raise OffsetsLost(gap, where=where, hint="to continue, set on_offset_loss to earliest or latest")
        draft.gaps.append(f"{where}: {gap}; continuing with on_offset_loss: {policy}")
        return policy


@dataclass(slots=True)
class _Draft:
    """The position where the next plan starts, and the gaps that it skips. After a gap, it must be committed."""

    offsets: dict[TopicPartition, int]
    topics: dict[str, TopicIdentity]
    gaps: list[str] = field(default_factory=list)


def start_offsets(
    broker: Broker, partitions: Sequence[TopicPartition], start: StartOptions
) -> dict[TopicPartition, int]:
    """Return the first offset to read from each partition, according to the option `start`."""
    if start.at == "earliest":
        return broker.earliest(partitions)
    if start.at == "latest":
        return broker.ends(partitions)
    return broker.at_time(partitions, start.timestamp_ms)
