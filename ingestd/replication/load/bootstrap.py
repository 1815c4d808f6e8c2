"""The load of a dump of a whole database into a target database.

Invariant: a table has no write ids until it has all files (`table_load.py`). The last event is stored when everything
else is complete. Every step may be repeated: an object says whether this dump has completed it (CHECKPOINT), has begun
it (LOADING), or does not know it; only objects of the last kind are dropped, and only in a database that was empty when
the replication took it over.

The steps, in an order that must not change:

1. take over the database: it must be new, empty, or a copy of the same source
2. create each table
3. copy the files of all tables; drop a table of which a file has vanished from the source, and ask the next dump for it
   (`directory/lost_tables.py`); so is one that the metastore of the target refuses in this step or another
4. give the tables their write ids, create the partitions, with their statistics, and mark the tables as complete
5. copy the directories of external tables
6. create functions and constraints; foreign keys last, because they need the keys of other tables
7. store the first event of the dump as the last event of the target

The copy is consistent when the changes that were made while the source was listed are replayed; until then, the
database is marked as PENDING.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from dataclasses import dataclass

from ingestd.errors import ReplicationError
from ingestd.hive.attachments import FunctionObject, create_function, drop_function, list_functions
from ingestd.hive.objects import DatabaseObject, change_database, create_database, find_database, table_names
from ingestd.hive.replay import Replay
from ingestd.hive.tables import TableName
from ingestd.replication.cluster import Cluster, load_lease, owner_of_copies
from ingestd.replication.copying.copy import Copier
from ingestd.replication.copying.fence import Fence
from ingestd.replication.copying.mirror import Mirrors
from ingestd.replication.copying.report import Copied, LoadReport
from ingestd.replication.directory.dump_files import DumpMetadata
from ingestd.replication.directory.event_records import BootstrapRecord
from ingestd.replication.directory.lost_tables import LostTables
from ingestd.replication.directory.manifest import DatabaseRecord, FunctionRecord, Manifest
from ingestd.replication.directory.protocol import Dump
from ingestd.replication.directory.refused_constraints import RefusedConstraints
from ingestd.replication.directory.unreadable_tables import UnreadableTables
from ingestd.replication.external import mirrors, read_directories, tables_in
from ingestd.replication.load.constraints import create_constraints
from ingestd.replication.load.table_load import LoadStep, TableLoad
from ingestd.replication.marks import (
    CHECKPOINT,
    EXTERNAL_BASE,
    INCOMPATIBLE,
    LAST_ID,
    ORIGIN,
    PENDING,
    READ_ONLY,
    SETTLED,
    TARGET_FOR,
    without_marks,
)
from ingestd.replication.statements.settings import check_base
from ingestd.storage.contract import child


class TargetOccupied(ReplicationError):
    """The target database contains something that does not belong to this replication."""


@dataclass(frozen=True, slots=True)
class BootstrapLoadOptions:
    """Into which database a dump is loaded.

    `external_base` is the URI below which external tables are; None if there may be none. `on_files` is called while
    files are copied, with the number of files that are done and the number of all files. `observe` is called after each
    step.
    """

    database: str
    external_base: str | None = None
    on_files: Callable[[int, int], None] = lambda _done, _all: None
    observe: Callable[[LoadStep], None] = lambda _: None


def load_bootstrap(
    target: Cluster,
    dump: Dump,
    metadata: DumpMetadata,
    copier: Copier,
    options: BootstrapLoadOptions,
    stop: threading.Event,
) -> LoadReport:
    """Load a finished dump. May be repeated until it succeeds; afterwards the caller marks the dump as loaded.

    Raises TargetOccupied if the database is not one for this source, CopyStopped if `stop` is set, ManifestIncomplete,
    OwnershipLost if another process loads into the database, and the errors of the metastore and of the storages.
    """
    storage = target.storages.at(dump.uri)
    manifest = Manifest(storage, child(dump.uri, metadata.payload or ""))
    with load_lease(target, options.database) as lease:
        copier = copier.guarded(lease.check, Fence.begin(target.storages, dump.uri))
        load = _Load(target.under(lease), dump, manifest, options)
        load.take_over()
        unreadable = UnreadableTables.of_load(target.storages, dump.uri, manifest, dump.state.unreadable)
        lost, copied = LostTables(storage, dump.uri, unreadable), Copied()
        tables = load.tables()
        placed = tables.copy_all(lost, copier, copied, stop)
        load.drop_others(placed)
        load.copy_external(unreadable, copier, copied, stop)
        load.create_functions()
        refused = RefusedConstraints(storage, dump.uri, dump.state.unconstrained)
        create_constraints(target.metastore, manifest, dump.state.scope.database, options.database, lost, refused)
        options.observe(LoadStep.CONSTRAINTS)
        load.store_last_event(metadata.to_event)
    return copied.report(0, sorted(name for name in placed if name not in lost), lost.names)


@dataclass(frozen=True, slots=True)
class _Load:
    """The steps of a load; see the module."""

    target: Cluster
    dump: Dump
    manifest: Manifest
    options: BootstrapLoadOptions

    @property
    def _origin(self) -> str:
        return self.dump.uri.rpartition("/")[0]

    def take_over(self) -> None:
        """Create the database, or mark an existing one that is empty or a copy of the same source."""
        if self.options.external_base is not None:
            check_base(self.options.external_base)
        metastore, name = self.target.metastore, self.options.database
        (record,) = self.manifest.read(DatabaseRecord)
        marks = {CHECKPOINT: self.dump.uri, TARGET_FOR: "true", READ_ONLY: "true", PENDING: "true"}
        marks[ORIGIN] = self._origin
        if self.options.external_base is not None:
            marks[EXTERNAL_BASE] = self.options.external_base
        described = DatabaseObject.parse(record.text)
        wanted = {**without_marks(described.parameters), **marks}
        existing = find_database(metastore, name)
        if existing is None:
            create_database(metastore, described.copied(name, wanted))
        else:
            self._require_own(existing)
            unset = dict.fromkeys((LAST_ID, SETTLED, INCOMPATIBLE, EXTERNAL_BASE))
            change_database(metastore, name, {**unset, **wanted})
        # Transactions of an earlier replication into this database would keep their write ids.
        Replay(metastore, name, accepts_gaps=lambda _: True).sweep(lambda _: True)
        self.options.observe(LoadStep.DATABASE)

    def _require_own(self, database: DatabaseObject) -> None:
        name, marks = self.options.database, database.parameters
        hint = "load into another database, or drop this one"
        if marks.get(ORIGIN) == self._origin:
            return
        for key in (ORIGIN, LAST_ID, TARGET_FOR):
            if key in marks:
                source = marks.get(ORIGIN, f"{key}={marks[key]}")
                text = f"the database is a copy of another source: {source}"
                raise TargetOccupied(text, where=f"database {name}", hint=hint)
        if tables := table_names(self.target.metastore, name):
            text = f"the database is not empty; it contains the table {tables[0]}"
            raise TargetOccupied(text, where=f"database {name}", hint=hint)

    # --- tables and files

    def tables(self) -> TableLoad:
        """Return the load of the tables."""
        options = self.options
        return TableLoad(
            self.target,
            options.database,
            options.external_base,
            self.dump.uri,
            self.manifest,
            options.on_files,
            options.observe,
            marks=self._settled(),
        )

    def _settled(self) -> dict[str, str]:
        """Return the mark of the last event of which copies may contain changes; none if an earlier release dumped."""
        record = next(self.manifest.read(BootstrapRecord), None)
        return {SETTLED: str(record.settled)} if record else {}

    def drop_others(self, placed: Container[str]) -> None:
        """Drop the tables that the source does not have, and those that are lost."""
        for name in table_names(self.target.metastore, self.options.database):
            if name not in placed:
                self.tables().drop(TableName(self.options.database, name))

    def copy_external(
        self, unreadable: UnreadableTables, copier: Copier, copied: Copied, stop: threading.Event
    ) -> None:
        """Copy the directories of external tables; files that change meanwhile are copied by the next cycle."""
        listed = read_directories(self.manifest)
        if pairs := mirrors(listed, self.options.external_base):
            external = Mirrors(self.target.storages, copier, owner_of_copies(self.target, self.options.database))
            result = external.update(pairs, stop=stop, on_progress=copied.reporting(self.options.on_files))
            copied.add(result)
            unreadable.add(tables_in(listed, result.unreadable), others_are_read=len(result.unreadable) < len(pairs))

    # --- what belongs to tables and the database

    def create_functions(self) -> None:
        """Create the functions, and drop those that the source does not have, or has with another definition."""
        metastore, database = self.target.metastore, self.options.database
        wanted = [FunctionObject.parse(record.text) for record in self.manifest.read(FunctionRecord)]
        definitions = {function.definition for function in wanted}
        for function in list_functions(metastore, database):
            if function.definition not in definitions:
                drop_function(metastore, database, function.name)
        for function in wanted:
            create_function(metastore, function.copied(database))

    def store_last_event(self, event_id: int) -> None:
        """Store the event after which the first incremental load begins, and the last one that it may repeat."""
        change_database(self.target.metastore, self.options.database, {LAST_ID: str(event_id), **self._settled()})
        self.options.observe(LoadStep.LAST_EVENT)
