"""Replays changes of definitions: databases, tables, partitions, statistics, constraints and functions.

Invariant: to replay an event again has no effect, if no later event of the same object was replayed. A definition on
the target is that of the source, with names, locations and marks of the target. Changes of rows are not replayed here,
except TRUNCATE.

An object that does not exist on the target is an error, unless `accepts_missing` is set: until the first cycle after a
bootstrap is complete, events may concern objects that were dropped or renamed while they were copied. A table that was
renamed meanwhile may have been copied under neither name, and rows that were written to a partition before its rename
may be in neither partition of the copy, or the copy has a newer partition of the old name; then the table is lost. A
copy that is newer than the table of the events has been dropped before (`_Load.drop_newer_tables`). Nothing tells
whether a copy is newer than an event without a write id that removes its files, by DROP PARTITION or TRUNCATE. If it
may have rows that came after the event, its files may be their only copy, and the table is lost.

A table is lost as well if the metastore of the target refuses a change of it: only that of the source may allow a type
that cannot be converted to the new one, or the target may have the directory of a new partition. So is a table whose
compaction begins on the target while it is renamed (`target_moves.py`); a repeated load that finds it renamed asks too.

A partition of a transactional table may get another directory, with other files. Not every event has the old one, so a
copy keeps the directory of the source (SOURCE_LOCATION); if it changes, the table is lost.

A change under the write id of a transaction that aborts is no TRUNCATE, and makes no statistics exact (`Outcomes`). If
the transaction has not ended in this cycle, its statistics are not exact until the next change. Neither are those of a
change before a table was copied that already has later write ids: they count only a part of its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ingestd.errors import InvalidTable, ReplicationError
from ingestd.hive.answers import MetastoreRefusal, UnknownCall
from ingestd.hive.attachments import (
    ColumnStatistics,
    Constraint,
    ConstraintKind,
    FunctionObject,
    add_constraints,
    create_function,
    delete_statistics,
    drop_constraint,
    drop_function,
    store_statistics,
)
from ingestd.hive.objects import (
    ColumnField,
    DatabaseObject,
    PartitionObject,
    TableKind,
    TableObject,
    WithStatistics,
    add_partitions,
    alter_database,
    create_table,
    find_database,
    find_table,
    table_names,
)
from ingestd.hive.partitions import by_call
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.truncation import truncate_in_transaction
from ingestd.hive.write_ids import read_snapshot
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle_plan import Outcome, is_move, is_truncation, partitions_in, write_id_of
from ingestd.replication.directory.event_records import EventRecord, PartitionColumnsRecord
from ingestd.replication.exact_statistics import as_exact_as, inexact
from ingestd.replication.external import target_location
from ingestd.replication.load.target_moves import (
    drop_partitions,
    drop_table,
    is_partition_undisturbed,
    is_undisturbed,
    rename_partition,
    rename_table,
    truncate_at_once,
)
from ingestd.replication.load.target_objects import TargetObjects
from ingestd.replication.marks import (
    CHECKPOINT,
    READ_ONLY,
    SETTLED,
    SOURCE_LOCATION,
    WITHOUT_DIRECTORY,
    marks_of_location,
    owns_files,
    source_kind,
    without_marks,
)
from ingestd.storage.contract import child

_CONSTRAINTS = {
    "ADD_PRIMARYKEY": ("primaryKeyListJson", ConstraintKind.PRIMARY_KEY),
    "ADD_FOREIGNKEY": ("foreignKeyListJson", ConstraintKind.FOREIGN_KEY),
    "ADD_UNIQUECONSTRAINT": ("uniqueConstraintListJson", ConstraintKind.UNIQUE),
    "ADD_NOTNULLCONSTRAINT": ("notNullConstraintListJson", ConstraintKind.NOT_NULL),
    "ADD_DEFAULTCONSTRAINT": ("defaultConstraintListJson", ConstraintKind.DEFAULT),
    "ADD_CHECKCONSTRAINT": ("checkConstraintListJson", ConstraintKind.CHECK),
}
_Message = Mapping[str, Any]


# Events after which the last event need not be stored: to replay several of them again leaves the same result.
_REPEATABLE = frozenset(("ADD_PARTITION", "UPDATE_TBL_COL_STAT_EVENT", "UPDATE_PART_COL_STAT_EVENT"))


def is_repeatable(record: EventRecord) -> bool:
    """Return whether an event, and similar ones after it, may be replayed again.

    Each commit of ingestd and of Hive is preceded by such events, which change statistics.
    """
    if record.type in {"ALTER_PARTITION", "ALTER_PARTITIONS"}:
        return not is_move(record) and not is_truncation(record.message)
    if record.type != "ALTER_TABLE":
        return record.type in _REPEATABLE
    message = record.message
    before, after = (TableObject.parse(message[f"tableObj{when}Json"]) for when in ("Before", "After"))
    return before.name == after.name and before.columns == after.columns and not is_truncation(message)


class Definitions:
    """The definitions of the database `database`, a copy of the source's database `source`.

    `external_base` is the URI below which external tables are, None if there may be none. `lose` is called with a table
    that cannot be followed, and the reason.
    """

    def __init__(
        self,
        target: Cluster,
        source: str,
        database: str,
        external_base: str | None,
        lose: Callable[[str, str], None],
        *,
        accepts_missing: bool,
    ) -> None:
        self._target = target
        self._metastore = metastore = target.metastore
        self._source = source
        self._database = database
        self._external_base = external_base
        self._event = 0  # that is being replayed
        self._outcome: Outcome | None = Outcome.COMMITTED  # of its transaction
        self._columns: Sequence[PartitionColumnsRecord] = ()  # of partitions after it
        self._lose = lose
        self._accepts_missing = accepts_missing
        self._objects = TargetObjects(metastore, database)
        self._handlers: dict[str, Callable[[str, _Message], None]] = {
            "CREATE_DATABASE": self._ignore,  # the target exists, and ALTER_DATABASE has all properties
            "ALTER_DATABASE": self._alter_database,
            "DROP_DATABASE": self._empty_database,
            "CREATE_TABLE": self._create_table,
            "ALTER_TABLE": self._alter_table,
            "DROP_TABLE": self._drop_table,
            "ADD_PARTITION": self._add_partitions,
            "ALTER_PARTITION": self._alter_partition,
            "ALTER_PARTITIONS": self._alter_partitions,
            "DROP_PARTITION": self._drop_partitions,
            "UPDATE_TBL_COL_STAT_EVENT": self._store_statistics,
            "UPDATE_PART_COL_STAT_EVENT": self._store_statistics,
            "DELETE_TBL_COL_STAT_EVENT": self._delete_statistics,
            "DELETE_PART_COL_STAT_EVENT": self._delete_statistics,
            "DROP_CONSTRAINT": self._drop_constraint,
            "CREATE_FUNCTION": self._create_function,
            "DROP_FUNCTION": self._drop_function,
            **{kind: partial(self._add_constraints, kind) for kind in _CONSTRAINTS},
        }

    def apply(
        self, record: EventRecord, outcome: Outcome | None, columns: Sequence[PartitionColumnsRecord] = ()
    ) -> None:
        """Replay an event; `outcome` is that of its transaction, None if it is not known.

        `columns` are the columns that partitions of its table then have.

        Raises ReplicationError for a type that is not known, ConstraintsRefused if the target has refused constraints
        and nothing else, and the errors of the metastore, except its refusals to change a table.
        """
        handler = self._handlers.get(record.type)
        if handler is None:
            raise ReplicationError(
                f"events of the type {record.type} cannot be replayed", where=f"event {record.event}"
            )
        self._event, self._outcome, self._columns = record.event, outcome, columns
        try:
            handler(record.table, record.message)
        except MetastoreRefusal as refusal:
            if not record.table or isinstance(refusal, UnknownCall):
                raise
            self._lose(record.table, f"the metastore refused its change by the event {record.event}: {refusal}")
            self._objects.forget()
        if not is_repeatable(record):
            self._objects.forget()

    def table(self, name: str) -> TableObject | None:
        """Return a table of the target, None if it does not exist.

        Raises ReplicationError if it must exist.
        """
        table = self.find(name)
        if table is None and not self._accepts_missing:
            raise self._missing(name)
        return table

    def find(self, name: str) -> TableObject | None:
        """Return a table of the target, None if it does not exist."""
        return self._objects.table(name)

    def partitions(self, table: TableObject, names: Sequence[str]) -> Mapping[str, PartitionObject]:
        """Return the partitions in `names`, which are escaped, of a table of the target that exist."""
        return self._objects.partitions(table, names)

    def removed_copies(self, record: EventRecord) -> tuple[int, list[str]]:
        """Return the last event of which the copy of a table may contain changes, and which parts of it to examine.

        They are the partitions, or WHOLE_TABLE, of which `record` removes files, and that may have been copied after
        it.
        """
        table = self.table(record.table)
        if table is None or _settled(table) < record.event or not owns_files(table):
            return 0, []
        if record.type == "ALTER_TABLE":
            return _settled(table), [WHOLE_TABLE]
        partitions = self._objects.partitions(table, _removed(table, record.message))
        return _settled(table), [name for name, copy in partitions.items() if CHECKPOINT in copy.parameters]

    def drop(self, name: str) -> None:
        """Drop a table, if it exists."""
        self._drop_table(name, {})
        self._objects.forget()

    def _missing(self, name: str) -> ReplicationError:
        return ReplicationError(
            "the table is missing on the target",
            where=f"table {self._database}.{name}",
            hint="another client has dropped it; drop the target database and bootstrap again",
        )

    def _name(self, table: str) -> TableName:
        return TableName(self._database, table)

    # --- databases

    def _ignore(self, _table: str, _message: _Message) -> None:
        pass

    def _alter_database(self, _table: str, message: _Message) -> None:
        after = DatabaseObject.parse(message["dbObjAfterJson"])
        before = find_database(self._metastore, self._database)
        if before is None:
            raise ReplicationError("the database is missing", where=f"database {self._database}")
        parameters = {**_with_marks(after.parameters, before.parameters), READ_ONLY: "true"}
        alter_database(self._metastore, before.described_as(after, parameters))

    def _empty_database(self, _table: str, _message: _Message) -> None:
        """Drop all tables. The database stays, because its properties are the state of the replication."""
        for name in table_names(self._metastore, self._database):
            self._drop_table(name, {})

    # --- tables

    def _create_table(self, table: str, message: _Message) -> None:
        described = TableObject.parse(message["tableObjJson"])
        if described.kind is TableKind.MATERIALIZED_VIEW or find_table(self._metastore, self._name(table)) is not None:
            return
        location = self._external(described.location) if described.kind is TableKind.EXTERNAL else None
        create_table(
            self._metastore, described.copied(self._name(table), location, without_marks(described.parameters))
        )

    def _alter_table(self, table: str, message: _Message) -> None:
        after = TableObject.parse(message["tableObjAfterJson"])
        name = after.name.table
        if name != table and not self._is_to_be_renamed(table, name):
            return
        before = self.table(table)
        if before is None:
            return
        write_id = write_id_of(message)
        if is_truncation(message):
            self._truncate(before, (), write_id)
        location = self._external(after.location) if after.kind is TableKind.EXTERNAL else before.stored_location
        parameters = _parameters(after, before, is_exact=self._is_exact(before, write_id))
        changed = after.copied(self._name(name), location, parameters)
        if write_id > 0:
            changed = changed.with_write_id(write_id)
        if name == table:
            self._alter_columns(changed)
        elif not rename_table(self._target, before, changed):
            self._lose_disturbed(name, f"it was renamed from {table}")

    def _is_to_be_renamed(self, table: str, name: str) -> bool:
        """Return whether a table must get another name; it is lost if it cannot, or was disturbed when it got it."""
        existing = find_table(self._metastore, self._name(table))
        if existing is None:
            if self.table(name) is None:  # not renamed in an earlier replay
                self._lose(name, f"it was renamed from {table}, of which the target has no copy")
            elif not is_undisturbed(self._target, self._name(name)):
                self._lose_disturbed(name, f"it was renamed from {table}")
            return False
        if self._accepts_missing and find_table(self._metastore, self._name(name)) is not None:
            self._lose(name, f"it was renamed from {table} meanwhile")
            return False
        if WITHOUT_DIRECTORY in existing.parameters:
            self._lose(name, f"it was being renamed from {table} when it was copied")
            return False
        return True

    def _lose_disturbed(self, table: str, change: str) -> None:
        self._lose(table, f"a compaction of the target began while {change}")

    def _alter_columns(self, changed: TableObject) -> None:
        """Replace the definition of a table, and the columns of partitions that events have changed.

        If all partitions have the columns of the table, one call changes both.
        """
        self._objects.alter_table(changed, cascade=any(not record.partitions for record in self._columns))
        for record in self._columns:
            self._change_columns(changed, record.columns, record.partitions)

    def _change_columns(self, table: TableObject, columns: Sequence[ColumnField], names: Sequence[str]) -> None:
        """Give the partitions in `names` that exist other columns."""
        for some in by_call(names):
            by_write_id = defaultdict(list)
            for partition in self._objects.partitions(table, some).values():
                if partition.columns != columns:
                    by_write_id[partition.write_id].append(partition.with_columns(columns))
            for changed in by_write_id.values():
                self._objects.alter_partitions(table, changed)

    def _is_exact(self, table: TableObject, write_id: int) -> bool:
        """Return whether statistics of the current event, with its write id, are those of the rows of a table."""
        if self._outcome is not Outcome.COMMITTED:
            return False
        is_copied_later = table.kind.is_transactional and _settled(table) >= self._event
        return not is_copied_later or read_snapshot(self._metastore, table.name).high_watermark <= write_id

    def _drop_table(self, table: str, _message: _Message) -> None:
        """Drop a table; the files of an external one stay."""
        existing = find_table(self._metastore, self._name(table))
        if existing is not None:
            drop_table(self._target, existing)

    def _truncate(self, table: TableObject, partitions: Sequence[str], write_id: int) -> None:
        """Truncate a table, or `partitions` if there are any. The files of external tables are copied by difference."""
        if self._outcome is Outcome.ABORTED:
            return
        if table.kind.is_transactional and write_id > 0:
            truncate_in_transaction(self._metastore, table.name, partitions, write_id)
        elif source_kind(table) is not TableKind.EXTERNAL:
            for some in [[name] for name in partitions] or [[]]:  # HMS fails for partitions with different write ids
                truncate_at_once(self._target, table, some)

    def _external(self, location: str) -> str:
        return target_location(location, self._external_base)

    # --- partitions

    def _add_partitions(self, table: str, message: _Message) -> None:
        existing = self.table(table)
        if existing is None:
            return
        described = partitions_in(message)
        source = TableObject.parse(message["tableObjJson"])
        copies = [
            member.copied(
                existing.name,
                self._location(existing, member),
                {**without_marks(member.parameters), **_marks_of_location(source, member)},
            )
            for member in described
        ]
        add_partitions(self._metastore, existing, copies)

    def _location(self, table: TableObject, partition: PartitionObject) -> str:
        """Return the location of a new partition."""
        if source_kind(table) is TableKind.EXTERNAL:
            return self._external(partition.location)
        return child(table.location, table.partition_name(partition.values))

    def _alter_partition(self, table: str, message: _Message) -> None:
        before, after = (PartitionObject.parse(message[f"partitionObj{when}Json"]) for when in ("Before", "After"))
        existing_table = self.table(table)
        if existing_table is None:
            return
        if before.values != after.values:
            existing = self._existing(existing_table, [before.values, after.values])
            old = existing.get(before.values)
            is_settled = _settled(existing_table) < self._event
            is_empty = old is not None and WITHOUT_DIRECTORY in old.parameters
            is_uncertain = not is_settled or old is None or after.values in existing
            name, new_name = (existing_table.partition_name(values) for values in (before.values, after.values))
            if is_empty or (self._accepts_missing and is_uncertain):
                self._lose(table, f"the partition {name} was renamed meanwhile")
                return
            if old is None:  # renamed in an earlier replay
                is_right = is_partition_undisturbed(self._target, existing_table, new_name)
            else:
                parameters = as_exact_as(_with_marks(after.parameters, old.parameters), old.parameters)
                parameters.pop(SOURCE_LOCATION, None)
                parameters |= _marks_of_location(TableObject.parse(message["tableObjJson"]), after)
                renamed = after.copied(existing_table.name, old.location, parameters)
                is_right = rename_partition(self._target, existing_table, old, renamed)
            if not is_right:
                self._lose_disturbed(table, f"the partition {name} was renamed")
            return
        self._change_partitions(existing_table, [after], message)

    def _alter_partitions(self, table: str, message: _Message) -> None:
        existing = self.table(table)
        if existing is not None:
            self._change_partitions(existing, partitions_in(message), message)

    def _change_partitions(self, table: TableObject, described: Sequence[PartitionObject], message: _Message) -> None:
        """Replace the definitions of partitions that exist."""
        existing = self._existing(table, [member.values for member in described])
        if len(existing) < len(described) and not self._accepts_missing:
            raise self._missing(f"{table.name.table}, a partition")
        source = TableObject.parse(message["tableObjJson"])
        for member in described:
            marks = existing[member.values].parameters if member.values in existing else {}
            if _marks_of_location(source, member).get(SOURCE_LOCATION, "") != marks.get(SOURCE_LOCATION, ""):
                name = table.partition_name(member.values)
                self._lose(table.name.table, f"the partition {name} is now at {member.location} on the source")
                return
        write_id = write_id_of(message)
        if is_truncation(message) and existing:  # no names would stand for the whole table
            self._truncate(table, [table.partition_name(values) for values in existing], write_id)
        changed, is_exact = [], self._is_exact(table, write_id)
        for member in described:
            if member.values in existing:
                old = existing[member.values]
                location = self._external(member.location) if source_kind(table) is TableKind.EXTERNAL else old.location
                copied = member.copied(table.name, location, _parameters(member, old, is_exact=is_exact))
                changed.append(copied.with_write_id(write_id) if write_id > 0 else copied)
        self._objects.alter_partitions(table, changed)

    def _existing(
        self, table: TableObject, values: Sequence[tuple[str, ...]]
    ) -> dict[tuple[str, ...], PartitionObject]:
        partitions = self._objects.partitions(table, [table.partition_name(value) for value in values])
        return {member.values: member for member in partitions.values()}

    def _drop_partitions(self, table: str, message: _Message) -> None:
        existing = self.table(table)
        if existing is not None:
            drop_partitions(self._target, existing, _dropped(existing, message))

    # --- statistics, constraints and functions

    def _store_statistics(self, table: str, message: _Message) -> None:
        if (existing := self.table(table)) is None:
            return
        statistics = ColumnStatistics.parse(message["colStatsJson"], write_id_of(message))
        try:
            store_statistics(self._metastore, existing.name, statistics)
        except InvalidTable:
            if not self._accepts_missing:
                raise self._missing(f"{table}, a partition") from None
            return
        if not self._is_exact(existing, write_id_of(message)):
            self.distrust_statistics(table, statistics.partition)

    def distrust_statistics(self, table: str, partition: str) -> None:
        """Let readers of a table, or of a partition if it is not WHOLE_TABLE, read rows in place of statistics."""
        self._objects.forget()  # events of statistics change parameters
        existing = self.find(table)
        if existing is None:
            return
        if partition:
            partitions = self._objects.partitions(existing, [partition]).values()
            copies = [
                member.copied(existing.name, member.stored_location, inexact(member.parameters))
                for member in partitions
            ]
            self._objects.alter_partitions(existing, copies)
        else:
            changed = existing.copied(existing.name, existing.stored_location, inexact(existing.parameters))
            self._objects.alter_table(changed)

    def _delete_statistics(self, table: str, message: _Message) -> None:
        existing = self.table(table)
        if existing is not None and not existing.kind.is_transactional:
            partition = message.get("partName") or WHOLE_TABLE
            delete_statistics(
                self._metastore, existing.name, partition, message["colName"], message.get("engine") or ""
            )

    def _add_constraints(self, kind: str, table: str, message: _Message) -> None:
        if (existing := self.table(table)) is not None:
            field, constraint_kind = _CONSTRAINTS[kind]
            by_name: dict[str, list[str]] = defaultdict(list)
            for text in message[field]:
                by_name[Constraint.parse(constraint_kind, [text]).name].append(text)
            constraints = [Constraint.parse(constraint_kind, texts) for texts in by_name.values()]
            copies = [constraint.copied(self._source, self._database) for constraint in constraints]
            add_constraints(self._metastore, existing.name, copies)

    def _drop_constraint(self, table: str, message: _Message) -> None:
        if (existing := self.table(table)) is not None:
            drop_constraint(self._metastore, existing.name, message["constraintName"])

    def _create_function(self, _table: str, message: _Message) -> None:
        function = FunctionObject.parse(message["functionObjJson"]).copied(self._database)
        if function.resources:  # a function without files is on the class path of the servers
            create_function(self._metastore, function)

    def _drop_function(self, _table: str, message: _Message) -> None:
        drop_function(self._metastore, self._database, message["functionName"])


def _marks_of_location(source: TableObject, partition: PartitionObject) -> dict[str, str]:
    """Return the marks of the copy of a partition because of its location, for a table of the source."""
    if not source.kind.is_transactional:
        return {}
    return marks_of_location(source.location, source.partition_name(partition.values), partition.location)


def _settled(table: TableObject) -> int:
    """Return the last event of which the copy of a table may contain changes that were not replayed; 0 if none."""
    return int(table.parameters.get(SETTLED, 0))


def _removed(table: TableObject, message: _Message) -> list[str]:
    """Return the escaped names of the partitions that an event drops or truncates."""
    if "partitionObjAfterJson" in message or "partitionListJson" in message:
        return [table.partition_name(partition.values) for partition in partitions_in(message)]
    return _dropped(table, message)


def _dropped(table: TableObject, message: _Message) -> list[str]:
    """Return the escaped names of the partitions that an event drops."""
    return [table.partition_name([values[key] for key in table.partition_columns]) for values in message["partitions"]]


def _parameters(source: WithStatistics, target: WithStatistics, *, is_exact: bool) -> dict[str, str]:
    """Return the parameters of the copy of a table or partition whose statistics are exact or not."""
    parameters = _with_marks(source.parameters, target.parameters)
    return parameters if is_exact else inexact(parameters)


def _with_marks(source: Mapping[str, str], target: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of the source, with the marks that the target has."""
    own = without_marks(target)
    return {**without_marks(source), **{key: value for key, value in target.items() if key not in own}}
