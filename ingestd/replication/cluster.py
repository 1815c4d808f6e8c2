"""One side of a replication: the metastore and the storages of a cluster.

Invariant: a dump uses the cluster of the source only, and a load that of the target, whose storages must also be able
to read the files of the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingestd.hive.client import Metastore
from ingestd.hive.held_lease import HeldLease
from ingestd.hive.objects import TableObject, drop_table
from ingestd.hive.tables import TableName
from ingestd.replication.marks import owns_files
from ingestd.storage.storages import Storages


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as one process reaches it. Thread-safe.

    `check` raises the error with which the storages must not be changed any more.
    """

    metastore: Metastore
    storages: Storages
    check: Callable[[], None] = lambda: None

    def under(self, lease: HeldLease) -> Cluster:
        """Return the cluster for the holder of a lease: when it is lost, each call raises OwnershipLost instead."""
        return Cluster(self.metastore.guarded(lease.check), self.storages, lease.check)


def load_lease(target: Cluster, database: str) -> HeldLease:
    """Acquire the lease of loads into a database. Raises OwnershipLost if another process holds it."""
    return HeldLease(target.metastore, TableName(database, "ingestd_load"), f"load into the database {database}")


def owner_of_copies(target: Cluster, database: str) -> str:
    """Return whose the copies of external tables of a database are, as `copying/mirror.py` records it."""
    return f"the database {database} of the metastore {target.metastore.call('get_metastore_db_uuid')}"


def drop_copy(target: Cluster, table: TableObject) -> None:
    """Drop a table of the target, with its files if they are in the warehouse.

    The metastore forgets the write ids of a table only if its data is deleted as well.
    """
    abort_left_uploads(target, table)
    drop_table(target.metastore, table.name, delete_data=owns_files(table))


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
