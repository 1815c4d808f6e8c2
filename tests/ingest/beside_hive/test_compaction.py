"""`count(*)` equals the count of a scan while ingestd commits every second and Hive compacts and analyzes the table.

Automatic compaction is enabled, as in production. After each compaction, Hive runs ANALYZE, which writes back
parameters that it has read earlier. A loop of ANALYZE statements and compaction requests makes this frequent.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count

import pytest

from ingestd.clock import Deadline, pause
from ingestd.errors import SandboxError
from tests.support.compaction import compaction_states
from tests.support.counters import number
from tests.support.daemon import Daemon
from tests.support.stack import Stack, eventually

_VALUES = ("a", "b", "c", "d", "e")
_BUSY = {"initiated", "working"}
_BY_MAPREDUCE: Mapping[str, str] = {}
_BY_QUERY = {"compactor.hive.compactor.crud.query.based": "true"}
_unique = count()


class _Traffic:
    """Records, and a daemon that commits them to a partitioned and an unpartitioned table about once per second."""

    def __init__(self, stack: Stack, properties: Mapping[str, str]) -> None:
        self.stack = stack
        self.tables = {f"{stack.name}_p": [f"dt={value}" for value in _VALUES], f"{stack.name}_u": [""]}
        for name, partitions in self.tables.items():
            stack.topic(1, name)
            by = "dt string" if len(partitions) > 1 else ""
            stack.table("id bigint", by, name=f"default.{name}", no_auto_compaction="false", **properties)
        mappings = [{"name": n[-40:], "topics": [n], "table": f"default.{n}"} for n in self.tables]
        self.daemon: Daemon = stack.start(stack.config(*mappings))
        self.sent = 0

    def produce(self, seconds: float) -> None:
        """Produce records for all partitions, but for the first one only during the first half of the time."""
        whole, half = Deadline.after(seconds), Deadline.after(seconds / 2)
        while not whole.passed:
            values = _VALUES[bool(half.passed) :]
            for name in self.tables:
                self.stack.produce(({"id": self.sent + i, "dt": values[i % len(values)]} for i in range(200)), name)
            self.sent += 200
            pause(0.3)

    def wait(self) -> None:
        """Wait until all records are committed and no compaction of these tables is in progress."""
        eventually("all commits", lambda: self._committed() == self.sent * len(self.tables))
        eventually("all compactions to end", lambda: not self._compacting())

    def check(self) -> None:
        """Check that every stored row count becomes that of a scan, and that Hive returns it by default.

        An ANALYZE of a late compaction may write an older count back until ingestd has repaired it.
        """
        for table, partitions in self.tables.items():
            scans = self._scan(table)
            assert sum(scans.values()) == self.sent
            for partition in partitions:
                where, scan = f"WHERE dt = '{partition[3:]}'" if partition else "", scans[partition]
                kept = partial(number, self.stack, partition, table)
                eventually(f"numRows {scan} of {table} {partition}", partial(_equals, kept, scan))
                count_all = partial(self._ask, f"count(*) + 0 * {next(_unique)}", table, where)
                eventually(f"count(*) {scan} of {table} {partition}", partial(_equals, count_all, scan))
            count_all = partial(self._ask, "count(*)", table)
            eventually(f"count(*) {self.sent} of {table}", partial(_equals, count_all, self.sent))

    def _scan(self, table: str) -> dict[str, int]:
        """Return the rows of each partition, or of the whole table as the partition ""."""
        part = "concat('dt=', dt)" if len(self.tables[table]) > 1 else "''"
        scan = f"SELECT part, count(id + {next(_unique)}) FROM (SELECT {part} AS part, id FROM {table}) t GROUP BY part"
        return dict(self.stack.sql(scan))

    def _ask(self, what: str, table: str, where: str = "") -> int:
        return int(self.stack.sql(f"SELECT {what} AS n{next(_unique)} FROM {table} {where}")[0][0])

    def _committed(self) -> int:
        assert self.daemon.is_running, self.daemon.text()
        return sum(int(event["rows"]) for event in self.daemon.events("committed"))

    def _compacting(self) -> bool:
        return bool(_BUSY & set(compaction_states(self.stack, self.tables)))


@contextmanager
def _repeated(stack: Stack, statements: Sequence[str], seconds: float) -> Iterator[None]:
    """Run random `statements` in HiveServer2, one every `seconds`, during the `with` block. Some may fail."""
    ended = threading.Event()

    def run() -> None:
        while not pause(seconds, ended):
            with suppress(SandboxError):
                stack.sql(random.choice(statements))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _equals(ask: Callable[[], int], expected: int) -> bool:
    return ask() == expected


def _part(partition: str) -> str:
    return f" PARTITION (dt='{partition[3:]}')" if partition else ""


def _run(stack: Stack, seconds: float, rounds: int, properties: Mapping[str, str] = _BY_MAPREDUCE) -> None:
    traffic = _Traffic(stack, properties)
    parts = [(table, _part(partition)) for table, partitions in traffic.tables.items() for partition in partitions]
    analyze = [f"ANALYZE TABLE {table}{part} COMPUTE STATISTICS NOSCAN" for table, part in parts]
    requests = [f"ALTER TABLE {table}{part} COMPACT '{kind}'" for table, part in parts for kind in ("minor", "major")]
    for _ in range(rounds):
        with _repeated(stack, analyze, 0.2), _repeated(stack, requests, 2.0):
            traffic.produce(seconds)
        traffic.wait()
        traffic.check()
    traffic.daemon.terminate()
    assert traffic.daemon.wait() == 0
    traffic.check()


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("properties", [_BY_MAPREDUCE, _BY_QUERY], ids=["mapreduce", "query"])
def test_count_when_compacted_for_ten_minutes_then_equals_a_scan(stack: Stack, properties: Mapping[str, str]) -> None:
    _run(stack, seconds=150, rounds=4, properties=properties)


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_count_when_compacted_for_ten_minutes_on_postgresql_then_equals_a_scan(on_postgres: Stack) -> None:
    _run(on_postgres, seconds=150, rounds=4)
