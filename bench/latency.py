"""Measures the time from when a record is produced until it can be read, at a steady rate.

Invariant: the percentiles cover every record that was produced. A record is readable once its commit has returned. This
is the time of the log line `committed` minus the duration of the step `mirrored`, which follows the commit.
"""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from bench.records import records
from ingestd.clock import Deadline, now, pause

_TICK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency in seconds that 50 % and 99 % of `records` records did not exceed."""

    p50: float
    p99: float
    records: int


def produce_steadily(servers: str, topic: str, per_second: int, seconds: float) -> dict[int, list[tuple[int, float]]]:
    """Produce at a steady rate. Return the (offset, time produced) of each record by partition, sorted by offset."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    sent: dict[int, list[tuple[int, float]]] = {}

    def delivered(at: float) -> Any:
        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            sent.setdefault(message.partition(), []).append((message.offset(), at))

        return note

    limit, count = Deadline.after(seconds), 0
    values = records(int(per_second * seconds * 2))
    while not limit.passed:
        due = int((seconds - limit.left) * per_second)
        while count < due:
            producer.produce(topic, next(values), on_delivery=delivered(now()))
            count += 1
        producer.poll(0)
        pause(_TICK_SECONDS)
    assert producer.flush(30) == 0
    return {partition: sorted(pairs) for partition, pairs in sent.items()}


def latency(commits: Iterable[dict[str, Any]], sent: dict[int, list[tuple[int, float]]]) -> Latency:
    """Return the percentiles over all records of `sent`, from the `committed` events of the log."""
    ends: dict[int, list[tuple[int, float]]] = {}
    for commit in commits:
        readable = datetime.fromisoformat(commit["timestamp"].replace("Z", "+00:00")).timestamp()
        readable -= commit["ms"]["mirrored"] / 1000
        for text in commit["ranges"]:
            partition, last = int(text.partition("[")[2].partition("]")[0]), int(text.rpartition("..")[2])
            ends.setdefault(partition, []).append((last, readable))
    latencies = sorted(
        ends[partition][bisect_right(ends[partition], (offset, float("inf")))][1] - at
        for partition, pairs in sent.items()
        for offset, at in pairs
    )
    return Latency(latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100], len(latencies))


def stop(daemon: subprocess.Popen[bytes]) -> None:
    """Stop a daemon and check that its exit code is 0."""
    daemon.terminate()
    assert daemon.wait(60) == 0
