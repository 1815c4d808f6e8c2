"""What belongs to a database or table beside its definition: functions, constraints and statistics of columns.

Invariant: to create or to drop one of them again has no effect, so that a repeated step of a replication succeeds.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hive_metastore import ttypes

from ingestd.errors import IngestdError, InvalidTable
from ingestd.hive import thrift_json
from ingestd.hive.answers import MetastoreDeclined, MetastoreRefusal, UnknownCall
from ingestd.hive.client import CATALOG, Metastore
from ingestd.hive.objects import Described, crafted_list, find_table
from ingestd.hive.tables import WHOLE_TABLE, TableName

_ENGINE = "hive"


@dataclass(frozen=True, slots=True)
class FunctionObject(Described):
    """A permanent function."""

    @classmethod
    def parse(cls, text: str) -> FunctionObject:
        """Return the function that `text` describes."""
        return cls(thrift_json.decode(text, ttypes.Function))

    @property
    def name(self) -> str:
        """The function's name without its database."""
        return str(self.raw.functionName)

    @property
    def resources(self) -> tuple[str, ...]:
        """The URIs of the jars, files and archives that the function needs."""
        return tuple(resource.uri for resource in self.raw.resourceUris or ())

    @property
    def definition(self) -> tuple[object, ...]:
        """What distinguishes the function from another one of its name."""
        kind, owner = self.raw.functionType, (self.raw.ownerName, self.raw.ownerType)
        resources = tuple((resource.resourceType, resource.uri) for resource in self.raw.resourceUris or ())
        return self.name, self.raw.className, kind, owner, resources

    def copied(self, database: str) -> FunctionObject:
        """Return the function in another database."""
        raw = copy.deepcopy(self.raw)
        raw.dbName, raw.catName = database, None
        return FunctionObject(raw)


def list_functions(metastore: Metastore, database: str) -> list[FunctionObject]:
    """Return the permanent functions of a database, sorted by name. Raises MetastoreUnavailable."""
    names = sorted(metastore.call("get_functions", database, "*"))
    functions = (_find_function(metastore, database, name) for name in names)
    return [function for function in functions if function is not None]


def _find_function(metastore: Metastore, database: str, name: str) -> FunctionObject | None:
    try:
        return FunctionObject(metastore.call("get_function", database, name))
    except InvalidTable:
        return None


def create_function(metastore: Metastore, function: FunctionObject) -> None:
    """Create a function unless one of its name exists. Raises MetastoreRefusal or MetastoreUnavailable."""
    if _find_function(metastore, function.raw.dbName, function.name) is None:
        metastore.call("create_function", function.raw)


def drop_function(metastore: Metastore, database: str, name: str) -> None:
    """Drop a function if it exists. Raises MetastoreUnavailable."""
    try:
        metastore.call("drop_function", database, name)
    except InvalidTable:
        return


# --- constraints


class ConstraintKind(Enum):
    """The kinds of constraints, in an order in which they can be created: a foreign key needs its primary key."""

    PRIMARY_KEY = "primaryKeys"
    UNIQUE = "uniqueConstraints"
    NOT_NULL = "notNullConstraints"
    DEFAULT = "defaultConstraints"
    CHECK = "checkConstraints"
    FOREIGN_KEY = "foreignKeys"


class ConstraintsRefused(IngestdError):
    """The metastore refuses constraints of a table; `what` names them."""

    exit_code = 65


_KEYS = (ConstraintKind.PRIMARY_KEY, ConstraintKind.UNIQUE)


@dataclass(frozen=True, slots=True)
class _Spelling:
    """How the Thrift interface names a kind of constraint; `name` is the field with the name of the constraint."""

    type: Any
    request: Any
    call: str
    argument: str
    name: str


_SPELLINGS = {
    ConstraintKind.PRIMARY_KEY: _Spelling(
        ttypes.SQLPrimaryKey, ttypes.AddPrimaryKeyRequest, "add_primary_key", "primaryKeyCols", "pk_name"
    ),
    ConstraintKind.UNIQUE: _Spelling(
        ttypes.SQLUniqueConstraint,
        ttypes.AddUniqueConstraintRequest,
        "add_unique_constraint",
        "uniqueConstraintCols",
        "uk_name",
    ),
    ConstraintKind.NOT_NULL: _Spelling(
        ttypes.SQLNotNullConstraint,
        ttypes.AddNotNullConstraintRequest,
        "add_not_null_constraint",
        "notNullConstraintCols",
        "nn_name",
    ),
    ConstraintKind.DEFAULT: _Spelling(
        ttypes.SQLDefaultConstraint,
        ttypes.AddDefaultConstraintRequest,
        "add_default_constraint",
        "defaultConstraintCols",
        "dc_name",
    ),
    ConstraintKind.CHECK: _Spelling(
        ttypes.SQLCheckConstraint,
        ttypes.AddCheckConstraintRequest,
        "add_check_constraint",
        "checkConstraintCols",
        "dc_name",
    ),
    ConstraintKind.FOREIGN_KEY: _Spelling(
        ttypes.SQLForeignKey, ttypes.AddForeignKeyRequest, "add_foreign_key", "foreignKeyCols", "fk_name"
    ),
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint of a table; `columns` has a Thrift value for each column of the constraint."""

    kind: ConstraintKind
    columns: tuple[Any, ...]

    @classmethod
    def parse(cls, kind: ConstraintKind, texts: Sequence[str]) -> Constraint:
        """Return the constraint that TJSON texts describe, one for each column."""
        return cls(kind, tuple(thrift_json.decode(text, _SPELLINGS[kind].type) for text in texts))

    @property
    def texts(self) -> tuple[str, ...]:
        """The Thrift values as TJSON texts."""
        return tuple(thrift_json.encode(column) for column in self.columns)

    @property
    def name(self) -> str:
        """The name, which is unique in the table and kind."""
        return str(getattr(self.columns[0], _SPELLINGS[self.kind].name))

    @property
    def table(self) -> TableName:
        """The table to which the constraint belongs; for a foreign key, the one that refers to the other."""
        column = self.columns[0]
        if self.kind is ConstraintKind.FOREIGN_KEY:
            return TableName(column.fktable_db, column.fktable_name)
        return TableName(column.table_db, column.table_name)

    @property
    def column_names(self) -> frozenset[str]:
        """The columns of the table that the constraint names, in lower case; a CHECK of the whole table names none."""
        prefix = "fk" if self.kind is ConstraintKind.FOREIGN_KEY else ""
        names = (getattr(column, f"{prefix}column_name") for column in self.columns)
        return frozenset(name.lower() for name in names if name)

    @property
    def parent(self) -> TableName | None:
        """The table to which a foreign key refers; None for other constraints."""
        if self.kind is not ConstraintKind.FOREIGN_KEY:
            return None
        return TableName(self.columns[0].pktable_db, self.columns[0].pktable_name)

    def copied(self, source: str, database: str) -> Constraint:
        """Return the constraint with `database` for the name of its database `source`.

        A foreign key that refers to a table of a third database keeps that name.
        """
        columns = copy.deepcopy(self.columns)
        for column in columns:
            for field in ("table_db", "pktable_db", "fktable_db"):
                if getattr(column, field, None) == source:
                    setattr(column, field, database)
        return Constraint(self.kind, columns)

    def renamed(self, database: str, names: Mapping[str, str]) -> Constraint:
        """Return the constraint with other names for those tables of `database` that are in `names`."""
        columns = copy.deepcopy(self.columns)
        for column in columns:
            for prefix in ("", "pk", "fk"):
                name = str(getattr(column, f"{prefix}table_name", ""))
                if name in names and getattr(column, f"{prefix}table_db") == database:
                    setattr(column, f"{prefix}table_name", names[name])
        return Constraint(self.kind, columns)


def list_constraints(metastore: Metastore, table: TableName) -> list[Constraint]:
    """Return the constraints of a table, in the order of ConstraintKind. Raises InvalidTable, MetastoreUnavailable."""
    request = ttypes.AllTableConstraintsRequest(dbName=table.database, tblName=table.table, catName=CATALOG)
    constraints = metastore.call("get_all_table_constraints", request).allTableConstraints
    return [
        Constraint(kind, tuple(columns))
        for kind, spelling in _SPELLINGS.items()
        for columns in _by_name(getattr(constraints, kind.value) or (), spelling.name)
    ]


def list_references(metastore: Metastore, table: TableName) -> list[Constraint]:
    """Return the foreign keys of tables in the same database that refer to a table. Raises MetastoreUnavailable."""
    request = ttypes.ForeignKeysRequest(parent_db_name=table.database, parent_tbl_name=table.table, catName=CATALOG)
    foreign_keys = metastore.call("get_foreign_keys", request).foreignKeys or ()
    own = [column for column in foreign_keys if column.fktable_db == table.database]
    by_table: dict[str, list[Any]] = {}
    for column in own:
        by_table.setdefault(column.fktable_name, []).append(column)
    return [
        Constraint(ConstraintKind.FOREIGN_KEY, tuple(columns))
        for some in by_table.values()
        for columns in _by_name(some, "fk_name")
    ]


def _by_name(columns: Sequence[Any], field: str) -> list[list[Any]]:
    """Group the columns of all constraints of a kind by constraint, in the order of the key."""
    groups: dict[str, list[Any]] = {}
    for column in columns:
        groups.setdefault(getattr(column, field), []).append(column)
    return [sorted(some, key=lambda column: getattr(column, "key_seq", 0)) for some in groups.values()]


def add_constraints(metastore: Metastore, table: TableName, constraints: Sequence[Constraint]) -> None:
    """Create the constraints of one table that it does not have, except foreign keys that refer to no key.

    HMS refuses those: the other table is missing, or lacks the key, because it is not replicated, or not yet. Raises
    InvalidTable if the table does not exist, ConstraintsRefused if the metastore refuses some constraints, when it has
    the others, and MetastoreUnavailable.
    """
    known = {(constraint.kind, constraint.name) for constraint in list_constraints(metastore, table)}
    new = [
        constraint
        for constraint in constraints
        if (constraint.kind, constraint.name) not in known and _has_key(metastore, constraint)
    ]
    refusals = _on_missing_columns(metastore, table, new) if new else {}
    for kind in _SPELLINGS:
        some = [constraint for constraint in new if constraint.kind is kind and constraint.name not in refusals]
        if some:
            refusals |= _add_of_kind(metastore, kind, some)
    if refusals:
        names, reason = ", ".join(refusals), next(iter(refusals.values()))
        raise ConstraintsRefused(f"the metastore refuses the constraints {names}: {reason}", where=f"table {table}")


def _on_missing_columns(metastore: Metastore, table: TableName, constraints: Sequence[Constraint]) -> dict[str, str]:
    """Return the constraints on columns that the table does not have, with a reason.

    HMS has no answer for them: it fails as if its database were busy (seen with 4.2.0).
    """
    existing = find_table(metastore, table)
    if existing is None:
        raise InvalidTable("the table does not exist", where=f"table {table}")
    columns = {column.name for column in (*existing.columns, *existing.partition_fields)}
    missing = ((constraint.name, sorted(constraint.column_names - columns)) for constraint in constraints)
    return {name: f"the column {absent[0]} does not exist" for name, absent in missing if absent}


def _add_of_kind(metastore: Metastore, kind: ConstraintKind, constraints: Sequence[Constraint]) -> dict[str, str]:
    """Create constraints of one kind of one table; return the names of those that are refused, with a reason."""
    spelling = _SPELLINGS[kind]
    columns = [column for constraint in constraints for column in constraint.columns]
    try:
        metastore.call(spelling.call, spelling.request(**{spelling.argument: columns}))
    except UnknownCall:
        raise
    except (MetastoreRefusal, MetastoreDeclined) as refusal:
        if len(constraints) == 1:
            return {constraints[0].name: refusal.what}
        refusals: dict[str, str] = {}
        for constraint in constraints:
            refusals |= _add_of_kind(metastore, kind, [constraint])
        return refusals
    return {}


def _has_key(metastore: Metastore, constraint: Constraint) -> bool:
    """Return whether the key exists to which a foreign key refers; True for other constraints."""
    parent = constraint.parent
    if parent is None:
        return True
    wanted = {column.pkcolumn_name.lower() for column in constraint.columns}
    try:
        keys = list_constraints(metastore, parent)
    except InvalidTable:
        return False
    return any(key.kind in _KEYS and wanted == {column.column_name for column in key.columns} for key in keys)


def drop_constraint(metastore: Metastore, table: TableName, name: str) -> None:
    """Drop a constraint if it exists; `name` may be in any case.

    Raises InvalidTable if the table does not exist, and MetastoreUnavailable.
    """
    if any(constraint.name == name.lower() for constraint in list_constraints(metastore, table)):
        request = ttypes.DropConstraintRequest(dbname=table.database, tablename=table.table, constraintname=name)
        metastore.call("drop_constraint", request)


# --- statistics of columns


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """The statistics of some columns of a table or a partition; `raw` is the Thrift value.

    `write_id` is the write after which they were exact; 0 if the table is not transactional.
    """

    raw: Any
    write_id: int

    @property
    def partition(self) -> str:
        """The escaped name of the partition, or WHOLE_TABLE."""
        return str(self.raw.statsDesc.partName or WHOLE_TABLE)

    @classmethod
    def parse(cls, text: str, write_id: int) -> ColumnStatistics:
        """Return the statistics that a TJSON text describes."""
        return cls(thrift_json.decode(text, ttypes.ColumnStatistics), write_id)


def store_statistics(metastore: Metastore, table: TableName, statistics: ColumnStatistics) -> None:
    """Replace the statistics of columns of `table` or of one of its partitions, and mark them as accurate.

    `statistics` may name another database, that of the source. Raises InvalidTable if the table or partition does not
    exist, MetastoreRefusal or MetastoreUnavailable.
    """
    raw = copy.deepcopy(statistics.raw)
    raw.statsDesc.dbName, raw.statsDesc.tableName, raw.statsDesc.catName = table.database, table.table, None
    raw.engine = raw.engine or _ENGINE
    is_transactional = statistics.write_id > 0
    request = ttypes.SetPartitionsStatsRequest(
        colStats=[raw],
        needMerge=False,
        writeId=statistics.write_id if is_transactional else -1,
        validWriteIdList=crafted_list(table, statistics.write_id) if is_transactional else None,
        engine=raw.engine,
    )
    of_table = raw.statsDesc.isTblLevel
    metastore.call(
        "update_table_column_statistics_req" if of_table else "update_partition_column_statistics_req", request
    )


def delete_statistics(metastore: Metastore, table: TableName, partition: str, column: str, engine: str) -> None:
    """Delete the statistics of a column of a partition, or of a table if `partition` is WHOLE_TABLE.

    The table must not be transactional: statistics of those are never deleted, but marked as not accurate.
    Raises MetastoreUnavailable, also for a transactional table.
    """
    name, engine = (table.database, table.table), engine or _ENGINE
    try:
        if partition:
            metastore.call("delete_partition_column_statistics", *name, partition, column, engine)
        else:
            metastore.call("delete_table_column_statistics", *name, column, engine)
    except InvalidTable:
        return
