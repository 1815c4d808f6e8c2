"""Renames, drops and truncates what the target has, while no compaction of the target works on it.

Invariant: the result of a compaction is complete, and in the directory whose files it replaces. A worker learns the
directory when it begins, and writes there even after the metastore has moved the files elsewhere. Then a part of its
result would be missing from the moved table, and the rest would be in the next table or partition of the old name. In
the same way, the cleaner would remove files of the next one.

HiveServer2 acquires an exclusive lock before such a change, which waits for workers and for readers. The calls of the
metastore acquire no lock, and a load should not wait for readers. So it waits until no worker is at work. A worker may
still begin before the call takes effect. After a rename, the queue shows that, because its entries are renamed as well.
The entries of dropped objects are removed from it, and then their workers fail.

Source: AcidCompactionService, CompactionCleaner, OnRenameFunction and CleanupRecordsFunction of Hive 4.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ingestd.clock import Deadline, pause
from ingestd.errors import Unavailable
from ingestd.hive import objects, truncation
from ingestd.hive.compactions import Compaction, read_compactions_of
from ingestd.hive.objects import PartitionObject, TableObject
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import abort
from ingestd.hive.write_ids import ended_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.marks import owns_files

_WAIT_SECONDS = 20.0
_POLL_SECONDS = 0.2


class CompactionRunning(Unavailable):
    """A compaction of the target works on what a load must rename, drop or truncate."""


def rename_table(target: Cluster, table: TableObject, renamed: TableObject) -> bool:
    """Give a table another name; return False if a compaction began meanwhile, so that its copy must be replaced.

    Raises CompactionRunning, and the errors of `alter_table`.
    """
    if not table.kind.is_transactional:
        objects.alter_table(target.metastore, table.name, renamed)
        return True
    known = _wait(target, table.name)
    objects.alter_table(target.metastore, table.name, renamed)
    return _is_undisturbed(target, renamed.name, known)


def rename_partition(target: Cluster, table: TableObject, old: PartitionObject, renamed: PartitionObject) -> bool:
    """Give a partition other values; return False as `rename_table` does.

    Raises CompactionRunning, and the errors of `rename_partition`.
    """
    names = [table.partition_name(partition.values) for partition in (old, renamed)]
    known = _wait(target, table.name, names) if table.kind.is_transactional else frozenset()
    objects.rename_partition(target.metastore, table.name, old.values, renamed)
    return not table.kind.is_transactional or _is_undisturbed(target, table.name, known, names)


def drop_table(target: Cluster, table: TableObject) -> None:
    """Drop a table of the target, with its files if they are in the warehouse.

    The metastore forgets the write ids of a table only if its data is deleted as well. Raises CompactionRunning, and
    the errors of the metastore and of the storage.
    """
    if table.kind.is_transactional:
        _wait(target, table.name)
    abort_left_uploads(target, table)
    objects.drop_table(target.metastore, table.name, delete_data=owns_files(table))


def drop_partitions(target: Cluster, table: TableObject, names: Sequence[str]) -> None:
    """Drop the partitions in `names`, which are escaped, with their files if they are in the warehouse.

    Raises CompactionRunning, and MetastoreUnavailable.
    """
    if table.kind.is_transactional:
        _wait(target, table.name, names)
    objects.drop_partitions(target.metastore, table.name, names, delete_data=owns_files(table))


def truncate_at_once(target: Cluster, table: TableObject, partitions: Sequence[str]) -> None:
    """Remove the files of a table, or of `partitions` if there are any.

    Raises CompactionRunning, InvalidTable and MetastoreUnavailable.
    """
    if table.kind.is_transactional:
        _wait(target, table.name, partitions)
    truncation.truncate_at_once(target.metastore, table.name, partitions)


def abort_left_uploads(target: Cluster, table: TableObject) -> None:
    """Abort the uploads that killed loads have left in the directory of a table whose files are removed with it.

    The metastore removes only the objects. No later load would find the uploads, because it does not copy the files.
    `target.check` is called before each upload is aborted. In a storage that is not supported, no load can have begun
    one.
    """

    def is_garbage(_file: str) -> bool:
        target.check()
        return True

    if owns_files(table) and table.location and target.storages.supports(table.location):
        target.storages.at(table.location).abort_uploads(table.location, is_garbage)


def _wait(target: Cluster, table: TableName, partitions: Collection[str] = ()) -> frozenset[int]:
    """Wait until no compaction works on a table, or on `partitions` if there are any.

    Return the ids of the compactions that have begun so far. Raises CompactionRunning.
    """
    deadline = Deadline.after(_WAIT_SECONDS)
    while True:
        begun = _begun(target, table, partitions)
        active = _active(target, begun)
        if not active:
            return frozenset(compaction.id for compaction in begun)
        if deadline.passed:
            raise _running(active[0])
        pause(_POLL_SECONDS)
        target.check()


def _is_undisturbed(target: Cluster, table: TableName, known: frozenset[int], partitions: Collection[str] = ()) -> bool:
    """Return whether no compaction has begun after those in `known`; abort the transactions of those that have."""
    disturbing = [
        compaction
        for compaction in _begun(target, table, partitions)
        if compaction.id not in known and not compaction.has_failed
    ]
    for compaction in disturbing:
        if compaction.state == "working" and compaction.txn_id:
            abort(target.metastore, compaction.txn_id)
    return not disturbing


def _begun(target: Cluster, table: TableName, partitions: Collection[str]) -> list[Compaction]:
    """Return the compactions that a worker has begun. One of the whole table concerns all partitions."""
    concerned = {*partitions, WHOLE_TABLE}
    return [
        compaction
        for compaction in read_compactions_of(target.metastore, table)
        if compaction.state != "initiated" and (not partitions or compaction.partition in concerned)
    ]


def _active(target: Cluster, compactions: Sequence[Compaction]) -> list[Compaction]:
    """Return those of which a worker or the cleaner is at work.

    A worker that was killed stays in the queue for a day (hive.compactor.worker.timeout), but not its transaction.
    """
    working = [compaction for compaction in compactions if compaction.state == "working"]
    ended = ended_transactions(target.metastore, [work.txn_id for work in working if work.txn_id]) if working else ()
    return [work for work in working if work.txn_id not in ended] + [
        compaction for compaction in compactions if compaction.is_being_cleaned
    ]


def _running(compaction: Compaction) -> CompactionRunning:
    part = f", partition {compaction.partition}" if compaction.partition else ""
    transaction = f" in the transaction {compaction.txn_id}" if compaction.txn_id else ""
    work = "is being cleaned up" if compaction.is_being_cleaned else f"is running{transaction}"
    return CompactionRunning(
        f"the compaction {compaction.id} {work}, and the load must move or remove the files",
        where=f"table {compaction.table}{part}",
        hint="the load is repeated until the compaction has ended; SHOW COMPACTIONS lists it",
    )
