"""The load of whole tables, which a dump has listed in a snapshot of the source.

Invariant: a table has no write ids until it has all files, so that neither a reader nor a compaction of the target sees
a part of them: the base of a compaction would hide the files that come after it. No reader sees rows of an aborted
transaction. Every step may be repeated: a table says whether this dump has completed it (CHECKPOINT) or has begun it
(LOADING). A table that neither is true of is replaced.

A table is lost if a file of it has vanished from the source, or if the metastore of the target refuses a step: then its
incomplete copy is dropped, and the next dump contains it again (`directory/lost_tables.py`).

A load of tables into a database that readers use gives them other names until they are complete (`loading_name`), and
then replaces the tables of those names (`replace_tables`). In between, a reader finds no table, but never a part of it.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from hashlib import sha256
from itertools import groupby, islice

from ingestd.errors import IngestdError, ReplicationError
from ingestd.hive.objects import (
    PartitionObject,
    TableKind,
    TableObject,
    add_partitions,
    alter_table,
    create_table,
    find_table,
)
from ingestd.hive.replay import Replay
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.write_ids import parse
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.copy import Copier, Progress
from ingestd.replication.copying.report import Copied
from ingestd.replication.copying.transfer import CopyFile
from ingestd.replication.directory.lost_tables import LostTables
from ingestd.replication.directory.manifest import (
    AbortedRecord,
    FileRecord,
    Manifest,
    PartitionRecord,
    TableRecord,
    WithoutDirectoryRecord,
)
from ingestd.replication.external import target_location
from ingestd.replication.load.left_write_ids import forget_write_ids
from ingestd.replication.load.target_moves import drop_table, is_undisturbed, rename_table
from ingestd.replication.marks import (
    CHECKPOINT,
    IDENTITY,
    LOADING,
    WITHOUT_DIRECTORY,
    marks_of_kind,
    marks_of_location,
    source_kind,
    without_marks,
)
from ingestd.storage.contract import child

_FILES_AT_ONCE = 100_000
_PARTITIONS_AT_ONCE = 1000
_LOADING_PREFIX = "ingestd_loading_"
_COPY = "its copy"
_PLAIN_NAME = re.compile(r"[a-z0-9_]{1,200}")


class LoadStep(Enum):
    """The steps that an observer of a load is informed of."""

    DATABASE = "database"
    TABLE = "table"
    WRITE_IDS = "write_ids"
    COPIED = "copied"
    PARTITIONS = "partitions"
    COMPLETE = "complete"
    DROPPED = "dropped"
    REPLACED = "replaced"
    CONSTRAINTS = "constraints"
    LAST_EVENT = "last_event"


def loading_name(table: str) -> str:
    """Return the name of a table until its copy is complete. No metastore refuses it as too long."""
    return _LOADING_PREFIX + (table if _PLAIN_NAME.fullmatch(table) else sha256(table.encode()).hexdigest()[:32])


def is_loading_name(name: str) -> bool:
    """Return whether a table of the target is an incomplete copy."""
    return name.startswith(_LOADING_PREFIX)


@dataclass(frozen=True, slots=True)
class Placed:
    """A table of the target: its location, and whether this dump had completed it before.

    `without_directory` contains the escaped names of the partitions whose directories were missing on the source, and
    WHOLE_TABLE if that of the table was. `source` is the location on the source.
    """

    table: TableObject
    is_complete: bool
    without_directory: frozenset[str] = frozenset()
    source: str = ""

    def location(self, partition: str) -> str:
        """Return the location of a partition, or of the table if `partition` is WHOLE_TABLE."""
        return child(self.table.location, partition) if partition else self.table.location


@dataclass(frozen=True, slots=True)
class TableLoad:
    """The steps of a load of all tables in `manifest` into `database`.

    `dump` is the URI of the dump, with which the tables are marked, and `marks` are further properties of the tables.
    `external_base` is the URI below which external tables are; None if there may be none. `named` returns the name of a
    table on the target until it is complete. `on_files` is called while files are copied, with the number of files that
    are done and the number of all files. `observe` is called after each step.
    """

    target: Cluster
    database: str
    external_base: str | None
    dump: str
    manifest: Manifest
    on_files: Callable[[int, int], None]
    observe: Callable[[LoadStep], None]
    named: Callable[[str], str] = str
    marks: Mapping[str, str] = field(default_factory=dict)

    def copy_all(self, lost: LostTables, copier: Copier, copied: Copied, stop: threading.Event) -> dict[str, Placed]:
        """Create and complete the tables, except those that are lost; return them by their names on the source."""
        for name in lost.names:
            self.drop(TableName(self.database, self.named(name)))
        placed = self.create(lost)
        self.copy(placed, lost, copier, copied, stop)
        self._drop_lost(placed, lost)
        self.set_write_ids(placed, lost)
        self.complete(placed, lost)
        return placed

    def _drop_lost(self, placed: dict[str, Placed], lost: LostTables) -> None:
        """Drop the incomplete copies of tables that were lost, and remove them from `placed`."""
        for name in [name for name in placed if name in lost]:
            self.drop(placed.pop(name).table.name)

    def create(self, lost: LostTables) -> dict[str, Placed]:
        """Create the tables, except those that are lost; return them by their names on the source."""
        without_directory = self._without_directory()
        placed = {}
        for record in self.manifest.read(TableRecord):
            if record.table not in lost:
                with lost.if_refused(record.table, _COPY):
                    placed[record.table] = self._create(record, without_directory.get(record.table, ()))
                if record.table in lost:
                    self.drop(TableName(self.database, self.named(record.table)))
        return placed

    def _without_directory(self) -> Mapping[str, Collection[str]]:
        """Return the partitions of each table whose directories were missing; WHOLE_TABLE stands for the table."""
        partitions: dict[str, list[str]] = {}
        for record in self.manifest.read(WithoutDirectoryRecord):
            partitions.setdefault(record.table, []).append(record.partition)
        return partitions

    def _create(self, record: TableRecord, without_directory: Collection[str]) -> Placed:
        metastore = self.target.metastore
        final = find_table(metastore, TableName(self.database, record.table))
        if final is not None and final.parameters.get(CHECKPOINT) == self.dump:
            return Placed(final, is_complete=True)
        name = TableName(self.database, self.named(record.table))
        existing = find_table(metastore, name)
        if existing is not None and existing.parameters.get(CHECKPOINT) == self.dump:
            return Placed(existing, is_complete=True)
        if existing is not None and existing.parameters.get(LOADING) != self.dump:
            self.drop(name)
            existing = None
        table = TableObject.parse(record.text)
        if existing is None:
            parameters = {**without_marks(table.parameters), **marks_of_kind(table), **self.marks}
            if WHOLE_TABLE in without_directory:
                parameters[WITHOUT_DIRECTORY] = "true"
            parameters[LOADING] = self.dump
            if table.identity:
                parameters[IDENTITY] = table.identity
            forget_write_ids(self.target, name, table)
            create_table(metastore, table.copied(name, self._location(table), parameters))
            self.observe(LoadStep.TABLE)
            existing = find_table(metastore, name)
        if existing is None:
            raise self._dropped(name)
        if name.table != record.table and not self._can_be_moved(existing, record.table, final):
            existing = self._elsewhere(existing)
        return Placed(
            existing, is_complete=False, without_directory=frozenset(without_directory), source=table.location
        )

    def _can_be_moved(self, table: TableObject, name: str, replaced: TableObject | None) -> bool:
        """Return whether a metastore can give a new table another name, when it has dropped the table `replaced`.

        It also renames a directory of the old name. That fails for a new name with a colon, and if a directory of the
        new name exists, which a drop may have left. Directories of other names stay as they are.
        """
        above, _, directory = table.location.rpartition("/")
        if directory != table.name.table:
            return True
        if not _PLAIN_NAME.fullmatch(name):
            return False
        place = child(above, name)
        return (replaced is not None and replaced.location == place) or not self.target.storages.at(place).exists(place)

    def _elsewhere(self, table: TableObject) -> TableObject:
        """Give a new table a directory that has not its name, and return it."""
        location = f"{table.location}_{self.dump.rpartition('/')[2]}"
        moved = table.copied(table.name, location, table.parameters)
        alter_table(self.target.metastore, table.name, moved)
        return moved

    def _dropped(self, name: TableName) -> ReplicationError:
        return ReplicationError(
            "another client has dropped the table during the load",
            where=f"table {name}",
            hint="only the replication may write to the target database",
        )

    def drop(self, name: TableName) -> None:
        """Drop a table if it exists; its files only if they are in the warehouse."""
        existing = find_table(self.target.metastore, name)
        if existing is not None:
            drop_table(self.target, existing)

    def _location(self, table: TableObject) -> str | None:
        """Return the location of a new table; None lets the metastore choose one in its warehouse."""
        return target_location(table.location, self.external_base) if table.kind is TableKind.EXTERNAL else None

    # --- files

    def copy(
        self, placed: Mapping[str, Placed], lost: LostTables, copier: Copier, copied: Copied, stop: threading.Event
    ) -> None:
        """Copy the files of the tables that are not complete; lose each table of which one is lost."""
        files = (
            (record.table, self._copy_of(record, placed[record.table]))
            for record in self.manifest.read(FileRecord)
            if record.table in placed and not placed[record.table].is_complete
        )
        reasons: dict[str, list[str]] = defaultdict(list)
        refused: dict[str, IngestdError] = {}
        total, is_read = copied.done + self.manifest.count(FileRecord), False
        while some := list(islice(files, _FILES_AT_ONCE)):
            tables = {file.target: table for table, file in some}
            on_progress = partial(self._report_files, copied.done, total)
            result = copier.copy([file for _, file in some], stop=stop, on_progress=on_progress)
            copied.add(result)
            is_read |= bool(result.copied)
            for loss in result.lost:
                if loss.refusal is None:
                    reasons[tables[loss.file.target]].append(loss.reason)
                else:
                    refused.setdefault(tables[loss.file.target], loss.refusal)
        self.observe(LoadStep.COPIED)
        lost.add_unreadable(refused, others_are_read=is_read)
        for table, of_table in reasons.items():
            if table not in refused:
                what = "files have vanished from the source since the dump; the first"
                lost.add(table, f"{len(of_table)} {what}: {of_table[0]}")

    def _copy_of(self, record: FileRecord, placed: Placed) -> CopyFile:
        directory = child(placed.location(record.partition), *filter(None, [record.directory]))
        return CopyFile(record.source, record.length, directory, record.name, written=record.written)

    def _report_files(self, done: int, total: int, progress: Progress) -> None:
        self.on_files(done + progress.files, total)

    # --- write ids, partitions and completion

    def set_write_ids(self, placed: dict[str, Placed], lost: LostTables) -> None:
        """Give the tables whose files are in place the write ids of the snapshot."""
        replay = Replay(self.target.metastore, self.database, accepts_gaps=lambda _: True)
        aborted: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for aborted_record in self.manifest.read(AbortedRecord):
            for write_id in aborted_record.write_ids:
                aborted[aborted_record.table][write_id].append(aborted_record.partition)
        for record in self.manifest.read(TableRecord):
            if record.write_ids and record.table in placed and not placed[record.table].is_complete:
                table = placed[record.table].table
                with lost.if_refused(record.table, _COPY):
                    forget_write_ids(self.target, TableName(self.database, record.table), table)
                    replay.set_write_ids(table.name, parse(record.write_ids), aborted[record.table])
                self.observe(LoadStep.WRITE_IDS)
        self._drop_lost(placed, lost)

    def complete(self, placed: dict[str, Placed], lost: LostTables) -> None:
        """Create the partitions of tables whose files are in place, and mark the tables as complete."""
        for name, records in groupby(self.manifest.read(PartitionRecord), key=lambda record: record.table):
            if name in placed and not placed[name].is_complete:
                with lost.if_refused(name, _COPY):
                    while some := list(islice(records, _PARTITIONS_AT_ONCE)):
                        self._add_partitions(placed[name], some)
                        self.observe(LoadStep.PARTITIONS)
        self._drop_lost(placed, lost)
        for name, target in placed.items():
            if not target.is_complete:
                with lost.if_refused(name, _COPY):
                    self._mark_complete(target.table.name)
        self._drop_lost(placed, lost)
        self.observe(LoadStep.COMPLETE)

    def _add_partitions(self, placed: Placed, records: list[PartitionRecord]) -> None:
        copies = []
        for record in records:
            partition = PartitionObject.parse(record.text)
            parameters = {**without_marks(partition.parameters), CHECKPOINT: self.dump}
            if source_kind(placed.table) is TableKind.EXTERNAL:
                location = target_location(partition.location, self.external_base)
            else:
                location = placed.location(record.partition)
                if placed.table.kind.is_transactional:
                    parameters |= marks_of_location(placed.source, record.partition, partition.location)
            if record.partition in placed.without_directory:
                parameters[WITHOUT_DIRECTORY] = "true"
            copies.append(partition.copied(placed.table.name, location, parameters))
        add_partitions(self.target.metastore, placed.table, copies)

    def _mark_complete(self, name: TableName) -> None:
        table = find_table(self.target.metastore, name)
        if table is None:
            raise self._dropped(name)
        parameters = {**table.parameters, CHECKPOINT: self.dump}
        parameters.pop(LOADING, None)
        alter_table(self.target.metastore, name, table.copied(name, table.stored_location, parameters))

    def replace_tables(self, placed: dict[str, Placed], lost: LostTables) -> None:
        """Replace the tables of the source's names by the complete copies.

        One that was compacted meanwhile is lost. A table with aborted write ids is compacted as soon as it has them.
        """
        metastore, began = self.target.metastore, "a compaction of the target began while the complete copy was renamed"
        for name, target in list(placed.items()):
            final = TableName(self.database, name)
            if target.table.name == final:  # replaced by an earlier load
                if not is_undisturbed(self.target, final):
                    lost.add(name, began)
                continue
            self.drop(final)
            self.observe(LoadStep.DROPPED)
            table = find_table(metastore, target.table.name)
            if table is None:
                raise self._dropped(target.table.name)
            renamed = table.copied(final, table.stored_location, table.parameters)
            with lost.if_refused(name, _COPY):
                if not rename_table(self.target, table, renamed):
                    lost.add(name, began)
            if name in lost and find_table(metastore, final) is None:  # the rename was refused
                self._drop_lost(placed, lost)
            self.observe(LoadStep.REPLACED)
