"""Keeps Hive's row counts true around a commit: count up before it, look after it, take back when it failed.

Invariant: after a commit of ours has been looked at, `numRows` of what it touched equals the rows that are visible.
Counting before the commit makes the answer right at once; looking after it catches an ANALYZE or another writer that
changed the number in between, and then the rows are counted from the ORC footers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ingestd.acid.count import visible_rows
from ingestd.acid.pool import WrittenFile
from ingestd.hive import statistics
from ingestd.hive.client import Metastore
from ingestd.hive.statistics import Added
from ingestd.hive.tables import Table
from ingestd.hive.transactions import Transaction
from ingestd.hive.write_ids import is_committed, read_snapshot
from ingestd.storage.local import local_path

_busy: dict[str, threading.Lock] = {}
_registry = threading.Lock()


@contextmanager
def one_at_a_time(table: Table) -> Iterator[None]:
    """Keep two mappings of this daemon from counting one table at once: neither would see the other's number."""
    with _registry:
        lock = _busy.setdefault(str(table.name), threading.Lock())
    with lock:
        yield


def added_rows(table: Table, files: Iterable[WrittenFile]) -> dict[str, Added]:
    """What the files add, by partition name or WHOLE_TABLE."""
    added: dict[str, Added] = {}
    for file in files:
        name = table.partition_name(file.partition)
        before = added.get(name, Added(0, 0, 0))
        added[name] = Added(before.rows + file.rows, before.files + 1, before.bytes + file.bytes)
    return added


def count_up(
    metastore: Metastore, table: Table, mapping: str, txn: Transaction, added: Mapping[str, Added]
) -> dict[str, int]:
    """Add the rows to the counters; the last thing before the commit. Returns the numbers to look for after it."""
    if not added:
        return {}
    snapshot = read_snapshot(metastore, table.name)
    return statistics.count_up(metastore, table, mapping, added, (txn.write_id, snapshot))


def look_after(
    metastore: Metastore, table: Table, expected: Mapping[str, int], locations: Mapping[str, str]
) -> list[str]:
    """Recount what somebody else changed between our count and our commit; returns the names that were mended.

    `locations` has the directory of each name.
    """
    moved = statistics.moved(metastore, table, expected)
    if moved:
        statistics.set_rows(metastore, table, _recount(metastore, table, {n: locations[n] for n in moved}))
    return moved


def take_back(metastore: Metastore, table: Table, mapping: str) -> list[str]:
    """Undo the counting of transactions that aborted after it; returns the names that were mended."""
    aborted = read_snapshot(metastore, table.name).aborted
    return statistics.take_back(metastore, table, mapping, aborted) if aborted else []


def _recount(metastore: Metastore, table: Table, locations: Mapping[str, str]) -> dict[str, int]:
    snapshot = read_snapshot(metastore, table.name)

    def was_committed(txn_id: int) -> bool:
        return is_committed(metastore, txn_id)

    return {name: visible_rows(local_path(uri), snapshot, was_committed) for name, uri in locations.items()}
