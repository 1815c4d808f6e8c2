"""Support for the tests of compaction: tables that only tests compact, their deltas, and a watch with its report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ingestd.compaction.compactor import Compactor
from ingestd.compaction.options import CompactionOptions, PacingOptions
from ingestd.compaction.pacing import Pace
from ingestd.compaction.policy import Stall
from ingestd.compaction.watch import CompactionStatus, TableWatch
from ingestd.hive.client import Metastore
from ingestd.hive.compactions import Compaction, read_compactions
from ingestd.hive.tables import TableName
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.storages import Storages
from tests.streaming.support import connect, rows
from tests.support.stack import Stack

# The table is open to requests, but Hive's Initiator finds nothing to do.
ON_REQUEST = {
    "no_auto_compaction": "false",
    "compactorthreshold.hive.compactor.delta.num.threshold": "100000",
    "compactorthreshold.hive.compactor.delta.pct.threshold": "100000",
}


def write_deltas(
    stack: Stack, count: int, *, first: int = 0, options: Mapping[str, Any] = MappingProxyType({}), **more: Any
) -> None:
    """Commit `count` transactions of one row each, with the ids from `first` on, to the partition `more`.

    `options` are those of the connection, such as another table than the test's.
    """
    with connect(stack, **options) as connection:
        for number in range(first, first + count):
            with connection.transaction():
                connection.write(rows(number, 1, **{key: [value] for key, value in more.items()}))


def entries(stack: Stack) -> list[Compaction]:
    """Return the queue's entries of the test's table."""
    return [
        compaction
        for compaction in read_compactions(stack.metastore)
        if compaction.table == TableName("default", stack.name)
    ]


@dataclass
class Notes:
    """A report that remembers its calls."""

    faults: list[Sequence[str]] = field(default_factory=list)
    asked: list[tuple[Compaction, int]] = field(default_factory=list)
    done: list[Compaction] = field(default_factory=list)
    broken: list[Compaction] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    delays: list[Exception] = field(default_factory=list)
    cycles: int = 0

    def counted(self, status: CompactionStatus) -> None:
        """Count the cycle: the tests read the status from the watch."""
        self.cycles += 1

    def requirements(self, faults: Sequence[str]) -> None:
        self.faults.append(faults)

    def requested(self, compaction: Compaction, deltas: int) -> None:
        self.asked.append((compaction, deltas))

    def finished(self, compaction: Compaction) -> None:
        self.done.append(compaction)

    def failed(self, compaction: Compaction) -> None:
        self.broken.append(compaction)

    def stalled(self, stall: Stall) -> None:
        self.stalls.append(stall)

    def delayed(self, error: Exception) -> None:
        self.delays.append(error)


@contextmanager
def watching(
    metastore: Metastore, table: TableName, options: CompactionOptions, count: int = 1
) -> Iterator[list[tuple[TableWatch, Notes]]]:
    """Run a Compactor with `count` watches of one table, as of several mappings, during the `with` block."""
    with watching_each(Warehouse(metastore, Storages()), [(table, options)] * count) as made:
        yield made


@contextmanager
def watching_each(
    warehouse: Warehouse, tables: Iterable[tuple[TableName, CompactionOptions]], **more: float
) -> Iterator[list[tuple[TableWatch, Notes]]]:
    """Run a Compactor with a watch of each table during the `with` block; `more` are other options of it."""
    compactor = Compactor(warehouse, cycle_seconds=0.1, **more)
    made = []
    for number, (table, options) in enumerate(tables):
        notes = Notes()
        pace = Pace(PacingOptions(), 1.0, lambda _: None)
        watch = TableWatch(table, options, pace, notes, f"ingestd/tests/mapping{number}")
        compactor.add(watch)
        made.append((watch, notes))
    compactor.start()
    try:
        with ExitStack() as active:
            for watch, _ in made:
                active.enter_context(watch.active())
            yield made
    finally:
        compactor.stop()
