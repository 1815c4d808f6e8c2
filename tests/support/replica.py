"""Two Hive clusters for tests of replication, a source and a target, each with a metastore 4.2.0 that logs events.

A test requests the fixture `replica`:

    def test_dump_when_…(replica: Replica) -> None:
        database = replica.name("sales")
        replica.source.metastore.call("create_database", ttypes.Database(name=database))
        make_table(replica.source.metastore, TableName(database, "t"))
        replica.source.sql(f"INSERT INTO {database}.t VALUES (1, 'a')")

The metastores start with the first test that requests them, and a HiveServer2 with its first statement. They run until
the next test file does not need them, and all tests share them until then. A test therefore uses databases with names
of its own (`Replica.name`), and reads events after the current id of the log.
"""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ingestd.clock import Deadline
from ingestd.hive.client import Metastore
from ingestd.hive.objects import find_table
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import Wait, WriteLock, abort, begin_writing, lock
from ingestd.sandbox import (
    HIVESERVER2,
    METASTORE,
    TARGET_HIVESERVER2,
    TARGET_METASTORE,
    Sandbox,
    SandboxOptions,
)
from ingestd.sandbox.hiveserver2 import Session
from ingestd.storage.local import local_path
from tests.support.patience import LIMIT
from tests.support.replica_tables import make_table
from tests.support.stack import repeated


class Side:
    """One cluster. `location` is the URI of its managed tables."""

    def __init__(self, name: str, uri: str, location: str, sandbox: Sandbox) -> None:
        self.name = name
        self.uri = uri
        self.metastore = Metastore(uri)
        self.location = location
        self._sandbox = sandbox
        self._session: Session | None = None

    @property
    def warehouse(self) -> Path:
        """The local directory of managed tables."""
        return local_path(self.location)

    @property
    def external(self) -> Path:
        """The local directory of external tables."""
        return self.warehouse.with_name("external")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in HiveServer2 and return all rows. All calls use one session."""
        return self.query(statement)[1]

    def query(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run a statement in HiveServer2 as `sql` does, and return the names of the columns and all rows."""
        if self._session is None:
            self._session = Session(self._start_hiveserver2())
        session = self._session
        return repeated(lambda: session.query(statement), self.metastore)

    def _start_hiveserver2(self) -> str:
        if self._hiveserver2() is None:
            self._sandbox.start_service(HIVESERVER2 if self.name == "source" else TARGET_HIVESERVER2)
        address = self._hiveserver2()
        assert address
        return address

    def _hiveserver2(self) -> str | None:
        addresses = self._sandbox.addresses()
        return addresses.hiveserver2 if self.name == "source" else addresses.target_hiveserver2

    def close(self) -> None:
        """Close the connections."""
        self.metastore.close()
        if self._session:
            self._session.close()


class Replica:
    """The two clusters. They share no database and no directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        found = sandbox.addresses()
        assert found.target_metastore
        assert found.target_warehouse
        self.source = Side("source", found.metastore, found.warehouse, sandbox)
        self.target = Side("target", found.target_metastore, found.target_warehouse, sandbox)

    def name(self, prefix: str) -> str:
        """Return a database name that is used on neither cluster."""
        return f"{prefix}_{uuid.uuid4().hex[:8]}"


@contextmanager
def replica_clusters(folder: Path) -> Iterator[Replica]:
    """Run both clusters in `folder` and stop them at the end of the `with` block. There is no Kafka.

    INGESTD_TEST_REPLICA names the state folder of a sandbox with a replica, which is then used, and not stopped.
    """
    kept = os.environ.get("INGESTD_TEST_REPLICA")
    sandbox = Sandbox(SandboxOptions(Path(kept) if kept else folder, replica=True, metastore_heap_mb=256))
    try:
        if not kept:
            sandbox.start_service(METASTORE, TARGET_METASTORE)
        made = Replica(sandbox)
        for side in (made.source, made.target):
            _keep_aborted_transaction(side.metastore)
        yield made
        made.source.close()
        made.target.close()
    finally:
        if not kept:
            sandbox.down()


def _keep_aborted_transaction(metastore: Metastore) -> None:
    """Make an aborted transaction the oldest one that HMS remembers.

    The cleaner of metastore 4.2.0 fails while the oldest one is open (NumberFormatException for the transaction list
    `-1,0`), and tries again after 5 minutes. HMS does not forget an aborted transaction that has locked a table.
    """
    name = TableName("default", "locked_by_aborted")
    if find_table(metastore, name) is None:
        make_table(metastore, name)
        txn, _ = begin_writing(metastore, name, "tests")
        lock(metastore, txn, [WriteLock(name)], wait=Wait(Deadline.after(LIMIT), threading.Event()))
        abort(metastore, txn.id)


class Running:
    """The clusters of this process, as long as test files need them. Even idle ones take several percent of a core."""

    def __init__(self) -> None:
        self._ending = ExitStack()
        self._clusters: Replica | None = None

    def start(self, parent: Path) -> Replica:
        """Return the clusters, which start in a new folder in `parent` unless they run."""
        if self._clusters is None:
            folder = Path(tempfile.mkdtemp(prefix="replica-", dir=parent))
            self._clusters = self._ending.enter_context(replica_clusters(folder))
        return self._clusters

    def stop(self) -> None:
        """Stop the clusters if they run."""
        self._clusters = None
        self._ending.close()
