"""The state machine behind `HiveStreamingConnection`, which runs the transactions of a connection one by one.

| State | begin | commit | abort | failure | close |
|---|---|---|---|---|---|
| INACTIVE: none has begun yet | OPEN | refused | refused | ABORTED | INACTIVE |
| OPEN | refused | COMMITTED, or PREPARED_FOR_COMMIT if joined | ABORTED | ABORTED | ABORTED |
| COMMITTED | OPEN | refused | refused | ABORTED | COMMITTED |
| ABORTED | OPEN | refused | refused, or ignored after a failure | ABORTED | ABORTED |
| PREPARED_FOR_COMMIT: the owner commits it | refused | refused | refused | unchanged | unchanged |

"refused" means that InvalidTransactionState is raised and nothing changes; "ignored" that nothing is raised either. A
failure is any error in begin, write or commit except RecordError. It also aborts the unused transactions of the
batch, and the next begin opens a new batch. Outside OPEN only begin can fail; if it cannot even open a batch, the
state does not change. A joined transaction can begin only once. After a failure abort is ignored, as in Java
(TransactionBatch.abort), because a program may abort in an exception handler; but it is refused if the outcome of a
commit is unknown, because the rows may be visible.

Invariant: at most one transaction of a connection is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ingestd.errors import CommitOutcomeUnknown, RecordError
from ingestd.hive.tables import table_parameters
from ingestd.hive.transactions import KeyValue
from ingestd.streaming.arguments import check_text
from ingestd.streaming.batch import Extras, TransactionBatch, TxnState
from ingestd.streaming.errors import InvalidTransactionState, StreamingException
from ingestd.streaming.joined import JoinedTransaction
from ingestd.streaming.session import Session, TableChange

AnyBatch = TransactionBatch | JoinedTransaction


class Lifecycle:
    """Tracks the current batch and the state of its transaction. Methods raise the errors of the layers below."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.batch: AnyBatch | None = None
        self.failure = ""
        """Why the last transaction was aborted, unless by `abort`; otherwise empty."""
        self._has_failed = False  # and certainly aborted the last transaction

    @property
    def state(self) -> TxnState:
        """State of the current or last transaction."""
        return self.batch.state if self.batch else TxnState.INACTIVE

    @property
    def current_write_id(self) -> int | None:
        """Write id of the open or joined transaction; None if there is none."""
        if isinstance(self.batch, TransactionBatch):
            return self.batch.current_write_id
        return self._session.options.write_id

    @property
    def current_txn_id(self) -> int | None:
        """Id of the open transaction; None if no transaction is open, or if it is joined."""
        return self.batch.current.id if isinstance(self.batch, TransactionBatch) and self.batch.current else None

    @property
    def has_unused(self) -> bool:
        """Whether the batch has transactions that have not begun."""
        return bool(self.batch and self.batch.remaining)

    def open_batch(self) -> AnyBatch:
        """Return the batch with the open transaction. Raises InvalidTransactionState when none is open."""
        if self.batch is None or self.batch.state is not TxnState.OPEN:
            raise InvalidTransactionState("no transaction is open", hint="call begin_transaction first")
        return self.batch

    def prepare(self) -> None:
        """Check that the database may still be written, then open the next batch if the last one is used up.

        Raises InvalidTable before a write id is allocated. The unused transactions of the batch are then aborted. A
        joined transaction has its write id, and begins only once: the database was checked at open.
        """
        if self.state is not TxnState.OPEN and self._session.options.write_id is None:
            with self.guard():
                self._session.require_writable()
        self.next_batch()

    def next_batch(self) -> AnyBatch:
        """Return the batch of the next transaction. If the last batch is used up, open a new one."""
        if self.batch is None or not self.has_unused:
            if self.state is TxnState.OPEN:
                raise InvalidTransactionState(
                    "the last transaction of the batch is open", hint="commit or abort it first"
                )
            self.batch = self._new_batch()
        return self.batch

    def begin(self, refresh_table: Callable[[], TableChange]) -> bool:
        """Begin the next transaction of the batch. `refresh_table` is called once its lock is held.

        Returns False if the batch had to end instead, because of its age or a change of the table. The caller then
        tries again with the next batch.
        """
        self.failure, self._has_failed = "", False
        batch = self.next_batch()
        with self.guard():
            return batch.begin(refresh_table)

    def key_value(self, key: str | None, value: str | None) -> KeyValue | None:
        """Return the table parameter that a commit sets, or None if no key is given.

        Raises StreamingException or InvalidTransactionState for a parameter that the metastore would refuse. A refusal
        during the commit would end the transaction; here it stays open.
        """
        if key is None and value is None:
            return None
        if key is None or value is None:
            raise StreamingException("key and value must be given together", where="commit_transaction")
        check_text("key", key, kind=StreamingException)
        check_text("value", value, kind=StreamingException)
        table = self._session.table
        if self._session.options.write_id is not None:
            raise InvalidTransactionState("only the owner of a joined transaction can set a key and value")
        with self.guard():
            parameters = table_parameters(self._session.metastore, table.name)
        if not key.startswith("_meta") or key not in parameters:
            raise StreamingException(
                f"a commit cannot set the table parameter {key!r}",
                where=f"table {table.name}",
                hint="its name must start with _meta, and it must exist: ALTER TABLE … SET TBLPROPERTIES",
            )
        return KeyValue(table.id, key, value)

    def commit(self, extras: Extras) -> None:
        """Commit the open transaction."""
        batch = self.open_batch()
        with self.guard():
            batch.commit(extras)

    def abort(self) -> None:
        """Abort the open transaction, unless a failure has aborted it. The batch continues with its next one."""
        if self._has_failed and self.state is TxnState.ABORTED:
            return
        batch = self.open_batch()
        with self.guard():
            batch.abort()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Call `fail` for an error in the block, unless it is a RecordError."""
        try:
            yield
        except RecordError:
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Abort the open transaction and the unused ones of its batch, and record the reason. Never raises."""
        self.failure = str(error) or type(error).__name__
        self._has_failed = not isinstance(error, CommitOutcomeUnknown)
        if self.batch:
            self.batch.fail()

    def close(self) -> None:
        """Abort the open transaction and the unused ones, and finish the files of the batch."""
        if self.state is TxnState.OPEN:
            self.failure = "the connection was closed while the transaction was open"
        if self.batch:
            self.batch.close()

    def _new_batch(self) -> AnyBatch:
        options = self._session.options
        if options.write_id is None:
            return TransactionBatch(self._session, options.transaction_batch_size)
        if self.batch:
            raise InvalidTransactionState("a joined transaction can begin only once", hint="open a new connection")
        return JoinedTransaction(self._session, options.write_id, options.statement_id)
