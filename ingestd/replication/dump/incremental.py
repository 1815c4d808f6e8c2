"""The dump of the changes of a database: the events after the last dump, and the files that transactions wrote.

Invariant: the dump ends between two events. It contains every event in scope up to its end, for every commit all files
that still belong to a table in scope, and the directories of external tables, whose files no event names. The state of
the source's transactions is read before the id of the last event, so if a transaction has ended in it, that event is in
the dump, or the dump does not contain the state.

A table that cannot be followed by events is bootstrapped in the dump: one that has come into scope, one that the
target asks for, one of which a file has vanished, one that is written in transaction batches, one whose TRUNCATE has
not ended in the events, one that was external or in another directory, a managed one without transactions that was
written, one that was dropped after the dump when the columns of its partitions are read, one of which it is not known
whether it was overwritten without rows, and one that was written without announcing the files. It is listed in a
snapshot after the last event of the dump, as in a dump of the whole database, and its events are left out. The target
gets it under the name that it had at that event. So is one whose files cannot be read where they are: it is left out,
and the next dump tries again (`unreadable_tables.py`).

The dump also contains the constraints of tables whose copies lack some, because the target has refused them.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ingestd.hive.events import EventLog
from ingestd.hive.objects import (
    TableKind,
    all_partition_names,
    find_database,
    find_partitions,
    find_table,
    table_names,
)
from ingestd.hive.snapshot import ReadTransaction, WriterRule, take_snapshot, wait_for_writers
from ingestd.hive.tables import TableName, external_tables, materialized_views
from ingestd.hive.write_ids import read_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.directory.dump_files import FINGERPRINT_FILE, UNTIL_FILE, DumpMetadata, Phase
from ingestd.replication.directory.event_records import BootstrapRecord, TransactionsRecord, WriteRecord
from ingestd.replication.directory.manifest import ManifestWriter
from ingestd.replication.directory.protocol import Dump
from ingestd.replication.dump.bootstrap import DumpStep, TableListing
from ingestd.replication.dump.changes import Changes, Wanted
from ingestd.replication.dump.constraints import refused_constraints
from ingestd.replication.dump.moves import Moves, events_with_moves
from ingestd.replication.dump.partition_columns import PartitionColumns
from ingestd.replication.dump.reading import Reading
from ingestd.replication.dump.unannounced_writes import Candidate, EarlierWriters, UnannouncedWrites, candidates
from ingestd.replication.dump.written_files import WrittenFiles
from ingestd.replication.external import ExternalDirectory, directories, store_directories
from ingestd.replication.marks import TARGET_FOR
from ingestd.replication.statements.scope import Scope

_log = logging.getLogger(__name__)
EVENTS_PER_CYCLE = 10_000


@dataclass(frozen=True, slots=True)
class IncrementalDumpOptions:
    """At most how many events a dump covers; the next dump continues after them.

    `writers` says how long to wait for transactions that write to a table that is bootstrapped. `on_events` is called
    with the number of events that were read, and the number of all events to read. `observe` is called after each step.
    """

    events: int = EVENTS_PER_CYCLE
    writers: WriterRule = field(default_factory=WriterRule)
    on_events: Callable[[int, int], None] = lambda _done, _all: None
    observe: Callable[[DumpStep], None] = lambda _: None


def dump_incremental(
    source: Cluster, dump: Dump, options: IncrementalDumpOptions, stop: threading.Event
) -> DumpMetadata:
    """Write the manifest of the changes into the dump's directory; return the metadata with which it is finished.

    May be repeated for the same dump. The dump ends early if `stop` is set. Raises EventsExpired if the log lacks
    events, EventsReplaced if it has others than the last dump has read, WritersActive, TransactionAborted if the
    snapshot of bootstrapped tables was lost, so that the dump must be repeated, and the errors of the metastore and the
    storages.
    """
    state = dump.state
    transactions = read_transactions(source.metastore)
    log = EventLog(source.metastore)
    views = frozenset(materialized_views(source.metastore, state.scope.database))
    wanted = Wanted(state.scope, state.previous_scope, frozenset(state.tables), views)
    changes = Changes(log, wanted, state.from_event, state.fingerprint)
    newest = changes.read(options.events, options.on_events, stop)
    options.observe(DumpStep.EVENTS)
    directory = f"manifest-{uuid.uuid4()}"
    manifest = source.storages.location(dump.uri).make_directory(directory)
    writer = ManifestWriter(source.storages.at(dump.uri), manifest)
    moves = Moves(events_with_moves(log), state.scope.database, state.from_event)
    reading, unreadable = Reading(), changes.renamed(state.unreadable)
    reading.is_successful = _write_changes(source, moves, changes, transactions.open, writer)
    if tables := _WholeTables(source, moves, changes, writer, reading, unreadable).write(options, stop):
        writer.add(BootstrapRecord(tables, log.current_id()))
    refused = refused_constraints(source.metastore, moves, state.unconstrained, state.from_event, changes.position)
    for table, records in refused.items():
        if table not in tables and state.scope.contains(table):
            for record in records:
                writer.add(record)
    store_directories(writer, list(_external_directories(source, state.scope)))
    if changes.position >= newest:
        writer.add(TransactionsRecord(transactions.text))
    else:
        writer.write_file(UNTIL_FILE, str(changes.read_until).encode())
    reading.store(source, state.scope, writer, unreadable)
    writer.write_file(FINGERPRINT_FILE, changes.fingerprint.encode())
    writer.finish()
    options.observe(DumpStep.MANIFEST)
    is_changed = state.previous_scope is not None
    return DumpMetadata(
        Phase.INCREMENTAL,
        state.from_event,
        changes.position,
        state.scope,
        payload=directory,
        is_scope_changed=is_changed,
    )


def _write_changes(
    source: Cluster, moves: Moves, changes: Changes, opened: Collection[int], writer: ManifestWriter
) -> bool:
    """Write the events, and the writes with their files, of the tables whose files are complete.

    Return whether a directory could be read.

    `opened` are the transactions that were open before the events were read.
    """

    def writers(candidate: Candidate) -> Collection[int] | None:
        return changes.uncommitted_writers(candidate.event, candidate.table, candidate.write_id)

    earlier = EarlierWriters(frozenset(opened), changes.earlier_writers())
    writes = changes.writes()
    unannounced = [
        candidate
        for candidate in candidates(changes.events(), writes)
        if not changes.is_aborted(candidate.event, candidate.table, candidate.write_id)
    ]
    files = WrittenFiles(source.storages, moves, writes)
    database = find_database(source.metastore, moves.database)  # None if it was dropped after the events
    is_copy = database is not None and bool(database.parameters.get(TARGET_FOR))
    found = UnannouncedWrites.find(source, moves, unannounced, writers, earlier, is_copy=is_copy)
    unusable = {**files.unusable(), **found.unknown}
    for table, reason in unusable.items():
        _log.warning("the dump contains all of the table %s, because %s", table, reason)
    changes.bootstrap({*unusable, *files.refused, *found.refused, *changes.truncated()})
    columns = PartitionColumns.read(source.metastore, moves, changes.column_changes(), changes.position)
    changes.bootstrap(columns.missing)
    for event in changes.events():
        writer.add(event)
    for base in found.records:
        if changes.is_replayed(base.event, base.table):
            writer.add(base)
    for record in columns.records:
        writer.add(record)
    for write in changes.known_writes():
        writer.add(WriteRecord(write.event, write.write.table.table, write.write.partition, write.write.write_id))
    followed = {write.write.table.table for write in changes.writes()}
    for file in files.records():
        if file.table in followed:
            writer.add(file)
    return files.are_read


@dataclass(frozen=True, slots=True)
class _WholeTables:
    """Writes the tables to bootstrap into a manifest. The tables `known` could not be read in the last cycle."""

    source: Cluster
    moves: Moves
    changes: Changes
    writer: ManifestWriter
    reading: Reading
    known: Collection[str]

    def write(self, options: IncrementalDumpOptions, stop: threading.Event) -> tuple[str, ...]:
        """List the tables in a snapshot; return the names of all, whether they exist or not.

        A table that was renamed after the dump is listed under the name that it had at its end: the events that follow
        give the copy its new name. If it is renamed before its write ids are read, which may be those of another table
        then, it is listed in another snapshot.
        """
        scope, metastore, moves = self.changes.scope, self.source.metastore, self.moves
        if not self.changes.bootstrapped(table_names(metastore, scope.database)):
            return ()
        current = self._current()
        wanted = sorted(filter(scope.contains, self.changes.bootstrapped(current)))
        listed = self._refused_again({table: current[table] for table in wanted if table in current})
        missed: set[TableName] = set()
        while True:
            names = {
                TableName(scope.database, now): table
                for table in wanted
                if table not in listed and (now := current.get(table)) is not None and scope.contains(now)
            }
            pending = [name for name in names if name not in missed]
            if not pending:
                break
            with ReadTransaction(metastore, f"ingestd repl dump {scope.database}") as held:
                held.keep_files(pending)
                snapshot = wait_for_writers(metastore, pending, options.writers, stop)
                current = self._current()
                settled = [name for name in pending if current.get(names[name]) == name.table]
                event = moves.position
                options.observe(DumpStep.SNAPSHOT)
                recorded = {now: table for table, now in current.items()}
                where = self.source, snapshot, moves, event, self.writer, list[ExternalDirectory](), self.reading
                existing = TableListing(*where, options.observe, recorded).add_tables(settled)
                held.check()
            listed.update(names[name] for name in existing)
            missed.update(set(settled).difference(existing))
            current = self._current()
        return tuple(wanted)

    def _current(self) -> dict[str, str]:
        existing = table_names(self.source.metastore, self.changes.scope.database)
        return _current_names(self.moves, self.changes.position, existing)

    def _refused_again(self, current: Mapping[str, str]) -> set[str]:
        """Return the tables that still cannot be read, so that the dump does not wait for their writers.

        `current` has the present names of the tables to bootstrap. The known ones are listed in a snapshot of this
        moment, whose records are forgotten.
        """
        names = {TableName(self.changes.scope.database, current[table]): table for table in current.keys() & self.known}
        if not names:
            return set()
        metastore, start, tried = self.source.metastore, self.writer.position(), Reading()
        with ReadTransaction(metastore, f"ingestd repl dump {self.changes.scope.database}") as held:
            held.keep_files(names)
            snapshot, event = take_snapshot(metastore, list(names)), self.moves.position
            where = self.source, snapshot, self.moves, event, self.writer, list[ExternalDirectory](), tried
            recorded = {name.table: table for name, table in names.items()}
            TableListing(*where, lambda _: None, recorded).add_tables(list(names))
        self.writer.rewind(start)
        self.reading.refused |= tried.refused
        return set(tried.refused)


def _current_names(moves: Moves, event: int, existing: Sequence[str]) -> dict[str, str]:
    """Return the names of the tables that exist now by the names that they had at an event.

    A table that was created since has the same name, unless another one had it.
    """
    moves.read()
    before = {name: moves.name_before(event, name) for name in existing}
    current = {old: name for name, old in before.items() if old is not None}
    return {**{name: name for name, old in before.items() if old is None}, **current}


def _external_directories(source: Cluster, scope: Scope) -> Iterator[ExternalDirectory]:
    """Yield the directories of the external tables in scope, whose files no event names."""
    for name in external_tables(source.metastore, scope.database):
        table = find_table(source.metastore, TableName(scope.database, name)) if scope.contains(name) else None
        if table is None or table.kind is not TableKind.EXTERNAL:
            continue
        locations = {}
        if table.partition_columns:
            names = all_partition_names(source.metastore, table.name)
            partitions = find_partitions(source.metastore, table.name, names, column_statistics=False)
            locations = {table.partition_name(partition.values): partition.location for partition in partitions}
        yield from directories(name, table.location, locations)
