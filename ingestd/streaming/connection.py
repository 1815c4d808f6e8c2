"""`HiveStreamingConnection`: begin, write, commit, abort, close (Streaming V2).

Invariant: a connection belongs to one thread. Whatever fails, other than a bad record, ends its batch: all that is open
is aborted, and the next `begin_transaction` starts anew.
"""

from __future__ import annotations

import atexit
import io
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from ingestd.acid.layout import MAX_BUCKET, MAX_STATEMENT, batch_delta_name, bucket_name
from ingestd.acid.routing import route
from ingestd.clock import Deadline
from ingestd.hive.partitions import PartitionInfo, ensure_partitions
from ingestd.hive.tables import read_table
from ingestd.hive.transactions import KeyValue, Transaction
from ingestd.publish.notifications import announce
from ingestd.storage import local
from ingestd.streaming.arguments import PartitionValues, check_text, check_whole
from ingestd.streaming.batch import Extras, TransactionBatch, TxnState
from ingestd.streaming.builder import Builder
from ingestd.streaming.errors import (
    InvalidTransactionState,
    SerializationError,
    StreamingException,
    TransactionError,
    partition_errors,
    streaming_errors,
    transaction_errors,
)
from ingestd.streaming.info import ConnectionInfo
from ingestd.streaming.intake import RecordIntake
from ingestd.streaming.joined import JoinedTransaction
from ingestd.streaming.memory import MemoryWatch
from ingestd.streaming.options import ConnectionOptions
from ingestd.streaming.owner import Owner, close_after
from ingestd.streaming.record_buffer import BYTES, Sink, bytes_of, records_of
from ingestd.streaming.session import normal_values

_log = logging.getLogger(__name__)
_BATCHES = 5  # opened for one transaction while the table changes each time
# How long `close` looks at row counts of the last commits.
_COUNTS_SECONDS = 5.0


class HiveStreamingConnection(ConnectionInfo):
    """A connection to one table; the constructor connects. Also a context manager, which closes it."""

    def __init__(self, **options: Any) -> None:
        """Connect; `options` are those of `ConnectionOptions`.

        Raises InvalidConnection for wrong options, ConnectionError, InvalidTable.
        """
        super().__init__(ConnectionOptions.of(options))
        self._owner = Owner()
        self._closed = False
        self._failure = ""  # why the last transaction was aborted without being asked to
        try:
            self._intake = RecordIntake(self._session)
        except BaseException:
            self._metastore.close()
            raise
        self._memory = MemoryWatch(self.configuration, self.options.auto_flush_check_interval_size)
        _open.add(self)

    @staticmethod
    def new_builder() -> Builder[HiveStreamingConnection]:
        """Collect the options one by one; `connect()` makes the connection."""
        return Builder(HiveStreamingConnection)

    # --- transactions

    def begin_transaction(self) -> None:
        """Begin a transaction; a batch that is used up is followed by the next one by itself.

        A table that has changed meanwhile is written as it is now: rows get new columns, files go to a new location.

        Raises ConnectionError, TransactionError; TableChanged when records that fitted the table would not fit it now;
        StreamingException when a transaction is open already.
        """
        self._check()
        if self.current_transaction_state is TxnState.OPEN:
            raise InvalidTransactionState("a transaction is open already", hint="commit or abort it first")
        self._failure = ""
        for _ in range(_BATCHES):
            batch = self._next_batch()
            with self._failing():
                if batch.begin(self._intake.look_again):
                    break
        else:
            raise TransactionError("the table changes again and again", where=f"table {self._table.name}")
        self._intake.begin()

    def fetch_batch(self) -> None:
        """Open the transactions of the next batch, unless some of the last are left; `begin_transaction` does it too.

        Raises ConnectionError, TransactionError; InvalidTransactionState while the last transaction is open.
        """
        self._check()
        self._next_batch()

    def _next_batch(self) -> TransactionBatch | JoinedTransaction:
        if self._batch is None or not self._batch.remaining:
            if self.current_transaction_state is TxnState.OPEN:
                raise InvalidTransactionState("the last transaction of the batch is open", hint="end it first")
            with streaming_errors():
                self._batch = self._new_batch()
        return self._batch

    def write(self, data: Any) -> None:
        """Write into the open transaction.

        A `RecordWriter` takes one record as bytes, many as a list of bytes, or a binary stream that its line pattern
        splits; an `ArrowWriter` takes Arrow data.

        Raises SerializationError for records that cannot become rows (the transaction goes on without them); anything
        else that fails aborts what is open.
        """
        batch = self._writing()
        feed = self._intake.feed
        if feed is None:
            self._take(batch, partial(self._intake.write_arrow, data))
        elif isinstance(data, BYTES):
            try:  # as `_failing` does, which costs more than all the rest of this call
                batch.check()
            except StreamingException as error:
                self._kill(error)
                raise
            if feed.write(data if type(data) is bytes else bytes_of(data, "write")):
                self._take(batch, feed.drain)
        elif isinstance(data, io.TextIOBase):
            raise StreamingException("a stream gives bytes, not text", where="write", hint="open it with mode 'rb'")
        elif hasattr(data, "read"):
            self._take(batch, partial(feed.write_stream, data))
        else:
            self._take(batch, partial(feed.write_many, records_of(data)))
        if self._memory.is_short(self._stats.records_size):
            with self._failing():
                batch.flush()
            self._stats.auto_flushes += 1

    def commit_transaction(
        self,
        partitions: Sequence[PartitionValues] = (),
        key: str | None = None,
        value: str | None = None,
    ) -> None:
        """Commit: on return the rows are readable.

        `partitions` (of each the values, by name or in order) are made and reported as written even if no row went
        there. `key` (beginning with `_meta`, and existing) and `value` set a parameter of the table in the same commit.

        Raises SerializationError when records that waited are bad: commit again to go on without them, or abort.
        Raises TransactionError when nothing of it is or will be visible.
        """
        batch = self._writing()
        if (key is None) != (value is None):
            raise StreamingException("key and value belong together", where="commit_transaction")
        if not isinstance(partitions, (list, tuple)):
            raise StreamingException(
                f"partitions must be a list, not {type(partitions).__name__}",
                where="commit_transaction",
                hint='each is given by its values: [["Asia", "India"], {"continent": "Asia", "country": "Japan"}]',
            )
        values = tuple(normal_values(self._table, one) for one in partitions)
        self._check_key_value(key, value)
        if self._intake.feed:
            self._take(batch, self._intake.feed.drain)
        key_value = None if key is None or value is None else KeyValue(self._table.id, key, value)
        with self._failing():
            batch.commit(Extras(values, key_value))

    def abort_transaction(self) -> None:
        """Abort the open transaction: nothing of it will ever be visible."""
        batch = self._writing()
        with self._failing():
            batch.abort()

    @contextmanager
    def transaction(self) -> Iterator[HiveStreamingConnection]:
        """A transaction that commits at the end of the `with` block, or aborts when the block raises.

        What a block has committed or aborted itself is left as it is. What a block raises is raised, even if the
        transaction cannot be aborted. TransactionError when it failed inside and the block went on all the same.
        """
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            self._abort_after_error()
            raise
        if self._failure:
            raise TransactionError(
                f"nothing of the transaction is visible, it failed before: {self._failure}",
                hint="let the error leave the block, or begin a new transaction and write its records again",
            )
        if self.current_transaction_state is not TxnState.OPEN:
            return  # the block itself committed or aborted
        try:
            self.commit_transaction()
        except SerializationError:
            self._abort_after_error()
            raise

    def _abort_after_error(self) -> None:
        """Abort what is open; the error that is on its way to the caller says more than one of this would."""
        if self.current_transaction_state is TxnState.OPEN:
            try:
                self.abort_transaction()
            except StreamingException as error:
                _log.warning("the transaction could not be aborted, so it is left to time out: %s", error)

    def hand_over(self) -> None:
        """Let the connection go: from now on it belongs to the thread that calls it next."""
        self._check()
        self._metastore.close()
        self._owner.release()

    def close(self) -> None:
        """Abort what remains and finish the files; the second time it does nothing."""
        if self._closed and not self._owner.is_forked:
            return
        self._check()
        if self.current_transaction_state is TxnState.OPEN:
            self._failure = "the connection was closed while it was open"
        self._close()

    def __enter__(self) -> HiveStreamingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, self.close)

    # --- partitions and files

    def create_partition_if_not_exists(self, values: PartitionValues) -> PartitionInfo:
        """Make a partition, or find it; clients that race for one all succeed.

        `values` are text, one for each partition column, by name or in order, and are brought to Hive's normal form:
        007 is 7 for an int.
        Raises InvalidConnection for values that do not fit, PartitionCreationFailed.
        """
        self._check()
        if not self.is_partitioned_table:
            raise StreamingException("the table has no partitions", where=f"table {self._table.name}")
        with streaming_errors(), partition_errors():
            normal = normal_values(self._table, values)
            name = self._table.partition_name(normal)
            info = ensure_partitions(self._metastore, self._table, {name: normal})[name]
        self._stats.created_partitions += not info.existed
        return info

    def delta_file_location(
        self,
        partition_values: PartitionValues,
        bucket: int,
        min_write_id: int,
        max_write_id: int,
        statement_id: int = 0,
    ) -> Path:
        """Where the file of a bucket lies once these write ids are committed; makes the partition, as Java does.

        Raises StreamingException for numbers that no file has, else as `create_partition_if_not_exists`.
        """
        self._check()
        check_whole("bucket", bucket, 0, MAX_BUCKET, kind=StreamingException)
        check_whole("min_write_id", min_write_id, 1, kind=StreamingException)
        check_whole("max_write_id", max_write_id, min_write_id, kind=StreamingException)
        check_whole("statement_id", statement_id, 0, MAX_STATEMENT, kind=StreamingException)
        location = self._table.location
        if self.is_partitioned_table:
            location = self.create_partition_if_not_exists(partition_values).location
        else:
            normal_values(self._table, partition_values)
        delta = batch_delta_name(min_write_id, max_write_id, statement_id)
        return local.local_path(location) / delta / bucket_name(bucket)

    def add_write_notification_events(self, txn_id: int) -> None:
        """Tell the metastore's event log, if it keeps one, what was written into the joined transaction `txn_id`.

        It must precede the owner's commit; a transaction of our own announces itself. Raises InvalidTransactionState
        before `commit_transaction`, TransactionError.
        """
        self._check()
        check_whole("txn_id", txn_id, 1, kind=StreamingException)
        if self.write_id is None or self.current_transaction_state is not TxnState.PREPARED_FOR_COMMIT:
            raise InvalidTransactionState("there is no joined transaction that is prepared", where="events")
        joined = Transaction(txn_id, self.agent_info)
        with streaming_errors(), transaction_errors():
            announce(self._metastore, self._table, joined, self.write_id, self.write_directories)

    # --- inside

    def _new_batch(self) -> TransactionBatch | JoinedTransaction:
        if self.write_id is not None:
            if self._batch:
                raise InvalidTransactionState("a joined transaction can be begun once", hint="make a new connection")
            return JoinedTransaction(self._session, self.write_id, self.statement_id)
        return TransactionBatch(self._session, self.transaction_batch_size)

    def _sink(self, batch: pa.RecordBatch) -> None:
        assert self._batch is not None
        for part in route(batch, self._session.shape, self._session.static):
            self._batch.add(part)

    def _take(self, batch: TransactionBatch | JoinedTransaction, write: Callable[[Sink], None]) -> None:
        """Let `write` give its batches to the sink; bad records leave the transaction as it is."""
        with self._failing():
            batch.check()
            write(self._sink)

    def _check_key_value(self, key: str | None, value: str | None) -> None:
        """What the metastore would refuse in the commit is refused before it: the transaction stays as it is."""
        if key is None:
            return
        check_text("key", key, kind=StreamingException)
        check_text("value", value, kind=StreamingException)
        if self.write_id is not None:
            raise InvalidTransactionState("the owner of a joined transaction commits it, and its key and value")
        with self._failing():
            parameters = read_table(self._metastore, self._table.name).parameters or {}
        if not key.startswith("_meta") or key not in parameters:
            raise StreamingException(
                f"a commit cannot set the table's parameter {key!r}",
                where=f"table {self._table.name}",
                hint="its name must begin with _meta, and it must exist: ALTER TABLE … SET TBLPROPERTIES",
            )

    def _writing(self) -> TransactionBatch | JoinedTransaction:
        """The batch with an open transaction."""
        self._check()
        if self._batch is None or self._batch.state is not TxnState.OPEN:
            raise InvalidTransactionState("no transaction is open", hint="call begin_transaction first")
        return self._batch

    def _check(self) -> None:
        """Raise StreamingException unless the connection is open and belongs to this process and thread."""
        self._owner.check()
        if self._closed:
            raise StreamingException("the connection is closed", hint="make a new one")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever passes here but a bad record ends the batch; errors leave by their name of the streaming API."""
        try:
            with streaming_errors(), transaction_errors():
                yield
        except SerializationError:
            raise
        except BaseException as error:
            self._kill(error)
            raise

    def _kill(self, error: BaseException) -> None:
        """Abort all that is open, and remember why."""
        self._failure = str(error) or type(error).__name__
        if self._batch:
            self._batch.kill()

    def _close(self) -> None:
        self._closed = True
        _open.discard(self)
        try:
            with streaming_errors():
                if self._batch:
                    self._batch.close()
        finally:
            self._session.counts.close(Deadline.after(_COUNTS_SECONDS), threading.Event())
            self._metastore.close()

    def _close_quietly(self) -> None:
        if self._owner.is_forked:  # a child must not end what is its parent's
            return
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - the others must be closed, too
            _log.warning("connection %s was not closed: %s", self.agent_info, error)


_open: set[HiveStreamingConnection] = set()


@atexit.register
def _close_all() -> None:
    """Abort what a program that ends has left open."""
    for connection in list(_open):
        connection._close_quietly()
