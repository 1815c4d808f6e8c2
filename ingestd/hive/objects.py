"""Databases, tables and partitions as values: read on one metastore, created and changed on another.

Their Thrift values (`raw`) are used in this package only (`tests/test_house.py`).

Invariant: a metastore stores an object as the other metastore described it. In particular, it does not replace the
statistics by those that it would compute from the file system (DO_NOT_UPDATE_STATS).

A metastore accepts statistics of a transactional table only with a write id that is valid in a list of write ids. A
replica takes over the source's statistics with the source's write id, and with a list in which that id is the high
watermark and all ids are valid (`crafted_list`): the statistics were exact on the source after that write.
Source: HMSHandler.create_table_core, ObjectStore.verifyStatsChangeCtx, UpdateTableColStatHandler of Hive's REPL LOAD.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from hive_metastore import ttypes

from ingestd.acid.partitions import partition_name
from ingestd.acid.visibility import ValidWriteIds
from ingestd.errors import InvalidTable
from ingestd.hive import thrift_json
from ingestd.hive.client import CAPABILITIES, CATALOG, KEEP_STATISTICS, Metastore
from ingestd.hive.partitions import by_call, by_request
from ingestd.hive.tables import TableName
from ingestd.hive.view_text import move_view
from ingestd.hive.write_ids import as_text

_CLIENT, _ENGINE = "ingestd", "hive"  # the statistics of Impala are separate


class TableKind(Enum):
    """What a table's files are: full ACID, insert-only ACID, other files in a directory, or none."""

    FULL_ACID = "full_acid"
    INSERT_ONLY = "insert_only"
    MANAGED = "managed"
    EXTERNAL = "external"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized_view"
    STORAGE_HANDLER = "storage_handler"

    @property
    def is_transactional(self) -> bool:
        """Whether the table has write ids."""
        return self in (TableKind.FULL_ACID, TableKind.INSERT_ONLY)


class ColumnField(NamedTuple):
    """A column as the metastore describes it; `type` is the text of Hive's type."""

    name: str
    type: str
    comment: str | None


@dataclass(frozen=True, slots=True)
class Described:
    """An object of a metastore; `raw` is the Thrift value."""

    raw: Any

    @property
    def text(self) -> str:
        """The Thrift value as TJSON text."""
        return thrift_json.encode(self.raw)


@dataclass(frozen=True, slots=True)
class WithStatistics(Described):
    """A table or partition with the statistics of its columns."""

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters, of a table its TBLPROPERTIES."""
        return dict(self.raw.parameters or {})

    @property
    def write_id(self) -> int:
        """The write after which the statistics were exact; not positive if that is not known."""
        return int(self.raw.writeId or 0)

    @property
    def has_column_statistics(self) -> bool:
        """Whether there are statistics of columns."""
        return self.raw.colStats is not None

    @property
    def columns(self) -> tuple[ColumnField, ...]:
        """The columns without the partition columns."""
        return _fields(self.raw.sd.cols)

    @property
    def input_format(self) -> str | None:
        """The Java class that reads the files."""
        name: str | None = self.raw.sd.inputFormat
        return name

    @property
    def serde(self) -> str:
        """The Java class that reads the rows, and its properties; '' if there is none."""
        serde = self.raw.sd.serdeInfo
        if serde is None:
            return ""
        return " ".join(
            [serde.serializationLib or "", *(f"{k}={v}" for k, v in sorted((serde.parameters or {}).items()))]
        )

    @property
    def location(self) -> str:
        """The URI of the directory; '' for a view."""
        return (self.stored_location or "").rstrip("/")

    @property
    def stored_location(self) -> str | None:
        """The URI of the directory as the metastore has it."""
        location: str | None = self.raw.sd.location
        return location

    def with_write_id(self: W, write_id: int | None) -> W:
        """Return the object with the write after which its statistics were exact."""
        return self._changed(writeId=write_id)

    def with_parameters(self: W, parameters: Mapping[str, str]) -> W:
        """Return the object with other parameters."""
        return self._changed(parameters=dict(parameters))

    def without_column_statistics(self: W) -> W:
        """Return the object without the statistics of its columns."""
        return self._changed(colStats=None)

    def _changed(self: W, **fields: Any) -> W:
        raw = copy.copy(self.raw)
        for name, value in fields.items():
            setattr(raw, name, value)
        return replace(self, raw=raw)


W = TypeVar("W", bound=WithStatistics)


@dataclass(frozen=True, slots=True)
class DatabaseObject(Described):
    """A database."""

    @classmethod
    def parse(cls, text: str) -> DatabaseObject:
        """Return the database that `text` describes."""
        return cls(thrift_json.decode(text, ttypes.Database))

    @property
    def name(self) -> str:
        """The name."""
        return str(self.raw.name)

    @property
    def parameters(self) -> Mapping[str, str]:
        """The properties (DBPROPERTIES)."""
        return dict(self.raw.parameters or {})

    @property
    def managed_location(self) -> str:
        """The URI of the directory of managed tables; '' if it is the one in the warehouse."""
        return str(self.raw.managedLocationUri or "")

    def described_as(self, other: DatabaseObject, parameters: Mapping[str, str]) -> DatabaseObject:
        """Return the database with the description and the owner of another one, and other properties."""
        raw = copy.copy(self.raw)
        raw.description, raw.ownerName, raw.ownerType = other.raw.description, other.raw.ownerName, other.raw.ownerType
        raw.parameters = dict(parameters)
        return DatabaseObject(raw)

    def copied(self, name: str, parameters: Mapping[str, str]) -> DatabaseObject:
        """Return the database with another name and other properties, in the default location of its metastore."""
        raw = copy.deepcopy(self.raw)
        raw.name, raw.parameters = name, dict(parameters)
        raw.locationUri = raw.managedLocationUri = raw.catalogName = raw.privileges = None
        return DatabaseObject(raw)


@dataclass(frozen=True, slots=True)
class PartitionObject(WithStatistics):
    """A partition."""

    @classmethod
    def parse(cls, text: str) -> PartitionObject:
        """Return the partition that `text` describes."""
        return cls(thrift_json.decode(text, ttypes.Partition))

    @property
    def values(self) -> tuple[str, ...]:
        """The partition's values, one per partition column."""
        return tuple(self.raw.values)

    def with_columns(self, columns: Sequence[ColumnField]) -> PartitionObject:
        """Return the partition with other columns, without the statistics of its columns."""
        storage = copy.copy(self.raw.sd)
        storage.cols = [ttypes.FieldSchema(*field) for field in columns]
        return self.without_column_statistics()._changed(sd=storage)

    def copied(self, table: TableName, location: str | None, parameters: Mapping[str, str]) -> PartitionObject:
        """Return the partition in another table; without a location, the metastore chooses one below the table's."""
        raw = copy.deepcopy(self.raw)
        raw.dbName, raw.tableName, raw.catName, raw.privileges = table.database, table.table, None, None
        raw.sd.location, raw.parameters = location, dict(parameters)
        _move_statistics(raw.colStats, table)
        return PartitionObject(raw)


@dataclass(frozen=True, slots=True)
class TableObject(WithStatistics):
    """A table or view. A partitioned one has no statistics of columns."""

    @classmethod
    def parse(cls, text: str) -> TableObject:
        """Return the table that `text` describes."""
        return cls(thrift_json.decode(text, ttypes.Table))

    @property
    def name(self) -> TableName:
        """The name, in lower case."""
        return TableName(self.raw.dbName.lower(), self.raw.tableName.lower())

    @property
    def identity(self) -> str:
        """The id that a metastore 4 has given to the table, and to no other table of its name; '' if it has none."""
        return str(self.raw.id or "")

    @property
    def kind(self) -> TableKind:
        """What the table's files are. Source: AcidUtils.isTransactionalTable, MetaStoreUtils.isExternalTable."""
        parameters = {key.lower(): value.lower() for key, value in self.parameters.items()}
        if self.raw.tableType == "VIRTUAL_VIEW":
            return TableKind.VIEW
        if self.raw.tableType == "MATERIALIZED_VIEW":
            return TableKind.MATERIALIZED_VIEW
        if parameters.get("storage_handler"):
            return TableKind.STORAGE_HANDLER
        if parameters.get("transactional") == "true":
            is_insert_only = parameters.get("transactional_properties") == "insert_only"
            return TableKind.INSERT_ONLY if is_insert_only else TableKind.FULL_ACID
        is_external = self.raw.tableType == "EXTERNAL_TABLE" or parameters.get("external") == "true"
        return TableKind.EXTERNAL if is_external else TableKind.MANAGED

    @property
    def partition_fields(self) -> tuple[ColumnField, ...]:
        """The partition columns."""
        return _fields(self.raw.partitionKeys)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The names of the partition columns."""
        return tuple(field.name for field in self.raw.partitionKeys or ())

    def partition_name(self, values: Sequence[str]) -> str:
        """Return Hive's escaped name of a partition, `key=value/…`."""
        return partition_name(self.partition_columns, values)

    def copied(self, name: TableName, location: str | None, parameters: Mapping[str, str]) -> TableObject:
        """Return the table with another name and other parameters; a view reads the tables of its new database.

        Without a location, the metastore chooses one in its warehouse.
        """
        raw = copy.deepcopy(self.raw)
        move_view(raw, name.database)
        raw.dbName, raw.tableName, raw.catName, raw.privileges, raw.id = name.database, name.table, None, None, None
        raw.sd.location, raw.parameters = location, dict(parameters)
        _move_statistics(raw.colStats, name)
        return TableObject(raw)


def _fields(fields: Sequence[Any] | None) -> tuple[ColumnField, ...]:
    return tuple(ColumnField(field.name, field.type, field.comment) for field in fields or ())


def crafted_list(table: TableName, write_id: int) -> str:
    """Return the text of a list of write ids that makes a metastore accept statistics of `write_id`."""
    return as_text(ValidWriteIds(str(table), write_id))


def _move_statistics(statistics: Any, table: TableName) -> None:
    if statistics is not None:
        owner = statistics.statsDesc
        owner.dbName, owner.tableName, owner.catName = table.database, table.table, None


def _context() -> Any:
    return ttypes.EnvironmentContext(properties=dict(KEEP_STATISTICS))


# --- databases


def read_database(metastore: Metastore, name: str) -> DatabaseObject:
    """Return a database. Raises InvalidTable if it does not exist, and MetastoreUnavailable."""
    return DatabaseObject(metastore.call("get_database", name))


def find_database(metastore: Metastore, name: str) -> DatabaseObject | None:
    """Return a database, or None if it does not exist. Raises MetastoreUnavailable."""
    try:
        return read_database(metastore, name)
    except InvalidTable:
        return None


def create_database(metastore: Metastore, database: DatabaseObject) -> None:
    """Create a database. Raises MetastoreRefusal if it exists, and MetastoreUnavailable."""
    metastore.call("create_database", database.raw)


def alter_database(metastore: Metastore, database: DatabaseObject) -> None:
    """Replace the definition of the database of that name. Raises InvalidTable if it does not exist."""
    metastore.call("alter_database", database.raw.name, database.raw)


def change_database(metastore: Metastore, name: str, parameters: Mapping[str, str | None]) -> None:
    """Set properties of a database, and remove those whose value is None.

    The others are written back as they were read, so a change of another client in between is lost. Raises
    InvalidTable if the database does not exist, and MetastoreUnavailable.
    """
    raw = metastore.call("get_database", name)
    changed = {key: value for key, value in {**(raw.parameters or {}), **parameters}.items() if value is not None}
    if changed != raw.parameters:
        raw.parameters = changed
        metastore.call("alter_database", name, raw)


# --- tables


def table_names(metastore: Metastore, database: str) -> list[str]:
    """Return the names of all tables and views of a database, sorted. Raises MetastoreUnavailable."""
    return sorted(metastore.call("get_all_tables", database))


def find_table(metastore: Metastore, name: TableName) -> TableObject | None:
    """Return a table with the statistics of its columns, or None if it does not exist. Raises MetastoreUnavailable."""
    request = ttypes.GetTableRequest(
        dbName=name.database,
        tblName=name.table,
        capabilities=ttypes.ClientCapabilities(values=[ttypes.ClientCapability.INSERT_ONLY_TABLES]),
        getColumnStats=True,
        engine=_ENGINE,
        processorCapabilities=CAPABILITIES,
        processorIdentifier=_CLIENT,
    )
    try:
        return TableObject(metastore.call("get_table_req", request).table)
    except InvalidTable:
        return None


def create_table(metastore: Metastore, table: TableObject) -> None:
    """Create a table with its statistics. Raises MetastoreRefusal if it exists, and MetastoreUnavailable."""
    request = ttypes.CreateTableRequest(
        table=table.raw, envContext=_context(), processorCapabilities=CAPABILITIES, processorIdentifier=_CLIENT
    )
    metastore.call("create_table_req", request)


def alter_table(metastore: Metastore, name: TableName, table: TableObject, *, cascade: bool = False) -> None:
    """Replace the definition of the table `name`; another name in `table` renames it.

    The statistics are accepted as those of the write id in `table`. With `cascade`, all partitions get new columns of
    the table (StatsSetupConst.CASCADE). Raises MetastoreRefusal or MetastoreUnavailable.
    """
    context = _context()
    if cascade:
        context.properties["CASCADE"] = "true"
    request = ttypes.AlterTableRequest(
        dbName=name.database,
        tableName=name.table,
        table=table.raw,
        environmentContext=context,
        processorCapabilities=CAPABILITIES,
        processorIdentifier=_CLIENT,
        **_write_id_fields(table.name, table.raw.writeId),
    )
    metastore.call("alter_table_req", request)


def drop_table(metastore: Metastore, name: TableName, *, delete_data: bool) -> None:
    """Drop a table if it exists. Only with `delete_data` does the metastore forget the table's write ids.

    Raises MetastoreUnavailable.
    """
    try:
        metastore.call("drop_table_with_environment_context", name.database, name.table, delete_data, _context())
    except InvalidTable:
        return


def _write_id_fields(table: TableName, write_id: int | None) -> dict[str, Any]:
    if write_id is None or write_id <= 0:
        return {}
    return {"writeId": write_id, "validWriteIdList": crafted_list(table, write_id)}


# --- partitions


def all_partition_names(metastore: Metastore, table: TableName) -> list[str]:
    """Return the escaped names of all partitions of a table. Raises InvalidTable if the table does not exist."""
    return list(metastore.call("get_partition_names", table.database, table.table, -1))


def find_partitions(
    metastore: Metastore, table: TableName, names: Sequence[str], *, column_statistics: bool = True
) -> Iterator[PartitionObject]:
    """Yield the partitions in `names` that exist, with the statistics of their columns unless these are not needed.

    Raises InvalidTable and MetastoreUnavailable.
    """

    def read(some: Sequence[str]) -> list[Any]:
        request = ttypes.GetPartitionsByNamesRequest(
            db_name=table.database,
            tbl_name=table.table,
            names=list(some),
            get_col_stats=column_statistics,
            engine=_ENGINE,
            processorCapabilities=CAPABILITIES,
            processorIdentifier=_CLIENT,
        )
        return list(metastore.call("get_partitions_by_names_req", request).partitions)

    for partitions in by_request(names, read):
        # A partition that has just been dropped has no values.
        yield from (PartitionObject(partition) for partition in partitions if partition.values)


def add_partitions(metastore: Metastore, table: TableObject, partitions: Sequence[PartitionObject]) -> None:
    """Create partitions of `table`, unless they exist, and store their statistics and write ids; may be repeated.

    `add_partitions_req` would store the statistics of columns one by one, which takes ten times as long, and without
    them ignores the write id. Until the second call, a partition has the statistics of no write.
    Raises InvalidTable, MetastoreRefusal or MetastoreUnavailable.
    """
    for some in by_call(partitions):
        request = ttypes.AddPartitionsRequest(
            dbName=table.name.database,
            tblName=table.name.table,
            parts=[_without_statistics(partition) for partition in some],
            ifNotExists=True,
            needResult=False,
        )
        metastore.call("add_partitions_req", request)
        for write_id in sorted({partition.raw.writeId for partition in some}):
            _store_statistics(metastore, table, [partition for partition in some if partition.raw.writeId == write_id])


def _without_statistics(partition: PartitionObject) -> Any:
    raw = copy.copy(partition.raw)
    raw.colStats = None
    return raw


def _store_statistics(metastore: Metastore, table: TableObject, partitions: Sequence[PartitionObject]) -> None:
    """Store the statistics of existing partitions that have the same write id."""
    write_id = partitions[0].raw.writeId
    known = [partition.raw.colStats for partition in partitions if partition.raw.colStats is not None]
    others = [table.partition_name(partition.values) for partition in partitions if partition.raw.colStats is None]
    if known:
        request = ttypes.SetPartitionsStatsRequest(
            colStats=known, needMerge=False, engine=_ENGINE, **_write_id_fields(table.name, write_id)
        )
        metastore.call("set_aggr_stats_for", request)
    if others and write_id > 0:
        # An alteration replaces everything, including the location that the metastore has chosen.
        stored = list(find_partitions(metastore, table.name, others))
        for partition in stored:
            partition.raw.writeId = write_id
        alter_partitions(metastore, table.name, stored)


def alter_partitions(metastore: Metastore, table: TableName, partitions: Sequence[PartitionObject]) -> None:
    """Replace the definitions of existing partitions, all of which have the same write id.

    Raises MetastoreRefusal if one does not exist, and MetastoreUnavailable.
    """
    for some in by_call(partitions):
        request = ttypes.AlterPartitionsRequest(
            dbName=table.database,
            tableName=table.table,
            partitions=[partition.raw for partition in some],
            environmentContext=_context(),
            **_write_id_fields(table, some[0].raw.writeId),
        )
        metastore.call("alter_partitions_req", request)


def rename_partition(metastore: Metastore, table: TableName, values: Sequence[str], renamed: PartitionObject) -> None:
    """Replace the partition with these values by `renamed`, which may have other values.

    HMS moves the files of a managed table. Raises MetastoreRefusal if the partition does not exist, or the new one
    exists, and MetastoreUnavailable.
    """
    request = ttypes.RenamePartitionRequest(
        catName=CATALOG, dbName=table.database, tableName=table.table, partVals=list(values), newPart=renamed.raw
    )
    metastore.call("rename_partition_req", request)


def drop_partitions(metastore: Metastore, table: TableName, names: Sequence[str], *, delete_data: bool) -> None:
    """Drop the partitions in `names` that exist. Raises MetastoreUnavailable."""
    for some in by_call(names):
        request = ttypes.DropPartitionsRequest(
            dbName=table.database,
            tblName=table.table,
            parts=ttypes.RequestPartsSpec(names=list(some)),
            deleteData=delete_data,
            ifExists=True,
            needResult=False,
        )
        metastore.call("drop_partitions_req", request)
