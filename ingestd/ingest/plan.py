"""Plans transactions: decides when the next one is due and which offset ranges it reads.

Invariant: each plan starts where the previous one ends, and no plan reads beyond the last stable offset. A gap between
the position and the first offset that Kafka still has is skipped only if `on_offset_loss` allows it. A position is used
only with the topic that it was stored for. Topic ids are unique, so if `confirm` still finds the id of the position
after the records were read, all of them came from that topic. And it is used only with a log that contains the records
before it: after each election of a leader, `find_truncated` asks the new leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from ingestd.clock import Deadline, monotonic
from ingestd.compaction.pacing import Pace
from ingestd.errors import OffsetsLost, RangeLost
from ingestd.ingest.options import MappingOptions, OnLoss, StartOptions
from ingestd.ingest.workers import Worker
from ingestd.kafka.admin import Broker, Topic
from ingestd.kafka.ranges import EpochOffset, OffsetRange, Offsets, Position, TopicIdentity, TopicPartition, cap
from ingestd.kafka.truncation import find_truncated
from ingestd.kafka.watch import Subscription, View, Watch

# How often the ends of the partitions are polled while no transaction is due: the limits, and the number of polls per
# `commit.interval` between them.
_POLL_SECONDS = 0.05, 1.0
_POLLS_PER_INTERVAL = 8
# How often a mapping decides again if there is nothing new, and how often it checks whether an answer has arrived.
_IDLE_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
# A new leader may briefly report an end below offsets that the former leader has already served.
_BEHIND_SECONDS = 5.0
_BEHIND_POLL_SECONDS = 0.1
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

    def __init__(self, options: MappingOptions, pace: Pace, watch: Watch, worker: Worker) -> None:
        self._options = options
        self._pace = pace
        self._watch = watch
        self._broker = watch.broker
        self._worker = worker
        self._subscription: Subscription | None = None
        self._record_bytes = _ASSUMED_RECORD_BYTES
        self._behind: dict[TopicPartition, Deadline] = {}
        # The epoch of the last leader whose log was found to contain the records before the position.
        self._verified: dict[TopicPartition, int] = {}
        self._last_plan_at = monotonic() - options.commit.interval

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the topics during the block. The other methods can be called only inside it."""
        seconds = min(_POLL_SECONDS[1], max(_POLL_SECONDS[0], self._options.commit.interval / _POLLS_PER_INTERVAL))
        self._subscription = self._watch.subscribe(self._options.topics, seconds, self._worker.wake)
        self._verified.clear()
        try:
            yield
        finally:
            self._subscription.close()

    @property
    def _kafka(self) -> Subscription:
        assert self._subscription is not None, "the planner is not watching"
        return self._subscription

    def ends(self) -> Mapping[TopicPartition, int]:
        """Request the last stable offset of every partition, and wait for the answer."""
        return self._kafka.read().ends

    @property
    def latest(self) -> View:
        """The last answer of Kafka, even if a later request has failed."""
        return self._kafka.latest

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

    async def next(
        self, stored: Position, until: Offsets | None, is_over: Callable[[], bool], on_poll: Callable[[Offsets], None]
    ) -> Plan | None:
        """Wait until a transaction is due and return its plan. Return None if `is_over` is true or `until` is reached.

        `stored` is the position that the previous plan commits. `on_poll` is called with the last stable offsets in
        another thread. Raises InvalidTopic or BrokerUnavailable, or OffsetsLost if Kafka no longer has this position
        and `on_offset_loss` is `stop`.
        """
        draft = _Draft(stored, dict(stored.offsets), dict(stored.topics), dict(stored.epochs))
        choice = _Choice(0.0, is_fresh=True)
        while not is_over():
            if choice.is_fresh and not await self._is_answered(is_over):
                break
            view = self._kafka.checked()
            choice = await self._worker.call(self._choose, view, draft, until, on_poll)
            if choice.is_over:
                return choice.plan
            if choice.waiting:
                self._kafka.ask_in(min(_POLL_SECONDS[1], choice.seconds))
            await self._worker.wait(choice.seconds, lambda: is_over() or self._has_news(view, draft, choice))  # noqa: B023
        return None

    async def _is_answered(self, is_over: Callable[[], bool]) -> bool:
        """Request a new view and wait for it. Return False if `is_over` is true first."""
        since = self._kafka.ask_now(describing=bool(self._behind))
        while not self._kafka.is_answered(since) and not is_over():
            await self._worker.wait(_ANSWER_SECONDS, lambda: is_over() or self._kafka.is_answered(since))
        return self._kafka.is_answered(since)

    def _choose(self, view: View, draft: _Draft, until: Offsets | None, on_poll: Callable[[Offsets], None]) -> _Choice:
        """Decide whether a transaction is due, and what it reads."""
        ends = view.ends
        on_poll(ends)
        self._check_topics(draft, view.topics)
        self._check_partitions(draft, view)
        goal = ends if until is None else {p: min(end, until.get(p, 0)) for p, end in ends.items()}
        waiting = sum(max(0, end - draft.offsets[p]) for p, end in goal.items())
        must_store = bool(draft.gaps) or draft.topics != draft.stored.topics
        if until is not None and not (waiting or must_store or self._behind):
            return _Choice(0.0, is_over=True)
        seconds = 0.0 if until is not None else self._seconds_until_due()
        if must_store or (waiting and (seconds <= 0 or waiting >= self._max_offsets())):
            self._skip_expired(draft, goal)
            backlog = [
                OffsetRange(*p, draft.offsets[p], end, view.epochs.get(p))
                for p, end in goal.items()
                if end > draft.offsets[p]
            ]
            if backlog or must_store or draft.gaps:
                return _Choice(0.0, is_over=True, plan=self._plan(draft, backlog))
        if self._behind:
            return _Choice(_BEHIND_POLL_SECONDS, is_fresh=True)
        return _Choice(min(seconds, _IDLE_SECONDS) if waiting else _IDLE_SECONDS, is_fresh=waiting > 0, waiting=waiting)

    def _has_news(self, view: View, draft: _Draft, choice: _Choice) -> bool:
        """Return whether the planner must decide again before `choice.seconds` have passed. Makes no request."""
        latest = self._kafka.latest
        if self._kafka.has_failed or latest.topics != view.topics:
            return True
        if not choice.waiting:
            return latest.ends != view.ends
        return sum(max(0, end - draft.offsets[p]) for p, end in latest.ends.items()) >= self._max_offsets()

    def _seconds_until_due(self) -> float:
        return max(0.0, self._last_plan_at + self._pace.now.interval - monotonic())

    def _max_offsets(self) -> int:
        commit = self._options.commit
        return max(1, min(commit.rows, int(commit.bytes / self._record_bytes)))

    def _plan(self, draft: _Draft, backlog: list[OffsetRange]) -> Plan:
        self._last_plan_at = monotonic()
        ranges = tuple(cap(backlog, self._max_offsets()))
        moved = {TopicPartition(r.topic, r.partition): r for r in ranges}
        after = draft.offsets | {p: r.next for p, r in moved.items()}
        epochs = {p: epoch for p, epoch in draft.epochs.items() if p not in moved}
        epochs |= {p: r.epoch for p, r in moved.items() if r.epoch is not None}
        return Plan(ranges, draft.stored, Position(after, draft.topics, epochs), tuple(draft.gaps))

    def _check_topics(self, draft: _Draft, topics: Mapping[str, Topic]) -> None:
        """Replace the offsets of a topic that was recreated, or that belongs to another cluster."""
        for name, topic in topics.items():
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
                draft.epochs = {p: epoch for p, epoch in draft.epochs.items() if p.topic != name}
                draft.topics[name] = topic.identity
            else:
                draft.topics[name] = known.merged(topic.identity)

    def _check_partitions(self, draft: _Draft, view: View) -> None:
        """Start new partitions at their first offset, and handle truncated partitions.

        Where the leader cannot say whether its log contains the position, a partition counts as truncated if its end
        has been lower than the position for a few seconds.
        """
        ends = view.ends
        draft.offsets |= self._broker.earliest(p for p in ends if p not in draft.offsets)
        verified = self._check_elections(draft, view)
        behind = {p: end for p, end in ends.items() if draft.offsets[p] > end and p not in verified}
        self._behind = {p: self._behind[p] if p in self._behind else Deadline.after(_BEHIND_SECONDS) for p in behind}
        for partition in [p for p, limit in self._behind.items() if limit.passed]:
            self._resolve_truncated(draft, partition, ends[partition])
            del self._behind[partition]

    def _check_elections(self, draft: _Draft, view: View) -> set[TopicPartition]:
        """Ask each leader that was elected after the position was read whether its log contains the records before it.

        If not, the partition was truncated, whatever its end is now: it may have grown beyond the position since. Its
        records from there on are new. Returns the partitions of which the leader has all records before the position.

        Epochs are those of one topic. Without a topic id, they may be those of a recreated topic, and are not used.
        """
        known = {p: epoch for p, epoch in draft.epochs.items() if draft.topics[p.topic].topic_id}
        epochs = {p: epoch for p, epoch in view.epochs.items() if known.get(p, epoch) < epoch}
        unknown = {p for p, epoch in epochs.items() if self._verified.get(p) != epoch}
        marks = {p: EpochOffset(draft.offsets[p], draft.epochs[p]) for p in unknown}
        truncated = find_truncated(self._options.reader, marks, self._broker.timeout_seconds) if marks else {}
        for partition, at in truncated.items():
            gap = (
                f"the partition was truncated at {at}, before the committed position {draft.offsets[partition]}, by an "
                "unclean leader election; records that were already ingested are not read again"
            )
            policy = self._policy(draft, str(partition), gap)
            draft.move(partition, at if policy == "earliest" else max(at, view.ends[partition]))
        self._verified |= {p: epochs[p] for p in unknown - truncated.keys()}
        return epochs.keys() - truncated.keys()

    def _resolve_truncated(self, draft: _Draft, partition: TopicPartition, end: int) -> None:
        """Continue at the end of a truncated partition, because the records before it have been ingested.

        Without a topic id, the topic may be a new one. Then `on_offset_loss: earliest` continues at its first offset.
        """
        gap = f"the partition ends at {end}, before the committed position {draft.offsets[partition]}"
        if draft.topics[partition.topic].topic_id:
            gap += ": it was truncated, and records that were already ingested are not read again"
            self._policy(draft, str(partition), gap)
            draft.move(partition, end)
        else:
            policy = self._policy(
                draft, str(partition), f"{gap}: the topic was recreated, or the partition was truncated"
            )
            draft.move(partition, self._broker.earliest([partition])[partition] if policy == "earliest" else end)

    def _skip_expired(self, draft: _Draft, goal: Offsets) -> None:
        """Skip offsets that retention removed before they were ingested."""
        first = self._broker.earliest(p for p, end in goal.items() if end > draft.offsets[p])
        for partition, earliest in first.items():
            position = draft.offsets[partition]
            if position < earliest:
                gap = f"offsets {position}..{earliest} were removed by retention"
                policy = self._policy(draft, str(partition), gap)
                draft.move(partition, earliest if policy == "earliest" else goal[partition])

    def _policy(self, draft: _Draft, where: str, gap: str) -> Literal["earliest", "latest"]:
        """Record a gap and return the policy for it. Raises OffsetsLost if the policy is `stop`."""
        policy: OnLoss = self._options.on_offset_loss
        if policy == "stop":
            raise OffsetsLost(gap, where=where, hint="to continue, set on_offset_loss to earliest or latest")
        draft.gaps.append(f"{where}: {gap}; continuing with on_offset_loss: {policy}")
        return policy


@dataclass(slots=True)
class _Draft:
    """The position where the next plan starts, and the gaps that it skips. After a gap, it must be committed.

    `stored` is the position of the previous plan.
    """

    stored: Position
    offsets: dict[TopicPartition, int]
    topics: dict[str, TopicIdentity]
    epochs: dict[TopicPartition, int]
    gaps: list[str] = field(default_factory=list)

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Set the offset of a partition. It is not known in which epoch the record before it was written."""
        self.offsets[partition] = offset
        self.epochs.pop(partition, None)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The decision of the planner: a plan, or the seconds to wait before the next decision.

    `waiting` is the number of offsets that are not due yet. If `is_fresh`, the next decision needs a fresh view.
    """

    seconds: float
    waiting: int = 0
    is_fresh: bool = False
    is_over: bool = False
    plan: Plan | None = None


def first_position(broker: Broker, options: MappingOptions) -> Position:
    """Return the position where the first run of a mapping starts, according to the option `start`."""
    topics = broker.topics(options.topics)
    partitions = [partition for topic in topics.values() for partition in topic.partitions]
    offsets = start_offsets(broker, partitions, options.start)
    return Position(offsets, {name: topic.identity for name, topic in topics.items()})


def start_offsets(
    broker: Broker, partitions: Sequence[TopicPartition], start: StartOptions
) -> dict[TopicPartition, int]:
    """Return the first offset to read from each partition, according to the option `start`."""
    if start.at == "earliest":
        return broker.earliest(partitions)
    if start.at == "latest":
        return broker.ends(partitions)
    return broker.at_time(partitions, start.timestamp_ms)
