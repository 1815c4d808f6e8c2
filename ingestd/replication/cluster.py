"""One side of a replication: the metastore and the storages of a cluster.

Invariant: a dump uses the cluster of the source only, and a load that of the target, whose storages must also be able
to read the files of the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingestd.hive.client import Metastore
from ingestd.hive.held_lease import HeldLease
from ingestd.hive.tables import TableName
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
