"""The V1 API of Hive Streaming (hive-hcatalog-streaming): end points, connections, transaction batches.

Invariant: each transaction batch delegates to one `HiveStreamingConnection`; this module writes and commits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from ingestd.formats.decoder import Decoder, DecodeResult, Reject
from ingestd.formats.delimited import DelimitedDecoder, DelimitedFormat
from ingestd.formats.lazysimple.values import check_choice
from ingestd.formats.unmatched import Unmatched
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import partition_locations
from ingestd.hive.security import Security
from ingestd.hive.tables import Table, TableName, load_acid_table, require_full_acid, require_writable_database
from ingestd.publish import deltas
from ingestd.publish.warehouse import Warehouse
from ingestd.schema import Column, HiveType
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from ingestd.streaming.arguments import PartitionValues, check_flag, check_text
from ingestd.streaming.batch import TxnState
from ingestd.streaming.configuration import Configuration
from ingestd.streaming.connection import HiveStreamingConnection
from ingestd.streaming.errors import (
    CONNECTING,
    CREATING_PARTITION,
    ConnectionError,  # noqa: A004
    InvalidConnection,
    InvalidTable,
    InvalidTransactionState,
    PartitionCreationFailed,
    SerializationError,
    StreamingException,
    StreamingIOFailure,
    TransactionError,
    streaming_errors,
)
from ingestd.streaming.options import ConnectionOptions
from ingestd.streaming.owner import Owner, close_after
from ingestd.streaming.session import normal_values
from ingestd.streaming.writers import RecordWriter, StrictJsonWriter, StrictRegexWriter

__all__ = [
    "ConnectionError",
    "DelimitedInputWriter",
    "HiveEndPoint",
    "InvalidColumn",
    "InvalidPartition",
    "InvalidTable",
    "InvalidTransactionState",
    "PartitionCreationFailed",
    "RecordWriter",
    "SerializationError",
    "StreamingConnection",
    "StreamingException",
    "StreamingIOFailure",
    "StrictJsonWriter",
    "StrictRegexWriter",
    "TransactionBatch",
    "TransactionBatchUnAvailable",
    "TransactionError",
    "TxnState",
    "get_field_reordering",
]


class InvalidColumn(StreamingException):
    """A field name does not match any column of the table."""


class InvalidPartition(StreamingException):
    """The partition of the end point does not exist, or its values do not fit the partition columns."""


class TransactionBatchUnAvailable(StreamingException):
    """A batch of transactions could not be opened. Retry with backoff."""

    is_retriable = True


@dataclass(frozen=True, slots=True)
class HiveEndPoint:
    """A table or one of its partitions.

    `partition_values` contains one value per partition column, by name or in the order of the columns. If
    `metastore_uri` is None, the address in the configuration is used.
    """

    metastore_uri: str | None
    database: str
    table: str
    partition_values: PartitionValues | None = ()

    def new_connection(
        self,
        create_partitions: bool = False,  # noqa: FBT001, FBT002 - Java's signature
        agent_info: str = "",
        *,
        configuration: Mapping[str, str] | str | Path | None = None,
        security: Security | None = None,
        storage: StorageOptions | None = None,
    ) -> StreamingConnection:
        """Check the end point and return a connection to it.

        With `create_partitions`, a missing partition is created; concurrent clients all succeed. `configuration`,
        `security` and `storage` are as in `ConnectionOptions`. Raises ConnectionError, InvalidConnection, InvalidTable,
        InvalidPartition or PartitionCreationFailed.
        """
        check_flag("create_partitions", create_partitions)
        # Validate the options before the first network call.
        ConnectionOptions(
            record_writer=StrictJsonWriter(),
            database=self.database,
            table=self.table,
            static_partition_values=self.partition_values,
            agent_info=agent_info,
            metastore_uri=self.metastore_uri,
            security=security,
            storage=storage,
        )
        settings = Configuration.of(configuration)
        uri = self.metastore_uri or settings.metastore_uri()
        with streaming_errors(CONNECTING):
            metastore = Metastore(
                uri,
                timeout_seconds=settings.timeout_seconds(),
                security=security or Security.from_hive_conf(settings),
            )
        with streaming_errors():
            try:
                table = load_acid_table(metastore, TableName(self.database.lower(), self.table.lower()))
                require_full_acid(table)
                require_writable_database(metastore, table.name)
                warehouse = Warehouse(metastore, Storages(settings.storage_options(storage)))
                self._require_partition(warehouse, table, create=create_partitions)
            finally:
                metastore.close()
        return StreamingConnection(self, agent_info, settings, security, storage)

    def _require_partition(self, warehouse: Warehouse, table: Table, *, create: bool) -> None:
        where = f"table {table.name}"
        try:
            values = normal_values(table, self.partition_values or ())
        except InvalidConnection as error:
            raise InvalidPartition(error.what, where=f"{where}, {error.where}", hint=error.hint) from error
        if not values:
            return
        if create:
            with streaming_errors(CREATING_PARTITION):
                location = warehouse.storages.location(table.location)
                deltas.create_partitions(warehouse.metastore, table, location, [values])
            return
        name = table.partition_name(values)
        if not list(partition_locations(warehouse.metastore, table, [name])):
            raise InvalidPartition(f"there is no partition {name}", where=where, hint="pass create_partitions=True")


class StreamingConnection:
    """Opens transaction batches for one end point."""

    def __init__(
        self,
        end_point: HiveEndPoint,
        agent_info: str,
        configuration: Configuration,
        security: Security | None,
        storage: StorageOptions | None,
    ) -> None:
        self.end_point = end_point
        self._agent_info = agent_info
        self._configuration = configuration
        self._security = security
        self._storage = storage
        self._batches: list[TransactionBatch] = []
        self._owner = Owner()
        self._closed = False

    def fetch_transaction_batch(self, count: int, writer: RecordWriter) -> TransactionBatch:
        """Open `count` transactions that share their files. The batch belongs to the first thread that uses it.

        Raises TransactionBatchUnAvailable when the transactions cannot be opened, and the errors of
        `HiveStreamingConnection`: ConnectionError, InvalidConnection and InvalidTable.
        """
        self._owner.check_process()
        if self._closed:
            raise StreamingException("the connection is closed", hint="open a new one")
        connection = HiveStreamingConnection(
            database=self.end_point.database,
            table=self.end_point.table,
            static_partition_values=self.end_point.partition_values or (),
            configuration=self._configuration,
            agent_info=self._agent_info,
            metastore_uri=self.end_point.metastore_uri,
            security=self._security,
            storage=self._storage,
            transaction_batch_size=count,
            record_writer=writer,
        )
        try:
            connection.fetch_batch()
        except StreamingException as error:
            connection.close()
            if isinstance(error, InvalidTable):
                raise
            raise TransactionBatchUnAvailable(error.what, where=error.where, hint=error.hint) from error
        self._batches = [open_batch for open_batch in self._batches if not open_batch.is_closed()]
        connection.hand_over()
        batch = TransactionBatch(connection, count)
        self._batches.append(batch)
        return batch

    def close(self) -> None:
        """Close all fetched batches. If any fail, raise the first error after trying all of them."""
        self._owner.check_process()
        self._closed = True
        failures = []
        for batch in self._batches:
            try:
                batch.close()
            except StreamingException as error:  # noqa: PERF203 - an error must not keep the others open
                failures.append(error)
        if failures:
            raise failures[0]

    def __enter__(self) -> StreamingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, self.close)


class TransactionBatch:
    """A batch of transactions that are used one after another. Each is committed or aborted separately."""

    def __init__(self, connection: HiveStreamingConnection, count: int) -> None:
        self._connection = connection
        self._remaining = count
        self._closed = False

    def begin_next_transaction(self) -> None:
        """Begin the next transaction. Raises InvalidTransactionState when all have been used."""
        if not self._remaining:
            raise InvalidTransactionState("all transactions of the batch have been used", hint="fetch another batch")
        self._connection.begin_transaction()
        self._remaining -= 1

    def write(self, data: Any) -> None:
        """Write one record (bytes) or many records (a list of bytes)."""
        self._connection.write(data)

    def commit(self) -> None:
        """Commit the open transaction. Raises TransactionError or SerializationError."""
        self._connection.commit_transaction()

    def abort(self) -> None:
        """Abort the open transaction. Raises TransactionError.

        Does nothing after `close`, or if an error has already aborted it, as in Java.
        """
        if not self._closed:
            self._connection.abort_transaction()

    def remaining_transactions(self) -> int:
        """Return the number of transactions that have not begun."""
        return self._remaining

    def current_transaction_state(self) -> TxnState:
        """Return the state of the current or last transaction."""
        return self._connection.current_transaction_state

    def current_txn_id(self) -> int | None:
        """Return the id of the open transaction, or None if no transaction is open."""
        return self._connection.current_txn_id

    def is_closed(self) -> bool:
        """Return whether `close` has been called."""
        return self._closed

    def close(self) -> None:
        """Abort the open transaction and the unused ones."""
        self._connection.close()
        self._closed = True
        self._remaining = 0

    def __enter__(self) -> TransactionBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, self.close)


class DelimitedInputWriter(RecordWriter):
    """Decodes delimited text whose fields are in the order of `field_names`.

    A field whose name is empty or None is dropped. A column that is not named is NULL.
    """

    reads_by_position = False

    def __init__(  # noqa: PLR0913 - the options of a format, by name only
        self,
        field_names: Sequence[str | None],
        delimiter: str = "\x01",
        *,
        collection_delimiter: str = "\x02",
        map_key_delimiter: str = "\x03",
        null_text: str = r"\N",
        escape: str | None = None,
        bad_values: Literal["null", "reject"] = "null",
        bad_counts: Literal["fit", "reject"] = "fit",
        unmatched: Unmatched = "reject",
    ) -> None:
        """The other options are those of `StrictDelimitedInputWriter`. Raises StreamingException for invalid ones."""
        super().__init__()
        _check_names("field_names", field_names)
        self._fields = tuple(field_names)
        with streaming_errors():
            self._format = DelimitedFormat(
                delimiter, collection_delimiter, map_key_delimiter, null_text, escape, bad_values, bad_counts
            )
            check_choice("unmatched", unmatched, ("null", "reject"))
        self._unmatched = unmatched

    def decoder(self, columns: Sequence[Column]) -> Decoder:
        """Return a decoder for these columns. Raises InvalidColumn for a field name that is not a column."""
        with streaming_errors():
            return _Reordered(self._fields, columns, self._format, self._unmatched)


def get_field_reordering(field_names: Sequence[str | None], columns: Sequence[str]) -> list[int]:
    """Return the index of each field's column, or -1 for a dropped field (DelimitedInputWriter.getFieldReordering).

    Names are matched case-insensitively. Raises InvalidColumn for a name that is not a column, and if there are more
    fields than columns.
    """
    _check_names("field_names", field_names)
    _check_names("columns", columns)
    if len(field_names) > len(columns):
        raise InvalidColumn(
            f"the number of field names is {len(field_names)}, but the number of columns is {len(columns)}"
        )
    places = {name.lower(): place for place, name in enumerate(columns)}
    unknown = [name for name in field_names if name and name.lower() not in places]
    if unknown:
        raise InvalidColumn(f"the table has no column {unknown[0]!r}", hint=f"columns: {', '.join(columns)}")
    return [places[name.lower()] if name else -1 for name in field_names]


def _check_names(name: str, given: object) -> None:
    if not isinstance(given, (list, tuple)):
        raise StreamingException(
            f"{name} must be a list of names, not {type(given).__name__}", where=name, hint='for example ["id", "note"]'
        )
    for place, value in enumerate(given):
        if value is not None:
            check_text(f"{name}[{place}]", value, kind=StreamingException)


class _Reordered:
    """Decodes fields in the order of the record, then reorders them to match the table's columns."""

    def __init__(
        self,
        fields: Sequence[str | None],
        columns: Sequence[Column],
        layout: DelimitedFormat,
        unmatched: Unmatched,
    ) -> None:
        mapping = get_field_reordering(fields, [column.name for column in columns])
        dropped = HiveType.parse("string")
        read = [columns[place] if place >= 0 else Column(f"dropped {n}", dropped) for n, place in enumerate(mapping)]
        self._columns = tuple(columns)
        self._places = {place: n for n, place in enumerate(mapping) if place >= 0}
        self._decoder = DelimitedDecoder(read, layout, unmatched=unmatched)

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode a batch of records (see `Decoder`)."""
        decoded = self._decoder.decode(values)
        return replace(decoded, batches=[self._reorder(batch) for batch in decoded.batches])

    def check(self, value: bytes) -> Reject | None:
        """Return the reject that `decode` would return for this record; None if the record becomes a row."""
        return self._decoder.check(value)

    def _reorder(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            batch.column(self._places[place]) if place in self._places else pa.nulls(batch.num_rows, column.type.arrow)
            for place, column in enumerate(self._columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self._columns])
