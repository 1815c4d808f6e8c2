"""A daemon that requests compactions and paces its commits, on the real services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise

import pytest

from ingestd.clock import pause
from ingestd.hive.compactions import request_compaction
from ingestd.hive.tables import TableName
from tests.compaction.support import ON_REQUEST
from tests.support.compaction import wait_for_cleaner
from tests.support.daemon import DaemonThread
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually


@contextmanager
def _traffic(stack: Stack, topics: list[str]) -> Iterator[list[int]]:
    """Produce a record with the next id to each topic every 200 ms during the `with` block; yields all ids so far."""
    sent: list[int] = []
    ended = threading.Event()

    def run() -> None:
        for number in count():
            for topic in topics:
                stack.produce([{"id": number}], topic)
            sent.append(number)
            if pause(0.2, ended):
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()


def _factor(daemon: DaemonThread, mapping: str) -> float:
    monitor = daemon.supervisor.monitors.get(mapping)  # none before the supervisor runs
    found = monitor.snapshot().pacing if monitor else None
    return found.factor if found else 0.0


def _gaps(daemon: DaemonThread, mapping: str) -> list[float]:
    """Return the seconds between the commits of a mapping that the monitor remembers."""
    times = [commit.at for commit in daemon.supervisor.monitors[mapping].snapshot().commits if commit.rows]
    return [after - before for before, after in pairwise(times)]


def _pacing(daemon: DaemonThread, mapping: str) -> list[str]:
    """Return the reasons for which the pace of a mapping has changed so far."""
    return [event["reason"] for event in daemon.events("pacing") if event["mapping"] == mapping]


def test_daemon_when_deltas_pile_up_then_it_compacts_paces_and_recovers_without_losing_a_row(stack: Stack) -> None:
    auto, paced = f"{stack.name}_a", f"{stack.name}_p"
    for name in (auto, paced):
        stack.topic(1, name)
        stack.table("id bigint", name=f"default.{name}", **ON_REQUEST)
    first, second = f"a{auto[-30:]}", f"p{paced[-30:]}"
    with proxy(stack.addresses.metastore) as between:
        config = stack.config(
            {
                "name": first,
                "topics": [auto],
                "table": f"default.{auto}",
                "compaction": {"deltas": 5},
                "pacing": {"latency": "2s", "max_interval": "400ms"},
            },
            {
                "name": second,
                "topics": [paced],
                "table": f"default.{paced}",
                "pacing": {"deltas": 2, "latency": "1m", "max_interval": "1s"},
                "compaction": {"request": "never", "survey": "1s"},
            },
            defaults={"commit": {"interval": "200ms"}},
            metastore={"uri": between.uri},
        )
        with _traffic(stack, [auto, paced]) as sent:
            daemon = stack.start(config)
            eventually("the longest interval", lambda: _factor(daemon, second) == pytest.approx(5.0))
            eventually("rare commits", lambda: min(_gaps(daemon, second)[-2:]) > 0.9)
            between.delay("commit_txn", 3.0)
            eventually("a slow metastore", lambda: _pacing(daemon, first)[-1:] == ["metastore"])
            between.delay("commit_txn", 0.0)
            eventually("a fast metastore", lambda: _pacing(daemon, first)[-1:] == [""])
            eventually("a requested compaction", lambda: daemon.events("compaction_finished"))
            known = sum(event["rows"] for event in daemon.events("committed") if event["mapping"] == first)
            # Hive omits rows while the cleaner removes directories that it lists (see `tests.support.compaction`).
            eventually("rows to be readable while compactions run", lambda: len(stack.ids(auto)) >= known)
        eventually(
            "the last record", lambda: sum(event["rows"] for event in daemon.events("committed")) == 2 * len(sent)
        )
        request_compaction(stack.metastore, TableName("default", paced), "", "major", "tests")
        eventually("the end of pacing", lambda: _pacing(daemon, second)[-1:] == [""])
        daemon.terminate()
        assert daemon.wait() == 0
    for name in (auto, paced):
        wait_for_cleaner(stack, f"default.{name}")
        assert sorted(stack.ids(name)) == sent
        assert stack.count(name=name) == len(sent)
    *_, over = (event for event in daemon.events("pacing") if event["mapping"] == second)
    assert over["interval"] == 0.2
    assert {event["mapping"] for event in daemon.events("compaction_requested")} == {first}
    assert {event["initiator"] for event in daemon.events("compaction_finished") if event["mapping"] == second} == {
        "tests"
    }
