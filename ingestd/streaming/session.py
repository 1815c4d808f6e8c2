"""The state that all transactions of a connection share, such as the metastore client and the table.

Invariant: the session's table can be written as the options require. This is checked when the session is opened, and
again under the lock of each transaction (`refresh_table`): from then until the commit no ALTER TABLE can succeed. The
database is checked before each transaction (`require_writable`), because a write id in a replica would be wrong.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from ingestd.acid.constraints import unfit_rows
from ingestd.acid.encoding import Encoding
from ingestd.acid.partitions import static_partition_value
from ingestd.acid.routing import Shape
from ingestd.errors import IngestdError, InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.constraints import not_null_columns
from ingestd.hive.health import transaction_timeout
from ingestd.hive.partitions import PartitionInfo, PartitionNames, describe_odd, odd_partitions
from ingestd.hive.security import Security
from ingestd.hive.tables import (
    Table,
    TableName,
    as_acid_table,
    load_acid_table,
    require_full_acid,
    require_writable_database,
)
from ingestd.publish import deltas, staging
from ingestd.publish.row_counts import RowCounts
from ingestd.publish.warehouse import Warehouse
from ingestd.schema import Column
from ingestd.storage.contract import Location, split
from ingestd.storage.storages import Storages
from ingestd.streaming.arguments import PartitionValues, in_order
from ingestd.streaming.configuration import Configuration
from ingestd.streaming.errors import (
    CREATING_PARTITION,
    IN_TRANSACTION,
    InvalidConnection,
    StreamingException,
    TableChanged,
    streaming_errors,
)
from ingestd.streaming.options import ConnectionOptions
from ingestd.streaming.stats import Counters
from ingestd.streaming.writers import RecordWriter

_log = logging.getLogger(__name__)
_BEATS_PER_TIMEOUT = 2


class TableChange(Enum):
    """The result of `Session.refresh_table`."""

    NONE = "the table is unchanged"
    DEFINITION = "columns, location or properties changed: open files no longer fit the table"
    RECREATED = "the table was recreated: write ids of the old table are invalid"


@dataclass(slots=True)
class Session:
    """The state that outlives a transaction.

    `table` and `shape` are replaced together when `refresh_table` finds a change. `static` holds the static partition
    values, () with dynamic partitioning. `agent` names the client in SHOW LOCKS. `timeout_seconds` is the metastore's
    `hive.txn.timeout`: the longest pause between heartbeats. `names` tells which partitions the metastore refuses.
    """

    warehouse: Warehouse
    options: ConnectionOptions
    table: Table
    shape: Shape
    static: tuple[str, ...]
    agent: str
    stats: Counters
    counts: RowCounts
    timeout_seconds: float
    names: PartitionNames

    @property
    def metastore(self) -> Metastore:
        """The metastore of the warehouse."""
        return self.warehouse.metastore

    @property
    def heartbeat_seconds(self) -> float:
        """Interval of heartbeats."""
        return self.options.heartbeat_seconds or self.timeout_seconds / _BEATS_PER_TIMEOUT

    @property
    def is_dynamic(self) -> bool:
        """Whether each row selects its partition."""
        return bool(self.table.partition_columns) and not self.static

    @property
    def record_columns(self) -> tuple[Column, ...]:
        """The columns of a record: those of the table, followed by the partition columns if partitioning is dynamic."""
        return self.table.columns + (self.table.partition_columns if self.is_dynamic else ())

    def require_writable(self) -> None:
        """Raise InvalidTable if Hive refuses to write to the database now, for example because it became a replica."""
        require_writable_database(self.metastore, self.table.name)

    def find_unfit(self, rows: pa.RecordBatch) -> dict[int, tuple[str, str]]:
        """Return the column and the reason for each row that the table cannot store. Raises TransactionError.

        The metastore is asked about each new value of a partition column.
        """
        with streaming_errors(IN_TRANSACTION):
            return unfit_rows(rows, self.shape, self.names.refused if self.is_dynamic else None)

    def create_partition(self, values: PartitionValues) -> PartitionInfo:
        """Create a partition if it does not exist, and return it.

        Raises PartitionCreationFailed, StorageUnavailable if the table's directory is missing, or InvalidConnection for
        values that do not fit.
        """
        if not self.table.partition_columns:
            raise StreamingException("the table is not partitioned", where=f"table {self.table.name}")
        normal = normal_values(self.table, values)
        location = self.warehouse.storages.location(self.table.location)
        [info] = self.create_partitions(location, [normal]).values()
        self.stats.created_partitions += not info.existed
        return info

    @streaming_errors(CREATING_PARTITION)
    def create_partitions(self, location: Location, partitions: Iterable[Sequence[str]]) -> dict[str, PartitionInfo]:
        """Create missing partitions in the table's directory, and return all by name (`deltas.create_partitions`).

        Raises PartitionCreationFailed, also if a directory cannot be created.
        """
        return deltas.create_partitions(self.metastore, self.table, location, partitions)

    def refresh_table(self) -> TableChange:
        """Re-read the table with one metastore call. Rows written afterwards follow its current definition.

        Raises MetastoreUnavailable, or TableChanged when records that fitted the old definition do not fit the new one.
        """
        try:
            now = load_acid_table(self.metastore, self.table.name)
            check_storage(now, self.warehouse.storages, self.options)
        except InvalidTable as error:
            raise _table_changed(self.table, error.what) from error
        shape = _shape(now, optimized=self.options.streaming_optimizations)
        is_recreated = bool(self.table.id and now.id and self.table.id != now.id)
        if not is_recreated and now == replace(self.table, id=now.id) and shape == self.shape:
            self.table = now  # equality ignores some parts, such as SerDe properties
            return TableChange.NONE
        self._check_fit(now, is_recreated=is_recreated)
        _log.info("table %s has changed; its new definition applies from this transaction on", now.name)
        self.table, self.shape = now, shape
        return TableChange.RECREATED if is_recreated else TableChange.DEFINITION

    def _check_fit(self, now: Table, *, is_recreated: bool) -> None:
        before = self.table
        if now.partition_columns != before.partition_columns:
            raise _table_changed(before, f"its partition columns are now: {_listed(now.partition_columns)}")
        if is_recreated and now.columns != before.columns:
            raise _table_changed(before, f"it was recreated with the columns: {_listed(now.columns)}")
        names = [column.name for column in now.columns]
        kept = [column.name for column in before.columns]
        if names[: len(kept)] != kept:
            raise _table_changed(before, f"columns were renamed, moved or removed; now: {_listed(now.columns)}")
        writer = self.options.record_writer
        if names != kept and self.is_dynamic and isinstance(writer, RecordWriter) and writer.reads_by_position:
            added = ", ".join(names[len(kept) :])
            raise _table_changed(
                before, f"columns were added ({added}), and the partition values of a record must follow them"
            )


def open_session(options: ConnectionOptions, configuration: Configuration, uri: str) -> Session:
    """Connect to the metastore and check the table.

    Raises ConfigError, MetastoreUnavailable, LoginFailed, InvalidTable or InvalidConnection.
    """
    metastore = Metastore(
        uri,
        timeout_seconds=options.metastore_timeout_seconds or configuration.timeout_seconds(),
        security=options.security or Security.from_hive_conf(configuration),
    )
    try:
        session = _session(metastore, options, configuration)
        _remove_leftovers(session.warehouse, session.table)
        _log_warnings(session)
    except BaseException:
        metastore.close()
        raise
    return session


def _session(metastore: Metastore, options: ConnectionOptions, configuration: Configuration) -> Session:
    warehouse = Warehouse(metastore, Storages(configuration.storage_options(options.storage)))
    table = _load(warehouse, options)
    return Session(
        warehouse=warehouse,
        options=options,
        table=table,
        shape=_shape(table, optimized=options.streaming_optimizations),
        static=_static(table, options),
        agent=options.agent(metastore.user),
        stats=Counters(),
        counts=RowCounts(warehouse, table.name, f"streaming.{uuid.uuid4().hex[:12]}", _RowCountLog()),
        timeout_seconds=transaction_timeout(metastore),
        names=PartitionNames(metastore),
    )


def _table_changed(table: Table, what: str) -> TableChanged:
    return TableChanged(
        f"the table changed since the connection was opened: {what}",
        where=f"table {table.name}",
        hint="close this connection, open a new one, and write records that fit the new definition",
    )


def _listed(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns) or "none"


def _remove_leftovers(warehouse: Warehouse, table: Table) -> None:
    """Remove staging files of killed clients. A failure is only logged, because this client does not depend on them."""
    try:
        staging.sweep(warehouse, table)
    except IngestdError as error:
        _log.warning("could not remove the staging files of earlier clients from table %s: %s", table.name, error)


def _log_warnings(session: Session) -> None:
    for text in session.table.warnings:
        _log.warning("table %s: %s", session.table.name, text)
    odd = odd_partitions(session.metastore, session.table)
    if odd:
        text = "table %s: %d partitions are not in Hive's normal form: %s"
        _log.warning(text, session.table.name, len(odd), describe_odd(odd))


def _load(warehouse: Warehouse, options: ConnectionOptions) -> Table:
    metastore = warehouse.metastore
    if options.table_object is not None:
        table = _from_thrift(metastore, options.table_object)
    else:
        table = load_acid_table(metastore, options.name)
    require_full_acid(table)
    require_writable_database(metastore, table.name)
    check_storage(table, warehouse.storages, options)
    return table


def _from_thrift(metastore: Metastore, raw: Any) -> Table:
    try:
        return as_acid_table(raw, not_null_columns(metastore, raw))
    except (AttributeError, TypeError) as error:
        raise InvalidConnection(
            f"table_object is not a complete Thrift table: {error}",
            where="table_object",
            hint="read it with get_table_req",
        ) from error


def check_storage(table: Table, storages: Storages, options: ConnectionOptions) -> None:
    """Check that the table's storage supports the options.

    Raises InvalidConnection for a batch size over 1 if open files cannot be read there, and InvalidTable if files
    cannot be written there.
    """
    if options.transaction_batch_size > 1 and not storages.at(table.location).capabilities.append:
        raise InvalidConnection(
            f"transaction_batch_size {options.transaction_batch_size} requires files that can be read while they are"
            f" being written, which {split(table.location).scheme}: does not support",
            where=f"table {table.name}",
            hint="use transaction_batch_size=1",
        )


def _static(table: Table, options: ConnectionOptions) -> tuple[str, ...]:
    values = options.static_partition_values
    return normal_values(table, values, "static_partition_values") if values else ()


def normal_values(table: Table, values: PartitionValues, argument: str = "partition_values") -> tuple[str, ...]:
    """Return partition values in the order of the partition columns and in Hive's normal form.

    `argument` is the name of the values in errors. Raises InvalidConnection for values that do not fit the columns.
    """
    ordered = in_order(values, table.partition_columns, argument)
    try:
        return tuple(map(static_partition_value, table.partition_columns, ordered))
    except InvalidTable as error:
        raise InvalidConnection(error.what, where=f"table {table.name}, {error.where}", hint=error.hint) from error


def _shape(table: Table, *, optimized: bool) -> Shape:
    """Return the table's layout.

    Optimizations omit indexes and dictionaries, which compaction adds (OrcRecordUpdater).
    """
    encoding = _optimized(table.encoding) if optimized else replace(table.encoding, dictionaries=True)
    return replace(table.shape, encoding=encoding)


def _optimized(encoding: Encoding) -> Encoding:
    """Omit indexes, and replace zlib with zstd, which is much faster. (Java: no compression in 3.1, zlib in 4.x.)"""
    compression = "zstd" if encoding.compression == "zlib" else encoding.compression
    return replace(encoding, index_stride=0, bloom_columns=(), compression=compression)


class _RowCountLog:
    """Logs the repair of row counts (`publish.row_counts.Report`)."""

    def repaired(self, table: TableName, names: Sequence[str]) -> None:
        """Log that row counts were wrong and have been recounted."""
        _log.info("corrected wrong row counts of table %s (partitions: %d)", table, len(names))

    def delayed(self, table: TableName, error: IngestdError) -> None:
        """Log that row counts cannot be checked or recounted now."""
        _log.warning("the row counts of table %s cannot be checked now: %s", table, error)
