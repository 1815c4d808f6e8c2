"""The Hive Streaming V2 connection. A program uses it to begin, write and commit transactions.

Invariant: a connection belongs to one thread. Its public methods raise StreamingException. Every error except
RecordError or an invalid call ends the open transaction and its batch (state table in `lifecycle.py`).
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from ingestd.acid.layout import MAX_BUCKET, MAX_STATEMENT, batch_delta_name, bucket_name
from ingestd.clock import Deadline
from ingestd.errors import IngestdError
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import WHOLE_TABLE, Table
from ingestd.hive.transactions import Transaction
from ingestd.publish.deltas import DeltaFiles, announce
from ingestd.storage.contract import child
from ingestd.streaming.arguments import PartitionValues, check_list, check_whole
from ingestd.streaming.arrow import ArrowWriter
from ingestd.streaming.batch import Extras, TxnState
from ingestd.streaming.builder import Builder
from ingestd.streaming.configuration import Configuration
from ingestd.streaming.errors import (
    CONNECTING,
    CREATING_PARTITION,
    IN_TRANSACTION,
    InvalidTransactionState,
    StreamingException,
    TransactionError,
    streaming_error,
    streaming_errors,
)
from ingestd.streaming.lifecycle import Lifecycle
from ingestd.streaming.options import ConnectionOptions, takes_options
from ingestd.streaming.owner import Owner, close_after
from ingestd.streaming.session import normal_values, open_session
from ingestd.streaming.stats import ConnectionStats
from ingestd.streaming.write_path import WritePath
from ingestd.streaming.writers import RecordWriter

_log = logging.getLogger(__name__)
_open: set[HiveStreamingConnection] = set()
_BEGIN_ATTEMPTS = 5  # batches opened for one transaction while the table keeps changing
_ROW_COUNT_SECONDS = 5.0  # time limit of `close` for checking row counts


class HiveStreamingConnection:
    """A connection to one table. The constructor opens it. As a context manager it closes at the end of the block."""

    options: ConnectionOptions
    configuration: Configuration
    """Hive's settings, with those that streaming forces."""
    metastore_uri: str
    """Metastore addresses, comma-separated."""

    @takes_options(ConnectionOptions)
    def __init__(self, options: ConnectionOptions) -> None:
        """Connect to the metastore and check the table.

        Raises InvalidConnection for invalid options or a rejected login, ConnectionError when no metastore answers, and
        InvalidTable for a table that is missing or cannot be written.
        """
        self.options = options
        self.configuration = Configuration.of(
            options.configuration, streaming_optimizations=options.streaming_optimizations
        )
        self.metastore_uri = options.metastore_uri or self.configuration.metastore_uri()
        self._owner = Owner()
        self._closed = False
        with streaming_errors(CONNECTING):
            self._session = open_session(options, self.configuration, self.metastore_uri)
        self._lifecycle = Lifecycle(self._session)
        try:
            with streaming_errors():
                self._write_path = WritePath(self._session, self.configuration, self._lifecycle)
        except BaseException:
            self._session.metastore.close()
            raise
        _open.add(self)

    @staticmethod
    def new_builder() -> Builder[HiveStreamingConnection]:
        """Return a builder that collects the options one by one. Its `connect()` opens the connection."""
        return Builder(HiveStreamingConnection)

    # --- transactions

    def begin_transaction(self) -> None:
        """Begin a transaction. If the last batch is used up, open the next one first.

        Changes to the table since the last transaction, such as new columns or a new location, take effect.

        Raises ConnectionError or TransactionError, TableChanged when records that fitted the table no longer fit it,
        InvalidTable when the database has become read-only or a target of replication, and InvalidTransactionState when
        a transaction is open.
        """
        self._check()
        if self.current_transaction_state is TxnState.OPEN:
            raise InvalidTransactionState("a transaction is already open", hint="commit or abort it first")
        for _ in range(_BEGIN_ATTEMPTS):
            with streaming_errors(IN_TRANSACTION if self._lifecycle.has_unused else ()):
                self._lifecycle.prepare()
            with streaming_errors(IN_TRANSACTION):
                if self._lifecycle.begin(self._write_path.refresh_table):
                    break
        else:
            raise TransactionError("the table changed at every attempt to begin", where=f"table {self.table.name}")
        self._write_path.begin()

    @streaming_errors()
    def fetch_batch(self) -> None:
        """Open the next batch of transactions now, unless the current one has unused transactions.

        This is optional, because `begin_transaction` does it when needed. Raises ConnectionError or
        TransactionError, InvalidTable as `begin_transaction`, and InvalidTransactionState when the last transaction of
        the current batch is open.
        """
        self._check()
        self._lifecycle.prepare()

    def write(self, data: Any) -> None:
        """Write rows in the open transaction.

        With a `RecordWriter`, `data` is one record as bytes, many records as a list of bytes, or a binary stream, which
        the writer's line pattern splits into records. With an `ArrowWriter`, `data` is Arrow data.

        Raises SerializationError for records that cannot become rows; the transaction continues without them. Any other
        failure (StreamingIOFailure, PartitionCreationFailed, TransactionError) aborts the transaction. If the metastore
        does not answer, it is a TransactionError.
        """
        self._check()
        try:  # instead of `streaming_errors`, which would double the cost of a small record
            self._write_path.write(data)
        except StreamingException:
            raise
        except IngestdError as error:
            raise streaming_error(error, IN_TRANSACTION) from error

    @streaming_errors(IN_TRANSACTION)
    def commit_transaction(
        self, partitions: Sequence[PartitionValues] = (), key: str | None = None, value: str | None = None
    ) -> None:
        """Commit the open transaction. When the call returns, its rows are readable.

        `partitions` lists partition values, by column name or in the order of the columns. These partitions are created
        and reported as written even if they received no rows. `key` and `value` set a table parameter in the same
        commit. The parameter must exist, and its name must start with `_meta`.

        Raises SerializationError when buffered records are rejected. Commit again to continue without them, or abort.
        Raises TransactionError when the transaction was aborted, and CommitOutcomeUnknown when its outcome is unknown.
        """
        self._check()
        self._lifecycle.open_batch()
        check_list("partitions", partitions, 'list the values of each: [["Asia", "India"], ["Asia", "Japan"]]')
        values = tuple(normal_values(self.table, partition) for partition in partitions)
        key_value = self._lifecycle.key_value(key, value)
        self._write_path.drain()
        self._lifecycle.commit(Extras(values, key_value))

    @streaming_errors(IN_TRANSACTION)
    def abort_transaction(self) -> None:
        """Abort the open transaction. Its rows never become visible.

        Does nothing if an error has already aborted it, as in Java. Raises TransactionError, or InvalidTransactionState
        if none was open or the outcome of its commit is unknown.
        """
        self._check()
        self._lifecycle.abort()

    @contextmanager
    def transaction(self) -> Iterator[HiveStreamingConnection]:
        """Return a context manager that begins a transaction and commits it, or aborts it if the block raises.

        A transaction that the block itself committed or aborted stays as it is. An exception of the block is re-raised
        even if the abort fails. Raises TransactionError at the end of the block if the transaction failed inside it and
        the block ignored the error.
        """
        self.begin_transaction()
        try:
            yield self
            if self._lifecycle.failure:
                raise TransactionError(
                    f"none of the rows is visible, because the transaction failed earlier: {self._lifecycle.failure}",
                    hint="let errors leave the block, or begin a new transaction and write its records again",
                )
            if self.current_transaction_state is TxnState.OPEN:  # otherwise committed or aborted by the block
                self.commit_transaction()
        except BaseException as error:
            if self.current_transaction_state is TxnState.OPEN:
                close_after(error, self.abort_transaction)
            raise

    def hand_over(self) -> None:
        """Release the connection from this thread. It then belongs to the next thread that uses it."""
        self._check()
        self._owner.release()

    def close(self) -> None:
        """Abort the open transaction, close the batch and disconnect. Closing again has no effect."""
        if self._closed and not self._owner.is_forked:
            return
        self._check()
        self._close()

    def __enter__(self) -> HiveStreamingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, self.close)

    # --- partitions and files

    @streaming_errors(CREATING_PARTITION)
    def create_partition_if_not_exists(self, values: PartitionValues) -> PartitionInfo:
        """Create a partition if it does not exist, and return it. Concurrent clients all succeed.

        `values` contains one str per partition column, by name or in the order of the columns. Each is converted to
        Hive's normal form (for an int, `007` becomes `7`).
        Raises PartitionCreationFailed, or InvalidConnection for values that do not fit.
        """
        self._check()
        return self._session.create_partition(values)

    def delta_file_location(
        self,
        partition_values: PartitionValues,
        bucket: int,
        min_write_id: int,
        max_write_id: int,
        statement_id: int = 0,
    ) -> str:
        """Return the URI of a bucket's file once these write ids are committed. Creates the partition, as in Java.

        Raises StreamingException for numbers out of range, and the errors of `create_partition_if_not_exists`.
        """
        self._check()
        check_whole("bucket", bucket, 0, MAX_BUCKET, kind=StreamingException)
        check_whole("min_write_id", min_write_id, 1, kind=StreamingException)
        check_whole("max_write_id", max_write_id, min_write_id, kind=StreamingException)
        check_whole("statement_id", statement_id, 0, MAX_STATEMENT, kind=StreamingException)
        if self.is_partitioned_table:
            location = self.create_partition_if_not_exists(partition_values).location
        else:
            normal_values(self.table, partition_values)
            location = self.table.location
        delta = batch_delta_name(min_write_id, max_write_id, statement_id)
        return child(location, delta, bucket_name(bucket))

    @streaming_errors(IN_TRANSACTION)
    def add_write_notification_events(self, txn_id: int) -> None:
        """Report the files written in the joined transaction `txn_id` to the metastore's event log, if there is one.

        Call it before the owner commits. In other transactions the commit reports the files.
        Raises TransactionError, or InvalidTransactionState before `commit_transaction`.
        """
        self._check()
        check_whole("txn_id", txn_id, 1, kind=StreamingException)
        if self.write_id is None or self.current_transaction_state is not TxnState.PREPARED_FOR_COMMIT:
            raise InvalidTransactionState("no joined transaction is prepared", hint="call commit_transaction first")
        joined = Transaction(txn_id, self.agent_info)
        announce(self._session.metastore, joined, self.table, self.write_id, self.write_directories)

    # --- properties: reading one changes nothing and makes no network call

    @property
    def record_writer(self) -> RecordWriter | ArrowWriter:
        """The record writer."""
        return self.options.record_writer

    @property
    def agent_info(self) -> str:
        """The client's name in SHOW LOCKS and SHOW TRANSACTIONS."""
        return self._session.agent

    @property
    def username(self) -> str:
        """The user name that the metastore sees: that of the login or, without one, the name sent with `set_ugi`."""
        return self._session.metastore.user

    @property
    def transaction_batch_size(self) -> int:
        """Number of transactions that share their files."""
        return self.options.transaction_batch_size

    @property
    def write_id(self) -> int | None:
        """Write id of the joined transaction; None if no transaction was joined."""
        return self.options.write_id

    @property
    def statement_id(self) -> int:
        """Statement id of the files of a joined transaction."""
        return self.options.statement_id

    @property
    def static_partition_values(self) -> Sequence[str]:
        """Values of the partition that receives all rows; () with dynamic partitioning."""
        return self._session.static

    @property
    def database(self) -> str:
        """Name of the database, in lower case."""
        return self.table.name.database

    @property
    def table(self) -> Table:
        """The table as it was when the last transaction began or, before the first one, when the connection opened."""
        return self._session.table

    @property
    def is_partitioned_table(self) -> bool:
        """Whether the table has partition columns."""
        return bool(self.table.partition_columns)

    @property
    def is_dynamic_partitioning(self) -> bool:
        """Whether each row selects its partition."""
        return self._session.is_dynamic

    @property
    def current_transaction_state(self) -> TxnState:
        """State of the current or last transaction."""
        return self._lifecycle.state

    @property
    def current_write_id(self) -> int | None:
        """Write id of the open or joined transaction; None if there is none."""
        return self._lifecycle.current_write_id

    @property
    def current_txn_id(self) -> int | None:
        """Id of the open transaction; None if no transaction is open, or if it is joined."""
        return self._lifecycle.current_txn_id

    @property
    def txn_to_write_ids(self) -> Mapping[int, int]:
        """Write id of each transaction of the current batch, by transaction id."""
        batch = self._lifecycle.batch
        return dict(batch.txn_to_write_ids) if batch else {}

    @property
    def partitions(self) -> Mapping[str, PartitionInfo]:
        """Partitions written by the current or last transaction, by name."""
        known = self._lifecycle.batch.partitions if self._lifecycle.batch else {}
        return {name: info for name, info in known.items() if name != WHOLE_TABLE}

    @property
    def write_directories(self) -> Sequence[DeltaFiles]:
        """The deltas of the last commit, even if its outcome is unknown: each with partition, location and files."""
        return self._lifecycle.batch.deltas if self._lifecycle.batch else ()

    @property
    def stats(self) -> ConnectionStats:
        """A snapshot of the connection's counters."""
        return self._session.stats.snapshot(self._session.metastore.calls)

    # --- internals

    def _check(self) -> None:
        """Raise StreamingException unless the connection is open and belongs to this process and thread."""
        self._owner.check()
        if self._closed:
            raise StreamingException("the connection is closed", hint="open a new one")

    def _close(self) -> None:
        self._closed = True
        _open.discard(self)
        try:
            with streaming_errors():
                self._lifecycle.close()
        finally:
            self._session.counts.close(Deadline.after(_ROW_COUNT_SECONDS), threading.Event())
            self._session.metastore.close()

    def _close_at_exit(self) -> None:
        """Close the connection when the program ends. A failure is only logged."""
        if self._owner.is_forked:  # the transactions belong to the parent process
            return
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - the other connections must be closed, too
            _log.warning("could not close connection %s at the end of the program: %s", self.agent_info, error)


# Registered on import, so that a program's own exit handlers run first and can still commit.
@atexit.register
def _close_all() -> None:
    for connection in list(_open):
        connection._close_at_exit()
