"""Keeps Hive's row counts true around a commit: count up before it, look after it, take back when it failed.

Invariant: after a commit of ours has been looked at, `numRows` of what it touched equals the rows that are visible.
Counting before the commit makes the answer right at once; looking after it catches an ANALYZE or another writer that
changed the number in between, and then the rows are counted from the ORC footers.

Whoever counts holds the table's counting lease from there to the end of its transaction, because `numRows` can only be
read, added to and written back. A lease that does not come (its holder is frozen) delays a commit for 5 s: the count is
then marked as doubtful, in the counters themselves, until some writer after it can count the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ingestd.acid.count import visible_rows
from ingestd.acid.pool import WrittenFile
from ingestd.clock import Deadline
from ingestd.errors import TransactionAborted
from ingestd.hive import leases, statistics, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.statistics import Added, Writer
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import Transaction, Wait
from ingestd.hive.write_ids import is_committed, read_snapshot
from ingestd.storage.local import local_path

_LEASE_SECONDS = 5.0
_RECOUNT_SECONDS = 30.0
_busy: dict[str, threading.Lock] = {}
_registry = threading.Lock()


@dataclass(frozen=True, slots=True)
class Counted:
    """What `count_up` counted for whom, by partition; `doubtful` has the names whose number must be counted anew."""

    writer: Writer
    partitions: Mapping[str, PartitionInfo]
    doubtful: frozenset[str] = frozenset()


@contextmanager
def one_at_a_time(table: Table, stop: threading.Event) -> Iterator[None]:
    """Let the writers of this process count and commit in turn, so that they do not all wait at the metastore.

    Raises TransactionAborted when `stop` is set while others have their turn.
    """
    with _registry:
        lock = _busy.setdefault(str(table.name), threading.Lock())
    while not lock.acquire(timeout=0.5):
        if stop.is_set():
            raise TransactionAborted("stopped before its turn to commit", where=f"table {table.name}")
    try:
        yield
    finally:
        lock.release()


def added_rows(table: Table, files: Iterable[WrittenFile]) -> dict[str, Added]:
    """What the files add, by partition name or WHOLE_TABLE."""
    added: dict[str, Added] = {}
    for file in files:
        name = table.partition_name(file.partition)
        before = added.get(name, Added(0, 0, 0))
        added[name] = Added(before.rows + file.rows, before.files + 1, before.bytes + file.bytes)
    return added


def count_up(
    metastore: Metastore,
    table: Table,
    txn: Transaction,
    name: str,
    added: Mapping[str, Added],
    partitions: Mapping[str, PartitionInfo],
) -> Counted:
    """Add the rows to the counters; the last thing before the commit.

    `name` says who counts: a mapping, or one transaction of a streaming client. `partitions` has what `added` names.
    """
    writer = Writer(name, txn.write_id)
    if not added:
        return Counted(writer, {})
    alone = _take_lease(metastore, table, txn)
    snapshot = read_snapshot(metastore, table.name)
    doubtful = statistics.count_up(metastore, table, writer, added, snapshot, alone=alone)
    return Counted(writer, {one: partitions[one] for one in added}, doubtful)


def look_after(metastore: Metastore, table: Table, counted: Counted) -> list[str]:
    """Recount what is doubtful or was changed by others since we counted; returns the names that were mended.

    Raises IngestdError when it cannot be done now: the doubt is left in the counters, and the next writer sees it.
    """
    if not counted.partitions:
        return []
    moved = statistics.moved(metastore, table, counted.writer, list(counted.partitions))
    wrong = sorted({*counted.doubtful, *moved})
    if wrong:
        with _lease_of_its_own(metastore, table, counted.writer.name) as txn:
            _recount(metastore, table, {name: counted.partitions[name].location for name in wrong}, txn)
    return wrong


def take_back(metastore: Metastore, table: Table, name: str, names: Sequence[str] | None = None) -> list[str]:
    """Undo the counting of transactions that aborted after it; returns the names that were mended.

    `name` says who does it; `names` are the partitions to look at, by default all.
    """
    if not statistics.stale_names(metastore, table, read_snapshot(metastore, table.name), names):
        return []
    with _lease_of_its_own(metastore, table, name):
        snapshot = read_snapshot(metastore, table.name)
        stale = statistics.stale_names(metastore, table, snapshot, names)
        if stale:
            statistics.take_back(metastore, table, stale, snapshot)
        return stale


def _lease(table: Table) -> TableName:
    return TableName(table.name.database, f"{table.name.table}#ingestd.counting")


def _take_lease(metastore: Metastore, table: Table, txn: Transaction) -> bool:
    """Have the lease until the transaction ends; False when somebody keeps it for longer than one may wait."""
    try:
        transactions.take_lease(metastore, txn, _lease(table), Wait(Deadline.after(_LEASE_SECONDS), threading.Event()))
    except transactions.LockTimeout:
        return False
    return True


@contextmanager
def _lease_of_its_own(metastore: Metastore, table: Table, name: str) -> Iterator[Transaction]:
    """The lease inside a transaction that writes nothing, and ends with the block or with the death of this process."""
    txn = transactions.begin_reading(metastore, table.name, f"ingestd/counting/{name}")
    try:
        wait = Wait(Deadline.after(_RECOUNT_SECONDS), threading.Event())
        transactions.take_lease(metastore, txn, _lease(table), wait)
        yield txn
    finally:
        transactions.abort(metastore, txn.id)


def _recount(metastore: Metastore, table: Table, locations: Mapping[str, str], txn: Transaction) -> None:
    """Count from the ORC footers while no other writer of ours is between its count and its commit."""
    snapshot = read_snapshot(metastore, table.name)
    rows = {
        name: visible_rows(local_path(uri), snapshot, lambda txn_id: is_committed(metastore, txn_id))
        for name, uri in locations.items()
    }
    if not leases.heartbeat_transaction(metastore, txn.id):
        raise TransactionAborted("counting took longer than the metastore waits", where=f"table {table.name}")
    statistics.set_rows(metastore, table, rows)
