"""The planner on a real broker, with committed positions that no daemon in a test would store."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from ingestd.compaction.pacing import Pace
from ingestd.errors import BrokerUnavailable, OffsetsLost, RangeLost
from ingestd.hive.tables import TableName
from ingestd.ingest.options import CommitOptions, MappingOptions, OnLoss
from ingestd.ingest.plan import Plan, Planner
from ingestd.ingest.workers import Workers
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import OffsetRange, Offsets, Position, TopicIdentity, TopicPartition
from ingestd.kafka.watch import Watch
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

ELSEWHERE = "another-cluster-000000"


class _Case:
    """A topic with one partition and five records, and the planner of its mapping."""

    def __init__(self, stack: Stack, policy: OnLoss) -> None:
        self.name = stack.topic(1)
        self._stack = stack
        self.produce()
        settings = {"bootstrap.servers": stack.addresses.kafka}
        broker = Broker(settings)
        self.workers = Workers(1)
        self.identity = eventually("the topic", lambda: broker.topics([self.name]))[self.name].identity
        table = TableName("default", self.name)
        commit = CommitOptions(interval=0.1)
        options = MappingOptions(self.name, (self.name,), table, commit=commit, on_offset_loss=policy, kafka=settings)
        pace = Pace(options.pacing, commit.interval, lambda _: None)
        self.planner = Planner(options, pace, Watch(broker), self.workers.worker())

    def produce(self) -> None:
        self._stack.produce([{"id": n} for n in range(5)], partition=0)

    def position(self, offset: int, identity: TopicIdentity) -> Position:
        return Position({TopicPartition(self.name, 0): offset}, {self.name: identity})

    def plan(self, stored: Position, on_poll: Callable[[Offsets], None] = lambda _: None) -> Plan:
        with self.planner.watching():
            plan = self.workers.start(self.planner.next(stored, None, lambda: False, on_poll)).result(LIMIT)
        self.workers.close()
        assert plan is not None
        return plan


def test_partition_when_its_end_is_reported_too_low_for_a_moment_then_nothing_is_lost(stack: Stack) -> None:
    """A new leader may report an end offset below offsets that the old leader has served."""
    case = _Case(stack, "stop")
    looks: list[Offsets] = []

    def look(ends: Offsets) -> None:
        looks.append(ends)
        if len(looks) == 2:
            case.produce()

    plan = case.plan(case.position(8, case.identity), look)
    assert len(looks) > 2
    assert plan.ranges == (OffsetRange(case.name, 0, 8, 10, epoch=0),)
    assert plan.gaps == ()


def test_topic_when_its_id_is_unknown_and_the_cluster_differs_then_the_position_is_lost(stack: Stack) -> None:
    case = _Case(stack, "stop")
    with pytest.raises(OffsetsLost, match=ELSEWHERE):
        case.plan(case.position(3, TopicIdentity(ELSEWHERE)))


def test_topic_when_its_id_was_unknown_in_the_same_cluster_then_it_is_stored_with_the_next_plan(stack: Stack) -> None:
    case = _Case(stack, "stop")
    stored = case.position(5, TopicIdentity(case.identity.cluster_id))
    plan = case.plan(stored)
    assert (plan.ranges, plan.before, plan.after, plan.gaps) == ((), stored, case.position(5, case.identity), ())


def test_plan_when_the_topic_was_recreated_after_the_read_then_the_range_is_lost(stack: Stack) -> None:
    case = _Case(stack, "earliest")
    plan = case.plan(case.position(0, case.identity))
    case.planner.confirm(plan)
    other = TopicIdentity(case.identity.cluster_id, "AAAAAAAAAAAAAAAAAAAAAQ")
    with pytest.raises(RangeLost, match="recreated"):
        case.planner.confirm(Plan(plan.ranges, plan.before, case.position(5, other)))


def test_broker_when_it_never_answers_then_the_error_is_raised_and_a_stop_ends_the_wait_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        options = MappingOptions("silent", ("silent",), TableName("default", "silent"), kafka=settings)
        workers, over = Workers(1), threading.Event()
        # Longer than the planner waits for an answer without checking for a stop.
        watch, worker = Watch(Broker(settings, timeout_seconds=6)), workers.worker()
        planner = Planner(options, Pace(options.pacing, 1.0, lambda _: None), watch, worker)
        with planner.watching():
            failing = workers.start(planner.next(Position(), None, lambda: False, lambda _: None))
            with pytest.raises(BrokerUnavailable):
                failing.result(LIMIT)
            waiting = workers.start(planner.next(Position(), None, over.is_set, lambda _: None))
            over.set()
            worker.wake()
            assert waiting.result(LIMIT) is None
        workers.close()
