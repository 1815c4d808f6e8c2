"""Keeps Hive's row counts true around a commit: count up before it, look after it, take back when it failed.

Invariant: after a commit of ours has been looked at, `numRows` of what it touched equals the rows that are visible.
Counting before the commit makes the answer right at once; looking after it catches an ANALYZE or another writer that
changed the number in between, and then the rows are counted from the ORC footers.

Whoever counts holds the table's counting lease from there to the end of its transaction, because `numRows` can only be
read, added to and written back. A lease that does not come (its holder is frozen) delays nobody for long: the count is
then doubtful and made again after the commit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ingestd.acid.count import visible_rows
from ingestd.acid.pool import WrittenFile
from ingestd.clock import Deadline, pause
from ingestd.errors import MetastoreUnavailable
from ingestd.hive import leases, statistics, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.statistics import Added
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import Transaction, Wait
from ingestd.hive.write_ids import is_committed, read_snapshot
from ingestd.storage.local import local_path

_LEASE_SECONDS = 5.0


_busy: dict[str, threading.Lock] = {}
_registry = threading.Lock()


@contextmanager
def one_at_a_time(table: Table) -> Iterator[None]:
    """Let the writers of this process count and commit in turn, so that they do not all wait at the metastore."""
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
    metastore: Metastore, table: Table, writer: str, txn: Transaction, added: Mapping[str, Added]
) -> frozenset[str]:
    """Add the rows to the counters; the last thing before the commit. Returns the names whose number is doubtful.

    `writer` names who counts: a mapping, or one transaction of a streaming client.
    """
    if not added:
        return frozenset()
    alone = _take_lease(metastore, table, txn)
    snapshot = read_snapshot(metastore, table.name)
    doubtful = statistics.count_up(metastore, table, writer, added, (txn.write_id, snapshot))
    return doubtful if alone else frozenset(added)


def look_after(
    metastore: Metastore, table: Table, counted: Mapping[str, PartitionInfo], doubtful: Iterable[str] = ()
) -> list[str]:
    """Recount what is doubtful or was changed by others since a writer of ours counted; returns the names mended.

    `counted` has the partitions (or the whole table) that `count_up` counted.
    """
    if not counted:
        return []
    wrong = sorted({*doubtful, *statistics.moved(metastore, table, list(counted))})
    if wrong:
        _recount(metastore, table, {name: counted[name].location for name in wrong})
    return wrong


def take_back(metastore: Metastore, table: Table) -> list[str]:
    """Undo the counting of transactions that aborted after it; returns the names that were mended."""
    snapshot = read_snapshot(metastore, table.name)
    return statistics.take_back(metastore, table, snapshot) if snapshot.aborted else []


def _lease(table: Table) -> TableName:
    return TableName(table.name.database, f"{table.name.table}#ingestd.counting")


def _take_lease(metastore: Metastore, table: Table, txn: Transaction) -> bool:
    """Have the lease until the transaction ends; False when somebody keeps it for longer than one may wait."""
    try:
        wait = Wait(Deadline.after(_LEASE_SECONDS), threading.Event())
        transactions.take_lease(metastore, txn, _lease(table), wait)
    except transactions.LockTimeout:
        return False
    return True


def _recount(metastore: Metastore, table: Table, locations: Mapping[str, str]) -> None:
    """Count from the ORC footers while no other writer of ours is between its count and its commit."""
    lock_id = _hold_lease(metastore, table)
    try:
        snapshot = read_snapshot(metastore, table.name)
        rows = {
            name: visible_rows(local_path(uri), snapshot, lambda txn_id: is_committed(metastore, txn_id))
            for name, uri in locations.items()
        }
        statistics.set_rows(metastore, table, rows)
    finally:
        leases.release(metastore, lock_id)


def _hold_lease(metastore: Metastore, table: Table) -> int:
    deadline = Deadline.after(_LEASE_SECONDS)
    while (lock_id := leases.try_acquire(metastore, _lease(table), "ingestd counting")) is None:
        if deadline.passed:
            raise MetastoreUnavailable("somebody else keeps counting", where=f"table {table.name}", hint="SHOW LOCKS")
        pause(0.02)
    return lock_id
