"""The dump of a whole database: its objects, and the files of each table in one snapshot of the source.

Invariant: for every table, the manifest has the write ids and the files of one snapshot of the transactions, which was
taken after the first event of the dump. So a change of the source is in the manifest, or is an event after the first
event, or both; the load of events tolerates what the target has already.

The steps, in an order that must not change:

1. the first event is stored in the state of the dump, before this module runs, and stays if the dump is repeated
2. the source database is marked (`source_marks.py`), also before, so that its change manager keeps removed files
3. a transaction is opened, which keeps the compaction cleaner from removing files
4. wait until no transaction that began earlier writes to the tables; take the snapshot
5. list the objects and files, into a directory that belongs to this attempt
6. make sure that the transaction is still open, else start again

A table whose files cannot be read where they are is left out, and the next dump contains it (`unreadable_tables.py`).
An object that is dropped meanwhile is skipped, because its event follows. The listing of a table that is renamed
meanwhile, so that its files have moved, begins again under the present name. It is recorded under the name that it had
in the snapshot, because the event of the rename follows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from ingestd.acid.visibility import ValidWriteIds
from ingestd.clock import Deadline, pause
from ingestd.errors import IngestdError, InvalidTable, MetastoreUnavailable, ReplicationError
from ingestd.hive.attachments import list_functions
from ingestd.hive.events import EventLog
from ingestd.hive.objects import (
    PartitionObject,
    TableKind,
    TableObject,
    all_partition_names,
    find_database,
    find_partitions,
    find_table,
    table_names,
)
from ingestd.hive.partitions import by_call
from ingestd.hive.snapshot import ReadTransaction, TablesSnapshot, WriterRule, wait_for_writers
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.write_ids import as_text
from ingestd.replication.cluster import Cluster
from ingestd.replication.directory.dump_files import FINGERPRINT_FILE, DumpMetadata, Phase
from ingestd.replication.directory.event_records import BootstrapRecord
from ingestd.replication.directory.manifest import (
    AbortedRecord,
    DatabaseRecord,
    FileRecord,
    FunctionRecord,
    ManifestWriter,
    PartitionRecord,
    TableRecord,
    WithoutDirectoryRecord,
)
from ingestd.replication.directory.protocol import Dump
from ingestd.replication.dump.constraints import constraint_records
from ingestd.replication.dump.moves import Moves, events_with_moves
from ingestd.replication.dump.reading import Reading
from ingestd.replication.dump.source_marks import require_source
from ingestd.replication.dump.table_files import ListedFile, all_files, visible_files
from ingestd.replication.exact_statistics import for_copy
from ingestd.replication.external import ExternalDirectory, directories, store_directories
from ingestd.replication.marks import PENDING
from ingestd.storage.contract import NotFound
from ingestd.storage.parallel import run_all
from ingestd.storage.storages import is_of_location

_log = logging.getLogger(__name__)
_LISTING_THREADS = 32
# How often a table is listed at most because partitions of it are renamed meanwhile.
_ATTEMPTS = 3
# A partition may still have its old location so long after its directory was renamed.
_RENAME_SECONDS, _POLL_SECONDS = 5.0, 0.2
# Kinds whose files a bootstrap copies; those of external tables are copied by difference in every cycle.
_WITH_FILES = (TableKind.FULL_ACID, TableKind.INSERT_ONLY, TableKind.MANAGED)


class DumpStep(Enum):
    """The steps that an observer of a dump is informed of."""

    EVENTS = "events"
    SNAPSHOT = "snapshot"
    TABLE = "table"
    MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class BootstrapDumpOptions:
    """How long to wait for transactions that write to the tables. `observe` is called after each step."""

    writers: WriterRule = field(default_factory=WriterRule)
    observe: Callable[[DumpStep], None] = lambda _: None


def dump_bootstrap(source: Cluster, dump: Dump, options: BootstrapDumpOptions, stop: threading.Event) -> DumpMetadata:
    """Write the manifests of a database into the dump's directory; return the metadata with which it is finished.

    May be repeated for the same dump. Raises InvalidTable if the database does not exist, ReplicationError if it is
    itself a replica that is not complete, WritersActive, TransactionAborted if the snapshot was lost, so that the dump
    must be repeated, and the errors of the metastore and of the storages.
    """
    scope, first, log = dump.state.scope, dump.state.from_event, EventLog(source.metastore)
    _require_complete(source, scope.database)
    fingerprint = log.fingerprint(first)
    with ReadTransaction(source.metastore, f"ingestd repl dump {scope.database}") as held:
        names = [name for name in table_names(source.metastore, scope.database) if scope.contains(name)]
        tables = [TableName(scope.database, name) for name in names]
        held.keep_files(tables)
        snapshot = wait_for_writers(source.metastore, tables, options.writers, stop)
        moves = Moves(events_with_moves(log), scope.database, log.current_id())
        options.observe(DumpStep.SNAPSHOT)
        directory = f"manifest-{held.id}"
        location = source.storages.location(dump.uri)
        writer = ManifestWriter(source.storages.at(dump.uri), location.make_directory(directory))
        external, reading = list[ExternalDirectory](), Reading()
        listing = TableListing(source, snapshot, moves, moves.position, writer, external, reading, options.observe)
        listing.run(tables, scope.database)
        reading.store(source, scope, writer, dump.state.unreadable)
        store_directories(writer, external)
        writer.add(BootstrapRecord(tuple(names), log.current_id()))
        writer.write_file(FINGERPRINT_FILE, fingerprint.encode())
        held.check()
        writer.finish()
        options.observe(DumpStep.MANIFEST)
    return DumpMetadata(Phase.BOOTSTRAP, first, first, scope, payload=directory)


def _require_complete(source: Cluster, name: str) -> None:
    if require_source(source.metastore, name).parameters.get(PENDING) == "true":
        raise ReplicationError(
            "the database is a replica that does not have all changes that were made during its bootstrap",
            where=f"database {name}",
            hint="let the replication into this database complete its next cycles first",
        )


class _RefusedError(Exception):
    """A directory of a table cannot be read where it is."""

    def __init__(self, error: IngestdError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _reading() -> Iterator[None]:
    """Raise _RefusedError in place of an error that concerns a location."""
    try:
        yield
    except IngestdError as error:
        if not is_of_location(error):
            raise
        raise _RefusedError(error) from error


@dataclass(frozen=True, slots=True)
class _Listed:
    """A table as it is now, its name in the manifest, and its write ids in the snapshot."""

    table: TableObject
    recorded: str
    ids: ValidWriteIds


@dataclass(frozen=True, slots=True)
class TableListing:
    """Lists the objects of a snapshot into a manifest; appends the directories of external tables to `external`.

    At the event `event`, the tables had the names that they have in the snapshot. `recorded` contains the names of
    tables in the manifest, unless they are the same.
    """

    source: Cluster
    snapshot: TablesSnapshot
    moves: Moves
    event: int
    writer: ManifestWriter
    external: list[ExternalDirectory]
    reading: Reading
    observe: Callable[[DumpStep], None]
    recorded: Mapping[str, str] = field(default_factory=dict)

    def run(self, tables: Sequence[TableName], database: str) -> None:
        """List the database, its tables and its functions."""
        described = find_database(self.source.metastore, database)
        if described is None:
            raise InvalidTable("the database was dropped during the dump", where=f"database {database}")
        self.writer.add(DatabaseRecord(described.text))
        self.add_tables(tables)
        for function in list_functions(self.source.metastore, database):
            if function.resources:  # a function without files is on the class path of the servers
                self.writer.add(FunctionRecord(function.text))

    def add_tables(self, tables: Sequence[TableName]) -> list[TableName]:
        """List the tables that exist, except materialized views; return their names in the snapshot.

        Those that cannot be read are among them, and have no records.
        """
        listed = []
        for name in tables:
            if self._add_table(name, tables):
                listed.append(name)
                self.observe(DumpStep.TABLE)
        return listed

    def _add_table(self, name: TableName, others: Container[TableName]) -> bool:
        """List a table, unless it does not exist or is a materialized view; return whether it exists.

        If it moves meanwhile, its records are forgotten, and made again where it is now. So they are if a partition is
        renamed, but not for ever: if the load finds such a rename, the next dump contains the table.
        """
        attempts = 0
        while True:
            found, since = self._find(name), self.moves.position
            if found is None and not self.moves.read():
                return False
            if found is not None:
                attempts += 1
                if self._is_added(found, others, since, accepts_moved_partitions=attempts >= _ATTEMPTS):
                    return True

    def _find(self, name: TableName) -> _Listed | None:
        """Return a table of the snapshot as it is now, unless it does not exist or is a materialized view."""
        now = self.moves.name_after(self.event, name.table)
        table = find_table(self.source.metastore, TableName(name.database, now)) if now is not None else None
        if table is None or table.kind is TableKind.MATERIALIZED_VIEW:
            return None
        return _Listed(table, self.recorded.get(name.table, name.table), self.snapshot.write_ids[name])

    def _is_added(
        self, listed: _Listed, others: Container[TableName], since: int, *, accepts_moved_partitions: bool
    ) -> bool:
        """List a table; return False, without records, if it has moved since an event."""
        table, start, external = listed.table, self.writer.position(), len(self.external)
        failure: InvalidTable | NotFound | MetastoreUnavailable | None = None
        refusal: IngestdError | None = None
        try:
            self._add(listed, others)
        except _RefusedError as refused:
            refusal = refused.error
        except (InvalidTable, NotFound, MetastoreUnavailable) as error:  # HMS has no answer for partitions of no table
            failure = error
        self.moves.read()
        has_moved = self.moves.has_moved(since, table.name.table, table.location)
        if not (has_moved or accepts_moved_partitions):
            has_moved = self.moves.has_moved_below(since, table.location)
        if has_moved or refusal is not None:
            self.writer.rewind(start)
            del self.external[external:]
        elif failure is not None:
            raise failure
        if refusal is not None and not has_moved:
            self.reading.refused[listed.recorded] = refusal
        return not has_moved

    def _add(self, listed: _Listed, others: Container[TableName]) -> None:
        """List a table, its constraints, and the foreign keys that refer to it, except those of the tables `others`."""
        table, name = listed.table, listed.table.name
        write_ids = as_text(listed.ids) if table.kind.is_transactional else ""
        self.writer.add(TableRecord(listed.recorded, for_copy(table, listed.ids).text, write_ids))
        recorded = {**self.recorded, name.table: listed.recorded}
        for record in constraint_records(self.source.metastore, name, recorded, others):
            self.writer.add(record)
        if table.kind is TableKind.EXTERNAL:
            self.external.extend(directories(name.table, table.location, {}))
        if table.partition_columns:
            for some in by_call(all_partition_names(self.source.metastore, name)):
                self._add_partitions(listed, list(find_partitions(self.source.metastore, name, some)))
        elif table.kind in _WITH_FILES:
            self._add_files(listed, {WHOLE_TABLE: table.location})

    def _add_partitions(self, listed: _Listed, partitions: Sequence[PartitionObject]) -> None:
        table = listed.table
        names = [table.partition_name(member.values) for member in partitions]
        for name, partition in zip(names, partitions, strict=True):
            self.writer.add(PartitionRecord(listed.recorded, name, for_copy(partition, listed.ids).text))
        if table.kind is TableKind.EXTERNAL:
            locations = {name: partition.location for name, partition in zip(names, partitions, strict=True)}
            self.external.extend(directories(table.name.table, table.location, locations)[1:])
        if table.kind in _WITH_FILES:
            self._add_files(listed, dict(zip(names, (partition.location for partition in partitions), strict=True)))

    def _add_files(self, listed: _Listed, locations: Mapping[str, str]) -> None:
        for partition, files in self._visible_files(listed, locations).items():
            aborted: set[int] = set()
            for file in files:
                where = (listed.recorded, partition, file.directory, file.name)
                self.writer.add(FileRecord(*where, file.uri, file.length, file.written))
                if file.batch:
                    aborted.update(write_id for write_id in listed.ids.aborted if write_id in file.batch)
            if aborted:
                self.writer.add(AbortedRecord(listed.recorded, partition, tuple(sorted(aborted))))

    def _visible_files(self, listed: _Listed, locations: Mapping[str, str]) -> Mapping[str, list[ListedFile]]:
        """Return the files of each location of the table or its partitions.

        There are none if the table or partition was dropped or renamed, of which there is an event. A metastore renames
        a directory before its partition, so the dump waits for that. A directory that is still missing then has no rows
        for Hive, which creates it when it writes there; or the metastore hangs, and the load must copy the table again
        if the rename follows (WITHOUT_DIRECTORY).
        """
        table, found = listed.table, self._list(listed, locations)
        longest = Deadline.after(_RENAME_SECONDS)
        without_directory = []
        while missing := {name: locations[name] for name, files in found.items() if files is None}:
            pause(_POLL_SECONDS)
            found |= self._list(listed, missing)
            current = self._locations(table, missing)
            for name in [name for name in missing if found[name] is None]:
                if name not in current:
                    found[name] = []
                elif current[name] != locations[name]:
                    raise NotFound("the directory was moved during the dump", where=locations[name])
                elif longest.passed:
                    self._require_above(table, locations[name])
                    found[name] = []
                    without_directory.append(name)
                    self.writer.add(WithoutDirectoryRecord(listed.recorded, name))
        if without_directory:
            first, count = locations[without_directory[0]], len(without_directory)
            _log.warning("the dump has no rows of %d missing directories of the table %s: %s", count, table.name, first)
        return {name: files or [] for name, files in found.items()}

    def _require_above(self, table: TableObject, missing: str) -> None:
        """Raise NotFound if more than a directory is missing, for example because its file system is not mounted."""
        above = table.location if missing.startswith(f"{table.location}/") else missing.rpartition("/")[0]
        with _reading():
            exists = self.source.storages.at(above).exists(above)
        if not exists:
            raise NotFound("the directory does not exist", where=above, hint="check that its file system is mounted")

    def _list(self, listed: _Listed, locations: Mapping[str, str]) -> dict[str, list[ListedFile] | None]:
        """Return the files of each location, None if it does not exist."""
        calls = [partial(self._files, listed, location) for location in locations.values()]
        return dict(zip(locations, run_all(calls, _LISTING_THREADS), strict=True))

    def _files(self, listed: _Listed, location: str) -> list[ListedFile] | None:
        with _reading():
            storage = self.source.storages.at(location)
            try:
                if listed.table.kind.is_transactional:
                    is_committed = self.snapshot.transactions.is_committed
                    found = list(visible_files(storage, location, listed.ids, is_committed))
                else:
                    found = list(all_files(storage, location))
            except NotFound:
                if storage.exists(location):
                    raise
                return None
        self.reading.is_successful = True
        return found

    def _locations(self, table: TableObject, names: Iterable[str]) -> dict[str, str]:
        """Return the current locations of the table or its partitions that exist."""
        if not table.partition_columns:
            current = find_table(self.source.metastore, table.name)
            return {} if current is None else {WHOLE_TABLE: current.location}
        partitions = find_partitions(self.source.metastore, table.name, list(names), column_statistics=False)
        return {table.partition_name(partition.values): partition.location for partition in partitions}
