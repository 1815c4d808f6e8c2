"""The lag of a mapping in seconds: the age of the oldest record that is not committed."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from ingestd.clock import now
from ingestd.ingest.monitoring.lag_watch import LagWatch
from ingestd.ingest.monitoring.monitor import Monitor
from ingestd.ingest.monitoring.oldest import OldestRecords
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.shared import KafkaClients
from ingestd.kafka.timestamps import FirstRecord
from tests.support.daemon import Hold
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
# Seconds that a test may take. The ages of its records differ by more.
_TOLERANCE = 600


def _oldest(*records: FirstRecord) -> OldestRecords:
    made = OldestRecords()
    made.learn(records)
    return made


def test_oldest_when_partitions_have_lag_then_is_the_minimum_of_their_first_records() -> None:
    known = _oldest(FirstRecord(A, 10, 500.0), FirstRecord(B, 20, 400.0))
    assert known.oldest({A: 10, B: 20}, {A: 12, B: 22}) == 400.0
    assert known.oldest({A: 10, B: 22}, {A: 12, B: 22}) == 500.0
    assert known.oldest({A: 12, B: 22}, {A: 12, B: 22}) is None
    assert known.unread({A: 10, B: 20}, {A: 12, B: 22}) == {}


def test_oldest_when_a_record_is_not_known_then_that_of_an_earlier_offset_counts_until_it_is_read() -> None:
    known = _oldest(FirstRecord(A, 10, 500.0), FirstRecord(A, 15, 600.0))
    assert known.oldest({A: 13}, {A: 30}) == 500.0
    assert known.unread({A: 13}, {A: 30}) == {A: 13}
    assert known.oldest({A: 15}, {A: 30}) == 600.0
    assert known.unread({A: 15}, {A: 30}) == {}
    known.polled({A: 17}, {A: 30})
    assert known.oldest({A: 17}, {A: 30}) == 600.0
    assert known.oldest({A: 12}, {A: 30}) is None


def test_oldest_when_a_partition_had_no_lag_then_its_next_record_is_younger_than_that() -> None:
    known = _oldest(FirstRecord(A, 10, 500.0))
    before = now()
    known.polled({A: 20}, {A: 20})
    oldest = known.oldest({A: 20}, {A: 21})
    assert oldest is not None
    assert before <= oldest <= now()
    assert known.unread({A: 20}, {A: 21}) == {A: 20}


def test_oldest_when_the_position_is_set_back_then_nothing_is_known_about_the_partition() -> None:
    known = _oldest(FirstRecord(A, 10, 500.0), FirstRecord(A, 20, 600.0))
    known.moved({A: 15}, {A: 5})
    assert known.oldest({A: 20}, {A: 30}) is None
    assert known.unread({A: 5}, {A: 30}) == {A: 5}


def test_oldest_when_a_timestamp_is_in_the_future_then_the_record_counts_from_when_it_was_read() -> None:
    before = now()
    oldest = _oldest(FirstRecord(A, 10, before + 5_000)).oldest({A: 10}, {A: 12})
    assert oldest is not None
    assert before <= oldest <= now()


def _produce(stack: Stack, value: bytes, seconds_ago: float) -> None:
    """Produce a record with a timestamp in the past."""
    producer = Producer({"bootstrap.servers": stack.addresses.kafka})
    producer.produce(stack.name, value, partition=0, timestamp=int((now() - seconds_ago) * 1000))
    assert producer.flush(LIMIT) == 0


def _lag_seconds(monitor: Monitor) -> float:
    """Return the lag once it is known exactly."""
    eventually("the timestamps", lambda: monitor.snapshot().lag and not monitor.unread())
    seconds = monitor.snapshot().lag_seconds
    assert seconds is not None
    return seconds


def test_lag_when_a_transaction_is_held_then_is_the_age_of_its_first_record_and_afterwards_of_the_next(
    stack: Stack,
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    _produce(stack, b'{"id": 1}', 5_000)
    _produce(stack, b'{"id": 2}', 4_000)
    hold = Hold("opened", times=3)
    daemon = stack.start(stack.config({"commit": {"rows": 1}}), hold=hold)
    # The third transaction, with the second record, waits; the first one stored the start.
    hold.wait()
    monitor = daemon.supervisor.monitors[stack.name]
    eventually("the first record", lambda: monitor.snapshot().totals.rows == 1)
    with LagWatch(lambda: daemon.supervisor.monitors, KafkaClients()):
        assert _lag_seconds(monitor) == pytest.approx(4_000, abs=_TOLERANCE)
    hold.release()
    eventually("the second record", lambda: monitor.snapshot().totals.rows == 2)
    eventually("a poll", lambda: monitor.snapshot().lag_seconds == 0)
    ages = [c.at - c.oldest for c in monitor.snapshot().commits if c.oldest is not None]
    assert ages == [pytest.approx(5_000, abs=_TOLERANCE), pytest.approx(4_000, abs=_TOLERANCE)]


def test_lag_when_a_record_has_stopped_the_mapping_then_is_the_age_of_this_record(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    _produce(stack, b'{"id": 1}', 5_000)
    _produce(stack, b"{broken", 4_000)
    daemon = stack.start(stack.config({"commit": {"rows": 1}}))
    with LagWatch(lambda: daemon.supervisor.monitors, KafkaClients()):
        [failed] = eventually("the failure", lambda: daemon.events("failed"))
        assert daemon.wait() == 65
        assert failed["txn"] > daemon.events("committed")[-1]["txn"]
        monitor = daemon.supervisor.monitors[stack.name]
        assert monitor.snapshot().state == "failed"
        assert _lag_seconds(monitor) == pytest.approx(4_000, abs=_TOLERANCE)
