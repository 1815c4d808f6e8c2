"""What all transactions of one connection share: the metastore, the table, who we are.

Invariant: a session's table can be written as its options ask. That is checked when the session is opened, and again
under the lock of each transaction (`look_again`), because nobody can change the table from there to the commit.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ingestd.acid.encoding import Encoding
from ingestd.acid.partitions import static_partition_value
from ingestd.acid.routing import Shape
from ingestd.errors import IngestdError, InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.constraints import not_null_columns
from ingestd.hive.partitions import describe_odd, odd_partitions
from ingestd.hive.security import Security
from ingestd.hive.tables import Table, TableName, as_acid_table, load_acid_table
from ingestd.publish import staging
from ingestd.publish.row_counts import RowCounts
from ingestd.schema import Column
from ingestd.storage import local
from ingestd.streaming.arguments import PartitionValues, in_order
from ingestd.streaming.configuration import Configuration
from ingestd.streaming.errors import InvalidConnection, TableChanged, connection_errors
from ingestd.streaming.heartbeat import transaction_timeout
from ingestd.streaming.options import ConnectionOptions
from ingestd.streaming.stats import Counters
from ingestd.streaming.writers import RecordWriter

_log = logging.getLogger(__name__)
_BLOB_STORES = ("s3", "s3a", "s3n", "gs", "wasb", "wasbs", "abfs", "abfss", "oss", "cos")


class Change(Enum):
    """What `Session.look_again` found."""

    NONE = "the table is as it was"
    VIEW = "columns, location or properties changed: files that are open do not fit it any more"
    TABLE = "it is another table of the same name, which numbers its write ids itself"


@dataclass(slots=True)
class Session:
    """`agent` names the client in SHOW LOCKS; `static` has the static partition values, () when rows say theirs.

    `table` and `shape` are replaced, both at once, when `look_again` finds that the table has changed.

    `lock_seconds` bounds the wait for a lock, `batch_seconds` the age of a batch with unused transactions, and
    `timeout_seconds` is what the metastore allows between heartbeats.
    """

    metastore: Metastore
    options: ConnectionOptions
    table: Table
    shape: Shape
    static: tuple[str, ...]
    agent: str
    stats: Counters
    counts: RowCounts
    lock_seconds: float
    batch_seconds: float
    timeout_seconds: float

    @property
    def is_dynamic(self) -> bool:
        """Whether the partition of a row comes from the row."""
        return bool(self.table.partition_columns) and not self.static

    @property
    def record_columns(self) -> tuple[Column, ...]:
        """The columns of a record: the table's, and the partition columns last when they come from it."""
        return self.table.columns + (self.table.partition_columns if self.is_dynamic else ())

    def look_again(self) -> Change:
        """Read the table as it is now and go on with it. One metastore call.

        Raises MetastoreUnavailable; TableChanged when records that fit the table before would not fit it now.
        """
        try:
            now = load_acid_table(self.metastore, self.table.name)
            check_storage(now, self.options)
        except InvalidTable as error:
            raise _changed(self.table, error.what) from error
        shape = _shape(now, optimized=self.options.streaming_optimizations)
        is_other = bool(self.table.id and now.id and self.table.id != now.id)
        if not is_other and now == replace(self.table, id=now.id) and shape == self.shape:
            self.table = now  # what neither the table nor its shape shows, such as SerDe properties
            return Change.NONE
        self._refuse_misfit(now, is_other=is_other)
        _log.info("table %s has changed, the connection goes on with it as it is now", now.name)
        self.table, self.shape = now, shape
        return Change.TABLE if is_other else Change.VIEW

    def _refuse_misfit(self, now: Table, *, is_other: bool) -> None:
        before = self.table
        if now.partition_columns != before.partition_columns:
            raise _changed(before, f"it is partitioned by {_listed(now.partition_columns)}")
        if is_other and now.columns != before.columns:
            raise _changed(before, f"it was dropped and created again with the columns {_listed(now.columns)}")
        names = [column.name for column in now.columns]
        kept = [column.name for column in before.columns]
        if names[: len(kept)] != kept:
            raise _changed(before, f"columns were renamed, moved or removed: it has {_listed(now.columns)}")
        writer = self.options.writer
        if names != kept and self.is_dynamic and isinstance(writer, RecordWriter) and writer.reads_by_position:
            added = ", ".join(names[len(kept) :])
            raise _changed(before, f"columns were added ({added}), and a record's partition values come after them")


def open_session(options: ConnectionOptions, configuration: Configuration, uri: str) -> Session:
    """Connect to the metastore and check the table.

    Raises IngestdError: nobody answers, the login failed, the table does not fit.
    """
    with connection_errors():
        metastore = Metastore(
            uri,
            timeout_seconds=options.metastore_timeout_seconds or configuration.timeout_seconds(),
            security=options.security or Security.from_hive_conf(configuration),
        )
        try:
            session = _session(metastore, options)
            _clean(metastore, session.table)
            _warn_of_table(session)
        except BaseException:
            metastore.close()
            raise
    return session


def _session(metastore: Metastore, options: ConnectionOptions) -> Session:
    table = _load(metastore, options)
    return Session(
        metastore=metastore,
        options=options,
        table=table,
        shape=_shape(table, optimized=options.streaming_optimizations),
        static=_static(table, options),
        agent=options.agent(metastore.user),
        stats=Counters(),
        counts=RowCounts(metastore, table.name, f"streaming.{uuid.uuid4().hex[:12]}", _Report(table.name)),
        lock_seconds=options.lock_seconds,
        batch_seconds=options.batch_seconds,
        timeout_seconds=transaction_timeout(metastore),
    )


def _changed(table: Table, what: str) -> TableChanged:
    return TableChanged(
        f"the table changed since the connection was made: {what}",
        where=f"table {table.name}",
        hint="close this connection and make a new one, with records that fit the table as it is now",
    )


def _listed(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns) or "nothing"


def _clean(metastore: Metastore, table: Table) -> None:
    """A courtesy to others: no connection fails for what killed clients have left."""
    try:
        staging.sweep(metastore, table)
    except IngestdError as error:
        _log.warning("leftovers of %s could not be cleared away: %s", table.name, error)


def _warn_of_table(session: Session) -> None:
    for text in session.table.warnings:
        _log.warning("table %s: %s", session.table.name, text)
    odd = odd_partitions(session.metastore, session.table)
    if odd:
        _log.warning("table %s: %d odd partitions: %s", session.table.name, len(odd), describe_odd(odd))


def _load(metastore: Metastore, options: ConnectionOptions) -> Table:
    if options.table_object is not None:
        table = _given(metastore, options.table_object)
    else:
        table = load_acid_table(metastore, options.name)
    check_storage(table, options)
    return table


def _given(metastore: Metastore, raw: Any) -> Table:
    try:
        return as_acid_table(raw, not_null_columns(metastore, raw))
    except (AttributeError, TypeError) as error:
        raise InvalidConnection(
            f"table_object is not a whole Thrift table: {error}", where="table_object", hint="get it by get_table_req"
        ) from error


def check_storage(table: Table, options: ConnectionOptions) -> None:
    """Raise InvalidConnection where a batch could not be read while it grows, InvalidTable where nothing is written."""
    scheme = table.location.partition(":")[0].lower()
    if options.transaction_batch_size > 1 and scheme in _BLOB_STORES:
        raise InvalidConnection(
            f"transaction_batch_size {options.transaction_batch_size} needs files that can be read while they grow,"
            f" which {scheme}: cannot give",
            where=f"table {table.name}",
            hint="use transaction_batch_size=1",
        )
    local.local_path(table.location)


def _static(table: Table, options: ConnectionOptions) -> tuple[str, ...]:
    values = options.static_partition_values
    return normal_values(table, values, "static_partition_values") if values else ()


def normal_values(table: Table, values: PartitionValues, argument: str = "partition_values") -> tuple[str, ...]:
    """Partition values in the order of the partition columns and in normal form.

    `argument` is what errors call the values. Raises InvalidConnection for values that do not fit the columns.
    """
    ordered = in_order(values, table.partition_columns, argument)
    try:
        return tuple(map(static_partition_value, table.partition_columns, ordered))
    except InvalidTable as error:
        raise InvalidConnection(error.what, where=f"table {table.name}, {error.where}", hint=error.hint) from error


def _shape(table: Table, *, optimized: bool) -> Shape:
    """Streaming optimizations leave out what compaction makes anyway: indexes and dictionaries (OrcRecordUpdater)."""
    encoding = _light(table.encoding) if optimized else replace(table.encoding, dictionaries=True)
    return replace(table.shape, encoding=encoding)


def _light(encoding: Encoding) -> Encoding:
    """Java 3.1 turns compression off here, Java 4 keeps zlib; zstd costs little and saves nearly as much as that."""
    compression = "zstd" if encoding.compression == "zlib" else encoding.compression
    return replace(encoding, index_stride=0, bloom_columns=(), compression=compression)


class _Report:
    """What is logged about row counts (`hive.row_counts.Report`)."""

    def __init__(self, table: TableName) -> None:
        self._table = table

    def repaired(self, names: Sequence[str]) -> None:
        """Row counts were wrong and were recounted."""
        _log.info("row counts of %s were recounted: %d partitions", self._table, len(names))

    def delayed(self, error: IngestdError) -> None:
        """Row counts cannot be looked at or recounted now."""
        _log.warning("row counts of %s cannot be checked now: %s", self._table, error)
