"""A batch of transactions that this client opens, locks and ends.

`commit` and `abort` end the open transaction. `close` also ends the unused ones and the batch itself; after an error
`fail` does the same and never raises. The state table is in `lifecycle.py`.

Invariant: a transaction ends exactly once, committed or aborted. After a failure no row of the transaction is or will
become visible, unless the outcome of its commit is unknown; then CommitOutcomeUnknown is raised.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from ingestd.acid.routing import Part
from ingestd.clock import Deadline
from ingestd.errors import CommitOutcomeUnknown, IngestdError
from ingestd.hive import transactions
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import WHOLE_TABLE, Table
from ingestd.hive.transactions import KeyValue, Transaction, Wait, WriteLock
from ingestd.hive.write_ids import is_committed
from ingestd.publish import deltas
from ingestd.publish.deltas import DeltaFiles
from ingestd.publish.outcome import CommitRequest
from ingestd.publish.protocol import Publication, Step, TableWrite, publish
from ingestd.publish.staging import STREAMING, Staging
from ingestd.storage.contract import Location
from ingestd.streaming.delta_output import BatchOutput, Output, Partition, TransactionOutput
from ingestd.streaming.errors import REGISTERING_PARTITION, InvalidTransactionState, streaming_errors
from ingestd.streaming.heartbeat import Heartbeat
from ingestd.streaming.session import Session, TableChange

_log = logging.getLogger(__name__)


class TxnState(Enum):
    """State of a transaction. The values are those of Java (StreamingTransaction, TxnState)."""

    INACTIVE = "I"
    OPEN = "O"
    COMMITTED = "C"
    ABORTED = "A"
    PREPARED_FOR_COMMIT = "P"


@dataclass(frozen=True, slots=True)
class Extras:
    """Additions to a commit: partitions to report as written even without rows, and a table parameter to set."""

    partitions: tuple[Partition, ...] = ()
    key_value: KeyValue | None = None


class Partitions:
    """The partitions of the open transaction. Each is created and registered once."""

    def __init__(
        self, session: Session, register: Callable[[Iterable[Partition]], Mapping[str, PartitionInfo]]
    ) -> None:
        self._session = session
        self._register = register
        self.known: dict[str, PartitionInfo] = {}

    def clear(self) -> None:
        """Forget all partitions, because a new transaction begins with none registered."""
        self.known = {}

    def locate(self, partitions: Iterable[Partition]) -> Mapping[str, PartitionInfo]:
        """Register `partitions`, and return all partitions of the transaction by name."""
        name = self._session.table.partition_name
        missing = [partition for partition in partitions if name(partition) not in self.known]
        if missing:
            # Translate errors here: callers could not tell them from errors of the other metastore calls.
            with streaming_errors(REGISTERING_PARTITION):
                registered = self._register(missing)
            stats = self._session.stats
            stats.created_partitions += sum(not info.existed for info in registered.values())
            stats.total_partitions += sum(info.name != WHOLE_TABLE for info in registered.values())
            self.known |= registered
        return self.known


class TransactionBatch:
    """A batch of `size` transactions that are opened together. If there are several, they share their files."""

    def __init__(self, session: Session, size: int) -> None:
        self._session = session
        self._guard = threading.RLock()
        self._partitions = Partitions(session, self._register)
        self._unused = deque(transactions.begin_batch(session.metastore, session.table.name, session.agent, size))
        self.txn_to_write_ids = {txn.id: write_id for txn, write_id in self._unused}
        self.write_ids = list(self.txn_to_write_ids.values())
        self.state = TxnState.INACTIVE
        self.current: Transaction | None = None
        self.deltas: Sequence[DeltaFiles] = ()
        """The deltas that the last commit wrote, even if its outcome is unknown."""
        self._closed = False
        self._outcome_unknown = False
        self._closing_time = Deadline.after(session.options.batch_seconds)
        # The first transaction sets both, once it holds its lock and has compared the table.
        self._location: Location | None = None
        self._output: Output | None = None
        interval = session.heartbeat_seconds
        if len(self._unused) > 1:
            interval = min(interval, session.options.batch_seconds)
        self._heartbeat = Heartbeat(session.metastore, list(self.txn_to_write_ids), interval, self._close_when_old)

    @property
    def current_write_id(self) -> int | None:
        """Write id of the open transaction; None if no transaction is open."""
        return self.txn_to_write_ids[self.current.id] if self.current else None

    @property
    def remaining(self) -> int:
        """Number of transactions that have not begun."""
        return 0 if self._closed else len(self._unused)

    @property
    def partitions(self) -> Mapping[str, PartitionInfo]:
        """Partitions of the current or last transaction, by name."""
        return self._partitions.known

    def begin(self, refresh_table: Callable[[], TableChange]) -> bool:
        """Begin the next transaction: acquire its lock, then call `refresh_table`. From then on no DDL can interfere.

        Returns False if the batch was closed instead, because of its age or because its files or write ids no longer
        fit the table. The caller then opens the next batch.
        """
        with self._guard:
            if not self.remaining:
                return False
            is_first = len(self._unused) == len(self.write_ids)
            txn, write_id = self._unused.popleft()
            self._heartbeat.check(txn.id)
            self.current, self.state = txn, TxnState.OPEN
            self._partitions.clear()
            transactions.lock(self._session.metastore, txn, self._locks, wait=self._wait())
            change = refresh_table()
            if change is TableChange.RECREATED or (change is TableChange.DEFINITION and not is_first):
                self._finish_files()
                self._abort_all()
                self.state = TxnState.ABORTED
                return False
            if self._output is None:
                self._location = self._session.warehouse.storages.location(self._table.location)
                self._output = self._new_output()
            self._output.begin(write_id)
            return True

    def add(self, part: Part) -> None:
        """Add rows to the open transaction."""
        with self._guard:
            self._open_transaction()  # a stream's `read` or a signal handler may have ended it
            self._files.add(part)

    def check(self) -> None:
        """Raise TransactionError when the metastore has aborted the open transaction. Makes no network call."""
        if self.current is not None:
            self._heartbeat.check(self.current.id)

    def flush(self) -> None:
        """Write buffered rows to their files, to free memory."""
        with self._guard:
            self._files.flush()

    def commit(self, extras: Extras) -> None:
        """Commit the open transaction, which makes its rows visible."""
        with self._guard:
            txn = self._open_transaction()
            self._heartbeat.check(txn.id)
            placed: list[DeltaFiles] = []
            try:
                publication = self._publish(self._table_write(txn, extras, placed.extend), txn, extras.key_value)
            except CommitOutcomeUnknown:
                self._outcome_unknown, self.deltas = True, placed
                raise
            self.deltas = publication.deltas
            self.current, self.state = None, TxnState.COMMITTED
            self._session.stats.committed_transactions += 1
            _warn_if_hidden(publication, txn)
            self._close_if_used_up()

    def abort(self) -> None:
        """Abort the open transaction. The batch continues with its next one."""
        with self._guard:
            txn = self._open_transaction()
            if self._output:
                self._output.discard()
            self._heartbeat.remove(txn.id)
            transactions.abort(self._session.metastore, txn.id)
            self.current, self.state = None, TxnState.ABORTED
            self._session.stats.aborted_transactions += 1
            self._close_if_used_up()

    def close(self) -> None:
        """Abort the open transaction and the unused ones, and finish the files."""
        with self._guard:
            if self._closed:
                return
            try:
                if self.current is not None:
                    self.abort()
                self._finish_files()
                self._abort_all()
            except IngestdError:
                self.fail()
                raise

    def fail(self) -> None:
        """Close the batch after an error. Never raises; transactions that cannot be aborted are left to time out."""
        with self._guard:
            if self._closed:
                return
            if self._output:
                self._output.abandon()
            self._session.stats.aborted_transactions += self.current is not None and not self._outcome_unknown
            self._abort_all()
            self.state = TxnState.ABORTED

    @property
    def _shared_range(self) -> tuple[int, int] | None:
        """First and last write id of transactions that share their files; None for a single transaction."""
        return (self.write_ids[0], self.write_ids[-1]) if len(self.write_ids) > 1 else None

    @property
    def _table(self) -> Table:
        return self._session.table

    @property
    def _files(self) -> Output:
        """The output that stores the rows; it exists once a transaction has begun."""
        assert self._output
        return self._output

    def _open_transaction(self) -> Transaction:
        if self.current is None:
            where = f"table {self._table.name}"
            raise InvalidTransactionState("no transaction is open", where=where, hint="call begin_transaction first")
        return self.current

    def _new_output(self) -> Output:
        if self._shared_range:
            return BatchOutput(self._table, self._session.shape, self._partitions.locate, self._shared_range)
        assert self._location
        staging = Staging(self._session.warehouse.storages, self._location, STREAMING, str(min(self.txn_to_write_ids)))
        return TransactionOutput(self._session.shape, staging)

    def _register(self, partitions: Iterable[Partition]) -> Mapping[str, PartitionInfo]:
        assert self._location
        txn = self._open_transaction()
        write_id = self.txn_to_write_ids[txn.id]
        self._location.check()  # before the metastore creates directories under it
        created = self._session.create_partitions(self._location, partitions)
        deltas.register(self._session.warehouse, txn, self._table, write_id, created)
        return created

    @property
    def _locks(self) -> list[WriteLock]:
        """The lock that each transaction acquires. With static partition values it covers only that partition."""
        partition = self._table.partition_name(self._session.static) if self._session.static else ""
        return [WriteLock(self._table.name, dynamic=self._session.is_dynamic, partition=partition)]

    def _wait(self) -> Wait:
        return Wait(Deadline.after(self._session.options.lock_seconds), threading.Event())

    def _publish(self, write: TableWrite, txn: Transaction, key_value: KeyValue | None) -> Publication:
        """Publish the rows and commit.

        Heartbeats stop before the commit call, because the metastore reports a committed transaction as lost.
        """
        metastore = self._session.metastore

        def observe(step: Step) -> None:
            if step == "counted":
                self._heartbeat.remove(txn.id)

        request = CommitRequest(
            partial(is_committed, metastore, txn.id),
            _warn_of_wait,
            key_value=key_value,
            resolve_seconds=self._session.options.commit_outcome_seconds,
        )
        return publish(self._session.warehouse, txn, [write], request, observe)[self._table.name]

    def _table_write(
        self, txn: Transaction, extras: Extras, on_placed: Callable[[Sequence[DeltaFiles]], None]
    ) -> TableWrite:
        """Register all partitions, lock the table for the commit, and return what the transaction adds to the table.

        The lock against TRUNCATE is acquired only now, because UPDATE and DELETE wait for it too and a transaction may
        take hours.
        """
        assert self._location
        files = self._files.finish()
        try:
            located = self._partitions.locate({*extras.partitions, *files.partitions})
            excludes_overwrites = not located or transactions.strengthen_lock(
                self._session.metastore, txn, self._locks, wait=self._wait()
            )
        except IngestdError:
            # Once the metastore has forgotten an aborted transaction, published rows of it would be visible.
            files.withdraw(())
            raise
        return TableWrite(
            self._table,
            self.txn_to_write_ids[txn.id],
            self._location,
            files,
            self._session.counts,
            excludes_overwrites,
            located,
            self._shared_range,
            on_placed,
        )

    def _close_when_old(self) -> None:
        """Close the batch if `batch_seconds` have passed and no transaction is open. Runs in the heartbeat thread."""
        if len(self.write_ids) == 1 or not self._closing_time.passed or not self._guard.acquire(blocking=False):
            return
        try:
            if self.current is None and not self._closed:
                self._finish_files()
                self._abort_all()
        except IngestdError:
            self.fail()
        finally:
            self._guard.release()

    def _close_if_used_up(self) -> None:
        if not self._unused:
            self._finish_files()
            self._end()

    def _finish_files(self) -> None:
        """Close the shared files. A failure is only logged, because the side files keep committed rows readable."""
        if self._output is None:
            return
        try:
            self._output.close()
        except IngestdError as error:
            _log.warning("could not close the files of a batch; readers continue to use their side files: %s", error)
            self._output.abandon()

    def _abort_all(self) -> None:
        """Abort the open transaction and the unused ones."""
        open_now = [*([self.current] if self.current else []), *(txn for txn, _ in self._unused)]
        try:
            transactions.abort_all(self._session.metastore, [txn.id for txn in open_now])
        except IngestdError as error:
            _log.warning("could not abort the transactions of a batch; the metastore will time them out: %s", error)
        self.current = None
        self._unused.clear()
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._heartbeat.stop()


def _warn_of_wait(error: IngestdError, seconds: float) -> None:
    _log.warning("the outcome of a commit is unknown; the next check is in %.1f s: %s", seconds, error)


def _warn_if_hidden(publication: Publication, txn: Transaction) -> None:
    """Log which committed rows a concurrent TRUNCATE hides, or that this could not be checked."""
    if publication.unchecked:
        _log.warning(
            "could not check whether a TRUNCATE hides rows of transaction %s: %s", txn.id, publication.unchecked
        )
    for base in publication.hidden.values():
        _log.error(
            "rows of transaction %s were committed during a TRUNCATE and are hidden by %s; write them again unless the"
            " TRUNCATE was meant to remove them",
            txn.id,
            base,
        )
