"""The properties of a table that a writer needs, read from the metastore and checked.

Invariant: a `Table` from `load_acid_table` is a managed transactional ORC table, full ACID or insert-only, with
primitive partition columns, and one that Hive's INSERT writes in the same way. Hive also refuses to write to some
databases (`require_writable_database`): a caller checks this before it allocates a write id, because replication would
assign the same one.
Source of the rules: TransactionalValidationListener, AcidUtils.isFullAcidTable, SemanticAnalyzer, ErrorMsg,
MetastoreDefaultTransformer, MetaStoreUtils.isTargetOfReplication, EnforceReadOnlyDatabaseHook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hive_metastore import ttypes

from ingestd.acid.encoding import Encoding, table_encoding
from ingestd.acid.layout import FileLayout
from ingestd.acid.partitions import partition_name
from ingestd.acid.routing import Bucketing, Shape
from ingestd.errors import InvalidTable, TableMissing
from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.constraints import not_null_columns
from ingestd.schema import Column, HiveType, require_visible

# The name of an unpartitioned table among partition names.
WHOLE_TABLE = ""
ORC_INPUT = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"
ORC_OUTPUT = "org.apache.hadoop.hive.ql.io.orc.OrcOutputFormat"
ORC_SERDE = "org.apache.hadoop.hive.ql.io.orc.OrcSerde"

_TABLES_OF_A_CALL = 100
# Properties of a database. The first names replication policies; it is empty after a failover.
_TARGET_FOR, _READ_ONLY = "repl.target.for", "readonly"
# Hive's answers to INSERT (ErrorMsg.DML_AGAINST_VIEW, INSERT_INTO_IMMUTABLE_TABLE).
_NO_VIEW = "a view cannot be used as target table for LOAD or INSERT"
_NO_IMMUTABLE = "inserting into a non-empty immutable table is not allowed"
# Values of Table.accessType for clients that declare too few capabilities: ACCESSTYPE_NONE, ACCESSTYPE_READONLY.
_NOT_WRITABLE = (1, 2)
_CREATE_ACID = "create it as a managed table, STORED AS ORC TBLPROPERTIES('transactional'='true')"


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table, `database.table`. Both parts are in lower case, as HMS stores them."""

    database: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse `database.table`; a name without a database is in `default`."""
        database, _, table = text.strip().lower().rpartition(".")
        return cls(database or "default", table)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class Table:
    """A transactional table. `columns` does not include `partition_columns`.

    `id` changes when the table is recreated; `location` is the URI of its directory; `not_null` names the columns with
    an enabled NOT NULL constraint; `raw` is the Thrift table.
    """

    name: TableName
    id: int
    location: str
    columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...]
    bucketing: Bucketing | None
    not_null: frozenset[str]
    parameters: Mapping[str, str] = field(compare=False)
    raw: Any = field(compare=False, repr=False)

    @property
    def encoding(self) -> Encoding:
        """The ORC encoding that the table properties specify; compression is zstd by default."""
        return table_encoding(self.parameters, self.columns).encoding

    @property
    def is_insert_only(self) -> bool:
        """Whether the rows of the table cannot be updated or deleted, and its files store plain rows."""
        return self.encoding.layout is FileLayout.PLAIN

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings, one sentence for each table property that the writers do not implement."""
        return table_encoding(self.parameters, self.columns).warnings

    @property
    def shape(self) -> Shape:
        """The properties of the table that the ORC writers need."""
        return Shape(self.columns, self.partition_columns, self.bucketing, self.encoding, self.not_null)

    def partition_name(self, values: Sequence[str]) -> str:
        """Return Hive's escaped name of a partition, `key=value/…`; '' (WHOLE_TABLE) for an unpartitioned table."""
        return partition_name([c.name for c in self.partition_columns], values)


def list_tables(metastore: Metastore) -> list[TableName]:
    """Return the names of all tables and views, sorted. Makes one call per database. Raises MetastoreUnavailable."""
    databases = sorted(metastore.call("get_all_databases"))
    return [
        TableName(database, name)
        for database in databases
        for name in sorted(metastore.call("get_all_tables", database))
    ]


def table_locations(
    metastore: Metastore, database: str, tables: Sequence[str] | None = None
) -> Iterator[tuple[TableName, str]]:
    """Yield the tables of a database, or those in `tables` that exist, with their locations, by few calls.

    Views have none. A metastore before Hive 4 ignores the projection, and returns whole tables. Raises
    MetastoreUnavailable.
    """
    names = sorted(metastore.call("get_all_tables", database) if tables is None else tables)
    for first in range(0, len(names), _TABLES_OF_A_CALL):
        request = ttypes.GetTablesRequest(
            dbName=database,
            tblNames=names[first : first + _TABLES_OF_A_CALL],
            capabilities=ttypes.ClientCapabilities(values=[ttypes.ClientCapability.INSERT_ONLY_TABLES]),
            projectionSpec=ttypes.GetProjectionsSpec(fieldList=["dbName", "tableName", "sd.location"]),
        )
        for table in metastore.call("get_table_objects_by_name_req", request).tables:
            if table.sd is not None and table.sd.location:
                yield TableName(table.dbName, table.tableName), table.sd.location


def tables_with_files(metastore: Metastore, database: str) -> list[str]:
    """Return the names of all tables of a database that are not views, sorted. Raises MetastoreUnavailable."""
    managed = metastore.call("get_tables_by_type", database, "*", "MANAGED_TABLE")
    return sorted([*managed, *external_tables(metastore, database)])


def external_tables(metastore: Metastore, database: str) -> list[str]:
    """Return the names of all external tables of a database, sorted. Raises MetastoreUnavailable."""
    return sorted(metastore.call("get_tables_by_type", database, "*", "EXTERNAL_TABLE"))


def materialized_views(metastore: Metastore, database: str) -> list[str]:
    """Return the names of all materialized views of a database, sorted. Raises MetastoreUnavailable."""
    return sorted(metastore.call("get_tables_by_type", database, "*", "MATERIALIZED_VIEW"))


def table_parameters(metastore: Metastore, name: TableName) -> Mapping[str, str]:
    """Return the current parameters of a table. Raises TableMissing if it does not exist."""
    return dict(read_table(metastore, name).parameters or {})


def read_table(metastore: Metastore, name: TableName) -> Any:
    """Return the current Thrift table. Raises TableMissing if it does not exist."""
    request = ttypes.GetTableRequest(
        dbName=name.database,
        tblName=name.table,
        capabilities=ttypes.ClientCapabilities(values=[ttypes.ClientCapability.INSERT_ONLY_TABLES]),
        processorCapabilities=CAPABILITIES,
        processorIdentifier="ingestd",
    )
    try:
        return metastore.call("get_table_req", request).table
    except InvalidTable as error:
        raise TableMissing("the table does not exist", where=f"table {name}", hint="create the table") from error


def load_acid_table(metastore: Metastore, name: TableName) -> Table:
    """Read and check a table. Raises InvalidTable with the first violation and a hint."""
    raw = read_table(metastore, name)
    return as_acid_table(raw, not_null_columns(metastore, raw))


def require_writable_database(metastore: Metastore, name: TableName) -> None:
    """Raise InvalidTable if tables of the database of `name` must not be written, or if there is no such database.

    Makes one call. The properties of a database may change at any time, without a trace in its tables.
    """
    database, where = name.database, f"table {name}"
    try:
        parameters = metastore.call("get_database", database).parameters or {}
    except InvalidTable as error:
        hint = f"run CREATE DATABASE {database}"
        raise InvalidTable("the database does not exist", where=where, hint=hint) from error
    if parameters.get(_TARGET_FOR):
        raise InvalidTable(
            f"database {database} is a target of replication ({_TARGET_FOR})",
            where=where,
            hint="write to the source database. After a failover, run"
            f" ALTER DATABASE {database} SET DBPROPERTIES ('{_TARGET_FOR}'='', '{_READ_ONLY}'='false')",
        )
    if parameters.get(_READ_ONLY, "").lower() == "true":
        raise InvalidTable(
            f"database {database} is read-only",
            where=where,
            hint=f"run ALTER DATABASE {database} SET DBPROPERTIES ('{_READ_ONLY}'='false') to make it writable",
        )


def require_full_acid(table: Table) -> None:
    """Raise InvalidTable for an insert-only table."""
    if table.is_insert_only:
        raise InvalidTable(
            "the table is an insert-only table",
            where=f"table {table.name}",
            hint="use a full ACID table: STORED AS ORC without insert_only",
        )


def as_acid_table(raw: Any, not_null: frozenset[str]) -> Table:
    """Check a Thrift table and convert it; raises the same errors as `load_acid_table`.

    `not_null` is the result of `not_null_columns`.
    """
    name = TableName(raw.dbName.lower(), raw.tableName.lower())
    parameters = dict(raw.parameters or {})
    _require_acid_orc(raw, parameters, name)
    columns = _columns(raw.sd.cols, name)
    partition_columns = _columns(raw.partitionKeys or [], name)
    for column in partition_columns:
        if column.type.is_complex:
            raise InvalidTable(
                f"a partition column cannot have the type {column.type}", where=f"table {name}, column {column.name}"
            )
    try:
        table_encoding(parameters, columns)
    except InvalidTable as error:
        raise InvalidTable(error.what, where=f"table {name}", hint=error.hint) from error
    return Table(
        name=name,
        id=raw.id or 0,
        location=raw.sd.location.rstrip("/"),
        columns=columns,
        partition_columns=partition_columns,
        bucketing=_bucketing(raw, parameters, columns),
        not_null=not_null,
        parameters=parameters,
        raw=raw,
    )


def _bucketing(raw: Any, parameters: Mapping[str, str], columns: Sequence[Column]) -> Bucketing | None:
    """Return the bucketing of a table, None if it has none.

    Tables without the property bucketing_version use version 1 (Utilities.getBucketingVersion).
    """
    if not raw.sd.bucketCols or raw.sd.numBuckets < 1:
        return None
    by_name = {column.name: column for column in columns}
    chosen = tuple(by_name[name.lower()] for name in raw.sd.bucketCols)
    return Bucketing(chosen, raw.sd.numBuckets, 2 if parameters.get("bucketing_version") == "2" else 1)


def _columns(fields: Any, name: TableName) -> tuple[Column, ...]:
    try:
        columns = tuple(Column(f.name.lower(), HiveType.parse(f.type, column=f.name)) for f in fields)
        require_visible(columns)
        return columns
    except InvalidTable as error:
        raise InvalidTable(error.what, where=f"table {name}, {error.where}", hint=error.hint) from error


def _require_acid_orc(raw: Any, parameters: Mapping[str, str], name: TableName) -> None:
    handler = _storage_handler(parameters)
    serde = (raw.sd.serdeInfo and raw.sd.serdeInfo.serializationLib) or "unknown"
    is_acid = parameters.get("transactional", "").lower() == "true"
    is_external = raw.tableType == "EXTERNAL_TABLE" or parameters.get("EXTERNAL", "").lower() == "true"
    is_immutable = parameters.get("immutable", "").lower() == "true"
    capabilities = ", ".join(raw.requiredWriteCapabilities or ()) or "unknown"
    faults = [
        (raw.tableType == "VIRTUAL_VIEW", f"is a view: {_NO_VIEW}", "use a table"),
        (
            raw.tableType == "MATERIALIZED_VIEW",
            f"is a materialized view: {_NO_VIEW}",
            "use a table; ALTER MATERIALIZED VIEW … REBUILD fills a materialized view",
        ),
        (bool(handler), f"is a non-native table ({handler})", "use a table STORED AS ORC, without STORED BY"),
        (not is_acid, "is not a transactional table", _CREATE_ACID),
        (is_external, "cannot be declared transactional because it's an external table", _CREATE_ACID),
        (raw.sd.inputFormat != ORC_INPUT, f"has the input format {raw.sd.inputFormat}", "create it STORED AS ORC"),
        (raw.sd.outputFormat != ORC_OUTPUT, f"has the output format {raw.sd.outputFormat}", "create it STORED AS ORC"),
        (
            serde != ORC_SERDE,
            f"has the SerDe {serde}, with which Hive cannot read its ORC files",
            "create it STORED AS ORC",
        ),
        (bool(raw.sd.sortCols), "is SORTED BY columns, so Hive relies on the order of its rows", "recreate it without"),
        (
            bool(raw.sd.storedAsSubDirectories),
            "is STORED AS DIRECTORIES, so Hive writes skewed values into directories of their own",
            "run ALTER TABLE … NOT SKEWED",
        ),
        (is_immutable, f"is immutable: {_NO_IMMUTABLE}", "run ALTER TABLE … SET TBLPROPERTIES ('immutable'='false')"),
        (
            raw.accessType in _NOT_WRITABLE,
            f"can be written only by clients with other capabilities ({capabilities})",
            "remove the property OBJCAPABILITIES of the table, or use another table",
        ),
    ]
    for violated, what, hint in faults:
        if violated:
            raise InvalidTable(f"the table {what}", where=f"table {name}", hint=hint)


def _storage_handler(parameters: Mapping[str, str]) -> str:
    """Return the storage handler that writes the table instead of Hive, '' for a native table.

    Engines without Hive's libraries create Iceberg tables that have no handler (HiveTableOperations).
    """
    is_iceberg = parameters.get("table_type", "").upper() == "ICEBERG"
    return parameters.get("storage_handler", "") or ("Iceberg" if is_iceberg else "")
