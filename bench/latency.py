"""Latency from produced to readable, at a steady rate.

Invariant: every record that the run produced is in the percentiles. A record is readable from the moment its commit
returned: the time of the commit's log line less the milliseconds of the mirror, which comes after it.
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
    """Seconds, over `records` records."""

    p50: float
    p99: float
    records: int


def produce_steadily(servers: str, topic: str, per_second: int, seconds: float) -> dict[int, list[tuple[int, float]]]:
    """Produce at a rate; returns (offset, time produced) of each record by partition, offsets ascending."""
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
    """Percentiles over all records sent."""
    ends: dict[int, list[tuple[int, float]]] = {}
    for commit in commits:
        readable = datetime.fromisoformat(commit["timestamp"].replace("Z", "+00:00")).timestamp()
        readable -= commit["ms"]["mirrored"] / 1000
        for text in commit["ranges"]:
            partition, last = int(text.partition("[")[2].partition("]")[0]), int(text.rpartition("..")[2])
            ends.setdefault(partition, []).append((last, readable))
    waited = sorted(
        ends[partition][bisect_right(ends[partition], (offset, float("inf")))][1] - at
        for partition, pairs in sent.items()
        for offset, at in pairs
    )
    return Latency(waited[len(waited) // 2], waited[len(waited) * 99 // 100], len(waited))


def end(daemon: subprocess.Popen[bytes]) -> None:
    """Stop a daemon and see that it ended well."""
    daemon.terminate()
    assert daemon.wait(60) == 0
