"""The load of the changes of a database: replays events in their order, and copies files ahead of their commits.

Invariant: a reader of the target sees states that the source has had, in their order. A transaction becomes visible on
the target by one call of the metastore, which also stores its event as the last one, and all its files are in place
before. Everything after the last event may be replayed again.

A table that cannot follow is lost: from then on it stays as it is, and the next dump contains all of it
(`directory/lost_tables.py`). Such tables are replaced at the end of a load; between that and its last event, they may
be ahead of other tables.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from ingestd.acid.layout import base_name
from ingestd.errors import ReplicationError
from ingestd.hive.events import Write, WrittenFile
from ingestd.hive.objects import TableObject, change_database, table_names
from ingestd.hive.replay import Allocation, Replay
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.write_ids import ValidTransactions, read_snapshot
from ingestd.replication.cluster import Cluster, load_lease, owner_of_copies
from ingestd.replication.copying.copy import Copier, CopyStopped
from ingestd.replication.copying.fence import Fence
from ingestd.replication.copying.mirror import Mirrors
from ingestd.replication.copying.report import Copied, LoadReport
from ingestd.replication.cycle_plan import CyclePlan, Outcome, is_move, removes_files
from ingestd.replication.directory.dump_files import DumpMetadata
from ingestd.replication.directory.event_records import (
    ABORT,
    ALLOCATE,
    COMMIT,
    BootstrapRecord,
    Cursor,
    EmptyBaseRecord,
    EventRecord,
    PartitionColumnsRecord,
    TransactionsRecord,
    WriteRecord,
    WrittenFileRecord,
)
from ingestd.replication.directory.lost_tables import LostTables
from ingestd.replication.directory.manifest import Manifest
from ingestd.replication.directory.protocol import Dump
from ingestd.replication.directory.refused_constraints import RefusedConstraints
from ingestd.replication.directory.unreadable_tables import UnreadableTables
from ingestd.replication.external import mirrors, read_directories, tables_in
from ingestd.replication.load.constraints import create_constraints
from ingestd.replication.load.copy_ahead import CopyAhead
from ingestd.replication.load.definitions import Definitions, is_repeatable
from ingestd.replication.load.foreign_writes import ForeignWrites
from ingestd.replication.load.left_write_ids import forget_write_ids
from ingestd.replication.load.statistics_runs import StatisticsRuns
from ingestd.replication.load.table_load import LoadStep, TableLoad, loading_name
from ingestd.replication.load.target_marks import continue_target
from ingestd.replication.marks import IDENTITY, LAST_ID, PENDING, SETTLED
from ingestd.storage.contract import child


class ReplayStep(Enum):
    """The steps that an observer of a load is informed of, beside those of tables that are copied as a whole."""

    ALLOCATED = "allocated"
    COPIED = "copied_ahead"
    COMMITTED = "committed"
    ABORTED = "aborted"
    DEFINED = "defined"
    STORED = "stored"
    EXTERNAL = "external"
    LOADED = "loaded"
    SWEPT = "swept"


@dataclass(frozen=True, slots=True)
class IncrementalLoadOptions:
    """Into which database a dump is loaded; the fields are those of BootstrapLoadOptions.

    `on_events` is called with the number of events that were replayed, and the number of all events.
    """

    database: str
    external_base: str | None = None
    on_files: Callable[[int, int], None] = lambda _done, _all: None
    on_events: Callable[[int, int], None] = lambda _done, _all: None
    observe: Callable[[ReplayStep | LoadStep], None] = lambda _: None


def load_incremental(
    target: Cluster,
    dump: Dump,
    metadata: DumpMetadata,
    copier: Copier,
    options: IncrementalLoadOptions,
    stop: threading.Event,
) -> LoadReport:
    """Load a finished dump. May be repeated until it succeeds; afterwards the caller marks the dump as loaded.

    Raises BootstrapRequired if the target cannot follow the source any more, TargetChanged if another client has
    written to the target, CopyStopped if `stop` is set, OwnershipLost if another process loads into the database,
    ReplicationError, ManifestIncomplete, and the errors of the metastore and of the storages.
    """
    with load_lease(target, options.database) as lease:
        fence = Fence.begin(target.storages, dump.uri)
        copier = copier.guarded(lease.check, fence)
        target = target.under(lease)
        marks = continue_target(target.metastore, options.database, metadata, options.external_base)
        load = _Load(target, dump, metadata, options, marks, is_repeated=fence.is_repeated)
        load.require_unchanged_target(stop)
        load.drop_newer_tables()
        load.replay_events(copier, stop)
        load.copy_tables(copier, stop)
        load.create_constraints()
        load.copy_external(copier, stop)
        load.finish()
    return load.report()


class _Load:
    """The steps of a load; see the module.

    `marks` are the properties of the target database. `is_repeated` says that an earlier load of the dump has begun.
    """

    def __init__(
        self,
        target: Cluster,
        dump: Dump,
        metadata: DumpMetadata,
        options: IncrementalLoadOptions,
        marks: dict[str, str],
        *,
        is_repeated: bool,
    ) -> None:
        storage = target.storages.at(dump.uri)
        self._target = target
        self._dump = dump
        self._metadata = metadata
        self._options = options
        self._is_repeated = is_repeated
        self._manifest = manifest = Manifest(storage, child(dump.uri, metadata.payload or ""))
        self._last = self._event = int(marks[LAST_ID])
        self._unstored = 0  # the last event that was replayed, if the database does not have it as its last one
        self._is_first = marks.get(PENDING) == "true"
        # Dumps of earlier releases do not tell when a bootstrap was settled.
        self._settled = int(marks.get(SETTLED, metadata.to_event if self._is_first else 0))
        self._replay = Replay(target.metastore, options.database, accepts_gaps=self._is_unsettled)
        self._foreign_writes = ForeignWrites(target, self._replay.highest_write_id)
        self._accepts_missing = self._is_first or self._settled > self._last
        self._plan = CyclePlan.of(manifest.read(EventRecord), self._last)
        known, renamed = dump.state.unreadable, self._plan.renamed
        self._unreadable = UnreadableTables.of_load(target.storages, dump.uri, manifest, known, renamed)
        self._lost = lost = LostTables(storage, dump.uri, self._unreadable, renamed)
        self._refused = RefusedConstraints(storage, dump.uri, dump.state.unconstrained, renamed)
        self._definitions = Definitions(
            target,
            metadata.scope.database,
            options.database,
            options.external_base,
            lost.add,
            accepts_missing=self._accepts_missing,
        )
        self._runs = StatisticsRuns.of(manifest.read(EventRecord), self._last)
        self._writes = Cursor(manifest.read(WriteRecord))
        self._written_files = Cursor(manifest.read(WrittenFileRecord))
        self._partition_columns = Cursor(manifest.read(PartitionColumnsRecord))
        self._empty_bases = Cursor(manifest.read(EmptyBaseRecord))
        self._copied = Copied()
        self._ahead = CopyAhead(
            *(manifest, self._plan, self._definitions, self._replay, lost, target.storages),
            *(self._copied, options.on_files),
        )
        self._events = 0
        self._replaced = {table for record in manifest.read(BootstrapRecord) for table in record.tables}
        self._bootstrapped: tuple[str, ...] = ()

    def report(self) -> LoadReport:
        """Return what was done."""
        return self._copied.report(self._events, self._bootstrapped, self._lost.names)

    def require_unchanged_target(self, stop: threading.Event) -> None:
        """Raise TargetChanged before anything is done, if another client has a write id of this cycle.

        Those of tables that are created, dropped or renamed before are examined when they are replayed. Raises
        CopyStopped if `stop` is set.
        """
        highest: dict[str, int] = {}
        for allocation in self._plan.allocations:
            if allocation.table in self._lost or self._plan.last_barrier(allocation.event, allocation.table):
                continue
            table = self._definitions.find(allocation.table)
            if table is None or self._settled_of(table) >= allocation.event:
                continue
            if allocation.table not in highest:
                highest[allocation.table] = self._replay.highest_write_id(table.name)
            is_open = allocation.txn_id in self._replay.open_transactions
            if allocation.write_id <= highest[allocation.table] and not is_open:
                self._require_own(allocation.table, allocation.txn_id, allocation.write_id, stop)

    def _require_own(self, table: str, txn_id: int, write_id: int, stop: threading.Event) -> None:
        """Raise TargetChanged unless an earlier load of the dump may have had a write id whose transaction has ended.

        It may have aborted the transaction. One that it has committed is not after the last event, unless the metastore
        did not store that.
        """
        if self._is_repeated and txn_id in self._plan.aborted:
            existing = self._definitions.find(table)
            is_own = existing is None or not self._foreign_writes.has_directory(existing, write_id, stop)
        else:
            is_own = self._is_repeated and self._is_unstored_commit(txn_id)
        if not is_own:
            raise self._changed(table, write_id)

    def drop_newer_tables(self) -> None:
        """Drop each copy of a table that is newer than the one that had its name at the first event of this cycle.

        The events are those of the older table, until it is dropped or renamed. Then others create the newer one again.
        """
        if not self._accepts_missing:
            return
        for name, identity in self._plan.identities.items():
            copy = self._definitions.find(name) if name not in self._lost else None
            if copy is not None and identity and copy.parameters.get(IDENTITY, identity) != identity:
                self._definitions.drop(name)
                self._options.observe(LoadStep.DROPPED)

    def _is_unstored_commit(self, txn_id: int) -> bool:
        return any(self._replay.is_ambiguous(event) for event, commit in self._plan.commits.items() if commit == txn_id)

    def _changed(self, table: str, write_id: int) -> ReplicationError:
        return self._replay.changed(self._name(table), f"write id {write_id} is not one of the source")

    def _name(self, table: str) -> TableName:
        return TableName(self._options.database, table)

    def _is_unsettled(self, table: TableName) -> bool:
        """Return whether a table may contain the change of the current event already, because it was copied later."""
        return self._settled_of(self._definitions.find(table.table)) >= self._event

    def _settled_of(self, table: TableObject | None) -> int:
        """Return the last event of which a table may contain changes that were not replayed."""
        settled = int(table.parameters.get(SETTLED, 0)) if table else 0
        return max(settled, self._settled) if self._is_first else settled

    # --- events

    def replay_events(self, copier: Copier, stop: threading.Event) -> None:
        """Copy files and replay the events after the last one."""
        self._copy_after(0, copier, stop)
        count = self._manifest.count(EventRecord)
        for number, record in enumerate(self._manifest.read(EventRecord), 1):
            if record.event <= self._last:
                continue
            if stop.is_set():
                raise CopyStopped("the load was stopped between two events")
            self._event = record.event
            self._make_empty_bases(record.event, copier)
            if record.type == ALLOCATE:
                self._allocate(record, stop)
                self._unstored = record.event
            elif record.type == COMMIT:
                self._commit(record)
            elif record.type == ABORT:
                self._replay.abort(record.message["txnid"])
                self._unstored = record.event
                self._options.observe(ReplayStep.ABORTED)
            elif record.table not in self._lost:
                self._define(record)
                self._copy_after(record.event, copier, stop)
            self._events += 1
            self._options.on_events(number, count)

    def _copy_after(self, event: int, copier: Copier, stop: threading.Event) -> None:
        """Copy the files that can be copied after an event; that may take long."""
        if self._ahead.copy(event, copier, stop):
            self._options.observe(ReplayStep.COPIED)

    def _allocate(self, record: EventRecord, stop: threading.Event) -> None:
        """Allocate the write ids of an event.

        CREATE TABLE AS SELECT allocates one before it creates the table, and leaves it allocated if it fails. Only
        after a bootstrap, the table may be missing because it was dropped.
        """
        if record.table in self._lost or (self._is_first and self._definitions.find(record.table) is None):
            return
        message = record.message
        for txn_id, write_id in zip(message["txnIdList"], message["writeIdList"], strict=True):
            following = self._plan.allocations_after(record.event, record.table, write_id)
            allocated = self._replay.allocate(txn_id, self._name(record.table), write_id, following)
            if allocated is Allocation.FINISHED and not self._is_unsettled(self._name(record.table)):
                self._require_own(record.table, txn_id, write_id, stop)
            self._options.observe(ReplayStep.ALLOCATED)

    def _make_empty_bases(self, event: int, copier: Copier) -> None:
        """Create the empty bases that hide rows when their write ids are committed.

        One whose write id has ended is in the copy already. A copy of the whole table, even if it was listed after the
        overwrite, contains that only if the write id has ended in its snapshot.
        """
        for record in self._empty_bases.take(event):
            table = None if record.table in self._lost else self._definitions.find(record.table)
            if table is None or read_snapshot(self._target.metastore, table.name).has_ended(record.write_id):
                continue
            location = table.location
            if record.partition:
                partition = self._definitions.partitions(table, [record.partition]).get(record.partition)
                location = partition.location if partition else ""
            if location:
                copier.check()
                self._target.storages.location(location).mark_directory(base_name(record.write_id))

    def _commit(self, record: EventRecord) -> None:
        """Commit a transaction, whose files are in place.

        A write whose transaction has ended on the target is in a bootstrap. If the table of a write stays as it is, the
        write id becomes valid without its rows if it was allocated in an earlier cycle; then statistics that count them
        must not become valid.
        """
        txn_id = record.message["txnid"]
        writes = []
        for write in self._writes.take(record.event):
            if write.table in self._lost or write.table in self._replaced:
                if txn_id in self._replay.open_transactions:
                    self._definitions.distrust_statistics(write.table, write.partition)
                continue
            if self._definitions.table(write.table) is None:
                continue
            if self._replay.allocate(txn_id, self._name(write.table), write.write_id) is Allocation.MAPPED:
                writes.append(write)
            elif not self._is_unsettled(self._name(write.table)) and not self._replay.is_ambiguous(record.event):
                raise self._changed(write.table, write.write_id)
        if txn_id in self._replay.open_transactions:
            files = self._written_files.take(record.event)
            self._ahead.remove(record.event, files, self._target.check)
            self._replay.commit(txn_id, self._on_target(writes, files), record.event)
            self._unstored = 0
            self._options.observe(ReplayStep.COMMITTED)

    def _define(self, record: EventRecord) -> None:
        """Replay a change of a definition.

        One after which earlier events cannot be replayed any more, such as DROP PARTITION, is applied when these are
        stored, and stored at once. For example, a write id that was allocated before its table is renamed would be
        allocated again, to the next table of the old name. If the target has no copy of a table that is dropped or
        renamed, the ids that it was given meanwhile are forgotten.
        """
        if removes_files(record) and self._loses_rows(record):
            return
        if not is_repeatable(record):
            self._store()
        replayed = self._runs.replayed(record)
        if replayed is not None:
            # Another record in its place is one whose transaction commits.
            outcome = self._plan.outcomes.of_change(record) if replayed is record else Outcome.COMMITTED
            with self._refused.noting(record.table):
                self._definitions.apply(replayed, outcome, self._partition_columns.take(record.event))
        self._unstored = record.event
        self._options.observe(ReplayStep.DEFINED)
        if record.type == "DROP_TABLE" or (record.type == "ALTER_TABLE" and is_move(record)):
            described = record.message.get("tableObjBeforeJson") or record.message["tableObjJson"]
            with self._lost.if_refused(record.table, "to forget the write ids of its name"):
                forget_write_ids(self._target, self._name(record.table), TableObject.parse(described))
        if not is_repeatable(record):
            self._replay.forget()
            self._foreign_writes.forget()
            self._store()

    def _loses_rows(self, record: EventRecord) -> bool:
        """Lose a table if an event removes files of which its copy may have got some after the event.

        The dump may not have all events up to the copy.
        """
        settled, copies = self._definitions.removed_copies(record)
        for partition in copies:
            if self._metadata.to_event < settled or self._is_filled_later(record, partition):
                part = f"the partition {partition}" if partition else "it"
                self._lost.add(record.table, f"{part} was dropped or truncated, and perhaps filled again meanwhile")
                return True
        return False

    def _is_filled_later(self, record: EventRecord, partition: str) -> bool:
        """Return whether the copy of a partition, or of a table, may have rows that came after an event.

        Those of a write have a write id that has ended in the copy. Other tables have no write ids.
        """
        table = self._definitions.find(record.table)
        if table is None or not table.kind.is_transactional:
            return True
        if self._plan.is_added_again(record.event, record.table, partition):
            return True
        names, copied = self._plan.renamed(record.table), read_snapshot(self._target.metastore, table.name)
        return any(
            write.event > record.event
            and write.table in names
            and partition in (write.partition, WHOLE_TABLE)
            and copied.has_ended(write.write_id)
            for write in self._manifest.read(WriteRecord)
        )

    def _store(self) -> None:
        """Store the last event, if that has not been done."""
        if self._unstored:
            self._replay.set_last_id(self._unstored)
            self._unstored = 0
            self._options.observe(ReplayStep.STORED)

    def _on_target(self, writes: Sequence[WriteRecord], files: Sequence[WrittenFileRecord]) -> list[Write]:
        """Return the writes with the names, files and definitions of the target."""
        placed_writes = []
        by_write = defaultdict(list)
        for file in files:
            by_write[file.table, file.partition, file.write_id].append(file)
        for name, some in groupby(sorted(writes, key=lambda write: write.table), key=lambda write: write.table):
            table = self._definitions.table(name)
            assert table is not None  # `_commit` has dropped the writes of missing tables
            ordered = list(some)
            wanted = [write.partition for write in ordered if write.partition]
            partitions = self._definitions.partitions(table, wanted)
            for write in ordered:
                partition = partitions.get(write.partition)
                if write.partition and partition is None:
                    self._require_unsettled(f"the partition {write.partition} is missing on the target", table.name)
                    continue
                location = partition.location if partition else table.location
                own = by_write[write.table, write.partition, write.write_id]
                written = (self._written(location, record) for record in own)
                present = tuple(placed for placed in written if placed.uri not in self._ahead.absent)
                texts = table.text, partition.text if partition else ""
                if present:  # HMS fails for a write without files
                    placed_writes.append(Write(table.name, write.partition, write.write_id, present, *texts))
        return placed_writes

    def _written(self, location: str, file: WrittenFileRecord) -> WrittenFile:
        return WrittenFile(child(location, *filter(None, [file.directory]), file.name), "", "", file.directory)

    def _require_unsettled(self, what: str, table: TableName) -> None:
        if not self._is_unsettled(table):
            raise ReplicationError(what, where=f"table {table}", hint="drop the target database and bootstrap again")

    # --- tables that are copied as a whole, and external tables

    def copy_tables(self, copier: Copier, stop: threading.Event) -> None:
        """Replace the tables that the dump contains as a whole, and drop those that the source does not have."""
        for record in self._manifest.read(BootstrapRecord):
            self._store()
            options, marks = self._options, {SETTLED: str(record.settled)}
            tables = TableLoad(
                *(self._target, options.database, options.external_base, self._dump.uri, self._manifest),
                *(options.on_files, options.observe, loading_name, marks),
            )
            placed = tables.copy_all(self._lost, copier, self._copied, stop)
            tables.replace_tables(placed, self._lost)
            for name in record.tables:
                if name not in placed and name not in self._lost:
                    tables.drop(self._name(name))
            if any(name not in self._lost for name in record.tables):  # others have their state of before
                self._settled = max(self._settled, record.settled)
            self._bootstrapped = tuple(sorted(name for name in placed if name not in self._lost))

    def create_constraints(self) -> None:
        """Create the constraints of the copied tables, and those that the target has refused before."""
        databases = self._metadata.scope.database, self._options.database
        create_constraints(self._target.metastore, self._manifest, *databases, self._lost, self._refused)
        if self._replaced:
            self._options.observe(LoadStep.CONSTRAINTS)

    def copy_external(self, copier: Copier, stop: threading.Event) -> None:
        """Copy the directories of external tables as they are now."""
        listed = read_directories(self._manifest)
        if pairs := mirrors(listed, self._options.external_base):
            external = Mirrors(self._target.storages, copier, owner_of_copies(self._target, self._options.database))
            result = external.update(pairs, stop=stop, on_progress=self._copied.reporting(self._options.on_files))
            self._copied.add(result)
            refused, count = tables_in(listed, result.unreadable), len(result.unreadable)
            self._unreadable.add(refused, others_are_read=count < len(pairs))
            self._options.observe(ReplayStep.EXTERNAL)

    # --- the end

    def finish(self) -> None:
        """Store the last event of the dump, drop tables that left the scope, and abort what has ended on the source."""
        if self._metadata.is_scope_changed:
            for name in table_names(self._target.metastore, self._options.database):
                if not self._metadata.scope.contains(name):
                    self._definitions.drop(name)
        last = max(self._last, self._metadata.to_event)
        marks: dict[str, str | None] = {LAST_ID: str(last), SETTLED: None, PENDING: None}
        if self._settled > last:
            marks = {LAST_ID: str(last), SETTLED: str(self._settled)}
        change_database(self._target.metastore, self._options.database, marks)
        self._options.observe(ReplayStep.LOADED)
        for record in self._manifest.read(TransactionsRecord):
            self._replay.sweep(ValidTransactions.parse(record.text).has_ended)
            self._options.observe(ReplayStep.SWEPT)
