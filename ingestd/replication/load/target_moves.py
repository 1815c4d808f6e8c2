"""Renames, drops and truncates what the target has, while no compaction of the target works on it.

Invariant: the result of a compaction is complete, and in the directory whose files it replaces. A worker learns the
directory when it begins, and writes there even after the metastore has moved the files elsewhere. Then a part of its
result would be missing from the moved table, and the rest would be in the next table or partition of the old name. In
the same way, the cleaner would remove files of the next one.

HiveServer2 acquires an exclusive lock before such a change, which waits for workers and for readers. The calls of the
metastore acquire no lock, and a load should not wait for readers. So it waits until nobody is at work. A worker may
still begin before the call takes effect:

- The metastore removes the entries of what it drops from its queue, and then their workers fail.
- A renamed table or partition has the mark MOVED, which the call of the rename sets. The queue shows who has begun
  meanwhile, because its entries are renamed as well. Whoever finds the mark must look (`is_undisturbed`, and
  `is_partition_undisturbed`): after a rename whose load was killed, or whose answer was lost, that is the next load.

The queue does not show that the cleaner removes directories of aborted transactions (AbortedTxnCleaner). It lists them
just before, and the next table of a name has no file of the same name so soon.

Source: AcidCompactionService, CompactionCleaner, OnRenameFunction and CleanupRecordsFunction of Hive 4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ingestd.clock import Deadline, now, pause
from ingestd.errors import Unavailable
from ingestd.hive import objects, truncation
from ingestd.hive.compactions import Beginning, Compaction, last_beginning, read_at_work, read_begun_after
from ingestd.hive.objects import PartitionObject, TableObject, find_partitions, find_table
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import abort
from ingestd.hive.write_ids import ended_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.marks import MOVED, owns_files

_WAIT_SECONDS = 20.0
_POLL_SECONDS = 0.2
# An attempt of the cleaner lasts no longer. Its beginning is a time of the metastore's database.
_LONGEST_ATTEMPT_SECONDS = 3600.0
_HINT = "the load is repeated until the compaction has ended; SHOW COMPACTIONS lists it"
_FAILED_HINT = (
    "the cleaner has failed ({}), and may be trying again: the load is repeated until it has succeeded, or for an hour"
    " after its last attempt"
)


class CompactionRunning(Unavailable):
    """A compaction of the target works on what a load must rename, drop or truncate."""


def rename_table(target: Cluster, table: TableObject, renamed: TableObject) -> bool:
    """Give a table another name; return False if a compaction began meanwhile, so that its copy must be replaced.

    Raises CompactionRunning, and the errors of `alter_table`.
    """
    if not table.kind.is_transactional:
        objects.alter_table(target.metastore, table.name, renamed)
        return True
    marked = renamed.with_parameters(_marked(renamed.parameters, _wait(target, table.name)))
    objects.alter_table(target.metastore, table.name, marked)
    return is_undisturbed(target, renamed.name)


def is_undisturbed(target: Cluster, name: TableName) -> bool:
    """Return whether no compaction began while a load renamed a table, whose mark is removed then.

    True as well for a table that has no mark, or does not exist. Raises the errors of `alter_table`.
    """
    table = find_table(target.metastore, name)
    if table is None or MOVED not in table.parameters:
        return True
    if _stop_disturbing(target, name, table.parameters):
        return False
    settled = table.copied(name, table.stored_location, _unmarked(table.parameters))
    objects.alter_table(target.metastore, name, settled)
    return True


def rename_partition(target: Cluster, table: TableObject, old: PartitionObject, renamed: PartitionObject) -> bool:
    """Give a partition other values; return False as `rename_table` does.

    Raises CompactionRunning, and the errors of `rename_partition`.
    """
    if not table.kind.is_transactional:
        objects.rename_partition(target.metastore, table.name, old.values, renamed)
        return True
    last = _wait(target, table.name, [table.partition_name(old.values)])
    marked = renamed.with_parameters(_marked(renamed.parameters, last))
    objects.rename_partition(target.metastore, table.name, old.values, marked)
    return is_partition_undisturbed(target, table, table.partition_name(renamed.values))


def is_partition_undisturbed(target: Cluster, table: TableObject, name: str) -> bool:
    """Return whether no compaction began while a load renamed a partition, as `is_undisturbed` does for a table.

    Raises the errors of `alter_partitions`.
    """
    for partition in find_partitions(target.metastore, table.name, [name]):
        if MOVED in partition.parameters:
            if _stop_disturbing(target, table.name, partition.parameters, [name]):
                return False
            settled = partition.copied(table.name, partition.stored_location, _unmarked(partition.parameters))
            objects.alter_partitions(target.metastore, table.name, [settled])
    return True


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


# --- the mark of a rename


def _marked(parameters: Mapping[str, str], last: Beginning) -> dict[str, str]:
    return {**parameters, MOVED: f"{last.time!r} {last.id}"}


def _unmarked(parameters: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in parameters.items() if key != MOVED}


def _stop_disturbing(
    target: Cluster, table: TableName, parameters: Mapping[str, str], partitions: Collection[str] = ()
) -> bool:
    """Return whether compactions have begun since the rename that left the mark in `parameters`; abort them.

    One that has written its result may not have committed yet.
    """
    time, number = parameters[MOVED].split()
    disturbing = _disturbing(target, table, Beginning(float(time), int(number)), partitions)
    for compaction in disturbing:
        if compaction.txn_id:
            abort(target.metastore, compaction.txn_id)
    return bool(disturbing)


def _disturbing(target: Cluster, table: TableName, last: Beginning, partitions: Collection[str]) -> list[Compaction]:
    """Return the compactions that have begun after the one that was the last, except those without a result."""
    begun = _concerning(partitions, read_begun_after(target.metastore, table, last))
    return [compaction for compaction in begun if not compaction.has_failed]


# --- compactions at work


def _wait(target: Cluster, table: TableName, partitions: Collection[str] = ()) -> Beginning:
    """Wait until no compaction works on a table, or on `partitions` if there are any.

    Return when the last compaction of the table has begun. Raises CompactionRunning.
    """
    deadline = Deadline.after(_WAIT_SECONDS)
    first: list[Compaction] | None = None
    while True:
        last = last_beginning(target.metastore, table)  # before the look, which finds those that begin after it
        at_work = _concerning(partitions, read_at_work(target.metastore, table))
        first = at_work if first is None else first
        if not at_work:
            return last
        if deadline.passed:
            if busy := _busy(target, at_work, first):
                raise _running(busy[0])
            return last
        pause(_POLL_SECONDS)
        target.check()


def _concerning(partitions: Collection[str], compactions: Iterable[Compaction]) -> list[Compaction]:
    """Return the compactions of `partitions` if there are any. One of the whole table concerns all partitions."""
    concerned = {*partitions, WHOLE_TABLE}
    return [compaction for compaction in compactions if not partitions or compaction.partition in concerned]


def _busy(target: Cluster, at_work: Sequence[Compaction], first: Sequence[Compaction]) -> list[Compaction]:
    """Return the compactions at work of which a worker or the cleaner is busy; `first` is the first look at them.

    The queue keeps a worker that has died for a day (hive.compactor.worker.timeout), although its transaction ends in
    minutes, if it had one. A worker that has not yet stored its transaction looks the same for a moment. So such an
    entry is idle if it has not changed since the first look. A worker stores its transaction before it lists the files.

    The cleaner keeps an entry for which it has failed, and tries again after minutes or hours
    (hive.compactor.cleaner.retry.retention.time). The error of the last attempt stays in the entry meanwhile, so nobody
    knows whether the attempt that has begun last is at work or has failed. It is idle if that was long ago.
    """
    ended = ended_transactions(target.metastore, [work.txn_id for work in at_work if work.txn_id])

    def is_certain(compaction: Compaction) -> bool:
        if compaction.is_being_cleaned:
            return not compaction.error or now() - compaction.cleaner_started < _LONGEST_ATTEMPT_SECONDS
        return compaction.txn_id > 0 and compaction.txn_id not in ended

    return [compaction for compaction in at_work if compaction not in first or is_certain(compaction)]


def _running(compaction: Compaction) -> CompactionRunning:
    part = f", partition {compaction.partition}" if compaction.partition else ""
    transaction = f" in the transaction {compaction.txn_id}" if compaction.txn_id else ""
    work = "is being cleaned up" if compaction.is_being_cleaned else f"is running{transaction}"
    hint = _FAILED_HINT.format(compaction.error) if compaction.is_being_cleaned and compaction.error else _HINT
    return CompactionRunning(
        f"the compaction {compaction.id} {work}, and the load must move or remove the files",
        where=f"table {compaction.table}{part}",
        hint=hint,
    )
